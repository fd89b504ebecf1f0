//! Runs the conformance suite on SQLite.

#[macro_use]
mod conformance;

use conformance::Backend;
use gristmill_pool::clock::ManualClock;
use gristmill_store::{Durability, Store};
use tempfile::TempDir;

/// A database file in a temporary folder.
struct Sqlite(TempDir);

impl Sqlite {
    fn new() -> Self {
        Sqlite(tempfile::tempdir().unwrap())
    }
}

impl Backend for Sqlite {
    fn open(&self, clock: ManualClock) -> Store {
        let options = Store::options().clock(clock).durability(Durability::Normal);
        options.open(self.0.path().join("work.db")).unwrap()
    }
}

conformance!(crate::Sqlite::new());
