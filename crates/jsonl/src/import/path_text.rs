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
