//! Paths as text, for the database and for people.
//!
//! Owns the encoding. A UTF-8 name is stored unchanged. Other bytes, and the character U+001A itself, are written as
//! U+001A and two hexadecimal digits. So every name has one text and every text one name, and programs in other
//! languages can decode every text. The encoding adds no `/`, so the entries below a folder are a range of the index.

use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

const ESCAPE: char = '\u{1a}';

/// Appends an encoded name or path to `text`.
pub(crate) fn push_text(text: &mut String, name: &OsStr) {
    let bytes = name.as_encoded_bytes();
    match std::str::from_utf8(bytes) {
        Ok(plain) if !bytes.contains(&(ESCAPE as u8)) => text.push_str(plain),
        _ => {
            for chunk in bytes.utf8_chunks() {
                for c in chunk.valid().chars() {
                    match c {
                        ESCAPE => escape(text, ESCAPE as u8),
                        c => text.push(c),
                    }
                }
                chunk.invalid().iter().for_each(|&byte| escape(text, byte));
            }
        }
    }
}

fn escape(text: &mut String, byte: u8) {
    // Writing to a String cannot fail.
    let _ = write!(text, "{ESCAPE}{byte:02X}");
}

/// Appends a suffix to a path's last name, as SQLite names the WAL of a file.
pub fn with_suffix(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

/// Resolves a path whose last name is a symbolic link; returns other paths unchanged. Files that belong to a database
/// are beside the resolved file, as SQLite's WAL is, because processes may use different names for it.
pub fn resolve_last_link(path: &Path) -> PathBuf {
    let is_link = std::fs::symlink_metadata(path).is_ok_and(|found| found.is_symlink());
    let target = if is_link { std::fs::canonicalize(path).ok() } else { None };
    target.unwrap_or_else(|| path.to_path_buf())
}

pub(crate) fn to_text(path: &OsStr) -> String {
    let mut text = String::with_capacity(path.len());
    push_text(&mut text, path);
    text
}

/// Whether a text is the name itself: only a text with the escape character differs from the bytes of its name.
pub(crate) fn is_plain(text: &str) -> bool {
    !text.contains(ESCAPE)
}

/// Decodes a name. U+001A without two hexadecimal digits is copied unchanged.
pub(crate) fn from_text(text: &str) -> OsString {
    if is_plain(text) {
        return text.into();
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let escaped = (first == ESCAPE as u8)
            .then(|| after.get(..2).and_then(|digits| std::str::from_utf8(digits).ok()))
            .flatten()
            .and_then(|digits| u8::from_str_radix(digits, 16).ok());
        bytes.push(escaped.unwrap_or(first));
        rest = if escaped.is_some() { after.get(2..).unwrap_or_default() } else { after };
    }
    os_string(bytes)
}

#[cfg(unix)]
fn os_string(bytes: Vec<u8>) -> OsString {
    std::os::unix::ffi::OsStringExt::from_vec(bytes)
}

#[cfg(not(unix))]
fn os_string(bytes: Vec<u8>) -> OsString {
    String::from_utf8_lossy(&bytes).into_owned().into()
}

/// Formats a path for people on one line: different paths have different texts, and none contains a terminal control
/// sequence. Bytes that are not UTF-8 and control characters are written as `\xFF`, other invisible characters as
/// `\u{202e}`, and a backslash as two.
pub fn display_path(path: impl AsRef<Path>) -> String {
    let mut text = String::new();
    for chunk in path.as_ref().as_os_str().as_encoded_bytes().utf8_chunks() {
        for c in chunk.valid().chars() {
            // Writing to a String cannot fail.
            let _ = match c {
                '\\' if cfg!(not(windows)) => write!(text, "\\\\"),
                c if c.is_ascii_control() => write!(text, "\\x{:02X}", c as u32),
                c if is_invisible(c) || c == '\u{fffd}' => write!(text, "\\u{{{:x}}}", c as u32),
                c => write!(text, "{c}"),
            };
        }
        for byte in chunk.invalid() {
            let _ = write!(text, "\\x{byte:02X}");
        }
    }
    text
}

/// Returns whether a character is invisible, controls a terminal, or changes the order in which text is displayed.
pub fn is_invisible(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{fffe}' | '\u{ffff}'
            | '\u{e0000}'..='\u{e007f}')
}

/// Returns the exclusive bounds of the texts of all entries below a folder.
pub(crate) fn descendant_range(folder: &str) -> (String, String) {
    match folder {
        // No text begins with a byte above this one.
        "" => (String::new(), "\u{10ffff}".to_owned()),
        // '0' follows '/' in ASCII.
        _ => (format!("{folder}/"), format!("{folder}0")),
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::os::unix::ffi::OsStrExt;

    #[test]
    fn names_are_encoded_and_decoded() {
        for (name, text) in [
            (&b"plain"[..], "plain"),
            ("Müll/日本".as_bytes(), "Müll/日本"),
            (b"caf\xe9", "caf\u{1a}E9"),
            (b"\x1aE9", "\u{1a}1AE9"),
            (b"a\xff\xfe/b", "a\u{1a}FF\u{1a}FE/b"),
        ] {
            assert_eq!(to_text(OsStr::from_bytes(name)), text);
            assert_eq!(from_text(text).as_bytes(), name);
        }
        assert_eq!(from_text("no\u{1a}escape").as_bytes(), b"no\x1aescape");
    }

    proptest! {
        #[test]
        fn encoded_name_decodes_to_the_same_name(name in proptest::collection::vec(1u8.., 0..40)) {
            let name = OsStr::from_bytes(&name);
            prop_assert_eq!(from_text(&to_text(name)), name);
        }

        #[test]
        fn descendant_range_contains_exactly_the_descendants(
            folder in proptest::collection::vec(1u8.., 1..6), other in proptest::collection::vec(1u8.., 0..9),
        ) {
            let (from, to) = descendant_range(&to_text(OsStr::from_bytes(&folder)));
            let text = to_text(OsStr::from_bytes(&other));
            let inside = other.starts_with(&[&folder[..], b"/"].concat()) && other.len() > folder.len() + 1;
            prop_assert_eq!(text > from && text < to, inside);
        }
    }
}
