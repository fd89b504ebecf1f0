//! Tests identical, similar and contained folders: single cases, then random trees against a naive search of all pairs.

#[path = "trees/naive.rs"]
mod naive;
#[macro_use]
mod options;
mod trees;

use std::path::PathBuf;

use gristmill_dedup::folders::{
    self, CappedList, ContainedFolder, ContainedOptions, Difference, Differing, Entry, FolderGroup, FolderOptions,
    GroupedFolder, SimilarFolders, SimilarOptions,
};
use gristmill_store::catalog::{FolderRef, LinkKind, Listing, ListingStatus, Skipped};
use proptest::prelude::*;
use trees::FileContent::{Empty, Hashed, Unique, Unknown};
use trees::{CatalogFixture, TestFile, file, skipped_entry};

const X: trees::FileContent = Hashed(10, 1);
const Y: trees::FileContent = Hashed(20, 2);
const Z: trees::FileContent = Hashed(30, 3);

fn store(files: &[TestFile], folders: &[&str], failed: &[&str]) -> CatalogFixture {
    let mut trees = CatalogFixture::new();
    trees.root("/r", files, folders, failed);
    trees
}

fn by_path(found: &[FolderGroup]) -> Vec<Vec<String>> {
    let path = |folder: &GroupedFolder| folder.path.to_str().expect("valid UTF-8").to_owned();
    let mut groups: Vec<Vec<String>> = found.iter().map(|group| group.folders.iter().map(path).collect()).collect();
    groups.sort();
    groups
}

#[track_caller]
fn check(options: &FolderOptions, files: &[TestFile], folders: &[&str], failed: &[&str], expected: &[&[&str]]) {
    let trees = store(files, folders, failed);
    let found = folders::find_identical(&trees.store, options).expect("an answer");
    assert_eq!(by_path(&found), expected);
}

#[track_caller]
fn check_default(files: &[(&str, trees::FileContent)], expected: &[&[&str]]) {
    let files: Vec<_> = files.iter().map(|(path, content)| file(*path, *content)).collect();
    check(&FolderOptions::default(), &files, &[], &[], expected);
}

#[test]
fn names_are_ignored_but_layout_is_compared() {
    check_default(&[("a/1", X), ("a/2", Y), ("b/3", Y), ("b/4", X)], &[&["a", "b"]]);
    check_default(&[("a/1", X), ("a/s/2", Y), ("b/3", Y), ("b/s/4", X)], &[]);
    // Contents must occur equally often.
    check_default(&[("a/1", X), ("a/2", X), ("b/1", X)], &[]);
}

#[test]
fn only_outermost_identical_folders_are_listed() {
    let both = [("a/s/t/1", X), ("a/2", Y), ("b/s/t/1", X), ("b/2", Y)];
    check_default(&both, &[&["a", "b"]]);
    // A third copy elsewhere makes the inner folders listed again.
    let third = [&both[..], &[("c/t/1", X), ("c/3", Z)]].concat();
    check_default(&third, &[&["a", "b"], &["a/s/t", "b/s/t", "c/t"]]);
}

#[test]
fn folder_shared_by_two_groups_is_listed() {
    let files = [
        ("a1/s/f", X),
        ("a1/g", Y),
        ("a2/s/f", X),
        ("a2/g", Y),
        ("b1/s/f", X),
        ("b1/g", Z),
        ("b2/s/f", X),
        ("b2/g", Z),
    ];
    check_default(&files, &[&["a1", "a2"], &["a1/s", "a2/s", "b1/s", "b2/s"], &["b1", "b2"]]);
}

#[test]
fn folder_is_not_identical_to_its_subfolder() {
    check_default(&[("a/a/a/f", X), ("b/f", X)], &[&["a/a/a", "b"]]);
    check_default(&[("a/a/f", X)], &[]);
}

#[test]
fn match_names_compares_names() {
    let options = options!(FolderOptions { match_names: true });
    let named = |name: &str, inner: &str| {
        vec![file("a/1", X), file("a/s/2", Y), file(format!("b/{name}"), X), file(format!("b/{inner}/2"), Y)]
    };
    check(&options, &named("1", "s"), &[], &[], &[&["a", "b"]]);
    check(&options, &named("2", "s"), &[], &[], &[&["a/s", "b/s"]]);
    check(&options, &named("1", "t"), &[], &[], &[&["a/s", "b/t"]]);
}

#[test]
fn unknown_contents_are_not_identical() {
    let options = FolderOptions::default();
    let pair = |content| [file("a/s/1", X), file("a/2", content), file("b/s/1", X), file("b/2", content)];
    check(&options, &pair(Y), &[], &[], &[&["a", "b"]]);
    check(&options, &pair(Unknown(5)), &[], &[], &[&["a/s", "b/s"]]);
    check(&options, &pair(Unique(5)), &[], &[], &[&["a/s", "b/s"]]);
    check(&options, &pair(Y), &[], &["b/s"], &[]);
    check(&options, &pair(Y), &[], &["a"], &[&["a/s", "b/s"]]);
    check(&options, &pair(Y), &["a/empty"], &[], &[&["a/s", "b/s"]]);
    check(&options, &pair(Y), &["a/empty", "b/void"], &[], &[&["a", "b"]]);
}

