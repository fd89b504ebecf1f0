//! Writes new files into a store as a scan does, while pages are read.
//!
//! Owns the writing thread. A fifth of the files are equal pairs, so that groups appear. So that the catalog keeps its
//! size, each batch also deletes the files of an earlier one.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Instant,
};

use gristmill_store::{
    Store,
    catalog::{Algorithm, Batch, Digest, FolderRef, Listing, ListingStatus},
};

use super::{
    fixture,
    plan::{self, FILES_PER_FOLDER},
};
use crate::random;

const FOLDERS_PER_BATCH: u64 = 50;

/// Folder of all written files; each batch has a subfolder.
const INCOMING: &str = "incoming";

/// Inode numbers and names begin above those of the kept files.
const FIRST_FILE: u64 = 1 << 32;

/// What the writer wrote.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Written {
    pub(crate) files: u64,
    pub(crate) files_per_second: f64,
}

/// A thread that writes until it is stopped.
pub(crate) struct ScanWriter {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<Written, String>>,
}

impl ScanWriter {
    /// Starts the thread for a catalog of `files` files, which grows by a tenth at most, or by one batch.
    pub(crate) fn start(store: &Store, files: u64) -> Result<ScanWriter, String> {
        let stop = Arc::new(AtomicBool::new(false));
        let (store, stopped, kept) = (store.clone(), stop.clone(), files / 10 / (FOLDERS_PER_BATCH * FILES_PER_FOLDER));
        let root = store.roots().list().map_err(|error| error.to_string())?.first().ok_or("no root")?.id;
        let thread = std::thread::spawn(move || {
            write_until(&store, root, kept.max(1), &stopped)
                .map_err(|error| format!("the writing thread failed: {error}"))
        });
        Ok(ScanWriter { stop, thread })
    }

    /// Stops after the current batch.
    pub(crate) fn stop(self) -> Result<Written, String> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| "the writing thread panicked".to_owned())?
    }
}

/// Keeps the files of the last `kept` batches.
fn write_until(store: &Store, root: i64, kept: u64, stopped: &AtomicBool) -> gristmill_store::Result<Written> {
    let scan = fixture::begin_scan(store, root)?.id;
    let (started, mut batches) = (Instant::now(), 0);
    while !stopped.load(Ordering::Relaxed) {
        store.catalog().write(batch(scan, root, batches, kept))?;
        batches += 1;
    }
    let files = batches * FOLDERS_PER_BATCH * FILES_PER_FOLDER;
    Ok(Written { files, files_per_second: files as f64 / started.elapsed().as_secs_f64() })
}

fn batch(scan: i64, root: i64, batch: u64, kept: u64) -> Batch {
    let earlier = batch.checked_sub(kept).map(|batch| batch.to_string().into());
    let incoming = Listing::new(scan, FolderRef { root, id: None, path: INCOMING.into() });
    let incoming = Listing { foreign_folders: earlier.into_iter().collect(), ..incoming };
    let folders = (0..FOLDERS_PER_BATCH).map(|folder| listing(scan, root, batch, folder));
    Batch { listings: (0..).zip([incoming].into_iter().chain(folders)).collect(), ..Batch::default() }
}

fn listing(scan: i64, root: i64, batch: u64, folder: u64) -> Listing {
    let path = format!("{INCOMING}/{batch}/folder {folder:02}").into();
    let mut listing =
        Listing { status: ListingStatus::Whole, ..Listing::new(scan, FolderRef { root, id: None, path }) };
    for nth in 0..FILES_PER_FOLDER {
        let file = FIRST_FILE + (batch * FOLDERS_PER_BATCH + folder) * FILES_PER_FOLDER + nth;
        // The first eight files are four pairs.
        let content = if nth < FILES_PER_FOLDER / 5 { file - nth % 2 } else { file };
        let random = &mut random::stream(file - file % FILES_PER_FOLDER, content);
        listing.new_files.push((plan::file_name(file), plan::stat(random, content)));
        listing.new_files[nth as usize].1.inode = file;
        if nth < FILES_PER_FOLDER / 5 {
            listing.contents.push((nth as u32, Digest::shared(Algorithm::Blake3, plan::hash(random))));
        }
    }
    listing
}

#[cfg(test)]
mod tests {
    use gristmill_store::catalog::GroupQuery;

    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn writer_adds_groups_of_two_and_deletes_earlier_ones() {
        let scratch = Scratch::new(&std::env::temp_dir()).unwrap();
        let store = Store::open(scratch.path().join("w.db")).unwrap();
        let root = store.roots().register(scratch.path()).unwrap().id;
        let scan = fixture::begin_scan(&store, root).unwrap().id;
        let groups_after = |number| {
            store.catalog().write(batch(scan, root, number, 2)).unwrap();
            let groups = store.catalog().groups(&GroupQuery::default()).unwrap();
            (groups.total, groups.files)
        };
        let one_batch = FOLDERS_PER_BATCH * FILES_PER_FOLDER / 10;
        let expected = [1, 2, 2].map(|batches| (one_batch * batches, one_batch * batches * 2));
        assert_eq!([0, 1, 2].map(groups_after), expected);
    }
}
