//! Asking a person.
//!
//! Owns when there is anybody to ask, and what counts as an answer.

use std::io::{self, IsTerminal, Write};

use crate::error::Error;
use crate::output::visible;

/// Asks on a terminal; `Enter` alone means `otherwise`. Nothing when nobody can answer.
pub(super) fn ask(question: &str, otherwise: bool) -> Result<Option<bool>, Error> {
    if !(io::stdin().is_terminal() && io::stderr().is_terminal()) {
        return Ok(None);
    }
    let choice = if otherwise { "[Y/n]" } else { "[y/N]" };
    let mut answer = String::new();
    let asked = write!(io::stderr(), "{} {choice} ", visible(question))
        .and_then(|()| io::stdin().read_line(&mut answer))
        .map_err(|error| Error::System(format!("cannot ask: {error}; --yes asks nothing")))?;
    Ok(Some(match answer.trim().to_lowercase().as_str() {
        // The end of the input is no Enter: somebody left.
        "" => otherwise && asked > 0,
        "y" | "yes" => true,
        _ => false,
    }))
}
