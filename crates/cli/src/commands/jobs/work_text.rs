//! Short description of a task: the command of an `exec` task, the payload of any other.

use gristmill_jobs::exec;

use crate::hints::shell_word;
use crate::output::truncate;

/// Maximum length of the description, in characters.
const MAX_LENGTH: usize = 60;

pub(super) fn work_text(kind: &str, payload: &str) -> String {
    let command = (kind == exec::KIND).then(|| serde_json::from_str::<exec::Command>(payload).ok()).flatten();
    let text = match command {
        Some(exec::Command { argv, .. }) => {
            argv.iter().map(|word| shell_word(word.as_ref())).collect::<Vec<_>>().join(" ")
        }
        None => payload.to_owned(),
    };
    truncate(&text, Some(MAX_LENGTH))
}
