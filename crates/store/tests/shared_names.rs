//! Which paths lead to one file: inode numbers, filesystems, devices, change times and link counts.

use std::path::{Path, PathBuf};

use gristmill_store::catalog::LinkKind::{self, HardLinked, Single, Unknown, ViaSymlink};
use gristmill_store::catalog::{FolderRef, Listing, ListingStatus, Node, Stat, UNSTABLE_INODES};
use gristmill_store::scans::{ScanRequest, ScanScope};
use gristmill_store::{Durability, Store};

/// Number of a filesystem with unstable inode numbers.
const UNSTABLE: u64 = 9;

/// Records files 1, 2, … with filesystem, device, change time and link kind, of one inode number. Returns the number of
/// the first name of each file.
fn files(rows: &[(Option<u64>, u64, i64, LinkKind)]) -> Vec<i64> {
    files_of_inode(5, rows)
}

fn files_of_inode(inode: u64, rows: &[(Option<u64>, u64, i64, LinkKind)]) -> Vec<i64> {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::options().durability(Durability::Normal).open(folder.path().join("c.db")).unwrap();
    let catalog = store.catalog();
    let root = store.roots().register(Path::new("/r")).unwrap().id;
    let request = ScanRequest {
        root,
        scope: ScanScope::Root,
        holder: "test".into(),
        settings: String::new(),
        restart: true,
        is_alive: |_| None,
    };
    let scan = store.scans().begin(request).unwrap().id;
    let listing = |(number, (filesystem, device, ctime_ns, links)): (u32, &(Option<u64>, u64, i64, LinkKind))| {
        let folder = FolderRef { root, id: None, path: PathBuf::from(number.to_string()) };
        let (device, ctime_ns, links) = (*device, *ctime_ns, *links);
        let prefix = if *filesystem == Some(UNSTABLE) { UNSTABLE_INODES } else { "" };
        let identity = filesystem.map(|filesystem| format!("{prefix}{filesystem}"));
        Listing {
            new_files: vec![("name".into(), Stat { inode, device, ctime_ns, links, ..Stat::default() })],
            filesystem: identity.map(|identity| catalog.filesystem_id(&identity).unwrap()),
            status: ListingStatus::Whole,
            ..Listing::new(scan, folder)
        }
    };
    catalog.record((1..).zip(rows).map(listing).collect()).unwrap();
    // Row ids are given in this order, from 1.
    let mut files: Vec<i64> = (1..).take(rows.len()).collect();
    let visit = |node: Node<'_>| {
        if let Node::SharedNames(names) = node {
            for name in names {
                files[usize::try_from(name.row - 1).unwrap()] = name.file;
            }
        }
    };
    catalog.tree(visit).unwrap();
    files
}

#[test]
fn equal_inodes_of_a_known_filesystem_are_one_file() {
    assert_eq!(files(&[(Some(1), 7, 1, Single), (Some(1), 8, 2, Single)]), [1, 1]);
    assert_eq!(files(&[(Some(1), 7, 1, Single), (Some(2), 7, 1, Single)]), [1, 2]);
    assert_eq!(files(&[(Some(1), 7, 1, HardLinked), (Some(2), 7, 1, HardLinked)]), [1, 2]);
}

#[test]
fn equal_inodes_of_an_unknown_filesystem_are_one_file_by_change_time_or_link_count() {
    for filesystem in [None, Some(UNSTABLE)] {
        let two = |device, (ctime, links), (other_ctime, other_links)| {
            files(&[(filesystem, 7, ctime, links), (filesystem, device, other_ctime, other_links)])
        };
        assert_eq!(two(7, (1, Single), (1, Single)), [1, 1]);
        assert_eq!(two(7, (1, Single), (2, Single)), [1, 2]);
        assert_eq!(two(8, (1, Single), (1, Single)), [1, 2]);
        assert_eq!(two(7, (1, HardLinked), (2, HardLinked)), [1, 1]);
        assert_eq!(two(7, (1, Single), (2, HardLinked)), [1, 1], "the file got another hard link");
        assert_eq!(two(7, (1, Unknown), (2, Single)), [1, 1]);
        assert_eq!(two(8, (1, HardLinked), (1, HardLinked)), [1, 2]);
    }
}

#[test]
fn symlink_target_is_matched_by_device() {
    let link = (Some(1), 8, 1, ViaSymlink);
    assert_eq!(files(&[link, (Some(2), 8, 1, Single)]), [1, 1]);
    assert_eq!(files(&[link, (Some(2), 7, 1, Single)]), [1, 2]);
    // All names of the target are names of the same file.
    let rows = [(Some(2), 6, 1, Single), (Some(3), 8, 1, Single), link, (Some(2), 8, 1, Single)];
    assert_eq!(files(&rows), [1, 1, 1, 1]);
}

#[test]
fn row_without_an_inode_is_a_separate_file() {
    assert_eq!(files_of_inode(0, &[(Some(1), 7, 1, Single), (Some(1), 7, 1, Single)]), [1, 2]);
}
