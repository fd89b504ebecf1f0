//! What counts as reclaimable: allocated bytes of copies that can be removed.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};

use gristmill_dedup::ScanOptions;
use gristmill_store::catalog::GroupQuery;

use crate::bed::{Bed, MIB, bytes, write};

fn sparse(bed: &Bed, name: &str) {
    let mut file = File::create(bed.at(name)).expect("a file");
    file.seek(SeekFrom::Start(4 * MIB as u64)).expect("a place");
    file.write_all(b"end").expect("written");
    file.sync_all().expect("on disk");
}

#[test]
fn holes_of_sparse_files_are_not_reclaimable() {
    let bed = Bed::new();
    sparse(&bed, "a");
    sparse(&bed, "b");
    let summary = bed.scan();
    let group = bed.group_list().remove(0);
    assert_eq!(group.redundant, 4 * MIB as u64 + 3);
    let allocated = bed.row("a").stat.allocated.max(bed.row("b").stat.allocated);
    assert!(allocated < MIB as u64, "{allocated}");
    assert_eq!((group.reclaimable, summary.reclaimable_bytes), (allocated, allocated));
}

#[test]
fn file_that_a_symbolic_link_leads_to_is_kept_and_its_copies_are_reclaimable() {
    let bed = Bed::new();
    let outside = bed.outside("elsewhere");
    write(&outside.join("file"), &bytes(1, 5_000));
    bed.symlink(outside.join("file"), "link");
    bed.symlink(outside.join("file"), "link too");
    bed.store.roots().follow_links(bed.root.id, true).expect("followed");
    let roots = bed.store.roots().list().expect("roots");
    bed.scan_all(&roots, &ScanOptions::default());
    bed.has_groups(&[]);
    bed.write("copy", &bytes(1, 5_000));
    bed.write("copy too", &bytes(1, 5_000));
    let summary = bed.scan_all(&roots, &ScanOptions::default());
    bed.has_groups(&[&["copy", "copy too", "link", "link too"]]);
    let group = bed.group_list().remove(0);
    let allocated = bed.row("copy").stat.allocated + bed.row("copy too").stat.allocated;
    assert_eq!((group.copies, group.reclaimable), (3, allocated));
    assert_eq!(summary.bytes, 15_000, "a file that two links lead to counts once");
}

#[test]
fn empty_files_are_a_group_if_they_are_asked_for() {
    let bed = Bed::of(&[("a", 1, 0), ("f/b", 1, 0), ("c", 1, 10)]);
    bed.scan();
    let all = GroupQuery { min_size: 0, ..GroupQuery::default() };
    let groups = bed.store.catalog().groups(&all).expect("groups");
    assert_eq!((groups.total, groups.files, groups.redundant), (1, 2, 0));
    let group = &groups.groups[0];
    assert_eq!((group.size, group.copies), (0, 2));
    assert_eq!(group.hash, blake3::hash(b"").as_bytes());
    assert_eq!(bed.store.catalog().groups(&GroupQuery::default()).expect("groups").total, 0);
}
