//! Identical and similar folders: cases one by one, then random trees against a plain search of all pairs.

#[path = "trees/plain.rs"]
mod plain;
mod trees;

use std::path::PathBuf;

use gristmill_dedup::folders::{
    self, Differing, Entry, Identical, Listed, Options, PartialOptions, Partials,
};
use gristmill_store::catalog::{End, Listing, Place};
use proptest::prelude::*;
use trees::What::{Alone, Empty, Hashed, Unknown};
use trees::{Planned, Trees, file};

const X: trees::What = Hashed(10, 1);
const Y: trees::What = Hashed(20, 2);
const Z: trees::What = Hashed(30, 3);

fn store(files: &[Planned], folders: &[&str], failed: &[&str]) -> Trees {
    let mut trees = Trees::new();
    trees.root("/r", files, folders, failed);
    trees
}

fn by_path(found: &[Identical]) -> Vec<Vec<String>> {
    let path = |(_, path): &(i64, PathBuf)| path.to_str().expect("plain").to_owned();
    let mut sets: Vec<Vec<String>> = found.iter().map(|set| set.folders.iter().map(path).collect()).collect();
    sets.sort();
    sets
}

#[track_caller]
fn check(options: &Options, files: &[Planned], folders: &[&str], failed: &[&str], expected: &[&[&str]]) {
    let trees = store(files, folders, failed);
    let found = folders::identical(&trees.store, options).expect("an answer");
    assert_eq!(by_path(&found), expected);
}

#[track_caller]
fn check_plain(files: &[(&str, trees::What)], expected: &[&[&str]]) {
    let files: Vec<_> = files.iter().map(|(path, what)| file(*path, *what)).collect();
    check(&Options::default(), &files, &[], &[], expected);
}

#[test]
fn names_do_not_count_but_structure_does() {
    check_plain(&[("a/1", X), ("a/2", Y), ("b/3", Y), ("b/4", X)], &[&["a", "b"]]);
    check_plain(&[("a/1", X), ("a/s/2", Y), ("b/3", Y), ("b/s/4", X)], &[]);
    // As often, too.
    check_plain(&[("a/1", X), ("a/2", X), ("b/1", X)], &[]);
}

#[test]
fn only_the_top_most_are_listed() {
    let both = [("a/s/t/1", X), ("a/2", Y), ("b/s/t/1", X), ("b/2", Y)];
    check_plain(&both, &[&["a", "b"]]);
    // A third one elsewhere brings what is inside back.
    let third = [&both[..], &[("c/t/1", X), ("c/3", Z)]].concat();
    check_plain(&third, &[&["a", "b"], &["a/s/t", "b/s/t", "c/t"]]);
}

#[test]
fn what_two_families_share_is_listed() {
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
    check_plain(&files, &[&["a1", "a2"], &["a1/s", "a2/s", "b1/s", "b2/s"], &["b1", "b2"]]);
}

#[test]
fn a_folder_is_not_identical_with_one_in_it() {
    check_plain(&[("a/a/a/f", X), ("b/f", X)], &[&["a/a/a", "b"]]);
    check_plain(&[("a/a/f", X)], &[]);
}

#[test]
fn names_count_when_asked() {
    let options = Options { match_names: true, ..Options::default() };
    let named = |name: &str, inner: &str| {
        vec![file("a/1", X), file("a/s/2", Y), file(format!("b/{name}"), X), file(format!("b/{inner}/2"), Y)]
    };
    check(&options, &named("1", "s"), &[], &[], &[&["a", "b"]]);
    check(&options, &named("2", "s"), &[], &[], &[&["a/s", "b/s"]]);
    check(&options, &named("1", "t"), &[], &[], &[&["a/s", "b/t"]]);
}

