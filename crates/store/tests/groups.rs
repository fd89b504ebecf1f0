//! The table of duplicate groups: it follows every change of the files, and its pages, marks and filters agree with a
//! naive evaluation of all rows.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::{URL_SAFE, URL_SAFE_NO_PAD};
use gristmill_store::catalog::{
    FileFilter, FileType, GroupKey, GroupQuery, GroupSummary, Ignored, PathTest, Refreshed, SortBy,
};
use gristmill_store::{Durability, Error, Store};
use rusqlite::Connection;
use tempfile::TempDir;

/// A store with the roots 1, `/r`, and 2, `/s`, and another connection to its file, as of another program.
struct Fixture {
    store: Store,
    conn: Connection,
    folder: TempDir,
}

/// Opens a connection as of another program.
fn connect(path: &Path) -> Connection {
    let conn = Connection::open(path).unwrap();
    conn.busy_timeout(std::time::Duration::from_secs(10)).unwrap();
    conn.execute_batch("PRAGMA synchronous = OFF").unwrap();
    conn
}

impl Fixture {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("c.db");
        let store = Store::options().durability(Durability::Normal).open(&path).unwrap();
        let conn = connect(&path);
        conn.execute_batch(
            "INSERT INTO library_roots (id, name, root_path) VALUES (1, 'r', '/r'), (2, 's', '/s');
            INSERT INTO folders (id, library_id, relative_path) VALUES (1, 1, ''), (2, 2, '');",
        )
        .unwrap();
        Fixture { store, conn, folder }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("c.db")
    }

    fn sql(&self, sql: &str) {
        self.conn.execute_batch(sql).unwrap_or_else(|error| panic!("{sql}: {error}"));
    }

    fn number(&self, sql: &str) -> i64 {
        self.conn.query_row(sql, [], |row| row.get(0)).unwrap()
    }

    /// Inserts a file with a content and a size, which is in a group if another file has both.
    fn file(&self, id: i64, root: i64, path: &str, content: u8, size: i64) {
        let hash = if size == 0 { "NULL".to_owned() } else { format!("x'{}'", format!("{content:02x}").repeat(32)) };
        let algorithm = if size == 0 { "NULL" } else { "'blake3'" };
        self.sql(&format!(
            "INSERT INTO library_files (id, library_id, folder_id, relative_path, size_bytes, mtime_ns, ctime_ns, inode,
                device, link_kind, is_missing, needs_hash, hash_error_count, hash_algorithm, content_hash)
            VALUES ({id}, {root}, {root}, '{path}', {size}, {id}000000000, 1, {id}, 7, 0, 0, 0, 0, {algorithm}, {hash})"
        ));
    }

    fn refresh(&self) -> Refreshed {
        self.store.catalog().refresh_groups().unwrap()
    }

    fn is_current(&self) -> bool {
        self.store.catalog().group_page(&GroupQuery::default(), None).unwrap().state.is_current
    }

    /// Returns all groups of a query, page by page.
    fn pages(&self, query: &GroupQuery, limit: usize) -> Vec<GroupSummary> {
        let (mut all, mut after) = (Vec::new(), None);
        loop {
            let query = query.clone().limit(limit);
            let page = self.store.catalog().group_page(&query, after.as_deref()).unwrap().page;
            assert!(page.items.len() <= limit);
            all.extend(page.items);
            match page.next_cursor {
                Some(cursor) => after = Some(cursor),
                None => return all,
            }
        }
    }

    /// Returns the rows of the table of groups as text.
    fn table(&self) -> Vec<String> {
        let mut statement = self.conn.prepare("SELECT * FROM duplicate_groups").unwrap();
        let row = |row: &rusqlite::Row<'_>| {
            (0..11).map(|column| Ok(format!("{:?}", row.get::<_, rusqlite::types::Value>(column)?))).collect()
        };
        statement.query_map([], row).unwrap().map(|row: Result<Vec<String>, _>| row.unwrap().join(" ")).collect()
    }

    /// Asserts that a refresh has the same result as evaluating all groups again.
    #[track_caller]
    fn assert_follows(&self, what: &str) {
        self.refresh();
        let state = "SELECT groups * 1000000 + files * 10000 + reclaimable_bytes FROM duplicate_group_state";
        let (refreshed, totals) = (self.table(), self.number(state));
        self.sql("UPDATE duplicate_group_state SET needs_rebuild = 1");
        assert!(self.refresh().rebuilt);
        assert_eq!(refreshed, self.table(), "{what}");
        assert_eq!(totals, self.number(state), "totals: {what}");
    }
}

