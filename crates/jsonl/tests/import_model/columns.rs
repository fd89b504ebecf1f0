//! Which key has which column.

use std::collections::BTreeMap;

use crate::case::{Fixed, Schema, sql_type};
use crate::rows::Parsed;
use crate::table::Column;

/// The keys that lead to a value.
pub(crate) type Path = Vec<String>;

/// Gives each key its column: the one that was made for it, then one of the user's that has its exact name, then one that
/// was made for another key and has its exact name, if no line has that key, then one of the user's whose name differs only
/// in case, then a new one. Only `deciding` lines make new ones; the keys of all lines
/// have a column of the user's if there is one.
pub(crate) fn place(
    columns: &mut Vec<Column>,
    lines: &[Parsed],
    deciding: &[Parsed],
    schema: Option<&Schema>,
) -> BTreeMap<Path, usize> {
    let mut paths = paths_of(deciding);
    let in_schema = || schema.into_iter().flat_map(|schema| &schema.columns);
    // Columns whose type is given are made even if no line has them.
    for (key, fixed) in in_schema() {
        let path = vec![(*key).to_owned()];
        if matches!(fixed, Fixed::Type(_)) && !paths.contains(&path) {
            paths.push(path);
        }
    }
    let fixed =
        |path: &Path| in_schema().find(|(key, _)| path.len() == 1 && *key == path[0]).map(|(_, fixed)| fixed);
    let wanted = |path: &Path| match fixed(path) {
        Some(Fixed::Name(name)) => (*name).to_owned(),
        _ => path.join("_"),
    };
    let mut places: BTreeMap<Path, usize> = BTreeMap::new();
    for path in &paths {
        let known = columns.iter().position(|column| column.path.as_ref() == Some(path));
        let exact = || columns.iter().position(|column| column.path.is_none() && column.name == wanted(path));
        let alias =
            || columns.iter().position(|column| is_alias(column, path, &paths) && fixed(path).is_none());
        if let Some(index) = known.or_else(exact).or_else(alias) {
            places.insert(path.clone(), index);
        }
    }
    for path in &paths {
        if places.contains_key(path) {
            continue;
        }
        let name = wanted(path);
        let is_alike = |index: &usize| {
            columns[*index].path.is_none()
                && columns[*index].name.eq_ignore_ascii_case(&name)
                && !places.values().any(|used| used == index)
        };
        let index = (0..columns.len()).find(is_alike).unwrap_or_else(|| {
            let mut column = Column::new(free_name(columns, name), Some(path.clone()));
            if let Some(Fixed::Type(fixed)) = fixed(path) {
                column.types.push(sql_type(fixed).to_owned());
                column.is_fixed = true;
            }
            columns.push(column);
            columns.len() - 1
        });
        places.insert(path.clone(), index);
    }
    // Their types decide whether other lines are rejected, too.
    let others: Vec<Path> = paths_of(lines).into_iter().filter(|path| !paths.contains(path)).collect();
    for path in others {
        let name = wanted(&path);
        let position = |is_it: &dyn Fn(&Column) -> bool| columns.iter().position(is_it);
        let index = position(&|column| column.path.as_ref() == Some(&path))
            .or_else(|| position(&|column| column.path.is_none() && column.name == name))
            .or_else(|| position(&|column| is_alias(column, &path, &paths) && fixed(&path).is_none()))
            .or_else(|| position(&|column| column.path.is_none() && column.name.eq_ignore_ascii_case(&name)));
        if let Some(index) = index {
            places.insert(path, index);
        }
    }
    places
}

/// Whether a column was made for another key than this one, which is its exact name, and none of `paths` is that key.
fn is_alias(column: &Column, path: &Path, paths: &[Path]) -> bool {
    *path == [column.name.as_str()] && column.path.as_ref().is_some_and(|own| !paths.contains(own))
}

/// The keys of lines, in the order in which they come.
fn paths_of(lines: &[Parsed]) -> Vec<Path> {
    let mut paths: Vec<Path> = Vec::new();
    for (path, _) in lines.iter().flat_map(|line| &line.cells) {
        if !paths.contains(path) {
            paths.push(path.clone());
        }
    }
    paths
}

/// The name, with a number behind it if SQLite takes it for one that is there.
fn free_name(columns: &[Column], wanted: String) -> String {
    let is_free = |name: &String| columns.iter().all(|column| !column.name.eq_ignore_ascii_case(name));
    let numbered = (2..).map(|number| format!("{wanted}_{number}"));
    std::iter::once(wanted.clone()).chain(numbered).find(is_free).unwrap_or(wanted)
}