#[test]
fn what_is_not_known_is_not_identical() {
    let options = Options::default();
    let pair = |what| [file("a/s/1", X), file("a/2", what), file("b/s/1", X), file("b/2", what)];
    check(&options, &pair(Y), &[], &[], &[&["a", "b"]]);
    check(&options, &pair(Unknown(5)), &[], &[], &[&["a/s", "b/s"]]);
    check(&options, &pair(Alone(5)), &[], &[], &[&["a/s", "b/s"]]);
    check(&options, &pair(Y), &[], &["b/s"], &[]);
    check(&options, &pair(Y), &[], &["a"], &[&["a/s", "b/s"]]);
    check(&options, &pair(Y), &["a/empty"], &[], &[&["a/s", "b/s"]]);
    check(&options, &pair(Y), &["a/empty", "b/void"], &[], &[&["a", "b"]]);
}

#[test]
fn empty_files_are_the_same() {
    let files = [file("a/1", Empty), file("b/1", Empty)];
    check(&Options::default(), &files, &[], &[], &[]);
    check(&Options { min_size: 0, ..Options::default() }, &files, &["c", "d"], &[], &[&["a", "b"]]);
}

#[test]
fn small_ones_are_left_out_when_asked() {
    let files =
        [file("a/1", X), file("b/1", X), file("c/1", Y), file("c/2", X), file("d/1", Y), file("d/2", X)];
    check(&Options { min_files: 2, ..Options::default() }, &files, &[], &[], &[&["c", "d"]]);
    check(&Options { min_size: 11, ..Options::default() }, &files, &[], &[], &[&["c", "d"]]);
}

#[test]
fn names_of_one_inode_take_no_space() {
    let linked = |path: &str, what, inode| Planned { inode, ..file(path, what) };
    for (other, what, expected) in [(9, X, 0), (8, X, 10), (9, Alone(10), 0)] {
        let files = [linked("a/1", what, 9), linked("b/1", what, other)];
        let trees = store(&files, &[], &[]);
        let found = folders::identical(&trees.store, &Options::default()).expect("an answer");
        assert_eq!(by_path(&found), [["a", "b"]], "{what:?}");
        assert_eq!((found[0].files, found[0].bytes, found[0].reclaimable), (1, 10, expected));
    }
    // One of them has its two files as one on the disk: that is the one to keep.
    let files = [linked("a/1", X, 9), linked("a/2", X, 9), file("b/1", X), file("b/2", X)];
    let found = folders::identical(&store(&files, &[], &[]).store, &Options::default()).expect("an answer");
    assert_eq!((found[0].bytes, found[0].reclaimable), (20, 20));
}

#[test]
fn roots_are_compared_and_chosen() {
    let mut trees = Trees::new();
    let one = trees.root("/one", &[file("f", X), file("s/g", Y)], &[], &[]);
    let two = trees.root("/two", &[file("f", X), file("s/g", Y), file("t/g", Y)], &[], &[]);
    let found = |roots| {
        let options = Options { roots, ..Options::default() };
        folders::identical(&trees.store, &options).expect("an answer").remove(0).folders
    };
    assert_eq!(found(vec![]), [(one, "s".into()), (two, "s".into()), (two, "t".into())]);
    assert_eq!(found(vec![two]), [(two, "s".into()), (two, "t".into())]);
}

#[test]
fn a_root_in_a_root_is_a_folder_of_it() {
    let files = [file("a/x/1", X), file("a/2", Y), file("b/x/1", X), file("b/2", Y)];
    let mut trees = store(&files, &[], &[]);
    trees.store.roots().register("/r/a/x".as_ref()).expect("a root");
    let found = folders::identical(&trees.store, &Options::default()).expect("an answer");
    assert_eq!(by_path(&found), [["a", "b"]], "taken over");
    trees.root("/r/b/new", &[file("3", Z)], &[], &[]);
    let found = folders::identical(&trees.store, &Options::default()).expect("an answer");
    assert_eq!(by_path(&found), [["b/x", ""]], "one has more in it now");
    trees.store.roots().register("/r/a/never".as_ref()).expect("a root");
    trees
        .store
        .roots()
        .remove(trees.store.roots().at("/r/b/new".as_ref()).expect("r").expect("r").id)
        .expect("r");
    let found = folders::identical(&trees.store, &Options::default()).expect("an answer");
    assert_eq!(by_path(&found), [["b/x", ""]], "what was never scanned is not known");
}

