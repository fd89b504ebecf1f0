//! Copies and removes a database together with its WAL or journal.

use std::path::{Path, PathBuf};

use crate::cli_process::Cli;
use crate::{Error, ErrorContext};

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
