//! One table's worth of measurements: some participants over one tree, in turns, and every answer checked.
//!
//! Owns the order of the runs and what lies ready before each: fresh folders or what was learned before, full caches of
//! the system or empty ones. What the numbers mean is decided in `report`.

use std::{
    fs,
    path::{Path, PathBuf},
};

use super::{
    contender::{self, Contender},
    profile::Profile,
    tree::Tree,
    truth::Mistakes,
};
use crate::{
    process::{self, Call, Run},
    scratch::Scratch,
};

/// Somebody who is measured, with the programs it takes.
pub(super) enum Participant {
    /// The program `gristmill`.
    Ours(PathBuf),
    /// An earlier build of it.
    Before(PathBuf),
    Peer(&'static Contender, PathBuf),
    /// `walk`, in a process of its own.
    Walk,
    /// b3sum over the files with equals, started by xargs.
    Sums {
        xargs: PathBuf,
        b3sum: PathBuf,
    },
}

pub(super) const OURS: &str = "gristmill";
pub(super) const BEFORE: &str = "gristmill, before";
pub(super) const WALK: &str = "(plain parallel walk)";
pub(super) const SUMS: &str = "(b3sum of the duplicates alone)";

impl Participant {
    pub(super) fn name(&self) -> &'static str {
        match self {
            Participant::Ours(_) => OURS,
            Participant::Before(_) => BEFORE,
            Participant::Peer(contender, _) => contender.name,
            Participant::Walk => WALK,
            Participant::Sums { .. } => SUMS,
        }
    }

    /// Whether a second run can be quicker than the first for what it keeps.
    fn learns(&self) -> bool {
        match self {
            Participant::Ours(_) | Participant::Before(_) => true,
            Participant::Peer(contender, _) => contender.cached.is_some(),
            Participant::Walk | Participant::Sums { .. } => false,
        }
    }
}

/// What is done, under which conditions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Setting {
    pub(super) profile: Profile,
    /// A second time over an unchanged tree.
    pub(super) again: bool,
    /// With the system's caches empty.
    pub(super) cold: bool,
}

impl std::fmt::Display for Setting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let scan = if self.again { "rescan" } else { "first scan" };
        write!(f, "{}, {scan}, {}", self.profile.name(), if self.cold { "cold" } else { "warm" })
    }
}

/// One participant's measurements.
pub(super) struct Row {
    pub(super) name: &'static str,
    pub(super) runs: Vec<Run>,
    /// What was wrong with its worst answer.
    pub(super) mistakes: Mistakes,
    /// Why it was given up.
    pub(super) trouble: Option<String>,
}

/// A table.
pub(super) struct Scene {
    pub(super) setting: Setting,
    /// In the tree.
    pub(super) files: u64,
    pub(super) rows: Vec<Row>,
}

/// Measures.
pub(super) fn play(
    setting: Setting,
    tree: &Tree,
    participants: &[Participant],
    reps: usize,
) -> Result<Scene, String> {
    // Beside the tree: databases and caches are on the same disk.
    let scratch = Scratch::new(tree.root.parent().ok_or("the tree has no parent")?)?;
    let mut rows: Vec<Row> = Vec::new();
    for (nth, participant) in participants.iter().enumerate() {
        fs::create_dir(desk(&scratch, nth))
            .map_err(|error| format!("{}: {error}", scratch.path().display()))?;
        let mut row =
            Row { name: participant.name(), runs: Vec::new(), mistakes: Mistakes::default(), trouble: None };
        if setting.again && participant.learns() {
            row.trouble = measure(participant, tree, &desk(&scratch, nth), true).err();
        }
        rows.push(row);
    }
    for _ in 0..reps {
        if !setting.cold {
            process::warm(&tree.root).map_err(|error| format!("{}: {error}", tree.root.display()))?;
        }
        for (nth, (participant, row)) in participants.iter().zip(&mut rows).enumerate() {
            if row.trouble.is_some() {
                continue;
            }
            let desk = desk(&scratch, nth);
            if !setting.again {
                fs::remove_dir_all(&desk)
                    .and_then(|()| fs::create_dir(&desk))
                    .map_err(|error| format!("{}: {error}", desk.display()))?;
            }
            if setting.cold {
                process::cool()?;
            }
            match measure(participant, tree, &desk, setting.again) {
                Ok((run, mistakes)) => {
                    row.runs.push(run);
                    if !mistakes.none() {
                        row.mistakes = mistakes;
                    }
                }
                Err(trouble) => row.trouble = Some(trouble),
            }
        }
    }
    Ok(Scene { setting, files: tree.files, rows })
}

/// A participant's own folder: its home, its database, its answers.
fn desk(scratch: &Scratch, nth: usize) -> PathBuf {
    scratch.path().join(nth.to_string())
}

/// One run, and what its answer was worth.
fn measure(
    participant: &Participant,
    tree: &Tree,
    desk: &Path,
    again: bool,
) -> Result<(Run, Mistakes), String> {
    let (stdout, answer) = (desk.join("stdout"), desk.join("answer"));
    let read = |path: &Path| fs::read(path).map_err(|error| format!("{}: {error}", path.display()));
    let (run, groups) = match participant {
        Participant::Ours(program) | Participant::Before(program) => {
            let database = desk.join("gristmill.db");
            let call = |words: &[&str]| Call {
                program: program.clone(),
                words: ["--db".into(), database.clone().into()]
                    .into_iter()
                    .chain(words.iter().map(Into::into))
                    .collect(),
                well: &[0],
            };
            let root = tree.root.to_str().ok_or("the tree's path is not UTF-8")?;
            let run = process::run(&call(&["scan", root, "--yes", "--quiet", "--json"]), desk)?;
            process::run(&call(&["dupes", "--fdupes"]), desk)?;
            (run, contender::fdupes(&read(&stdout)?))
        }
        Participant::Peer(contender, program) => {
            let run = process::run(&contender.call(program, &tree.root, &answer, again), desk)?;
            let groups = contender.answer(&stdout, &answer);
            (run, groups.map_err(|error| format!("{}'s answer: {error}", contender.name))?)
        }
        Participant::Walk => return walked(tree, desk),
        Participant::Sums { xargs, b3sum } => {
            let list = desk.join("list");
            let paths = tree.truth.files().map(|path| format!("{}\0", tree.root.join(path).display()));
            fs::write(&list, paths.collect::<String>())
                .map_err(|error| format!("{}: {error}", list.display()))?;
            let run = process::run(&contender::sums(xargs.clone(), b3sum, &list), desk)?;
            (run, contender::summed(&read(&stdout)?))
        }
    };
    Ok((run, tree.truth.mistakes(&tree.root.to_string_lossy(), groups)))
}

fn walked(tree: &Tree, desk: &Path) -> Result<(Run, Mistakes), String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let words = vec!["dedup-walk".into(), tree.root.clone().into()];
    let run = process::run(&Call { program, words, well: &[0] }, desk)?;
    let told = fs::read_to_string(desk.join("stdout")).map_err(|error| error.to_string())?;
    let want = format!("{} files, {} bytes", tree.files, tree.bytes);
    if told.trim() == want {
        Ok((run, Mistakes::default()))
    } else {
        Err(format!("walked {told}, not {want}"))
    }
}
