//! Catalogs of earlier versions: they are migrated, also if that is interrupted at any point, and nothing that was
//! known is lost.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use gristmill_store::Store;
use gristmill_store::catalog::{GroupQuery, SortBy};
use rusqlite::Connection;
use tempfile::TempDir;

/// The catalog of a scan by the last version before rows of files became narrow. It has three groups, of which one has
/// large files, a file of the same size as those, and two empty files.
const VERSION_1012: &str = include_str!("version_1012.sql");

struct Fixture {
    path: PathBuf,
    _folder: TempDir,
}

impl Fixture {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("c.db");
        let conn = Connection::open(&path).unwrap();
        conn.execute_batch(VERSION_1012).unwrap();
        conn.pragma_update(None, "journal_mode", "WAL").unwrap();
        Fixture { path, _folder: folder }
    }

    fn connection(&self) -> Connection {
        Connection::open(&self.path).unwrap()
    }

    fn texts(&self, sql: &str) -> Vec<String> {
        let conn = self.connection();
        let mut statement = conn.prepare(sql).unwrap();
        let rows = statement.query_map([], |row| row.get::<_, Option<String>>(0)).unwrap();
        rows.map(|text| text.unwrap().unwrap_or_else(|| "NULL".to_owned())).collect()
    }

    fn version(&self) -> i64 {
        self.connection().query_row("SELECT max(version) FROM schema_migrations", [], |row| row.get(0)).unwrap()
    }
}

/// What a catalog knows about each file, in both versions.
const FILES: &str = "SELECT json_array(id, library_id, folder_id, relative_path, size_bytes, mtime_ns, ctime_ns, inode,
        device, link_kind, is_missing, needs_hash, hash_algorithm, hex(content_hash), hashed_size_bytes, hashed_mtime_ns,
        last_seen_scan_id, created_at) FROM library_files ORDER BY id";

#[track_caller]
fn check(store: &Store) {
    let groups = store.catalog().groups(&GroupQuery::default().sort(SortBy::Path)).unwrap();
    let paths: Vec<Vec<String>> = groups
        .groups
        .iter()
        .map(|group| group.members.iter().map(|member| member.path.display().to_string()).collect())
        .collect();
    assert_eq!(paths, [vec!["a", "sub/b"], vec!["big1", "big2"], vec!["sub/deep/c", "sub/deep/d"]]);
    assert_eq!(store.catalog().groups(&GroupQuery::default().min_size(0)).unwrap().total, 4, "and empty files");
    for check in store.catalog().verify().unwrap() {
        assert_eq!(check.broken, 0, "{}", check.name);
    }
}

#[test]
fn catalog_is_migrated_and_keeps_what_it_knows() {
    let fixture = Fixture::new();
    assert_eq!(fixture.version(), 1012);
    let before = fixture.texts(FILES);
    let store = Store::open(&fixture.path).unwrap();
    check(&store);
    assert_eq!(fixture.texts(FILES), before);
    // Nothing has to be compared again.
    assert!(store.scans().is_compared_with("blake3", &[]).unwrap());
    // A small file keeps its content in `edges`, a large one its hash only if another file shares it.
    let contents = "SELECT json_array(relative_path, edges IS NOT NULL, read_hash IS NOT NULL) FROM library_files
        WHERE size_bytes > 0 ORDER BY relative_path";
    let samples = |path: &str| format!(r#"["{path}",1,0]"#);
    let known: Vec<String> = fixture.texts(contents);
    assert!(known.contains(&samples("a")) && known.contains(&samples("big3")), "{known:?}");
    // Other programs may insert files, but no second row for a path.
    let insert = |path: &str| {
        fixture.connection().execute(
            "INSERT INTO library_files (library_id, relative_path, size_bytes, mtime_ns, is_missing, needs_hash,
                hash_error_count) VALUES ((SELECT id FROM library_roots), ?1, 1, 1, 0, 1, 0)",
            [path],
        )
    };
    assert!(insert("sub/new").is_ok() && insert("sub/new").is_err() && insert("sub/b").is_err());
}

