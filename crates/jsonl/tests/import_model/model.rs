//! The model: what the tables must hold after each operation.
//!
//! Owns the database as a whole: which imports are refused, which files `--resume` skips, and the comparison of all
//! tables. `load` has the effect of one file on its table.

use std::collections::BTreeMap;

use gristmill_jsonl::import::summary::{FileOutcome, ImportSummary};

use crate::case::{File, Import, Line, Mode, OWN, OWN_COLUMNS, Operation};
use crate::load::{Load, Part};
use crate::table::{Column, Table};
use crate::workspace::{Observed, Tables};

#[derive(Default)]
pub(crate) struct Model {
    tables: BTreeMap<String, Table>,
    /// Files whose rows are in their table.
    loaded: Vec<Loaded>,
    /// Files that were loaded into a table since an import created it, each as often as it was loaded.
    made_of: BTreeMap<String, Vec<&'static str>>,
    /// Tables that lost rows other than by an import, and whether they got more rows since.
    changed: BTreeMap<String, bool>,
}

/// A file that was loaded, and what `--resume` compares.
struct Loaded {
    table: String,
    path: &'static str,
    text: String,
    shape: String,
}

impl Model {
    /// Applies an operation of the user. Returns whether it changes anything.
    pub(crate) fn by_user(&mut self, operation: &Operation) -> bool {
        match operation {
            Operation::Import(_) => false,
            Operation::Drop(table) => {
                let is_there = self.tables.remove(*table).is_some();
                if is_there {
                    self.forget(table);
                    self.made_of.remove(*table);
                    self.changed.remove(*table);
                }
                is_there
            }
            Operation::Empty(table) => {
                let Some(found) = self.tables.get_mut(*table).filter(|found| !found.rows.is_empty()) else {
                    return false;
                };
                found.rows.clear();
                self.forget(table);
                self.changed.insert((*table).to_owned(), false);
                true
            }
            Operation::Own { .. } if self.tables.contains_key(OWN) => false,
            Operation::Own { has_key } => {
                let column = |(name, sql_type): &(&str, &str)| Column {
                    types: vec![(*sql_type).to_owned()],
                    is_fixed: true,
                    ..Column::new((*name).to_owned(), None)
                };
                let columns = OWN_COLUMNS.iter().skip(usize::from(!has_key)).map(column).collect();
                let key = if *has_key { vec![0] } else { Vec::new() };
                self.tables.insert(OWN.to_owned(), Table { columns, key, ..Table::default() });
                true
            }
        }
    }

    fn forget(&mut self, table: &str) {
        self.loaded.retain(|loaded| loaded.table != table);
    }

    /// Compares the result of an import with the expected one, and updates the model.
    pub(crate) fn check(&mut self, import: &Import, observed: &Observed) -> Result<(), String> {
        let groups = import.groups();
        let waiting: Vec<Vec<&File>> =
            groups.iter().map(|(table, files)| self.waiting(table, files, (import, observed))).collect();
        let any = |is: &dyn Fn(&str) -> bool| {
            groups.iter().zip(&waiting).any(|((table, _), waiting)| !waiting.is_empty() && is(table))
        };
        let is_refused = import.mode == Mode::Create && any(&|table| self.tables.contains_key(table));
        let key_differs = any(&|table| self.key_differs(table, import));
        // The user has to choose what `--resume` does with a table that has lost rows.
        let is_changed = import.resume && groups.iter().any(|(table, _)| self.changed.contains_key(*table));
        let summary = match &observed.result {
            Ok(_) if is_refused => {
                return Err("it writes into an existing table without an option that allows it".to_owned());
            }
            Ok(summary) => summary,
            Err(_) if is_refused || key_differs || is_changed => return self.compare(&observed.tables),
            Err(error) => return Err(format!("it must succeed, but fails: {error}")),
        };
        for ((table, files), waiting) in groups.iter().zip(&waiting) {
            for file in files.iter().filter(|file| !waiting.contains(file)) {
                let outcome = &observed.of_file(file)?.outcome;
                if *outcome != FileOutcome::Unchanged {
                    return Err(format!("{} is unchanged, but its outcome is {outcome:?}", file.path));
                }
            }
            if !waiting.is_empty() {
                self.check_table(import, table, waiting, (summary, observed))?;
            }
        }
        check_totals(summary)?;
        self.compare(&observed.tables)
    }

