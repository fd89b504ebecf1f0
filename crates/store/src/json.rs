//! Limits of JSON texts.
//!
//! Refuses an invalid text with a reason before anything is written.

use serde::de::IgnoredAny;

use crate::error::{Error, Result};

/// Maximum length of a text in bytes.
pub(crate) const MAX_BYTES: usize = 16 << 20;

/// Maximum nesting. SQLite's limit is 1,000, and a dead letter adds levels around a checkpoint.
const MAX_DEPTH: usize = 500;

/// Checks that a text is JSON of at most [`MAX_BYTES`]; errors call it `what`.
pub(crate) fn check(what: &str, text: &str) -> Result<()> {
    check_up_to(what, text, MAX_BYTES)
}

/// Like [`check`], with another maximum length.
pub(crate) fn check_up_to(what: &str, text: &str, max_bytes: usize) -> Result<()> {
    if text.len() > max_bytes {
        let len = text.len();
        return Err(Error::Invalid(format!("{what} has {len} bytes; expected at most {max_bytes}")));
    }
    if let Err(error) = serde_json::from_str::<IgnoredAny>(text) {
        return Err(Error::Invalid(format!("{what} is not JSON: {error}")));
    }
    if depth(text) > MAX_DEPTH {
        return Err(Error::Invalid(format!("{what} is nested too deeply; expected at most {MAX_DEPTH} levels")));
    }
    Ok(())
}

/// Returns the nesting depth of valid JSON.
fn depth(text: &str) -> usize {
    let (mut depth, mut max_depth, mut quoted, mut escaped) = (0usize, 0, false, false);
    for byte in text.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            b'[' | b'{' if !quoted => {
                depth += 1;
                max_depth = max_depth.max(depth);
            }
            b']' | b'}' if !quoted => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    max_depth
}
