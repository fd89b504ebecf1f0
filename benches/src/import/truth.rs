//! What is true of a folder: for every table how many rows, which keys, and what is in each column.
//!
//! Owns the digests of tables and the comparison of two. A column's digest binds each value to its row's key, so that a
//! wrong column can be named. Read from the files once, then kept beside them.

use std::{borrow::Cow, collections::BTreeMap, fmt::Write, fs, io, path::Path};

use rayon::prelude::*;
use serde_json::value::RawValue;

use super::{
    catalog::FILES,
    digest::{self, Strictness},
};
use crate::random::mixed;

/// What a table comes to, under one strictness.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Digest {
    pub(super) rows: u64,
    /// Of the integer keys.
    pub(super) key_sum: i64,
    pub(super) columns: BTreeMap<String, u64>,
}

impl Digest {
    /// One row's values, null ones left out.
    pub(super) fn row<'a>(
        &mut self,
        key: u64,
        whole_key: Option<i64>,
        values: impl IntoIterator<Item = (&'a str, u64)>,
    ) {
        self.rows += 1;
        self.key_sum = self.key_sum.wrapping_add(whole_key.unwrap_or(0));
        for (column, value) in values {
            self.add(column, mixed(key ^ mixed(value)));
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

    /// What is wrong with it, in words. Nothing, when it is the true one.
    pub(super) fn mistake(&self, truth: &Digest) -> Option<String> {
        if self.rows != truth.rows {
            return Some(format!("{} rows instead of {}", self.rows, truth.rows));
        }
        if self.key_sum != truth.key_sum {
            return Some(format!("keys add up to {} instead of {}", self.key_sum, truth.key_sum));
        }
        let names: std::collections::BTreeSet<_> = self.columns.keys().chain(truth.columns.keys()).collect();
        let wrong: Vec<&str> = names
            .into_iter()
            .filter(|name| self.columns.get(*name) != truth.columns.get(*name))
            .map(String::as_str)
            .collect();
        (!wrong.is_empty()).then(|| format!("other values in {}", wrong.join(", ")))
    }
}

/// A table's digests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Table {
    pub(super) written: Digest,
    pub(super) meant: Digest,
}

/// By table.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Truth {
    pub(super) tables: BTreeMap<String, Table>,
}

/// How much of a file is read at a time.
const PIECE: usize = 8 << 20;

impl Truth {
    /// What the files of a folder say.
    pub(super) fn read(root: &Path) -> io::Result<Truth> {
        let mut truth = Truth::default();
        for file in &FILES {
            let text = fs::read_to_string(root.join(format!("{}.jsonl", file.name)))?;
            let pieces = pieces(&text).into_par_iter().map(of_lines);
            let table = pieces.try_reduce(Table::default, |a, b| {
                Ok(Table { written: a.written.merged(&b.written), meant: a.meant.merged(&b.meant) })
            })?;
            truth.tables.insert(file.name.to_owned(), table);
        }
        Ok(truth)
    }

    pub(super) fn rows(&self) -> u64 {
        self.tables.values().map(|table| table.written.rows).sum()
    }

    /// A line for each table, with rows and keys, and behind it one for each of its columns.
    pub(super) fn to_text(&self) -> String {
        let mut text = String::new();
        for (name, Table { written, meant }) in &self.tables {
            let _ = writeln!(text, "{name} {} {}", written.rows, written.key_sum);
            for (column, digest) in &written.columns {
                let _ = writeln!(text, " {column} {digest} {}", meant.columns[column]);
            }
        }
        text
    }

    pub(super) fn from_text(text: &str) -> Option<Truth> {
        let mut truth = Truth::default();
        let mut table = String::new();
        for line in text.lines() {
            let mut words = line.trim_start().split(' ');
            let (name, mut number) = (words.next()?.to_owned(), || words.next()?.parse::<i128>().ok());
            let (first, second) = (number()?, number()?);
            if line.starts_with(' ') {
                let Table { written, meant } = truth.tables.get_mut(&table)?;
                written.columns.insert(name.clone(), first.try_into().ok()?);
                meant.columns.insert(name, second.try_into().ok()?);
            } else {
                let keys = Digest {
                    rows: first.try_into().ok()?,
                    key_sum: second.try_into().ok()?,
                    columns: BTreeMap::new(),
                };
                truth.tables.insert(name.clone(), Table { written: keys.clone(), meant: keys });
                table = name;
            }
        }
        Some(truth)
    }
}

/// Cut at ends of lines.
fn pieces(text: &str) -> Vec<&str> {
    let mut pieces = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let behind = rest.as_bytes().iter().skip(PIECE).position(|byte| *byte == b'\n');
        let (piece, more) = rest.split_at(behind.map_or(rest.len(), |at| PIECE + at + 1));
        pieces.push(piece);
        rest = more;
    }
    pieces
}

fn of_lines(lines: &str) -> io::Result<Table> {
    let mut table = Table::default();
    for line in lines.lines() {
        let object: BTreeMap<Cow<'_, str>, &RawValue> = serde_json::from_str(line)?;
        let json = object.get("_key").map_or("null", |key| key.get());
        let key = digest::of_json(json, Strictness::Meant)?.unwrap_or(0);
        for (digest, how) in
            [(&mut table.written, Strictness::Written), (&mut table.meant, Strictness::Meant)]
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
        of_lines(lines).unwrap().meant
    }

    #[track_caller]
    fn check(lines: &str, mistake: Option<&str>) {
        let truth = digest("{\"_key\":1,\"a\":1,\"b\":[2]}\n{\"_key\":2,\"a\":2,\"b\":[1]}\n");
        assert_eq!(digest(lines).mistake(&truth).as_deref(), mistake, "{lines}");
    }

    #[test]
    fn tables_are_compared_column_by_column() {
        check("{\"_key\":2,\"b\":[1],\"a\":2.0}\n{\"a\":true,\"_key\":1,\"b\":[2],\"c\":null}\n", None);
        check("{\"_key\":1,\"a\":1,\"b\":[2]}\n", Some("1 rows instead of 2"));
        check(
            "{\"_key\":1,\"a\":1,\"b\":[2]}\n{\"_key\":3,\"a\":2,\"b\":[1]}\n",
            Some("keys add up to 4 instead of 3"),
        );
        check(
            "{\"_key\":1,\"a\":2,\"b\":[2]}\n{\"_key\":2,\"a\":1,\"b\":[1],\"c\":0}\n",
            Some("other values in a, c"),
        );
    }

    #[test]
    fn the_truth_survives_its_note() {
        let table = of_lines("{\"_key\":-1,\"a\":\"x\",\"b\":{ }}\n").unwrap();
        let truth = Truth { tables: [("t".to_owned(), table), ("u".to_owned(), Table::default())].into() };
        assert_eq!(Truth::from_text(&truth.to_text()), Some(truth));
        assert_eq!(Truth::from_text("t one 2"), None);
    }

    #[test]
    fn pieces_end_with_lines_and_lose_nothing() {
        let line = "x".repeat(PIECE / 3) + "\n";
        let text = line.repeat(7) + "the last";
        let pieces = pieces(&text);
        assert_eq!(pieces.concat(), text);
        assert!(pieces.len() > 1 && pieces[..pieces.len() - 1].iter().all(|piece| piece.ends_with('\n')));
    }
}
