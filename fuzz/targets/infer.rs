//! Type inference: rows with values of all types are loaded in many small blocks, and each value is read from the
//! database as it was written, whatever type its column has.

#![no_main]

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

use gristmill_fuzz::{is_halfway, row};
use gristmill_jsonl::__fuzz::{Member, Value};
use gristmill_jsonl::import::handle::ImportHandle;
use gristmill_jsonl::import::import;
use gristmill_jsonl::import::options::{ImportOptions, Target};
use libfuzzer_sys::fuzz_target;
use rusqlite::Connection;
use rusqlite::types::ValueRef;
use tempfile::TempDir;

/// In memory if possible, because the files are written anew for each input.
static TEMP_FOLDER: LazyLock<TempDir> = LazyLock::new(|| {
    let builder = || tempfile::Builder::new().prefix("gristmill-fuzz-").to_owned();
    let shared = Path::new("/dev/shm");
    builder().tempdir_in(shared).or_else(|_| builder().tempdir()).expect("a folder")
});

const KEYS: [&str; 8] = ["_key", "id", "a", "A", "b", "a_b", "größe", "quo\\\"te"];

fuzz_target!(|data: &[u8]| {
    let [block, flatten, input @ ..] = data else { return };
    let lines = LineGenerator { input, text: String::new() }.generate();
    let (flatten, exact_numbers) = (usize::from(flatten % 3), flatten & 128 == 0);
    let expected: Vec<Option<Vec<Member>>> =
        lines.lines().filter(|line| !line.is_empty()).map(|line| row(line, flatten)).collect();
    let (file, database): (PathBuf, PathBuf) = (TEMP_FOLDER.path().join("t.jsonl"), TEMP_FOLDER.path().join("t.db"));
    let _ = std::fs::remove_file(&database);
    std::fs::write(&file, &lines).expect("a file");
    let block = usize::from(*block) * 8 + 1;
    let mut options = ImportOptions::default();
    (options.workers, options.block) = (1, block);
    (options.flatten, options.exact_numbers) = (flatten, exact_numbers);
    let target = Target::Database(database.clone());
    let summary = import(&[file], &target, &options, &Arc::new(ImportHandle::default())).expect("the import succeeds");
    let good: Vec<&Vec<Member>> = expected.iter().flatten().collect();
    assert_eq!(summary.rejected, (expected.len() - good.len()) as u64, "{:?}", summary.examples);

    // Columns are in the order in which their keys first occur.
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
            let value = members.iter().find(|(path, _)| path == *column).map_or(&Value::Null, |(_, value)| value);
            let found = found.get_ref(index).expect("a value");
            let kind = &summary.files[0].columns[index];
            assert!(
                is_same(value, found, &kind.1, (&lines, exact_numbers)),
                "{value:?} is stored as {found:?} of {kind:?}: {lines}"
            );
        }
    }
    assert!(rows.next().expect("the end").is_none(), "a row too many: {lines}");
});

/// Whether `found` is `value` as a column of type `kind` stores it. `lines`: the input. Unless `is_exact`, doubles are
/// rounded.
fn is_same(value: &Value, found: ValueRef<'_>, kind: &str, (lines, is_exact): (&str, bool)) -> bool {
    let in_text = kind == "TEXT";
    match (value, found) {
        (Value::Null, ValueRef::Null) => true,
        (Value::Text(value) | Value::Json(value) | Value::Decimal(value), ValueRef::Text(found)) => {
            in_text && value.as_bytes() == found
        }
        (Value::Bool(value), ValueRef::Text(found)) => in_text && found == value.to_string().as_bytes(),
        // A text column stores a number as it was written.
        (Value::Int(value), ValueRef::Text(found)) => {
            in_text && text_in_lines(found, lines).is_some_and(|found| found.parse() == Ok(*value))
        }
        (Value::Real(value), ValueRef::Text(found)) => {
            in_text && text_in_lines(found, lines).is_some_and(|found| found.parse() == Ok(*value))
        }
        (Value::Bool(value), ValueRef::Integer(found)) => {
            matches!(kind, "BOOLEAN" | "INTEGER" | "NUMERIC") && found == i64::from(*value)
        }
        (Value::Bool(value), ValueRef::Real(found)) => kind == "REAL" && found == f64::from(*value),
        (Value::Int(value), ValueRef::Integer(found)) => matches!(kind, "INTEGER" | "NUMERIC") && *value == found,
        (Value::Int(value), ValueRef::Real(found)) => kind == "REAL" && found as i128 == i128::from(*value),
        (Value::Decimal(raw), ValueRef::Real(found)) => {
            matches!(kind, "REAL" | "NUMERIC") && raw.parse() == Ok(found) && (!is_exact || is_halfway(raw))
        }
        // SQLite has no negative zero, and stores a whole number as an integer if the column allows it.
        (Value::Real(value), ValueRef::Real(found)) => matches!(kind, "REAL" | "NUMERIC") && *value == found,
        (Value::Real(value), ValueRef::Integer(found)) => {
            kind == "NUMERIC" && value.fract() == 0.0 && *value as i128 == i128::from(found)
        }
        _ => false,
    }
}

/// The text, if it occurs in the lines.
fn text_in_lines<'a>(found: &'a [u8], lines: &str) -> Option<&'a str> {
    str::from_utf8(found).ok().filter(|found| lines.contains(found))
}

/// Generates lines of JSON from arbitrary bytes.
struct LineGenerator<'a> {
    input: &'a [u8],
    text: String,
}

impl LineGenerator<'_> {
    fn generate(mut self) -> String {
        while let Some(members) = self.byte() {
            // Sometimes an empty or an invalid line.
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
        let (first, rest) = self.input.split_first()?;
        self.input = rest;
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
