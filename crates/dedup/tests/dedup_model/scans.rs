//! Runs a scan, and stops or kills it midway.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use gristmill_dedup::{Result, ScanHandle, ScanPhase, ScanProgress, ScanSummary, scan};
use gristmill_store::Store;
use gristmill_store::roots::Root;
use rustix::process::{Signal, getpid, kill_process};

use crate::catalog;
use crate::disk::Disk;
use crate::ops::{self, Meanwhile, Op, ScanOp, Stop};

const PHASES: [ScanPhase; 6] = [
    ScanPhase::Starting,
    ScanPhase::Walking,
    ScanPhase::Planning,
    ScanPhase::Samples,
    ScanPhase::Contents,
    ScanPhase::Finishing,
];

/// Environment variables for a process that is killed: round and operation, and the store.
const CHILD: &str = "GRISTMILL_CHECK_CHILD";
const STORE: &str = "GRISTMILL_CHECK_STORE";

fn is_reached(stop: Stop, progress: ScanProgress) -> bool {
    let phase = PHASES.iter().position(|phase| *phase == progress.phase).unwrap_or(0);
    match stop {
        Stop::Never => false,
        Stop::Before => true,
        Stop::AtFirstRead => progress.bytes_read > 0,
        Stop::AfterFolders(folders) => progress.folders >= folders,
        Stop::AfterFiles(files) => progress.files >= files,
        Stop::AfterReads(reads) => progress.read >= reads,
        Stop::InPhase(number) => phase >= number,
    }
}

/// Scans, and calls `act` once when the scan reaches its stop point.
fn run_until(
    store: &Store,
    (base, roots): (&Path, &[Root]),
    op: &ScanOp,
    act: impl Fn(&ScanHandle),
) -> Result<ScanSummary> {
    let handle = Arc::new(ScanHandle::default());
    let named = op.named.as_ref().map(|names| ops::named_files(base, names));
    let options = options!(ScanOptions { named: named; ..op.options() });
    if op.stop == Stop::Before {
        act(&handle);
    }
    if matches!(op.stop, Stop::Never | Stop::Before) {
        return scan(store, roots, &options, &handle);
    }
    std::thread::scope(|scope| {
        let running = scope.spawn(|| scan(store, roots, &options, &handle));
        while !running.is_finished() && !is_reached(op.stop, handle.progress()) {
            std::thread::yield_now();
        }
        if !running.is_finished() {
            act(&handle);
        }
        running.join().expect("a scan that does not panic")
    })
}

/// Scans. At the stop point, runs the action of the operation and cancels the scan.
pub(crate) fn run(store: &Store, roots: &[Root], op: &ScanOp, disk: &Disk) -> Result<ScanSummary> {
    run_until(store, (disk.base(), roots), op, |handle| {
        match &op.meanwhile {
            None => {}
            Some(Meanwhile::Edits(edits, stops)) => {
                for edit in edits {
                    let _ = disk.change(edit);
                }
                if !stops {
                    return;
                }
            }
            Some(Meanwhile::Scan(number)) => {
                let one = ScanOp { root: Some(*number), ..ScanOp::complete(op.rules.clone()) };
                let all = store.roots().list().unwrap_or_default();
                // Refused if this root is being scanned.
                let _ = scan(store, &chosen(&one, &all), &one.options(), &Arc::default());
            }
        }
        handle.cancel();
    })
}

/// Scans in another process, which kills itself at the stop point. Returns whether it was killed.
pub(crate) fn run_and_kill(store: &Path, round: Child) -> bool {
    let Child { seed, mounts, index } = round;
    let status = Command::new(std::env::current_exe().expect("a program"))
        .args(["--exact", "scan_and_be_killed", "--include-ignored"])
        .env(CHILD, format!("{seed} {} {index}", u8::from(mounts)))
        .env(STORE, store)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .expect("a process");
    !status.success()
}

/// The operation and round that another process runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Child {
    pub(crate) seed: u64,
    pub(crate) mounts: bool,
    pub(crate) index: usize,
}

/// Runs the operation that the environment variables name, in the process that is killed.
pub(crate) fn be_killed() -> Option<()> {
    let (child, store) = (std::env::var(CHILD).ok()?, std::env::var_os(STORE)?);
    let mut numbers = child.split(' ').map(|number| number.parse::<u64>().expect("a number"));
    let (seed, mounts, index) = (numbers.next()?, numbers.next()? == 1, numbers.next()?);
    let op = ops::choose(seed, mounts).swap_remove(usize::try_from(index).ok()?);
    let Op::Scan(op) = op else { return None };
    let base = Path::new(&store).parent()?;
    let store = catalog::open(Path::new(&store));
    let roots = store.roots().list().expect("roots");
    let roots = chosen(&op, &roots);
    // A scan that ends before the stop point is not killed. Its errors are not checked.
    let _ = run_until(&store, (base, &roots), &op, |_| kill_process(getpid(), Signal::KILL).expect("killed"));
    Some(())
}

/// The roots that a scan is asked for.
pub(crate) fn chosen(op: &ScanOp, roots: &[Root]) -> Vec<Root> {
    let is_chosen =
        |root: &&Root| op.named.is_none() && op.root.is_none_or(|number| root.path.ends_with(ops::ROOTS[number]));
    roots.iter().filter(is_chosen).cloned().collect()
}
