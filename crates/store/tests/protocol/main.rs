//! The tables shared with the control plane: every transition and guard, and two stores on one file.

mod cleanup;
mod jobs;
mod rate_limits;
mod thumbnails;
mod wal;

use std::path::PathBuf;
use std::time::Duration;

use gristmill_pool::clock::ManualClock;
use gristmill_store::lease::Token;
use gristmill_store::{Store, UtcTime};
use rusqlite::Connection;
use tempfile::TempDir;

pub(crate) const LEASE: Duration = Duration::from_secs(300);

pub(crate) fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

pub(crate) fn token(name: &str) -> Token {
    Token::named(name)
}

/// A new file, a store on it, and a manual clock.
pub(crate) struct Fixture {
    pub(crate) store: Store,
    clock: ManualClock,
    path: PathBuf,
    _folder: TempDir,
}

impl Fixture {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("work.db");
        let clock = ManualClock::at(UtcTime::parse("2026-01-19 07:08:09.250000").unwrap().micros());
        let store = open(&path, &clock);
        Fixture { store, clock, path, _folder: folder }
    }

    pub(crate) fn now(&self) -> UtcTime {
        UtcTime::of(&self.clock)
    }

    pub(crate) fn advance(&self, time: Duration) {
        self.clock.set_unix_micros(self.now().plus(time).micros());
    }

    pub(crate) fn set_back(&self, time: Duration) {
        self.clock.set_unix_micros(self.now().minus(time).micros());
    }

    /// Opens another store on the same file, as another process would.
    pub(crate) fn second(&self) -> Store {
        open(&self.path, &self.clock)
    }

    /// Opens a connection as another program does.
    pub(crate) fn other_connection(&self) -> Connection {
        Connection::open(&self.path).unwrap()
    }

    pub(crate) fn sql(&self, sql: &str) {
        self.other_connection().execute_batch(sql).unwrap();
    }

    /// Inserts a file into the catalog, for thumbnails.
    pub(crate) fn library_file(&self) -> i64 {
        self.sql(
            "INSERT INTO library_roots (id, name, root_path) VALUES (1, 'a', '/a');
             INSERT INTO library_files (id, library_id, relative_path, size_bytes, mtime_ns)
             VALUES (7, 1, 'x.jpg', 10, 20)",
        );
        7
    }
}

fn open(path: &std::path::Path, clock: &ManualClock) -> Store {
    // A short timeout: in a test that holds a lock a longer one only takes more time.
    Store::options().clock(clock.clone()).busy_timeout(Duration::from_millis(200)).open(path).unwrap()
}
