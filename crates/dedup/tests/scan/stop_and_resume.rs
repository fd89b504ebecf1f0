//! Tests scans that are cancelled, killed or run concurrently, and the scans that resume them.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use gristmill_dedup::{Filter, ScanHandle, ScanMode, ScanOptions, ScanPhase, ScanProgress, ScanSummary};
use gristmill_store::catalog::FileRow;
use gristmill_store::roots::Root;

use crate::fixture::{Fixture, KIB, MIB, bytes};

/// At this rate a scan would take days, so the test ends only if the cancellation works.
pub(crate) fn throttled() -> ScanOptions {
    options!(ScanOptions { io_limit: Some(1), workers: Some(2) })
}

struct CancelOnDrop<'a>(&'a ScanHandle);

impl Drop for CancelOnDrop<'_> {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// Runs a scan until `is_reached`, calls `meanwhile`, and cancels the scan.
pub(crate) fn stop_when(
    fixture: &Fixture,
    options: &ScanOptions,
    is_reached: impl Fn(ScanProgress) -> bool,
    meanwhile: impl FnOnce(),
) -> ScanSummary {
    stop_roots_when(fixture, std::slice::from_ref(&fixture.root), options, is_reached, meanwhile)
}

pub(crate) fn stop_roots_when(
    fixture: &Fixture,
    roots: &[Root],
    options: &ScanOptions,
    is_reached: impl Fn(ScanProgress) -> bool,
    meanwhile: impl FnOnce(),
) -> ScanSummary {
    let handle = Arc::new(ScanHandle::default());
    let summary = std::thread::scope(|scope| {
        let scan = scope.spawn(|| fixture.try_scan(roots, options, &handle).expect("a scan"));
        // Also cancels the scan if something panics.
        let stop = CancelOnDrop(&handle);
        while !is_reached(handle.progress()) {
            assert!(!scan.is_finished(), "the scan ended before it reached the point");
            std::thread::yield_now();
        }
        meanwhile();
        drop(stop);
        scan.join().expect("a scan")
    });
    assert!(summary.interrupted, "{summary:?}");
    summary
}

/// Small files, which are read during the walk; large ones for the two stages after it; folders.
fn tree() -> Fixture {
    let fixture = Fixture::of(&[("a", 1, 50), ("b", 1, 50), ("large", 1, 8 * MIB), ("f/large", 1, 8 * MIB)]);
    for number in 0..30 {
        fixture.write(format!("f/{}/g/{number}", number % 5), &bytes(number % 7, 60));
    }
    fixture.link("a", "a too");
    fixture
}

/// Everything that a catalog has of a tree, except row ids and times.
fn snapshot(fixture: &Fixture) -> Vec<String> {
    let rows = fixture.rows().into_iter();
    let rows = rows.map(|(path, row)| {
        let FileRow { stat, algorithm, samples, failed, .. } = row;
        format!("{path:?} {stat:?} {algorithm:?} {samples:?} {failed}")
    });
    let groups = fixture.group_list().into_iter();
    let groups = groups.map(|group| {
        let members: Vec<_> = group.members.iter().map(|member| (&member.path, member.linked)).collect();
        format!("{:?} {} {members:?}", group.key.hash, group.copies)
    });
    rows.chain(groups).collect()
}

/// Snapshot of the same tree after an uninterrupted scan with a new store.
fn snapshot_of_an_uninterrupted_scan(fixture: &Fixture) -> Vec<String> {
    let folder = tempfile::tempdir().expect("a folder");
    let store = crate::fixture::open(folder.path().join("t.db"));
    let root = store.roots().register(&fixture.root.path).expect("a root");
    let other = Fixture { folder, store, root };
    other.scan();
    snapshot(&other)
}

/// Checks that the next scan resumes, and has the same result as an uninterrupted scan.
#[track_caller]
fn resumes_to_the_same_result(fixture: &Fixture) -> ScanSummary {
    let summary = fixture.scan();
    assert!(summary.resumed);
    assert_eq!(snapshot(fixture), snapshot_of_an_uninterrupted_scan(fixture));
    assert!(!fixture.scan().resumed);
    summary
}

