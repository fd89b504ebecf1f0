//! Scans that are stopped, killed, or meet another; and the next one, which goes on.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use gristmill_dedup::{Filter, ScanHandle, ScanMode, ScanOptions, ScanPhase, ScanProgress, ScanSummary};
use gristmill_store::catalog::FileRow;

use gristmill_store::roots::Root;

use crate::bed::{Bed, KIB, MIB, bytes};

/// At this pace a scan would take days: the test ends only if it stops when it is told to.
pub(crate) fn forever() -> ScanOptions {
    ScanOptions { io_limit: Some(1), workers: Some(2), ..ScanOptions::default() }
}

struct Stops<'a>(&'a ScanHandle);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// Runs a scan until it has come so far, does something meanwhile, and stops it.
pub(crate) fn stop_when(
    bed: &Bed,
    options: &ScanOptions,
    far: impl Fn(ScanProgress) -> bool,
    meanwhile: impl FnOnce(),
) -> ScanSummary {
    stop_roots_when(bed, std::slice::from_ref(&bed.root), options, far, meanwhile)
}

pub(crate) fn stop_roots_when(
    bed: &Bed,
    roots: &[Root],
    options: &ScanOptions,
    far: impl Fn(ScanProgress) -> bool,
    meanwhile: impl FnOnce(),
) -> ScanSummary {
    let control = Arc::new(ScanHandle::default());
    let summary = std::thread::scope(|scope| {
        let scan = scope.spawn(|| bed.try_scan(roots, options, &control).expect("a scan"));
        // Also when something panics, or the scan would go on for days.
        let stop = Stops(&control);
        while !far(control.progress()) {
            assert!(!scan.is_finished(), "it was over before it came so far");
            std::thread::yield_now();
        }
        meanwhile();
        drop(stop);
        scan.join().expect("a scan")
    });
    assert!(summary.interrupted, "{summary:?}");
    summary
}

/// Small files, which are read while walking; large ones for the two rounds after it; folders.
fn tree() -> Bed {
    let bed = Bed::of(&[("a", 1, 50), ("b", 1, 50), ("large", 1, 8 * MIB), ("f/large", 1, 8 * MIB)]);
    for number in 0..30 {
        bed.write(format!("f/{}/g/{number}", number % 5), &bytes(number % 7, 60));
    }
    bed.link("a", "a too");
    bed
}

/// All that a catalog says of a tree, but for numbers of rows and times.
fn picture(bed: &Bed) -> Vec<String> {
    let rows = bed.rows().into_iter();
    let rows = rows.map(|(path, row)| {
        let FileRow { stat, algorithm, samples: edges, failed, .. } = row;
        format!("{path:?} {stat:?} {algorithm:?} {edges:?} {failed}")
    });
    let groups = bed.group_list().into_iter();
    let groups = groups.map(|group| {
        let members: Vec<_> = group.members.iter().map(|member| (&member.path, member.linked)).collect();
        format!("{:?} {} {members:?}", group.hash, group.copies)
    });
    rows.chain(groups).collect()
}

/// The same tree, scanned by nobody else and not disturbed.
fn undisturbed(bed: &Bed) -> Vec<String> {
    let folder = tempfile::tempdir().expect("a folder");
    let store = crate::bed::open(folder.path().join("t.db"));
    let root = store.roots().register(&bed.root.path).expect("a root");
    let other = Bed { folder, store, root };
    other.scan();
    picture(&other)
}

/// The next scan goes on, and ends as if nothing had been.
#[track_caller]
fn goes_on(bed: &Bed) -> ScanSummary {
    let summary = bed.scan();
    assert!(summary.resumed);
    assert_eq!(picture(bed), undisturbed(bed));
    assert!(!bed.scan().resumed);
    summary
}

