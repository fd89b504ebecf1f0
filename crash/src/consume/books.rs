//! What consumers have done, as it stands on disk: rows, tasks, lines of a file. Plain SQL, so that nobody testifies for
//! himself.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use rusqlite::types::ValueRef;
use rusqlite::{Connection, OpenFlags, Row};
use serde_json::{Map, Value};

use super::mail::{Action, Fate, Parcel};
use crate::database::{copy, remove};
use crate::mill::Mill;
use crate::{OrTrouble, Trouble};

/// The table, and the kind of the tasks.
pub(crate) const NAME: &str = "grist";

const LOOK: &str = "cannot look into the database";

/// Where it stands.
pub(crate) fn place(action: Action, folder: &Path) -> PathBuf {
    disk(folder).join(match action {
        Action::Into => "out.db",
        Action::Enqueue => "own.db",
        Action::Exec => "log",
    })
}

/// The folder of a round that consumers write to. It can be a disk of its own.
pub(crate) fn disk(folder: &Path) -> PathBuf {
    folder.join("disk")
}

/// What was done with all the messages.
#[derive(Debug, Default)]
pub(crate) struct Books {
    /// How often each was done.
    pub(crate) done: BTreeMap<String, u32>,
    /// Of commands: which attempts there were.
    pub(crate) runs: BTreeMap<String, Vec<u32>>,
    /// What cannot be.
    pub(crate) wrong: Vec<String>,
}

impl Books {
    pub(crate) fn read(
        action: Action,
        folder: &Path,
        parcels: &BTreeMap<String, Parcel>,
    ) -> Result<Self, Trouble> {
        let place = place(action, folder);
        let mut books = Books::default();
        if !place.exists() {
            return Ok(books);
        }
        match action {
            Action::Exec => {
                let text = std::fs::read_to_string(&place).or_trouble("cannot read what commands wrote")?;
                text.lines().for_each(|line| books.line(line, parcels));
            }
            _ => books.database(action, &place, parcels).or_trouble(LOOK)?,
        }
        Ok(books)
    }

    fn database(
        &mut self,
        action: Action,
        place: &Path,
        parcels: &BTreeMap<String, Parcel>,
    ) -> rusqlite::Result<()> {
        let conn = Connection::open_with_flags(place, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
        let damage: String = conn.query_row("PRAGMA integrity_check", [], |row| row.get(0))?;
        if damage != "ok" {
            self.wrong.push(format!("integrity: {damage}"));
        }
        if !has_table(&conn, action)? {
            return Ok(());
        }
        let sql = match action {
            Action::Into => format!("SELECT * FROM {NAME}"),
            _ => format!("SELECT unique_key, payload FROM tasks WHERE kind = '{NAME}'"),
        };
        let mut statement = conn.prepare(&sql)?;
        let names: Vec<String> = statement.column_names().map(str::to_owned).collect();
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            let (id, found) = match action {
                Action::Into => {
                    let value = object(row, &names)?;
                    (value["id"].as_str().unwrap_or_default().to_owned(), value)
                }
                _ => {
                    let payload: String = row.get(1)?;
                    (row.get::<_, Option<String>>(0)?.unwrap_or_default(), parsed(&payload))
                }
            };
            match parcels.get(&id) {
                Some(parcel) if parcel.fate.is_done() && parsed(&parcel.body) == found => {
                    *self.done.entry(id).or_default() += 1;
                }
                Some(parcel) => {
                    self.wrong.push(format!("{id} was sent as {} and is there as {found}", parcel.body));
                }
                None => self.wrong.push(format!("nobody has sent this: {found}")),
            }
        }
        Ok(())
    }

    /// A line that a command wrote.
    fn line(&mut self, line: &str, parcels: &BTreeMap<String, Parcel>) {
        let words: Vec<&str> = line.split(' ').collect();
        let [id, attempt, body] = words[..] else {
            return self.wrong.push(format!("a command wrote {line:?}"));
        };
        match (parcels.get(id), attempt.parse()) {
            // All of it: a command that sees a part of its message takes that for all.
            (Some(parcel), Ok(attempt)) if parcel.body == body => {
                let is_done = matches!(parcel.fate, Fate::Done | Fate::Slow)
                    || (parcel.fate == Fate::Later && attempt > 1);
                *self.done.entry(id.to_owned()).or_default() += u32::from(is_done);
                self.runs.entry(id.to_owned()).or_default().push(attempt);
            }
            _ => self.wrong.push(format!("a command was run for what nobody has sent: {line:?}")),
        }
    }

    pub(crate) fn times_done(&self, id: &str) -> u32 {
        self.done.get(id).copied().unwrap_or(0)
    }
}

/// About how many are done while consumers are at work. Looks at a copy: whoever goes on finds all as it was.
pub(crate) fn progress(action: Action, mill: &Mill, folder: &Path, scratch: &Path) -> Option<u64> {
    let place = place(action, folder);
    if action == Action::Exec {
        let text = std::fs::read(place).unwrap_or_default();
        return Some(text.iter().filter(|byte| **byte == b'\n').count() as u64);
    }
    if !place.exists() {
        return Some(0);
    }
    copy(mill, &place, scratch).ok()?;
    let counted = || -> rusqlite::Result<i64> {
        let conn = Connection::open(scratch)?;
        if !has_table(&conn, action)? {
            return Ok(0);
        }
        let table = if action == Action::Into { NAME } else { "tasks" };
        conn.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get(0))
    };
    let counted = counted();
    remove(scratch).ok()?;
    // Somebody may have been writing while it was copied.
    counted.ok().map(i64::unsigned_abs)
}

fn has_table(conn: &Connection, action: Action) -> rusqlite::Result<bool> {
    let table = if action == Action::Into { NAME } else { "tasks" };
    conn.query_row("SELECT count(*) FROM sqlite_schema WHERE name = ?1", [table], |row| row.get(0))
}

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or(Value::Null)
}

/// A row as the object that it was made of.
fn object(row: &Row<'_>, names: &[String]) -> rusqlite::Result<Value> {
    let mut object = Map::new();
    for (at, name) in names.iter().enumerate() {
        let value = match row.get_ref(at)? {
            ValueRef::Null => continue,
            ValueRef::Integer(number) => number.into(),
            ValueRef::Real(number) => number.into(),
            ValueRef::Text(text) | ValueRef::Blob(text) => String::from_utf8_lossy(text).into(),
        };
        object.insert(name.clone(), value);
    }
    Ok(Value::Object(object))
}