/// New files are read during the walk, known ones by a plan. Both give the same result, whichever files the walk
/// defers: hard links, the largest files.
#[test]
fn hashing_while_walking_gives_the_same_result_as_a_plan() {
    let unlike_in_the_middle = |seed, size| {
        let mut content = bytes(1, size);
        content[size * 2 / 5] = seed;
        content
    };
    let fixture = Fixture::of(&[("alone", 1, 3 * MIB), ("small", 1, 64 * KIB), ("f/small", 1, 64 * KIB)]);
    for (number, folder) in [(9, "a"), (8, "a/b"), (7, "c")] {
        fixture.write(format!("{folder}/twin"), &bytes(2, 64 * KIB + 1));
        fixture.write(format!("{folder}/no twin"), &bytes(number, 64 * KIB + 1));
        let seed = u8::from(folder == "c");
        fixture.write(format!("{folder}/middle"), &unlike_in_the_middle(seed, 2 * MIB));
        fixture.write(format!("{folder}/largest"), &unlike_in_the_middle(seed, 17 * MIB));
    }
    for more in [false, true] {
        if more {
            fixture.link("a/twin", "c/a name of twin");
            fixture.write("empty", b"");
        }
        let direct = snapshot_of_an_uninterrupted_scan(&fixture);
        fixture.scan_with(&options!(ScanOptions { mode: ScanMode::Walk }));
        fixture.scan();
        assert_eq!(snapshot(&fixture), direct);
        assert_eq!(fixture.group_list().len(), 4);
    }
}

#[test]
fn scan_cancelled_before_it_starts_is_resumed() {
    let fixture = tree();
    let handle = Arc::new(ScanHandle::default());
    handle.cancel();
    let summary = fixture.try_scan(std::slice::from_ref(&fixture.root), &ScanOptions::default(), &handle);
    assert!(summary.expect("a scan").interrupted);
    resumes_to_the_same_result(&fixture);
}

#[test]
fn scan_cancelled_while_walking_is_resumed() {
    let fixture = tree();
    stop_when(&fixture, &throttled(), |progress| progress.bytes_read > 0, || ());
    resumes_to_the_same_result(&fixture);
}

#[test]
fn scan_cancelled_while_sampling_is_resumed() {
    let fixture = tree();
    fixture.scan_with(&options!(ScanOptions { mode: ScanMode::Walk }));
    stop_when(&fixture, &throttled(), |progress| progress.phase == ScanPhase::Samples, || ());
    resumes_to_the_same_result(&fixture);
}

/// Cancels a scan while it reads large files in full. They are recorded first, because new files are read during the
/// walk.
fn stop_at_contents(fixture: &Fixture) {
    fixture.scan_with(&options!(ScanOptions { mode: ScanMode::Walk }));
    // Fast enough for samples, far too slow for contents.
    let options = options!(ScanOptions { io_limit: Some(2 * MIB as u64), workers: Some(1) });
    stop_when(fixture, &options, |progress| progress.phase == ScanPhase::Contents, || ());
}

#[test]
fn scan_cancelled_while_reading_contents_is_resumed() {
    let fixture = tree();
    stop_at_contents(&fixture);
    // Folders are walked again, but files are not read again.
    let summary = resumes_to_the_same_result(&fixture);
    assert_eq!((summary.read_files, summary.sampled_files), (2, 0), "{summary:?}");
}

#[test]
fn resumed_scan_walks_all_folders_again() {
    let fixture = Fixture::of(&[("gone", 1, 50), ("f/kept", 1, 50), ("f/changed", 1, 50), ("f/also", 1, 50)]);
    fixture.write("big", &bytes(1, 8 * MIB));
    fixture.write("big too", &bytes(1, 8 * MIB));
    // All folders were walked; the scan is cancelled while it reads.
    stop_at_contents(&fixture);
    fixture.remove("gone");
    fixture.write("f/changed", &bytes(2, 60));
    fixture.write("f/new", &bytes(2, 60));
    let summary = fixture.scan();
    assert!(summary.resumed);
    assert_eq!((summary.removed_files, summary.changed_files, summary.new_files), (1, 1, 1));
    fixture.assert_groups(&[&["f/kept", "f/also"], &["f/changed", "f/new"], &["big", "big too"]]);
}

