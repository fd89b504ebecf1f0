//! Tests random trees with random changes against a comparison of all bytes.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use gristmill_dedup::{ScanHandle, ScanOptions};
use proptest::prelude::*;

use crate::brute_force;
use crate::fixture::{ALGORITHMS, Fixture, KIB, MIB, bytes, rewrite_secretly};

/// Few sizes with few contents each, so that most files have a duplicate.
const SIZES: [usize; 9] = [0, 1, 100, 64 * KIB - 1, 64 * KIB, 64 * KIB + 1, 80 * KIB, MIB - 1, MIB + 1];
const CONTENTS: u64 = 3;
const FOLDERS: [&str; 6] = ["", "a", "a/b", "a/b/c", "d", "d/e"];

/// Returns a content. Contents of one size differ in one byte, at a position that samples may not cover.
fn content(size: usize, number: u64) -> Vec<u8> {
    let mut content = bytes(7, size);
    if let Some(byte) = content.get_mut(size * 2 / 5) {
        *byte = byte.wrapping_add(u8::try_from(number).expect("few"));
    }
    content
}

/// A change to a tree. Numbers are taken modulo the number of files.
#[derive(Clone, Debug)]
pub(crate) enum Edit {
    Add {
        folder: usize,
        name: u8,
        size: usize,
        content: u64,
    },
    /// Keeps the size and the modification time.
    Rewrite {
        file: usize,
        content: u64,
    },
    Remove {
        file: usize,
    },
    Rename {
        file: usize,
        folder: usize,
        name: u8,
    },
    Link {
        file: usize,
        folder: usize,
        name: u8,
    },
    MoveFolder {
        from: usize,
        name: u8,
    },
    RemoveFolder {
        folder: usize,
    },
    /// Replaces a folder by a file, or a file by a folder.
    Swap {
        folder: usize,
        content: u64,
    },
    /// Moves a folder out of the root, or back.
    TakeAway {
        folder: usize,
    },
    BringBack {
        folder: usize,
    },
}

fn add() -> impl Strategy<Value = Edit> {
    (0..FOLDERS.len(), 0..12u8, 0..SIZES.len(), 0..CONTENTS).prop_map(|(folder, name, size, content)| Edit::Add {
        folder,
        name,
        size,
        content,
    })
}

pub(crate) fn edit() -> impl Strategy<Value = Edit> {
    let place = || (any::<usize>(), 0..FOLDERS.len(), 0..12u8);
    prop_oneof![
        4 => add(),
        3 => (any::<usize>(), 0..CONTENTS).prop_map(|(file, content)| Edit::Rewrite { file, content }),
        3 => any::<usize>().prop_map(|file| Edit::Remove { file }),
        2 => place().prop_map(|(file, folder, name)| Edit::Rename { file, folder, name }),
        2 => place().prop_map(|(file, folder, name)| Edit::Link { file, folder, name }),
        1 => (0..FOLDERS.len(), 0..12u8).prop_map(|(from, name)| Edit::MoveFolder { from, name }),
        1 => (0..FOLDERS.len()).prop_map(|folder| Edit::RemoveFolder { folder }),
        1 => (0..FOLDERS.len(), 0..CONTENTS).prop_map(|(folder, content)| Edit::Swap { folder, content }),
    ]
}

fn edit_or_move_away() -> impl Strategy<Value = Edit> {
    prop_oneof![
        3 => edit(),
        1 => (0..FOLDERS.len()).prop_map(|folder| Edit::TakeAway { folder }),
        1 => (0..FOLDERS.len()).prop_map(|folder| Edit::BringBack { folder }),
    ]
}