#[test]
fn folders_of_empty_files_are_identical_on_request() {
    let files = [file("a/1", Empty), file("b/1", Empty)];
    check(&FolderOptions::default(), &files, &[], &[], &[]);
    check(&options!(FolderOptions { min_size: 0 }), &files, &["c", "d"], &[], &[&["a", "b"]]);
}

#[test]
fn min_files_and_min_size_exclude_small_folders() {
    let files = [file("a/1", X), file("b/1", X), file("c/1", Y), file("c/2", X), file("d/1", Y), file("d/2", X)];
    check(&options!(FolderOptions { min_files: 2 }), &files, &[], &[], &[&["c", "d"]]);
    check(&options!(FolderOptions { min_size: 11 }), &files, &[], &[], &[&["c", "d"]]);
}

#[test]
fn hard_links_are_not_reclaimable() {
    let linked = |path: &str, content, inode| TestFile { inode, ..file(path, content) };
    for (other, content, expected) in [(9, X, 0), (8, X, 10), (9, Unique(10), 0)] {
        let files = [linked("a/1", content, 9), linked("b/1", content, other)];
        let trees = store(&files, &[], &[]);
        let found = folders::find_identical(&trees.store, &FolderOptions::default()).expect("an answer");
        assert_eq!(by_path(&found), [["a", "b"]], "{content:?}");
        assert_eq!((found[0].files, found[0].bytes, found[0].reclaimable), (1, 10, expected));
    }
    // The two files of `a` are one inode. `b`, which occupies more space, is kept.
    let files = [linked("a/1", X, 9), linked("a/2", X, 9), file("b/1", X), file("b/2", X)];
    let found = folders::find_identical(&store(&files, &[], &[]).store, &FolderOptions::default()).expect("an answer");
    assert_eq!((found[0].bytes, found[0].reclaimable), (20, 10));
}

#[test]
fn reclaimable_counts_allocated_bytes_of_files_that_are_freed() {
    let freed = |files: &[TestFile]| {
        let found =
            folders::find_identical(&store(files, &[], &[]).store, &FolderOptions::default()).expect("an answer");
        let group = found.iter().find(|group| by_path(std::slice::from_ref(group)) == [["a", "b"]]);
        let group = group.expect("a group");
        (group.bytes, group.reclaimable, group.redundant)
    };
    let linked = |path: &str, links, inode| TestFile { inode, links, ..file(path, X) };
    let one = |path: &str, allocated| TestFile { links: LinkKind::Single, allocated, ..file(path, X) };
    // Sparse files: the one that occupies most space is kept.
    assert_eq!(freed(&[one("a/1", Some(4)), one("b/1", Some(7))]), (10, 4, 10));
    // Two files that had the same inode on disks mounted in turn.
    let single = |path, ctime_ns| TestFile { ctime_ns, ..linked(path, LinkKind::Single, 9) };
    assert_eq!(freed(&[single("a/1", 1), single("b/1", 2)]), (10, 10, 10));
    // Another path to b's file is removed with it. An outdated link count does not show the number of names.
    let copy = one("a/1", None);
    let others = [single("c/1", 1), file("c/2", Unique(1))];
    assert_eq!(freed(&[vec![copy.clone(), single("b/1", 1)], others.to_vec()].concat()), (10, 10, 10));
    let others = [linked("c/1", LinkKind::HardLinked, 9), file("c/2", Unique(1))];
    assert_eq!(freed(&[vec![copy, single("b/1", 1)], others.to_vec()].concat()), (10, 0, 0));
    // Another name keeps the file: a is kept, and removing b frees nothing.
    let hard = |path| linked(path, LinkKind::HardLinked, 9);
    assert_eq!(freed(&[one("a/1", None), hard("b/1"), hard("c/1"), file("c/2", Unique(1))]), (10, 0, 0));
    assert_eq!(freed(&[one("a/1", None), hard("b/1")]), (10, 10, 10));
    // The target of a symbolic link is stored elsewhere.
    let via = |path| linked(path, LinkKind::ViaSymlink, 9);
    assert_eq!(freed(&[one("a/1", None), via("b/1")]), (10, 0, 0));
}

#[test]
fn folder_reached_by_two_paths_is_not_identical_to_itself() {
    let groups = |files: &[TestFile]| {
        let found =
            folders::find_identical(&store(files, &[], &[]).store, &FolderOptions::default()).expect("an answer");
        by_path(&found)
    };
    let at = |path: &str, links, inode| TestFile { inode, links, ..file(path, X) };
    let single = |path: &str, inode| at(path, LinkKind::Single, inode);
    assert_eq!(groups(&[single("a/1", 9), single("b/1", 9)]), [[""; 0]; 0]);
    assert_eq!(groups(&[single("a/1", 9), at("b/1", LinkKind::ViaSymlink, 9)]), [[""; 0]; 0]);
    // Hard links can be removed separately.
    let hard = |path| at(path, LinkKind::HardLinked, 9);
    assert_eq!(groups(&[hard("a/1"), hard("b/1")]), [["a", "b"]]);
    // Copies in such a folder are listed once.
    let twice = ["a", "b"].map(|top| [single(&format!("{top}/p/1"), 8), single(&format!("{top}/q/1"), 9)]);
    assert_eq!(groups(&twice.concat()), [["a/p", "a/q"]]);
}

