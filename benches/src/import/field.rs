//! Columns, and the fields of simple tables.
//!
//! Owns the kinds of fields and the functions that write JSON values. Tables with dependencies between fields or lines
//! are written in `line_writers`.

use std::io::Write;

use fastrand::Rng;

use super::phrases::{ENGLISH, LANGUAGES, PhrasePools};

/// Type of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ColumnType {
    /// Integers, or true and false.
    Integer,
    Real,
    Text,
    Nested,
}

impl ColumnType {
    pub(super) fn name(self) -> &'static str {
        match self {
            ColumnType::Integer => "integer",
            ColumnType::Real => "real",
            ColumnType::Text => "text",
            ColumnType::Nested => "nested",
        }
    }
}

/// A top-level key of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Column {
    pub(super) name: &'static str,
    pub(super) column_type: ColumnType,
}

impl Column {
    /// Returns the column definition in SQL.
    pub(super) fn definition(&self) -> String {
        let (kind, key) = match self.column_type {
            ColumnType::Integer => ("INTEGER", self.name == "_key"),
            ColumnType::Real => ("REAL", false),
            ColumnType::Text => ("TEXT", self.name == "_key"),
            ColumnType::Nested => ("TEXT", false),
        };
        format!("\"{}\" {kind}{}", self.name, if key { " PRIMARY KEY" } else { "" })
    }
}

/// A field, parsed from a description: `iconID:int?` is an integer, null, or missing.
#[derive(Clone, Copy)]
pub(super) struct Field {
    name: &'static str,
    kind: &'static str,
    optional: bool,
}

impl Field {
    /// Parses descriptions that are separated by spaces.
    pub(super) fn all(descriptions: &'static str) -> Vec<Field> {
        let field = |word: &'static str| {
            let (name, kind) = word.split_once(':').unwrap_or((word, ""));
            Field { name, kind: kind.trim_end_matches('?'), optional: kind.ends_with('?') }
        };
        descriptions.split_whitespace().map(field).collect()
    }

    pub(super) fn column(&self) -> Column {
        let column_type = match self.kind {
            "int" | "big" | "bool" => ColumnType::Integer,
            "real" => ColumnType::Real,
            "str" | "text" | "path" => ColumnType::Text,
            _ => ColumnType::Nested,
        };
        Column { name: self.name, column_type }
    }
}

/// Writes one line, with random numbers from the stream of its file.
pub(super) struct Line<'a> {
    pub(super) out: &'a mut Vec<u8>,
    pub(super) random: &'a mut Rng,
    pub(super) pools: &'a PhrasePools,
}

/// Appends formatted text to a line; writing to memory does not fail.
macro_rules! put {
    ($line:expr, $($words:tt)*) => {
        // Not `write!`: the arguments draw random numbers from the line, which must end before `out` is borrowed.
        match format_args!($($words)*) {
            words => { let _ = $line.out.write_fmt(words); }
        }
    };
}
pub(super) use put;

