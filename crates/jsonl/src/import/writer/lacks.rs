//! What keeps a table from being made: no key, none of the columns, no column at all, no valid line.

use super::super::key::NAMES;
use super::super::loading::Loading;
use super::super::options::Target;
use super::super::schema::TableSchema;
use super::super::selection;
use super::{Writer, shown};

impl Writer<'_> {
    /// Whether a new table would be without the key that it has to have. One name for the keys of several tables is for
    /// those that have it.
    pub(super) fn lacks_key(&self, loading: &Loading, rows: u64) -> bool {
        let (table, watch) = (&loading.table, &loading.table.watch);
        let is_only_table = self.leaders.iter().all(|leader| *leader == self.leaders[0]);
        let is_for_this = is_only_table || self.schema(loading.index).is_some_and(TableSchema::has_key);
        !table.is_old
            && *self.target != Target::ValidateOnly
            && rows > 0
            && watch.columns.is_empty()
            && table.plan.columns().is_empty()
            && (watch.upserts || (!watch.wanted.is_empty() && is_for_this))
    }

    /// Whether the rows would have none of the columns that were asked for. Of several new tables, those that have one are
    /// meant.
    pub(super) fn lacks_columns(&self, loading: &Loading) -> bool {
        let layout = &loading.table.layout;
        let is_only_table = self.leaders.iter().all(|leader| *leader == self.leaders[0]);
        let is_meant = is_only_table || loading.table.is_old || loading.is_replaced;
        !self.options.columns.is_empty()
            && *self.target != Target::ValidateOnly
            && loading.has_objects
            && is_meant
            && !selection::is_in_lines(layout, self.options, self.schema(loading.index))
    }

    /// Whether there are rows, but no column to make a table with.
    pub(super) fn lacks_table(&self, loading: &Loading, rows: u64) -> bool {
        *self.target != Target::ValidateOnly
            && rows > 0
            && self.options.columns.is_empty()
            && loading.table.layout.columns.is_empty()
    }
}

pub(super) fn no_key(wanted: &[String]) -> String {
    match wanted {
        [] => format!(
            "no line has a key {}, so --upsert cannot know which rows are the same; name the key with --primary-key",
            NAMES.join(", ").replace(", id", " or id")
        ),
        wanted => format!(
            "its lines do not have the primary key {}; name keys that they have with --primary-key",
            shown(wanted)
        ),
    }
}

pub(super) fn no_columns(wanted: &[String]) -> String {
    format!(
        "no line has a key that --columns names: {}; name keys that the lines have, in the same case",
        shown(wanted)
    )
}

pub(super) fn no_valid_line(rejected: u64) -> String {
    format!("no valid line ({rejected} of {rejected} rejected); first reasons below")
}
