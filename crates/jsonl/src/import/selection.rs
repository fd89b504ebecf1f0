//! Applies `--columns` and `--filename-column` to the parse options.

use super::column::Column;
use super::layout::{self, Layout, Path, find_or_add};
use super::options::ImportOptions;
use super::schema::TableSchema;
use crate::error::{Error, Result};
use crate::keys::{ColumnRule, ROOT};
use crate::parse::{Filename, ParseOptions, UnknownKeys};

/// Rejects a key or an index that is not among the selected columns.
pub(crate) fn check(options: &ImportOptions) -> Result<()> {
    if options.columns.is_empty() {
        return Ok(());
    }
    let selected: Vec<&String> = options.columns.iter().chain(&options.filename_column).collect();
    let missing = |name: &&String| !selected.iter().any(|selected| selected.eq_ignore_ascii_case(name));
    match options.primary_key.iter().chain(&options.indexes).find(missing) {
        Some(name) => Err(Error::Options(format!(
            "{name:?} is named as a key or for an index, but not in --columns; add it to --columns"
        ))),
        None => Ok(()),
    }
}

/// Makes the parser skip unselected keys and add the file name.
pub(crate) fn apply(parsing: &mut ParseOptions, options: &ImportOptions, schema: Option<&TableSchema>, file: &str) {
    if !options.columns.is_empty() {
        select(parsing, options, schema);
    }
    if let Some(name) = &options.filename_column {
        let key = find_or_add(&mut parsing.keys, ROOT, name.as_bytes());
        parsing.filename = Some(Filename { key, value: file.as_bytes().into() });
    }
}

fn select(parsing: &mut ParseOptions, options: &ImportOptions, schema: Option<&TableSchema>) {
    let mut paths: Vec<Path> = options.columns.iter().map(|name| path_of(name, options, schema)).collect();
    paths.extend(options.filename_column.iter().map(|name| vec![name.as_bytes().into()]));
    for number in 0..parsing.keys.len() as u32 {
        let path = parsing.keys.path(number);
        let related = |selected: &Path| path.iter().zip(selected).all(|(key, name)| **key == **name);
        if !paths.iter().any(related) {
            parsing.keys.get_mut(number).rule = ColumnRule::Skipped;
        }
    }
    for path in &paths {
        let number = path.iter().fold(ROOT, |parent, name| find_or_add(&mut parsing.keys, parent, name));
        // All keys in its objects are selected, too.
        parsing.keys.get_mut(number).is_open = true;
    }
    parsing.unknown_keys = UnknownKeys::Skipped;
}

/// Whether a table has a column for the requested key, or for a key in its objects. Keys are case-sensitive.
pub(crate) fn has(layout: &Layout, name: &str, options: &ImportOptions, schema: Option<&TableSchema>) -> bool {
    let path = path_of(name, options, schema);
    layout.columns.iter().any(|column| is_of(column, &path))
}

/// Whether a line of a table's files had a selected key.
pub(crate) fn is_in_lines(layout: &Layout, options: &ImportOptions, schema: Option<&TableSchema>) -> bool {
    let paths: Vec<Path> = options.columns.iter().map(|name| path_of(name, options, schema)).collect();
    let seen = layout.columns.iter().filter(|column| !column.types.is_empty());
    seen.into_iter().any(|column| paths.iter().any(|path| is_of(column, path)))
}

/// Whether a column is for this key, or for a key in its objects. A column created by the user is for the key with its
/// name, until a line shows its key.
fn is_of(column: &Column, key: &Path) -> bool {
    if column.alias.as_ref().is_some_and(|alias| alias.path == *key) {
        return true;
    }
    match &column.path {
        Some(path) => path.len() >= key.len() && path.iter().zip(key).all(|(a, b)| a == b),
        None => key.join(&b"_"[..]) == column.name.as_bytes(),
    }
}

/// Returns the path for a name: the new name of a column, or keys separated by dots where objects are flattened.
fn path_of(name: &str, options: &ImportOptions, schema: Option<&TableSchema>) -> Path {
    let renamed = schema.into_iter().flat_map(|schema| &schema.columns);
    let key = renamed.into_iter().find(|(_, column)| column.name.as_deref() == Some(name));
    layout::path_of(key.map_or(name, |(key, _)| key.as_str()), options)
}