#[test]
fn what_is_gone_does_not_count() {
    let files =
        [file("a/1", X), file("a/2", Alone(1)), file("b/1", X), file("b/s/3", Alone(2)), file("c/1", X)];
    let trees = store(&files, &[], &["c"]);
    let found = || by_path(&folders::identical(&trees.store, &Options::default()).expect("an answer"));
    assert!(found().is_empty());
    let catalog = trees.store.catalog();
    let root = trees.store.roots().list().expect("roots")[0].id;
    let top = catalog.top(root).expect("its top");
    let inner = catalog.known(&top).expect("its folders").folders;
    let listing = |name: &str| {
        let id = inner.iter().find(|(known, _)| known == name).map(|(_, folder)| folder.id);
        Listing { end: End::Whole, ..Listing::new(1, Place { root, id, path: name.into() }) }
    };
    let (mut a, mut b) = (listing("a"), listing("b"));
    let known = catalog.known(&a.place).expect("its files").files;
    a.missing_files = known.iter().filter(|(name, _)| name == "2").map(|(_, file)| file.id).collect();
    b.missing_folders = vec!["s".into()];
    catalog.record(vec![a]).expect("recorded");
    assert!(found().is_empty(), "there is more in b");
    catalog.record(vec![b]).expect("recorded");
    assert_eq!(found(), [["a", "b"]]);
    catalog.record(vec![listing("c")]).expect("recorded");
    assert_eq!(found(), [["a", "b", "c"]], "read to its end");
}

fn partial(files: &[(&str, trees::What)], min_similarity: u8) -> Partials {
    let files: Vec<_> = files.iter().map(|(path, what)| file(*path, *what)).collect();
    let options = PartialOptions { min_similarity, ..PartialOptions::default() };
    folders::partial(&store(&files, &[], &[]).store, &options).expect("an answer")
}

#[test]
fn similar_folders_and_how_they_differ() {
    let files = [
        ("a/1", X),
        ("a/2", Y),
        ("a/s/3", Z),
        ("a/notes", Alone(7)),
        ("a/own", Alone(1)),
        ("b/1", X),
        ("b/two", Y),
        ("b/s/3", Z),
        ("b/notes", Alone(8)),
    ];
    let found = partial(&files, 50);
    assert_eq!(found.total, 1);
    let pair = &found.pairs[0];
    assert_eq!((pair.a.path.to_str(), pair.b.path.to_str()), (Some("a"), Some("b")));
    assert_eq!((pair.a.files, pair.b.files, pair.matching_files, pair.matching_bytes), (5, 4, 3, 60));
    assert_eq!((pair.a.bytes, pair.b.bytes, pair.similarity), (68, 68, 50.0));
    assert!(pair.a.whole && pair.b.whole);
    let entry =
        |path: &str, size: u64| Entry { path: path.into(), size, mtime_ns: size as i64 * 1_000_000_000 };
    assert_eq!(pair.only_in_a, Listed { items: vec![entry("own", 1)], total: 1 });
    assert_eq!(pair.only_in_b, Listed { items: vec![], total: 0 });
    let notes = Differing { a: entry("notes", 7), b: entry("notes", 8), known: true };
    assert_eq!(pair.differing, Listed { items: vec![notes], total: 1 });
    assert_eq!(partial(&files, 51).total, 0);
}

#[track_caller]
fn check_pairs(files: &[(&str, trees::What)], expected: &[(&str, &str, u64)]) {
    let found = partial(files, 50);
    let path = |path: &PathBuf| path.to_str().expect("plain").to_owned();
    let pairs = found
        .pairs
        .iter()
        .map(|pair| (path(&pair.a.path), path(&pair.b.path), pair.similarity.round() as u64));
    let pairs: Vec<_> = pairs.collect();
    let expected: Vec<_> = expected.iter().map(|(a, b, s)| (a.to_string(), b.to_string(), *s)).collect();
    assert_eq!(pairs, expected);
}

