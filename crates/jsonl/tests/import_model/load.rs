//! The expected effect of one import on one table: outcome, counts and rejected lines of each file, and the table.
//!
//! Where the documentation allows alternatives (whether the keys of a rejected line become columns), each is tried, and
//! one of them must match the result.

use std::collections::BTreeSet;

use gristmill_jsonl::import::summary::{FileOutcome, FileSummary, ImportSummary};

use crate::case::{File, Import, Line};
use crate::rows::{Deciding, LineId, Run};
use crate::table::{Column, Table};
use crate::workspace::ObservedTable;

pub(crate) struct Load<'a> {
    pub(crate) import: &'a Import,
    /// The files, as if they were one.
    pub(crate) parts: Vec<Part<'a>>,
    pub(crate) summary: &'a ImportSummary,
    /// The table after the import.
    pub(crate) found: Option<&'a ObservedTable>,
    /// The table that gets more rows.
    pub(crate) old: Option<&'a Table>,
    /// Whether an existing table is replaced.
    pub(crate) replaces: bool,
    /// Whether the table has another key than the named one.
    pub(crate) key_differs: bool,
}

pub(crate) struct Part<'a> {
    pub(crate) file: &'a File,
    pub(crate) of_file: &'a FileSummary,
    /// Numbers of rejected lines.
    pub(crate) rejected: BTreeSet<usize>,
}

impl Part<'_> {
    fn has_failed(&self) -> bool {
        matches!(self.of_file.outcome, FileOutcome::Failed(_))
    }
}

impl Load<'_> {
    /// Checks the import. Returns the new table; `None` if it must be unchanged.
    pub(crate) fn check(&self) -> Result<Option<Table>, String> {
        let mut errors: Vec<String> = Vec::new();
        for deciding in [Deciding::Accepted, Deciding::Matching, Deciding::Found, Deciding::All] {
            match self.attempt(deciding) {
                Ok(table) => return Ok(table),
                Err(error) if !errors.contains(&error) => errors.push(error),
                Err(_) => {}
            }
        }
        Err(errors.join("\n  or, if rejected lines decide on columns: "))
    }

    /// Lines that were rejected.
    pub(crate) fn rejected(&self) -> BTreeSet<LineId> {
        let of_part = |(index, part): (usize, &Part<'_>)| {
            part.rejected.iter().map(move |line| (index, *line)).collect::<Vec<_>>()
        };
        self.parts.iter().enumerate().flat_map(of_part).collect()
    }

    fn attempt(&self, deciding: Deciding) -> Result<Option<Table>, String> {
        let run = Run::new(self, deciding);
        let has_failed = self.parts.iter().all(Part::has_failed);
        if run.table.columns.is_empty() && !run.accepted.is_empty() {
            // Lines without any key make no table, and replace none.
            return if has_failed { Ok(None) } else { Err("it is loaded, but there is no table".to_owned()) };
        }
        if has_failed && (run.may_fail || run.is_keyless || self.key_differs) {
            return Ok(None);
        }
        let stops = self.import.max_errors.is_some_and(|most| run.rejected.len() as u64 > most);
        if stops != self.summary.stopped_by.is_some() {
            return Err(format!("{} lines are bad; it stops: {}", run.rejected.len(), !stops));
        }
        if stops {
            return Ok(None);
        }
        if self.key_differs && !run.accepted.is_empty() {
            return Err("it is loaded although the table has another key than the named one".to_owned());
        }
        // With several tables, the named key applies to those that have its column.
        let is_noted =
            self.summary.files.len() > self.parts.len() && self.parts.iter().any(|part| !part.of_file.notes.is_empty());
        if run.is_keyless && !run.accepted.is_empty() && !is_noted {
            return Err("it is loaded although no line has the named key".to_owned());
        }
        let none_accepted = run.accepted.is_empty() && !run.rejected.is_empty();
        for (index, part) in self.parts.iter().enumerate() {
            let of_part = |lines: &BTreeSet<LineId>| -> BTreeSet<usize> {
                lines.iter().filter(|(of, _)| *of == index).map(|(_, line)| *line).collect()
            };
            let (accepted, rejected) = (of_part(&run.accepted), of_part(&run.rejected));
            self.check_part(part, &accepted, &rejected, none_accepted)
                .map_err(|error| format!("{}: {error}", part.file.path))?;
        }
        if run.accepted.is_empty() && (self.replaces || !run.rejected.is_empty()) {
            return if has_failed || self.parts.len() > 1 { Ok(None) } else { Err("it must fail".to_owned()) };
        }
        let mut table = run.table;
        if table.columns.is_empty() {
            return Ok(Some(table));
        }
        let found = self.found.ok_or("its table is missing")?;
        // The order in which keys get columns if names collide is not documented, nor is the order of schema columns
        // that only rejected lines have.
        let has_own_name = |column: &Column| column.path.as_ref().is_some_and(|path| *path == [column.name.as_str()]);
        let old = self.old.map_or(&[][..], |old| &old.columns);
        let has_rejected_columns = self.import.schema.is_some() && !run.rejected.is_empty();
        if has_rejected_columns || !old.iter().all(has_own_name) {
            table.reorder(old.len(), found);
        }
        take_types(&mut table, found)?;
        table.compare(found)?;
        Ok(Some(table))
    }

    fn check_part(
        &self,
        part: &Part<'_>,
        accepted: &BTreeSet<usize>,
        rejected: &BTreeSet<usize>,
        none_accepted: bool,
    ) -> Result<(), String> {
        if *rejected != part.rejected {
            return Err(format!("it rejects the lines {:?}, expected {rejected:?}", part.rejected));
        }
        let outcome = &part.of_file.outcome;
        if none_accepted && part.has_failed() {
            // Where no line of any file is accepted, files without lines may fail with the others.
            return Ok(());
        }
        if accepted.is_empty() && (!rejected.is_empty() || self.replaces) {
            let may_load = self.replaces && self.parts.len() > 1 && rejected.is_empty();
            return if part.has_failed() || may_load {
                Ok(())
            } else {
                Err(format!("it must fail, but is {outcome:?}"))
            };
        }
        if *outcome == FileOutcome::Unchanged && accepted.is_empty() {
            // Whether a file without lines is loaded again makes no difference.
            return Ok(());
        }
        if *outcome != FileOutcome::Loaded {
            return Err(format!("it must be loaded, but is {outcome:?}"));
        }
        let blank = part.file.lines.iter().filter(|line| **line == Line::Blank).count() as u64;
        let counts = (part.of_file.rows, part.of_file.rejected, part.of_file.blank);
        let expected = (accepted.len() as u64, rejected.len() as u64, blank);
        if counts != expected && self.found.is_some() {
            return Err(format!("rows, rejected and blank lines are {counts:?}, expected {expected:?}"));
        }
        Ok(())
    }
}

/// Copies the types of the columns if one import of all lines could give them. The comparison of rows checks that they
/// hold every value.
fn take_types(table: &mut Table, found: &ObservedTable) -> Result<(), String> {
    for (column, (name, now)) in table.columns.iter_mut().zip(&found.columns) {
        // The comparison reports columns that differ.
        if column.name != *name || column.is_fixed || column.types.last() == Some(now) {
            continue;
        }
        if !column.may_have(now) {
            let kinds = &column.accepted;
            return Err(format!("column {name:?} is of the type {now:?}, with values of {kinds:?}"));
        }
        column.types.push(now.clone());
    }
    Ok(())
}