/// The rules of folders that were walked before the cancellation apply to those that were not.
#[test]
fn resumed_scan_applies_gitignore_rules() {
    let fixture = Fixture::of(&[("f/a", 1, 50), ("f/b", 1, 50), ("f/x.o", 1, 50), ("f/g/y.o", 1, 50)]);
    fixture.write(".gitignore", b"*.o\n");
    let filter = options!(Filter { gitignore: true });
    let options = options!(ScanOptions { filter: filter.clone(), workers: Some(1); ..throttled() });
    stop_when(&fixture, &options, |progress| progress.bytes_read > 0, || ());
    let summary = fixture.scan_with(&options!(ScanOptions { filter }));
    assert!(summary.resumed);
    fixture.assert_files(&[".gitignore", "f/a", "f/b"]);
}

#[test]
fn scan_with_other_options_starts_over() {
    for other in [
        options!(ScanOptions { restart: true }),
        options!(ScanOptions { mode: ScanMode::Walk }),
        options!(ScanOptions { filter: options!(Filter { min_size: Some(1) }) }),
        options!(ScanOptions { one_file_system: true }),
    ] {
        let fixture = tree();
        stop_at_contents(&fixture);
        let summary = fixture.scan_with(&other);
        assert!(!summary.resumed, "{other:?}");
        fixture.scan();
        assert_eq!(snapshot(&fixture), snapshot_of_an_uninterrupted_scan(&fixture));
    }
}

#[test]
fn restarted_scan_groups_files_read_before() {
    let fixture = Fixture::of(&[("a", 1, 10), ("b", 1, 10), ("c", 1, 60_000), ("d", 1, 60_000)]);
    fixture.scan_with(&options!(ScanOptions { mode: ScanMode::Walk }));
    // In row order: three files are read, the last one waits for the rate limit.
    let options = options!(ScanOptions { io_limit: Some(1_000), workers: Some(1) });
    stop_when(&fixture, &options, |progress| progress.bytes_read >= 60_020, || ());
    fixture.remove("c");
    fixture.remove("d");
    let summary = fixture.scan_with(&options!(ScanOptions { restart: true }));
    assert_eq!((summary.resumed, summary.read_files), (false, 0));
    fixture.assert_groups(&[&["a", "b"]]);
}

#[test]
fn file_changed_between_sampling_and_full_read_is_found_later() {
    let fixture = Fixture::of(&[("a", 1, 8 * MIB), ("b", 1, 8 * MIB)]);
    stop_at_contents(&fixture);
    fixture.write("a", &bytes(2, 8 * MIB));
    assert!(fixture.scan().resumed);
    fixture.assert_groups(&[]);
    fixture.write("c", &bytes(2, 8 * MIB));
    fixture.scan();
    fixture.assert_groups(&[&["a", "c"]]);
}

#[test]
fn scan_cancelled_at_every_folder_finishes_eventually() {
    let fixture = tree();
    let mut stops = 0;
    loop {
        let handle = Arc::new(ScanHandle::default());
        let options = options!(ScanOptions { workers: Some(1) });
        let summary = std::thread::scope(|scope| {
            let roots = std::slice::from_ref(&fixture.root);
            let scan = scope.spawn(|| fixture.try_scan(roots, &options, &handle).expect("a scan"));
            while !scan.is_finished() && handle.progress().folders == 0 {
                std::thread::yield_now();
            }
            // Cancelled as soon as it has walked a folder; the last scan may finish.
            if stops < 10 {
                handle.cancel();
            }
            scan.join().expect("a scan")
        });
        if !summary.interrupted {
            break;
        }
        stops += 1;
    }
    assert_eq!(snapshot(&fixture), snapshot_of_an_uninterrupted_scan(&fixture));
    fixture.assert_sound();
}

#[test]
fn second_scan_in_the_same_process_is_refused() {
    let fixture = tree();
    stop_when(
        &fixture,
        &throttled(),
        |progress| progress.bytes_read > 0,
        || {
            let roots = std::slice::from_ref(&fixture.root);
            let error =
                fixture.try_scan(roots, &ScanOptions::default(), &Arc::default()).expect_err("it is being scanned");
            let process = format!("process {}", std::process::id());
            assert!(error.is_user_error() && error.to_string().contains(&process), "{error}");
        },
    );
    resumes_to_the_same_result(&fixture);
}

const STORE: &str = "GRISTMILL_TEST_STORE";

