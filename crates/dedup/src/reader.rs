//! Reading what a plan names, on the pool.
//!
//! Owns the order and the pace of reading. Files of one folder are read by one task, relative to the folder, which
//! is opened once. Large files are read largest first, each by a task of its own, so that no worker is left with
//! the largest at the end.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use gristmill_pool::worker::lower_priority;
use gristmill_pool::{Pool, Task, TaskError, TaskResult};
use gristmill_store::Store;
use gristmill_store::catalog::{Algorithm, FileHash, FileRef, FileRow, ReadResult};
use gristmill_store::roots::Root;

use crate::error::Result;
use crate::plan::Plan;
use crate::progress::{ScanHandle, add};
use crate::read::{self, Goal, Pace, ReadFile, SMALL};
use crate::roots::reach;
use crate::scribe::{Note, Notes};
use crate::sys::Folder;
use crate::walk::Tally;

/// So many rows are fetched at once.
const FETCH: usize = 2_048;

/// A task reads at most so many files, and so many bytes of small ones.
const MOST_FILES: usize = 32;
const MOST_BYTES: u64 = 4 << 20;

/// Which reading it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Round {
    First,
    Second,
}

/// Everything a task needs to read files.
pub(crate) struct Reader {
    pub(crate) store: Store,
    pub(crate) notes: Notes,
    pub(crate) control: Arc<ScanHandle>,
    pub(crate) algorithm: Algorithm,
    pub(crate) round: Round,
    pub(crate) links: HashMap<i64, Vec<i64>>,
    pub(crate) tops: Arc<Tops>,
    pub(crate) budget: Arc<Budget>,
    pub(crate) tally: Arc<Tally>,
}

/// The roots, open. One that cannot be reached, on a disk that is not mounted, say, is left alone.
pub(crate) struct Tops(HashMap<i64, Top>);

struct Top {
    path: PathBuf,
    folder: Arc<Folder>,
    follow: bool,
    /// Whether this scan is of the root. Files of others are read to be compared; one that is not as its root's last scan
    /// found it is left to the next.
    is_scanned: bool,
}

impl Tops {
    /// Those that are open.
    pub(crate) fn ids(&self) -> HashSet<i64> {
        self.0.keys().copied().collect()
    }

    /// Opens roots. `walked` has the folders of those that this scan has walked; `scanned` are those it was asked for.
    /// Returns those that cannot be reached, too.
    pub(crate) fn open<'a>(
        store: &Store,
        roots: impl Iterator<Item = &'a Root>,
        scanned: &HashSet<i64>,
        walked: &HashMap<i64, Arc<Folder>>,
    ) -> (Self, Vec<Root>) {
        let mut absent = Vec::new();
        let mut tops = HashMap::new();
        for root in roots {
            let is_scanned = scanned.contains(&root.id);
            match walked.get(&root.id).cloned().or_else(|| reach(store, root).map(Arc::new)) {
                Some(folder) => {
                    let top = Top { path: root.path.clone(), folder, follow: root.follow_links, is_scanned };
                    tops.insert(root.id, top);
                }
                None => absent.push(root.clone()),
            }
        }
        (Tops(tops), absent)
    }
}

/// How fast all workers together may read.
pub(crate) struct Budget {
    /// Bytes a second.
    rate: Option<u64>,
    /// When what was read so far is paid for.
    paid: Mutex<Instant>,
}

impl Budget {
    pub(crate) fn new(rate: Option<u64>) -> Self {
        Budget { rate, paid: Mutex::new(Instant::now()) }
    }

    /// Whether reading is to be slower than it could be.
    pub(crate) fn is_limited(&self) -> bool {
        self.rate.is_some()
    }

