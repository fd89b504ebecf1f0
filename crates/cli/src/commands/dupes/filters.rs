//! The options of `dupes` that select groups by their files.

use std::path::PathBuf;

use clap::builder::{NonEmptyStringValueParser, PossibleValuesParser, TypedValueParser};
use gristmill_dedup::{Filter, path_test};
use gristmill_store::Store;
use gristmill_store::catalog::{FileFilter, FileType, GroupQuery, Ignored};
use jiff::Timestamp;

use crate::commands::completeness::Completeness;
use crate::commands::root_paths::select_roots;
use crate::commands::value_parsers::{nanoseconds, size, timestamp};
use crate::error::Error;

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Filters")]
pub(super) struct Filters {
    /// List only groups with at least N copies, including those in --reference folders
    #[arg(long, value_name = "N", default_value = "2", value_parser = count)]
    min_count: u64,

    /// List only files of at least this size
    #[arg(long, value_name = "SIZE", default_value = "1B", value_parser = size)]
    min_size: u64,

    /// Count only files of this root and of roots inside it, by path or name; repeatable
    #[arg(long, value_name = "ROOT")]
    root: Vec<PathBuf>,

    /// List only groups with files in several roots
    #[arg(long)]
    across_roots: bool,

    /// List only files with a copy in this folder, and none in it; a root, or a folder in one; repeatable
    #[arg(long, value_name = "FOLDER")]
    reference: Vec<PathBuf>,

    /// Count only files with the same name as copies
    #[arg(long)]
    match_names: bool,

    /// List only groups with a file whose path contains this text, in any case
    #[arg(long, value_name = "TEXT", value_parser = NonEmptyStringValueParser::new())]
    contains: Option<String>,

    /// List only groups with a file that matches, as in `scan --include`; repeatable
    #[arg(long, value_name = "PATTERN")]
    glob: Vec<String>,

    /// Match --glob without regard to case
    #[arg(long, requires = "glob")]
    ignore_case: bool,

    /// List only groups with a file that has one of these extensions, such as jpg,png
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = extension)]
    ext: Vec<String>,

    /// List only groups with a file of one of these types: image, video, audio, document, archive
    #[arg(long = "type", value_name = "TYPES", value_delimiter = ',', value_parser = file_type())]
    #[arg(hide_possible_values = true)]
    types: Vec<FileType>,

    /// List only groups with a file modified since: a date such as 2026-01-31, or a time ago such as 30d
    #[arg(long, value_name = "WHEN", value_parser = timestamp)]
    newer_than: Option<Timestamp>,

    /// List only groups with a file not modified since
    #[arg(long, value_name = "WHEN", value_parser = timestamp)]
    older_than: Option<Timestamp>,

    /// List the groups that `gristmill ignore` hides, and only those
    #[arg(long)]
    ignored: bool,
}

impl Filters {
    /// Whether any was given, so that there may be other groups.
    pub(super) fn are_given(&self) -> bool {
        // Without `..`, so that the compiler reports a new filter that is missing here.
        let Filters {
            min_count,
            min_size,
            root,
            across_roots,
            reference,
            match_names,
            contains,
            glob,
            ignore_case: _,
            ext,
            types,
            newer_than,
            older_than,
            ignored: _,
        } = self;
        *min_count > 2
            || *min_size > 1
            || !(root.is_empty() && reference.is_empty() && glob.is_empty() && ext.is_empty() && types.is_empty())
            || *across_roots
            || *match_names
            || contains.is_some()
            || newer_than.is_some()
            || older_than.is_some()
    }

    /// Whether the ignored groups are listed instead of the others.
    pub(super) fn only_ignored(&self) -> bool {
        self.ignored
    }

    /// Warns about patterns that cannot match. Whether a path exists in a root that cannot be reached is not known.
    pub(super) fn warn(&self, store: &Store, completeness: &Completeness) -> Result<(), Error> {
        let roots = store.roots().list()?;
        let is_known = roots.iter().all(|root| completeness.is_reachable(root.id));
        let paths: Vec<PathBuf> = roots.into_iter().map(|root| root.path).collect();
        for (pattern, reason) in self.as_of_scan()?.unmatchable(&paths) {
            if is_known || !pattern.starts_with('/') {
                tracing::warn!("the pattern {pattern:?} matches nothing: {reason}");
            }
        }
        Ok(())
    }

    /// Returns the filters that `scan` has too, for its checks.
    fn as_of_scan(&self) -> Result<Filter, Error> {
        let mut filter = Filter::default();
        filter.include.clone_from(&self.glob);
        filter.ignore_case = self.ignore_case;
        filter.newer_than = self.newer_than.map(nanoseconds).transpose()?;
        filter.older_than = self.older_than.map(nanoseconds).transpose()?;
        Ok(filter)
    }

    /// Adds the filters to a query.
    pub(super) fn apply(&self, store: &Store, query: GroupQuery) -> Result<GroupQuery, Error> {
        let roots = select_roots(store, &self.root)?.iter().map(|root| root.id).collect();
        let reference = self.reference.iter().map(|folder| gristmill_dedup::roots::folder(store, folder));
        Ok(query
            .min_count(self.min_count)
            .min_size(self.min_size)
            .roots(roots)
            .across_roots(self.across_roots)
            .reference(reference.collect::<Result<_, _>>()?)
            .match_names(self.match_names)
            .files(self.files(store)?)
            .ignored(if self.ignored { Ignored::Only } else { Ignored::Hidden }))
    }

    fn files(&self, store: &Store) -> Result<FileFilter, Error> {
        let as_of_scan = self.as_of_scan()?;
        as_of_scan.check()?;
        let path = match self.glob.is_empty() {
            true => None,
            false => {
                let roots = store.roots().list()?.into_iter().map(|root| root.path).collect();
                Some(path_test(&self.glob, self.ignore_case, roots)?)
            }
        };
        Ok(FileFilter::default()
            .contains(self.contains.clone())
            .extensions(self.ext.clone())
            .types(self.types.clone())
            .modified_since(as_of_scan.newer_than)
            .modified_before(as_of_scan.older_than)
            .path(path))
    }
}

fn count(text: &str) -> Result<u64, String> {
    let count = text.parse().ok().filter(|count| *count >= 2);
    count.ok_or_else(|| "expected: a whole number of at least 2".to_owned())
}

fn extension(text: &str) -> Result<String, String> {
    let name = text.trim_start_matches('.');
    let is_valid = !name.is_empty() && !name.contains(['.', '/']);
    is_valid
        .then(|| name.to_owned())
        .ok_or_else(|| "expected: an extension such as jpg; see --glob for others".to_owned())
}

fn file_type() -> impl TypedValueParser<Value = FileType> {
    let names = FileType::ALL.iter().map(|kind| kind.as_str());
    // The list of possible values contains only types.
    PossibleValuesParser::new(names).map(|name| FileType::parse(&name).unwrap_or(FileType::Image))
}
