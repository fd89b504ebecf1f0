//! Inference: rows of all kinds of values are loaded, in many small blocks, and each value comes out of the database as it
//! went in, whatever the type is that its column got.

#![no_main]

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

use gristmill_fuzz::{is_halfway, row};
use gristmill_jsonl::import::control::Control;
use gristmill_jsonl::import::import;
use gristmill_jsonl::import::options::{Options, Target};
use gristmill_jsonl::__fuzz::{Member, Value};
use libfuzzer_sys::fuzz_target;
use rusqlite::Connection;
use rusqlite::types::ValueRef;
use tempfile::TempDir;

/// In memory where there is such a place: it is written anew each time.
static PLACE: LazyLock<TempDir> = LazyLock::new(|| {
    let builder = || tempfile::Builder::new().prefix("gristmill-fuzz-").to_owned();
    let shared = Path::new("/dev/shm");
    builder().tempdir_in(shared).or_else(|_| builder().tempdir()).expect("a folder")
});

const KEYS: [&str; 8] = ["_key", "id", "a", "A", "b", "a_b", "größe", "quo\\\"te"];

fuzz_target!(|data: &[u8]| {
    let [block, flatten, recipe @ ..] = data else { return };
    let lines = Baker { recipe, text: String::new() }.bake();
    let (flatten, exact_numbers) = (usize::from(flatten % 3), flatten & 128 == 0);
    let expected: Vec<Option<Vec<Member>>> =
        lines.lines().filter(|line| !line.is_empty()).map(|line| row(line, flatten)).collect();
    let (file, database): (PathBuf, PathBuf) = (PLACE.path().join("t.jsonl"), PLACE.path().join("t.db"));
    let _ = std::fs::remove_file(&database);
    std::fs::write(&file, &lines).expect("a file");
    let block = usize::from(*block) * 8 + 1;
    let options = Options { workers: 1, block, flatten, exact_numbers, ..Options::default() };
    let target = Target::Database(database.clone());
    let summary =
        import(&[file], &target, &options, &Arc::new(Control::default())).expect("it can be loaded");
    let good: Vec<&Vec<Member>> = expected.iter().flatten().collect();
    assert_eq!(summary.rejected, (expected.len() - good.len()) as u64, "{:?}", summary.examples);

    // Columns come in the order in which their keys were first seen.
    let mut columns: Vec<&Vec<String>> = Vec::new();
    for (path, _) in good.iter().copied().flatten() {
        if !columns.contains(&path) {
            columns.push(path);
        }
    }
    assert_eq!(summary.files[0].columns.len(), columns.len(), "{:?} of {lines}", summary.files[0].columns);
    if columns.is_empty() {
        return;
    }
    let conn = Connection::open(&database).expect("the database");
    let mut statement = conn.prepare("SELECT * FROM t ORDER BY rowid").expect("the table");
    let mut rows = statement.query([]).expect("rows");
    for members in &good {
        let found = rows.next().expect("a row").unwrap_or_else(|| panic!("a row is missing: {lines}"));
        for (index, column) in columns.iter().enumerate() {
            let value =
                members.iter().find(|(path, _)| path == *column).map_or(&Value::Null, |(_, value)| value);
            let found = found.get_ref(index).expect("a value");
            let kind = &summary.files[0].columns[index];
            assert!(
                is_same(value, found, &kind.1, (&lines, exact_numbers)),
                "{value:?} came out as {found:?} of {kind:?}: {lines}"
            );
        }
    }
    assert!(rows.next().expect("the end").is_none(), "a row too many: {lines}");
});

