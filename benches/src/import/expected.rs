//! The expected contents of a database: for every table the number of rows, the keys and the values of each column.
//!
//! Owns the digests of tables and their comparison. The digest of a column binds each value to the key of its row, so
//! that a wrong column can be named. It is computed from the files once and stored beside them.

use std::{borrow::Cow, collections::BTreeMap, fmt::Write, fs, io, path::Path};

use rayon::prelude::*;
use serde_json::value::RawValue;

use super::{
    dataset::FILES,
    digest::{self, NestedComparison},
};
use crate::random::mix;

/// Digest of a table under one comparison of nested values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Digest {
    pub(super) rows: u64,
    /// Sum of the integer keys.
    pub(super) key_sum: i64,
    pub(super) columns: BTreeMap<String, u64>,
}

impl Digest {
    /// Adds the values of one row, without those that are null.
    pub(super) fn row<'a>(
        &mut self,
        key: u64,
        integer_key: Option<i64>,
        values: impl IntoIterator<Item = (&'a str, u64)>,
    ) {
        self.rows += 1;
        self.key_sum = self.key_sum.wrapping_add(integer_key.unwrap_or(0));
        for (column, value) in values {
            self.add(column, mix(key ^ mix(value)));
        }
    }

    fn add(&mut self, column: &str, value: u64) {
        match self.columns.get_mut(column) {
            Some(sum) => *sum = sum.wrapping_add(value),
            None => drop(self.columns.insert(column.to_owned(), value)),
        }
    }

    fn merged(mut self, other: &Digest) -> Digest {
        self.rows += other.rows;
        self.key_sum = self.key_sum.wrapping_add(other.key_sum);
        other.columns.iter().for_each(|(column, value)| self.add(column, *value));
        self
    }

    /// Describes the first difference from the expected digest. Returns None if they are equal.
    pub(super) fn mistake(&self, expected: &Digest) -> Option<String> {
        if self.rows != expected.rows {
            return Some(format!("{} rows instead of {}", self.rows, expected.rows));
        }
        if self.key_sum != expected.key_sum {
            return Some(format!("keys add up to {} instead of {}", self.key_sum, expected.key_sum));
        }
        let names: std::collections::BTreeSet<_> = self.columns.keys().chain(expected.columns.keys()).collect();
        let wrong: Vec<&str> = names
            .into_iter()
            .filter(|name| self.columns.get(*name) != expected.columns.get(*name))
            .map(String::as_str)
            .collect();
        (!wrong.is_empty()).then(|| format!("other values in {}", wrong.join(", ")))
    }
}

/// Digests of one table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Table {
    pub(super) by_text: Digest,
    pub(super) by_value: Digest,
}

/// Expected digests by table name.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Expected {
    pub(super) tables: BTreeMap<String, Table>,
}

/// Minimum size of a block of lines that one thread digests.
const BLOCK_BYTES: usize = 8 << 20;

impl Expected {
    /// Computes the digests of the files in a folder.
    pub(super) fn read(root: &Path) -> io::Result<Expected> {
        let mut expected = Expected::default();
        for file in FILES.iter() {
            let text = fs::read_to_string(root.join(format!("{}.jsonl", file.name)))?;
            let blocks = blocks(&text).into_par_iter().map(digest_lines);
            let table = blocks.try_reduce(Table::default, |a, b| {
                Ok(Table { by_text: a.by_text.merged(&b.by_text), by_value: a.by_value.merged(&b.by_value) })
            })?;
            expected.tables.insert(file.name.to_owned(), table);
        }
        Ok(expected)
    }

    pub(super) fn rows(&self) -> u64 {
        self.tables.values().map(|table| table.by_text.rows).sum()
    }

    /// Writes a line for each table with rows and keys, followed by a line for each of its columns.
    pub(super) fn to_text(&self) -> String {
        let mut text = String::new();
        for (name, Table { by_text, by_value }) in &self.tables {
            let _ = writeln!(text, "{name} {} {}", by_text.rows, by_text.key_sum);
            for (column, digest) in &by_text.columns {
                let _ = writeln!(text, " {column} {digest} {}", by_value.columns[column]);
            }
        }
        text
    }

