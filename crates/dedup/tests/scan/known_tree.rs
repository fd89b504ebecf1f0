//! Tests a tree with known groups: exactly these are found, with one worker and with many, and with every algorithm.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use gristmill_dedup::{ScanOptions, ScanSummary};
use rustix::fs::{CWD, FileType, Mode, OFlags};

use crate::fixture::{ALGORITHMS, Fixture, GroupSet, KIB, MIB, bytes, sets};

const SMALL: usize = 64 * KIB;

struct Tree {
    fixture: Fixture,
    groups: GroupSet,
    files: u64,
}

impl Tree {
    fn new() -> Self {
        Tree { fixture: Fixture::new(), groups: GroupSet::new(), files: 0 }
    }

    fn file(&mut self, path: impl AsRef<Path>, bytes: &[u8]) {
        self.fixture.write(path, bytes);
        self.files += 1;
    }

    fn group(&mut self, paths: &[impl AsRef<Path>], bytes: &[u8]) {
        paths.iter().for_each(|path| self.file(path, bytes));
        self.groups.insert(paths.iter().map(|path| path.as_ref().to_path_buf()).collect());
    }
}

/// Sizes on both sides of each limit in how files are read.
const SIZES: [usize; 10] = [1, 2, 4_096, SMALL - 1, SMALL, SMALL + 1, 100_000, MIB - 1, MIB, 2 * MIB + 7];

/// Two equal files, and files that differ from them in a single byte at each of several positions.
fn add_equal_files(tree: &mut Tree) {
    for (seed, size) in (1_000..).zip(SIZES) {
        let content = bytes(seed, size);
        tree.group(&[format!("alike/{size}/one"), format!("alike/{size}/deep/er/two")], &content);
        let offsets: BTreeSet<usize> = [0, size / 4, size / 3, size / 2, size / 4 * 3, size - 1].into_iter().collect();
        for offset in offsets {
            let mut near = content.clone();
            near[offset] ^= 1;
            tree.file(format!("near/{size}/{offset}"), &near);
        }
    }
}

/// Different files of one size, files of unique sizes, and empty files, which are not duplicates.
fn add_different_files(tree: &mut Tree) {
    for seed in 1..40 {
        tree.file(format!("unlike/small {seed}"), &bytes(seed, 777));
        tree.file(format!("unlike/alone {seed}"), &bytes(seed, 10_000 + seed as usize));
    }
    for seed in 1..5 {
        tree.file(format!("unlike/large {seed}"), &bytes(seed, MIB + 5));
        tree.file(format!("empty/{seed}"), b"");
    }
    // One file is a prefix of the other.
    tree.file("unlike/zeros", &[0; 500]);
    tree.file("unlike/more zeros", &[0; 501]);
}

fn add_unusual_names(tree: &mut Tree) {
    let names: [&[u8]; 8] =
        [b"caf\xe9", b"\xff\xfe", b"\x1a", b"\x1aE9", b"line\nbreak", b" ", "e\u{301}".as_bytes(), b"-rf *"];
    let folder = Path::new(OsStr::from_bytes(b"n\xf6me\ns"));
    let paths: Vec<PathBuf> = names.map(|name| folder.join(OsStr::from_bytes(name))).into();
    tree.group(&paths, &bytes(50, 321));
    // As folder names, and with a size that needs two stages.
    let paths: Vec<PathBuf> = names.map(|name| Path::new(OsStr::from_bytes(name)).join("large")).into();
    tree.group(&paths, &bytes(51, 70_000));
}

fn add_hard_links(tree: &mut Tree) {
    // Several names of one inode are not a group.
    for (seed, size) in [(60, 99), (61, MIB + 1)] {
        tree.file(format!("links/{size}/first"), &bytes(seed, size));
        tree.fixture.link(&format!("links/{size}/first"), &format!("links/{size}/second"));
        tree.files += 1;
    }
    // Two names and a copy.
    for (seed, size) in [(62, 555), (63, MIB + 9)] {
        tree.group(&[format!("copied/{size}/first"), format!("copied/{size}/copy")], &bytes(seed, size));
        let name = format!("copied/{size}/other");
        tree.fixture.link(&format!("copied/{size}/first"), &name);
        tree.files += 1;
        let mut group: BTreeSet<PathBuf> =
            [format!("copied/{size}/first"), format!("copied/{size}/copy")].map(PathBuf::from).into();
        tree.groups.remove(&group);
        group.insert(name.into());
        tree.groups.insert(group);
    }
}

