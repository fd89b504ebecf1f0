//! Splits a byte stream into frames, and writes methods, headers and bodies as frames.

use super::{
    method::Outgoing,
    properties::Properties,
    table::{Cursor, Malformed},
};
use bytes::{Buf, BufMut, Bytes, BytesMut};

/// Protocol header that opens a connection.
pub(crate) const PROTOCOL_HEADER: &[u8; 8] = b"AMQP\x00\x00\x09\x01";

const METHOD: u8 = 1;
const HEADER: u8 = 2;
const BODY: u8 = 3;
const HEARTBEAT: u8 = 8;
const END: u8 = 0xCE;

/// Bytes of a frame besides its payload.
pub(crate) const FRAME_OVERHEAD: usize = 8;

/// One frame with an undecoded payload.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Frame {
    pub(crate) channel: u16,
    pub(crate) content: Content,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Content {
    Method(Bytes),
    Header(Bytes),
    Body(Bytes),
    Heartbeat,
}

/// Splits the next frame off the front, if it is complete. `largest` is the maximum frame size.
pub(crate) fn cut(buffer: &mut BytesMut, largest: usize) -> Result<Option<Frame>, Malformed> {
    let is_protocol_header = buffer.starts_with(b"AMQP");
    if is_protocol_header && buffer.len() >= PROTOCOL_HEADER.len() {
        return Err(Malformed("protocol header: the server speaks another version of AMQP"));
    }
    if is_protocol_header || buffer.len() < 7 {
        return Ok(None);
    }
    let kind = buffer[0];
    let channel = u16::from_be_bytes([buffer[1], buffer[2]]);
    let size = u32::from_be_bytes([buffer[3], buffer[4], buffer[5], buffer[6]]) as usize;
    if size + FRAME_OVERHEAD > largest {
        return Err(Malformed("frame: larger than the maximum"));
    }
    if buffer.len() < size + FRAME_OVERHEAD {
        return Ok(None);
    }
    if buffer[7 + size] != END {
        return Err(Malformed("frame: end byte missing"));
    }
    buffer.advance(7);
    let payload = buffer.split_to(size).freeze();
    buffer.advance(1);
    let content = match kind {
        METHOD => Content::Method(payload),
        HEADER => Content::Header(payload),
        BODY => Content::Body(payload),
        HEARTBEAT => Content::Heartbeat,
        _ => return Err(Malformed("frame: unknown type")),
    };
    Ok(Some(Frame { channel, content }))
}

/// Reads a content header: properties and body length. Unreadable properties are an error of the message only.
pub(crate) fn header(payload: &[u8], properties: &mut Properties) -> Result<(u64, Option<Malformed>), Malformed> {
    let mut cursor = Cursor::new(payload);
    cursor.take(4)?;
    let size = cursor.read()?;
    Ok((size, properties.read(&mut cursor).err()))
}

pub(crate) fn put_heartbeat(out: &mut BytesMut) {
    put_frame(out, HEARTBEAT, 0, |_| ());
}

pub(crate) fn put_method(out: &mut BytesMut, channel: u16, method: &Outgoing<'_>) {
    put_frame(out, METHOD, channel, |out| method.write(out));
}

/// Writes header and body, in as many frames as needed.
pub(crate) fn put_content(out: &mut BytesMut, channel: u16, properties: &Properties, body: &[u8], largest: usize) {
    put_frame(out, HEADER, channel, |out| {
        out.put_u16(60);
        out.put_u16(0);
        out.put_u64(body.len() as u64);
        properties.write(out);
    });
    for part in body.chunks(largest - FRAME_OVERHEAD) {
        put_frame(out, BODY, channel, |out| out.put_slice(part));
    }
}

fn put_frame(out: &mut BytesMut, kind: u8, channel: u16, payload: impl FnOnce(&mut BytesMut)) {
    out.put_u8(kind);
    out.put_u16(channel);
    super::table::put_measured(out, payload);
    out.put_u8(END);
}
