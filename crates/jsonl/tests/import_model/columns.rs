//! Assigns keys to columns in the model.

use std::collections::BTreeMap;

use crate::case::{Fixed, Schema, sql_type};
use crate::rows::Parsed;
use crate::table::Column;

/// Path of keys to a value.
pub(crate) type Path = Vec<String>;

/// Assigns a column to each key: the one created for it, then a column of the user with its exact name, then one
/// created for another key with its exact name if no line has that key, then a column of the user whose name differs
/// only in case, then a new one. Only `deciding` lines add new columns; the keys of all lines can have a column of the
/// user.
pub(crate) fn assign(
    columns: &mut Vec<Column>,
    lines: &[Parsed],
    deciding: &[Parsed],
    schema: Option<&Schema>,
) -> BTreeMap<Path, usize> {
    let mut paths = paths_of(deciding);
    let in_schema = || schema.into_iter().flat_map(|schema| &schema.columns);
    // Columns with a type in the schema are created even if no line has them.
    for (key, fixed) in in_schema() {
        let path = vec![(*key).to_owned()];
        if matches!(fixed, Fixed::Type(_)) && !paths.contains(&path) {
            paths.push(path);
        }
    }
    let fixed = |path: &Path| in_schema().find(|(key, _)| path.len() == 1 && *key == path[0]).map(|(_, fixed)| fixed);
    let preferred = |path: &Path| match fixed(path) {
        Some(Fixed::Name(name)) => (*name).to_owned(),
        _ => path.join("_"),
    };
    let mut assigned: BTreeMap<Path, usize> = BTreeMap::new();
    for path in &paths {
        let known = columns.iter().position(|column| column.path.as_ref() == Some(path));
        let exact = || columns.iter().position(|column| column.path.is_none() && column.name == preferred(path));
        let alias = || columns.iter().position(|column| is_alias(column, path, &paths) && fixed(path).is_none());
        if let Some(index) = known.or_else(exact).or_else(alias) {
            assigned.insert(path.clone(), index);
        }
    }
    for path in &paths {
        if assigned.contains_key(path) {
            continue;
        }
        let name = preferred(path);
        let is_match = |index: &usize| {
            columns[*index].path.is_none()
                && columns[*index].name.eq_ignore_ascii_case(&name)
                && !assigned.values().any(|used| used == index)
        };
        let index = (0..columns.len()).find(is_match).unwrap_or_else(|| {
            let mut column = Column::new(free_name(columns, name), Some(path.clone()));
            if let Some(Fixed::Type(fixed)) = fixed(path) {
                column.types.push(sql_type(fixed).to_owned());
                column.is_fixed = true;
            }
            columns.push(column);
            columns.len() - 1
        });
        assigned.insert(path.clone(), index);
    }
    // Their types also decide whether other lines are rejected.
    let others: Vec<Path> = paths_of(lines).into_iter().filter(|path| !paths.contains(path)).collect();
    for path in others {
        let name = preferred(&path);
        let position = |is_it: &dyn Fn(&Column) -> bool| columns.iter().position(is_it);
        let index = position(&|column| column.path.as_ref() == Some(&path))
            .or_else(|| position(&|column| column.path.is_none() && column.name == name))
            .or_else(|| position(&|column| is_alias(column, &path, &paths) && fixed(&path).is_none()))
            .or_else(|| position(&|column| column.path.is_none() && column.name.eq_ignore_ascii_case(&name)));
        if let Some(index) = index {
            assigned.insert(path, index);
        }
    }
    assigned
}

/// Whether this key is the exact name of a column created for another key, and none of `paths` is that key.
fn is_alias(column: &Column, path: &Path, paths: &[Path]) -> bool {
    *path == [column.name.as_str()] && column.path.as_ref().is_some_and(|own| !paths.contains(own))
}

/// Keys of lines, in order of their first occurrence.
fn paths_of(lines: &[Parsed]) -> Vec<Path> {
    let mut paths: Vec<Path> = Vec::new();
    for (path, _) in lines.iter().flat_map(|line| &line.cells) {
        if !paths.contains(path) {
            paths.push(path.clone());
        }
    }
    paths
}

/// Returns the name, with a number appended if a column has it in any case.
fn free_name(columns: &[Column], preferred: String) -> String {
    let is_free = |name: &String| columns.iter().all(|column| !column.name.eq_ignore_ascii_case(name));
    let numbered = (2..).map(|number| format!("{preferred}_{number}"));
    std::iter::once(preferred.clone()).chain(numbered).find(is_free).unwrap_or(preferred)
}
