//! Shows in a few words what a task is to do: the command of an `exec` task, the payload of any other.

use gristmill_jobs::exec;

use crate::hints::shell_word;

/// The longest text, in characters.
const MAX_LENGTH: usize = 60;

/// What a task or a job is to do.
pub(super) fn work_text(kind: &str, payload: &str) -> String {
    let command = (kind == exec::KIND).then(|| serde_json::from_str::<exec::Command>(payload).ok()).flatten();
    match command {
        Some(exec::Command { argv, .. }) => {
            truncate(&argv.iter().map(|word| shell_word(word.as_ref())).collect::<Vec<_>>().join(" "))
        }
        None => truncate(payload),
    }
}

fn truncate(text: &str) -> String {
    match text.chars().nth(MAX_LENGTH) {
        Some(_) => text.chars().take(MAX_LENGTH - 1).chain(['…']).collect(),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_shown_as_one_would_type_them_and_payloads_as_they_are() {
        for (kind, payload, expected) in [
            ("exec", r#"{"argv": ["sh", "-c", "echo 'x y'"]}"#, r"sh -c 'echo '\''x y'\'''"),
            ("exec", r#"{"argv": ["true"], "cwd": "/"}"#, "true"),
            ("exec", r#"{"words": 1}"#, r#"{"words": 1}"#),
            ("resize", r#"{"width":80}"#, r#"{"width":80}"#),
        ] {
            assert_eq!(work_text(kind, payload), expected, "{kind} {payload}");
        }
        assert_eq!(work_text("k", &format!("\"{}\"", "é".repeat(100))).chars().count(), MAX_LENGTH);
    }
}
