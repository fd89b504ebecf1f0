//! The operations of a round, chosen by a seed before the round starts.
//!
//! Operations hold numbers, not paths: `file` is taken modulo the number of files that exist when the operation is
//! applied. So any subset of a round's operations is also a round, which makes failures easy to reduce.

use std::path::{Path, PathBuf};

use gristmill_check::Rng;
use gristmill_dedup::{Filter, NamedFiles, ScanMode, ScanOptions};
use gristmill_store::catalog::Algorithm;

use crate::rules::{Pattern, Rules};

/// Folders that can become roots. The last two are mount points.
pub(crate) const ROOTS: [&str; 6] = ["r0", "r1", "r0/in", "r1/a/b", "m0", "m1"];
/// Index of the first mount point among the roots.
pub(crate) const FIRST_MOUNT: usize = 4;
/// Folders on which disks are mounted: two roots, and a folder inside a root.
pub(crate) const MOUNT_POINTS: [&str; 3] = ["m0", "m1", "r0/d"];
/// A folder, and the path of its bind mount.
pub(crate) const BIND: (&str, &str) = ("r0/a", "r1/bound");
/// Number of disk images. The filesystem of the last one has timestamps in whole seconds.
pub(crate) const DISKS: usize = 3;
/// Folders inside a root.
pub(crate) const FOLDERS: [&str; 6] = ["", "a", "a/b", "in", ".h", "d"];
/// File names used by the operations.
pub(crate) const NAMES: [&str; 8] = ["f0", "f1", "f2", "g.o", ".x", "k.o", "f3", "f4"];
/// File sizes: empty, small, around the limit of small files, and one with five samples.
pub(crate) const SIZES: [usize; 8] = [0, 1, 100, 5_000, 65_536, 65_537, 90_000, 1_100_000];
/// Indexes of the sizes that most files have.
const COMMON_SIZES: [usize; 3] = [2, 3, 6];
/// Number of contents per size. The first is all zeros, so a sparse file can be a copy of it.
pub(crate) const CONTENTS: u8 = 3;
/// Lines used in `.gitignore` files.
pub(crate) const IGNORES: [&str; 4] = ["*.o", "!*.o", "f1", "/a"];

/// A folder of a root, and a name in it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Location {
    pub(crate) root: usize,
    pub(crate) folder: usize,
    pub(crate) name: usize,
}

/// Target of a symbolic link.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Target {
    OutsideFile(usize),
    OutsideFolder,
    Nothing,
    Parent,
    Root(usize),
}

#[derive(Clone, Debug)]
pub(crate) enum Op {
    Write {
        at: Location,
        size: usize,
        content: u8,
        sparse: bool,
    },
    /// Writes more files than fit in one listing.
    ManyFiles {
        at: Location,
        content: u8,
    },
    /// Keeps the size and restores the modification time.
    Rewrite {
        file: usize,
        content: u8,
    },
    /// Sets the modification time to a day of 1970.
    Touch {
        file: usize,
        day: u64,
    },
    Chmod {
        file: usize,
    },
    Remove {
        file: usize,
    },
    Rename {
        file: usize,
        to: Location,
    },
    Copy {
        file: usize,
        to: Location,
    },
    HardLink {
        file: usize,
        to: Location,
    },
    Symlink {
        at: Location,
        target: Target,
    },
    Fifo {
        at: Location,
    },
    Ignore {
        at: Location,
        line: usize,
    },
    MoveFolder {
        from: Location,
        to: Location,
    },
    RemoveFolder {
        at: Location,
    },
    /// Replaces a file by a folder, or a folder by a file.
    Swap {
        at: Location,
        content: u8,
    },
    MoveRootAway(usize),
    MoveRootBack(usize),
    Mount {
        point: usize,
        disk: usize,
    },
    Unmount {
        point: usize,
    },
    /// Mounts or unmounts the bind mount.
    Bind,
    Unbind,
    Register(usize),
    Unregister(usize),
    FollowLinks(usize, bool),
    ReopenStore,
    Purge,
    Scan(ScanOp),
}

