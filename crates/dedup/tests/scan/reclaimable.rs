//! Tests the reclaimable bytes: those allocated to copies that can be removed.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};

use gristmill_dedup::ScanOptions;
use gristmill_store::catalog::GroupQuery;

use crate::fixture::{Fixture, MIB, bytes, write};

fn sparse(fixture: &Fixture, name: &str) {
    let mut file = File::create(fixture.at(name)).expect("a file");
    file.seek(SeekFrom::Start(4 * MIB as u64)).expect("a position");
    file.write_all(b"end").expect("written");
    file.sync_all().expect("on disk");
}

#[test]
fn holes_of_sparse_files_are_not_reclaimable() {
    let fixture = Fixture::new();
    sparse(&fixture, "a");
    sparse(&fixture, "b");
    let summary = fixture.scan();
    let group = fixture.group_list().remove(0);
    assert_eq!(group.redundant, 4 * MIB as u64 + 3);
    let allocated = fixture.row("a").stat.allocated.max(fixture.row("b").stat.allocated);
    assert!(allocated < MIB as u64, "{allocated}");
    assert_eq!((group.reclaimable, summary.reclaimable_bytes), (allocated, allocated));
}

#[test]
fn symlink_target_is_kept_and_its_copies_are_reclaimable() {
    let fixture = Fixture::new();
    let outside = fixture.outside("elsewhere");
    write(&outside.join("file"), &bytes(1, 5_000));
    fixture.symlink(outside.join("file"), "link");
    fixture.symlink(outside.join("file"), "link too");
    fixture.store.roots().follow_links(fixture.root.id, true).expect("followed");
    let roots = fixture.store.roots().list().expect("roots");
    fixture.scan_all(&roots, &ScanOptions::default());
    fixture.assert_groups(&[]);
    fixture.write("copy", &bytes(1, 5_000));
    fixture.write("copy too", &bytes(1, 5_000));
    let summary = fixture.scan_all(&roots, &ScanOptions::default());
    fixture.assert_groups(&[&["copy", "copy too", "link", "link too"]]);
    let group = fixture.group_list().remove(0);
    let allocated = fixture.row("copy").stat.allocated + fixture.row("copy too").stat.allocated;
    assert_eq!((group.copies, group.reclaimable), (3, allocated));
    assert_eq!(summary.bytes, 15_000, "a file that two links lead to counts once");
}

#[test]
fn empty_files_are_grouped_on_request() {
    let fixture = Fixture::of(&[("a", 1, 0), ("f/b", 1, 0), ("c", 1, 10)]);
    fixture.scan();
    let all = GroupQuery::default().min_size(0);
    let groups = fixture.store.catalog().groups(&all).expect("groups");
    assert_eq!((groups.total, groups.files, groups.redundant), (1, 2, 0));
    let group = &groups.groups[0];
    assert_eq!((group.size, group.copies), (0, 2));
    assert_eq!(group.key.hash, blake3::hash(b"").as_bytes());
    assert_eq!(fixture.store.catalog().groups(&GroupQuery::default()).expect("groups").total, 0);
}
