//! Walks a tree: reads all folders and calls `stat` for all files, with one thread for each core. It is the lower bound
//! of a rescan.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::{Condvar, Mutex},
};

/// Folders that are not read yet, and the number of threads that can still find more.
struct PendingFolders {
    folders: Vec<PathBuf>,
    busy: usize,
}

struct Walk {
    pending: Mutex<PendingFolders>,
    changed: Condvar,
}

/// Returns the number of files under `root` and their total size in bytes.
pub(super) fn walk(root: &Path) -> io::Result<(u64, u64)> {
    let threads = std::thread::available_parallelism().map_or(2, usize::from);
    let pending = PendingFolders { folders: vec![root.to_path_buf()], busy: threads };
    let walk = Walk { pending: Mutex::new(pending), changed: Condvar::new() };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(|| read_folders(&walk))).collect();
        let counts = threads.into_iter().map(|thread| thread.join().expect("the walk does not panic"));
        counts.sum::<io::Result<Count>>().map(|count| (count.files, count.bytes))
    })
}

#[derive(Default)]
struct Count {
    files: u64,
    bytes: u64,
}

impl std::iter::Sum for Count {
    fn sum<I: Iterator<Item = Count>>(counts: I) -> Count {
        counts.fold(Count::default(), |a, b| Count { files: a.files + b.files, bytes: a.bytes + b.bytes })
    }
}

fn read_folders(walk: &Walk) -> io::Result<Count> {
    let mut count = Count::default();
    let mut result = Ok(());
    while let Some(folder) = next(walk) {
        // After an error the remaining folders are still removed from the queue, since the other threads wait for it to
        // empty.
        if result.is_ok() {
            result = read(&folder, walk, &mut count);
        }
    }
    result.map(|()| count)
}

/// Returns a folder to read, or None when all are read and no thread can find another.
fn next(walk: &Walk) -> Option<PathBuf> {
    let mut pending = walk.pending.lock().expect("no thread panics while it holds the lock");
    pending.busy -= 1;
    loop {
        if let Some(folder) = pending.folders.pop() {
            pending.busy += 1;
            return Some(folder);
        }
        if pending.busy == 0 {
            walk.changed.notify_all();
            return None;
        }
        pending = walk.changed.wait(pending).expect("no thread panics while it holds the lock");
    }
}

fn read(folder: &Path, walk: &Walk, count: &mut Count) -> io::Result<()> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            found.push(entry.path());
        } else {
            count.files += 1;
            count.bytes += entry.metadata()?.len();
        }
    }
    if !found.is_empty() {
        walk.pending.lock().expect("no thread panics while it holds the lock").folders.append(&mut found);
        walk.changed.notify_all();
    }
    Ok(())
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