/// Checks folders with the same files and with these skipped entries.
#[track_caller]
fn check_unscanned(
    entries: &[(&str, &str, Option<&str>)],
    match_names: bool,
    expected: &[(bool, Option<u64>, &[&str])],
) {
    let mut trees = CatalogFixture::new();
    for (folder, name, target) in entries {
        let skipped = trees.skipped.entry(folder.into()).or_insert(Some(Skipped::default()));
        match skipped {
            Some(skipped) if !name.is_empty() => *skipped += skipped_entry(name, *target),
            skipped => *skipped = None,
        }
    }
    let files = ["a", "b"].map(|top| [file(format!("{top}/s/1"), X), file(format!("{top}/2"), Y)]);
    trees.root("/r", &files.concat(), &[], &[]);
    let options = options!(FolderOptions { match_names });
    let found = folders::find_identical(&trees.store, &options).expect("an answer");
    let path = |folder: &GroupedFolder| folder.path.to_str().expect("valid UTF-8").to_owned();
    let group = |group: &FolderGroup| {
        let paths: Vec<_> = group.folders.iter().map(path).collect();
        (group.identical, group.unscanned(), paths)
    };
    let found: Vec<_> = found.iter().map(group).collect();
    let expected = expected.iter().map(|(identical, unscanned, paths)| {
        (*identical, *unscanned, paths.iter().map(|path| path.to_string()).collect::<Vec<_>>())
    });
    assert_eq!(found, expected.collect::<Vec<_>>());
}

#[test]
fn folders_are_identical_only_if_their_unscanned_entries_are() {
    let top: &[&str] = &["a", "b"];
    let inner: &[&str] = &["a/s", "b/s"];
    let link = |folder, name, target| (folder, name, Some(target));
    check_unscanned(&[], true, &[(true, Some(0), top)]);
    // Equal links on every level.
    let same = [link("a", "l", "t"), link("b", "l", "t"), link("a/s", "m", "u"), link("b/s", "m", "u")];
    check_unscanned(&same, true, &[(true, Some(4), top)]);
    check_unscanned(&same, false, &[(true, Some(4), top)]);
    // Names are compared on request.
    let names = [link("a", "l", "t"), link("b", "m", "t")];
    check_unscanned(&names, false, &[(true, Some(2), top)]);
    check_unscanned(&names, true, &[(true, Some(0), inner), (false, Some(2), top)]);
    // Different targets, or a different number of links. The inner folders are still identical.
    let targets = [link("a", "l", "t"), link("b", "l", "u")];
    check_unscanned(&targets, false, &[(true, Some(0), inner), (false, Some(2), top)]);
    let more = [link("a", "l", "t"), link("b", "l", "t"), link("b", "m", "t")];
    check_unscanned(&more, false, &[(true, Some(0), inner), (false, Some(3), top)]);
    // The same link in another subfolder.
    check_unscanned(&[link("a", "l", "t"), link("b/s", "l", "t")], true, &[(false, Some(2), top)]);
    // Unknown entries are never equal.
    check_unscanned(&[("a", "n", None), ("b", "n", None)], true, &[(true, Some(0), inner), (false, Some(2), top)]);
    check_unscanned(&[("b/s", "n", None)], true, &[(false, Some(1), top)]);
}

#[test]
fn folder_without_a_record_of_its_entries_is_not_identical() {
    check_unscanned(&[("a/s", "", None)], false, &[(false, None, &["a", "b"])]);
    check_unscanned(&[("a", "", None)], false, &[(true, Some(0), &["a/s", "b/s"]), (false, None, &["a", "b"])]);
}

#[test]
fn folder_around_a_removed_root_is_not_identical() {
    let mut trees = store(&[file("a/2", Y), file("b/2", Y)], &[], &[]);
    let inner = trees.root("/r/a/x", &[file("1", X)], &[], &[]);
    let found = || folders::find_identical(&trees.store, &FolderOptions::default()).expect("an answer");
    assert!(found().is_empty());
    trees.store.roots().remove(inner).expect("removed");
    assert_eq!(found(), [], "the contents of a/x are unknown");
}