/// Runs one of these tests in another process, with this store.
fn spawn_test(name: &str, fixture: &Fixture) -> Child {
    Command::new(std::env::current_exe().expect("a program"))
        .args(["--exact", name, "--nocapture", "--include-ignored"])
        .env(STORE, fixture.folder.path().join("t.db"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a process")
}

/// Opens the store named by the environment, for a test that another one runs.
fn fixture_from_env() -> Option<Fixture> {
    let store = crate::fixture::open(PathBuf::from(std::env::var_os(STORE)?));
    let root = store.roots().list().expect("roots").remove(0);
    Some(Fixture { folder: tempfile::tempdir().expect("a folder"), store, root })
}

/// Waits until a process prints a word. The returned reader must be kept, or later output of the process fails.
fn wait_for(child: &mut Child, word: &str) -> impl Sized + use<> {
    let mut lines = BufReader::new(child.stdout.take().expect("its stdout")).lines();
    let is_found = lines.by_ref().any(|line| line.expect("a line").contains(word));
    assert!(is_found, "the process never printed {word:?}");
    lines
}

fn print_line(word: &str) {
    writeln!(std::io::stdout(), "\n{word}").expect("written");
}

/// Runs in another process for the two tests below: scans until it is stopped or killed.
#[test]
#[ignore = "run by other tests"]
fn scan_without_end() {
    let Some(fixture) = fixture_from_env() else { return };
    stop_when(
        &fixture,
        &throttled(),
        |progress| progress.bytes_read > 0,
        || {
            print_line("reading");
            // Until the parent process sends a line or exits.
            let _ = std::io::stdin().lines().next();
        },
    );
}

#[test]
fn scan_held_by_another_process_is_refused_with_its_id() {
    let fixture = tree();
    let mut other = spawn_test("stop_and_resume::scan_without_end", &fixture);
    let _output = wait_for(&mut other, "reading");
    let roots = std::slice::from_ref(&fixture.root);
    let error = fixture.try_scan(roots, &ScanOptions::default(), &Arc::default()).expect_err("it is being scanned");
    let text = error.to_string();
    assert!(error.is_user_error() && text.contains(&format!("process {} on", other.id())), "{text}");
    assert!(text.contains("tree") && text.contains("already being scanned"), "{text}");
    // With any options.
    let restart = options!(ScanOptions { restart: true });
    assert!(fixture.try_scan(roots, &restart, &Arc::default()).is_err());
    // Of two roots, neither scan is started.
    let beside = fixture.register(&fixture.outside("beside"));
    let both = [beside.clone(), fixture.root.clone()];
    assert!(fixture.try_scan(&both, &ScanOptions::default(), &Arc::default()).is_err());
    assert!(fixture.store.roots().remove(fixture.root.id).is_err());
    writeln!(other.stdin.take().expect("its stdin"), "stop").expect("sent");
    assert!(other.wait().expect("its end").success());
    resumes_to_the_same_result(&fixture);
    fixture.scan_all(&[beside], &ScanOptions::default());
}

#[test]
fn scan_of_a_killed_process_is_resumed() {
    let fixture = tree();
    let mut other = spawn_test("stop_and_resume::scan_without_end", &fixture);
    let _output = wait_for(&mut other, "reading");
    other.kill().expect("killed");
    other.wait().expect("its end");
    resumes_to_the_same_result(&fixture);
}

/// A scan that does not walk cannot tell whether the disk of a missing file is mounted, also while a stopped scan of
/// the root is unfinished.
#[test]
fn hash_mode_after_a_stopped_scan_marks_no_file_missing() {
    let fixture = Fixture::of(&[("a", 1, 50), ("b", 1, 50), ("c", 1, 50)]);
    stop_when(&fixture, &throttled(), |progress| progress.to_read >= 3, || ());
    fixture.move_away("a");
    let summary = fixture.scan_with(&options!(ScanOptions { mode: ScanMode::Hash }));
    assert_eq!(summary.removed_files, 0, "{summary:?}");
    assert!(!fixture.files()[&PathBuf::from("a")].missing);
    assert!(!fixture.coverage().complete, "the stopped scan is unfinished");
    fixture.move_back("a");
    assert!(fixture.scan_with(&options!(ScanOptions { workers: Some(2) })).resumed);
    fixture.assert_groups(&[&["a", "b", "c"]]);
    assert!(fixture.coverage().complete);
}
