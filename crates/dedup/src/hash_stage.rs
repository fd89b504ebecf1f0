//! Reads and hashes the planned files on the pool.
//!
//! Owns the order and the rate of reading. One task reads files of one folder, relative to the folder, which it opens
//! once. Large files are read in full largest first, each by its own task, so that no worker is left with the largest
//! at the end.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use gristmill_pool::worker::lower_priority;
use gristmill_pool::{Pool, Task, TaskError, TaskResult};
use gristmill_store::Store;
use gristmill_store::catalog::{Algorithm, FileHash, FileRef, FileRow, ReadResult};
use gristmill_store::roots::Root;

use crate::catalog_writer::{Update, UpdateSender};
use crate::error::Result;
use crate::plan::Plan;
use crate::progress::{ScanHandle, add};
use crate::read::{self, HashScope, MAX_SMALL_SIZE, ReadFile, Throttle};
use crate::roots::open_if_reachable;
use crate::sys::Folder;
use crate::walk::Counters;

/// Rows fetched from the catalog per page.
const PAGE_ROWS: usize = 2_048;

/// Upper bounds for one task: files, and bytes of small files.
const MAX_TASK_FILES: usize = 32;
const MAX_TASK_BYTES: u64 = 4 << 20;

/// Which part of each file is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    Samples,
    Contents,
}

pub(crate) struct HashStage {
    pub(crate) store: Store,
    pub(crate) updates: UpdateSender,
    pub(crate) handle: Arc<ScanHandle>,
    pub(crate) algorithm: Algorithm,
    pub(crate) stage: Stage,
    pub(crate) links: HashMap<i64, Vec<i64>>,
    pub(crate) roots: Arc<OpenRoots>,
    pub(crate) rate_limiter: Arc<RateLimiter>,
    pub(crate) counters: Arc<Counters>,
}

/// The opened folders of roots. Roots that cannot be reached, such as those on an unmounted disk, are not included.
pub(crate) struct OpenRoots(HashMap<i64, OpenRoot>);

struct OpenRoot {
    path: PathBuf,
    folder: Arc<Folder>,
    follow_links: bool,
    /// Whether this scan covers the root. Files of other roots are read only for comparison. Those that have changed
    /// since the last scan of their root are left to its next scan.
    is_scanned: bool,
}

impl OpenRoots {
    pub(crate) fn ids(&self) -> HashSet<i64> {
        self.0.keys().copied().collect()
    }

    /// Opens the folders of `roots`, and also returns the roots that cannot be reached. `scanned` are the roots that
    /// the scan covers; `walked` are the folders that it has already opened.
    pub(crate) fn open<'a>(
        store: &Store,
        roots: impl Iterator<Item = &'a Root>,
        scanned: &HashSet<i64>,
        walked: &HashMap<i64, Arc<Folder>>,
    ) -> (Self, Vec<Root>) {
        let mut absent = Vec::new();
        let mut open_roots = HashMap::new();
        for root in roots {
            let is_scanned = scanned.contains(&root.id);
            match walked.get(&root.id).cloned().or_else(|| open_if_reachable(store, root).map(Arc::new)) {
                Some(folder) => {
                    let (path, follow_links) = (root.path.clone(), root.follow_links);
                    open_roots.insert(root.id, OpenRoot { path, folder, follow_links, is_scanned });
                }
                None => absent.push(root.clone()),
            }
        }
        (OpenRoots(open_roots), absent)
    }
}

/// Limits the rate at which all workers together read.
pub(crate) struct RateLimiter {
    /// Bytes per second. `None` means no limit.
    rate: Option<u64>,
    /// Time from which the next read is allowed.
    free_at: Mutex<Instant>,
}

impl RateLimiter {
    pub(crate) fn new(rate: Option<u64>) -> Self {
        RateLimiter { rate, free_at: Mutex::new(Instant::now()) }
    }

    pub(crate) fn is_limited(&self) -> bool {
        self.rate.is_some()
    }

    /// Waits until `bytes` bytes may be read. Returns false if the scan is cancelled.
    fn acquire(&self, bytes: u64, handle: &ScanHandle) -> bool {
        let Some(rate) = self.rate else { return !handle.is_cancelled() };
        let until = {
            let mut free_at = self.free_at.lock().unwrap_or_else(PoisonError::into_inner);
            let from = (*free_at).max(Instant::now());
            *free_at = from + Duration::from_secs_f64(bytes as f64 / rate as f64);
            from
        };
        loop {
            if handle.is_cancelled() {
                return false;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return true;
            }
            std::thread::park_timeout(left.min(Duration::from_millis(50)));
        }
    }
}

/// Applies the rate limit and the cancellation of a scan.
pub(crate) struct ScanThrottle<'a> {
    pub(crate) handle: &'a ScanHandle,
    pub(crate) rate_limiter: &'a RateLimiter,
}

impl Throttle for ScanThrottle<'_> {
    fn may_read(&self, bytes: u64) -> bool {
        let is_allowed = self.rate_limiter.acquire(bytes, self.handle);
        if is_allowed {
            add(&self.handle.bytes_read, bytes);
        }
        is_allowed
    }
}

impl HashStage {
    pub(crate) fn submit(self: &Arc<Self>, pool: &Pool, plan: &Plan) -> Result<()> {
        let mut after = 0;
        let mut position = 0;
        let mut large = Vec::new();
        loop {
            // Rows and plan are both sorted by row id, so one pass over the plan is enough.
            let (rows, next) = self.store.catalog().page(after, PAGE_ROWS, |row| {
                while plan.ids.get(position).is_some_and(|id| *id < row.id) {
                    position += 1;
                }
                plan.ids.get(position) == Some(&row.id) && self.roots.0.contains_key(&row.root)
            })?;
            for batch in batches(rows) {
                if self.stage == Stage::Contents {
                    large.extend(batch);
                } else if !self.submit_batch(pool, batch) {
                    return Ok(());
                }
            }
            match next {
                Some(last) if position < plan.ids.len() => after = last,
                _ => break,
            }
        }
        large.sort_by_key(|row| std::cmp::Reverse(row.stat.size));
        for row in large {
            if !self.submit_batch(pool, vec![row]) {
                break;
            }
        }
        Ok(())
    }

