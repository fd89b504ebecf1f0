//! Reads the files of a plan on a pool and sends the results to the catalog.
//!
//! Workers take the next batch of files when they are done with one, so that nothing is queued.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex};

use gristmill_pool::TaskResult;
use gristmill_store::Store;
use gristmill_store::catalog::{FileHash, FileRef, FileRow, ReadResult};
use gristmill_store::roots::Root;

use super::candidates::Plan;
use super::catalog_queue::CatalogQueue;
use super::reader::{BusyGuard, Reader};
use super::run::ScanRun;
use crate::error::Result;
use crate::lock;
use crate::named::{self, NamesOfRoot};
use crate::progress::add;
use crate::read::{HashScope, ReadFile};
use crate::sys::Folder;

/// Rows fetched from the catalog per page.
const PAGE_ROWS: usize = 2_048;

/// The roots that can be reached. Those on an unmounted disk, for example, are not included.
pub(super) type OpenRoots = HashMap<i64, OpenRoot>;

pub(super) struct OpenRoot {
    pub(super) root: Root,
    pub(super) folder: Arc<Folder>,
    /// Whether this scan covers the root. Files outside the scan are read only for comparison. Those that have changed
    /// since the last scan of their root are left to its next scan.
    pub(super) is_scanned: bool,
    /// The files of the root that this scan covers, if it does not cover all.
    pub(super) names: Option<Arc<NamesOfRoot>>,
}

impl OpenRoot {
    fn covers(&self, path: &Path) -> bool {
        self.is_scanned && self.names.as_ref().is_none_or(|names| named::contains(names, path))
    }
}

/// Rows of a page or of one folder, or the error of the store.
pub(super) type Rows = Result<Vec<FileRow>, gristmill_store::Error>;

/// The reads of one stage.
pub(super) struct PlannedReads {
    batches: Mutex<Box<dyn Iterator<Item = Rows> + Send>>,
    /// The part of a file that is read, by its size.
    scope: Box<dyn Fn(u64) -> Option<HashScope> + Send + Sync>,
    /// Whether the hash of each file is stored, because its samples do not distinguish it from another file.
    keeps_hashes: bool,
    links: HashMap<i64, Vec<i64>>,
    reader: Arc<Reader>,
    queue: Arc<CatalogQueue>,
    roots: Arc<OpenRoots>,
}

impl PlannedReads {
    /// Reads `batches`, each of files of one folder. Returns when all results are written.
    pub(super) fn run(
        run: &mut ScanRun<'_>,
        plan: Plan,
        batches: impl Iterator<Item = Rows> + Send + 'static,
        (scope, keeps_hashes): (impl Fn(u64) -> Option<HashScope> + Send + Sync + 'static, bool),
    ) -> Result<()> {
        run.summary.rehashed_files += plan.rehashed;
        add(&run.handle.to_read, plan.ids.len() as u64);
        add(&run.handle.bytes_to_read, plan.bytes);
        if plan.ids.is_empty() {
            return Ok(());
        }
        let reads = Arc::new(PlannedReads {
            batches: Mutex::new(Box::new(batches)),
            scope: Box::new(scope),
            keeps_hashes,
            links: plan.links,
            reader: run.reader.clone(),
            queue: run.queue.clone(),
            roots: run.open_roots.clone(),
        });
        let pool = run.pool("read")?;
        for _ in 0..run.workers {
            let reads = reads.clone();
            // Refused only if the pool was cancelled.
            let _ = pool.submit(move |_| reads.read_batches());
        }
        run.finish(&pool)?;
        // The next stage starts from committed rows.
        run.queue.flush();
        run.update_totals()
    }

    fn read_batches(&self) -> TaskResult<()> {
        while !self.reader.is_cancelled() {
            let Some(batch) = lock(&self.batches).next() else { break };
            self.read_batch(batch?)?;
        }
        Ok(())
    }

    fn read_batch(&self, batch: Vec<FileRow>) -> TaskResult<()> {
        let _busy = BusyGuard::new(self.reader.handle());
        let Some(first) = batch.first() else { return Ok(()) };
        let Some(open) = self.roots.get(&first.root) else { return Ok(()) };
        let follow_links = open.root.follow_links;
        let folder = open.folder.open_below(first.path.parent().unwrap_or(Path::new("")), follow_links);
        let read = match &folder {
            Ok(folder) => self.reader.read_all(folder, follow_links, batch, &self.scope),
            Err(error) => {
                let read = batch.iter().map(|row| ReadFile::unread(&row.stat, error)).collect::<Vec<_>>();
                batch.into_iter().zip(read).collect()
            }
        };
        let found = read.into_iter().flat_map(|(row, read)| self.hashes_of(open, &row, read));
        self.queue.add_hashes(found.collect())
    }

    /// Returns the results to be written for a file that was read, and for other names of its inode.
    fn hashes_of(&self, open: &OpenRoot, row: &FileRow, read: ReadFile) -> Vec<FileHash> {
        if !open.covers(&row.path) && !read.is_same(&row.stat) {
            add(&self.reader.handle().counters.uncompared, 1);
            return Vec::new();
        }
        if let ReadResult::Failed(error) = &read.result {
            self.reader.handle().counters.record_error(&open.root.path.join(&row.path), error);
        }
        let is_same = self.reader.count(&row.stat, &read);
        let ReadFile { stat, mut result, racy } = read;
        if let ReadResult::Content(digest) = &mut result
            && self.keeps_hashes
        {
            digest.samples = None;
        }
        let mut found = Vec::new();
        // Other names of the inode have the same content. If this name is missing or unreadable, they are left to the
        // next scan, which chooses another name.
        if is_same {
            for &id in self.links.get(&row.id).into_iter().flatten() {
                let (file, result) = (FileRef::Row(id), result.clone());
                found.push(FileHash { file, stat: row.stat, result, differs: true, racy });
            }
        }
        let differs = !is_same || row.failed;
        found.push(FileHash { file: FileRef::Row(row.id), stat, result, differs, racy });
        found
    }
}

/// Fetches the rows of a plan that are in reachable roots, page by page. `ids` are sorted.
pub(super) fn pages(
    store: &Store,
    ids: Arc<Vec<i64>>,
    roots: Arc<OpenRoots>,
) -> impl Iterator<Item = Rows> + Send + 'static {
    let store = store.clone();
    let (mut after, mut position) = (Some(0), 0);
    std::iter::from_fn(move || {
        let page = store.catalog().page(after?, PAGE_ROWS, |row| {
            // Rows are sorted by id too, so one pass over the plan is enough.
            while ids.get(position).is_some_and(|id| *id < row.id) {
                position += 1;
            }
            ids.get(position) == Some(&row.id) && roots.contains_key(&row.root)
        });
        Some(match page {
            Ok((rows, next)) => {
                after = next.filter(|_| position < ids.len());
                Ok(rows)
            }
            Err(error) => {
                after = None;
                Err(error)
            }
        })
    })
}
