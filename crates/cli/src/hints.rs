//! Commands that messages suggest.
//!
//! Owns that a suggested command works on the database and the settings of this run: it repeats `--db` and `--config` if
//! they were given. Libraries do not know these options; they write commands as `` `gristmill …` ``.

use std::path::Path;

use gristmill_store::display_path;

use crate::args::Args;

/// The options that suggested commands repeat.
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

    /// A command to type, such as `gristmill --db work.db dupes`.
    pub(crate) fn command(&self, words: &str) -> String {
        format!("gristmill{} {words}", self.0)
    }

    /// A message of a library, with the commands in it completed.
    pub(crate) fn complete_commands(&self, message: &str) -> String {
        message.replace("`gristmill ", &format!("`gristmill{} ", self.0))
    }
}

/// A path as a shell reads it.
pub(crate) fn shell_word(path: &Path) -> String {
    let plain = |c: char| c.is_alphanumeric() || "/._-+=:,@%".contains(c);
    let shown = display_path(path);
    match path.to_str() {
        Some(text) if !text.is_empty() && text.chars().all(plain) => text.to_owned(),
        Some(text) if shown == text => format!("'{}'", text.replace('\'', "'\\''")),
        _ => format!("$'{}'", shown.replace('\'', "\\'")),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[test]
    fn commands_repeat_the_database_and_the_settings_file() {
        for (words, expected) in [
            (&["gristmill"][..], "gristmill dupes"),
            (&["gristmill", "--db", "a/b.db"], "gristmill --db a/b.db dupes"),
            (&["gristmill", "--db", "it's.db"], "gristmill --db 'it'\\''s.db' dupes"),
            (&["gristmill", "--db", "a\nb"], "gristmill --db $'a\\x0Ab' dupes"),
            (&["gristmill", "--db", "x", "--config", "my y"], "gristmill --db x --config 'my y' dupes"),
        ] {
            let hints = Hints::new(&Args::parse_from(words));
            assert_eq!(hints.command("dupes"), expected);
            assert_eq!(hints.complete_commands("see `gristmill dupes`"), format!("see `{expected}`"));
        }
    }
}
