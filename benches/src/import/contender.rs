//! Who takes part, and how each is called.
//!
//! Owns the command lines and the scripts. Each is asked for the same: a new database with a table for each file, a
//! column for each key, numbers as numbers, nested values as JSON. Everybody has to find the columns out but the floor
//! and the shell, whose columns are told. Everything is one transaction where that can be said; but for ours and the
//! floor, SQLite's settings are left as they come.

use std::{
    ffi::OsString,
    fs, io,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use super::catalog::{self, FILES};
use crate::{process::Call, program::found};

/// One way of importing.
pub(super) struct Contender {
    pub(super) name: &'static str,
    needs: Needs,
    call: fn(program: &Path, task: &Task<'_>) -> io::Result<Call>,
    /// The largest folder it is asked to import, and how often, unless it is named: it is slow.
    pub(super) most: Option<(f64, usize)>,
}

enum Needs {
    /// What the benchmark builds itself.
    Built,
    Program(&'static str),
    /// A Python with these modules.
    Python(&'static str),
}

/// What is imported, and into which file.
pub(super) struct Task<'a> {
    pub(super) root: &'a Path,
    /// In a folder of the contender's own.
    pub(super) database: &'a Path,
}

/// A contender whose program is there.
pub(super) struct Participant {
    pub(super) contender: &'static Contender,
    pub(super) program: PathBuf,
}

pub(super) const OURS: Contender = Contender {
    name: "gristmill",
    needs: Needs::Built,
    call: |program, task| {
        called(program, ["import".into(), task.root.into(), "--into".into(), task.database.into()])
    },
    most: None,
};

/// An earlier build of ours.
pub(super) static BEFORE: Contender = Contender { name: "gristmill, before", ..OURS };

pub(super) static FLOOR: Contender = Contender {
    name: "(floor: by hand, columns told)",
    needs: Needs::Built,
    call: |program, task| {
        let schema = task.file("schema", &catalog::schema())?;
        called(program, [task.root.into(), task.database.into(), schema])
    },
    most: None,
};

/// What a bar is measured by.
pub(super) const DUCKDB: &str = "duckdb";

pub(super) static PEERS: [Contender; 5] = [
    Contender {
        name: DUCKDB,
        needs: Needs::Python("duckdb, duckdb_extension_sqlite_scanner"),
        call: |program, task| {
            let script = task.file("duck.py", include_str!("duck.py"))?;
            called(program, [script, task.root.into(), task.database.into()])
        },
        most: None,
    },
    Contender {
        name: "sqlite3, columns told",
        needs: Needs::Program("sqlite3"),
        call: |program, task| {
            let mut read = OsString::from(".read ");
            read.push(task.file("import.sql", &sql(task.root))?);
            called(program, [task.database.into(), read])
        },
        most: None,
    },
    Contender {
        name: "python, orjson",
        needs: Needs::Python("orjson"),
        call: |program, task| python(program, "orjson", task),
        most: None,
    },
    Contender {
        name: "python, json",
        needs: Needs::Python("json"),
        call: |program, task| python(program, "json", task),
        most: Some((0.3, 2)),
    },
    Contender {
        name: "sqlite-utils",
        needs: Needs::Program("sqlite-utils"),
        call: |program, task| {
            let script = task.file("sqlite-utils.sh", include_str!("sqlite-utils.sh"))?;
            called(Path::new("sh"), [script, program.into(), task.root.into(), task.database.into()])
        },
        most: Some((0.3, 1)),
    },
];

impl Contender {
    /// Its program. Says what is missing, where it cannot take part.
    pub(super) fn found(&self) -> Result<PathBuf, String> {
        match self.needs {
            Needs::Built => Err("it is built, not found".into()),
            Needs::Program(name) => found(name).ok_or_else(|| format!("{name} is not there")),
            Needs::Python(modules) => {
                let python = found("python3").ok_or("python3 is not there")?;
                let mut import = Command::new(&python);
                import.args(["-c", &format!("import {modules}")]).stderr(Stdio::null());
                match import.status() {
                    Ok(status) if status.success() => Ok(python),
                    _ => Err(format!("{} has no {modules}", python.display())),
                }
            }
        }
    }

    /// How often it is measured over a folder of this scale.
    pub(super) fn reps(&self, scale: f64, asked: usize, named: bool) -> usize {
        match self.most {
            Some((largest, _)) if !named && scale > largest => 0,
            Some((_, most)) if !named => asked.min(most),
            _ => asked,
        }
    }
}

impl Participant {
    pub(super) fn call(&self, task: &Task<'_>) -> Result<Call, String> {
        (self.contender.call)(&self.program, task)
            .map_err(|error| format!("{}: {error}", task.database.display()))
    }
}

impl Task<'_> {
    /// Puts a file beside the database.
    fn file(&self, name: &str, text: &str) -> io::Result<OsString> {
        let path = self.database.with_file_name(name);
        fs::write(&path, text)?;
        Ok(path.into())
    }
}

fn called<const N: usize>(program: &Path, words: [OsString; N]) -> io::Result<Call> {
    Ok(Call { program: program.to_path_buf(), words: words.into(), well: &[0] })
}

fn python(program: &Path, module: &str, task: &Task<'_>) -> io::Result<Call> {
    let script = task.file("python.py", include_str!("python.py"))?;
    called(program, [script, module.into(), task.root.into(), task.database.into()])
}

/// For the shell of SQLite: lines go whole into a table for the moment, and from there into columns.
fn sql(root: &Path) -> String {
    let mut sql = String::from(
        ".bail on\n.mode ascii\n.separator \"\\037\" \"\\n\"\nCREATE TEMP TABLE lines (line TEXT);\nBEGIN;\n",
    );
    for file in &FILES {
        let (columns, name) = (file.columns(), file.name);
        let declared: Vec<String> = columns.iter().map(|column| column.declared()).collect();
        let values: Vec<String> =
            columns.iter().map(|column| format!("line ->> '{}'", column.name)).collect();
        let path = root.join(format!("{name}.jsonl"));
        sql += &format!(".import '{}' lines\n", path.display());
        sql += &format!("CREATE TABLE \"{name}\" ({});\n", declared.join(", "));
        sql += &format!("INSERT INTO \"{name}\" SELECT {} FROM lines;\n", values.join(", "));
        sql += "DELETE FROM lines;\n";
    }
    sql + "COMMIT;\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_ones_are_spared_unless_they_are_named() {
        let slow = &PEERS[4];
        assert_eq!(slow.most, Some((0.3, 1)));
        assert_eq!((slow.reps(0.3, 5, false), slow.reps(1.0, 5, false), slow.reps(1.0, 5, true)), (1, 0, 5));
        assert_eq!((OURS.reps(1.0, 5, false), slow.reps(0.1, 1, false)), (5, 1));
    }

    #[test]
    fn the_shell_is_told_every_column() {
        let sql = sql(Path::new("/data"));
        assert!(sql.contains(".import '/data/_sde.jsonl' lines\n"));
        assert!(sql.contains("CREATE TABLE \"icons\" (\"_key\" INTEGER PRIMARY KEY, \"iconFile\" TEXT);\n"));
        assert!(sql.contains("SELECT line ->> '_key', line ->> 'iconFile' FROM lines;\n"));
        assert!(
            sql.contains(
                "CREATE TABLE \"translationLanguages\" (\"_key\" TEXT PRIMARY KEY, \"name\" TEXT);\n"
            )
        );
    }
}