/// Contents 1: three files of 10 bytes, 2: two of 100, 3: two of 30 in both roots, 4: one, 5: two of 10, and two empty.
fn library() -> Fixture {
    let fixture = Fixture::new();
    let files = [
        (1, "b1.txt", 1, 10),
        (1, "b2.txt", 1, 10),
        (1, "b3.jpg", 1, 10),
        (1, "z/z1.mp4", 2, 100),
        (1, "z/z2.mp4", 2, 100),
        (1, "m.png", 3, 30),
        (1, "alone", 4, 77),
        (2, "n.png", 3, 30),
        (2, "a1", 5, 10),
        (2, "a2", 5, 10),
        (1, "empty", 0, 0),
        (2, "empty", 0, 0),
    ];
    for (id, (root, path, content, size)) in (1..).zip(files) {
        fixture.file(id, root, path, content, size);
    }
    fixture.refresh();
    fixture
}

fn contents(groups: &[GroupSummary]) -> Vec<u8> {
    groups.iter().map(|group| group.key.hash[0]).collect()
}

fn key(content: u8) -> GroupKey {
    GroupKey { algorithm: gristmill_store::catalog::Algorithm::Blake3, hash: vec![content; 32] }
}

#[test]
fn every_change_of_a_file_is_noted_and_evaluated() {
    for change in [
        "UPDATE library_files SET is_missing = 1 WHERE id = 1",
        "UPDATE library_files SET is_missing = 1 WHERE content_hash IS NOT NULL",
        "UPDATE library_files SET needs_hash = 1 WHERE id = 4",
        "UPDATE library_files SET content_hash = NULL WHERE id = 4",
        "UPDATE library_files SET content_hash = (SELECT content_hash FROM library_files WHERE id = 1) WHERE id = 4",
        "UPDATE library_files SET content_hash = (SELECT content_hash FROM library_files WHERE id = 7) WHERE id = 4",
        "UPDATE library_files SET hash_algorithm = 'sha256' WHERE id IN (1, 2)",
        "UPDATE library_files SET size_bytes = 0 WHERE id IN (1, 2)",
        "UPDATE library_files SET size_bytes = 5 WHERE id = 11",
        "UPDATE library_files SET excluded_at = '2026-01-01', content_hash = NULL, needs_hash = 1 WHERE id = 1",
        "UPDATE library_files SET excluded_at = '2026-01-01' WHERE id = 11",
        "UPDATE library_files SET inode = 5000 WHERE id IN (1, 3)",
        "UPDATE library_files SET link_kind = 2, allocated_bytes = 0 WHERE id = 1",
        "UPDATE library_files SET allocated_bytes = 123456 WHERE id = 1",
        "UPDATE library_files SET relative_path = 'a0' WHERE id = 3",
        "UPDATE library_files SET library_id = 2, folder_id = 2 WHERE id = 1",
        "DELETE FROM library_files WHERE id = 9",
        "DELETE FROM library_files",
        "PRAGMA foreign_keys = ON; DELETE FROM library_roots WHERE id = 2",
        "UPDATE library_roots SET root_path = '/zzz' WHERE id = 1",
        "INSERT OR REPLACE INTO library_files SELECT * FROM library_files WHERE id = 1",
    ] {
        let fixture = library();
        assert!(fixture.is_current(), "{change}");
        fixture.sql(change);
        assert!(!fixture.is_current(), "{change}");
        fixture.assert_follows(change);
        assert!(fixture.is_current(), "{change}");
    }
}

