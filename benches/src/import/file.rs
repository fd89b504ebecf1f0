//! One file of a folder: its length, its columns, and how its lines are written.
//!
//! `dataset` lists the files; `line_writers` and `field` write the lines.

use std::io::{self, Write};

use super::{
    field::{Column, Field, Line, put},
    line_writers::LineWriter,
    phrases::PhrasePools,
};
use crate::random;

/// A file and the table it is imported into.
pub(super) struct File {
    /// Name of the file without `.jsonl`.
    pub(super) name: &'static str,
    /// Number of lines at scale 1.
    pub(super) lines: usize,
    /// Descriptions of the fields; without a line writer the key comes before them.
    pub(super) fields: &'static str,
    pub(super) line_writer: Option<LineWriter>,
}

/// Files with fewer lines are lookup tables, whose length does not depend on the scale.
const SMALL: usize = 1_000;

/// Approximate number of bytes written at a time.
const BLOCK_BYTES: usize = 1 << 18;

impl File {
    pub(super) fn lines_at(&self, scale: f64) -> usize {
        if self.lines < SMALL { self.lines } else { ((self.lines as f64 * scale) as usize).max(1) }
    }

    /// Returns the columns in the order of a line.
    pub(super) fn columns(&self) -> Vec<Column> {
        let key = if self.line_writer.is_none() { "_key:int" } else { "" };
        Field::all(key).iter().chain(&Field::all(self.fields)).map(Field::column).collect()
    }

    /// Writes the file. The bytes depend only on the scale and the seed.
    pub(super) fn write(&self, scale: f64, seed: u64, pools: &PhrasePools, to: &mut impl Write) -> io::Result<()> {
        let fields = Field::all(self.fields);
        let stream = self.name.bytes().fold(1, |number: u64, byte| number.wrapping_mul(257) + u64::from(byte));
        let mut random = random::stream(seed, stream);
        let mut out = Vec::with_capacity(2 * BLOCK_BYTES);
        let count = self.lines_at(scale);
        for nth in 0..count {
            let mut line = Line { out: &mut out, random: &mut random, pools };
            match self.line_writer {
                Some(line_writer) => line_writer(&mut line, nth, count),
                None => {
                    put!(line, "{{\"_key\":{nth}");
                    fields.iter().for_each(|field| line.field(field));
                    put!(line, "}}");
                }
            }
            out.push(b'\n');
            if out.len() >= BLOCK_BYTES || nth + 1 == count {
                to.write_all(&out)?;
                out.clear();
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::import::dataset::FILES;
    use serde_json::Value;

    fn written(name: &str, scale: f64, seed: u64) -> String {
        let file = FILES.iter().find(|file| file.name == name).unwrap();
        let mut bytes = Vec::new();
        file.write(scale, seed, &PhrasePools::new(seed), &mut bytes).unwrap();
        String::from_utf8(bytes).unwrap()
    }

    fn parsed(name: &str, scale: f64) -> Vec<Value> {
        written(name, scale, 1).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[test]
    fn files_are_reproducible_and_depend_on_the_seed() {
        assert_eq!(written("types", 0.001, 1), written("types", 0.001, 1));
        assert_ne!(written("types", 0.001, 1), written("types", 0.001, 2));
        assert_ne!(written("mapMoons", 0.001, 1), written("mapPlanets", 0.005, 1));
    }

    #[test]
    fn small_files_keep_their_length_at_any_scale() {
        assert_eq!(parsed("races", 0.001).len(), 11);
        assert_eq!(parsed("skins", 0.01).len(), 200);
        let all: usize = FILES.iter().map(|file| file.lines_at(1.0)).sum();
        assert_eq!(all, 1_707_299);
    }

    #[test]
    fn every_key_is_a_known_column() {
        for file in FILES.iter() {
            let columns: Vec<&str> = file.columns().iter().map(|column| column.name).collect();
            let mut seen = vec![false; columns.len()];
            for line in written(file.name, 0.02, 1).lines() {
                let value: Value = serde_json::from_str(line).unwrap();
                for key in value.as_object().unwrap().keys() {
                    let column = columns.iter().position(|column| column == key);
                    seen[column.unwrap_or_else(|| panic!("{}.{key}", file.name))] = true;
                }
            }
            // A small table does not necessarily have every field.
            assert!(file.lines < SMALL || seen.iter().all(|seen| *seen), "{}: {seen:?}", file.name);
        }
    }

    #[test]
    fn files_contain_the_cases_that_mislead_type_inference() {
        let types = parsed("types", 0.02);
        let first = |fits: fn(&Value) -> bool| types.iter().position(fits).unwrap() * 100 / types.len();
        assert_eq!(first(|line| line["radius"].is_f64()), 10, "integers in the first tenth");
        assert_eq!(first(|line| line.get("sofMaterialSetID").is_some()), 99, "first occurs in the last hundredth");
        let prices: [fn(&Value) -> bool; 4] = [
            |line| line.get("basePrice").is_none(),
            |line| line.get("basePrice").is_some_and(Value::is_null),
            |line| line["basePrice"].is_u64(),
            |line| line["basePrice"].is_f64(),
        ];
        assert!(prices.into_iter().all(|kind| types.iter().any(kind)));
        assert!(types.iter().any(|line| line["name"].as_object().unwrap().len() < 8), "some languages missing");
        assert!(parsed("translationLanguages", 1.0).iter().all(|line| line["_key"].is_string()));
        let moons = written("mapMoons", 0.01, 1);
        assert!(
            moons.contains(":-0.0,") && moons.contains("e-") && moons.contains("e1"),
            "negative zeros and exponents"
        );
        let stars = parsed("mapStars", 0.01);
        assert!(stars.iter().any(|line| line["radius"].as_u64().unwrap() % 2 == 1), "more than a double can represent");
        assert!(written("types", 0.001, 1).contains(r"\ud83d\ude80"), "escapes");
        assert!(parsed("masteries", 1.0)[0]["_value"][0]["_value"].is_array());
    }
}