/// Links, a pipe and a socket are not files. Opening the pipe would block forever.
fn add_links_and_special_files(fixture: &Fixture) {
    fixture.symlink("alike/1/one", "a link");
    fixture.symlink("alike", "a link to a folder");
    fixture.symlink("nowhere", "a link to nothing");
    rustix::fs::mknodat(CWD, fixture.at("pipe"), FileType::Fifo, Mode::RWXU, 0).expect("a pipe");
    let _ = UnixListener::bind(fixture.at("socket")).expect("a socket");
}

/// Equal files at both ends of a path that is longer than `PATH_MAX`.
fn add_deep_path(tree: &mut Tree) {
    let content = bytes(70, 12_345);
    tree.group(&["shallow"], &content);
    tree.groups.remove(&["shallow"].map(PathBuf::from).into());
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let mut here: OwnedFd = rustix::fs::open(&tree.fixture.root.path, flags, Mode::empty()).expect("the root");
    let name = OsString::from("n".repeat(200));
    let mut path = PathBuf::new();
    while path.as_os_str().len() < 9_000 {
        rustix::fs::mkdirat(&here, &name, Mode::RWXU).expect("a folder");
        here = rustix::fs::openat(&here, &name, flags, Mode::empty()).expect("that folder");
        path.push(&name);
    }
    let file = rustix::fs::openat(&here, "deep", OFlags::WRONLY | OFlags::CREATE, Mode::RWXU).expect("a file");
    std::io::Write::write_all(&mut std::fs::File::from(file), &content).expect("written");
    tree.files += 1;
    tree.groups.insert([PathBuf::from("shallow"), path.join("deep")].into());
}

fn tree() -> Tree {
    let mut tree = Tree::new();
    add_equal_files(&mut tree);
    add_different_files(&mut tree);
    add_unusual_names(&mut tree);
    add_hard_links(&mut tree);
    add_links_and_special_files(&tree.fixture);
    add_deep_path(&mut tree);
    tree
}

#[track_caller]
fn check(tree: &Tree, options: &ScanOptions) -> ScanSummary {
    let store = crate::fixture::open(tree.fixture.folder.path().join("other.db"));
    let root = store.roots().register(&tree.fixture.root.path).expect("a root");
    let fixture = Fixture { folder: tempfile::tempdir().expect("a folder"), store, root };
    let summary = fixture.scan_with(options);
    assert_eq!(fixture.groups(), tree.groups, "{options:?}");
    assert_eq!((summary.files, summary.new_files), (tree.files, tree.files));
    assert_eq!((summary.links, summary.special_files, summary.errors), (3, 2, 0), "{summary:?}");
    assert_eq!(summary.duplicate_groups, tree.groups.len() as u64);
    assert_eq!(summary.duplicate_files, tree.groups.iter().map(|group| group.len() as u64).sum::<u64>());
    for group in fixture.group_list() {
        assert_eq!(group.key.algorithm, options.algorithm);
        assert_eq!(group.key.hash.len(), options.algorithm.length());
    }
    drop(fixture);
    for end in ["", "-wal", "-shm"] {
        let _ = std::fs::remove_file(tree.fixture.folder.path().join(format!("other.db{end}")));
    }
    summary
}

#[test]
fn every_algorithm_finds_exactly_the_expected_groups_with_one_or_many_workers() {
    let tree = tree();
    for algorithm in ALGORITHMS {
        for workers in [1, 16] {
            check(&tree, &options!(ScanOptions { algorithm, workers: Some(workers) }));
        }
    }
    for workers in [1, 16] {
        check(&tree, &options!(ScanOptions { every_file: true, workers: Some(workers) }));
    }
}

