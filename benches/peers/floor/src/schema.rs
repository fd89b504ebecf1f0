//! The tables, given as input: one line each, the name and then `column:type`, separated by spaces.

/// A table, and the file of the same name.
pub struct Table {
    pub name: String,
    pub columns: Vec<Column>,
}

pub struct Column {
    pub name: String,
    /// Type of the column in SQL.
    sql_type: &'static str,
}

impl Table {
    pub fn all(schema: &str) -> Vec<Table> {
        schema.lines().map(Table::read).collect()
    }

    fn read(line: &str) -> Table {
        let mut words = line.split_whitespace();
        let name = words.next().expect("a line starts with the name of a table").to_owned();
        let column = |word: &str| {
            let (name, column_type) = word.split_once(':').expect("a column is written as name:type");
            let sql_type = match (name, column_type) {
                ("_key", "integer") => "INTEGER PRIMARY KEY",
                ("_key", _) => "TEXT PRIMARY KEY",
                (_, "integer") => "INTEGER",
                (_, "real") => "REAL",
                _ => "TEXT",
            };
            Column { name: name.to_owned(), sql_type }
        };
        Table { name, columns: words.map(column).collect() }
    }

    pub fn create(&self) -> String {
        let columns: Vec<String> =
            self.columns.iter().map(|column| format!("\"{}\" {}", column.name, column.sql_type)).collect();
        format!("CREATE TABLE \"{}\" ({})", self.name, columns.join(", "))
    }

    pub fn insert(&self) -> String {
        format!("INSERT INTO \"{}\" VALUES ({})", self.name, vec!["?"; self.columns.len()].join(", "))
    }
}