/// Row ids depend on the order in which roots and folders are scanned.
#[test]
fn order_of_rows_does_not_change_what_is_listed() {
    let linked = |path: &str, content| TestFile { inode: 9, links: LinkKind::HardLinked, ..file(path, content) };
    let roots = [
        ("/r/one", vec![linked("d/x", X), file("d/z", Y), file("d/n", Z)]),
        ("/r/three", vec![linked("y", X), file("similar/x", X), file("similar/z", Y)]),
        ("/r/two", vec![file("e/x", X), file("e/z", Y), file("e/n", Z)]),
        ("/r", vec![file("d/x", X), file("d/z", Y), file("d/n", Z)]),
    ];
    let answers = |order: [usize; 4]| {
        let mut trees = CatalogFixture::new();
        for (path, files) in order.map(|at| &roots[at]) {
            trees.root(path, files, &[], &[]);
        }
        let paths = |id: i64| {
            let roots = trees.store.roots().list().expect("roots");
            roots.into_iter().find(|root| root.id == id).expect("a root").path
        };
        let found = folders::find_identical(&trees.store, &FolderOptions::default()).expect("an answer");
        let groups: Vec<_> = found
            .iter()
            .map(|group| {
                let folders = group.folders.iter().map(|folder| paths(folder.root).join(&folder.path));
                (folders.collect::<Vec<_>>(), group.reclaimable)
            })
            .collect();
        let found = folders::find_similar(&trees.store, &SimilarOptions::default()).expect("an answer");
        let pairs: Vec<_> =
            found.pairs.iter().map(|pair| [&pair.a, &pair.b].map(|side| paths(side.root).join(&side.path))).collect();
        (groups, pairs)
    };
    let expected = answers([0, 1, 2, 3]);
    let (groups, pairs) = &expected;
    assert_eq!(groups[0].0, ["/r/d", "/r/one/d", "/r/two/e"].map(PathBuf::from));
    assert_eq!(groups[0].1, 50 + 60, "/r/d is kept; x of /r/one/d has another name");
    assert_eq!(pairs[0], ["/r/d", "/r/three/similar"].map(PathBuf::from));
    for order in [[3, 2, 1, 0], [1, 0, 3, 2], [2, 3, 0, 1], [0, 2, 1, 3]] {
        assert_eq!(answers(order), expected, "{order:?}");
    }
}

#[test]
fn roots_option_limits_the_compared_folders() {
    let mut trees = CatalogFixture::new();
    let one = trees.root("/one", &[file("f", X), file("s/g", Y)], &[], &[]);
    let two = trees.root("/two", &[file("f", X), file("s/g", Y), file("t/g", Y)], &[], &[]);
    let found = |roots| {
        let options = options!(FolderOptions { roots });
        let folders = folders::find_identical(&trees.store, &options).expect("an answer").remove(0).folders;
        folders.into_iter().map(|folder| (folder.root, folder.path)).collect::<Vec<_>>()
    };
    assert_eq!(found(vec![]), [(one, "s".into()), (two, "s".into()), (two, "t".into())]);
    assert_eq!(found(vec![two]), [(two, "s".into()), (two, "t".into())]);
}

#[test]
fn nested_root_counts_as_a_folder_of_the_outer_root() {
    let files = [file("a/x/1", X), file("a/2", Y), file("b/x/1", X), file("b/2", Y)];
    let mut trees = store(&files, &[], &[]);
    trees.store.roots().register("/r/a/x".as_ref()).expect("a root");
    let found = folders::find_identical(&trees.store, &FolderOptions::default()).expect("an answer");
    assert_eq!(by_path(&found), [["a", "b"]], "rows of the nested root");
    trees.root("/r/b/new", &[file("3", Z)], &[], &[]);
    let found = folders::find_identical(&trees.store, &FolderOptions::default()).expect("an answer");
    assert_eq!(by_path(&found), [["", "b/x"]], "b has another root");
    trees.store.roots().register("/r/a/never".as_ref()).expect("a root");
    trees.store.roots().remove(trees.store.roots().find("/r/b/new".as_ref()).expect("r").expect("r").id).expect("r");
    let found = folders::find_identical(&trees.store, &FolderOptions::default()).expect("an answer");
    assert_eq!(by_path(&found), [["", "b/x"]], "an unscanned root is unknown");
}

#[test]
fn missing_files_and_folders_are_ignored() {
    let files = [file("a/1", X), file("a/2", Unique(1)), file("b/1", X), file("b/s/3", Unique(2)), file("c/1", X)];
    let trees = store(&files, &[], &["c"]);
    let found = || by_path(&folders::find_identical(&trees.store, &FolderOptions::default()).expect("an answer"));
    assert!(found().is_empty());
    let catalog = trees.store.catalog();
    let root = trees.store.roots().list().expect("roots")[0].id;
    let top = catalog.root_folder(root).expect("its root folder");
    let inner = catalog.known_entries(&top, true).expect("its folders").folders;
    let listing = |name: &str| {
        let id = inner.iter().find(|(known, _)| known == name).map(|(_, folder)| folder.id);
        Listing { status: ListingStatus::Whole, ..Listing::new(1, FolderRef { root, id, path: name.into() }) }
    };
    let (mut a, mut b) = (listing("a"), listing("b"));
    let known = catalog.known_entries(&a.folder, true).expect("its files").files;
    a.missing_files = known.iter().filter(|(name, _)| name == "2").map(|(_, file)| file.id).collect();
    b.missing_folders = vec!["s".into()];
    catalog.record(vec![a]).expect("recorded");
    assert!(found().is_empty(), "b has another folder");
    catalog.record(vec![b]).expect("recorded");
    assert_eq!(found(), [["a", "b"]]);
    catalog.record(vec![listing("c")]).expect("recorded");
    assert_eq!(found(), [["a", "b", "c"]], "c was read completely");
}

fn similar(files: &[(&str, trees::FileContent)], min_similarity: u8) -> SimilarFolders {
    let files: Vec<_> = files.iter().map(|(path, content)| file(*path, *content)).collect();
    let options = options!(SimilarOptions { min_similarity });
    folders::find_similar(&store(&files, &[], &[]).store, &options).expect("an answer")
}