/// Whether what came out is what went in, as a column of this type says it. `lines`: how it was written. Unless numbers are
/// to be exact, doubles are rounded.
fn is_same(value: &Value, found: ValueRef<'_>, kind: &str, (lines, is_exact): (&str, bool)) -> bool {
    let in_text = kind == "TEXT";
    match (value, found) {
        (Value::Null, ValueRef::Null) => true,
        (Value::Text(value) | Value::Json(value) | Value::Decimal(value), ValueRef::Text(found)) => {
            in_text && value.as_bytes() == found
        }
        (Value::Bool(value), ValueRef::Text(found)) => in_text && found == value.to_string().as_bytes(),
        // In a column of text a number is what was written.
        (Value::Int(value), ValueRef::Text(found)) => {
            in_text && written(found, lines).is_some_and(|found| found.parse() == Ok(*value))
        }
        (Value::Real(value), ValueRef::Text(found)) => {
            in_text && written(found, lines).is_some_and(|found| found.parse() == Ok(*value))
        }
        (Value::Bool(value), ValueRef::Integer(found)) => {
            matches!(kind, "BOOLEAN" | "INTEGER" | "NUMERIC") && found == i64::from(*value)
        }
        (Value::Bool(value), ValueRef::Real(found)) => kind == "REAL" && found == f64::from(*value),
        (Value::Int(value), ValueRef::Integer(found)) => {
            matches!(kind, "INTEGER" | "NUMERIC") && *value == found
        }
        (Value::Int(value), ValueRef::Real(found)) => kind == "REAL" && found as i128 == i128::from(*value),
        (Value::Decimal(raw), ValueRef::Real(found)) => {
            matches!(kind, "REAL" | "NUMERIC") && raw.parse() == Ok(found) && (!is_exact || is_halfway(raw))
        }
        // SQLite has no zero below zero, and keeps a whole number as one where it may.
        (Value::Real(value), ValueRef::Real(found)) => matches!(kind, "REAL" | "NUMERIC") && *value == found,
        (Value::Real(value), ValueRef::Integer(found)) => {
            kind == "NUMERIC" && value.fract() == 0.0 && *value as i128 == i128::from(found)
        }
        _ => false,
    }
}

/// A text that stands somewhere in the lines.
fn written<'a>(found: &'a [u8], lines: &str) -> Option<&'a str> {
    str::from_utf8(found).ok().filter(|found| lines.contains(found))
}

/// Makes lines of any bytes.
struct Baker<'a> {
    recipe: &'a [u8],
    text: String,
}

impl Baker<'_> {
    fn bake(mut self) -> String {
        while let Some(members) = self.byte() {
            // An empty or a bad line now and then.
            match members {
                250 => self.text.push('\n'),
                251 => self.text.push_str("{\"cut\":\n"),
                _ => {
                    self.object(usize::from(members % 6), 0);
                    self.text.push('\n');
                }
            }
        }
        self.text
    }

    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.recipe.split_first()?;
        self.recipe = rest;
        Some(*first)
    }

    fn bytes<const N: usize>(&mut self) -> [u8; N] {
        std::array::from_fn(|_| self.byte().unwrap_or(0))
    }

    fn object(&mut self, members: usize, depth: usize) {
        self.text.push('{');
        for index in 0..members {
            let key = KEYS[usize::from(self.byte().unwrap_or(0)) % KEYS.len()];
            let comma = if index > 0 { "," } else { "" };
            let _ = write!(self.text, "{comma}\"{key}\":");
            self.value(depth);
        }
        self.text.push('}');
    }

    fn value(&mut self, depth: usize) {
        let kind = self.byte().unwrap_or(0);
        let value = match kind % 13 {
            0 => "null".to_owned(),
            1 => (kind & 16 == 0).to_string(),
            2 => (kind / 13).to_string(),
            3 => i64::from_le_bytes(self.bytes()).to_string(),
            4 => Some(f64::from_le_bytes(self.bytes()))
                .filter(|x| x.is_finite())
                .map_or("0.5".into(), |x| format!("{x:?}")),
            5 => u128::from_le_bytes(self.bytes()).to_string(),
            6 => format!("{kind}.{}e{}", u32::from_le_bytes(self.bytes()), i8::from_le_bytes(self.bytes())),
            7 => format!("{}.{}", u16::from_le_bytes(self.bytes()), u64::from_le_bytes(self.bytes())),
            8 => format!("{}.0", i64::from_le_bytes(self.bytes())),
            9 => serde_json::to_string(&String::from_utf8_lossy(&self.bytes::<4>())).unwrap_or_default(),
            10 => format!("\"{}\"", kind / 13),
            11 if depth < 3 => return self.object(usize::from(kind / 13 % 4), depth + 1),
            _ => format!("[{kind}, \"{}\" ]", "x".repeat(usize::from(kind / 13))),
        };
        self.text.push_str(&value);
    }
}