/// A trigger of the file makes each migration fail at its end. Nothing of it remains.
#[test]
fn failed_migration_leaves_no_trace() {
    for version in [1013, 1014, 1015] {
        let fixture = Fixture::new();
        fixture
            .connection()
            .execute_batch(&format!(
                "CREATE TRIGGER stop BEFORE INSERT ON schema_migrations WHEN NEW.version = {version}
                    BEGIN SELECT raise(ABORT, 'stopped'); END;"
            ))
            .unwrap();
        assert!(Store::open(&fixture.path).is_err());
        assert_eq!(fixture.version(), version - 1);
        let schema = "SELECT group_concat(sql, ';') FROM sqlite_schema WHERE name <> 'stop'";
        let before = fixture.texts(schema);
        assert!(Store::open(&fixture.path).is_err());
        assert_eq!(fixture.texts(schema), before);
        fixture.connection().execute_batch("DROP TRIGGER stop").unwrap();
        check(&Store::open(&fixture.path).unwrap());
    }
}

/// Name of the variable with the file that a process of this program opens.
const OPENED_FILE: &str = "GRISTMILL_TEST_MIGRATED_FILE";

#[test]
fn migration_killed_at_any_point_is_resumed() {
    if let Some(path) = std::env::var_os(OPENED_FILE) {
        drop(Store::open(Path::new(&path)).unwrap());
        return;
    }
    let open_in_process = |path: &Path| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "migration_killed_at_any_point_is_resumed"]).env(OPENED_FILE, path);
        command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    };
    // How long a whole migration takes in another process, so that the kills spread over it.
    let large = || {
        let fixture = Fixture::new();
        fixture.connection().execute_batch(MORE_FILES).unwrap();
        fixture
    };
    let fixture = large();
    let started = Instant::now();
    assert!(open_in_process(&fixture.path).wait().unwrap().success());
    let whole = started.elapsed();
    // Rounds until some kills hit a migration that had written to the log, or the pause between two.
    let (mut round, mut hits) = (0, 0);
    while round < 12 || hits < 3 {
        assert!(round < 200, "{hits} of {round} kills hit a migration");
        let fixture = large();
        let mut process = open_in_process(&fixture.path);
        let until = Instant::now() + whole.mul_f64(f64::from(round % 12) / 12.0);
        while Instant::now() < until && process.try_wait().unwrap().is_none() {
            std::thread::park_timeout(Duration::from_micros(100));
        }
        let is_killed = process.try_wait().unwrap().is_none();
        let _ = process.kill();
        process.wait().unwrap();
        let log = fixture.path.with_file_name("c.db-wal").metadata().map_or(0, |log| log.len());
        hits += u32::from(is_killed && (log > 0 || fixture.version() == 1013));
        check(&Store::open(&fixture.path).unwrap());
        round += 1;
    }
}

/// Adds files of unique sizes, so that the migration takes longer than the start of a process.
const MORE_FILES: &str = "
    WITH RECURSIVE numbers (number) AS (SELECT 1 UNION ALL SELECT number + 1 FROM numbers WHERE number < 20000)
    INSERT INTO library_files (library_id, folder_id, relative_path, size_bytes, mtime_ns, ctime_ns, inode, device,
            link_kind, is_missing, needs_hash, last_seen_scan_id, hash_error_count, created_at, updated_at)
        SELECT library_id, folder_id, 'more ' || number, 200000 + number, mtime_ns, ctime_ns, 1000000 + number, device,
            0, 0, 1, last_seen_scan_id, 0, created_at, updated_at
        FROM library_files, numbers WHERE relative_path = 'big3';
    UPDATE library_roots SET file_count = file_count + 20000,
        total_size = total_size + (SELECT sum(size_bytes) FROM library_files WHERE size_bytes > 200000);
";

/// Columns, indexes and triggers of other programs are kept.
#[test]
fn columns_of_other_programs_are_kept() {
    let fixture = Fixture::new();
    fixture
        .connection()
        .execute_batch(
            "ALTER TABLE library_files ADD COLUMN rating INTEGER NOT NULL DEFAULT 3;
            ALTER TABLE library_files ADD COLUMN \"my note\" TEXT;
            UPDATE library_files SET \"my note\" = relative_path WHERE relative_path = 'a';
            CREATE INDEX ix_rating ON library_files (rating);",
        )
        .unwrap();
    check(&Store::open(&fixture.path).unwrap());
    let rated = "SELECT json_array(relative_path, rating, \"my note\") FROM library_files INDEXED BY ix_rating
        WHERE rating = 3 AND relative_path = 'a'";
    assert_eq!(fixture.texts(rated), [r#"["a",3,"a"]"#]);
}