/// New files are read while they are walked, known ones by a plan. Both come to the same, whatever is left of the first
/// for the second: names of one file, the largest.
#[test]
fn what_is_read_while_walking_is_what_a_plan_would_read() {
    let unlike_in_the_middle = |seed, size| {
        let mut content = bytes(1, size);
        content[size * 2 / 5] = seed;
        content
    };
    let bed = Bed::of(&[("alone", 1, 3 * MIB), ("small", 1, 64 * KIB), ("f/small", 1, 64 * KIB)]);
    for (number, folder) in [(9, "a"), (8, "a/b"), (7, "c")] {
        bed.write(format!("{folder}/twin"), &bytes(2, 64 * KIB + 1));
        bed.write(format!("{folder}/no twin"), &bytes(number, 64 * KIB + 1));
        let seed = u8::from(folder == "c");
        bed.write(format!("{folder}/middle"), &unlike_in_the_middle(seed, 2 * MIB));
        bed.write(format!("{folder}/largest"), &unlike_in_the_middle(seed, 17 * MIB));
    }
    for more in [false, true] {
        if more {
            bed.link("a/twin", "c/a name of twin");
            bed.write("empty", b"");
        }
        let direct = undisturbed(&bed);
        bed.scan_with(&ScanOptions { mode: ScanMode::Walk, ..ScanOptions::default() });
        bed.scan();
        assert_eq!(picture(&bed), direct);
        assert_eq!(bed.group_list().len(), 4);
    }
}

#[test]
fn a_scan_that_is_stopped_before_it_began() {
    let bed = tree();
    let control = Arc::new(ScanHandle::default());
    control.cancel();
    let summary = bed.try_scan(std::slice::from_ref(&bed.root), &ScanOptions::default(), &control);
    assert!(summary.expect("a scan").interrupted);
    goes_on(&bed);
}

#[test]
fn a_scan_that_is_stopped_while_it_walks() {
    let bed = tree();
    stop_when(&bed, &forever(), |progress| progress.bytes_read > 0, || ());
    goes_on(&bed);
}

#[test]
fn a_scan_that_is_stopped_while_it_probes() {
    let bed = tree();
    bed.scan_with(&ScanOptions { mode: ScanMode::Walk, ..ScanOptions::default() });
    stop_when(&bed, &forever(), |progress| progress.phase == ScanPhase::Samples, || ());
    goes_on(&bed);
}

/// Stops a scan that reads large files through. They are known before: new ones are read while they are walked.
fn stop_at_contents(bed: &Bed) {
    bed.scan_with(&ScanOptions { mode: ScanMode::Walk, ..ScanOptions::default() });
    // Fast enough for edges, far too slow for contents.
    let options = ScanOptions { io_limit: Some(2 * MIB as u64), workers: Some(1), ..ScanOptions::default() };
    stop_when(bed, &options, |progress| progress.phase == ScanPhase::Contents, || ());
}

#[test]
fn a_scan_that_is_stopped_while_it_reads() {
    let bed = tree();
    stop_at_contents(&bed);
    // Folders are looked at again; what was read is not read again.
    let summary = goes_on(&bed);
    assert_eq!((summary.read_files, summary.sampled_files), (2, 0), "{summary:?}");
}

#[test]
fn resumed_scan_looks_again_at_folders_walked_before_it_stopped() {
    let bed = Bed::of(&[("gone", 1, 50), ("f/kept", 1, 50), ("f/changed", 1, 50), ("f/also", 1, 50)]);
    bed.write("big", &bytes(1, 8 * MIB));
    bed.write("big too", &bytes(1, 8 * MIB));
    // All folders were walked; the scan stops while it reads.
    stop_at_contents(&bed);
    bed.remove("gone");
    bed.write("f/changed", &bytes(2, 60));
    bed.write("f/new", &bytes(2, 60));
    let summary = bed.scan();
    assert!(summary.resumed);
    assert_eq!((summary.removed_files, summary.changed_files, summary.new_files), (1, 1, 1));
    bed.has_groups(&[&["f/kept", "f/also"], &["f/changed", "f/new"], &["big", "big too"]]);
}

