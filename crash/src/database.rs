//! The files of a database, which are copied and removed together.

use std::path::{Path, PathBuf};

use crate::mill::Mill;
use crate::{OrTrouble, Trouble};

/// Copies a database that nobody has open, with its log, or the journal of one that is just being made.
pub(crate) fn copy(mill: &Mill, from: &Path, to: &Path) -> Result<(), Trouble> {
    remove(to)?;
    for end in ["", "-wal", "-journal"] {
        let (from, to) = (with(from, end), with(to, end));
        if from.exists() {
            std::fs::copy(&from, &to).or_trouble("cannot copy a database")?;
            mill.give(&to)?;
        }
    }
    Ok(())
}

pub(crate) fn remove(database: &Path) -> Result<(), Trouble> {
    for path in ["", "-wal", "-shm", "-journal"].map(|end| with(database, end)) {
        if path.exists() {
            std::fs::remove_file(path).or_trouble("cannot remove a database")?;
        }
    }
    Ok(())
}

fn with(database: &Path, end: &str) -> PathBuf {
    let mut path = database.as_os_str().to_owned();
    path.push(end);
    path.into()
}
