//! Looks at what the database has before anything is written.
//!
//! Owns what may be done with a table that is there already, and which files need not be loaded again.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;
use std::path::Path;

use rusqlite::Connection;

use super::control::ImportHandle;
use super::find::Source;
use super::key::Plan;
use super::loading::Known;
use super::options::{ExistingTable, ImportOptions};
use super::stock::{self, There, Widening};
use super::summary::{FileOutcome, FileSummary};
use super::writer::shown;
use super::{ledger, names};
use crate::error::{Error, Result};
use crate::source;

pub(crate) struct Desk<'a> {
    pub(crate) conn: &'a Connection,
    pub(crate) target: &'a Path,
    /// The database is a draft that an import was stopped at, or a new one.
    pub(crate) is_draft: bool,
    pub(crate) control: &'a ImportHandle,
    pub(crate) options: &'a ImportOptions,
    pub(crate) names: &'a [String],
    /// The first source of each source's table.
    pub(crate) leaders: &'a [usize],
    pub(crate) files: &'a mut [FileSummary],
}

type Sql<T> = rusqlite::Result<T>;

impl Desk<'_> {
    pub(crate) fn look(&mut self, sources: &[Source]) -> Sql<Result<HashMap<usize, Known>>> {
        if let Some(error) = stock::refusal(self.conn, self.target)? {
            return Ok(Err(error));
        }
        self.drop_others()?;
        let tables = stock::all(self.conn)?;
        let mut all = HashMap::new();
        let mut refused = Vec::new();
        let mut groups: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (index, leader) in self.leaders.iter().enumerate() {
            groups.entry(*leader).or_default().push(index);
        }
        for (leader, group) in groups {
            let name = &self.names[leader];
            let there = tables.get(&names::folded(name)).map(|there| there.table(self.target));
            let there = match there.transpose() {
                Ok(there) => there,
                Err(error) => return Ok(Err(error)),
            };
            if self.options.resume
                && let Some(error) = self.leave_out(&group, sources, there)?
            {
                return Ok(Err(error));
            }
            let changed = |file: &FileSummary| file.outcome != FileOutcome::Unchanged;
            let changed: Vec<usize> =
                group.iter().copied().filter(|index| changed(&self.files[*index])).collect();
            let Some(there) = there.filter(|_| !changed.is_empty()) else { continue };
            let mut known = Known::default();
            match self.options.existing {
                _ if self.is_draft => known.is_replaced = true,
                ExistingTable::Refuse => refused.push((name.as_str(), self.files[changed[0]].source.clone())),
                ExistingTable::Replace => known.is_replaced = true,
                ExistingTable::Append | ExistingTable::Upsert => {
                    match self.old(there, &sources[leader].table)? {
                        Ok(old) => known = old,
                        Err(error) => return Ok(Err(error)),
                    }
                }
            }
            if known.is_replaced {
                // What is made anew is made of all files.
                for index in group {
                    let file = &mut self.files[index];
                    (file.outcome, file.rows, file.rejected) = (FileOutcome::Waiting, 0, 0);
                }
            }
            all.insert(leader, known);
        }
        Ok(if refused.is_empty() { Ok(all) } else { Err(self.refusal(&refused)) })
    }

    /// What an import that was stopped had built of files that are not asked for any more.
    fn drop_others(&self) -> Sql<()> {
        if !self.is_draft {
            return Ok(());
        }
        let tables: Vec<String> = {
            let mut statement =
                self.conn.prepare("SELECT name FROM sqlite_schema WHERE type = 'table' AND name <> ?1")?;
            let names = statement.query_map([names::LEDGER], |row| row.get(0))?;
            names.collect::<Sql<_>>()?
        };
        let wanted: HashSet<&String> = self.names.iter().collect();
        // A table goes with its records, or stays with them.
        let transaction = self.conn.unchecked_transaction()?;
        for table in tables.iter().filter(|table| !wanted.contains(table)) {
            transaction.execute_batch(&format!("DROP TABLE {}", names::quoted(table)))?;
            transaction.execute(r#"DELETE FROM "_imports" WHERE "table" = ?1"#, [table])?;
        }
        transaction.commit()
    }

    fn refusal(&self, tables: &[(&str, String)]) -> Error {
        let shown: Vec<&str> = tables.iter().map(|(table, _)| *table).take(10).collect();
        let more = if tables.len() > shown.len() { ", …" } else { "" };
        let noun = if tables.len() == 1 { "table" } else { "tables" };
        let has = format!("{} has the {noun} {}{more} already", self.target.display(), shown.join(", "));
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

    /// Leaves out files of a table that were loaded before and have not changed, if the table still has them.
    fn leave_out(
        &mut self,
        group: &[usize],
        sources: &[Source],
        there: Option<&There>,
    ) -> Sql<Option<Error>> {
        let mut loaded = Vec::new();
        for index in group {
            if let Some(entry) = self.entry(*index, &sources[*index])? {
                loaded.push((*index, entry));
            }
        }
        let Some(there) = there else {
            // Without its table nothing of a file is loaded, unless the file is empty.
            loaded.retain(|(_, entry)| entry.print.bytes == 0);
            self.leave_unchanged(loaded);
            return Ok(None);
        };
        if loaded.is_empty() {
            return Ok(None);
        }
        if let Some(why) = lost(self.conn, &there.name)? {
            // To add the rows again would double those that it still has.
            let can_reload = self.is_draft
                || matches!(self.options.existing, ExistingTable::Replace | ExistingTable::Upsert);
            let target = self.target.display();
            return Ok((!can_reload).then(|| {
                Error::Invalid(format!(
                    "{target}: {why}; say --replace to load it anew, or --upsert to bring its rows up to date"
                ))
            }));
        }
        // A table that is made anew has only rows of the files that are named.
        if self.is_draft || self.options.existing == ExistingTable::Replace {
            let sources = loaded.iter().map(|(index, _)| self.files[*index].source.as_str()).collect();
            if !ledger::is_made_of(self.conn, &there.name, &sources)? {
                return Ok(None);
            }
        }
        self.leave_unchanged(loaded);
        Ok(None)
    }

    fn leave_unchanged(&mut self, loaded: Vec<(usize, ledger::Entry)>) {
        for (index, entry) in loaded {
            let file = &mut self.files[index];
            file.outcome = FileOutcome::Unchanged;
            file.rows = entry.rows;
            file.rejected = entry.errors;
        }
    }

    /// What the log has of a file, if that was loaded as it is now.
    fn entry(&self, index: usize, source: &Source) -> Sql<Option<ledger::Entry>> {
        let file = &self.files[index];
        let Some(path) = source.path.as_ref().filter(|_| source.is_file) else { return Ok(None) };
        let Some(entry) = ledger::last(self.conn, &file.table, &file.source)? else { return Ok(None) };
        let now = File::open(path).and_then(|file| source::size_and_time(&file));
        let Ok((bytes, modified)) = now else { return Ok(None) };
        if entry.options != self.options.shape() || entry.print.bytes != bytes {
            return Ok(None);
        }
        let same = (entry.print.modified == modified && !entry.is_racy())
            || source::hash(path, self.control).is_ok_and(|hash| hash == entry.print.hash);
        Ok(same.then_some(entry))
    }

    /// What is known of a table that gets more rows.
    fn old(&self, there: &There, stem: &str) -> Sql<Result<Known>> {
        let name = &there.name;
        let stock::Shape { mut layout, mut keys, required, has_conflict_clause } =
            stock::shape(self.conn, there, Widening::Allowed)?;
        if let Some(schema) = self.options.schema.tables.get(stem) {
            layout.apply(schema, self.options);
        }
        let wanted = self.options.key_of(stem);
        // One name for the keys of several tables is for those that have it.
        let is_only_table = self.leaders.iter().all(|leader| *leader == self.leaders[0]);
        let is_for_this = is_only_table || self.options.primary_key.is_empty();
        let found: Option<Vec<usize>> = wanted.iter().map(|name| layout.named(name)).collect();
        let has = |keys: &[usize], wanted: &[usize]| {
            keys.len() == wanted.len() && wanted.iter().all(|index| keys.contains(index))
        };
        let names = |keys: &[usize]| -> Vec<String> {
            keys.iter().map(|index| layout.columns[*index].name.clone()).collect()
        };
        match found {
            Some(found) if found.is_empty() || has(&keys, &found) => {}
            Some(found) if self.is_unique(name, &names(&found))? => keys = found,
            None if !is_for_this => {}
            _ if keys.is_empty() => {
                return Ok(Err(Error::Invalid(format!(
                    "the table {name:?} has no primary key, and no unique index of {}; use --replace, or make such an \
                     index",
                    shown(wanted)
                ))));
            }
            _ => {
                return Ok(Err(Error::Invalid(format!(
                    "the primary key of the table {name:?} is {}, not {}; leave out --primary-key, or use --replace",
                    shown(&names(&keys)),
                    shown(wanted)
                ))));
            }
        }
        if self.options.existing == ExistingTable::Upsert && keys.is_empty() {
            let text = format!(
                "the table {name:?} has no primary key, so --upsert cannot know which rows are the same; \
                 name columns with a unique index as --primary-key, or use --append or --replace"
            );
            return Ok(Err(Error::Invalid(text)));
        }
        let table_rows = ledger::table_rows(self.conn, name)?;
        let plan = Plan::Kept(keys);
        Ok(Ok(Known {
            layout,
            plan,
            is_old: true,
            required,
            has_conflict_clause,
            table_rows,
            ..Known::default()
        }))
    }

    /// Whether the table has a unique index of these columns.
    fn is_unique(&self, table: &str, columns: &[String]) -> Sql<bool> {
        let unique = "SELECT name FROM pragma_index_list(?1) WHERE \"unique\" AND NOT partial";
        let mut statement = self.conn.prepare_cached(unique)?;
        let indexes = statement.query_map([table], |row| row.get::<_, String>(0))?;
        let mut of_index = self.conn.prepare_cached("SELECT name FROM pragma_index_info(?1)")?;
        for index in indexes {
            let of_index = of_index.query_map([index?], |row| row.get::<_, Option<String>>(0))?;
            let of_index: Vec<Option<String>> = of_index.collect::<Sql<_>>()?;
            let is_in = |name: &Option<String>| name.as_ref().is_some_and(|name| columns.contains(name));
            if of_index.len() == columns.len() && of_index.iter().all(is_in) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// What a table does not have any more that it had after the last import into it.
fn lost(conn: &Connection, table: &str) -> Sql<Option<String>> {
    let mut statement = conn.prepare_cached("SELECT name FROM pragma_table_info(?1)")?;
    let there = statement.query_map([table], |row| row.get(0))?.collect::<Sql<HashSet<String>>>()?;
    let mut noted: Vec<String> = ledger::columns(conn, table)?.unwrap_or_default().into_keys().collect();
    noted.sort_unstable();
    if let Some(column) = noted.iter().find(|column| !there.contains(*column)) {
        return Ok(Some(format!(
            "the table {table:?} has no column {column:?} any more, which it had after its last import"
        )));
    }
    let Some(noted) = ledger::table_rows(conn, table)? else { return Ok(None) };
    let count = format!("SELECT count(*) FROM {}", names::quoted(table));
    let rows: i64 = conn.query_row(&count, [], |row| row.get(0))?;
    let rows = rows.unsigned_abs();
    Ok((rows < noted).then(|| {
        format!("the table {table:?} has {rows} rows, fewer than the {noted} that imports have put into it")
    }))
}