/// The rules of folders that were walked before it was stopped hold for those that were not.
#[test]
fn a_scan_that_goes_on_knows_what_git_ignores() {
    let bed = Bed::of(&[("f/a", 1, 50), ("f/b", 1, 50), ("f/x.o", 1, 50), ("f/g/y.o", 1, 50)]);
    bed.write(".gitignore", b"*.o\n");
    let filter = Filter { gitignore: true, ..Filter::default() };
    let options = ScanOptions { filter: filter.clone(), workers: Some(1), ..forever() };
    stop_when(&bed, &options, |progress| progress.bytes_read > 0, || ());
    let summary = bed.scan_with(&ScanOptions { filter, ..ScanOptions::default() });
    assert!(summary.resumed);
    bed.has_files(&[".gitignore", "f/a", "f/b"]);
}

#[test]
fn another_request_begins_anew() {
    for other in [
        ScanOptions { restart: true, ..ScanOptions::default() },
        ScanOptions { mode: ScanMode::Walk, ..ScanOptions::default() },
        ScanOptions { filter: Filter { min_size: Some(1), ..Filter::default() }, ..ScanOptions::default() },
        ScanOptions { one_file_system: true, ..ScanOptions::default() },
    ] {
        let bed = tree();
        stop_at_contents(&bed);
        let summary = bed.scan_with(&other);
        assert!(!summary.resumed, "{other:?}");
        bed.scan();
        assert_eq!(picture(&bed), undisturbed(&bed));
    }
}

#[test]
fn what_was_read_before_is_put_together_by_a_scan_that_begins_anew() {
    let bed = Bed::of(&[("a", 1, 10), ("b", 1, 10), ("c", 1, 60_000), ("d", 1, 60_000)]);
    bed.scan_with(&ScanOptions { mode: ScanMode::Walk, ..ScanOptions::default() });
    // In their order: three are read, the last is waited for.
    let options = ScanOptions { io_limit: Some(1_000), workers: Some(1), ..ScanOptions::default() };
    stop_when(&bed, &options, |progress| progress.bytes_read >= 60_020, || ());
    bed.remove("c");
    bed.remove("d");
    let summary = bed.scan_with(&ScanOptions { restart: true, ..ScanOptions::default() });
    assert_eq!((summary.resumed, summary.read_files), (false, 0));
    bed.has_groups(&[&["a", "b"]]);
}

#[test]
fn a_file_that_changes_between_its_two_readings_can_still_be_found() {
    let bed = Bed::of(&[("a", 1, 8 * MIB), ("b", 1, 8 * MIB)]);
    stop_at_contents(&bed);
    bed.write("a", &bytes(2, 8 * MIB));
    assert!(bed.scan().resumed);
    bed.has_groups(&[]);
    bed.write("c", &bytes(2, 8 * MIB));
    bed.scan();
    bed.has_groups(&[&["a", "c"]]);
}

#[test]
fn stopped_at_every_folder_it_still_arrives() {
    let bed = tree();
    let mut stops = 0;
    loop {
        let control = Arc::new(ScanHandle::default());
        let options = ScanOptions { workers: Some(1), ..ScanOptions::default() };
        let summary = std::thread::scope(|scope| {
            let roots = std::slice::from_ref(&bed.root);
            let scan = scope.spawn(|| bed.try_scan(roots, &options, &control).expect("a scan"));
            while !scan.is_finished() && control.progress().folders == 0 {
                std::thread::yield_now();
            }
            // As soon as it has done something; the last one may arrive.
            if stops < 10 {
                control.cancel();
            }
            scan.join().expect("a scan")
        });
        if !summary.interrupted {
            break;
        }
        stops += 1;
    }
    assert_eq!(picture(&bed), undisturbed(&bed));
    bed.is_sound();
}