impl Line<'_> {
    pub(super) fn number(&mut self, start: usize, end: usize) -> usize {
        self.random.usize(start..end)
    }

    /// Returns true with this probability.
    pub(super) fn chance(&mut self, probability: f64) -> bool {
        self.random.f64() < probability
    }

    /// Returns a real number as text: with two or with all digits after the point; a few have an exponent, a few are a
    /// negative zero.
    pub(super) fn real(&mut self, magnitude: usize) -> String {
        let kind = self.random.f64();
        if kind < 0.02 {
            return "-0.0".into();
        }
        let power = self.random.usize(..magnitude) as i32;
        let value = (self.random.f64() - 0.5) * 10f64.powi(power);
        match kind {
            ..0.5 => format!("{:?}", (value * 100.0).round() / 100.0),
            ..0.99 => format!("{value:?}"),
            _ => format!("{value:e}"),
        }
    }

    pub(super) fn name(&mut self) {
        self.translated(|line, language| {
            let name = line.pools.name(language, line.random);
            line.out.extend_from_slice(name.as_bytes());
        });
    }

    pub(super) fn description(&mut self) {
        let sentences = 1 + (self.random.f64() * self.random.f64() * 3.4) as usize;
        self.translated(|line, language| {
            for _ in 0..sentences {
                let sentence = line.pools.sentence(language, line.random);
                line.out.extend_from_slice(sentence.as_bytes());
            }
        });
    }

    /// Writes an object with a text for each language: mostly all languages, English always.
    fn translated(&mut self, mut write: impl FnMut(&mut Self, usize)) {
        let full = self.chance(0.9);
        let mut separator = b'{';
        for (nth, language) in LANGUAGES.iter().enumerate() {
            if full || nth == ENGLISH || self.chance(0.5) {
                self.out.push(separator);
                put!(self, "\"{}\":\"", language.code);
                write(self, nth);
                self.out.push(b'"');
                separator = b',';
            }
        }
        self.out.push(b'}');
    }

    pub(super) fn position(&mut self, magnitude: usize) {
        let [x, y, z] = [(); 3].map(|()| self.real(magnitude));
        put!(self, "{{\"x\":{x},\"y\":{y},\"z\":{z}}}");
    }

    /// Writes `count` values in brackets.
    pub(super) fn array(&mut self, count: usize, mut write: impl FnMut(&mut Self, usize)) {
        self.out.push(b'[');
        for nth in 0..count {
            if nth > 0 {
                self.out.push(b',');
            }
            write(self, nth);
        }
        self.out.push(b']');
    }

    /// Writes a comma, the name and a value of the field's kind. An optional field is sometimes null or missing.
    pub(super) fn field(&mut self, field: &Field) {
        if field.optional {
            let kind = self.random.f64();
            if kind < 0.25 {
                return;
            }
            if kind < 0.35 {
                put!(self, ",\"{}\":null", field.name);
                return;
            }
        }
        put!(self, ",\"{}\":", field.name);
        self.value(field.kind);
    }

    fn value(&mut self, kind: &str) {
        match kind {
            "int" => put!(self, "{}", self.number(0, 1_000_000)),
            // A double cannot represent all of these.
            "big" => put!(self, "{}", (1usize << 53) + self.number(0, 1 << 40)),
            "real" => put!(self, "{}", self.real(9)),
            "bool" => put!(self, "{}", self.chance(0.5)),
            "str" => put!(self, "\"{}\"", self.pools.name(ENGLISH, self.random)),
            "text" => put!(self, "\"{}\"", self.pools.sentence(ENGLISH, self.random)),
            "path" => {
                let [folder, nth] = [self.number(1, 99), self.number(1, 16)];
                put!(self, "\"res:/UI/Texture/Icons/{folder}_64_{nth}.png\"");
            }
            "name" => self.name(),
            "desc" => self.description(),
            "pos" => self.position(13),
            "ints" => {
                let count = self.number(0, 12);
                self.array(count, |line, _| put!(line, "{}", line.number(0, 1_000_000)));
            }
            "mods" => {
                let count = self.number(0, 4);
                self.array(count, |line, _| {
                    let [modified, modifying] = [(); 2].map(|()| line.number(1, 3_000));
                    let operation = line.number(0, 9);
                    put!(
                        line,
                        "{{\"domain\":\"shipID\",\"func\":\"ItemModifier\",\"modifiedAttributeID\":{modified},\
                         \"modifyingAttributeID\":{modifying},\"operation\":{operation}}}"
                    );
                });
            }
            "map" => {
                self.out.push(b'{');
                for nth in 0..self.number(0, 6) {
                    let comma = if nth > 0 { "," } else { "" };
                    let (key, value) = (self.number(1, 100_000) * 10 + nth, self.real(3));
                    put!(self, "{comma}\"{key}\":{value}");
                }
                self.out.push(b'}');
            }
            "kv" => self.array(5, |line, nth| {
                let [first, second] = [(); 2].map(|()| line.number(1, 999));
                put!(line, "{{\"_key\":{nth},\"_value\":[{first},{second}]}}");
            }),
            _ => unreachable!("unknown kind of field `{kind}`"),
        }
    }
}
