//! Inspects the database before anything is written.
//!
//! Decides what may be done with existing tables and which files need not be loaded again.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;
use std::path::Path;

use rusqlite::Connection;

use super::discover::Source;
use super::existing::{self, ExistingObject, Widening};
use super::file_load::TableState;
use super::handle::ImportHandle;
use super::key::KeyPlan;
use super::options::{ExistingTable, ImportOptions};
use super::summary::{FileOutcome, FileSummary};
use super::writer::quoted_list;
use super::{import_log, names};
use crate::error::{Error, Failure, Result};
use crate::source;
use crate::sql::{Sql, column_names, count_rows, quoted, values};

pub(crate) struct Preflight<'a> {
    pub(crate) conn: &'a Connection,
    pub(crate) target: &'a Path,
    /// Whether the database is new, or the draft of a cancelled import.
    pub(crate) is_draft: bool,
    pub(crate) handle: &'a ImportHandle,
    pub(crate) options: &'a ImportOptions,
    pub(crate) names: &'a [String],
    /// The first source of each source's table.
    pub(crate) first_files: &'a [usize],
    pub(crate) files: &'a mut [FileSummary],
}

impl Preflight<'_> {
    pub(crate) fn inspect(&mut self, sources: &[Source]) -> Result<HashMap<usize, TableState>, Failure> {
        existing::check(self.conn, self.target)?;
        self.drop_unrequested_tables()?;
        let tables = existing::all_objects(self.conn)?;
        let mut all = HashMap::new();
        let mut refused = Vec::new();
        let mut groups: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (index, leader) in self.first_files.iter().enumerate() {
            groups.entry(*leader).or_default().push(index);
        }
        for (leader, group) in groups {
            let name = &self.names[leader];
            let object = tables.get(&names::folded(name)).map(|object| object.as_table(self.target)).transpose()?;
            if self.options.resume {
                self.skip_unchanged(&group, sources, object)?;
            }
            let changed = |file: &FileSummary| file.outcome != FileOutcome::Unchanged;
            let changed: Vec<usize> = group.iter().copied().filter(|index| changed(&self.files[*index])).collect();
            let Some(object) = object.filter(|_| !changed.is_empty()) else { continue };
            let mut table_state = TableState::default();
            match self.options.existing {
                _ if self.is_draft => table_state.is_replaced = true,
                ExistingTable::Refuse => refused.push((name.as_str(), self.files[changed[0]].source.clone())),
                ExistingTable::Replace => table_state.is_replaced = true,
                ExistingTable::Append | ExistingTable::Upsert => {
                    table_state = self.existing_table(object, &sources[leader].table)?;
                }
            }
            if table_state.is_replaced {
                // A replaced table is loaded from all its files.
                for index in group {
                    let file = &mut self.files[index];
                    (file.outcome, file.rows, file.rejected) = (FileOutcome::Waiting, 0, 0);
                }
            }
            all.insert(leader, table_state);
        }
        if refused.is_empty() { Ok(all) } else { Err(self.refusal(&refused).into()) }
    }

    /// Drops the tables in the draft of a cancelled import whose files are not part of this import.
    fn drop_unrequested_tables(&self) -> Sql<()> {
        if !self.is_draft {
            return Ok(());
        }
        let tables = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name <> ?1";
        let tables: Vec<String> = values(self.conn, tables, [names::IMPORT_LOG])?;
        let requested: HashSet<&String> = self.names.iter().collect();
        // A table and its records are deleted together.
        let transaction = self.conn.unchecked_transaction()?;
        for table in tables.iter().filter(|table| !requested.contains(table)) {
            transaction.execute_batch(&format!("DROP TABLE {}", quoted(table)))?;
            transaction.execute(r#"DELETE FROM "_imports" WHERE "table" = ?1"#, [table])?;
        }
        transaction.commit()
    }

    fn refusal(&self, tables: &[(&str, String)]) -> Error {
        let listed: Vec<&str> = tables.iter().map(|(table, _)| *table).take(10).collect();
        let more = if tables.len() > listed.len() { ", …" } else { "" };
        let noun = if tables.len() == 1 { "table" } else { "tables" };
        let has = format!("{} has the {noun} {}{more} already", self.target.display(), listed.join(", "));
        let message = match (self.options.resume, tables.first()) {
            (true, Some((_, file))) => format!(
                "{has}, and {file} is new, or has changed since it was loaded, or was loaded with other options; use \
                 --replace, --upsert, or --append, which adds all rows of the file again"
            ),
            _ => format!(
                "{has}; use --replace, --append or --upsert, or --resume to skip files that were loaded before and \
                 have not changed"
            ),
        };
        Error::table(listed.first().copied().unwrap_or_default(), message)
    }

    /// Skips files of a table that were loaded before and have not changed, if the table still has their rows.
    fn skip_unchanged(
        &mut self,
        group: &[usize],
        sources: &[Source],
        object: Option<&ExistingObject>,
    ) -> Result<(), Failure> {
        let mut loaded = Vec::new();
        for index in group {
            if let Some(entry) = self.unchanged_entry(*index, &sources[*index])? {
                loaded.push((*index, entry));
            }
        }
        let Some(object) = object else {
            // If the table does not exist, only an empty file counts as loaded.
            loaded.retain(|(_, entry)| entry.fingerprint.bytes == 0);
            self.mark_unchanged(loaded);
            return Ok(());
        };
        if loaded.is_empty() {
            return Ok(());
        }
        if let Some(why) = missing_data(self.conn, &object.name)? {
            // Appending again would duplicate the rows that the table still has.
            let can_reload =
                self.is_draft || matches!(self.options.existing, ExistingTable::Replace | ExistingTable::Upsert);
            if can_reload {
                return Ok(());
            }
            let target = self.target.display();
            let message = format!("{target}: {why}; use --replace to load it again, or --upsert to update its rows");
            return Err(Error::table(&object.name, message).into());
        }
        // A replaced table has only rows of the named files.
        if self.is_draft || self.options.existing == ExistingTable::Replace {
            let sources = loaded.iter().map(|(index, _)| self.files[*index].source.as_str()).collect();
            if !import_log::consists_of(self.conn, &object.name, &sources)? {
                return Ok(());
            }
        }
        self.mark_unchanged(loaded);
        Ok(())
    }

    fn mark_unchanged(&mut self, loaded: Vec<(usize, import_log::LogEntry)>) {
        for (index, entry) in loaded {
            let file = &mut self.files[index];
            file.outcome = FileOutcome::Unchanged;
            file.rows = entry.rows;
            file.rejected = entry.errors;
        }
    }

    /// Returns the log entry of a file if the file has not changed since that load.
    fn unchanged_entry(&self, index: usize, source: &Source) -> Result<Option<import_log::LogEntry>, Failure> {
        let file = &self.files[index];
        let Some(path) = source.path.as_ref().filter(|_| source.is_file) else { return Ok(None) };
        let Some(entry) = import_log::last_load(self.conn, &file.table, &file.source)? else {
            return Ok(None);
        };
        let now = File::open(path).and_then(|file| source::size_and_time(&file));
        let Ok((bytes, modified)) = now else { return Ok(None) };
        if entry.options != self.options.layout_key() || entry.fingerprint.bytes != bytes {
            return Ok(None);
        }
        if entry.fingerprint.modified == modified && !entry.is_racy() {
            return Ok(Some(entry));
        }
        let hash = source::hash_file(path, self.handle);
        // A file whose comparison was cancelled may be unchanged.
        if self.handle.is_cancelled() {
            return Err(Error::Cancelled.into());
        }
        Ok(hash.is_ok_and(|hash| hash == entry.fingerprint.hash).then_some(entry))
    }

    /// Returns the state of an existing table that gets more rows.
    fn existing_table(&self, object: &ExistingObject, stem: &str) -> Result<TableState, Failure> {
        let name = &object.name;
        let mut shape = existing::table_shape(self.conn, object, Widening::Allowed)?;
        if let Some(schema) = self.options.schema.tables.get(stem) {
            shape.layout.apply_schema(schema, self.options);
        }
        let requested = self.options.key_of(stem);
        // With several tables, --primary-key applies to those that have the columns.
        let is_only_table = self.first_files.iter().all(|leader| *leader == self.first_files[0]);
        let key_applies = is_only_table || self.options.primary_key.is_empty();
        let found: Option<Vec<usize>> = requested.iter().map(|name| shape.layout.find_column(name)).collect();
        let keys = shape.plan.columns();
        let is_key = |found: &[usize]| found.len() == keys.len() && found.iter().all(|index| keys.contains(index));
        let names = |keys: &[usize]| -> Vec<String> { shape.layout.names(keys).map(str::to_owned).collect() };
        let refused = |message: String| Err(Error::table(name, message).into());
        match found {
            Some(found) if found.is_empty() || is_key(&found) => {}
            Some(found) if self.is_unique(name, &names(&found))? => shape.plan = KeyPlan::Existing(found),
            None if !key_applies => {}
            _ if keys.is_empty() => {
                return refused(format!(
                    "the table {name:?} has no primary key, and no unique index of {}; use --replace, or create such \
                     an index",
                    quoted_list(requested)
                ));
            }
            _ => {
                return refused(format!(
                    "the primary key of the table {name:?} is {}, not {}; leave out --primary-key, or use --replace",
                    quoted_list(&names(keys)),
                    quoted_list(requested)
                ));
            }
        }
        if self.options.existing == ExistingTable::Upsert && shape.plan.columns().is_empty() {
            return refused(format!(
                "the table {name:?} has no primary key, so --upsert cannot know which rows are the same; \
                 name columns with a unique index as --primary-key, or use --append or --replace"
            ));
        }
        let table_rows = import_log::table_rows(self.conn, name)?;
        Ok(TableState { shape, table_rows, ..TableState::default() })
    }

    /// Whether the table has a unique index on these columns.
    fn is_unique(&self, table: &str, columns: &[String]) -> Sql<bool> {
        let unique = "SELECT name FROM pragma_index_list(?1) WHERE \"unique\" AND NOT partial";
        for index in values::<String>(self.conn, unique, [table])? {
            let of_index: Vec<Option<String>> = values(self.conn, "SELECT name FROM pragma_index_info(?1)", [index])?;
            let is_in = |name: &Option<String>| name.as_ref().is_some_and(|name| columns.contains(name));
            if of_index.len() == columns.len() && of_index.iter().all(is_in) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// Describes a column or rows that a table has lost since the last import into it.
fn missing_data(conn: &Connection, table: &str) -> Sql<Option<String>> {
    let columns = column_names(conn, table)?;
    let mut recorded: Vec<String> = import_log::columns(conn, table)?.unwrap_or_default().into_keys().collect();
    recorded.sort_unstable();
    if let Some(column) = recorded.iter().find(|column| !columns.contains(*column)) {
        return Ok(Some(format!("the table {table:?} has lost the column {column:?} since its last import")));
    }
    let Some(recorded) = import_log::table_rows(conn, table)? else { return Ok(None) };
    let rows = count_rows(conn, table)?;
    Ok((rows < recorded)
        .then(|| format!("the table {table:?} has {rows} rows, fewer than the {recorded} that imports loaded")))
}
