//! Looks at what the database has before anything is written.
//!
//! Owns what may be done with a table that is there already, and which files need not be loaded again.

use std::collections::HashMap;
use std::fs::File;

use rusqlite::Connection;

use super::control::Control;
use super::find::Source;
use super::key::Plan;
use super::loading::Known;
use super::options::{Existing, Options};
use super::place::Place;
use super::stock::{self, Widening};
use super::summary::{FileSummary, Outcome};
use super::table::Way;
use super::{ledger, names};
use crate::error::{Error, Result};
use crate::source;

pub(crate) struct Desk<'a> {
    pub(crate) conn: &'a Connection,
    pub(crate) place: &'a Place,
    pub(crate) control: &'a Control,
    pub(crate) options: &'a Options,
    pub(crate) names: &'a [String],
    /// The first source of each source's table.
    pub(crate) leaders: &'a [usize],
    pub(crate) files: &'a mut [FileSummary],
}

type Sql<T> = rusqlite::Result<T>;

impl Desk<'_> {
    pub(crate) fn look(&mut self, sources: &[Source]) -> Sql<Result<HashMap<usize, Known>>> {
        if let Some(error) = stock::refusal(self.conn, self.place.target())? {
            return Ok(Err(error));
        }
        self.drop_others()?;
        let mut all = HashMap::new();
        let mut refused = Vec::new();
        for leader in (0..sources.len()).filter(|index| self.leaders[*index] == *index) {
            let group: Vec<usize> =
                (leader..sources.len()).filter(|index| self.leaders[*index] == leader).collect();
            let name = &self.names[leader];
            let found = stock::find(self.conn, name)?;
            let there = match found.map(|found| found.table(self.place.target())).transpose() {
                Ok(there) => there,
                Err(error) => return Ok(Err(error)),
            };
            // A file may have made no table.
            if self.options.resume {
                for index in &group {
                    self.is_unchanged(*index, &sources[*index])?;
                }
            }
            let changed = |file: &FileSummary| file.outcome != Outcome::Unchanged;
            let changed: Vec<usize> =
                group.iter().copied().filter(|index| changed(&self.files[*index])).collect();
            let Some(there) = there.filter(|_| !changed.is_empty()) else { continue };
            let mut known = Known::default();
            match self.options.existing {
                _ if self.place.is_new() => known.is_replaced = true,
                Existing::Refuse => refused.push((name.as_str(), self.files[changed[0]].source.clone())),
                Existing::Replace => known.is_replaced = true,
                Existing::Append | Existing::Upsert => match self.old(&there)? {
                    Ok(old) => known = old,
                    Err(error) => return Ok(Err(error)),
                },
            }
            if known.is_replaced {
                // What is made anew is made of all files.
                for index in group {
                    let file = &mut self.files[index];
                    (file.outcome, file.rows, file.rejected) = (Outcome::Waiting, 0, 0);
                }
            }
            all.insert(leader, known);
        }
        Ok(if refused.is_empty() { Ok(all) } else { Err(self.refusal(&refused)) })
    }

    /// What an import that was stopped had built of files that are not asked for any more.
    fn drop_others(&self) -> Sql<()> {
        if !self.place.is_new() {
            return Ok(());
        }
        let tables: Vec<String> = {
            let mut statement =
                self.conn.prepare("SELECT name FROM sqlite_schema WHERE type = 'table' AND name <> ?1")?;
            let names = statement.query_map([names::LEDGER], |row| row.get(0))?;
            names.collect::<Sql<_>>()?
        };
        for table in tables.iter().filter(|table| !self.names.contains(table)) {
            self.conn.execute_batch(&format!("DROP TABLE {}", names::quoted(table)))?;
            self.conn.execute(r#"DELETE FROM "_imports" WHERE "table" = ?1"#, [table])?;
        }
        Ok(())
    }

    fn refusal(&self, tables: &[(&str, String)]) -> Error {
        let shown: Vec<&str> = tables.iter().map(|(table, _)| *table).take(10).collect();
        let more = if tables.len() > shown.len() { ", …" } else { "" };
        let noun = if tables.len() == 1 { "table" } else { "tables" };
        let has =
            format!("{} has the {noun} {}{more} already", self.place.target().display(), shown.join(", "));
        Error::Invalid(match (self.options.resume, tables.first()) {
            (true, Some((_, file))) => format!(
                "{has}, and {file} is new, or has changed since it was loaded, or was loaded with other options; say \
                 --replace, --upsert, or --append, which adds all rows of the file again"
            ),
            _ => format!(
                "{has}; say --replace, --append or --upsert, or --resume to leave out files that were loaded before \
                 and have not changed"
            ),
        })
    }

    /// Whether the file was loaded before, as it is now.
    fn is_unchanged(&mut self, index: usize, source: &Source) -> Sql<bool> {
        let file = &mut self.files[index];
        let Some(path) = source.path.as_ref().filter(|_| source.is_file) else { return Ok(false) };
        let Some(entry) = ledger::last(self.conn, &file.table, &file.source)? else { return Ok(false) };
        let now = File::open(path).and_then(|file| source::size_and_time(&file));
        let Ok((bytes, modified)) = now else { return Ok(false) };
        if entry.options != self.options.shape() || entry.print.bytes != bytes {
            return Ok(false);
        }
        let same = entry.print.modified == modified
            || source::hash(path, self.control).is_ok_and(|hash| hash == entry.print.hash);
        if same {
            file.outcome = Outcome::Unchanged;
            file.rows = entry.rows;
            file.rejected = entry.errors;
        }
        Ok(same)
    }

    /// What is known of a table that gets more rows.
    fn old(&self, name: &str) -> Sql<Result<Known>> {
        let stock::Shape { layout, mut keys } = stock::shape(self.conn, name, Widening::Allowed)?;
        let way = if self.options.existing == Existing::Upsert { Way::Upsert } else { Way::Insert };
        if way == Way::Upsert {
            if let Some(wanted) = &self.options.primary_key
                && let Some(index) = layout.column(wanted)
                && keys != [index]
                && self.is_unique(name, &layout.columns[index].name)?
            {
                keys = vec![index];
            }
            if keys.is_empty() {
                let text = format!(
                    "the table {name:?} has no primary key, so --upsert cannot know which rows are the same; \
                     name a column with a unique index as --primary-key, or use --append or --replace"
                );
                return Ok(Err(Error::Invalid(text)));
            }
        }
        Ok(Ok(Known { layout, plan: Plan::Kept(keys), is_old: true, way: Some(way), ..Known::default() }))
    }

    fn is_unique(&self, table: &str, column: &str) -> Sql<bool> {
        let mut statement = self.conn.prepare(
            "SELECT 1 FROM pragma_index_list(?1) AS l
             WHERE l.\"unique\" AND NOT l.partial
             AND (SELECT group_concat(name) FROM pragma_index_info(l.name)) = ?2",
        )?;
        statement.exists([table, column])
    }
}