#[test]
fn similar_pair_lists_its_differences() {
    let files = [
        ("a/1", X),
        ("a/2", Y),
        ("a/s/3", Z),
        ("a/notes", Unique(7)),
        ("a/own", Unique(1)),
        ("b/1", X),
        ("b/two", Y),
        ("b/s/3", Z),
        ("b/notes", Unique(8)),
    ];
    let found = similar(&files, 50);
    assert_eq!(found.total, 1);
    let pair = &found.pairs[0];
    assert_eq!((pair.a.path.to_str(), pair.b.path.to_str()), (Some("a"), Some("b")));
    assert_eq!((pair.a.files, pair.b.files, pair.matching_files, pair.matching_bytes), (5, 4, 3, 60));
    assert_eq!((pair.a.bytes, pair.b.bytes, pair.similarity), (68, 68, 50.0));
    assert!(pair.a.whole && pair.b.whole);
    let entry = |path: &str, size: u64| Entry { path: path.into(), size, mtime_ns: size as i64 * 1_000_000_000 };
    assert_eq!(pair.only_in_a, CappedList { items: vec![entry("own", 1)], total: 1 });
    assert_eq!(pair.only_in_b, CappedList { items: vec![], total: 0 });
    let notes = Differing { a: entry("notes", 7), b: entry("notes", 8), known: true };
    assert_eq!(pair.differing, CappedList { items: vec![notes], total: 1 });
    assert_eq!(similar(&files, 51).total, 0);
}

#[track_caller]
fn check_pairs(files: &[(&str, trees::FileContent)], expected: &[(&str, &str, u64)]) {
    let found = similar(files, 50);
    let path = |path: &PathBuf| path.to_str().expect("valid UTF-8").to_owned();
    let pairs = found.pairs.iter().map(|pair| (path(&pair.a.path), path(&pair.b.path), pair.similarity.round() as u64));
    let pairs: Vec<_> = pairs.collect();
    let expected: Vec<_> = expected.iter().map(|(a, b, s)| (a.to_string(), b.to_string(), *s)).collect();
    assert_eq!(pairs, expected);
}

#[test]
fn outermost_pair_with_the_highest_similarity_is_listed() {
    // The outermost of pairs with equal similarity.
    check_pairs(&[("a/p/1", X), ("a/p/2", Y), ("b/q/1", X)], &[("a", "b", 50)]);
    // A pair inside a less similar one.
    let inner = [("a/p/1", X), ("a/p/2", Y), ("a/p/3", Z), ("b/p/1", X), ("b/p/2", Y), ("b/p/3", Z)];
    let outer = [("a/p/x", Unique(1)), ("a/y", Unique(2)), ("b/z", Unique(3))];
    check_pairs(&[&inner[..], &outer].concat(), &[("a/p", "b/p", 75), ("a", "b", 50)]);
    // Identical folders are not listed, nor pairs that only add files to one of them.
    check_pairs(&inner, &[]);
    check_pairs(&[&inner[..], &outer[1..2]].concat(), &[("a", "b", 75)]);
    let with_more = [("a/p/1", X), ("a/p/2", Y), ("a/y", Unique(2)), ("b/1", X), ("b/2", Y), ("c", Unique(4))];
    check_pairs(&with_more, &[]);
    // The same files in other subfolders are not identical.
    check_pairs(&[("a/p/1", X), ("a/2", Y), ("b/1", X), ("b/2", Y)], &[("a", "b", 100)]);
    // A folder and its subfolder are not a pair.
    check_pairs(&[("a/1", X), ("a/p/1", X), ("a/p/2", Y)], &[]);
}

#[test]
fn unreadable_files_are_not_known_to_differ() {
    let found = similar(&[("a/1", X), ("a/2", Unknown(5)), ("b/1", X), ("b/2", Unknown(5))], 30);
    let pair = &found.pairs[0];
    assert_eq!((pair.matching_files, pair.a.whole, pair.b.whole), (1, false, false));
    assert!(pair.differing.total == 1 && !pair.differing.items[0].known);
}

#[test]
fn every_pair_states_its_differences() {
    let differences = |files: &[(&str, trees::FileContent)], skipped: &[&str], failed: &[&str]| {
        let mut trees = CatalogFixture::new();
        let skip = |folder: &&str| (PathBuf::from(folder), Some(skipped_entry("link", Some("t"))));
        trees.skipped = skipped.iter().map(skip).collect();
        let files: Vec<_> = files.iter().map(|(path, content)| file(*path, *content)).collect();
        trees.root("/r", &files, &[], failed);
        let mut found = folders::find_similar(&trees.store, &SimilarOptions::default()).expect("an answer").pairs;
        assert!(found.len() < 2, "{found:?}");
        found.pop().map(|pair| (pair.differences, [pair.a.unscanned, pair.b.unscanned]))
    };
    let same = [("a/1", X), ("a/s/2", Y), ("b/1", X), ("b/s/2", Y)];
    assert_eq!(differences(&same, &[], &[]), None);
    assert_eq!(differences(&same, &["a", "b"], &[]), None);
    let unscanned = (vec![Difference::UnscannedEntries], [Some(0), Some(1)]);
    assert_eq!(differences(&same, &["b/s"], &[]), Some(unscanned));
    let unreadable = (vec![Difference::Unreadable], [Some(0), Some(0)]);
    assert_eq!(differences(&same, &[], &["a"]), Some(unreadable));
    let elsewhere = [("a/1", X), ("a/2", Y), ("b/1", X), ("b/s/2", Y)];
    assert_eq!(differences(&elsewhere, &[], &[]), Some((vec![Difference::Layout], [Some(0), Some(0)])));
    let files = [&same[..], &[("a/3", Z)]].concat();
    let both = (vec![Difference::Files, Difference::UnscannedEntries], [Some(1), Some(0)]);
    assert_eq!(differences(&files, &["a"], &[]), Some(both));
}

