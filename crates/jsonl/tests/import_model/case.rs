//! A test case: operations on one database, printed as commands that can be repeated.

use std::fmt;

use crate::json::{Json, object};

/// One line of a file.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Line {
    Object(Vec<(String, Json)>),
    /// Text that is not a JSON object.
    Bad(&'static str),
    Blank,
}

impl Line {
    pub(crate) fn text(&self) -> String {
        match self {
            Line::Object(members) => object(members),
            Line::Bad(text) => (*text).to_owned(),
            Line::Blank => String::new(),
        }
    }
}

/// A file to import.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct File {
    /// Below the folder of the case. `.gz` and `.zst` are compressed.
    pub(crate) path: &'static str,
    /// One JSON array, with an element on each line.
    pub(crate) is_array: bool,
    pub(crate) lines: Vec<Line>,
}

impl File {
    pub(crate) fn text(&self) -> String {
        if self.is_array {
            let elements: Vec<String> = self.lines.iter().map(Line::text).collect();
            return format!("[\n{}\n]\n", elements.join(",\n"));
        }
        self.lines.iter().map(|line| line.text() + "\n").collect()
    }

    /// The lines with their numbers in the file.
    pub(crate) fn numbered(&self) -> impl Iterator<Item = (usize, &Line)> {
        (if self.is_array { 2 } else { 1 }..).zip(&self.lines)
    }

    /// Name of the table derived from the file name.
    pub(crate) fn table(&self) -> &'static str {
        let name = self.path.rsplit('/').next().unwrap_or(self.path);
        name.split('.').next().unwrap_or(name)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Create,
    Append,
    Upsert,
    Replace,
}

/// Setting of a column in a schema file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fixed {
    Type(&'static str),
    Name(&'static str),
    Skip,
}

/// A schema file for all tables of the import.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Schema {
    /// infer, skip or reject.
    pub(crate) others: &'static str,
    pub(crate) columns: Vec<(&'static str, Fixed)>,
}

/// SQL type for a type in a schema file.
pub(crate) fn sql_type(fixed: &str) -> &'static str {
    match fixed {
        "integer" => "INTEGER",
        "real" => "REAL",
        "numeric" => "NUMERIC",
        "boolean" => "BOOLEAN",
        "text" => "TEXT",
        _ => "",
    }
}

impl Schema {
    pub(crate) fn toml(&self, tables: &[&str]) -> String {
        let mut text = String::new();
        for table in tables {
            text += &format!("[tables.{table}]\nothers = \"{}\"\n[tables.{table}.columns]\n", self.others);
            for (key, fixed) in &self.columns {
                let value = match fixed {
                    Fixed::Type(kind) => format!("type = \"{kind}\""),
                    Fixed::Name(name) => format!("name = \"{name}\""),
                    Fixed::Skip => "skip = true".to_owned(),
                };
                text += &format!("\"{key}\" = {{ {value} }}\n");
            }
        }
        text
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Import {
    pub(crate) files: Vec<File>,
    /// One table for all files.
    pub(crate) table: Option<&'static str>,
    pub(crate) mode: Mode,
    pub(crate) resume: bool,
    pub(crate) flatten: usize,
    pub(crate) primary_key: Vec<&'static str>,
    pub(crate) schema: Option<Schema>,
    /// Numbers that a double would round make their column TEXT.
    pub(crate) exact: bool,
    /// Stop when more lines than this are bad.
    pub(crate) max_errors: Option<u64>,
    /// The number of the file for rejects.
    pub(crate) rejects: usize,
    /// Bytes that a worker parses at a time.
    pub(crate) block: usize,
}

/// One step of a case.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Operation {
    Import(Import),
    /// The user drops a table.
    Drop(&'static str),
    /// The user deletes the rows of a table.
    Empty(&'static str),
    /// The user creates a table, with or without a primary key.
    Own {
        has_key: bool,
    },
}

/// Name of the table that the user creates.
pub(crate) const OWN: &str = "own";
/// Its columns and their types; the first one is its key, if it has one.
pub(crate) const OWN_COLUMNS: [(&str, &str); 5] =
    [("id", "INTEGER"), ("Name", "TEXT"), ("n", "INTEGER"), ("r", "REAL"), ("x", "")];

impl Operation {
    /// SQL of an operation of the user.
    pub(crate) fn sql(&self) -> String {
        match self {
            Operation::Import(_) => String::new(),
            Operation::Drop(table) => format!("DROP TABLE {table}"),
            Operation::Empty(table) => format!("DELETE FROM {table}"),
            Operation::Own { has_key } => {
                let key = if *has_key { "id INTEGER PRIMARY KEY, " } else { "" };
                format!("CREATE TABLE {OWN} ({key}Name TEXT, n INTEGER, r REAL, x)")
            }
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Operation::Import(import) => write!(f, "{import}"),
            _ => writeln!(f, "sqlite3 out.db '{}'", self.sql()),
        }
    }
}

impl fmt::Display for Import {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for file in &self.files {
            let compress = match file.path.rsplit('.').next() {
                Some("gz") => " | gzip",
                Some("zst") => " | zstd",
                _ => "",
            };
            writeln!(f, "cat <<'END'{compress} > {}\n{}END", file.path, file.text())?;
        }
        if let Some(schema) = &self.schema {
            writeln!(f, "cat <<'END' > schema.toml\n{}END", schema.toml(&self.tables()))?;
        }
        write!(f, "gristmill import")?;
        self.files.iter().try_for_each(|file| write!(f, " {}", file.path))?;
        write!(f, " --into out.db")?;
        match self.mode {
            Mode::Create => {}
            Mode::Append => write!(f, " --append")?,
            Mode::Upsert => write!(f, " --upsert")?,
            Mode::Replace => write!(f, " --replace")?,
        }
        if let Some(table) = self.table {
            write!(f, " --table {table}")?;
        }
        if self.resume {
            write!(f, " --resume")?;
        }
        if self.flatten > 0 {
            write!(f, " --flatten={}", self.flatten)?;
        }
        if !self.primary_key.is_empty() {
            write!(f, " --primary-key {}", self.primary_key.join(","))?;
        }
        if self.schema.is_some() {
            write!(f, " --schema schema.toml")?;
        }
        if self.exact {
            write!(f, " --exact-numbers")?;
        }
        if let Some(max) = self.max_errors {
            write!(f, " --max-errors {max}")?;
        }
        writeln!(f, " --rejects {}    # blocks of {} bytes", self.rejects_path(), self.block)
    }
}

impl Import {
    /// The tables, with their files.
    pub(crate) fn groups(&self) -> Vec<(&'static str, Vec<&File>)> {
        match self.table {
            Some(table) => vec![(table, self.files.iter().collect())],
            None => self.files.iter().map(|file| (file.table(), vec![file])).collect(),
        }
    }

    pub(crate) fn tables(&self) -> Vec<&'static str> {
        self.groups().into_iter().map(|(table, _)| table).collect()
    }

    pub(crate) fn rejects_path(&self) -> String {
        format!("rejects-{}.jsonl", self.rejects)
    }

    /// Options that must be the same for `--resume` to skip a file.
    pub(crate) fn shape(&self) -> String {
        let schema = self.schema.as_ref().map(|schema| schema.toml(&self.tables()));
        format!("{} {:?} {} {schema:?}", self.flatten, self.primary_key, self.exact)
    }
}
