//! Decides which variables of this process a command does not inherit, for tasks and for messages alike.

use std::ffi::OsString;

use super::consume::MESSAGE_VARIABLES;
use crate::settings::keys;

/// Variables whose value may hold a password. A command may print its environment, and its output is kept.
const SECRETS: &[&str] = &[keys::AMQP_URI.variable];

/// The variable of each header of a message begins with this.
pub(super) const HEADER: &str = "GRISTMILL_HEADER_";

/// Names of variables that this process has and its commands do not inherit: secrets, and what is about the task or the
/// message that this process was itself started for.
pub(super) fn withheld() -> Vec<OsString> {
    std::env::vars_os().map(|(name, _)| name).filter(|name| name.to_str().is_some_and(is_withheld)).collect()
}

fn is_withheld(name: &str) -> bool {
    let about = |name: &str| name == "TASK_ID" || MESSAGE_VARIABLES.contains(&name);
    SECRETS.contains(&name)
        || name.starts_with(HEADER)
        || name.strip_prefix("GRISTMILL_").is_some_and(about)
        || matches!(name, "TRACEPARENT" | "TRACESTATE")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_and_variables_of_another_message_are_withheld() {
        let cases = [
            ("GRISTMILL_AMQP_URI", true),
            ("GRISTMILL_TASK_ID", true),
            ("GRISTMILL_ATTEMPT", true),
            ("GRISTMILL_HEADER_TENANT", true),
            ("TRACEPARENT", true),
            ("GRISTMILL_DB", false),
            ("GRISTMILL_AMQP_SHUTDOWN", false),
            ("PATH", false),
        ];
        for (name, expected) in cases {
            assert_eq!(is_withheld(name), expected, "{name}");
        }
    }
}
