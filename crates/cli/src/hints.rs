//! Commands that messages suggest.
//!
//! Owns that a suggested command uses the database and settings file of this run: `--db` and `--config` are repeated if
//! they were given. Libraries do not know these options and write commands as `` `gristmill …` ``.

use std::path::Path;

use gristmill_store::display_path;

use crate::args::Args;
use crate::units::count_of;

/// The options that suggested commands repeat, as text.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hints(String);

impl Hints {
    pub(crate) fn new(args: &Args) -> Self {
        let given = [("--db", &args.db), ("--config", &args.config)];
        let repeated = given.iter().filter_map(|(flag, path)| {
            let path = path.as_deref()?;
            Some(format!(" {flag} {}", shell_word(path)))
        });
        Hints(repeated.collect())
    }

    /// Returns a command for the user to type, such as `gristmill --db work.db dupes`.
    pub(crate) fn command(&self, args: &str) -> String {
        format!("gristmill{} {args}", self.0)
    }

    /// Returns the text of a list from a catalog without roots.
    pub(crate) fn nothing_scanned(&self) -> String {
        format!("no folder has been scanned yet; scan one: `{}`", self.command("scan FOLDER"))
    }

    /// Returns how to list the groups that are left out because the user ignores them, unless there are none.
    pub(crate) fn ignored_groups(&self, count: u64) -> Option<String> {
        let verbs = if count == 1 { "is not listed; show it" } else { "are not listed; show them" };
        let command = self.command("dupes --ignored");
        (count > 0).then(|| format!("{} {verbs} with `{command}`", count_of(count, "ignored group")))
    }

    /// Adds the options to all commands in a message of a library.
    pub(crate) fn complete_commands(&self, message: &str) -> String {
        message.replace("`gristmill ", &format!("`gristmill{} ", self.0))
    }
}

/// Quotes a path for a shell, if need be.
pub(crate) fn shell_word(path: &Path) -> String {
    let plain = |c: char| c.is_alphanumeric() || "/._-+=:,@%".contains(c);
    let shown = display_path(path);
    match path.to_str() {
        Some(text) if !text.is_empty() && text.chars().all(plain) => text.to_owned(),
        Some(text) if shown == text => format!("'{}'", text.replace('\'', "'\\''")),
        _ => format!("$'{}'", shown.replace('\'', "\\'")),
    }
}