/// The point at which a scan is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    Never,
    Before,
    /// After the first read. A rate limit prevents further reads.
    AtFirstRead,
    AfterFolders(u64),
    AfterFiles(u64),
    AfterReads(u64),
    InPhase(usize),
}

#[derive(Clone, Debug)]
pub(crate) struct ScanOp {
    /// Index of the root to scan; `None` for all roots.
    pub(crate) root: Option<usize>,
    /// The files to scan instead of roots.
    pub(crate) named: Option<Vec<Location>>,
    pub(crate) mode: ScanMode,
    pub(crate) algorithm: Algorithm,
    pub(crate) every_file: bool,
    pub(crate) restart: bool,
    pub(crate) allow_empty: bool,
    pub(crate) workers: usize,
    pub(crate) rules: Rules,
    pub(crate) stop: Stop,
    /// Whether the scan runs in a separate process, which is killed instead of stopped.
    pub(crate) kill: bool,
    /// The action taken when the scan reaches the stop point.
    pub(crate) meanwhile: Option<Meanwhile>,
}

/// An action taken while a scan is running.
#[derive(Clone, Debug)]
pub(crate) enum Meanwhile {
    /// Files change. Then the scan is stopped if the flag is set.
    Edits(Vec<Op>, bool),
    /// One root is scanned, then this scan is stopped.
    Scan(usize),
}

impl ScanOp {
    pub(crate) fn options(&self) -> ScanOptions {
        let Rules { one_file_system, .. } = self.rules;
        options!(ScanOptions {
            mode: self.mode,
            algorithm: self.algorithm,
            every_file: self.every_file,
            restart: self.restart,
            one_file_system,
            allow_empty: self.allow_empty,
            filter: Filter::from(&self.rules),
            workers: Some(self.workers),
            io_limit: (self.stop == Stop::AtFirstRead).then_some(1),
            top: 0,
        })
    }

    /// Returns a scan of all roots that reads everything and is not stopped.
    pub(crate) fn complete(rules: Rules) -> Self {
        ScanOp {
            root: None,
            named: None,
            mode: ScanMode::All,
            algorithm: Algorithm::Blake3,
            every_file: false,
            restart: false,
            allow_empty: true,
            workers: 4,
            rules,
            stop: Stop::Never,
            kill: false,
            meanwhile: None,
        }
    }
}

/// Returns the named files of a scan, in a folder with all roots.
pub(crate) fn named_files(base: &Path, names: &[Location]) -> NamedFiles {
    let mut named = NamedFiles::default();
    names.iter().for_each(|at| named.add(&at.path(base)));
    named
}

impl Location {
    pub(crate) fn path(self, base: &Path) -> PathBuf {
        base.join(ROOTS[self.root]).join(FOLDERS[self.folder]).join(NAMES[self.name])
    }
}

