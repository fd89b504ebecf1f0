//! Walks a tree: reads all folders and calls `stat` for all files, with one thread for each core. It is the lower bound
//! of a rescan.

use std::{
    fs,
    io::{self, ErrorKind},
    path::Path,
};

use rayon::prelude::*;

/// Returns the number of regular files under `root` and their total size in bytes. Folders that this user cannot read
/// are skipped.
pub(super) fn walk(root: &Path) -> io::Result<(u64, u64)> {
    let mut folders = Vec::new();
    let (mut files, mut bytes) = (0, 0);
    let entries = match fs::read_dir(root) {
        Err(error) if error.kind() == ErrorKind::PermissionDenied => return Ok((0, 0)),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            folders.push(entry.path());
        } else if kind.is_file() {
            files += 1;
            bytes += entry.metadata()?.len();
        }
    }
    let below = folders.par_iter().map(|folder| walk(folder));
    let below = below.try_reduce(|| (0, 0), |one, other| Ok((one.0 + other.0, one.1 + other.1)))?;
    Ok((files + below.0, bytes + below.1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn walk_counts_every_file_once() {
        let scratch = Scratch::new(&std::env::temp_dir()).unwrap();
        for folder in 0..20 {
            let folder = scratch.path().join(format!("{}/{folder}", folder % 3));
            fs::create_dir_all(&folder).unwrap();
            (0..5).for_each(|file| fs::write(folder.join(file.to_string()), "four").unwrap());
        }
        assert_eq!(walk(scratch.path()).unwrap(), (100, 400));
        assert!(walk(&scratch.path().join("missing")).is_err());
    }
}