#[test]
fn changes_that_no_group_depends_on_are_not_noted() {
    let fixture = library();
    fixture.sql("UPDATE library_files SET mtime_ns = 5, updated_at = '2026-01-01', last_seen_scan_id = NULL");
    fixture.sql("UPDATE library_files SET is_missing = 1 WHERE content_hash IS NULL AND size_bytes > 0");
    fixture.sql("INSERT INTO folders (library_id, relative_path) VALUES (1, 'new')");
    assert!(fixture.is_current());
    assert_eq!(fixture.refresh(), Refreshed::default());
}

/// Other programs may write what this version does not know.
#[test]
fn unknown_algorithm_is_no_group_and_fails_no_refresh() {
    let fixture = library();
    fixture.sql("PRAGMA ignore_check_constraints = 1; UPDATE library_files SET hash_algorithm = 'MD5' WHERE id = 1");
    assert!(!fixture.is_current());
    fixture.refresh();
    let all = |fixture: &Fixture| contents(&fixture.pages(&GroupQuery::default(), 10));
    let changed = all(&fixture);
    fixture.sql("UPDATE duplicate_group_state SET needs_rebuild = 1");
    fixture.refresh();
    assert_eq!(all(&fixture), changed);
}

/// The filesystem of a folder decides which names are one file.
#[test]
fn change_of_a_filesystem_is_evaluated() {
    let fixture = library();
    assert!(fixture.is_current());
    fixture.sql("UPDATE folders SET filesystem_id = filesystem_id, last_seen_at = 'now'");
    assert!(fixture.is_current());
    fixture.sql("UPDATE folders SET filesystem_id = 7 WHERE id = 1");
    assert!(!fixture.is_current());
    assert!(fixture.refresh().rebuilt);
}

#[test]
fn refresh_evaluates_only_changed_groups() {
    let fixture = library();
    fixture.sql("UPDATE library_files SET is_missing = 1 WHERE id = 1");
    fixture.sql("UPDATE library_files SET is_missing = 0 WHERE id = 1");
    let version = |fixture: &Fixture| fixture.number("SELECT version FROM duplicate_group_state");
    let before = version(&fixture);
    assert_eq!(fixture.refresh(), Refreshed { evaluated: 1, rebuilt: false });
    assert_eq!(version(&fixture), before + 1);
}

/// The statement of another program may have a conflict clause, which replaces that of a trigger.
#[test]
fn conflict_clauses_of_other_programs_do_not_fail_in_the_triggers() {
    let fixture = library();
    for clause in ["OR ABORT", "OR FAIL", "OR IGNORE", "OR REPLACE", "OR ROLLBACK"] {
        for _ in 0..2 {
            fixture.sql(&format!("UPDATE {clause} library_files SET is_missing = 1 - is_missing WHERE id < 6"));
        }
    }
    fixture.assert_follows("conflict clauses");
}

#[test]
fn groups_are_sorted_and_paged_in_every_order() {
    let fixture = library();
    for (sort, expected) in [
        (SortBy::Reclaimable, [2, 3, 1, 5]),
        (SortBy::Count, [1, 2, 3, 5]),
        (SortBy::Size, [2, 3, 1, 5]),
        (SortBy::Path, [1, 3, 2, 5]),
    ] {
        // All allocate a block, so reclaimable orders by the number of copies first.
        let expected = if sort == SortBy::Reclaimable { [1, 2, 3, 5] } else { expected };
        for limit in 1..6 {
            let query = GroupQuery::default().sort(sort);
            assert_eq!(contents(&fixture.pages(&query, limit)), expected, "{sort:?} by {limit}");
            let whole = fixture.store.catalog().groups(&query).unwrap();
            assert_eq!(whole.groups.iter().map(|group| group.key.hash[0]).collect::<Vec<_>>(), expected);
            assert_eq!((whole.total, whole.files), (4, 9));
        }
    }
}