/// Edits that cannot be applied, because a folder is in the way or nothing exists, are skipped.
pub(crate) fn apply(top: &Path, edit: &Edit) {
    let files: Vec<PathBuf> = brute_force::files(top).into_keys().map(|path| top.join(path)).collect();
    let pick = |number: usize| files.get(number % files.len().max(1));
    let new_path = |folder: usize, name: u8| {
        let folder = top.join(FOLDERS[folder]);
        fs::create_dir_all(&folder).ok().map(|()| folder.join(format!("f{name}"))).filter(|path| !path.exists())
    };
    let away = |folder: usize| {
        let away = top.parent().expect("a folder").join("away");
        fs::create_dir_all(&away).expect("a folder");
        away.join(format!("{folder}"))
    };
    let _ = match edit {
        Edit::TakeAway { folder } if !FOLDERS[*folder].is_empty() => {
            fs::rename(top.join(FOLDERS[*folder]), away(*folder)).ok()
        }
        Edit::BringBack { folder } => fs::rename(away(*folder), top.join(FOLDERS[*folder])).ok(),
        Edit::Add { folder, name, size, content: number } => {
            new_path(*folder, *name).map(|path| fs::write(path, content(SIZES[*size], *number)).expect("written"))
        }
        Edit::Rewrite { file, content: number } => pick(*file).map(|path| {
            let size = fs::metadata(path).expect("a file").len();
            rewrite_secretly(path, &content(usize::try_from(size).expect("small"), *number));
        }),
        Edit::Remove { file } => pick(*file).map(|path| fs::remove_file(path).expect("removed")),
        Edit::Rename { file, folder, name } => {
            pick(*file).zip(new_path(*folder, *name)).and_then(|(from, to)| fs::rename(from, to).ok())
        }
        Edit::Link { file, folder, name } => {
            pick(*file).zip(new_path(*folder, *name)).and_then(|(from, to)| fs::hard_link(from, to).ok())
        }
        Edit::MoveFolder { from, name } if !FOLDERS[*from].is_empty() => {
            fs::rename(top.join(FOLDERS[*from]), top.join(format!("moved {name}"))).ok()
        }
        Edit::RemoveFolder { folder } if !FOLDERS[*folder].is_empty() => {
            fs::remove_dir_all(top.join(FOLDERS[*folder])).ok()
        }
        Edit::Swap { folder, content: number } if !FOLDERS[*folder].is_empty() => {
            let path = top.join(FOLDERS[*folder]);
            if path.is_dir() {
                fs::remove_dir_all(&path).ok().and_then(|()| fs::write(&path, content(100, *number)).ok())
            } else if path.is_file() {
                fs::remove_file(&path).ok().and_then(|()| fs::create_dir(&path).ok())
            } else {
                None
            }
        }
        _ => None,
    };
}

/// Files with their sizes, and groups with their hashes, without row ids.
type Snapshot = (Vec<(PathBuf, u64)>, Vec<(Vec<u8>, u64, u64, Vec<(PathBuf, bool)>)>);

fn snapshot(fixture: &Fixture) -> Snapshot {
    let files = fixture.files().into_iter().filter(|(_, file)| !file.missing);
    let files = files.map(|(path, file)| (path, file.stat.size)).collect();
    let groups = fixture.group_list().into_iter().map(|group| {
        let members = group.members.into_iter().map(|member| (member.path, member.linked)).collect();
        (group.key.hash, group.copies, group.reclaimable, members)
    });
    (files, groups.collect())
}

/// Scans the same tree with a new store.
fn scan_with_a_new_store(fixture: &Fixture, options: &ScanOptions) -> Fixture {
    let folder = tempfile::tempdir().expect("a folder");
    let store = crate::fixture::open(folder.path().join("t.db"));
    let root = store.roots().register(&fixture.root.path).expect("a root");
    let fresh = Fixture { folder, store, root };
    fresh.scan_with(options);
    fresh
}

