//! Confirmation at a terminal.
//!
//! Owns whether the user can be asked, and which answers mean yes.

use std::io::{self, IsTerminal, Write};

use crate::error::Error;
use crate::output::sanitize;

/// Returns true if the user can be asked at a terminal.
pub(super) fn is_interactive() -> bool {
    io::stdin().is_terminal() && io::stderr().is_terminal()
}

/// Asks a yes-no question. `Enter` alone means `default`. Returns none without a terminal.
pub(super) fn confirm(question: &str, default: bool) -> Result<Option<bool>, Error> {
    if !is_interactive() {
        return Ok(None);
    }
    let choice = if default { "[Y/n]" } else { "[y/N]" };
    let mut answer = String::new();
    let length = write!(io::stderr(), "{} {choice} ", sanitize(question))
        .and_then(|()| io::stdin().read_line(&mut answer))
        .map_err(|error| Error::System(format!("cannot ask at the terminal: {error}; answer with --yes")))?;
    Ok(Some(match answer.trim().to_lowercase().as_str() {
        // The end of the input is not Enter: its length is 0.
        "" => default && length > 0,
        "y" | "yes" => true,
        _ => false,
    }))
}