    /// Waits until so many bytes may be read. False when the scan is to stop.
    fn wait(&self, bytes: u64, control: &ScanHandle) -> bool {
        let Some(rate) = self.rate else { return !control.is_cancelled() };
        let until = {
            let mut paid = self.paid.lock().unwrap_or_else(PoisonError::into_inner);
            let from = (*paid).max(Instant::now());
            *paid = from + Duration::from_secs_f64(bytes as f64 / rate as f64);
            from
        };
        loop {
            if control.is_cancelled() {
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

/// Reading at the pace of a scan.
pub(crate) struct Paced<'a> {
    pub(crate) control: &'a ScanHandle,
    pub(crate) budget: &'a Budget,
}

impl Pace for Paced<'_> {
    fn may_read(&self, bytes: u64) -> bool {
        let may = self.budget.wait(bytes, self.control);
        if may {
            add(&self.control.bytes_read, bytes);
        }
        may
    }
}

impl Reader {
    /// Submits the reading of all that the plan names.
    pub(crate) fn submit(self: &Arc<Self>, pool: &Pool, plan: &Plan) -> Result<()> {
        let mut after = 0;
        let mut position = 0;
        let mut large = Vec::new();
        loop {
            // Both ascend: one step through the plan for each row.
            let (rows, next) = self.store.catalog().page(after, FETCH, |row| {
                while plan.ids.get(position).is_some_and(|id| *id < row.id) {
                    position += 1;
                }
                plan.ids.get(position) == Some(&row.id) && self.tops.0.contains_key(&row.root)
            })?;
            for batch in batches(rows) {
                let whole = self.round == Round::Second;
                if whole {
                    large.extend(batch);
                } else if !self.hand_over(pool, batch) {
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
            if !self.hand_over(pool, vec![row]) {
                break;
            }
        }
        Ok(())
    }

    /// False when the scan is to stop.
    fn hand_over(self: &Arc<Self>, pool: &Pool, batch: Vec<FileRow>) -> bool {
        let reader = self.clone();
        submit(pool, Task::new(move |_| reader.read(&batch)), &self.control)
    }

    /// Reads files of one folder.
    fn read(&self, batch: &[FileRow]) -> TaskResult<()> {
        let _busy = Busy::new(&self.control);
        let Some(first) = batch.first() else { return Ok(()) };
        let Some(top) = self.tops.0.get(&first.root) else { return Ok(()) };
        let folder = top.folder.below(first.path.parent().unwrap_or(Path::new("")), top.follow);
        let mut found = Vec::with_capacity(batch.len());
        for row in batch {
            let result = match &folder {
                Ok(folder) => self.read_one(folder, top.follow, row),
                Err(error) if read::is_gone(error) => Some(unread(row, ReadResult::Gone)),
                Err(error) => Some(unread(row, ReadResult::Failed(error.to_string()))),
            };
            let Some(result) = result else { break };
            found.extend(self.readings(top, row, result));
        }
        self.notes.send(Note::Readings(found)).map_err(|_| TaskError::cancelled())
    }

    /// What is to be written about a file that was read, and about other names of its inode.
    fn readings(&self, top: &Top, row: &FileRow, read: ReadFile) -> Vec<FileHash> {
        let ReadFile { stat, finding, racy } = read;
        let is_read = !matches!(finding, ReadResult::Gone | ReadResult::Failed(_));
        let is_same = is_read && stat.is_same(&row.stat);
        if !top.is_scanned && !is_same {
            add(&self.tally.unreached, 1);
            return Vec::new();
        }
        add(&self.control.read, u64::from(is_read));
        add(&self.control.read_through, u64::from(matches!(finding, ReadResult::Content(..))));
        if let ReadResult::Failed(error) = &finding {
            add(&self.control.errors, 1);
            self.tally.complain(&top.path.join(&row.path), error);
        } else if !is_same {
            add(&self.control.surprises, 1);
        }
        let mut found = Vec::new();
        // Other names of the inode have the same content. If this name is gone or may not be read, they are
        // left for the next scan, which will choose another.
        if is_same {
            for &id in self.links.get(&row.id).into_iter().flatten() {
                let (file, finding) = (FileRef::Row(id), finding.clone());
                found.push(FileHash {
                    file,
                    stat: row.stat,
                    result: finding,
                    shared: false,
                    differs: true,
                    racy,
                });
            }
        }
        let differs = !is_same || row.failed;
        found.push(FileHash {
            file: FileRef::Row(row.id),
            stat,
            result: finding,
            shared: false,
            differs,
            racy,
        });
        found
    }

    fn read_one(&self, folder: &Folder, follow: bool, row: &FileRow) -> Option<ReadFile> {
        let goal = match self.round {
            Round::First if row.stat.size > SMALL => Goal::Edges,
            _ => Goal::Content(self.algorithm),
        };
        let name = row.path.file_name().unwrap_or_default();
        read::file(
            None,
            || read::open(folder, name, follow),
            &row.stat,
            goal,
            &Paced { control: &self.control, budget: &self.budget },
        )
    }
}

fn unread(row: &FileRow, finding: ReadResult) -> ReadFile {
    ReadFile { stat: row.stat, finding, racy: false }
}

/// Submits a task. False when the scan is to stop: a disk that hangs must not hang the one who could be told so.
pub(crate) fn submit(pool: &Pool, mut task: Task, control: &ScanHandle) -> bool {
    loop {
        if control.is_cancelled() || pool.is_finished() {
            return false;
        }
        match pool.submit_timeout(task, Duration::from_millis(200)) {
            Ok(_) => return true,
            Err(refused) => task = refused.into_task(),
        }
    }
}

/// Rows of one folder together, a bounded number of them.
fn batches(rows: Vec<FileRow>) -> Vec<Vec<FileRow>> {
    let mut batches: Vec<Vec<FileRow>> = Vec::new();
    let mut bytes = 0;
    for row in rows {
        let fits = batches.last().is_some_and(|batch: &Vec<FileRow>| {
            batch.len() < MOST_FILES
                && bytes < MOST_BYTES
                && batch
                    .first()
                    .is_some_and(|first| first.root == row.root && first.path.parent() == row.path.parent())
        });
        if !fits {
            batches.push(Vec::new());
            bytes = 0;
        }
        bytes += row.stat.size.min(SMALL);
        if let Some(batch) = batches.last_mut() {
            batch.push(row);
        }
    }
    batches
}

/// Counts a worker as busy while it lives. Whoever is, works for the one who writes.
pub(crate) struct Busy<'a>(&'a ScanHandle);

impl<'a> Busy<'a> {
    pub(crate) fn new(control: &'a ScanHandle) -> Self {
        lower_priority();
        add(&control.busy, 1);
        Busy(control)
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.busy.fetch_sub(1, std::sync::atomic::Ordering::Relaxed);
    }
}
