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
    profile::Profile,
    tree::Tree,
};
use crate::{
    comparison::{self, Row},
    options::value_name,
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
    pub(super) profile: Profile,
    /// Scans an unchanged tree a second time.
    pub(super) rescan: bool,
    /// Empties the system's file caches before each run.
    pub(super) cold: bool,
}

impl std::fmt::Display for Setting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let scan = if self.rescan { "rescan" } else { "first scan" };
        write!(f, "{}, {scan}, {}", value_name(&self.profile), if self.cold { "cold" } else { "warm" })
    }
}

/// Measurements of one table.
pub(super) struct Benchmark {
    pub(super) setting: Setting,
    /// Number of files in the tree.
    pub(super) files: u64,
    pub(super) rows: Vec<Row<Run>>,
}

/// Measures all participants alternately, `reps` times.
pub(super) fn measure_all(
    setting: Setting,
    tree: &Tree,
    participants: &[Participant],
    reps: usize,
) -> Result<Benchmark, String> {
    // Beside the tree, so that databases and caches are on the same disk.
    let scratch = Scratch::new(tree.root.parent().ok_or("the tree has no parent")?)?;
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
    Ok(Benchmark { setting, files: tree.files, rows })
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
            let database = work_dir.join("gristmill.db");
            let command_line = |args: &[&str]| CommandLine {
                program: program.clone(),
                args: ["--db".into(), database.clone().into()].into_iter().chain(args.iter().map(Into::into)).collect(),
                success_codes: &[0],
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
    Ok((run, tree.expected.mistakes(&tree.root.to_string_lossy(), groups).description()))
}

fn measure_walk(tree: &Tree, work_dir: &Path) -> Result<(Run, Option<String>), String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let args = vec!["dedup-walk".into(), tree.root.clone().into()];
    let run = process::run(&CommandLine { program, args, success_codes: &[0] }, work_dir)?;
    let output = fs::read_to_string(work_dir.join("stdout")).map_err(|error| error.to_string())?;
    let expected = format!("{} files, {} bytes", tree.files, tree.bytes);
    if output.trim() == expected { Ok((run, None)) } else { Err(format!("walk counted {output}, not {expected}")) }
}
