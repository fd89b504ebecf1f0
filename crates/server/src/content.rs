//! Sends files of the catalog.
//!
//! Owns which types a browser may show, and ranges. Everything else is a download that runs nothing, HTML and SVG
//! included.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use gristmill_dedup::source::Source;

use crate::channel_body::channel_body;
use crate::problem::{Problem, Result};

/// Time in which a client must take a block.
const SEND_TIMEOUT: Duration = Duration::from_secs(60);

/// Bytes that are read at once.
const BLOCK_BYTES: usize = 256 << 10;

/// Extensions of files that are shown, with their types.
const SHOWN: [(&str, &str); 19] = [
    ("jpg", "image/jpeg"),
    ("jpeg", "image/jpeg"),
    ("png", "image/png"),
    ("gif", "image/gif"),
    ("webp", "image/webp"),
    ("bmp", "image/bmp"),
    ("avif", "image/avif"),
    ("mp4", "video/mp4"),
    ("m4v", "video/mp4"),
    ("mov", "video/quicktime"),
    ("webm", "video/webm"),
    ("mpg", "video/mpeg"),
    ("mpeg", "video/mpeg"),
    ("mp3", "audio/mpeg"),
    ("m4a", "audio/mp4"),
    ("flac", "audio/flac"),
    ("ogg", "audio/ogg"),
    ("opus", "audio/ogg"),
    ("wav", "audio/wav"),
];

/// Answers a request for a file, or for one range of it.
pub(crate) fn respond(source: Source, request: &HeaderMap) -> Result<Response> {
    let etag = format!("\"{:x}-{:x}-{:x}\"", source.size, source.mtime_ns, source.identity.1);
    let extension = std::path::Path::new(&source.name).extension().map(|text| text.to_string_lossy().to_lowercase());
    let shown = SHOWN.iter().find(|(known, _)| extension.as_deref() == Some(*known)).map(|(_, media_type)| *media_type);
    let mut headers = HeaderMap::new();
    let mut set = |name, value: &str| {
        headers.insert(name, HeaderValue::from_str(value).unwrap_or(HeaderValue::from_static("")));
    };
    set(header::ETAG, &etag);
    set(header::CACHE_CONTROL, "private, no-cache");
    set(header::ACCEPT_RANGES, "bytes");
    set(header::CONTENT_TYPE, shown.unwrap_or("application/octet-stream"));
    let disposition = if shown.is_some() { "inline" } else { "attachment" };
    let name = percent_encoded(source.name.as_encoded_bytes());
    set(header::CONTENT_DISPOSITION, &format!("{disposition}; filename*=UTF-8''{name}"));
    set(header::CONTENT_SECURITY_POLICY, "default-src 'none'; sandbox; frame-ancestors 'none'");
    let matches = |name| request.get(name).is_some_and(|value| value.as_bytes() == etag.as_bytes());
    if matches(header::IF_NONE_MATCH) {
        return Ok((StatusCode::NOT_MODIFIED, headers).into_response());
    }
    // A range of an earlier version is not continued.
    let is_valid = !request.contains_key(header::IF_RANGE) || matches(header::IF_RANGE);
    let (status, start, length) = match request.get(header::RANGE).filter(|_| is_valid) {
        None => (StatusCode::OK, 0, source.size),
        Some(range) => {
            let Some((start, end)) = range.to_str().ok().and_then(|text| parse_range(text, source.size)) else {
                let detail = format!("the range is invalid; expected one range within {} bytes", source.size);
                let mut response = Problem::new(StatusCode::RANGE_NOT_SATISFIABLE, detail).into_response();
                if let Ok(value) = HeaderValue::from_str(&format!("bytes */{}", source.size)) {
                    response.headers_mut().insert(header::CONTENT_RANGE, value);
                }
                return Ok(response);
            };
            let value = HeaderValue::from_str(&format!("bytes {start}-{}/{}", end - 1, source.size));
            headers.extend(value.ok().map(|value| (header::CONTENT_RANGE, value)));
            (StatusCode::PARTIAL_CONTENT, start, end - start)
        }
    };
    headers.insert(header::CONTENT_LENGTH, length.into());
    Ok((status, headers, body(source.file, start, length)).into_response())
}

/// Parses a header with one range. Returns its first byte and the byte after its last.
fn parse_range(text: &str, size: u64) -> Option<(u64, u64)> {
    let (first, last) = text.strip_prefix("bytes=")?.split_once('-')?;
    let number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse::<u64>().ok())?;
    let (start, end) = match (first, last) {
        ("", last) => (size.saturating_sub(number(last)?), size),
        (first, "") => (number(first)?, size),
        (first, last) => (number(first)?, number(last)?.checked_add(1)?.min(size)),
    };
    (start < end).then_some((start, end))
}

fn body(mut file: File, start: u64, length: u64) -> Body {
    let (sender, body) = channel_body();
    tokio::spawn(async move {
        let (mut position, mut left) = (start, length);
        while left > 0 && !sender.is_closed() {
            let count = usize::try_from(left).unwrap_or(usize::MAX).min(BLOCK_BYTES);
            let read = tokio::task::spawn_blocking(move || {
                let block = read_block(&mut file, position, count);
                (file, block)
            });
            let Ok((open, block)) = read.await else { return };
            file = open;
            let is_failed = block.is_err();
            position += count as u64;
            left -= count as u64;
            let sent = tokio::time::timeout(SEND_TIMEOUT, sender.send(block)).await;
            if is_failed || !matches!(sent, Ok(Ok(()))) {
                return;
            }
        }
    });
    body
}

/// Reads exactly `count` bytes. A file that has become shorter is an error, which ends the connection.
fn read_block(file: &mut File, position: u64, count: usize) -> io::Result<Bytes> {
    let mut block = vec![0; count];
    file.seek(SeekFrom::Start(position))?;
    file.read_exact(&mut block)?;
    Ok(block.into())
}

/// Encodes a file name for a header.
fn percent_encoded(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for &byte in bytes {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'-' | b'_' => text.push(char::from(byte)),
            _ => text.push_str(&format!("%{byte:02X}")),
        }
    }
    text
}