    /// Submits a task for one batch. Returns false if the scan is cancelled.
    fn submit_batch(self: &Arc<Self>, pool: &Pool, batch: Vec<FileRow>) -> bool {
        let stage = self.clone();
        submit(pool, Task::new(move |_| stage.hash_batch(&batch)), &self.handle)
    }

    fn hash_batch(&self, batch: &[FileRow]) -> TaskResult<()> {
        let _busy = BusyGuard::new(&self.handle);
        let Some(first) = batch.first() else { return Ok(()) };
        let Some(root) = self.roots.0.get(&first.root) else { return Ok(()) };
        let folder = root.folder.open_below(first.path.parent().unwrap_or(Path::new("")), root.follow_links);
        let mut found = Vec::with_capacity(batch.len());
        for row in batch {
            let result = match &folder {
                Ok(folder) => self.hash_one(folder, root.follow_links, row),
                Err(error) if read::is_missing(error) => Some(not_read(row, ReadResult::Gone)),
                Err(error) => Some(not_read(row, ReadResult::Failed(error.to_string()))),
            };
            let Some(result) = result else { break };
            found.extend(self.hashes_of(root, row, result));
        }
        self.updates.send(Update::Hashes(found)).map_err(|_| TaskError::cancelled())
    }

    /// Returns the results to be written for a file that was read, and for other names of its inode.
    fn hashes_of(&self, root: &OpenRoot, row: &FileRow, read: ReadFile) -> Vec<FileHash> {
        let ReadFile { stat, result, racy } = read;
        let is_read = !matches!(result, ReadResult::Gone | ReadResult::Failed(_));
        let is_same = is_read && stat.is_same(&row.stat);
        if !root.is_scanned && !is_same {
            add(&self.counters.uncompared, 1);
            return Vec::new();
        }
        add(&self.handle.read, u64::from(is_read));
        add(&self.handle.hashed_whole, u64::from(matches!(result, ReadResult::Content(..))));
        if let ReadResult::Failed(error) = &result {
            add(&self.handle.errors, 1);
            self.counters.record_error(&root.path.join(&row.path), error);
        } else if !is_same {
            add(&self.handle.changed_during_scan, 1);
        }
        let mut found = Vec::new();
        // Other names of the inode have the same content. If this name is missing or unreadable, they are left to the
        // next scan, which chooses another name.
        if is_same {
            for &id in self.links.get(&row.id).into_iter().flatten() {
                let (file, result) = (FileRef::Row(id), result.clone());
                found.push(FileHash { file, stat: row.stat, result, shared: false, differs: true, racy });
            }
        }
        let differs = !is_same || row.failed;
        found.push(FileHash { file: FileRef::Row(row.id), stat, result, shared: false, differs, racy });
        found
    }

    fn hash_one(&self, folder: &Folder, follow: bool, row: &FileRow) -> Option<ReadFile> {
        let scope = match self.stage {
            Stage::Samples if row.stat.size > MAX_SMALL_SIZE => HashScope::Samples,
            _ => HashScope::Content(self.algorithm),
        };
        let name = row.path.file_name().unwrap_or_default();
        read::read_file(
            None,
            || read::open_file(folder, name, follow),
            &row.stat,
            scope,
            &ScanThrottle { handle: &self.handle, rate_limiter: &self.rate_limiter },
        )
    }
}

fn not_read(row: &FileRow, result: ReadResult) -> ReadFile {
    ReadFile { stat: row.stat, result, racy: false }
}

/// Submits a task. Returns false if the scan is cancelled, so that a hanging disk cannot block the cancellation.
pub(crate) fn submit(pool: &Pool, mut task: Task, handle: &ScanHandle) -> bool {
    loop {
        if handle.is_cancelled() || pool.is_finished() {
            return false;
        }
        match pool.submit_timeout(task, Duration::from_millis(200)) {
            Ok(_) => return true,
            Err(refused) => task = refused.into_task(),
        }
    }
}

/// Groups rows of one folder into batches of limited size.
fn batches(rows: Vec<FileRow>) -> Vec<Vec<FileRow>> {
    let mut batches: Vec<Vec<FileRow>> = Vec::new();
    let mut bytes = 0;
    for row in rows {
        let fits = batches.last().is_some_and(|batch: &Vec<FileRow>| {
            batch.len() < MAX_TASK_FILES
                && bytes < MAX_TASK_BYTES
                && batch.first().is_some_and(|first| first.root == row.root && first.path.parent() == row.path.parent())
        });
        if !fits {
            batches.push(Vec::new());
            bytes = 0;
        }
        bytes += row.stat.size.min(MAX_SMALL_SIZE);
        if let Some(batch) = batches.last_mut() {
            batch.push(row);
        }
    }
    batches
}

/// Counts a worker as busy until dropped, and lowers its priority, because all workers wait for the catalog writer.
pub(crate) struct BusyGuard<'a>(&'a ScanHandle);

impl<'a> BusyGuard<'a> {
    pub(crate) fn new(handle: &'a ScanHandle) -> Self {
        lower_priority();
        add(&handle.busy, 1);
        BusyGuard(handle)
    }
}

impl Drop for BusyGuard<'_> {
    fn drop(&mut self) {
        self.0.busy.fetch_sub(1, std::sync::atomic::Ordering::Relaxed);
    }
}