    pub(super) fn from_text(text: &str) -> Option<Expected> {
        let mut expected = Expected::default();
        let mut table = String::new();
        for line in text.lines() {
            let mut words = line.trim_start().split(' ');
            let (name, mut number) = (words.next()?.to_owned(), || words.next()?.parse::<i128>().ok());
            let (first, second) = (number()?, number()?);
            if line.starts_with(' ') {
                let Table { by_text, by_value } = expected.tables.get_mut(&table)?;
                by_text.columns.insert(name.clone(), first.try_into().ok()?);
                by_value.columns.insert(name, second.try_into().ok()?);
            } else {
                let keys =
                    Digest { rows: first.try_into().ok()?, key_sum: second.try_into().ok()?, columns: BTreeMap::new() };
                expected.tables.insert(name.clone(), Table { by_text: keys.clone(), by_value: keys });
                table = name;
            }
        }
        Some(expected)
    }
}

/// Splits the text at line ends.
fn blocks(text: &str) -> Vec<&str> {
    let mut blocks = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let line_end = rest.as_bytes().iter().skip(BLOCK_BYTES).position(|byte| *byte == b'\n');
        let (block, more) = rest.split_at(line_end.map_or(rest.len(), |at| BLOCK_BYTES + at + 1));
        blocks.push(block);
        rest = more;
    }
    blocks
}

fn digest_lines(lines: &str) -> io::Result<Table> {
    let mut table = Table::default();
    for line in lines.lines() {
        let object: BTreeMap<Cow<'_, str>, &RawValue> = serde_json::from_str(line)?;
        let json = object.get("_key").map_or("null", |key| key.get());
        let key = digest::of_json(json, NestedComparison::Value)?.unwrap_or(0);
        for (digest, how) in
            [(&mut table.by_text, NestedComparison::Text), (&mut table.by_value, NestedComparison::Value)]
        {
            let mut values = Vec::with_capacity(object.len());
            for (column, value) in &object {
                if let Some(value) = digest::of_json(value.get(), how)? {
                    values.push((column.as_ref(), value));
                }
            }
            digest.row(key, json.parse().ok(), values);
        }
    }
    Ok(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(lines: &str) -> Digest {
        digest_lines(lines).unwrap().by_value
    }

    #[track_caller]
    fn check(lines: &str, mistake: Option<&str>) {
        let expected = digest("{\"_key\":1,\"a\":1,\"b\":[2]}\n{\"_key\":2,\"a\":2,\"b\":[1]}\n");
        assert_eq!(digest(lines).mistake(&expected).as_deref(), mistake, "{lines}");
    }

    #[test]
    fn mistake_names_rows_keys_or_columns() {
        check("{\"_key\":2,\"b\":[1],\"a\":2.0}\n{\"a\":true,\"_key\":1,\"b\":[2],\"c\":null}\n", None);
        check("{\"_key\":1,\"a\":1,\"b\":[2]}\n", Some("1 rows instead of 2"));
        check(
            "{\"_key\":1,\"a\":1,\"b\":[2]}\n{\"_key\":3,\"a\":2,\"b\":[1]}\n",
            Some("keys add up to 4 instead of 3"),
        );
        check("{\"_key\":1,\"a\":2,\"b\":[2]}\n{\"_key\":2,\"a\":1,\"b\":[1],\"c\":0}\n", Some("other values in a, c"));
    }

    #[test]
    fn expected_digests_survive_a_round_trip_as_text() {
        let table = digest_lines("{\"_key\":-1,\"a\":\"x\",\"b\":{ }}\n").unwrap();
        let expected = Expected { tables: [("t".to_owned(), table), ("u".to_owned(), Table::default())].into() };
        assert_eq!(Expected::from_text(&expected.to_text()), Some(expected));
        assert_eq!(Expected::from_text("t one 2"), None);
    }

    #[test]
    fn blocks_end_at_line_ends_and_cover_the_text() {
        let line = "x".repeat(BLOCK_BYTES / 3) + "\n";
        let text = line.repeat(7) + "last line";
        let blocks = blocks(&text);
        assert_eq!(blocks.concat(), text);
        assert!(blocks.len() > 1 && blocks[..blocks.len() - 1].iter().all(|block| block.ends_with('\n')));
    }
}
