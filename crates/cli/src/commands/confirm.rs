//! Questions at a terminal.
//!
//! Owns whether there is a terminal to ask at, and what counts as an answer.

use std::io::{self, IsTerminal, Write};

use crate::error::Error;
use crate::output::sanitize;

/// Whether there is a terminal to ask at.
pub(super) fn is_interactive() -> bool {
    io::stdin().is_terminal() && io::stderr().is_terminal()
}

/// Asks at the terminal; `Enter` alone means `otherwise`. Returns none where there is no terminal.
pub(super) fn confirm(question: &str, otherwise: bool) -> Result<Option<bool>, Error> {
    if !is_interactive() {
        return Ok(None);
    }
    let choice = if otherwise { "[Y/n]" } else { "[y/N]" };
    let mut answer = String::new();
    let asked = write!(io::stderr(), "{} {choice} ", sanitize(question))
        .and_then(|()| io::stdin().read_line(&mut answer))
        .map_err(|error| Error::System(format!("cannot ask: {error}; --yes asks nothing")))?;
    Ok(Some(match answer.trim().to_lowercase().as_str() {
        // The end of the input is not Enter.
        "" => otherwise && asked > 0,
        "y" | "yes" => true,
        _ => false,
    }))
}
