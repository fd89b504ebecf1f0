//! Database files: reads them with plain SQL, independent of the code under test, and copies and removes them together
//! with their WAL or journal.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, OpenFlags, Params, Row};

use crate::cli::Cli;
use crate::{Error, ErrorContext};

/// A connection whose errors name the failed action.
pub(crate) struct Database(pub(crate) Connection);

impl Database {
    /// Opens a database that other processes may write to.
    pub(crate) fn open(path: &Path) -> Result<Self, Error> {
        let open = || -> rusqlite::Result<Connection> {
            let conn = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
            conn.busy_timeout(Duration::from_secs(30))?;
            Ok(conn)
        };
        open().map(Database).context("cannot open a database")
    }

    /// Opens the copy of a database, and recovers it from its WAL or journal.
    pub(crate) fn open_copy(path: &Path) -> Result<Self, Error> {
        Connection::open(path).map(Database).context("cannot open a database")
    }

    pub(crate) fn query<T>(
        &self,
        sql: &str,
        params: impl Params,
        read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<Vec<T>, Error> {
        let run = || self.0.prepare(sql)?.query_map(params, read)?.collect::<rusqlite::Result<_>>();
        run().context("cannot read a database")
    }

    /// Returns the number that a query gives.
    pub(crate) fn count(&self, sql: &str, params: impl Params) -> Result<i64, Error> {
        self.0.query_row(sql, params, |row| row.get(0)).context("cannot read a database")
    }

    pub(crate) fn has_table(&self, name: &str) -> Result<bool, Error> {
        Ok(self.count("SELECT count(*) FROM sqlite_schema WHERE name = ?1", [name])? > 0)
    }

    /// Returns what SQLite's integrity and foreign key checks report for a schema, such as `main`.
    pub(crate) fn damage(&self, schema: &str) -> Result<Vec<String>, Error> {
        let mut damage = self.query(&format!("PRAGMA {schema}.integrity_check"), [], |row| row.get::<_, String>(0))?;
        damage.retain(|line| line != "ok");
        damage.extend(self.query(&format!("PRAGMA {schema}.foreign_key_check"), [], |row| {
            Ok(format!("{} refers to a missing row of {}", row.get::<_, String>(0)?, row.get::<_, String>(2)?))
        })?);
        Ok(damage)
    }
}

/// Copies a database that no process has open, with its WAL, or its rollback journal if it was being created.
pub(crate) fn copy(cli: &Cli, from: &Path, to: &Path) -> Result<(), Error> {
    remove(to)?;
    for suffix in ["", "-wal", "-journal"] {
        let (from, to) = (with_suffix(from, suffix), with_suffix(to, suffix));
        if from.exists() {
            std::fs::copy(&from, &to).context("cannot copy a database")?;
            cli.chown(&to)?;
        }
    }
    Ok(())
}

/// Restores the state before a command: a copy of `before`, or no database.
pub(crate) fn restore(cli: &Cli, before: Option<&Path>, database: &Path) -> Result<(), Error> {
    before.map_or_else(|| remove(database), |before| copy(cli, before, database))
}

pub(crate) fn remove(database: &Path) -> Result<(), Error> {
    for path in ["", "-wal", "-shm", "-journal"].map(|suffix| with_suffix(database, suffix)) {
        if path.exists() {
            std::fs::remove_file(path).context("cannot remove a database")?;
        }
    }
    Ok(())
}

fn with_suffix(database: &Path, suffix: &str) -> PathBuf {
    let mut path = database.as_os_str().to_owned();
    path.push(suffix);
    path.into()
}
