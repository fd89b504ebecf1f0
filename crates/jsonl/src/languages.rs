//! Removes unselected languages from localised objects.
//!
//! An object is localised if all its keys are language tags (two letters, perhaps with a region: `en`, `pt-BR`), all
//! its values are strings or null, and it has at least one selected language. All other values stay unchanged.

use crate::lexer::{Cursor, ValueKind};

/// Appends the line without unselected languages. Returns false, and appends nothing, if the line is not JSON.
pub(crate) fn keep(line: &[u8], languages: &[Box<[u8]>], out: &mut Vec<u8>) -> bool {
    let mut cursor = Cursor::new(line);
    cursor.skip_space();
    if cursor.clone().value(0).is_err() {
        return false;
    }
    // One flat scan suffices: a localised object contains no objects. The row itself is never localised, because its
    // `id` is rarely Indonesian.
    let mut at = cursor.at() + 1;
    let mut copied = 0;
    let mut in_string = false;
    while let Some(byte) = line.get(at) {
        match (byte, in_string) {
            (b'"', _) => in_string = !in_string,
            (b'\\', true) => at += 1,
            (b'{', false) => {
                if let Some((end, kept)) = localised(line, at, languages) {
                    out.extend_from_slice(&line[copied..at]);
                    write(&kept, line, out);
                    copied = end;
                    at = end;
                    continue;
                }
            }
            _ => {}
        }
        at += 1;
    }
    out.extend_from_slice(&line[copied..]);
    true
}

/// Returns the end of a localised object and the members to keep; `None` if the object is not localised.
fn localised(line: &[u8], at: usize, languages: &[Box<[u8]>]) -> Option<(usize, Vec<(usize, usize)>)> {
    let mut cursor = Cursor::new(line);
    cursor.seek(at + 1);
    let mut kept = Vec::new();
    loop {
        cursor.skip_space();
        let start = cursor.at();
        let (key, _) = cursor.key().ok()?;
        if !is_language(key) || !matches!(cursor.peek(), Some(b'"' | b'n')) {
            return None;
        }
        if !matches!(cursor.value(0).ok()?, ValueKind::Text { .. } | ValueKind::Null) {
            return None;
        }
        if languages.iter().any(|language| **language == *key) {
            kept.push((start, cursor.at()));
        }
        cursor.skip_space();
        if !cursor.take(b',') {
            break;
        }
    }
    let is_localised = cursor.take(b'}') && !kept.is_empty();
    is_localised.then_some((cursor.at(), kept))
}

fn write(kept: &[(usize, usize)], line: &[u8], out: &mut Vec<u8>) {
    for (index, (start, end)) in kept.iter().enumerate() {
        out.push(if index == 0 { b'{' } else { b',' });
        out.extend_from_slice(&line[*start..*end]);
    }
    out.push(b'}');
}

/// Whether a key is a two-letter code of ISO 639 in lower case, with or without a region or script.
fn is_language(key: &[u8]) -> bool {
    const KNOWN: &[u8] =
        b"aaabaeafakamanarasavayazbabebgbhbibmbnbobrbscacechcocrcscucvcydadedvdzeeeleneoeseteufafffifjfofr\
        fygagdglgngugvhahehihohrhthuhyhziaidieigiiikioisitiujajvkakgkikjkkklkmknkokrkskukvkwkylalblgliln\
        loltlulvmgmhmimkmlmnmrmsmtmynanbndnengnlnnnonrnvnyocojomorospapiplpsptqurmrnrorurwsascsdsesgsisk\
        slsmsnsosqsrssstsusvswtatetgthtitktltntotrtstttwtyugukuruzvevivowawoxhyiyozazhzu";
    let Some((language, rest)) = key.split_at_checked(2) else { return false };
    let region = match rest {
        [] => true,
        [b'-' | b'_', region @ ..] => !region.is_empty() && region.iter().all(u8::is_ascii_alphanumeric),
        _ => false,
    };
    region && KNOWN.chunks_exact(2).any(|known| known == language)
}
