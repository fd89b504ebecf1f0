//! Random rows are imported, and SQL returns the same values.

#[macro_use]
mod common;

use std::collections::BTreeMap;

use common::Fixture;
use gristmill_jsonl::import::options::ImportOptions;
use gristmill_jsonl::{Reader, Sink, Value as Read};
use proptest::prelude::*;
use rusqlite::types::ValueRef;
use serde_json::{Number, Value};

fn scalar() -> impl Strategy<Value = Value> {
    prop_oneof![
        2 => Just(Value::Null),
        2 => any::<bool>().prop_map(Value::Bool),
        4 => any::<i64>().prop_map(Value::from),
        4 => (-1_000_i64..1_000).prop_map(Value::from),
        4 => any::<f64>().prop_filter_map("JSON numbers are finite", |real| Number::from_f64(real).map(Value::Number)),
        1 => Just(Value::from(-0.0)),
        1 => any::<u64>().prop_map(Value::from),
        6 => any::<String>().prop_map(Value::String),
    ]
}

fn value() -> impl Strategy<Value = Value> {
    scalar().prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::Array),
            prop::collection::btree_map("[a-c]{1,2}", inner, 0..4)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

type Row = BTreeMap<String, Value>;

/// A row with few different keys, so that lines have different types and column names collide.
fn row() -> impl Strategy<Value = Row> {
    prop::collection::btree_map("_key|id|a|A|b|c|\\PC{0,3}", value(), 0..6)
}

fn text(rows: &[Row]) -> String {
    rows.iter().map(|row| serde_json::to_string(row).unwrap() + "\n").collect()
}