#[test]
fn identical_folders_are_represented_by_one_in_pairs() {
    let mut files = Vec::new();
    for folder in ["a", "b", "c"] {
        files.extend([file(format!("{folder}/1"), X), file(format!("{folder}/2"), Y)]);
        // Each folder contains a subfolder that shares a content with it.
        files.extend([file(format!("{folder}/in/3"), Y), file(format!("{folder}/in/4"), Z)]);
    }
    files.push(file("c/more", Unique(1)));
    let found = folders::find_similar(&store(&files, &[], &[]).store, &SimilarOptions::default()).expect("an answer");
    let path = |side: &folders::Side| side.path.to_str().expect("valid UTF-8").to_owned();
    let pairs: Vec<_> = found.pairs.iter().map(|pair| (path(&pair.a), path(&pair.b), pair.a.identical)).collect();
    assert_eq!(pairs, [("a".to_owned(), "c".to_owned(), 1)]);
}

#[test]
fn unread_files_of_equal_size_are_not_known_to_differ() {
    let found = similar(&[("a/1", X), ("a/2", Unique(5)), ("b/1", X), ("b/2", Unique(5))], 30);
    assert!(!found.pairs[0].differing.items[0].known);
    let found = similar(&[("a/1", X), ("a/2", Unique(5)), ("b/1", X), ("b/2", Unique(6))], 30);
    assert!(found.pairs[0].differing.items[0].known, "of different sizes");
}

/// Checks 10,000 folders that all contain the same licence and an empty file, so that every two share a content. A
/// third content is in one other folder.
fn check_popular(other: impl Fn(u64) -> u64, total: usize) {
    let count = 10_000;
    let mut files = Vec::new();
    for n in 0..count {
        let folder = format!("{}/{}/{n}", n % 10, n % 100);
        files.push(file(format!("{folder}/LICENSE"), X));
        files.push(file(format!("{folder}/empty"), Empty));
        files.push(file(format!("{folder}/shared"), Hashed(1_000 + other(n), 4)));
        files.push(file(format!("{folder}/own"), Unique(1 + n)));
    }
    let trees = store(&files, &[], &[]);
    let options = options!(SimilarOptions { limit: 3 });
    let found = folders::find_similar(&trees.store, &options).expect("an answer");
    // Three of five files match: licence, empty file and the shared one.
    assert_eq!((found.total, found.pairs.len(), found.pairs[0].similarity), (total, 3, 60.0));
    assert!(found.proposed < 8 * count, "{} pairs proposed", found.proposed);
    assert!(found.compared < 2 * count, "{} pairs compared", found.compared);
}

#[test]
fn popular_contents_propose_no_pairs() {
    // Neighbours share a file: the ten outermost folders form five similar pairs, which represent all others.
    check_popular(|n| n / 2, 5);
    // Random folders share a file.
    let mut shuffled: Vec<u64> = (0..10_000).collect();
    let mut random = 1_u64;
    for at in (1..shuffled.len()).rev() {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        shuffled.swap(at, (random >> 33) as usize % (at + 1));
    }
    check_popular(|n| shuffled[n as usize] / 2, 5_000);
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 96, max_shrink_iters: 2_000, failure_persistence: None, ..ProptestConfig::default()
    })]

    #[test]
    fn random_trees_match_a_naive_search(
        tree in naive::tree(), match_names: bool, similarity in 0u8..=100, popular in 1usize..6,
    ) {
        let trees = tree.write();
        let options = options!(FolderOptions { match_names });
        let found = folders::find_identical(&trees.store, &options).expect("an answer");
        prop_assert_eq!(naive::listed_groups(&found), naive::groups(&tree, match_names));

        let options = options!(SimilarOptions { min_similarity: similarity, popular });
        let found = folders::find_similar(&trees.store, &options).expect("an answer");
        prop_assert_eq!(naive::listed_pairs(&found), naive::similar(&tree, similarity, popular));
    }

    #[test]
    fn contained_folders_of_random_trees_match_a_naive_search(tree in naive::tree(), match_names: bool) {
        let options = options!(ContainedOptions { match_names, list: usize::MAX });
        let found = folders::find_contained(&tree.write().store, &options).expect("an answer");
        prop_assert_eq!(naive::listed_contained(&found), naive::contained(&tree, match_names));
    }
}

#[test]
fn similarity_above_100_percent_is_refused() {
    let options = options!(SimilarOptions { min_similarity: 101 });
    let error = folders::find_similar(&CatalogFixture::new().store, &options).expect_err("an error");
    assert!(error.is_user_error());
}

