//! Results of the consumers on disk: rows, tasks, or lines of a file. Read with plain SQL, independent of the code
//! under test.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use rusqlite::Row;
use rusqlite::types::ValueRef;
use serde_json::{Map, Value};

use super::messages::{Action, Outcome, TestMessage};
use crate::cli::Cli;
use crate::sqlite::{Database, copy, remove};
use crate::{Error, ErrorContext};

/// Name of the table, and kind of the tasks.
pub(crate) const TARGET_NAME: &str = "grist";

/// Returns the path of the file that an action writes.
pub(crate) fn output_path(action: Action, folder: &Path) -> PathBuf {
    output_dir(folder).join(match action {
        Action::Into => "out.db",
        Action::Enqueue => "own.db",
        Action::Exec => "log",
    })
}

/// Returns the folder that the consumers of a round write to. A small disk may be mounted there.
pub(crate) fn output_dir(folder: &Path) -> PathBuf {
    folder.join("disk")
}

#[derive(Debug, Default)]
pub(crate) struct Results {
    /// How often each message was done, by id.
    pub(crate) done: BTreeMap<String, u32>,
    /// Attempts of each message, by id; for commands only.
    pub(crate) runs: BTreeMap<String, Vec<u32>>,
    /// Results that must not exist.
    pub(crate) violations: Vec<String>,
}

impl Results {
    pub(crate) fn read(action: Action, folder: &Path, messages: &BTreeMap<String, TestMessage>) -> Result<Self, Error> {
        let output_path = output_path(action, folder);
        let mut results = Results::default();
        if !output_path.exists() {
            return Ok(results);
        }
        match action {
            Action::Exec => {
                let text = std::fs::read_to_string(&output_path).context("cannot read the log of the commands")?;
                text.lines().for_each(|line| results.read_line(line, messages));
            }
            _ => results.read_database(action, &output_path, messages)?,
        }
        Ok(results)
    }

    fn read_database(
        &mut self,
        action: Action,
        output_path: &Path,
        messages: &BTreeMap<String, TestMessage>,
    ) -> Result<(), Error> {
        let database = Database::open(output_path)?;
        self.violations.extend(database.damage("main")?.iter().map(|line| format!("integrity: {line}")));
        if !database.has_table(table(action))? {
            return Ok(());
        }
        let rows = match action {
            Action::Into => database.query(&format!("SELECT * FROM {TARGET_NAME}"), [], |row| {
                let value = object(row)?;
                Ok((value["id"].as_str().unwrap_or_default().to_owned(), value))
            })?,
            _ => database.query("SELECT unique_key, payload FROM tasks WHERE kind = ?1", [TARGET_NAME], |row| {
                let (id, payload): (Option<String>, String) = (row.get(0)?, row.get(1)?);
                Ok((id.unwrap_or_default(), parsed(&payload)))
            })?,
        };
        for (id, found) in rows {
            match messages.get(&id) {
                Some(message) if message.outcome.is_done() && parsed(&message.body) == found => {
                    *self.done.entry(id).or_default() += 1;
                }
                Some(message) => {
                    self.violations.push(format!("{id} was published as {}, but stored as {found}", message.body));
                }
                None => self.violations.push(format!("result of a message that was not published: {found}")),
            }
        }
        Ok(())
    }

    /// Reads one line that a command wrote.
    fn read_line(&mut self, line: &str, messages: &BTreeMap<String, TestMessage>) {
        let fields: Vec<&str> = line.split(' ').collect();
        let [id, attempt, body] = fields[..] else {
            return self.violations.push(format!("a command wrote an invalid line: {line:?}"));
        };
        match (messages.get(id), attempt.parse()) {
            // The body must be complete: a command cannot detect that it got only a part of its message.
            (Some(message), Ok(attempt)) if message.body == body => {
                let is_done = matches!(message.outcome, Outcome::Done | Outcome::Slow)
                    || (message.outcome == Outcome::SecondAttempt && attempt > 1);
                *self.done.entry(id.to_owned()).or_default() += u32::from(is_done);
                self.runs.entry(id.to_owned()).or_default().push(attempt);
            }
            _ => self.violations.push(format!("a command was run for a message that was not published: {line:?}")),
        }
    }
}

/// Returns about how many messages are done while consumers run. Reads a copy, so that the original stays unchanged.
pub(crate) fn progress(action: Action, cli: &Cli, folder: &Path, scratch: &Path) -> Option<u64> {
    let output_path = output_path(action, folder);
    if action == Action::Exec {
        let text = std::fs::read(output_path).unwrap_or_default();
        return Some(text.iter().filter(|byte| **byte == b'\n').count() as u64);
    }
    if !output_path.exists() {
        return Some(0);
    }
    copy(cli, &output_path, scratch).ok()?;
    let count = || -> Result<i64, Error> {
        let database = Database::open_copy(scratch)?;
        match database.has_table(table(action))? {
            true => database.count(&format!("SELECT count(*) FROM {}", table(action)), []),
            false => Ok(0),
        }
    };
    let counted = count();
    remove(scratch).ok()?;
    // A consumer may have written while the database was copied, so reading may fail.
    counted.ok().map(i64::unsigned_abs)
}

/// Returns the table that an action writes.
fn table(action: Action) -> &'static str {
    if action == Action::Into { TARGET_NAME } else { "tasks" }
}

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or(Value::Null)
}

/// Returns a row as the JSON object that it was made from.
fn object(row: &Row<'_>) -> rusqlite::Result<Value> {
    let mut object = Map::new();
    for (index, name) in row.as_ref().column_names().enumerate() {
        let value = match row.get_ref(index)? {
            ValueRef::Null => continue,
            ValueRef::Integer(number) => number.into(),
            ValueRef::Real(number) => number.into(),
            ValueRef::Text(text) | ValueRef::Blob(text) => String::from_utf8_lossy(text).into(),
        };
        object.insert(name.to_owned(), value);
    }
    Ok(Value::Object(object))
}