    /// Files that must be loaded. A replaced table is loaded from all its files.
    fn waiting<'a>(&self, table: &str, files: &[&'a File], (import, observed): (&Import, &Observed)) -> Vec<&'a File> {
        if let Some(has_grown) = self.changed.get(table).filter(|_| import.resume) {
            // The number of rows does not show lost rows if the table got others since.
            let is_unchanged = |file: &&File| {
                let found = observed.of_file(file).is_ok_and(|file| file.outcome == FileOutcome::Unchanged);
                found && (*has_grown || self.is_loaded(table, file, import))
            };
            return files.iter().copied().filter(|file| !is_unchanged(file)).collect();
        }
        let is_new = import.mode == Mode::Replace || !self.tables.contains_key(table);
        // Whether a file without lines is loaded again makes no difference.
        let is_unchanged_empty = |file: &File| {
            file.lines.iter().all(|line| *line == Line::Blank)
                && observed.of_file(file).is_ok_and(|file| file.outcome == FileOutcome::Unchanged)
        };
        let is_loaded =
            |file: &&File| import.resume && (is_unchanged_empty(file) || self.is_loaded(table, file, import));
        let is_exact = import.mode != Mode::Replace || self.consists_of(table, files);
        if is_new && !(is_exact && files.iter().all(is_loaded)) {
            return files.to_vec();
        }
        files.iter().copied().filter(|file| !is_loaded(file)).collect()
    }

    fn is_loaded(&self, table: &str, file: &File, import: &Import) -> bool {
        let last = self.loaded.iter().find(|last| last.table == table && last.path == file.path);
        last.is_some_and(|last| last.text == file.text() && last.shape == import.shape())
    }

    /// Whether all rows of a table are from these files, each loaded once.
    fn consists_of(&self, table: &str, files: &[&File]) -> bool {
        let Some(paths) = self.made_of.get(table) else { return !self.tables.contains_key(table) };
        let is_once = |path: &&str| paths.iter().filter(|other| *other == path).count() == 1;
        paths.iter().all(|path| is_once(path) && files.iter().any(|file| file.path == *path))
    }

    /// Whether the existing table has another key than the named one, or none for an upsert.
    fn key_differs(&self, table: &str, import: &Import) -> bool {
        let adds = matches!(import.mode, Mode::Append | Mode::Upsert);
        let Some(table) = self.tables.get(table).filter(|_| adds) else { return false };
        let has = |name: &&str| table.columns.iter().any(|column| column.name.eq_ignore_ascii_case(name));
        // With several tables, the named key applies to those that have its columns.
        let key_applies = import.groups().len() == 1 || import.primary_key.iter().all(has);
        let differs = key_applies && !import.primary_key.is_empty() && table.key_names() != import.primary_key;
        differs || (import.mode == Mode::Upsert && table.key.is_empty())
    }

    fn check_table(
        &mut self,
        import: &Import,
        table: &str,
        files: &[&File],
        (summary, observed): (&ImportSummary, &Observed),
    ) -> Result<(), String> {
        let mut parts = Vec::new();
        for &file in files {
            let rejected = observed.rejected.get(file.path).cloned().unwrap_or_default();
            parts.push(Part { file, of_file: observed.of_file(file)?, rejected });
        }
        let old = self.tables.get(table).filter(|_| import.mode != Mode::Replace);
        let is_new = old.is_none();
        let load = Load {
            import,
            parts,
            summary,
            found: observed.tables.get(table),
            old,
            replaces: import.mode == Mode::Replace && self.tables.contains_key(table),
            key_differs: self.key_differs(table, import),
        };
        let Some(mut made) = load.check().map_err(|error| format!("table {table:?}: {error}"))? else {
            return Ok(());
        };
        if is_new {
            self.forget(table);
            self.changed.remove(table);
            self.made_of.insert(table.to_owned(), Vec::new());
        }
        self.changed.entry(table.to_owned()).and_modify(|has_grown| *has_grown = true);
        if made.columns.is_empty() {
            self.tables.remove(table);
            return Ok(());
        }
        // Columns of a table created by the user keep their types, also those that an import added.
        if made.columns.iter().any(|column| column.path.is_none()) {
            made.columns.iter_mut().for_each(|column| column.is_fixed = true);
        }
        self.tables.insert(table.to_owned(), made);
        for file in files {
            let of_file = observed.of_file(file)?;
            if of_file.outcome != FileOutcome::Loaded {
                continue;
            }
            if let Some(paths) = self.made_of.get_mut(table).filter(|_| of_file.rows > 0) {
                paths.push(file.path);
            }
            self.loaded.retain(|loaded| loaded.table != table || loaded.path != file.path);
            let (table, text) = (table.to_owned(), file.text());
            self.loaded.push(Loaded { table, path: file.path, text, shape: import.shape() });
        }
        Ok(())
    }

    /// Checks that exactly the expected tables exist and that their contents are right.
    fn compare(&self, found: &Tables) -> Result<(), String> {
        if let Some(name) = found.keys().find(|name| !self.tables.contains_key(*name)) {
            return Err(format!("unexpected table {name:?}"));
        }
        for (name, table) in &self.tables {
            let found = found.get(name).ok_or_else(|| format!("the table {name:?} is missing"))?;
            table.compare(found).map_err(|error| format!("table {name:?}: {error}"))?;
        }
        Ok(())
    }
}

fn check_totals(summary: &ImportSummary) -> Result<(), String> {
    let loaded = || summary.files.iter().filter(|file| file.outcome == FileOutcome::Loaded);
    let rows: u64 = loaded().map(|file| file.rows).sum();
    let rejected: u64 = summary.files.iter().map(|file| file.rejected).sum();
    if (summary.rows, summary.rejected) != (rows, rejected) {
        return Err(format!(
            "the summary has {} rows and {} rejected lines; its files have {rows} and {rejected}",
            summary.rows, summary.rejected
        ));
    }
    Ok(())
}
