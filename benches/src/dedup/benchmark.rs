//! Measures the runs of one table: several candidates scan one tree alternately, and every result is checked.
//!
//! Owns the order of the runs and the state before each: a new folder or the caches of an earlier run, warm or cold
//! file caches of the system. `report` evaluates the numbers.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use super::{
    candidate::{self, Candidate},
    selection::TreeKind,
    tree::Tree,
};
use crate::{
    comparison::{self, Row},
    process::{self, CommandLine, Run},
    scratch::Scratch,
};

/// A candidate with the paths of its programs.
pub(super) enum Participant {
    Gristmill(PathBuf),
    /// An earlier build of `gristmill`.
    Before(PathBuf),
    Peer(&'static Candidate, PathBuf),
    /// The module `walk` in a separate process.
    Walk,
    /// b3sum over the files that have duplicates, started by xargs.
    Sums {
        xargs: PathBuf,
        b3sum: PathBuf,
    },
}

pub(super) const GRISTMILL: &str = "gristmill";
pub(super) const BEFORE: &str = "gristmill, before";
pub(super) const WALK: &str = "(plain parallel walk)";
pub(super) const SUMS: &str = "(b3sum of the duplicates alone)";

impl Participant {
    pub(super) fn name(&self) -> &'static str {
        match self {
            Participant::Gristmill(_) => GRISTMILL,
            Participant::Before(_) => BEFORE,
            Participant::Peer(candidate, _) => candidate.name,
            Participant::Walk => WALK,
            Participant::Sums { .. } => SUMS,
        }
    }

    /// Returns whether it stores data that can make a second run faster.
    fn keeps_cache(&self) -> bool {
        match self {
            Participant::Gristmill(_) | Participant::Before(_) => true,
            Participant::Peer(candidate, _) => candidate.cached.is_some(),
            Participant::Walk | Participant::Sums { .. } => false,
        }
    }
}

/// Conditions of one table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Setting {
    pub(super) tree: TreeKind,
    /// Scans an unchanged tree a second time.
    pub(super) rescan: bool,
    /// Empties the system's file caches before each run.
    pub(super) cold: bool,
}

impl std::fmt::Display for Setting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let scan = if self.rescan { "rescan" } else { "first scan" };
        write!(f, "{}, {scan}, {}", self.tree.name(), if self.cold { "cold" } else { "warm" })
    }
}

/// Measurements of one table.
pub(super) struct Benchmark {
    pub(super) setting: Setting,
    /// Number of files in the tree.
    pub(super) files: u64,
    pub(super) rows: Vec<Row<Run>>,
    /// The database of each Gristmill after a first scan.
    pub(super) databases: Vec<Database>,
}

/// Sizes of a database after a first scan.
#[derive(Clone, Copy, Debug)]
pub(super) struct Database {
    /// Name of the participant.
    pub(super) name: &'static str,
    pub(super) bytes: u64,
    /// Bytes for each file without a duplicate: of a copy in which only those files, and all folders, are left.
    pub(super) bytes_per_single: f64,
}

/// Measures all participants alternately, `reps` times. `data` is the folder for databases and results, on the disk of
/// the generated trees.
pub(super) fn measure_all(
    setting: Setting,
    tree: &Tree,
    participants: &[Participant],
    reps: usize,
    data: &Path,
) -> Result<Benchmark, String> {
    fs::create_dir_all(data).map_err(|error| format!("{}: {error}", data.display()))?;
    let scratch = Scratch::new(data)?;
    let mut rows = Vec::new();
    for (nth, participant) in participants.iter().enumerate() {
        fs::create_dir(work_dir(&scratch, nth)).map_err(|error| format!("{}: {error}", scratch.path().display()))?;
        let mut row = Row::new(participant.name());
        if setting.rescan && participant.keeps_cache() {
            row.error = measure(participant, tree, &work_dir(&scratch, nth), true).err();
        }
        rows.push(row);
    }
    let mut warmed = None;
    let rows = comparison::alternate(rows, reps, |nth, repetition| {
        let work_dir = work_dir(&scratch, nth);
        let prepare = || -> io::Result<()> {
            if !setting.cold && warmed != Some(repetition) {
                process::warm_caches(&tree.root)?;
            }
            if !setting.rescan {
                fs::remove_dir_all(&work_dir)?;
                fs::create_dir(&work_dir)?;
            }
            Ok(())
        };
        let prepared = prepare().map_err(|error| format!("cannot prepare a run: {error}"));
        warmed = Some(repetition);
        let prepared = prepared.and_then(|()| if setting.cold { process::drop_caches() } else { Ok(()) });
        Some(prepared.and_then(|()| measure(&participants[nth], tree, &work_dir, setting.rescan)))
    });
    let mut databases = Vec::new();
    for (nth, participant) in participants.iter().enumerate() {
        let scans = matches!(participant, Participant::Gristmill(_) | Participant::Before(_));
        if scans && !setting.rescan && rows[nth].is_valid() {
            let work_dir = work_dir(&scratch, nth);
            let (bytes, name) = (database_bytes(&work_dir)?, participant.name());
            let bytes_per_single = bytes_per_single(&work_dir).map_err(|error| format!("{DATABASE}: {error}"))?;
            databases.push(Database { name, bytes, bytes_per_single });
        }
    }
    Ok(Benchmark { setting, files: tree.files, rows, databases })
}

