//! Keys of groups, and cursors as text.
//!
//! Owns their forms, which are a contract with the Python control plane: it reads cursors that Gristmill has written,
//! and the other way round. A cursor is base64url of a JSON object with the values by which the group is sorted.

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use serde_json::{Map, Value};

use super::order::{KeyColumn, KeyKind, KeyValue};
use super::{GroupSummary, SortBy};
use crate::catalog::Algorithm;
use crate::error::{Error, Result};

/// Writes no padding, and reads it.
pub(in crate::catalog) const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::URL_SAFE,
    GeneralPurposeConfig::new().with_encode_padding(false).with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Name of the hash in a cursor, where it is hexadecimal.
const HASH_KEY: &str = "content_hash_hex";

/// Identity of a content: `<algorithm>:<hexadecimal hash>`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupKey {
    /// Algorithm of the hash.
    pub algorithm: Algorithm,
    /// Hash of the content.
    pub hash: Vec<u8>,
}

impl GroupKey {
    /// BLAKE3 hash of empty input. Empty files are not read, so their rows have no hash.
    pub fn of_empty_files() -> Self {
        GroupKey { algorithm: Algorithm::Blake3, hash: EMPTY_HASH.to_vec() }
    }

    /// Returns the hash in hexadecimal digits.
    pub fn hash_hex(&self) -> String {
        self.hash.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// As `EMPTY_HASH` of the schema.
const EMPTY_HASH: [u8; 32] = [
    0xaf, 0x13, 0x49, 0xb9, 0xf5, 0xf9, 0xa1, 0xa6, 0xa0, 0x40, 0x4d, 0xea, 0x36, 0xdc, 0xc9, 0x49, 0x9b, 0xcb, 0x25,
    0xc9, 0xad, 0xc1, 0x12, 0xb7, 0xcc, 0x9a, 0x93, 0xca, 0xe4, 0x1f, 0x32, 0x62,
];

impl fmt::Display for GroupKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.algorithm.as_str(), self.hash_hex())
    }
}

impl FromStr for GroupKey {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let key = text.split_once(':').and_then(|(algorithm, hash)| {
            let algorithm = Algorithm::parse(&algorithm.to_ascii_lowercase())?;
            Some(GroupKey { algorithm, hash: parse_hash(algorithm, hash)? })
        });
        key.ok_or_else(|| {
            let names: Vec<_> = Algorithm::ALL.iter().map(|algorithm| algorithm.as_str()).collect();
            Error::Invalid(format!(
                "the group key {text:?} is invalid: expected ALGORITHM:HASH, where ALGORITHM is one of {} and HASH has \
                 64 hexadecimal digits, 128 for sha512",
                names.join(", ")
            ))
        })
    }
}

/// Parses hexadecimal digits, upper-case or lower-case, of the algorithm's length.
fn parse_hash(algorithm: Algorithm, hex: &str) -> Option<Vec<u8>> {
    let is_hex = hex.len() == algorithm.length() * 2 && hex.bytes().all(|digit| digit.is_ascii_hexdigit());
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    is_hex.then(|| hex.as_bytes().chunks(2).map(byte).collect())?
}

/// Position after a group in an order: the values by which the group is sorted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GroupCursor {
    /// Values in the order of the columns.
    pub(super) values: Vec<KeyValue>,
}

impl GroupCursor {
    pub(super) fn after(sort: SortBy, group: &GroupSummary) -> Self {
        GroupCursor { values: sort.columns().iter().map(|column| column.value(group)).collect() }
    }

    pub(super) fn parse(sort: SortBy, text: &str) -> Result<Self> {
        decode(sort, text).ok_or_else(|| {
            Error::Invalid(format!("the cursor {text:?} is invalid: expected next_cursor of a page in the same order"))
        })
    }

    /// Returns the text of the cursor. `serde_json` writes the keys of an object sorted.
    pub(super) fn encode(&self, sort: SortBy) -> String {
        let columns = sort.columns().iter().zip(&self.values);
        let fields = columns.map(|(column, value)| match value {
            KeyValue::Number(number) => (column.name.to_owned(), Value::from(*number)),
            KeyValue::Text(text) => (column.name.to_owned(), Value::from(text.as_str())),
            KeyValue::Hash(hash) => {
                (HASH_KEY.to_owned(), Value::from(hash.iter().map(|byte| format!("{byte:02x}")).collect::<String>()))
            }
        });
        let fields: Map<String, Value> = fields.collect();
        BASE64.encode(Value::Object(fields).to_string())
    }
}

/// Requires exactly the keys of the order.
fn decode(sort: SortBy, text: &str) -> Option<GroupCursor> {
    let Value::Object(mut fields) = serde_json::from_slice(&BASE64.decode(text).ok()?).ok()? else { return None };
    let algorithm = Algorithm::parse(&fields.get("hash_algorithm")?.as_str()?.to_ascii_lowercase())?;
    let mut value = |column: &KeyColumn| {
        let value = fields.remove(if matches!(column.kind, KeyKind::Hash) { HASH_KEY } else { column.name })?;
        Some(match column.kind {
            KeyKind::Number(_) => KeyValue::Number(value.as_i64().filter(|number| *number >= 0)?),
            KeyKind::Path => KeyValue::Text(value.as_str()?.to_owned()),
            KeyKind::Algorithm => KeyValue::Text(algorithm.as_str().to_owned()),
            KeyKind::Hash => KeyValue::Hash(parse_hash(algorithm, value.as_str()?)?),
        })
    };
    let values = sort.columns().iter().map(&mut value).collect::<Option<Vec<_>>>()?;
    fields.is_empty().then_some(GroupCursor { values })
}

/// Parses the cursor of a group's files: a row id in decimal digits.
pub(super) fn file_id(text: &str) -> Result<i64> {
    let id = text.parse().ok().filter(|id| *id >= 0 && text.bytes().all(|byte| byte.is_ascii_digit()));
    id.ok_or_else(|| Error::Invalid(format!("the cursor {text:?} is invalid: expected the id of a file")))
}