#[test]
fn filters_combine() {
    let fixture = library();
    let all = || GroupQuery::default();
    let files = || FileFilter::default();
    fixture.store.catalog().ignore_group(key(5), true).unwrap();
    let large = PathTest::new("z", |path| path.starts_with("/r/z"));
    let empty = GroupKey::of_empty_files().hash[0];
    for (query, expected) in [
        (all(), vec![1, 2, 3]),
        (all().ignored(Ignored::Only), vec![5]),
        (all().ignored(Ignored::Included), vec![1, 2, 3, 5]),
        (all().min_size(11), vec![2, 3]),
        (all().min_size(0), vec![1, 2, 3, empty]),
        (all().min_size(0).across_roots(true), vec![3, empty]),
        (all().min_size(0).in_root(Some(2)), vec![3, empty]),
        (all().min_count(3), vec![1]),
        (all().in_root(Some(2)), vec![3]),
        (all().in_root(Some(2)).ignored(Ignored::Included), vec![3, 5]),
        (all().in_root(Some(1)).across_roots(true), vec![3]),
        (all().in_root(Some(9)), vec![]),
        (all().files(files().contains(Some("/R/Z".into()))), vec![2]),
        (all().files(files().contains(Some("s/n.".into()))), vec![3]),
        (all().files(files().extensions(vec!["JPG".into()])), vec![1]),
        (all().files(files().types(vec![FileType::Image])), vec![1, 3]),
        (all().files(files().types(vec![FileType::Image, FileType::Video])).min_size(100), vec![2]),
        (all().files(files().types(vec![FileType::Image]).contains(Some("b1".into()))), vec![]),
        (all().files(files().modified_since(Some(5_000_000_000))), vec![2, 3]),
        (all().files(files().modified_before(Some(2_000_000_000))), vec![1]),
        (all().files(files().path(Some(large))).in_root(Some(1)), vec![2]),
    ] {
        assert_eq!(contents(&fixture.pages(&query, 2)), expected, "{query:?}");
        let whole = fixture.store.catalog().groups(&query).unwrap();
        let found: Vec<u8> = whole.groups.iter().map(|group| group.key.hash[0]).collect();
        assert_eq!((found, whole.total), (expected.clone(), expected.len() as u64), "{query:?}");
        let names = whole.groups.iter().map(|group| group.members.len() as u64).sum::<u64>();
        let reclaimable = whole.groups.iter().map(|group| group.reclaimable).sum::<u64>();
        assert_eq!((whole.files, whole.reclaimable), (names, reclaimable), "{query:?}");
        assert_eq!(fixture.store.catalog().group_marks(&query, 1).unwrap().total, expected.len() as u64, "{query:?}");
        let hidden = u64::from(query.ignored == Ignored::Hidden);
        assert_eq!(whole.ignored, hidden, "{query:?}");
    }
}

/// Returns content, number of copies, reclaimable bytes and paths of each group.
fn whole(fixture: &Fixture, query: &GroupQuery) -> Vec<(u8, u64, u64, Vec<String>)> {
    let path = |path: &PathBuf| path.display().to_string();
    let groups = fixture.store.catalog().groups(query).unwrap();
    assert_eq!(groups.total, groups.groups.len() as u64);
    let group = |group: &gristmill_store::catalog::Group| {
        let paths = group.members.iter().map(|member| path(&member.path)).collect();
        (group.key.hash[0], group.copies, group.reclaimable, paths)
    };
    groups.groups.iter().map(group).collect()
}

