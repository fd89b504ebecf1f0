//! Decides which variables of this process the commands of tasks and messages do not inherit.

use std::ffi::OsString;

use super::consume::is_message_variable;
use crate::settings::keys;

/// Variables that may hold a password. A command may print its environment, and its output is stored.
const SECRETS: &[&str] = &[keys::AMQP_URI.variable, keys::AMQP_MANAGEMENT.variable];

pub(super) const HEADER_PREFIX: &str = "GRISTMILL_HEADER_";

/// Returns the variables of this process that its commands do not inherit: secrets, and variables of the task or
/// message for which this process itself was started.
pub(super) fn withheld() -> Vec<OsString> {
    std::env::vars_os().map(|(name, _)| name).filter(|name| name.to_str().is_some_and(is_withheld)).collect()
}

fn is_withheld(name: &str) -> bool {
    let describes_work = |name: &str| name == "TASK_ID" || is_message_variable(name);
    SECRETS.contains(&name)
        || name.starts_with(HEADER_PREFIX)
        || name.strip_prefix("GRISTMILL_").is_some_and(describes_work)
        || matches!(name, "TRACEPARENT" | "TRACESTATE")
}
