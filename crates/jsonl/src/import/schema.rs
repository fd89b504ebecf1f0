//! Schema files: types, names and keys that the user sets in TOML.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Deserializer};

use crate::error::{Error, Result};
use crate::types::Type;

/// Types, names and keys of tables, read from a TOML file.
///
/// ```toml
/// [tables.types]                  # the table name derived from the file name
/// name = "item_types"             # name in the database
/// primary_key = "_key"           # or several: ["year", "number"]
/// indexes = ["groupID"]
/// others = "skip"                 # keys not named below: infer (the default), skip or reject
///
/// [tables.types.columns]
/// radius = { type = "real" }      # integer, real, numeric, boolean, text or any
/// groupID = { name = "group_id" }
/// description = { skip = true }
/// "name.en" = { type = "text" }   # a key in an object that is flattened
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Schema {
    /// Tables by the name derived from the file name.
    #[serde(default)]
    pub tables: BTreeMap<String, TableSchema>,
    #[serde(skip)]
    fingerprint: Option<String>,
}

/// Settings of one table in a schema.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, expecting = "the settings of a table: write [tables.NAME]")]
#[non_exhaustive]
pub struct TableSchema {
    /// Name of the table in the database.
    pub name: Option<String>,
    /// Columns of the primary key: a name, or a list of names.
    #[serde(default, deserialize_with = "one_or_more")]
    pub primary_key: Vec<String>,
    /// Whether the file is skipped.
    #[serde(default)]
    pub skip: bool,
    /// Columns for which an index is created.
    #[serde(default)]
    pub indexes: Vec<String>,
    /// What to do with keys that `columns` does not name.
    #[serde(default)]
    pub others: OtherKeys,
    /// Columns by key. For a key in a flattened object, the keys are separated by dots.
    #[serde(default)]
    pub columns: BTreeMap<String, ColumnSchema>,
}

impl TableSchema {
    pub(crate) fn has_key(&self) -> bool {
        !self.primary_key.is_empty()
    }
}

fn one_or_more<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "expected a column's name, or a list of names")]
    enum Names {
        One(String),
        More(Vec<String>),
    }
    Ok(match Names::deserialize(deserializer)? {
        Names::One(name) => vec![name],
        Names::More(names) => names,
    })
}

/// What to do with keys that a schema does not name and that have no column in the table yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OtherKeys {
    /// Add columns for them.
    #[default]
    Infer,
    /// Skip these keys and their values.
    Skip,
    /// Reject lines that have such a key.
    Reject,
}

/// Settings of one column in a schema.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, expecting = "the settings of a column: write { type = \"integer\" }")]
#[non_exhaustive]
pub struct ColumnSchema {
    /// Type of the column. Lines with a value that does not match are rejected.
    #[serde(rename = "type")]
    pub kind: Option<Type>,
    /// Name of the column in the table.
    pub name: Option<String>,
    /// Whether the key is skipped.
    #[serde(default)]
    pub skip: bool,
}

impl Schema {
    /// Reads a schema file.
    pub fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).map_err(|error| Error::io("read the schema", path, error))?;
        let parsed: Result<Schema, _> = toml::from_str(&text);
        let mut schema = parsed.map_err(|error| Error::Schema(path.to_owned(), Arc::new(error)))?;
        schema.fingerprint = Some(blake3::hash(text.as_bytes()).to_hex().chars().take(16).collect());
        Ok(schema)
    }

    pub(crate) fn fingerprint(&self) -> &str {
        self.fingerprint.as_deref().unwrap_or("none")
    }
}