/// Whether SQLite returns the value in the format of the column's type.
fn is_same(value: &Value, found: ValueRef<'_>, kind: &str) -> bool {
    match (value, found) {
        (Value::Null, ValueRef::Null) => true,
        (Value::Bool(value), ValueRef::Integer(found)) => i64::from(*value) == found && kind != "TEXT",
        (Value::Bool(value), ValueRef::Real(found)) => f64::from(u8::from(*value)) == found && kind == "REAL",
        (Value::Number(value), ValueRef::Integer(found)) => value.as_i64() == Some(found),
        (Value::Number(value), ValueRef::Real(found)) => {
            // Whole numbers in a column of reals are equal reals.
            value.as_f64().map(f64::to_bits) == Some(found.to_bits())
                && value.as_i64().is_none_or(|whole| whole as f64 as i128 == i128::from(whole))
        }
        (Value::String(value), ValueRef::Text(found)) => value.as_bytes() == found,
        // A text column has all values as they are written.
        (value, ValueRef::Text(found)) => kind == "TEXT" && value.to_string().as_bytes() == found,
        _ => false,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn imported_values_are_equal_to_the_input(rows in prop::collection::vec(row(), 1..30), block in 1_usize..2_000, workers in 1_usize..4) {
        let fixture = Fixture::with(&[("t.jsonl", &text(&rows))]);
        let summary = fixture.load(&options! { block, workers, ..ImportOptions::default() });
        let columns = &summary.files[0].columns;
        if columns.is_empty() {
            prop_assert!(rows.iter().all(BTreeMap::is_empty));
            return Ok(());
        }
        prop_assert_eq!((summary.rows, summary.rejected), (rows.len() as u64, 0));
        // Keys become columns in the order of their first occurrence, so the names are predictable.
        let mut keys: Vec<&String> = Vec::new();
        for key in rows.iter().flat_map(BTreeMap::keys) {
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
        prop_assert_eq!(keys.len(), columns.len());
        let conn = fixture.open();
        let mut statement = conn.prepare("SELECT * FROM t NOT INDEXED ORDER BY rowid").unwrap();
        let mut found = statement.query([]).unwrap();
        for row in &rows {
            let found = found.next().unwrap().unwrap();
            for (index, key) in keys.iter().enumerate() {
                let (value, cell) = (row.get(*key).unwrap_or(&Value::Null), found.get_ref(index).unwrap());
                let kind = columns[index].1.as_str();
                prop_assert!(is_same(value, cell, kind), "{key}: {value} is {cell:?} in {kind}");
            }
        }
        prop_assert!(found.next().unwrap().is_none());
    }

    /// Checks dynamic and typed rows.
    #[test]
    fn reader_returns_the_input_values(rows in prop::collection::vec(row(), 0..30)) {
        let text = text(&rows);
        let typed: Vec<Row> = Reader::new(text.as_bytes()).typed().collect::<Result<_, _>>().unwrap();
        prop_assert_eq!(&typed, &rows);
        let mut reader = Reader::new(text.as_bytes());
        for (expected, line) in rows.iter().zip(1..) {
            let row = reader.next_row().unwrap().unwrap();
            prop_assert_eq!(row.line(), line);
            prop_assert_eq!(row.iter().count(), expected.len());
            for (key, value) in row.iter() {
                let same = match (&expected[key], value) {
                    (Value::Null, Read::Null) => true,
                    (Value::Bool(expected), Read::Bool(value)) => *expected == value,
                    (Value::Number(expected), Read::Int(value)) => expected.as_i64() == Some(value),
                    (Value::Number(expected), Read::Real(value)) => expected.as_f64() == Some(value),
                    (Value::Number(expected), Read::Decimal(value)) => expected.to_string().as_str() == value,
                    (Value::String(expected), Read::Text(value)) => expected == value,
                    (expected @ (Value::Array(_) | Value::Object(_)), Read::Json(value)) => expected.to_string().as_str() == value,
                    _ => false,
                };
                prop_assert!(same, "{}: {} is {:?}", key, expected[key], value);
            }
        }
        prop_assert!(reader.next_row().is_none());
    }
}

proptest! {
    // Fewer cases, because each batch calls fsync.
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// Appends singly, in batches and with several sinks in turn: each key has one column, and values are unchanged.
    #[test]
    fn sink_stores_every_value_unchanged(batches in prop::collection::vec((any::<bool>(), prop::collection::vec(row(), 1..8)), 1..8)) {
        let fixture = Fixture::new();
        let mut sink = Sink::open(&fixture.database(), "t").unwrap();
        let first = Row::from([("first".to_owned(), Value::from(1))]);
        sink.append(&[serde_json::to_string(&first).unwrap().as_bytes()]).unwrap();
        for (again, rows) in &batches {
            if *again {
                sink = Sink::open(&fixture.database(), "t").unwrap();
            }
            let texts: Vec<String> = rows.iter().map(|row| serde_json::to_string(row).unwrap()).collect();
            let texts: Vec<&[u8]> = texts.iter().map(|text| text.as_bytes()).collect();
            prop_assert!(sink.append(&texts).unwrap().iter().all(Result::is_ok));
        }
        drop(sink);
        fixture.check_integrity();
        let rows: Vec<&Row> = std::iter::once(&first).chain(batches.iter().flat_map(|(_, rows)| rows)).collect();
        let mut keys: Vec<&String> = Vec::new();
        for key in rows.iter().flat_map(|row| row.keys()) {
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
        let conn = fixture.open();
        let mut statement = conn.prepare("SELECT * FROM t ORDER BY rowid").unwrap();
        prop_assert_eq!(statement.column_count(), keys.len());
        let mut found = statement.query([]).unwrap();
        for row in rows {
            let found = found.next().unwrap().unwrap();
            for (index, key) in keys.iter().enumerate() {
                let (value, cell) = (row.get(*key).unwrap_or(&Value::Null), found.get_ref(index).unwrap());
                let is_decimal = matches!(value, Value::Number(number) if number.as_i64().is_none() && number.is_u64());
                let kind = if value.is_object() || value.is_array() || is_decimal { "TEXT" } else { "" };
                prop_assert!(is_same(value, cell, kind), "{key}: {value} is {cell:?}");
            }
        }
        prop_assert!(found.next().unwrap().is_none());
    }
}
