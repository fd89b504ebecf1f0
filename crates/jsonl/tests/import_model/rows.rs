//! Applies lines to a table of the model: which are accepted, which are rejected, and the resulting rows.

use std::collections::BTreeSet;

use crate::case::{self, Fixed, Import, Line, Mode};
use crate::columns::{self, Path};
use crate::json::{Json, Kind, fits, flatten};
use crate::load::Load;
use crate::table::{Cell, Column, Row, Table};

/// Columns that are the primary key if none is named.
const KEYS: [&str; 3] = ["_key", "_id", "id"];

/// A line: the number of its file and its number in the file.
pub(crate) type LineId = (usize, usize);

/// Which lines decide on the columns.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Deciding {
    Accepted,
    Matching,
    /// Accepted ones, and rejected ones whose keys are all columns now: lines are read in blocks, and a rejected line
    /// may have its columns if another line of its block is accepted.
    Found,
    All,
}

/// A line that is a JSON object.
#[derive(Clone, Debug)]
pub(crate) struct Parsed {
    id: LineId,
    pub(crate) cells: Vec<(Path, Json)>,
    /// Whether it matches the types that the user set; `None` if that is not documented.
    fits: Option<bool>,
}

/// Result of applying lines.
pub(crate) struct Run {
    pub(crate) table: Table,
    /// Lines whose values match the types.
    matching: BTreeSet<LineId>,
    pub(crate) accepted: BTreeSet<LineId>,
    pub(crate) rejected: BTreeSet<LineId>,
    /// Whether the import may also fail.
    pub(crate) may_fail: bool,
    /// Whether no line has the named key, or a key for an upsert.
    pub(crate) is_keyless: bool,
}

impl Run {
    pub(crate) fn new(load: &Load<'_>, deciding: Deciding) -> Self {
        let (lines, observed) = (parsed(load), load.rejected());
        let run = Run::with(load, &observed, &lines, &lines);
        let is_column = |(path, _): &(Path, Json)| {
            let name = path.join("_");
            load.found.is_some_and(|found| {
                found.columns.iter().any(|(column, _)| *column == name || column.starts_with(&format!("{name}_")))
            })
        };
        let decides = |line: &&Parsed| match deciding {
            Deciding::All => true,
            Deciding::Found => run.accepted.contains(&line.id) || line.cells.iter().all(is_column),
            Deciding::Matching => run.matching.contains(&line.id),
            Deciding::Accepted => run.accepted.contains(&line.id),
        };
        let deciding: Vec<Parsed> = lines.iter().filter(decides).cloned().collect();
        Run::with(load, &observed, &lines, &deciding)
    }

    fn with(load: &Load<'_>, observed: &BTreeSet<LineId>, lines: &[Parsed], deciding: &[Parsed]) -> Self {
        let import = load.import;
        let mut table = load.old.cloned().unwrap_or_default();
        let assigned = columns::assign(&mut table.columns, lines, deciding, import.schema.as_ref());
        let mut rows: Vec<(LineId, Row, bool)> = Vec::new();
        for line in lines {
            let (mut row, mut line_fits) = (Row::new(), line.fits);
            for (path, json) in &line.cells {
                let Some(index) = assigned.get(path) else { continue };
                let column = &mut table.columns[*index];
                let kind = json.kind(import.exact);
                column.offered.insert(kind);
                let of_column = column.types.last().filter(|_| column.is_fixed);
                line_fits = both(line_fits, of_column.map_or(Some(true), |sql_type| fits(sql_type, kind)));
                let since = column.types.len().saturating_sub(1);
                row.insert(*index, Cell { json: json.clone(), since });
            }
            rows.push((line.id, row, line_fits.unwrap_or(!observed.contains(&line.id))));
        }
        let mut run = Run {
            table,
            matching: rows.iter().filter(|(.., fits)| *fits).map(|(id, ..)| *id).collect(),
            accepted: BTreeSet::new(),
            rejected: not_objects(load),
            may_fail: false,
            is_keyless: false,
        };
        let mut is_enforced = true;
        if load.old.is_none() {
            let matching: Vec<&Row> = rows.iter().filter(|(.., fits)| *fits).map(|(_, row, _)| row).collect();
            (run.table.key, is_enforced) = new_key(import, &run.table, &matching);
            let needs_key = !import.primary_key.is_empty() || import.mode == Mode::Upsert;
            run.is_keyless = needs_key && run.table.key.is_empty();
        }
        let mut key_kinds: BTreeSet<Kind> = BTreeSet::new();
        for (id, row, fits) in rows {
            if fits && run.add(row, import, is_enforced, &mut key_kinds) {
                run.accepted.insert(id);
            } else {
                run.rejected.insert(id);
            }
        }
        run.check_key(load, is_enforced, &key_kinds);
        run
    }

    /// Adds a row, or updates the row with its key. Returns false if the row is rejected.
    fn add(&mut self, row: Row, import: &Import, is_enforced: bool, key_kinds: &mut BTreeSet<Kind>) -> bool {
        let (table, upserts) = (&mut self.table, import.mode == Mode::Upsert);
        let key = table.key_of(&row);
        let is_keyed = is_enforced && (!table.key.is_empty() || upserts);
        if is_keyed && (key.is_none() || table.key.is_empty()) {
            return false;
        }
        let known = table.rows.iter().position(|old| is_keyed && table.key_of(old) == key);
        if known.is_some() && !upserts {
            return false;
        }
        for (index, cell) in &row {
            let kind = cell.json.kind(import.exact);
            table.columns[*index].accepted.insert(kind);
            if table.key.contains(index) {
                key_kinds.insert(kind);
            }
        }
        match known {
            Some(known) => table.rows[known].extend(row),
            None => table.rows.push(row),
        }
        true
    }

