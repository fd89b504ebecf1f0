//! The candidates of `import` and their command lines and scripts.
//!
//! Each candidate creates a new database with a table for each file, a column for each key, numbers as numbers and
//! nested values as JSON. All must infer the columns, except the floor and the SQLite shell, which get them as input.
//! All use one transaction where they can. SQLite's settings are the defaults, except for Gristmill and the floor.

use std::{
    ffi::OsString,
    fs, io,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use super::dataset::{self, FILES};
use crate::{process::CommandLine, program::find_program};

/// One way of importing.
pub(super) struct Candidate {
    pub(super) name: &'static str,
    requirement: Requirement,
    command_line: fn(program: &Path, task: &ImportTask<'_>) -> io::Result<CommandLine>,
    /// Maximum scale and repetitions of a slow candidate, unless `--peers` names it.
    pub(super) slow_limits: Option<(f64, usize)>,
}

enum Requirement {
    /// A program that the benchmark builds.
    Built,
    Program(&'static str),
    /// Python with these modules.
    Python(&'static str),
}

/// Folder to import and database to create.
pub(super) struct ImportTask<'a> {
    pub(super) root: &'a Path,
    /// Path in a folder that only this candidate uses.
    pub(super) database: &'a Path,
}

/// A candidate whose program was found.
pub(super) struct Participant {
    pub(super) candidate: &'static Candidate,
    pub(super) program: PathBuf,
}

pub(super) const GRISTMILL: Candidate = Candidate {
    name: "gristmill",
    requirement: Requirement::Built,
    command_line: |program, task| {
        command_line(program, ["import".into(), task.root.into(), "--into".into(), task.database.into()])
    },
    slow_limits: None,
};

/// An earlier build of gristmill.
pub(super) static BEFORE: Candidate = Candidate { name: "gristmill, before", ..GRISTMILL };

pub(super) static FLOOR: Candidate = Candidate {
    name: "(floor: handwritten, columns given)",
    requirement: Requirement::Built,
    command_line: |program, task| {
        let schema = task.file("schema", &dataset::schema())?;
        command_line(program, [task.root.into(), task.database.into(), schema])
    },
    slow_limits: None,
};

/// Name of the peer that a threshold refers to.
pub(super) const DUCKDB: &str = "duckdb";

pub(super) static PEERS: [Candidate; 5] = [
    Candidate {
        name: DUCKDB,
        requirement: Requirement::Python("duckdb, duckdb_extension_sqlite_scanner"),
        command_line: |program, task| {
            let script = task.file("duckdb_import.py", include_str!("duckdb_import.py"))?;
            command_line(program, [script, task.root.into(), task.database.into()])
        },
        slow_limits: None,
    },
    Candidate {
        name: "sqlite3, columns given",
        requirement: Requirement::Program("sqlite3"),
        command_line: |program, task| {
            let mut read = OsString::from(".read ");
            read.push(task.file("import.sql", &sql(task.root))?);
            command_line(program, [task.database.into(), read])
        },
        slow_limits: None,
    },
    Candidate {
        name: "python, orjson",
        requirement: Requirement::Python("orjson"),
        command_line: |program, task| python(program, "orjson", task),
        slow_limits: None,
    },
    Candidate {
        name: "python, json",
        requirement: Requirement::Python("json"),
        command_line: |program, task| python(program, "json", task),
        slow_limits: Some((0.3, 2)),
    },
    Candidate {
        name: "sqlite-utils",
        requirement: Requirement::Program("sqlite-utils"),
        command_line: |program, task| {
            let script = task.file("sqlite_utils_import.sh", include_str!("sqlite_utils_import.sh"))?;
            command_line(Path::new("sh"), [script, program.into(), task.root.into(), task.database.into()])
        },
        slow_limits: Some((0.3, 1)),
    },
];

impl Candidate {
    /// Returns the path of its program, or an error that names what is missing.
    pub(super) fn locate(&self) -> Result<PathBuf, String> {
        match self.requirement {
            Requirement::Built => Err("this program is built, not searched for".into()),
            Requirement::Program(name) => find_program(name).ok_or_else(|| format!("{name} is not installed")),
            Requirement::Python(modules) => {
                let python = find_program("python3").ok_or("python3 is not installed")?;
                let mut import = Command::new(&python);
                import.args(["-c", &format!("import {modules}")]).stderr(Stdio::null());
                match import.status() {
                    Ok(status) if status.success() => Ok(python),
                    _ => Err(format!("{} lacks the modules {modules}", python.display())),
                }
            }
        }
    }

    /// Returns the number of repetitions over a folder of this scale.
    pub(super) fn reps(&self, scale: f64, reps: usize, named: bool) -> usize {
        match self.slow_limits {
            Some((largest, _)) if !named && scale > largest => 0,
            Some((_, max_reps)) if !named => reps.min(max_reps),
            _ => reps,
        }
    }
}

impl Participant {
    pub(super) fn command_line(&self, task: &ImportTask<'_>) -> Result<CommandLine, String> {
        (self.candidate.command_line)(&self.program, task)
            .map_err(|error| format!("{}: {error}", task.database.display()))
    }
}

impl ImportTask<'_> {
    /// Writes a file beside the database and returns its path.
    fn file(&self, name: &str, text: &str) -> io::Result<OsString> {
        let path = self.database.with_file_name(name);
        fs::write(&path, text)?;
        Ok(path.into())
    }
}

fn command_line<const N: usize>(program: &Path, args: [OsString; N]) -> io::Result<CommandLine> {
    Ok(CommandLine { program: program.to_path_buf(), args: args.into(), success_codes: &[0] })
}

fn python(program: &Path, module: &str, task: &ImportTask<'_>) -> io::Result<CommandLine> {
    let script = task.file("python_import.py", include_str!("python_import.py"))?;
    command_line(program, [script, module.into(), task.root.into(), task.database.into()])
}

/// Returns the input of the SQLite shell: each file is loaded line by line into a temporary table and from there into
/// columns.
fn sql(root: &Path) -> String {
    let mut sql = String::from(
        ".bail on\n.mode ascii\n.separator \"\\037\" \"\\n\"\nCREATE TEMP TABLE lines (line TEXT);\nBEGIN;\n",
    );
    for file in FILES.iter() {
        let (columns, name) = (file.columns(), file.name);
        let definition: Vec<String> = columns.iter().map(|column| column.definition()).collect();
        let values: Vec<String> = columns.iter().map(|column| format!("line ->> '{}'", column.name)).collect();
        let path = root.join(format!("{name}.jsonl"));
        sql += &format!(".import '{}' lines\n", path.display());
        sql += &format!("CREATE TABLE \"{name}\" ({});\n", definition.join(", "));
        sql += &format!("INSERT INTO \"{name}\" SELECT {} FROM lines;\n", values.join(", "));
        sql += "DELETE FROM lines;\n";
    }
    sql + "COMMIT;\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_candidates_run_less_unless_named() {
        let slow = &PEERS[4];
        assert_eq!(slow.slow_limits, Some((0.3, 1)));
        assert_eq!((slow.reps(0.3, 5, false), slow.reps(1.0, 5, false), slow.reps(1.0, 5, true)), (1, 0, 5));
        assert_eq!((GRISTMILL.reps(1.0, 5, false), slow.reps(0.1, 1, false)), (5, 1));
    }

    #[test]
    fn shell_input_defines_every_column() {
        let sql = sql(Path::new("/data"));
        assert!(sql.contains(".import '/data/_sde.jsonl' lines\n"));
        assert!(sql.contains("CREATE TABLE \"icons\" (\"_key\" INTEGER PRIMARY KEY, \"iconFile\" TEXT);\n"));
        assert!(sql.contains("SELECT line ->> '_key', line ->> 'iconFile' FROM lines;\n"));
        assert!(sql.contains("CREATE TABLE \"translationLanguages\" (\"_key\" TEXT PRIMARY KEY, \"name\" TEXT);\n"));
    }
}
