//! Finds the files to import and the name of each file's table.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};

use ignore::WalkBuilder;

use super::entries::Entries;
use super::options::ImportOptions;
use super::path_text::path_text;
use super::{names, pattern};
use crate::error::{Error, Result};
use crate::source::{Compression, classify_name};

/// One file, or standard input, to load.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    /// `None` for standard input.
    pub(crate) path: Option<PathBuf>,
    pub(crate) table: String,
    pub(crate) compression: Compression,
    pub(crate) bytes: u64,
    /// Whether it is a regular file, which can be read again.
    pub(crate) is_file: bool,
}

impl Source {
    /// Its path as the user wrote it, for messages.
    pub(crate) fn display(&self) -> String {
        self.path.as_ref().map_or("standard input".to_owned(), |path| path_text(path))
    }
}

#[derive(Debug, Default)]
pub(crate) struct Discovered {
    pub(crate) sources: Vec<Source>,
    /// Folders and files that cannot be read, and why.
    pub(crate) errors: Vec<(PathBuf, String)>,
}

const STANDARD_INPUT: &str = "-";

pub(crate) fn discover(given: &[PathBuf], options: &ImportOptions) -> Result<Discovered> {
    let mut discovered = Discovered::default();
    let mut known = HashSet::new();
    let rejects = options.rejects.as_deref().and_then(|path| std::fs::canonicalize(path).ok());
    for path in given {
        if path.as_os_str() == STANDARD_INPUT {
            if options.table.is_none() {
                return Err(Error::Options("standard input has no name; name its table with --table NAME".to_owned()));
            }
            let source =
                Source { path: None, table: String::new(), compression: Compression::Plain, bytes: 0, is_file: false };
            discovered.sources.push(source);
            continue;
        }
        let is_dir = match std::fs::metadata(path) {
            Ok(metadata) => metadata.is_dir(),
            Err(_) if pattern::is_pattern(path) => false,
            Err(error) => return Err(Error::io("read", path, error)),
        };
        let entries = match is_dir {
            true => walk(path),
            false if pattern::is_pattern(path) && !path.exists() => pattern::expand(path)?,
            false => Entries { files: vec![path.clone()], ..Entries::default() },
        };
        discovered.errors.extend(entries.unreadable.into_iter().chain(entries.unlisted));
        for file in entries.files {
            let canonical = std::fs::canonicalize(&file).unwrap_or_else(|_| file.clone());
            if rejects.as_ref() == Some(&canonical) {
                // The folder may contain the file for rejects of an earlier import.
                if is_dir {
                    continue;
                }
                return Err(Error::path(&file, "cannot be both an input and the file for rejects"));
            }
            if known.insert(canonical) {
                discovered.sources.push(source(&file));
            }
        }
    }
    if let Some(table) = &options.table {
        let table = validate_table_name(table)?;
        discovered.sources.iter_mut().for_each(|source| source.table.clone_from(&table));
    }
    discovered.apply_schema(options)?;
    if discovered.sources.is_empty() {
        return Err(no_files_error(given, &discovered.errors));
    }
    if options.table.is_none() {
        check_unique_names(&discovered.sources)?;
    }
    Ok(discovered)
}

/// Returns the table name that the user chose, or an error if it is not allowed.
pub(crate) fn validate_table_name(name: &str) -> Result<String> {
    if name.is_empty() || name.contains('\0') || names::is_reserved(name) {
        let message = format!(
            "{name:?} cannot be a table name; expected: any name except {}, {}, the empty name and names that begin \
             with sqlite_",
            names::IMPORT_LOG,
            names::PROCESSED_IDS
        );
        return Err(Error::table(name, message));
    }
    Ok(name.to_owned())
}

impl Discovered {
    fn apply_schema(&mut self, options: &ImportOptions) -> Result<()> {
        let tables = &options.schema.tables;
        let is_known = |name: &&String| self.sources.iter().any(|source| source.table == **name);
        let is_required = |name: &&String| tables.get(*name).is_some_and(|table| !table.skip);
        if let Some(name) = tables.keys().filter(is_required).find(|name| !is_known(name)) {
            let found: Vec<&str> = self.sources.iter().map(|source| source.table.as_str()).take(10).collect();
            let text =
                format!("the schema names the table {name:?}, but no file has that name; tables: {}", found.join(", "));
            return Err(Error::Options(text));
        }
        let before = self.sources.len();
        self.sources.retain(|source| tables.get(&source.table).is_none_or(|table| !table.skip));
        if self.sources.is_empty() && before > 0 {
            return Err(Error::Options("the schema skips all files".to_owned()));
        }
        Ok(())
    }
}