    /// Checks whether the key chosen by rule is valid, and whether an existing table can keep its key.
    fn check_key(&mut self, load: &Load<'_>, is_enforced: bool, key_kinds: &BTreeSet<Kind>) {
        let is_whole = |kind: &Kind| matches!(kind, Kind::Int | Kind::BigInt);
        let table = &mut self.table;
        if load.old.is_none() && !is_enforced {
            let keys: Option<BTreeSet<_>> = table.rows.iter().map(|row| table.key_of(row)).collect();
            // In a column with text, a number with a fraction is text.
            let is_text = |kind: &Kind| matches!(kind, Kind::Text | Kind::Real) && key_kinds.contains(&Kind::Text);
            let is_key = keys.is_some_and(|keys| keys.len() == table.rows.len())
                && key_kinds.iter().all(|kind| is_whole(kind) || is_text(kind));
            if !is_key {
                table.key.clear();
            }
        }
        // If a key of whole numbers gets text, the import may fail or change the type.
        let is_text = |index: &usize| table.columns[*index].types.last().is_some_and(|last| last == "TEXT");
        if load.old.is_some() && !table.key.iter().all(is_text) {
            self.may_fail = !key_kinds.iter().all(is_whole);
        }
    }
}

fn parsed(load: &Load<'_>) -> Vec<Parsed> {
    let mut lines = Vec::new();
    for (index, part) in load.parts.iter().enumerate() {
        for (number, line) in part.file.numbered() {
            let Line::Object(members) = line else { continue };
            let cells = flatten(members, load.import.flatten);
            let line = Parsed { id: (index, number), cells, fits: Some(true) };
            lines.push(with_schema(line, load.import, load.old));
        }
    }
    lines
}

/// Removes the keys that a schema skips. Columns of the table count as named.
fn with_schema(mut line: Parsed, import: &Import, old: Option<&Table>) -> Parsed {
    let Some(schema) = &import.schema else { return line };
    let fixed = |path: &Path| schema.columns.iter().find(|(key, _)| *key == path[0]).map(|(_, fixed)| fixed);
    let is_column =
        |column: &Column, path: &Path| column.path.as_ref() == Some(path) || *path == [column.name.as_str()];
    let is_known = |path: &Path| old.is_some_and(|old| old.columns.iter().any(|column| is_column(column, path)));
    line.cells.retain(|(path, _)| fixed(path) != Some(&Fixed::Skip));
    if schema.others == "reject" && line.cells.iter().any(|(path, _)| fixed(path).is_none() && !is_known(path)) {
        line.fits = Some(false);
    }
    if schema.others == "skip" {
        line.cells.retain(|(path, _)| fixed(path).is_some() || is_known(path));
    }
    for (path, json) in &line.cells {
        if let Some(Fixed::Type(fixed)) = fixed(path).filter(|_| path.len() == 1) {
            line.fits = both(line.fits, fits(case::sql_type(fixed), json.kind(import.exact)));
        }
    }
    line
}

/// True if both are true, false if one is false.
fn both(one: Option<bool>, other: Option<bool>) -> Option<bool> {
    match (one, other) {
        (Some(true), other) => other,
        (one, Some(true)) => one,
        (Some(false), _) | (_, Some(false)) => Some(false),
        (None, None) => None,
    }
}

fn not_objects(load: &Load<'_>) -> BTreeSet<LineId> {
    let mut lines = BTreeSet::new();
    for (index, part) in load.parts.iter().enumerate() {
        let bad = part.file.numbered().filter(|(_, line)| matches!(line, Line::Bad(_)));
        lines.extend(bad.map(|(number, _)| (index, number)));
    }
    lines
}

/// Returns the key of a new table, and whether lines are rejected because of it.
fn new_key(import: &Import, table: &Table, rows: &[&Row]) -> (Vec<usize>, bool) {
    let columns = &table.columns;
    let exact = |name: &str| columns.iter().position(|column| column.path.as_deref() == Some(&[name.to_owned()]));
    // Exact names take precedence over names that differ in case.
    let in_any_case = |column: &Column, name: &str| column.name.eq_ignore_ascii_case(name);
    let column = |name: &str| exact(name).or_else(|| columns.iter().position(|column| in_any_case(column, name)));
    let has = |row: &Row, index: usize| row.get(&index).is_some_and(|cell| cell.json != Json::Null);
    let used = |name: &str| column(name).filter(|index| rows.iter().any(|row| has(row, *index)));
    if !import.primary_key.is_empty() {
        let key: Option<Vec<usize>> = import.primary_key.iter().map(|name| used(name)).collect();
        return (key.unwrap_or_default(), true);
    }
    if import.mode == Mode::Upsert {
        return (KEYS.iter().find_map(|name| used(name)).into_iter().collect(), true);
    }
    let in_first_row = |index: &usize| rows.first().is_some_and(|row| row.contains_key(index));
    (KEYS.iter().find_map(|name| exact(name).filter(in_first_row)).into_iter().collect(), false)
}
