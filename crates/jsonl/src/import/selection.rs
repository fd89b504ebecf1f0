//! Which keys become columns when only some are asked for, and the column that names the file of a row.

use super::column::Column;
use super::layout::Layout;
use super::options::ImportOptions;
use super::schema::TableSchema;
use crate::error::{Error, Result};
use crate::keys::{Fate, Keys, ROOT};
use crate::parse::{Filename, Form, Others};

type Path = Vec<Box<[u8]>>;

/// Refuses what cannot be asked for together.
pub(crate) fn check(options: &ImportOptions) -> Result<()> {
    if options.columns.is_empty() {
        return Ok(());
    }
    let known: Vec<&String> = options.columns.iter().chain(&options.filename_column).collect();
    let missing = |name: &&String| !known.iter().any(|known| known.eq_ignore_ascii_case(name));
    match options.primary_key.iter().chain(&options.indexes).find(missing) {
        Some(name) => Err(Error::Invalid(format!(
            "{name:?} is to be a key or to have an index, but is not among the columns; add it to --columns"
        ))),
        None => Ok(()),
    }
}

/// Makes the parser skip keys that were not asked for, and add the name of the file.
pub(crate) fn apply(form: &mut Form, options: &ImportOptions, schema: Option<&TableSchema>, file: &str) {
    if !options.columns.is_empty() {
        select(form, options, schema);
    }
    if let Some(name) = &options.filename_column {
        let key = find_or_add(&mut form.keys, ROOT, name.as_bytes());
        form.filename = Some(Filename { key, value: file.as_bytes().into() });
    }
}

fn select(form: &mut Form, options: &ImportOptions, schema: Option<&TableSchema>) {
    let mut wanted: Vec<Path> = options.columns.iter().map(|name| path_of(name, options, schema)).collect();
    wanted.extend(options.filename_column.iter().map(|name| vec![name.as_bytes().into()]));
    for number in 0..form.keys.len() as u32 {
        let path = form.keys.path(number);
        let related = |wanted: &Path| path.iter().zip(wanted).all(|(key, wanted)| **key == **wanted);
        if !wanted.iter().any(related) {
            form.keys.get_mut(number).fate = Fate::Skipped;
        }
    }
    for path in &wanted {
        let number = path.iter().fold(ROOT, |parent, name| find_or_add(&mut form.keys, parent, name));
        // All that is in it is wanted as well.
        form.keys.get_mut(number).is_open = true;
    }
    form.others = Others::Skipped;
}

/// Whether a table has a column of the key that was asked for, or of a key in its objects. Keys are compared exactly: a key
/// in another case is another key.
pub(crate) fn has(
    layout: &Layout,
    name: &str,
    options: &ImportOptions,
    schema: Option<&TableSchema>,
) -> bool {
    let wanted = path_of(name, options, schema);
    layout.columns.iter().any(|column| is_of(column, &wanted))
}

/// Whether some line of a table's files had a key that was asked for.
pub(crate) fn is_in_lines(layout: &Layout, options: &ImportOptions, schema: Option<&TableSchema>) -> bool {
    let wanted: Vec<Path> = options.columns.iter().map(|name| path_of(name, options, schema)).collect();
    let seen = layout.columns.iter().filter(|column| !column.kinds.is_empty());
    seen.into_iter().any(|column| wanted.iter().any(|wanted| is_of(column, wanted)))
}

/// Whether a column is for this key, or for one in its objects. A column of the user's is for the key that makes its name,
/// until lines show which key it has.
fn is_of(column: &Column, wanted: &Path) -> bool {
    if column.alias.as_ref().is_some_and(|alias| alias.path == *wanted) {
        return true;
    }
    match &column.path {
        Some(path) => path.len() >= wanted.len() && path.iter().zip(wanted).all(|(a, b)| a == b),
        None => wanted.join(&b"_"[..]) == column.name.as_bytes(),
    }
}

/// The keys that a name means: a column's new name, or keys with dots where objects are spread.
fn path_of(name: &str, options: &ImportOptions, schema: Option<&TableSchema>) -> Path {
    let renamed = schema.into_iter().flat_map(|schema| &schema.columns);
    let key = renamed.into_iter().find(|(_, column)| column.name.as_deref() == Some(name));
    let key = key.map_or(name, |(key, _)| key.as_str());
    match options.flatten {
        0 => vec![key.as_bytes().into()],
        _ => key.split('.').map(|part| part.as_bytes().into()).collect(),
    }
}

fn find_or_add(keys: &mut Keys, parent: u32, name: &[u8]) -> u32 {
    keys.find(parent, name).unwrap_or_else(|| keys.add(parent, name, Fate::Inferred))
}
