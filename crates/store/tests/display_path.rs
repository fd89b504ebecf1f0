//! Paths as people see them.
#![cfg(unix)]

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use gristmill_store::display_path;
use proptest::prelude::*;

#[test]
fn display_path_escapes_invisible_and_invalid_bytes() {
    for (path, text) in [
        (&b"/a/plain name"[..], "/a/plain name"),
        ("Müll/日本".as_bytes(), "Müll/日本"),
        (b"caf\xe9", "caf\\xE9"),
        (b"caf\\xE9", "caf\\\\xE9"),
        (b"a\n\t\x1b[2J", "a\\x0A\\x09\\x1B[2J"),
        ("\u{202e}gpj.exe".as_bytes(), "\\u{202e}gpj.exe"),
        ("\u{fffd}".as_bytes(), "\\u{fffd}"),
        ("\u{85}".as_bytes(), "\\u{85}"),
    ] {
        assert_eq!(display_path(OsStr::from_bytes(path)), text);
    }
}

proptest! {
    #[test]
    fn display_path_is_unique(
        a in proptest::collection::vec(1u8.., 0..4), b in proptest::collection::vec(1u8.., 0..4),
    ) {
        let shown = |bytes: &[u8]| display_path(OsStr::from_bytes(bytes));
        prop_assert_eq!(a == b, shown(&a) == shown(&b));
    }
}