/// Chooses the operations of a round. `mounts` states whether disks can be mounted.
pub(crate) fn choose(seed: u64, mounts: bool) -> Vec<Op> {
    let mut rng = Rng::new(seed);
    let rng = &mut rng;
    let mut ops = Vec::new();
    // Most rounds use few roots, so that operations affect the same files.
    let disks = mounts && one_in(rng, 4);
    let mut usable: Vec<usize> = if disks { vec![1, 4, 5] } else { (0..FIRST_MOUNT).collect() };
    for _ in 0..rng.within(0..usable.len()) {
        usable.remove(rng.within(0..usable.len()));
    }
    let mut mounted = false;
    for &root in &usable {
        // Mostly one disk, because disks that are mounted in turn get the same device number.
        if root >= FIRST_MOUNT && (!mounted || one_in(rng, 4)) {
            ops.push(Op::Mount { point: root - FIRST_MOUNT, disk: rng.within(0..DISKS) });
            mounted = true;
        }
        if root == usable[0] || !one_in(rng, 4) {
            ops.push(Op::Register(root));
        }
    }
    for _ in 0..3 + rng.within(0..10) {
        ops.push(write(rng, &usable));
    }
    if one_in(rng, 50) {
        ops.push(Op::ManyFiles { at: location(rng, &usable), content: 1 });
    }
    let defaults = ScanDefaults { rules: rules(rng), filters: one_in(rng, 2), kills: one_in(rng, 12) };
    let binds = mounts && !disks && one_in(rng, 3);
    for _ in 0..2 + rng.within(0..7) {
        for _ in 0..rng.within(0..4) {
            ops.push(edit(rng, &usable));
        }
        if binds && one_in(rng, 2) {
            ops.push(if one_in(rng, 3) { Op::Unbind } else { Op::Bind });
        }
        if disks && one_in(rng, 2) {
            swap_disks(rng, &mut ops);
        } else if one_in(rng, 3) {
            ops.push(root_op(rng, &usable, mounts));
        }
        ops.push(Op::Scan(scan(rng, &usable, &defaults)));
    }
    ops
}

fn one_in(rng: &mut Rng, number: usize) -> bool {
    rng.within(0..number) == 0
}

/// Properties that the scans of a round have in common.
struct ScanDefaults {
    rules: Rules,
    filters: bool,
    kills: bool,
}

fn location(rng: &mut Rng, usable: &[usize]) -> Location {
    Location { root: *rng.pick(usable), folder: rng.within(0..FOLDERS.len()), name: rng.within(0..NAMES.len()) }
}

fn write(rng: &mut Rng, usable: &[usize]) -> Op {
    // Few sizes are common, so that files have equal sizes; the largest size takes the most time.
    let size = if one_in(rng, 4) { rng.within(0..SIZES.len()) } else { *rng.pick(&COMMON_SIZES) };
    let content = u8::try_from(rng.within(0..CONTENTS.into())).unwrap_or(0);
    Op::Write { at: location(rng, usable), size, content, sparse: one_in(rng, 8) }
}

fn edit(rng: &mut Rng, usable: &[usize]) -> Op {
    let file = rng.within(0..64);
    let content = u8::try_from(rng.within(0..CONTENTS.into())).unwrap_or(0);
    let (at, to) = (location(rng, usable), location(rng, usable));
    match rng.within(0..22) {
        0..=3 => write(rng, usable),
        4..=6 => Op::Rewrite { file, content },
        7 => Op::Touch { file, day: rng.within(0..3) as u64 },
        8 => Op::Chmod { file },
        9 | 10 => Op::Remove { file },
        11 => Op::Rename { file, to },
        12..=14 => Op::Copy { file, to },
        15 => Op::HardLink { file, to },
        16 => {
            let target = match rng.within(0..6) {
                0 | 1 => Target::OutsideFile(rng.within(0..3)),
                2 => Target::OutsideFolder,
                3 => Target::Nothing,
                4 => Target::Parent,
                _ => Target::Root(rng.within(0..ROOTS.len())),
            };
            Op::Symlink { at, target }
        }
        17 => Op::Fifo { at },
        18 => Op::Ignore { at, line: rng.within(0..IGNORES.len()) },
        19 => Op::MoveFolder { from: at, to },
        20 => Op::RemoveFolder { at },
        _ => Op::Swap { at, content },
    }
}

fn root_op(rng: &mut Rng, usable: &[usize], mounts: bool) -> Op {
    let root = *rng.pick(usable);
    let point = rng.within(0..MOUNT_POINTS.len());
    match rng.within(0..if mounts { 14 } else { 10 }) {
        0 | 1 => Op::Register(root),
        2 => Op::Unregister(root),
        3 | 4 => Op::MoveRootAway(root),
        5 | 6 => Op::MoveRootBack(root),
        7 => Op::FollowLinks(root, !one_in(rng, 3)),
        8 => Op::ReopenStore,
        9 => Op::Purge,
        10 | 11 => Op::Mount { point, disk: rng.within(0..DISKS) },
        _ => Op::Unmount { point },
    }
}

