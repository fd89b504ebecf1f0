//! Reads files of one folder for all stages.
//!
//! Owns the order and the rate of reading, and the counters of files and bytes read.

use std::ffi::OsStr;
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use gristmill_pool::worker::lower_priority;
use gristmill_store::catalog::{FileRow, ReadResult, Stat};

use crate::progress::{ScanHandle, add};
use crate::read::{self, HashScope, ReadFile, Throttle};
use crate::sys::Folder;

/// Maximum number of uncached files that all workers together request from the disk before they wait for the first; at
/// least one per worker. The disk gets many requests at once, and a worker sleeps once for all its files.
const MAX_PREFETCHED: usize = 256;

/// A file to be read: its name in its folder, and its metadata when it was listed.
pub(super) trait ListedFile {
    fn name(&self) -> &OsStr;
    fn stat(&self) -> &Stat;
}

impl ListedFile for FileRow {
    fn name(&self) -> &OsStr {
        self.path.file_name().unwrap_or_default()
    }

    fn stat(&self) -> &Stat {
        &self.stat
    }
}

pub(super) struct Reader {
    throttle: Throttle,
    max_prefetched: usize,
}

impl Reader {
    pub(super) fn new(handle: Arc<ScanHandle>, io_limit: Option<u64>, workers: usize) -> Self {
        // With a rate limit, only the file that is read next is prefetched.
        let max_prefetched = if io_limit.is_some() { 1 } else { (MAX_PREFETCHED / workers.max(1)).max(1) };
        Reader { throttle: Throttle::new(handle, io_limit), max_prefetched }
    }

    pub(super) fn handle(&self) -> &ScanHandle {
        &self.throttle.handle
    }

    pub(super) fn is_cancelled(&self) -> bool {
        self.handle().is_cancelled()
    }

    /// Reads files of a folder, each in the part that `scope` selects by size. Cached files are read at once; the
    /// others are requested together and then awaited. Omits files that `scope` does not select, and those that were
    /// not read when the scan was cancelled.
    pub(super) fn read_all<T: ListedFile>(
        &self,
        folder: &Folder,
        follow_links: bool,
        files: Vec<T>,
        scope: impl Fn(u64) -> Option<HashScope>,
    ) -> Vec<(T, ReadFile)> {
        let mut done = Vec::with_capacity(files.len());
        let mut pending: Vec<(T, HashScope, Option<File>)> = Vec::new();
        let await_pending = |pending: &mut Vec<(T, HashScope, Option<File>)>, done: &mut Vec<_>| {
            for (listed, scope, file) in pending.drain(..) {
                let open = || read::open_file(folder, listed.name(), follow_links);
                let read = read::read_file(file, open, listed.stat(), scope, &self.throttle);
                done.extend(read.map(|read| (listed, read)));
            }
        };
        for listed in files {
            if self.is_cancelled() {
                break;
            }
            let Some(scope) = scope(listed.stat().size) else { continue };
            let file = read::open_file(folder, listed.name(), follow_links).ok();
            let cached = |file| read::read_if_cached(file, listed.stat(), scope, &self.throttle);
            match file.as_ref().and_then(cached) {
                Some(read) => done.push((listed, read)),
                None => {
                    if let Some(file) = &file {
                        read::prefetch(file, listed.stat().size, scope);
                    }
                    pending.push((listed, scope, file));
                }
            }
            if pending.len() >= self.max_prefetched {
                await_pending(&mut pending, &mut done);
            }
        }
        await_pending(&mut pending, &mut done);
        done
    }

    /// Counts a file that was read. Returns whether it was read and is unchanged since it was listed.
    pub(super) fn count(&self, listed: &Stat, read: &ReadFile) -> bool {
        let handle = self.handle();
        let is_same = read.is_same(listed);
        add(&handle.read, u64::from(read.is_read()));
        add(&handle.hashed_whole, u64::from(matches!(read.result, ReadResult::Content(..))));
        let is_failed = matches!(read.result, ReadResult::Failed(_));
        add(&handle.errors, u64::from(is_failed));
        add(&handle.changed_during_scan, u64::from(!is_failed && !is_same));
        is_same
    }
}

/// Counts a worker as busy until dropped, and lowers its priority, because all workers wait for the store's writer.
pub(super) struct BusyGuard<'a>(&'a ScanHandle);

impl<'a> BusyGuard<'a> {
    pub(super) fn new(handle: &'a ScanHandle) -> Self {
        lower_priority();
        add(&handle.busy, 1);
        BusyGuard(handle)
    }
}

impl Drop for BusyGuard<'_> {
    fn drop(&mut self) {
        self.0.busy.fetch_sub(1, Ordering::Relaxed);
    }
}