#[test]
fn hard_links_are_one_copy() {
    let fixture = Fixture::of(&[("a", 1, 1_000), ("copy", 1, 1_000), ("b", 2, 3_000)]);
    fixture.link("a", "z");
    fixture.link("b", "b too");
    let summary = fixture.scan();
    fixture.assert_groups(&[&["a", "copy", "z"]]);
    let group = fixture.group_list().remove(0);
    let allocated = fixture.row("a").stat.allocated;
    assert_eq!((group.size, group.copies, group.redundant), (1_000, 2, 1_000));
    assert_eq!(group.reclaimable, allocated);
    let members: Vec<_> = group.members.iter().map(|m| (m.path.to_str().expect("valid UTF-8"), m.linked)).collect();
    assert_eq!(members, [("a", false), ("z", true), ("copy", false)]);
    assert_eq!((summary.duplicate_files, summary.reclaimable_bytes), (3, allocated));
    // An inode counts once in the size, but each of its names counts as a file.
    assert_eq!((summary.files, summary.bytes), (5, 5_000));
    let root = fixture.store.roots().list().expect("roots").remove(0);
    assert_eq!((root.files, root.bytes), (Some(5), Some(5_000)));
}

#[test]
fn hashes_match_the_standards_examples() {
    for (algorithm, expected) in ALGORITHMS.into_iter().zip([
        "6437b3ac38465133ffb63b75273a8db548c558465d79db03fd359c6cd5bd9d85",
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
        "ddaf35a193617abacc417349ae20413112e6fa4e89a97ea20a9eeee64b55d39a\
         2192992a274fc1a836ba3c23a3feebbd454d4423643ce80e2a9ac94fa54ca49f",
        "3a985da74fe225b2045c172d6bd390bd855f086e3e9d525b46bfe24511431532",
    ]) {
        let fixture = Fixture::new();
        ["a", "b"].iter().for_each(|path| fixture.write(path, b"abc"));
        fixture.scan_with(&options!(ScanOptions { algorithm }));
        let hash = fixture.group_list().remove(0).key.hash;
        let hex: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!((hex.as_str(), hash.len()), (expected, algorithm.length()), "{algorithm:?}");
    }
}

#[test]
fn hashes_match_independent_implementations() {
    for algorithm in ALGORITHMS {
        let fixture = Fixture::new();
        for (folder, bytes) in [("small", b"abc".repeat(2)), ("large", b"abc".repeat(400_000))] {
            fixture.write(format!("{folder}/1"), &bytes);
            fixture.write(format!("{folder}/2"), &bytes);
        }
        fixture.scan_with(&options!(ScanOptions { algorithm }));
        let hashes = fixture.group_list().into_iter().map(|group| (group.size, group.key.hash)).collect();
        let expected = [6, 1_200_000].map(|size| {
            use sha2::Digest;
            let bytes = b"abc".repeat(size / 3);
            let hash = match algorithm {
                gristmill_store::catalog::Algorithm::Blake3 => blake3::hash(&bytes).as_bytes().to_vec(),
                gristmill_store::catalog::Algorithm::Sha256 => sha2::Sha256::digest(&bytes).to_vec(),
                gristmill_store::catalog::Algorithm::Sha512 => sha2::Sha512::digest(&bytes).to_vec(),
                gristmill_store::catalog::Algorithm::Sha3 => sha3::Sha3_256::digest(&bytes).to_vec(),
            };
            (size as u64, hash)
        });
        assert_eq!(<BTreeSet<(u64, Vec<u8>)>>::from(expected), hashes, "{algorithm:?}");
    }
}

#[test]
fn folder_with_more_entries_than_one_listing_part_is_scanned() {
    let fixture = Fixture::new();
    for number in 0..1_500 {
        fixture.write(format!("many/{number}"), &bytes(number % 500, 40));
        std::fs::create_dir_all(fixture.at(format!("folders/{number}"))).expect("a folder");
    }
    let summary = fixture.scan();
    assert_eq!((summary.files, summary.folders), (1_500, 1_503));
    assert_eq!(fixture.groups().iter().map(BTreeSet::len).collect::<Vec<_>>(), [3; 500]);
    assert_eq!(fixture.scan().read_files, 0);
    assert_ne!(fixture.groups(), sets(&[]));
}
