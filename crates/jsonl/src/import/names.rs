//! Names of tables and columns: valid, predictable and unique.

use std::collections::HashSet;

/// Table name for a file name. Characters other than letters, digits and underscores become underscores.
pub(crate) fn table(stem: &str) -> String {
    let mut name: String = stem.chars().map(|c| if c.is_alphanumeric() || c == '_' { c } else { '_' }).collect();
    // Prefixes reserved names and names that would need quotation marks.
    if name.is_empty() || name.starts_with(|c: char| c.is_numeric()) || is_reserved(&name) {
        name.insert_str(0, "t_");
    }
    name
}

pub(crate) const IMPORT_LOG: &str = "_imports";

/// Table in which a sink records the ids that became rows.
pub(crate) const PROCESSED_IDS: &str = "_processed_ids";

/// Whether a table name is reserved for tables of SQLite, of imports or of sinks.
pub(crate) fn is_reserved(name: &str) -> bool {
    let is_of_sqlite = name.get(..7).is_some_and(|start| start.eq_ignore_ascii_case("sqlite_"));
    is_of_sqlite || name.eq_ignore_ascii_case(IMPORT_LOG) || name.eq_ignore_ascii_case(PROCESSED_IDS)
}

/// Name in the form in which SQLite compares names: ASCII letters in lower case.
pub(crate) fn folded(name: &str) -> String {
    name.to_ascii_lowercase()
}

/// Names of the rowid. No column with one of these names can be added to a table.
const ROWID_NAMES: [&str; 3] = ["rowid", "oid", "_rowid_"];

/// Set of names that are in use.
#[derive(Clone, Debug, Default)]
pub(crate) struct NameSet(HashSet<String>);

impl NameSet {
    /// Reserves a unique name for a new column: the preferred one, or the preferred one with a number.
    pub(crate) fn reserve(&mut self, preferred: &str) -> String {
        let mut name = preferred.replace('\0', "\u{fffd}");
        if name.is_empty() {
            "empty".clone_into(&mut name);
        }
        if !ROWID_NAMES.contains(&&*folded(&name)) && self.0.insert(folded(&name)) {
            return name;
        }
        let numbered = (2_u64..).map(|number| format!("{name}_{number}"));
        numbered.into_iter().find(|name| self.0.insert(folded(name))).unwrap_or(name)
    }

    pub(crate) fn add(&mut self, name: &str) {
        self.0.insert(folded(name));
    }
}
