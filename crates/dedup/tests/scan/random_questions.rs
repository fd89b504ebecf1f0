//! Compares the copies of files, and the files without a copy, in random trees with a comparison of all bytes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use gristmill_dedup::copies::{CopiesOptions, CopyState, FileAnswer, copies};
use gristmill_dedup::unique::{UniqueOptions, UniqueState, unique};
use gristmill_dedup::{ScanMode, ScanOptions};
use gristmill_store::catalog::Stat;
use proptest::prelude::*;

use crate::brute_force;
use crate::fixture::Fixture;
use crate::random_trees::{Edit, apply, cases, edit, first, options};

/// Inode and bytes of each file by absolute path.
type Files = BTreeMap<PathBuf, (u64, Vec<u8>)>;

/// Files as they are on the disk now.
fn on_disk(top: &Path) -> Files {
    brute_force::files(top).into_iter().map(|(path, file)| (top.join(path), file)).collect()
}

fn is_unchanged(path: &Path, stat: &Stat) -> bool {
    let Ok(found) = fs::symlink_metadata(path) else { return false };
    let time = |seconds: i64, nanoseconds: i64| seconds * 1_000_000_000 + nanoseconds;
    found.is_file()
        && (found.len(), found.ino()) == (stat.size, stat.inode)
        && time(found.mtime(), found.mtime_nsec()) == stat.mtime_ns
        && time(found.ctime(), found.ctime_nsec()) == stat.ctime_ns
}

/// Checks the copies of all files on the disk among those that are in the catalog and have not changed since.
fn check_copies(fixture: &Fixture) -> Result<(), TestCaseError> {
    let files = on_disk(&fixture.root.path);
    let rows = fixture.rows();
    let is_recorded = |path: &Path| rows.get(path).is_some_and(|row| is_unchanged(path, &row.stat));
    let recorded: Files =
        files.iter().filter(|(path, _)| is_recorded(path)).map(|(path, file)| (path.clone(), file.clone())).collect();
    let asked: Vec<PathBuf> = files.keys().cloned().collect();
    let answer = copies(&fixture.store, &asked, &CopiesOptions::default()).expect("an answer");
    for (path, answer) in asked.iter().zip(answer.files) {
        let FileAnswer::Found(found) = answer else { panic!("{answer:?}") };
        prop_assert_eq!(&found.location.path, path);
        prop_assert_eq!(found.in_catalog, recorded.contains_key(path), "{:?}", path);
        let listed = |state: CopyState| -> BTreeSet<PathBuf> {
            found.files.iter().filter(|file| file.state == state).map(|file| file.location.path.clone()).collect()
        };
        let (inode, bytes) = &files[path];
        let expected = recorded.iter().filter(|(_, (other, content))| other != inode && content == bytes);
        prop_assert_eq!(listed(CopyState::Copy), expected.map(|(path, _)| path.clone()).collect(), "{:?}", path);
        // Other names of the file are found by its inode, also if their rows are outdated in all but that.
        let same = listed(CopyState::SameFile);
        prop_assert!(same.iter().all(|other| files[other].0 == *inode && other != path), "{:?}: {:?}", path, same);
        let names = recorded.iter().filter(|(other, (number, _))| number == inode && *other != path);
        prop_assert!(names.map(|(other, _)| other).all(|other| same.contains(other)), "{:?}: {:?}", path, same);
        prop_assert!(listed(CopyState::Possible).is_empty());
        let changed = listed(CopyState::Changed);
        prop_assert!(changed.iter().all(|other| !recorded.contains_key(other)), "{:?}: {:?}", path, changed);
    }
    Ok(())
}