fn contained(trees: &CatalogFixture, options: &ContainedOptions) -> Vec<ContainedFolder> {
    folders::find_contained(&trees.store, options).expect("an answer")
}

/// Returns the paths of contained folders, each with those that contain it, below `/r`.
fn contained_paths(found: &[ContainedFolder]) -> Vec<(String, Vec<String>)> {
    let path = |location: &gristmill_dedup::Location| {
        location.path.strip_prefix("/r").expect("in /r").to_str().expect("valid UTF-8").to_owned()
    };
    let around = |found: &ContainedFolder| found.containers.items.iter().map(|one| path(&one.location)).collect();
    found.iter().map(|found| (path(&found.location), around(found))).collect()
}

#[track_caller]
fn check_contained(options: &ContainedOptions, files: &[(&str, trees::FileContent)], expected: &[(&str, &[&str])]) {
    let files: Vec<_> = files.iter().map(|(path, content)| file(*path, *content)).collect();
    let found = contained(&store(&files, &[], &[]), options);
    let strings = |paths: &[&str]| paths.iter().map(|path| (*path).to_owned()).collect::<Vec<_>>();
    let expected: Vec<_> = expected.iter().map(|(path, around)| ((*path).to_owned(), strings(around))).collect();
    assert_eq!(contained_paths(&found), expected);
}

#[test]
fn folder_is_contained_in_a_folder_with_all_its_contents_and_more() {
    let options = ContainedOptions::default();
    // Wherever they are, whatever their names, and however often.
    check_contained(&options, &[("a/1", X), ("a/s/2", Y), ("b/3", X), ("b/t/4", Y), ("b/5", Z)], &[("a", &["b"])]);
    check_contained(&options, &[("a/1", X), ("a/2", X), ("b/3", X), ("b/4", Unique(1))], &[("a", &["b"])]);
    check_contained(&options, &[("a/1", X), ("a/2", Y), ("b/3", X), ("b/4", Z)], &[]);
    check_contained(&options, &[("a/1", X), ("a/2", Unique(5)), ("b/3", X), ("b/4", Unique(6))], &[]);
    check_contained(&options, &[("a/1", X), ("a/2", Unknown(5)), ("b/3", X), ("b/4", Unique(6))], &[]);
    // Neither may be inside the other.
    check_contained(&options, &[("a/s/1", X), ("a/2", X), ("a/3", Y)], &[]);
}

#[test]
fn equal_folders_are_not_contained_in_the_folder_around_one() {
    let options = ContainedOptions::default();
    check_contained(&options, &[("a/1", X), ("b/s/1", X), ("b/2", Y)], &[]);
    // The layout differs.
    let files = [("a/1", X), ("a/2", Y), ("b/s/1", X), ("b/s/t/2", Y), ("b/3", Z)];
    check_contained(&options, &files, &[("b/s/t", &["a"])]);
    let third = [("a/1", X), ("b/s/1", X), ("b/2", Y), ("c/1", X), ("c/2", Unique(1))];
    check_contained(&options, &third, &[("a", &["c"]), ("b/s", &["c"])]);
}

#[test]
fn outermost_contained_folders_are_listed_with_the_smallest_container_first() {
    let options = ContainedOptions::default();
    let files = [
        ("a/p/1", X),
        ("a/p/q/2", Y),
        ("b/1", X),
        ("b/2", Y),
        ("b/3", Unique(500)),
        ("c/d/1", X),
        ("c/e/2", Y),
        ("c/e/3", Unique(7)),
    ];
    // The root has all contents too, but contains `a`.
    check_contained(&options, &files, &[("a", &["c", "b"]), ("c/d", &["a/p", "b"])]);
}

#[test]
fn contained_with_names_needs_the_same_paths() {
    let options = options!(ContainedOptions { match_names: true });
    let files =
        [("a/1", X), ("a/s/2", Y), ("b/1", X), ("b/s/2", Y), ("b/s/3", X), ("c/1", X), ("c/t/2", Y), ("c/4", Z)];
    check_contained(&options, &files, &[("a", &["b"]), ("c/t", &["b/s"])]);
    let files = [("a/s/2", Y), ("b/s/2", Y), ("b/3", Y), ("c/t/2", Y), ("c/3", Unique(1))];
    check_contained(&options, &files, &[("a", &["b"])]);
}

#[test]
fn contained_folder_with_entries_not_scanned_is_marked() {
    let mut trees = CatalogFixture::new();
    trees.skipped = [("a".into(), Some(skipped_entry("link", Some("t"))))].into();
    let files = [file("a/1", X), file("b/1", X), file("b/2", Unique(1)), file("c/1", X), file("c/3", Unique(2))];
    trees.root("/r", &files, &[], &["c"]);
    let found = contained(&trees, &ContainedOptions::default());
    assert_eq!(contained_paths(&found), [("a".to_owned(), vec!["b".to_owned(), "c".to_owned()])]);
    let found = &found[0];
    assert_eq!((found.wholly, found.unscanned, found.reclaimable), (false, Some(1), 0));
    // A folder that was not read completely is not contained, but can contain others.
    let trees = store(&files, &[], &["a"]);
    assert_eq!(contained(&trees, &ContainedOptions::default()), []);
}