const DATABASE: &str = "gristmill.db";

/// Returns the size of the database with its write-ahead log.
fn database_bytes(work_dir: &Path) -> Result<u64, String> {
    let size = |file: String| match fs::metadata(work_dir.join(&file)) {
        Ok(metadata) => Ok(metadata.len()),
        Err(error) if error.kind() == io::ErrorKind::NotFound && file != DATABASE => Ok(0),
        Err(error) => Err(format!("{file}: {error}")),
    };
    Ok(size(DATABASE.to_owned())? + size(format!("{DATABASE}-wal"))?)
}

/// Removes the files with a duplicate, and the groups, from the database. It is not used again.
fn bytes_per_single(work_dir: &Path) -> rusqlite::Result<f64> {
    let conn = rusqlite::Connection::open(work_dir.join(DATABASE))?;
    conn.execute_batch("PRAGMA foreign_keys = OFF; DELETE FROM library_files WHERE content_hash IS NOT NULL;")?;
    for table in ["duplicate_groups", "changed_groups"] {
        let sql = "SELECT count(*) FROM sqlite_schema WHERE name = ?1";
        if conn.query_row(sql, [table], |row| row.get::<_, i64>(0))? > 0 {
            conn.execute_batch(&format!("DELETE FROM {table}"))?;
        }
    }
    conn.execute_batch("VACUUM")?;
    let sql = "SELECT page_count * page_size * 1.0 / (SELECT count(*) FROM library_files)
        FROM pragma_page_count, pragma_page_size";
    conn.query_row(sql, [], |row| row.get(0))
}

/// Returns the participant's own folder for its home, its database and its results.
fn work_dir(scratch: &Scratch, nth: usize) -> PathBuf {
    scratch.path().join(nth.to_string())
}

/// Runs a participant once and compares its result with the expected groups.
fn measure(
    participant: &Participant,
    tree: &Tree,
    work_dir: &Path,
    rescan: bool,
) -> Result<(Run, Option<String>), String> {
    let (stdout, result) = (work_dir.join("stdout"), work_dir.join("result"));
    let read = |path: &Path| fs::read(path).map_err(|error| format!("{}: {error}", path.display()));
    let (run, groups) = match participant {
        Participant::Gristmill(program) | Participant::Before(program) => {
            let database = work_dir.join(DATABASE);
            let command_line = |args: &[&str]| CommandLine {
                program: program.clone(),
                args: ["--db".into(), database.clone().into()].into_iter().chain(args.iter().map(Into::into)).collect(),
                // 1: some files could not be read. The comparison of the results then shows whether any is missing.
                success_codes: if tree.in_place { &[0, 1] } else { &[0] },
            };
            let root = tree.root.to_str().ok_or("the tree's path is not UTF-8")?;
            let run = process::run(&command_line(&["scan", root, "--yes", "--quiet", "--json"]), work_dir)?;
            process::run(&command_line(&["dupes", "--fdupes"]), work_dir)?;
            (run, candidate::parse_fdupes(&read(&stdout)?))
        }
        Participant::Peer(candidate, program) => {
            let run = process::run(&candidate.command_line(program, &tree.root, &result, rescan), work_dir)?;
            let groups = candidate.read_groups(&stdout, &result);
            (run, groups.map_err(|error| format!("cannot read the result of {}: {error}", candidate.name))?)
        }
        Participant::Walk => return measure_walk(tree, work_dir),
        Participant::Sums { xargs, b3sum } => {
            let list = work_dir.join("list");
            let paths = tree.expected.files().map(|path| format!("{}\0", tree.root.join(path).display()));
            fs::write(&list, paths.collect::<String>()).map_err(|error| format!("{}: {error}", list.display()))?;
            let run = process::run(&candidate::b3sum_duplicates(xargs.clone(), b3sum, &list), work_dir)?;
            (run, candidate::parse_sums(&read(&stdout)?))
        }
    };
    Ok((run, tree.expected.mistakes(&tree.root.to_string_lossy(), &groups).description()))
}

fn measure_walk(tree: &Tree, work_dir: &Path) -> Result<(Run, Option<String>), String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let args = vec!["dedup-walk".into(), tree.root.clone().into()];
    let run = process::run(&CommandLine { program, args, success_codes: &[0] }, work_dir)?;
    let output = fs::read_to_string(work_dir.join("stdout")).map_err(|error| error.to_string())?;
    let expected = format!("{} files, {} bytes", tree.files, tree.bytes);
    if output.trim() == expected { Ok((run, None)) } else { Err(format!("walk counted {output}, not {expected}")) }
}
