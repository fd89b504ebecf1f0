//! Decodes the escapes of JSON strings.

use std::borrow::Cow;

use crate::parse_error::{ParseError, ParseErrorKind};

/// Decodes a string, given without its quotation marks, and appends it to `out`. The lexer has checked it, so only an
/// unpaired surrogate is an error. Offsets of errors are relative to the string.
pub(crate) fn unescape(raw: &[u8], out: &mut Vec<u8>) -> Result<(), ParseError> {
    let mut at = 0;
    while let Some(found) = memchr::memchr(b'\\', &raw[at..]) {
        out.extend_from_slice(&raw[at..at + found]);
        at += found;
        let plain = match raw.get(at + 1) {
            Some(b'b') => 8,
            Some(b'f') => 12,
            Some(b'n') => b'\n',
            Some(b'r') => b'\r',
            Some(b't') => b'\t',
            Some(b'u') => {
                let (character, length) = unicode(&raw[at..]).ok_or(ParseErrorKind::LoneSurrogate.at(at))?;
                out.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
                at += length;
                continue;
            }
            Some(same) => *same,
            None => return Err(ParseErrorKind::BadEscape.at(at)),
        };
        out.push(plain);
        at += 2;
    }
    out.extend_from_slice(&raw[at..]);
    Ok(())
}

pub(crate) fn unescaped(raw: &[u8], escaped: bool) -> Result<Cow<'_, [u8]>, ParseError> {
    if !escaped {
        return Ok(Cow::Borrowed(raw));
    }
    let mut out = Vec::with_capacity(raw.len());
    unescape(raw, &mut out)?;
    Ok(Cow::Owned(out))
}

/// Returns a text for messages, cut to `max` bytes.
pub(crate) fn excerpt(bytes: &[u8], max: usize) -> String {
    let mut text = String::from_utf8_lossy(&bytes[..bytes.len().min(max)]).into_owned();
    if bytes.len() > max {
        // The cut may split a character.
        text.truncate(text.trim_end_matches('\u{fffd}').len());
        text.push('…');
    }
    text
}

/// Returns the character of one `\u` escape or of a surrogate pair, and the length of the escape.
fn unicode(raw: &[u8]) -> Option<(char, usize)> {
    let first = hex(raw.get(2..6)?)?;
    if let Some(character) = char::from_u32(first) {
        return Some((character, 6));
    }
    let second = raw.get(6..12).filter(|next| next.starts_with(b"\\u"))?;
    let second = hex(second.get(2..6)?)?;
    if !(0xd800..0xdc00).contains(&first) || !(0xdc00..0xe000).contains(&second) {
        return None;
    }
    let code = 0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00);
    Some((char::from_u32(code)?, 12))
}

fn hex(digits: &[u8]) -> Option<u32> {
    digits.iter().try_fold(0, |value, digit| Some(value * 16 + char::from(*digit).to_digit(16)?))
}