#[test]
fn reclaimable_of_a_contained_folder_excludes_files_with_other_names() {
    let linked = |path: &str| TestFile { inode: 9, links: LinkKind::HardLinked, ..file(path, X) };
    let files = [linked("a/1"), file("a/2", Y), linked("b/1"), file("b/2", Y), file("b/3", Z)];
    let found = contained(&store(&files, &[], &[]), &ContainedOptions::default());
    assert_eq!(contained_paths(&found), [("a".to_owned(), vec!["b".to_owned()])]);
    let found = &found[0];
    assert_eq!((found.wholly, found.files, found.bytes), (true, 2, 30));
    assert_eq!((found.reclaimable, found.redundant), (20, 20));
}

/// Deleting the folder would delete the only copy.
#[test]
fn other_paths_to_the_same_files_do_not_contain_a_folder() {
    let at = |path: &str, links, inode, content| TestFile { inode, links, ..file(path, content) };
    for (links, other) in [(LinkKind::Single, LinkKind::Single), (LinkKind::HardLinked, LinkKind::ViaSymlink)] {
        let files = [at("a/1", links, 9, X), at("b/s/1", other, 9, X), at("b/s/2", LinkKind::Single, 10, Z)];
        for match_names in [false, true] {
            let options = options!(ContainedOptions { match_names });
            assert_eq!(contained_paths(&contained(&store(&files, &[], &[]), &options)), [], "{links:?}");
        }
        // A folder further out has a copy of its own.
        let files = [&files[..], &[at("b/3", LinkKind::Single, 11, X)]].concat();
        let found = contained(&store(&files, &[], &[]), &ContainedOptions::default());
        assert_eq!(contained_paths(&found), [("a".to_owned(), vec!["b".to_owned()])], "{links:?}");
    }
}

#[test]
fn files_with_other_paths_elsewhere_do_not_change_what_contains_a_folder() {
    let at = |path: &str, inode, content| TestFile { inode, links: LinkKind::Single, ..file(path, content) };
    let files = [file("a/1", X), file("b/1", X), file("b/2", Y), file("c/s/1", X), file("c/s/2", Z)];
    let twice = [at("v/1", 9, Hashed(40, 4)), at("w/1", 9, Hashed(40, 4)), at("w/2", 10, Unique(1))];
    let listed = |files: &[TestFile]| contained(&store(files, &[], &[]), &ContainedOptions::default());
    let expected = [("a".to_owned(), vec!["b".to_owned(), "c/s".to_owned()])];
    assert_eq!(contained_paths(&listed(&files)), expected);
    assert_eq!(contained_paths(&listed(&[&files[..], &twice].concat())), expected);
}

#[test]
fn options_limit_the_contained_folders() {
    let mut trees = CatalogFixture::new();
    let one = trees.root("/r/one", &[file("a/1", X), file("a/2", Y), file("b/1", X)], &[], &[]);
    let two = trees.root("/r/two", &[file("c/1", X), file("c/2", Y), file("c/3", Z), file("d/1", X)], &[], &[]);
    let found = |options: &ContainedOptions| {
        contained_paths(&contained(&trees, options)).into_iter().map(|(path, _)| path).collect::<Vec<_>>()
    };
    assert_eq!(found(&ContainedOptions::default()), ["one", "two/d"]);
    assert_eq!(found(&options!(ContainedOptions { min_files: 2 })), ["one"]);
    assert_eq!(found(&options!(ContainedOptions { min_size: 41 })), [""; 0]);
    assert_eq!(found(&options!(ContainedOptions { roots: vec![one] })), ["one"]);
    assert_eq!(found(&options!(ContainedOptions { roots: vec![two] })), ["two/d"]);
    let capped = contained(&trees, &options!(ContainedOptions { list: 0 }));
    assert!(capped.iter().all(|found| found.containers.items.is_empty() && found.containers.total > 0));
}

/// Many folders with the same few contents, each in many places.
#[test]
fn contained_folders_with_popular_contents_are_found() {
    let count = 2_000_u64;
    let mut files = Vec::new();
    for n in 0..count {
        files.extend([file(format!("{n}/1"), X), file(format!("{n}/2"), Y)]);
        if n % 2 == 0 {
            files.push(file(format!("{n}/own"), Unique(n + 1)));
        }
    }
    let found = contained(&store(&files, &[], &[]), &ContainedOptions::default());
    assert_eq!(found.len() as u64, count / 2);
    assert!(found.iter().all(|found| found.containers.total == count / 2 && found.containers.items.len() == 10));
}

/// The files of the large folder are not examined for each folder that it contains.
#[test]
fn many_folders_are_contained_by_name_in_a_large_folder() {
    let count = 5_000_u64;
    let content = |n: u64| Hashed(100 + n, 1);
    let mut files: Vec<_> = (0..4 * count).map(|n| file(format!("all/{n}"), content(n))).collect();
    for n in 0..count {
        files.push(file(format!("{n}/{n}"), content(n)));
        files.push(file(format!("renamed/{n}/other"), content(n)));
    }
    let options = options!(ContainedOptions { match_names: true });
    let found = contained_paths(&contained(&store(&files, &[], &[]), &options));
    assert_eq!(found.len() as u64, count);
    assert!(found.iter().all(|(path, around)| path.parse::<u64>().is_ok() && *around == ["all"]));
}