fn check_against_byte_comparison(fixture: &Fixture) -> Result<(), TestCaseError> {
    let on_disk = brute_force::files(&fixture.root.path);
    let sizes: Vec<_> = fixture.files().into_iter().filter(|(_, file)| !file.missing).collect();
    let sizes: Vec<_> = sizes.into_iter().map(|(path, file)| (path, file.stat.size)).collect();
    let expected: Vec<_> = on_disk.iter().map(|(path, (_, bytes))| (path.clone(), bytes.len() as u64)).collect();
    prop_assert_eq!(sizes, expected);
    prop_assert_eq!(fixture.groups(), brute_force::groups(&fixture.root.path));
    Ok(())
}

pub(crate) fn options() -> impl Strategy<Value = ScanOptions> {
    (0..ALGORITHMS.len(), prop::bool::weighted(0.2), prop_oneof![Just(1), Just(4)]).prop_map(
        |(algorithm, every_file, workers)| {
            options!(ScanOptions {
                algorithm: ALGORITHMS[algorithm],
                every_file,
                workers: Some(workers),
                // A tree may become empty.
                allow_empty: true
            })
        },
    )
}

pub(crate) fn first() -> impl Strategy<Value = Vec<Edit>> {
    let link =
        (any::<usize>(), 0..FOLDERS.len(), 0..12u8).prop_map(|(file, folder, name)| Edit::Link { file, folder, name });
    (prop::collection::vec(add(), 0..25), prop::collection::vec(link, 0..4))
        .prop_map(|(files, links)| [files, links].concat())
}

/// Edits, the options of the following scan, and whether such a scan is started and cancelled first.
type ScanRound = (Vec<Edit>, ScanOptions, bool);

fn check(first: &[Edit], rounds: &[ScanRound]) -> Result<(), TestCaseError> {
    let fixture = Fixture::new();
    first.iter().for_each(|edit| apply(&fixture.root.path, edit));
    for (edits, options, stopped) in rounds {
        edits.iter().for_each(|edit| apply(&fixture.root.path, edit));
        if *stopped {
            let handle = Arc::new(ScanHandle::default());
            handle.cancel();
            let roots = std::slice::from_ref(&fixture.root);
            prop_assert!(fixture.try_scan(roots, options, &handle).expect("a scan").interrupted);
        }
        let summary = fixture.scan_with(options);
        prop_assert_eq!(summary.resumed, *stopped);
        check_against_byte_comparison(&fixture)?;
        prop_assert_eq!(snapshot(&fixture), snapshot(&scan_with_a_new_store(&fixture, options)));
        let again = fixture.scan_with(options);
        prop_assert_eq!((again.read_files, again.sampled_files, again.read_bytes), (0, 0, 0));
        prop_assert_eq!((again.new_files, again.changed_files, again.removed_files), (0, 0, 0));
    }
    Ok(())
}

fn rounds(edit: impl Strategy<Value = Edit>) -> impl Strategy<Value = Vec<(Vec<Edit>, bool)>> {
    prop::collection::vec((prop::collection::vec(edit, 0..6), any::<bool>()), 1..4)
}

pub(crate) fn cases(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(cases(14))]

    #[test]
    fn every_scan_finds_what_comparing_bytes_finds(
        first in first(), rounds in rounds(edit()), options in options(),
    ) {
        let rounds: Vec<ScanRound> = rounds.into_iter().map(|(edits, stop)| (edits, options.clone(), stop)).collect();
        check(&first, &rounds)?;
    }

    #[test]
    fn scans_find_all_duplicates_when_folders_return(
        first in first(), rounds in rounds(edit_or_move_away()), options in options(),
    ) {
        let rounds: Vec<ScanRound> = rounds.into_iter().map(|(edits, stop)| (edits, options.clone(), stop)).collect();
        check(&first, &rounds)?;
    }

    #[test]
    fn scans_find_all_duplicates_when_options_change(
        first in first(), rounds in rounds(edit()), options in prop::collection::vec(options(), 4),
    ) {
        let rounds: Vec<ScanRound> =
            rounds.into_iter().zip(options).map(|((edits, stop), options)| (edits, options, stop)).collect();
        check(&first, &rounds)?;
    }
}