#[test]
fn a_second_scan_of_this_process_is_refused() {
    let bed = tree();
    stop_when(
        &bed,
        &forever(),
        |progress| progress.bytes_read > 0,
        || {
            let roots = std::slice::from_ref(&bed.root);
            let error = bed
                .try_scan(roots, &ScanOptions::default(), &Arc::default())
                .expect_err("it is being scanned");
            let process = format!("process {}", std::process::id());
            assert!(error.is_user_error() && error.to_string().contains(&process), "{error}");
        },
    );
    goes_on(&bed);
}

const STORE: &str = "GRISTMILL_TEST_STORE";

/// Runs one of these tests in a process of its own, on this store.
fn elsewhere(name: &str, bed: &Bed) -> Child {
    Command::new(std::env::current_exe().expect("a program"))
        .args(["--exact", name, "--nocapture", "--include-ignored"])
        .env(STORE, bed.folder.path().join("t.db"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a process")
}

/// The store to work on, for a test that is run by another.
fn given() -> Option<Bed> {
    let store = crate::bed::open(PathBuf::from(std::env::var_os(STORE)?));
    let root = store.roots().list().expect("roots").remove(0);
    Some(Bed { folder: tempfile::tempdir().expect("a folder"), store, root })
}

/// Waits until a process says a word. What it says after that is to be kept open, or it fails to say it.
fn wait_for(child: &mut Child, word: &str) -> impl Sized + use<> {
    let mut lines = BufReader::new(child.stdout.take().expect("its words")).lines();
    let said = lines.by_ref().any(|line| line.expect("a line").contains(word));
    assert!(said, "it never said {word:?}");
    lines
}

fn say(word: &str) {
    writeln!(std::io::stdout(), "\n{word}").expect("said");
}

/// The other side of the two tests below: scans, and does not come to an end.
#[test]
#[ignore = "run by other tests"]
fn scan_without_end() {
    let Some(bed) = given() else { return };
    stop_when(
        &bed,
        &forever(),
        |progress| progress.bytes_read > 0,
        || {
            say("reading");
            // Until whoever started it says so, or is gone.
            let _ = std::io::stdin().lines().next();
        },
    );
}

#[test]
fn a_scan_that_another_process_holds_is_refused_by_its_name() {
    let bed = tree();
    let mut other = elsewhere("stop::scan_without_end", &bed);
    let _ear = wait_for(&mut other, "reading");
    let roots = std::slice::from_ref(&bed.root);
    let error =
        bed.try_scan(roots, &ScanOptions::default(), &Arc::default()).expect_err("it is being scanned");
    let text = error.to_string();
    assert!(error.is_user_error() && text.contains(&format!("process {} on", other.id())), "{text}");
    assert!(text.contains("tree") && text.contains("being scanned already"), "{text}");
    // Whatever was asked for.
    let restart = ScanOptions { restart: true, ..ScanOptions::default() };
    assert!(bed.try_scan(roots, &restart, &Arc::default()).is_err());
    // Of two roots neither is begun.
    let beside = bed.register(&bed.outside("beside"));
    let both = [beside.clone(), bed.root.clone()];
    assert!(bed.try_scan(&both, &ScanOptions::default(), &Arc::default()).is_err());
    assert!(bed.store.roots().remove(bed.root.id).is_err());
    writeln!(other.stdin.take().expect("its ear"), "stop").expect("told");
    assert!(other.wait().expect("its end").success());
    goes_on(&bed);
    bed.scan_all(&[beside], &ScanOptions::default());
}

#[test]
fn a_scan_whose_process_was_killed_is_gone_on_with() {
    let bed = tree();
    let mut other = elsewhere("stop::scan_without_end", &bed);
    let _ear = wait_for(&mut other, "reading");
    other.kill().expect("killed");
    other.wait().expect("its end");
    goes_on(&bed);
}