#[test]
fn only_copies_of_reference_folders_are_listed() {
    let fixture = library();
    let query = |folder: &str| GroupQuery::default().reference(vec![folder.into()]);
    // A copy in the reference is kept, so the others are reclaimable as a whole.
    assert_eq!(whole(&fixture, &query("/s")), [(3, 1, 4096, vec!["m.png".to_owned()])]);
    assert_eq!(whole(&fixture, &query("/r")), [(3, 1, 4096, vec!["n.png".to_owned()])]);
    assert_eq!(whole(&fixture, &query("/r/z")), []);
    assert_eq!(whole(&fixture, &query("/")), []);
    let groups = fixture.store.catalog().groups(&query("/s")).unwrap().groups;
    let kept: Vec<_> = groups.iter().flat_map(|group| &group.kept).map(|member| (member.root, &member.path)).collect();
    assert_eq!(kept, [(2, &PathBuf::from("n.png"))]);
    // The reference may be outside of the roots whose files are listed, and counts as a root and as a copy.
    assert_eq!(whole(&fixture, &query("/s").roots(vec![1])).len(), 1);
    assert_eq!(whole(&fixture, &query("/s").roots(vec![2])), []);
    assert_eq!(whole(&fixture, &query("/s").across_roots(true).min_count(2)).len(), 1);
    assert_eq!(whole(&fixture, &query("/s").min_count(3)), []);
    // Another name of a file in the reference is not a copy.
    fixture.sql("UPDATE library_files SET inode = 77 WHERE relative_path IN ('m.png', 'n.png')");
    assert_eq!(whole(&fixture, &query("/s")), []);
}

#[test]
fn only_files_of_one_name_are_copies_if_names_are_matched() {
    let fixture = library();
    let query = GroupQuery::default().match_names(true);
    assert_eq!(whole(&fixture, &query), []);
    fixture.file(20, 2, "f/b1.txt", 1, 10);
    fixture.file(21, 2, "f/b3.jpg", 1, 10);
    let names = |name: &str| vec![name.to_owned(), format!("f/{name}")];
    assert_eq!(whole(&fixture, &query), [(1, 2, 4096, names("b1.txt")), (1, 2, 4096, names("b3.jpg"))]);
}

#[test]
fn ignored_groups_stay_ignored_while_their_files_change() {
    let fixture = library();
    let catalog = fixture.store.catalog();
    assert!(catalog.ignore_group(key(1), true).unwrap());
    assert!(!catalog.ignore_group(key(1), true).unwrap(), "already");
    let listed = || contents(&fixture.pages(&GroupQuery::default(), 9));
    assert_eq!(listed(), [2, 3, 5]);
    let groups = catalog.groups(&GroupQuery::default().limit(0)).unwrap();
    assert_eq!((groups.total, groups.files), (3, 6), "the totals of the shown groups");
    fixture.sql("UPDATE library_files SET is_missing = 1 WHERE id IN (1, 2)");
    fixture.refresh();
    fixture.sql("UPDATE library_files SET is_missing = 0 WHERE id IN (1, 2)");
    fixture.refresh();
    assert_eq!(listed(), [2, 3, 5]);
    assert!(catalog.ignore_group(key(1), false).unwrap());
    assert_eq!(listed(), [1, 2, 3, 5]);
}

#[test]
fn marks_lead_to_every_part_of_the_list_and_are_kept_until_a_group_changes() {
    let fixture = library();
    let catalog = fixture.store.catalog();
    let query = GroupQuery::default().sort(SortBy::Count);
    let all = contents(&fixture.pages(&query, 9));
    for every in 1..6 {
        let marks = catalog.group_marks(&query, every).unwrap();
        assert_eq!((marks.total, marks.cursors.len()), (4, 4 / every));
        for (number, cursor) in marks.cursors.iter().enumerate() {
            let page = catalog.group_page(&query, Some(cursor)).unwrap().page;
            assert_eq!(contents(&page.items), all[(number + 1) * every..]);
        }
    }
    let first = catalog.group_marks(&query, 2).unwrap();
    assert!(std::sync::Arc::ptr_eq(&first.cursors, &catalog.group_marks(&query, 2).unwrap().cursors));
    fixture.sql("DELETE FROM library_files WHERE id = 9");
    fixture.refresh();
    assert_eq!(catalog.group_marks(&query, 2).unwrap().total, 3);
}

