//! Reasons not to create a table: no key, no selected column, no column at all, no valid line.

use super::super::file_load::FileLoad;
use super::super::key::DEFAULT_KEY_NAMES;
use super::super::options::Target;
use super::super::schema::TableSchema;
use super::super::selection;
use super::{Writer, quoted_list};

impl Writer<'_> {
    /// Whether a new table lacks its required key. With several tables, `--primary-key` applies to those that have it.
    pub(super) fn lacks_key(&self, load: &FileLoad, rows: u64) -> bool {
        let (table, tracker) = (&load.table, &load.table.tracker);
        let is_only_table = self.first_files.iter().all(|leader| *leader == self.first_files[0]);
        let key_applies = is_only_table || self.schema(load.file.index).is_some_and(TableSchema::has_key);
        !table.is_old
            && *self.target != Target::ValidateOnly
            && rows > 0
            && tracker.columns.is_empty()
            && table.plan.columns().is_empty()
            && (tracker.upserts || (!tracker.requested.is_empty() && key_applies))
    }

    /// Whether the rows have none of the columns of `--columns`. Of several new tables, only those that have one count.
    pub(super) fn lacks_columns(&self, load: &FileLoad) -> bool {
        let layout = &load.table.layout;
        let is_only_table = self.first_files.iter().all(|leader| *leader == self.first_files[0]);
        let columns_apply = is_only_table || load.table.is_old || load.is_replaced;
        !self.options.columns.is_empty()
            && *self.target != Target::ValidateOnly
            && load.has_objects
            && columns_apply
            && !selection::is_in_lines(layout, self.options, self.schema(load.file.index))
    }

    /// Whether there are rows but no columns.
    pub(super) fn lacks_table(&self, load: &FileLoad, rows: u64) -> bool {
        *self.target != Target::ValidateOnly
            && rows > 0
            && self.options.columns.is_empty()
            && load.table.layout.columns.is_empty()
    }
}

pub(super) fn no_key_message(requested: &[String]) -> String {
    match requested {
        [] => format!(
            "no line has a key {}, so --upsert cannot know which rows are the same; name the key with --primary-key",
            DEFAULT_KEY_NAMES.join(", ").replace(", id", " or id")
        ),
        requested => format!(
            "its lines do not have the primary key {}; name keys that they have with --primary-key",
            quoted_list(requested)
        ),
    }
}

pub(super) fn no_columns_message(requested: &[String]) -> String {
    format!(
        "no line has a key that --columns names: {}; name keys that the lines have, in the same case",
        quoted_list(requested)
    )
}

pub(super) fn no_valid_line_message(rejected: u64) -> String {
    format!("no valid line ({rejected} of {rejected} rejected); first reasons below")
}
