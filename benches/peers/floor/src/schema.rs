//! The tables, known beforehand: one line each, the name and then `column:holds` with spaces between.

/// A table, and the file of the same name.
pub struct Table {
    pub name: String,
    pub columns: Vec<Column>,
}

pub struct Column {
    pub name: String,
    /// Its type in SQL.
    declared: &'static str,
}

impl Table {
    pub fn all(schema: &str) -> Vec<Table> {
        schema.lines().map(Table::read).collect()
    }

    fn read(line: &str) -> Table {
        let mut words = line.split_whitespace();
        let name = words.next().expect("a table's name").to_owned();
        let column = |word: &str| {
            let (name, holds) = word.split_once(':').expect("column:holds");
            let declared = match (name, holds) {
                ("_key", "whole") => "INTEGER PRIMARY KEY",
                ("_key", _) => "TEXT PRIMARY KEY",
                (_, "whole") => "INTEGER",
                (_, "real") => "REAL",
                _ => "TEXT",
            };
            Column { name: name.to_owned(), declared }
        };
        Table { name, columns: words.map(column).collect() }
    }

    pub fn create(&self) -> String {
        let columns: Vec<String> =
            self.columns.iter().map(|column| format!("\"{}\" {}", column.name, column.declared)).collect();
        format!("CREATE TABLE \"{}\" ({})", self.name, columns.join(", "))
    }

    pub fn insert(&self) -> String {
        format!("INSERT INTO \"{}\" VALUES ({})", self.name, vec!["?"; self.columns.len()].join(", "))
    }
}