/// Cursors that the Python control plane has written, in every form that it accepts.
#[test]
fn cursors_are_those_of_the_control_plane() {
    let fixture = library();
    let catalog = fixture.store.catalog();
    let query = GroupQuery::default().sort(SortBy::Count).min_count(1).limit(1);
    let own = catalog.group_page(&query, None).unwrap().page.next_cursor.unwrap();
    let json = |hash: &str, colon: &str, comma: &str| {
        let fields = [
            format!(r#""content_hash_hex"{colon}"{hash}""#),
            format!(r#""file_count"{colon}3"#),
            format!(r#""hash_algorithm"{colon}"blake3""#),
            format!(r#""total_size_bytes"{colon}30"#),
        ];
        format!("{{{}}}", fields.join(comma))
    };
    let hash = "01".repeat(32);
    assert_eq!(own, URL_SAFE_NO_PAD.encode(json(&hash, ":", ",")), "sorted keys, no padding");
    let next = |cursor: &str| contents(&catalog.group_page(&query, Some(cursor)).unwrap().page.items);
    // Python's json.dumps writes spaces; some clients pad.
    for cursor in [own, URL_SAFE.encode(json(&hash, ": ", ", ")), URL_SAFE_NO_PAD.encode(json(&hash, ": ", ", "))] {
        assert_eq!(next(&cursor), [2], "{cursor}");
    }
    let upper = URL_SAFE.encode(json(&hash, ":", ",").replace("blake3", "BLAKE3"));
    assert_eq!(next(&upper), [2], "an enum of an older control plane");
    let upper = URL_SAFE.encode(json(&"AB".repeat(32), ":", ","));
    assert_eq!(next(&upper), [2], "after a group that does not exist");
}

#[test]
fn malformed_cursors_and_keys_are_errors_of_the_caller() {
    let fixture = library();
    let catalog = fixture.store.catalog();
    let by_size = catalog.group_page(&GroupQuery::default().sort(SortBy::Size).limit(1), None).unwrap().page;
    let of_other_order = by_size.next_cursor.unwrap();
    for cursor in ["", "x", "e30", "bnVsbA", "////", &of_other_order, "eyJhIjoxfQ"] {
        let query = GroupQuery::default().sort(SortBy::Count);
        let error = catalog.group_page(&query, Some(cursor)).unwrap_err();
        assert!(matches!(&error, Error::Invalid(text) if text.contains("cursor")), "{cursor}: {error}");
    }
    let hex = "AB".repeat(32);
    for wrong in ["", "blake3", "blake3:", "md5:ab", &format!("blake3:{hex}0"), &format!("sha512:{hex}"), "blake3:xyz"]
    {
        assert!(matches!(wrong.parse::<GroupKey>(), Err(Error::Invalid(_))), "{wrong}");
    }
    let upper: GroupKey = format!("BLAKE3:{hex}").parse().unwrap();
    assert_eq!(upper.to_string(), format!("blake3:{}", hex.to_lowercase()));
    for cursor in ["-1", "+1", "x", ""] {
        assert!(catalog.group_files(&key(1), Some(cursor), 9).is_err(), "{cursor}");
    }
}

#[test]
fn files_of_a_group_are_paged_by_id() {
    let fixture = library();
    let catalog = fixture.store.catalog();
    let ids = |after: Option<&str>, limit| {
        let page = catalog.group_files(&key(1), after, limit).unwrap();
        (page.items.iter().map(|file| file.id).collect::<Vec<_>>(), page.next_cursor)
    };
    assert_eq!(ids(None, 2), (vec![1, 2], Some("2".to_owned())));
    assert_eq!(ids(Some("2"), 2), (vec![3], None));
    assert_eq!(catalog.group_files(&key(99), None, 2).unwrap().items, []);
    let empty = catalog.group_files(&GroupKey::of_empty_files(), None, 9).unwrap();
    assert_eq!(empty.items.iter().map(|file| file.id).collect::<Vec<_>>(), [11, 12], "the control plane answers 422");
}

#[test]
fn answers_are_written_as_in_the_protocol() {
    let fixture = library();
    fixture
        .sql("UPDATE library_files SET mtime_ns = 1768806489123456789, hashed_at = '2026-01-19 07:08:09' WHERE id = 1");
    let page = fixture.store.catalog().group_page(&GroupQuery::default().sort(SortBy::Count).limit(1), None).unwrap();
    let hash = "01".repeat(32);
    assert_eq!(
        serde_json::to_string(&page.page.items[0]).unwrap(),
        format!(
            r#"{{"group_key":"blake3:{hash}","hash_algorithm":"blake3","content_hash_hex":"{hash}","file_count":3,"#
        ) + r#""total_size_bytes":30,"duplicate_waste_bytes":20,"sample_file_id":1,"size_bytes":10,"copies":3,"#
            + r#""reclaimable_bytes":8192,"ignored":false}"#
    );
    let files = fixture.store.catalog().group_files(&key(1), None, 1).unwrap();
    assert_eq!(
        serde_json::to_string(&files).unwrap(),
        r#"{"items":[{"file_id":1,"library_id":1,"library_name":"r","relative_path":"b1.txt","size_bytes":10,"#
            .to_owned()
            + r#""mtime_ns":1768806489123456789,"hashed_at":"2026-01-19T07:08:09.000000Z","#
            + r#""modified_at":"2026-01-19T07:08:09.123456Z"}],"next_cursor":"1"}"#
    );
}

/// A file of the model: root, path, content, size, inode, and whether it counts.
type ModelFile = (i64, String, u8, i64, i64, bool);

/// The files by id.
type Model = BTreeMap<i64, ModelFile>;

/// Compares pages and totals with groups that are found by comparing all files.
#[test]
fn random_changes_are_followed_like_a_naive_evaluation() {
    for seed in 0..40 {
        let mut random = fastrand::Rng::with_seed(seed);
        let fixture = Fixture::new();
        let mut model = Model::new();
        for step in 0..60 {
            let chosen = random.usize(..model.len().max(1));
            match random.u8(..6) {
                0..=2 => {
                    let id = model.keys().last().map_or(1, |last| last + 1);
                    let (root, content) = (random.i64(1..3), random.u8(1..8));
                    let (size, path) = (i64::from(content % 4) * 9_000, format!("{}{id}", random.lowercase()));
                    fixture.file(id, root, &path, content, size);
                    model.insert(id, (root, path, content, size, id, true));
                }
                3 => {
                    let Some((&id, file)) = model.iter_mut().nth(chosen) else { continue };
                    file.5 = !file.5;
                    fixture
                        .sql(&format!("UPDATE library_files SET is_missing = {} WHERE id = {id}", u8::from(!file.5)));
                }
                4 => {
                    let Some(id) = model.keys().nth(chosen).copied() else { continue };
                    model.remove(&id);
                    fixture.sql(&format!("DELETE FROM library_files WHERE id = {id}"));
                }
                _ => {
                    // Two files of one content become names of one file.
                    let Some((&id, file)) = model.iter().nth(chosen) else { continue };
                    let (content, inode) = (file.2, file.4);
                    let other = model.iter_mut().find(|(other, file)| **other != id && file.2 == content);
                    let Some((other, file)) = other else { continue };
                    file.4 = inode;
                    fixture.sql(&format!("UPDATE library_files SET inode = {inode}, link_kind = 1 WHERE id = {other}"));
                    fixture.sql(&format!("UPDATE library_files SET link_kind = 1 WHERE id = {id}"));
                }
            }
            if random.u8(..4) == 0 || step == 59 {
                fixture.refresh();
                check(&fixture, &model, seed);
            }
        }
        fixture.assert_follows(&format!("seed {seed}"));
    }
}

/// Changes files and refreshes the groups in two stores at once, as two processes do.
#[test]
fn groups_follow_when_two_stores_change_and_refresh_them() {
    for seed in 0..5 {
        let fixture = Fixture::new();
        for id in 1..=60 {
            fixture.file(id, 1, &format!("f{id}"), (id % 9) as u8, 10);
        }
        let other = Store::options().durability(Durability::Normal).open(fixture.path()).unwrap();
        std::thread::scope(|scope| {
            for (number, store) in (0_i64..).zip([&fixture.store, &other]) {
                let mut random = fastrand::Rng::with_seed(seed * 2 + number.cast_unsigned());
                let conn = connect(&fixture.path());
                scope.spawn(move || {
                    for _ in 0..40 {
                        // Each thread has its own files, of which it moves some between contents of both.
                        let (id, content) = (random.i64(0..30) * 2 + 1 + number, random.u8(0..9));
                        let sql = match random.u8(..5) {
                            0 => format!("UPDATE library_files SET is_missing = 1 - is_missing WHERE id = {id}"),
                            1 => "UPDATE duplicate_group_state SET needs_rebuild = 1".to_owned(),
                            _ => {
                                let hash = format!("{content:02x}").repeat(32);
                                format!("UPDATE library_files SET content_hash = x'{hash}' WHERE id = {id}")
                            }
                        };
                        conn.execute_batch(&sql).unwrap();
                        let groups = store.catalog().groups(&GroupQuery::default()).unwrap();
                        // The other thread may have changed files since they were evaluated.
                        if groups.state.is_current {
                            assert_eq!(groups.total, groups.groups.len() as u64, "seed {seed}");
                        }
                    }
                });
            }
        });
        fixture.assert_follows(&format!("seed {seed}"));
    }
}

#[track_caller]
fn check(fixture: &Fixture, model: &Model, seed: u64) {
    let mut naive: BTreeMap<(i64, u8), Vec<&ModelFile>> = BTreeMap::new();
    for file in model.values().filter(|file| file.5) {
        // Empty files are one group, whatever their content was called.
        naive.entry((file.3, if file.3 == 0 { 0 } else { file.2 })).or_default().push(file);
    }
    let mut expected = BTreeSet::new();
    for ((size, _), files) in naive.iter().filter(|(_, files)| files.len() > 1) {
        let copies = files.iter().map(|file| file.4).collect::<BTreeSet<_>>().len() as i64;
        let roots = files.iter().map(|file| file.0).collect::<BTreeSet<_>>().len();
        let blocks = (size + 4095) / 4096 * 4096;
        let first = files.iter().map(|file| format!("{}/{}", if file.0 == 1 { "/r" } else { "/s" }, file.1)).min();
        expected.insert((*size, files.len() as i64, copies, (copies - 1) * blocks, roots as u64, first.unwrap()));
    }
    for sort in SortBy::ALL {
        let query = GroupQuery::default().sort(sort).min_size(0).min_count(1);
        let found = fixture.pages(&query, 3);
        let found: BTreeSet<_> = found
            .iter()
            .map(|group| {
                let members = fixture.store.catalog().group_files(&group.key, None, 1000).unwrap().items;
                let path = |root: i64| if root == 1 { "/r" } else { "/s" };
                let first = members.iter().map(|file| format!("{}/{}", path(file.root), file.path.display())).min();
                assert_eq!(group.file_count, members.len() as u64, "seed {seed}");
                let numbers =
                    [group.size, group.file_count, group.copies, group.reclaimable].map(|number| number as i64);
                (numbers[0], numbers[1], numbers[2], numbers[3], group.roots, first.unwrap())
            })
            .collect();
        assert_eq!(found, expected, "seed {seed}, {sort:?}");
    }
    let default = fixture.store.catalog().groups(&GroupQuery::default()).unwrap();
    let counted = expected.iter().filter(|(size, _, copies, ..)| *size > 0 && *copies > 1);
    assert_eq!(default.total, counted.clone().count() as u64, "seed {seed}");
    assert_eq!(default.reclaimable as i64, counted.map(|group| group.3).sum::<i64>(), "seed {seed}");
}
