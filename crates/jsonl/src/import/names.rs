//! Names of tables and columns: legal, predictable, and none twice.

use std::collections::HashSet;

/// The table for a file: its name with everything that is no letter, digit or underscore made one.
pub(crate) fn table(stem: &str) -> String {
    let mut name: String =
        stem.chars().map(|c| if c.is_alphanumeric() || c == '_' { c } else { '_' }).collect();
    // What SQLite and we keep for ourselves, and what would have to be quoted.
    let reserved = name.get(..7).is_some_and(|start| start.eq_ignore_ascii_case("sqlite_"));
    if name.is_empty() || reserved || name.starts_with(|c: char| c.is_numeric()) || is_reserved(&name) {
        name.insert_str(0, "t_");
    }
    name
}

/// The table that says what was loaded.
pub(crate) const IMPORT_LOG: &str = "_imports";

/// The table of a sink that says which objects became rows.
pub(crate) const PROCESSED_IDS: &str = "_processed_ids";

/// Whether a table's name is kept for one of ours.
pub(crate) fn is_reserved(name: &str) -> bool {
    name.eq_ignore_ascii_case(IMPORT_LOG) || name.eq_ignore_ascii_case(PROCESSED_IDS)
}

/// As SQLite compares names: ASCII without regard to case.
pub(crate) fn folded(name: &str) -> String {
    name.to_ascii_lowercase()
}

/// A name in quotes.
pub(crate) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// Names by which SQLite knows a row's number. No column can be added to a table under one of them.
const ROWID_NAMES: [&str; 3] = ["rowid", "oid", "_rowid_"];

/// Names that are taken.
#[derive(Clone, Debug, Default)]
pub(crate) struct NameSet(HashSet<String>);

impl NameSet {
    /// A free name for a new column: the wanted one, or with a number behind it.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables() {
        for (stem, expected) in [
            ("types", "types"),
            ("_sde", "_sde"),
            ("map-solar systems.v2", "map_solar_systems_v2"),
            ("größe", "größe"),
            ("2024", "t_2024"),
            ("sqlite_stat1", "t_sqlite_stat1"),
            ("_Imports", "t__Imports"),
            ("_processed_ids", "t__processed_ids"),
            ("", "t_"),
            ("a\"b;--", "a_b___"),
        ] {
            assert_eq!(table(stem), expected, "{stem}");
        }
    }

    #[test]
    fn columns_that_differ_only_in_case() {
        let mut names = NameSet::default();
        let columns: Vec<_> = ["ID", "id", "Id", "id_2", "", "a\0b", "rowid", "OID"]
            .iter()
            .map(|name| names.reserve(name))
            .collect();
        assert_eq!(columns, ["ID", "id_2", "Id_3", "id_2_2", "empty", "a\u{fffd}b", "rowid_2", "OID_2"]);
        assert_eq!(quoted("a\"b"), "\"a\"\"b\"");
    }
}