/// Checks the files of a folder without a copy in others. `settled`: all files were compared.
fn check_unique(fixture: &Fixture, inside: &str, not_in: &[&str], settled: bool) -> Result<(), TestCaseError> {
    let folder = |name: &&str| fixture.at(name);
    let exists = |path: &PathBuf| fixture.store.catalog().has_folder(fixture.root.id, relative(fixture, path));
    let not_in: Vec<PathBuf> = not_in.iter().map(folder).filter(|path| exists(path).expect("an answer")).collect();
    let inside = folder(&inside);
    if not_in.contains(&inside) || !exists(&inside).expect("an answer") {
        return Ok(());
    }
    // The innermost folder decides.
    let side = |path: &Path| {
        let depth = |top: &PathBuf| path.starts_with(top).then(|| top.components().count());
        let ours = depth(&inside);
        let theirs = not_in.iter().filter_map(depth).max();
        match (ours, theirs) {
            (Some(ours), Some(theirs)) => Some(ours > theirs),
            (Some(_), None) => Some(true),
            (None, Some(_)) => Some(false),
            (None, None) => not_in.is_empty().then_some(false),
        }
    };
    let files = on_disk(&fixture.root.path);
    let mut expected = BTreeSet::new();
    for (path, (inode, bytes)) in files.iter().filter(|(path, file)| side(path) == Some(true) && !file.1.is_empty()) {
        let is_copy = |(other, (number, content)): (&PathBuf, &(u64, Vec<u8>))| {
            side(other) == Some(false) && number != inode && content == bytes
        };
        if !files.iter().any(is_copy) {
            expected.insert(path.clone());
        }
    }
    let options = options!(UniqueOptions { inside: vec![inside.clone()], not_in });
    let found = unique(&fixture.store, &options).expect("an answer");
    let listed = |state: UniqueState| -> BTreeSet<PathBuf> {
        let files = found.page(0, usize::MAX).expect("files").into_iter();
        files.filter(|file| file.state == state).map(|file| file.location.path).collect()
    };
    let (certain, undecided) = (listed(UniqueState::Unique), listed(UniqueState::Undecided));
    prop_assert_eq!(found.summary().coverage.complete, undecided.is_empty());
    if settled {
        prop_assert_eq!(&undecided, &BTreeSet::new());
        prop_assert_eq!(certain, expected);
    } else {
        prop_assert!(certain.is_subset(&expected), "{:?} in {:?}", certain, expected);
        prop_assert!(expected.iter().all(|path| certain.contains(path) || undecided.contains(path)));
    }
    Ok(())
}

fn relative<'a>(fixture: &Fixture, path: &'a Path) -> &'a Path {
    path.strip_prefix(&fixture.root.path).expect("inside")
}

fn check_questions(fixture: &Fixture, settled: bool) -> Result<(), TestCaseError> {
    for (inside, not_in) in
        [("a", &[][..]), ("a", &["d"]), ("", &["a"]), ("a/b", &["a", "d/e"]), ("d", &["a/b", "d/e"]), ("d", &[""])]
    {
        check_unique(fixture, inside, not_in, settled)?;
    }
    check_copies(fixture)
}

/// Edits, the options of the following scan, and its mode.
type Round = (Vec<Edit>, ScanOptions, bool);

fn check(first: &[Edit], rounds: &[Round], last: &[Edit]) -> Result<(), TestCaseError> {
    let fixture = Fixture::new();
    first.iter().for_each(|edit| apply(&fixture.root.path, edit));
    for (edits, options, reads) in rounds {
        edits.iter().for_each(|edit| apply(&fixture.root.path, edit));
        let mode = if *reads { ScanMode::All } else { ScanMode::Walk };
        fixture.scan_with(&options!(ScanOptions { mode; ..options.clone() }));
        check_questions(&fixture, *reads)?;
    }
    // Copies are compared with the disk, also after changes that no scan has seen.
    last.iter().for_each(|edit| apply(&fixture.root.path, edit));
    check_copies(&fixture)
}

proptest! {
    #![proptest_config(cases(24))]

    #[test]
    fn questions_are_answered_as_by_comparing_bytes(
        first in first(),
        rounds in prop::collection::vec((prop::collection::vec(edit(), 0..6), options(), any::<bool>()), 1..4),
        last in prop::collection::vec(edit(), 0..6),
    ) {
        check(&first, &rounds, &last)?;
    }
}
