//! The model: what the tables must hold after each operation.
//!
//! Owns the database as a whole: which imports are refused, which files `--resume` leaves out, and the comparison of all
//! tables. What one file does to its table is in `load`.

use std::collections::BTreeMap;

use gristmill_jsonl::import::summary::{FileOutcome, ImportSummary};

use crate::case::{File, Import, Line, Mode, OWN, OWN_COLUMNS, Operation};
use crate::load::{Load, Part};
use crate::site::{Observed, Tables};
use crate::table::{Column, Table};

#[derive(Default)]
pub(crate) struct Model {
    tables: BTreeMap<String, Table>,
    /// Files whose rows are in their table.
    loaded: Vec<Loaded>,
    /// The files whose rows were put into a table since an import made it, each as often as it was loaded.
    made_of: BTreeMap<String, Vec<&'static str>>,
    /// Tables that lost rows by another hand than an import's, and whether they have got others since.
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
    /// An operation of the user: the SQL to run, or nothing when it would not change anything.
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

    /// Compares what an import did with what it had to do, and takes it over.
    pub(crate) fn check(&mut self, import: &Import, observed: &Observed) -> Result<(), String> {
        let groups = import.groups();
        let waiting: Vec<Vec<&File>> =
            groups.iter().map(|(table, files)| self.waiting(table, files, (import, observed))).collect();
        let any = |is: &dyn Fn(&str) -> bool| {
            groups.iter().zip(&waiting).any(|((table, _), waiting)| !waiting.is_empty() && is(table))
        };
        let is_refused = import.mode == Mode::Create && any(&|table| self.tables.contains_key(table));
        let key_differs = any(&|table| self.key_differs(table, import));
        // What `--resume` is to do with a table that has lost rows is for the user to say.
        let is_changed = import.resume && groups.iter().any(|(table, _)| self.changed.contains_key(*table));
        let summary = match &observed.result {
            Ok(_) if is_refused => return Err("it writes into a table that exists, unasked".to_owned()),
            Ok(summary) => summary,
            Err(_) if is_refused || key_differs || is_changed => return self.compare(&observed.tables),
            Err(error) => return Err(format!("it must succeed, and fails: {error}")),
        };
        for ((table, files), waiting) in groups.iter().zip(&waiting) {
            for file in files.iter().filter(|file| !waiting.contains(file)) {
                let outcome = &observed.of_file(file)?.outcome;
                if *outcome != FileOutcome::Unchanged {
                    return Err(format!("{} is unchanged, and is {outcome:?}", file.path));
                }
            }
            if !waiting.is_empty() {
                self.check_table(import, table, waiting, (summary, observed))?;
            }
        }
        check_totals(summary)?;
        self.compare(&observed.tables)
    }

    /// The files that are to be loaded. A table that is made anew is made of all of its files.
    fn waiting<'a>(
        &self,
        table: &str,
        files: &[&'a File],
        (import, observed): (&Import, &Observed),
    ) -> Vec<&'a File> {
        if let Some(has_grown) = self.changed.get(table).filter(|_| import.resume) {
            // By the number of its rows nobody can tell that a table has lost some when it has got others since.
            let is_unchanged = |file: &&File| {
                let found = observed.of_file(file).is_ok_and(|file| file.outcome == FileOutcome::Unchanged);
                found && (*has_grown || self.is_loaded(table, file, import))
            };
            return files.iter().copied().filter(|file| !is_unchanged(file)).collect();
        }
        let is_new = import.mode == Mode::Replace || !self.tables.contains_key(table);
        // Whether a file without lines is loaded again makes no difference.
        let is_idle = |file: &File| {
            file.lines.iter().all(|line| *line == Line::Blank)
                && observed.of_file(file).is_ok_and(|file| file.outcome == FileOutcome::Unchanged)
        };
        let is_loaded =
            |file: &&File| import.resume && (is_idle(file) || self.is_loaded(table, file, import));
        let is_exact = import.mode != Mode::Replace || self.is_made_of(table, files);
        if is_new && !(is_exact && files.iter().all(is_loaded)) {
            return files.to_vec();
        }
        files.iter().copied().filter(|file| !is_loaded(file)).collect()
    }

    fn is_loaded(&self, table: &str, file: &File, import: &Import) -> bool {
        let last = self.loaded.iter().find(|last| last.table == table && last.path == file.path);
        last.is_some_and(|last| last.text == file.text() && last.shape == import.shape())
    }

    /// Whether all rows of a table are of these files, and each was loaded once.
    fn is_made_of(&self, table: &str, files: &[&File]) -> bool {
        let Some(paths) = self.made_of.get(table) else { return !self.tables.contains_key(table) };
        let is_once = |path: &&str| paths.iter().filter(|other| *other == path).count() == 1;
        paths.iter().all(|path| is_once(path) && files.iter().any(|file| file.path == *path))
    }

    /// Whether the table is there and has another key than the one that is named, or none to update by.
    fn key_differs(&self, table: &str, import: &Import) -> bool {
        let adds = matches!(import.mode, Mode::Append | Mode::Upsert);
        let Some(table) = self.tables.get(table).filter(|_| adds) else { return false };
        let has = |name: &&str| table.columns.iter().any(|column| column.name.eq_ignore_ascii_case(name));
        // Of several tables, the key is that of those which have its columns.
        let is_meant = import.groups().len() == 1 || import.primary_key.iter().all(has);
        let differs = is_meant && !import.primary_key.is_empty() && table.key_names() != import.primary_key;
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
        // Columns of a user's table keep their types, also those that an import has added.
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

    /// All tables are there, hold what they must, and there are no others.
    fn compare(&self, found: &Tables) -> Result<(), String> {
        if let Some(name) = found.keys().find(|name| !self.tables.contains_key(*name)) {
            return Err(format!("there is a table {name:?} that must not be there"));
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
