//! Finds the files of some folders without a copy elsewhere: what is not backed up yet.
//!
//! Owns which files are listed, which are undecided, and when the list is complete. No file is read: `decide` compares
//! what the catalog knows about contents. `sides` decides to which side of the question a file belongs.

mod decide;
mod sides;

use std::collections::HashMap;
use std::path::PathBuf;

use gristmill_store::{Store, UtcTime};
use serde::Serialize;

use self::decide::Found;
use self::sides::{COMPARED, Sides};
use crate::coverage::{self, Coverage, join};
use crate::error::{Error, Result};
use crate::location::{self, Location};
use crate::read::MAX_SMALL_SIZE;
use crate::roots;

/// Selects the files to list.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct UniqueOptions {
    /// Folders whose files are listed: paths or names of roots, or paths of folders in roots. At least one.
    pub inside: Vec<PathBuf>,
    /// Folders in which copies count. If empty, copies count in all scanned folders outside `inside`. If a folder is
    /// inside another one, its files belong to the innermost folder that is named.
    pub not_in: Vec<PathBuf>,
    /// Minimum size of a file in bytes. With 0, empty files are compared too.
    pub min_size: u64,
}

impl Default for UniqueOptions {
    fn default() -> Self {
        UniqueOptions { inside: Vec::new(), not_in: Vec::new(), min_size: 1 }
    }
}

/// The files without a copy, as row ids. Their paths are fetched in pages. 24 bytes per file.
#[derive(Clone, Debug)]
pub struct UniqueFiles {
    store: Store,
    found: Vec<Found>,
    summary: UniqueSummary,
}

/// Totals of the files without a copy, and how complete they are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct UniqueSummary {
    /// Number of files without a copy. Each name of a file with several names counts.
    pub unique_files: u64,
    /// Total size of these files.
    pub unique_bytes: u64,
    /// Number of files that may have a copy: the catalog does not know enough to exclude it.
    pub undecided_files: u64,
    /// Total size of these files.
    pub undecided_bytes: u64,
    /// Number of all files in the folders that match the options.
    pub files: u64,
    /// Total size of these files.
    pub bytes: u64,
    /// Roots whose last scan had filters. Files that they exclude are neither listed nor found as copies.
    #[serde(serialize_with = "location::paths_of")]
    pub filtered_roots: Vec<PathBuf>,
    /// Completeness of both sides. `unread_files` are the undecided files; `unreachable_files` those of them for which
    /// no possible copy, or not the file itself, can be reached now.
    #[serde(flatten)]
    pub coverage: Coverage,
}

/// A file without a known copy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct UniqueFile {
    /// Where the file is.
    #[serde(flatten)]
    pub location: Location,
    /// Size in bytes.
    pub size: u64,
    /// Modification time.
    pub mtime: UtcTime,
    /// Whether it has no copy, or may have one.
    pub state: UniqueState,
    /// Whether a folder in which copies count has another name of the same file, which is not a copy.
    pub hard_link: bool,
}

/// Whether a listed file has no copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum UniqueState {
    /// No other file has its content.
    Unique,
    /// A file of the same size was not compared with it.
    Undecided,
}

/// Finds the files of some folders without a copy in others, those without a copy first, the largest first.
///
/// A copy is a file with equal bytes that is not the same file: several names of one inode, also hard links, are one
/// file, because damage to one damages all. A file is undecided if it has no known copy, and a file of the same size is
/// not known to differ.
pub fn unique(store: &Store, options: &UniqueOptions) -> Result<UniqueFiles> {
    if options.inside.is_empty() {
        return Err(Error::Invalid("no folder is named whose files are to be listed".to_owned()));
    }
    let folders = |names: &[PathBuf]| names.iter().map(|name| roots::folder(store, name)).collect::<Result<Vec<_>>>();
    let sides = Sides::new(folders(&options.inside)?, folders(&options.not_in)?)?;
    let all = store.roots().list()?;
    let coverage = coverage::gaps(store, |root| sides.touch(&root.path), |folder| sides.touch(folder))?;
    let in_roots = sides.in_roots(&all, &coverage.absent_ids);
    let select = |root, path: &_| in_roots.get(&root)?.label(path);
    let mut files = store.catalog().known_contents(options.min_size, MAX_SMALL_SIZE, select)?;
    files.sort_unstable_by_key(|file| (file.size, file.id));
    let filtered = all.into_iter().filter(|root| root.filters.is_some() && sides.touch(&root.path));
    let filtered_roots = filtered.map(|root| root.path).collect();
    let mut summary = UniqueSummary { coverage, filtered_roots, ..UniqueSummary::default() };
    for file in files.iter().filter(|file| file.label & COMPARED == 0) {
        summary.files += 1;
        summary.bytes += file.size;
    }
    let mut found = Vec::new();
    for alike in files.chunk_by(|a, b| a.size == b.size) {
        decide::decide(alike, &mut found);
    }
    drop(files);
    for file in &found {
        summary.add(file);
    }
    summary.coverage.conclude();
    found.sort_unstable_by_key(|file| (file.state, u64::MAX - file.size, file.id));
    Ok(UniqueFiles { store: store.clone(), found, summary })
}

impl UniqueSummary {
    fn add(&mut self, file: &Found) {
        let (files, bytes) = match file.state {
            UniqueState::Unique => (&mut self.unique_files, &mut self.unique_bytes),
            UniqueState::Undecided => {
                self.coverage.unread_files += 1;
                self.coverage.unreadable_files += u64::from(file.failed);
                self.coverage.unreachable_files += u64::from(file.unreachable && !file.failed);
                (&mut self.undecided_files, &mut self.undecided_bytes)
            }
        };
        *files += 1;
        *bytes += file.size;
    }
}

impl UniqueFiles {
    /// Returns the totals.
    pub fn summary(&self) -> &UniqueSummary {
        &self.summary
    }

    /// Returns the number of listed files: those without a copy, then the undecided ones.
    pub fn len(&self) -> usize {
        self.found.len()
    }

    /// Returns whether no file is listed.
    pub fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    /// Returns up to `limit` files from position `offset` on. Files whose rows were deleted since are left out.
    pub fn page(&self, offset: usize, limit: usize) -> Result<Vec<UniqueFile>> {
        let end = offset.saturating_add(limit).min(self.found.len());
        let page = self.found.get(offset..end).unwrap_or_default();
        let roots = self.store.roots().list()?;
        let roots: HashMap<i64, &PathBuf> = roots.iter().map(|root| (root.id, &root.path)).collect();
        let ids: Vec<i64> = page.iter().map(|file| file.id).collect();
        let mut rows = self.store.catalog().files_at(&ids)?.into_iter().peekable();
        let mut files = Vec::with_capacity(page.len());
        for file in page {
            let Some(row) = rows.next_if(|row| row.id == file.id) else { continue };
            let Some(&root) = roots.get(&row.root) else { continue };
            files.push(UniqueFile {
                location: Location::new(join(root, &row.path), Some(root.clone())),
                size: file.size,
                mtime: UtcTime::from_micros(row.stat.mtime_ns.div_euclid(1_000)),
                state: file.state,
                hard_link: file.hard_link,
            });
        }
        Ok(files)
    }
}
