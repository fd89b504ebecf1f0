//! Paths as text, for the import log, columns and messages. Different paths have different texts.

use std::fmt::Write as _;
use std::path::Path;

/// Prefix of an escaped byte.
const ESCAPE: &str = "\\x";

/// Returns a path as text. A path that is UTF-8 is unchanged. Other bytes are written as `\xFF`, and in such a path a
/// backslash as two; likewise in a path that contains `\x`.
pub(crate) fn path_text(path: &Path) -> String {
    if let Some(plain) = path.to_str().filter(|plain| !plain.contains(ESCAPE)) {
        return plain.to_owned();
    }
    let mut text = String::new();
    for chunk in path.as_os_str().as_encoded_bytes().utf8_chunks() {
        text.push_str(&chunk.valid().replace('\\', "\\\\"));
        for byte in chunk.invalid() {
            // Writing to a String cannot fail.
            let _ = write!(text, "{ESCAPE}{byte:02X}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    use proptest::prelude::*;

    use super::*;

    fn text(bytes: &[u8]) -> String {
        path_text(Path::new(OsStr::from_bytes(bytes)))
    }

    #[test]
    fn paths_that_are_not_utf8_are_escaped() {
        for (path, expected) in [
            (&b"/a/plain name\n"[..], "/a/plain name\n"),
            ("Müll/日本".as_bytes(), "Müll/日本"),
            (b"a\\b", "a\\b"),
            (b"caf\xe9", "caf\\xE9"),
            (b"a\\b\xff\xfe", "a\\\\b\\xFF\\xFE"),
            (b"caf\\xE9", "caf\\\\xE9"),
        ] {
            assert_eq!(text(path), expected);
        }
    }

    proptest! {
        #[test]
        fn different_paths_have_different_texts(
            a in proptest::collection::vec(prop_oneof![Just(b'\\'), Just(b'x'), Just(b'F'), Just(0xff)], 0..9),
            b in proptest::collection::vec(prop_oneof![Just(b'\\'), Just(b'x'), Just(b'F'), Just(0xff)], 0..9),
        ) {
            prop_assert_eq!(a == b, text(&a) == text(&b));
        }
    }
}