/// Unmounts the disks, then mounts another or the same one and writes to it.
fn swap_disks(rng: &mut Rng, ops: &mut Vec<Op>) {
    ops.push(Op::Unmount { point: 0 });
    ops.push(Op::Unmount { point: 1 });
    if !one_in(rng, 4) {
        let point = rng.within(0..2);
        ops.push(Op::Mount { point, disk: rng.within(0..DISKS) });
        for _ in 0..rng.within(0..4) {
            ops.push(write(rng, &[FIRST_MOUNT + point]));
        }
    }
}

fn scan(rng: &mut Rng, usable: &[usize], defaults: &ScanDefaults) -> ScanOp {
    let stop = match rng.within(0..13) {
        0 => Stop::Before,
        1 | 2 => Stop::AtFirstRead,
        3 => Stop::AfterFolders(1 + rng.within(0..4) as u64),
        4 | 5 => Stop::AfterFiles(1 + rng.within(0..6) as u64),
        6 => Stop::AfterReads(1 + rng.within(0..6) as u64),
        7 => Stop::InPhase(1 + rng.within(0..4)),
        _ => Stop::Never,
    };
    let mode = match rng.within(0..12) {
        0 => ScanMode::Walk,
        1 => ScanMode::Hash,
        2 => ScanMode::Refresh,
        _ => ScanMode::All,
    };
    let algorithm = if one_in(rng, 8) { Algorithm::Sha256 } else { Algorithm::Blake3 };
    let rules = match rng.within(0..4) {
        0 if defaults.filters => rules(rng),
        1 => Rules::default(),
        _ if defaults.filters => defaults.rules.clone(),
        _ => Rules::default(),
    };
    let kill = defaults.kills && stop != Stop::Never && one_in(rng, 2);
    let meanwhile = match rng.within(0..10) {
        _ if kill || matches!(stop, Stop::Never | Stop::Before) => None,
        0 | 1 => {
            let edits = (0..=rng.within(0..3)).map(|_| edit(rng, usable)).collect();
            Some(Meanwhile::Edits(edits, stop == Stop::AtFirstRead || one_in(rng, 2)))
        }
        2 => Some(Meanwhile::Scan(*rng.pick(usable))),
        _ => None,
    };
    let named = matches!(mode, ScanMode::All | ScanMode::Walk) && one_in(rng, 4);
    ScanOp {
        named: named.then(|| (0..1 + rng.within(0..8)).map(|_| location(rng, usable)).collect()),
        root: one_in(rng, 3).then(|| *rng.pick(usable)),
        mode,
        algorithm,
        every_file: one_in(rng, 10),
        restart: one_in(rng, 4),
        allow_empty: one_in(rng, 2),
        workers: *rng.pick(&[1, 4]),
        rules,
        stop,
        kill,
        meanwhile,
    }
}

/// Chooses the filters of a scan.
pub(crate) fn rules(rng: &mut Rng) -> Rules {
    let mut rules = Rules::default();
    let patterns = |rng: &mut Rng| (0..=rng.within(0..2)).map(|_| Pattern::pick(rng)).collect();
    match rng.within(0..10) {
        0 => rules.min_size = Some(*rng.pick(&[1, 100, 65_536])),
        1 => rules.max_size = Some(*rng.pick(&[100, 65_536])),
        2 | 3 => rules.exclude = patterns(rng),
        4 => rules.include = patterns(rng),
        5 => rules.skip_hidden = true,
        6 => rules.gitignore = true,
        7 => rules.one_file_system = true,
        8 => rules.max_depth = Some(*rng.pick(&[1, 2])),
        _ => rules.older_than_day = Some(2),
    }
    if one_in(rng, 4) {
        rules.skip_hidden = true;
    }
    rules
}
