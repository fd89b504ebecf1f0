//! What the user fixes beforehand, in a TOML file.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Deserializer};

use crate::error::{Error, Result};
use crate::types::Type;

/// What is fixed of some tables.
///
/// ```toml
/// [tables.types]                  # the table as the file's name makes it
/// name = "item_types"             # another name
/// primary_key = "_key"           # or several: ["year", "number"]
/// indexes = ["groupID"]
/// others = "skip"                 # keys not named below: infer (the default), skip or reject
///
/// [tables.types.columns]
/// radius = { type = "real" }      # integer, real, numeric, boolean, text or any
/// groupID = { name = "group_id" }
/// description = { skip = true }
/// "name.en" = { type = "text" }   # within an object that is spread
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Schema {
    /// By the table's name.
    #[serde(default)]
    pub tables: BTreeMap<String, TableSchema>,
    #[serde(skip)]
    fingerprint: Option<String>,
}

/// What is fixed of one table.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, expecting = "what is fixed of a table: write [tables.NAME]")]
pub struct TableSchema {
    /// Another name.
    pub name: Option<String>,
    /// The columns of the primary key: a name, or a list of names.
    #[serde(default, deserialize_with = "one_or_more")]
    pub primary_key: Vec<String>,
    /// Leave the file out.
    #[serde(default)]
    pub skip: bool,
    /// Columns to make an index for.
    #[serde(default)]
    pub indexes: Vec<String>,
    /// What becomes of keys that are not named.
    #[serde(default)]
    pub others: OtherKeys,
    /// By the key; within an object that is spread, by the keys with dots between them.
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

/// What becomes of keys that a schema does not name, and for which the table has no column yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OtherKeys {
    /// They become columns all the same.
    #[default]
    Infer,
    /// They are left out.
    Skip,
    /// Their line is rejected.
    Reject,
}

/// What is fixed of one column.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, expecting = "what is fixed of a column: write { type = \"integer\" }")]
pub struct ColumnSchema {
    /// Its type; a value that does not fit costs its line.
    #[serde(rename = "type")]
    pub kind: Option<Type>,
    /// Another name.
    pub name: Option<String>,
    /// Leave it out.
    #[serde(default)]
    pub skip: bool,
}

impl Schema {
    /// Reads a file.
    pub fn read(path: &Path) -> Result<Self> {
        let text =
            std::fs::read_to_string(path).map_err(|error| Error::io("read the schema", path, &error))?;
        let parsed: std::result::Result<Schema, _> = toml::from_str(&text);
        let mut schema = parsed.map_err(|error| {
            let why = error.to_string();
            Error::Invalid(format!("the schema {} is not right: {}", path.display(), why.trim_end()))
        })?;
        schema.fingerprint = Some(blake3::hash(text.as_bytes()).to_hex().chars().take(16).collect());
        Ok(schema)
    }

    pub(crate) fn fingerprint(&self) -> &str {
        self.fingerprint.as_deref().unwrap_or("none")
    }
}