impl ImportOptions {
    /// Name of the table in the database.
    pub(crate) fn table_name(&self, table: &str) -> Result<String> {
        let named = self.schema.tables.get(table).and_then(|schema| schema.name.as_ref());
        named.map_or_else(|| Ok(table.to_owned()), |name| validate_table_name(name))
    }
}

fn source(path: &Path) -> Source {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let (stem, compression, is_jsonl) = classify_name(&name);
    // A file that is named as an argument may have any extension.
    let stem = match stem.rsplit_once('.') {
        Some((stem, _)) if !is_jsonl && !stem.is_empty() => stem.to_owned(),
        _ => stem,
    };
    let metadata = std::fs::metadata(path).ok();
    let is_file = metadata.as_ref().is_some_and(std::fs::Metadata::is_file);
    let bytes = metadata.filter(|_| is_file).map_or(0, |metadata| metadata.len());
    Source { path: Some(path.to_owned()), table: names::table(&stem), compression, bytes, is_file }
}

/// All files below a folder with a JSONL extension, except hidden ones, sorted by name.
fn walk(folder: &Path) -> Entries {
    let walker =
        WalkBuilder::new(folder).standard_filters(false).hidden(true).sort_by_file_name(std::ffi::OsStr::cmp).build();
    let mut entries = Entries::default();
    for entry in walker {
        match entry {
            Ok(entry) => {
                if entry.depth() > 0 && classify_name(&entry.file_name().to_string_lossy()).2 {
                    entries.add(entry.into_path());
                }
            }
            Err(error) => entries.add_error(folder, error),
        }
    }
    entries
}

fn no_files_error(given: &[PathBuf], errors: &[(PathBuf, String)]) -> Error {
    let paths: Vec<String> = given.iter().map(|path| path.display().to_string()).collect();
    let why = errors.first().map(|(path, why)| format!(" ({}: {why})", path_text(path))).unwrap_or_default();
    Error::NoInput(format!(
        "no file to load in {}{why}; of a folder, only files that end in .jsonl or .ndjson are loaded, with or without \
         .gz or .zst, except hidden ones. To load a file with another name, name the file itself",
        paths.join(", ")
    ))
}

fn check_unique_names(sources: &[Source]) -> Result<()> {
    let mut by_table: BTreeMap<String, Vec<&Source>> = BTreeMap::new();
    for source in sources {
        by_table.entry(names::folded(&source.table)).or_default().push(source);
    }
    let conflicts: Vec<String> = by_table
        .values()
        .filter(|sources| sources.len() > 1)
        .map(|sources| {
            let paths: Vec<String> = sources.iter().map(|source| source.display()).collect();
            format!("{} would both be the table {:?}", paths.join(" and "), sources[0].table)
        })
        .collect();
    if conflicts.is_empty() {
        return Ok(());
    }
    Err(Error::Options(format!("{}; --table NAME loads all files into one table, or rename one", conflicts.join("; "))))
}

/// Returns the first source of each source's table. Sources of one table are loaded as if they were one file.
///
/// Rejects tables to which the schema gives the same name.
pub(crate) fn first_files_of_tables(sources: &[Source], names: &[String]) -> Result<Vec<usize>> {
    let mut known: HashMap<String, usize> = HashMap::new();
    let mut leaders = Vec::with_capacity(names.len());
    for (index, name) in names.iter().enumerate() {
        let leader = *known.entry(names::folded(name)).or_insert(index);
        if sources[leader].table != sources[index].table {
            let other = &names[leader];
            return Err(Error::Options(format!(
                "two tables would be named {other:?} and {name:?}; rename one in the schema"
            )));
        }
        leaders.push(leader);
    }
    Ok(leaders)
}