#[test]
fn which_similar_folders_are_told() {
    // The outermost of those that are as much alike.
    check_pairs(&[("a/p/1", X), ("a/p/2", Y), ("b/q/1", X)], &[("a", "b", 50)]);
    // Inside a pair that is less alike.
    let inner = [("a/p/1", X), ("a/p/2", Y), ("a/p/3", Z), ("b/p/1", X), ("b/p/2", Y), ("b/p/3", Z)];
    let outer = [("a/p/x", Alone(1)), ("a/y", Alone(2)), ("b/z", Alone(3))];
    check_pairs(&[&inner[..], &outer].concat(), &[("a/p", "b/p", 75), ("a", "b", 50)]);
    // Identical ones are not, nor what only adds to one of them.
    check_pairs(&inner, &[]);
    check_pairs(&[&inner[..], &outer[1..2]].concat(), &[("a", "b", 75)]);
    let with_more = [("a/p/1", X), ("a/p/2", Y), ("a/y", Alone(2)), ("b/1", X), ("b/2", Y), ("c", Alone(4))];
    check_pairs(&with_more, &[]);
    // The same files in other places are not identical.
    check_pairs(&[("a/p/1", X), ("a/2", Y), ("b/1", X), ("b/2", Y)], &[("a", "b", 100)]);
    // Nor is one folder inside the other.
    check_pairs(&[("a/1", X), ("a/p/1", X), ("a/p/2", Y)], &[]);
}

#[test]
fn what_could_not_be_read_may_be_the_same() {
    let found = partial(&[("a/1", X), ("a/2", Unknown(5)), ("b/1", X), ("b/2", Unknown(5))], 30);
    let pair = &found.pairs[0];
    assert_eq!((pair.matching_files, pair.a.whole, pair.b.whole), (1, false, false));
    assert!(pair.differing.total == 1 && !pair.differing.items[0].known);
}

/// 10,000 folders, in every one of them the same licence and an empty file: every two share a content. A third one
/// is in one other folder, too.
fn check_popular(other: impl Fn(u64) -> u64, total: usize) {
    let count = 10_000;
    let mut files = Vec::new();
    for n in 0..count {
        let folder = format!("{}/{}/{n}", n % 10, n % 100);
        files.push(file(format!("{folder}/LICENSE"), X));
        files.push(file(format!("{folder}/empty"), Empty));
        files.push(file(format!("{folder}/shared"), Hashed(1_000 + other(n), 4)));
        files.push(file(format!("{folder}/own"), Alone(1 + n)));
    }
    let trees = store(&files, &[], &[]);
    let options = PartialOptions { limit: 3, ..PartialOptions::default() };
    let found = folders::partial(&trees.store, &options).expect("an answer");
    // Licence, empty file and the shared one of five.
    assert_eq!((found.total, found.pairs.len(), found.pairs[0].similarity), (total, 3, 60.0));
    assert!(found.proposed < 8 * count, "{} pairs proposed", found.proposed);
    assert!(found.compared < 2 * count, "{} pairs compared", found.compared);
}

#[test]
fn popular_contents_propose_no_pairs() {
    // Neighbours: the ten outermost folders are alike by twos, and that says it all.
    check_popular(|n| n / 2, 5);
    // Anywhere.
    let mut places: Vec<u64> = (0..10_000).collect();
    let mut random = 1_u64;
    for at in (1..places.len()).rev() {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        places.swap(at, (random >> 33) as usize % (at + 1));
    }
    check_popular(|n| places[n as usize] / 2, 5_000);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, max_shrink_iters: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_trees_are_judged_as_a_plain_search_does(
        tree in plain::tree(), match_names: bool, similarity in 0u8..=100, popular in 1usize..6,
    ) {
        let trees = tree.write();
        let options = Options { match_names, ..Options::default() };
        let found = folders::identical(&trees.store, &options).expect("an answer");
        prop_assert_eq!(plain::told(&found), plain::identical(&tree, match_names));

        let options = PartialOptions { min_similarity: similarity, popular, ..PartialOptions::default() };
        let found = folders::partial(&trees.store, &options).expect("an answer");
        prop_assert_eq!(plain::told_pairs(&found), plain::partial(&tree, similarity, popular));
    }
}

#[test]
fn a_similarity_is_a_percentage() {
    let options = PartialOptions { min_similarity: 101, ..PartialOptions::default() };
    let error = folders::partial(&Trees::new().store, &options).expect_err("no percentage");
    assert!(error.is_users());
}
