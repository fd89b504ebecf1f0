//! Finds the copies of given files in the catalog.
//!
//! Owns which files are copies and how each is reported. The catalog is asked first; what it cannot decide is read.
//! Every reported copy is examined on the disk now: its metadata must be as the last scan recorded it. `disk` opens and
//! reads files below roots, `subject` the given files.

mod disk;
mod subject;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use gristmill_pool::CancelToken;
use gristmill_store::Store;
use gristmill_store::catalog::{Algorithm, LikeFile};
use serde::Serialize;

use self::disk::{Disk, OnDisk};
use self::subject::Subject;
use crate::coverage::{self, Coverage};
use crate::error::Result;
use crate::location::{self, Location};
use crate::progress::ScanHandle;
use crate::read::{HashScope, MAX_SMALL_SIZE, Throttle};

/// How copies are searched.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct CopiesOptions {
    /// Ends reading when it is cancelled. A given file that must itself be read after that is answered with
    /// [`FileAnswer::Failed`]. Files of the catalog that must be read after that are reported as possible copies.
    pub cancel: CancelToken,
}

/// The copies of several files.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Copies {
    /// The answer for each file, in the order of the request.
    #[serde(rename = "items")]
    pub files: Vec<FileAnswer>,
    /// Roots whose last scan had filters. Files that they exclude are not found.
    #[serde(serialize_with = "location::paths_of")]
    pub filtered_roots: Vec<PathBuf>,
    /// Completeness of the answers. `unread_files` are files that may be copies and could not be compared now, whether
    /// or not scans have compared them.
    #[serde(flatten)]
    pub coverage: Coverage,
}

/// The answer for one file.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub enum FileAnswer {
    /// Its copies.
    Found(FileCopies),
    /// Why there is no answer.
    Failed(FileError),
}

/// The copies of one file.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct FileCopies {
    /// Where the file is.
    #[serde(flatten)]
    pub location: Location,
    /// The file that was examined, if the path is a symbolic link.
    #[serde(serialize_with = "location::optional_path")]
    pub target: Option<PathBuf>,
    /// Size in bytes. All empty files are copies of each other.
    pub size: u64,
    /// Whether the catalog has the file, unchanged since its last scan.
    pub in_catalog: bool,
    /// Number of copies.
    pub copies: u64,
    /// Copies, other names of the file, and files that may be copies; each kind sorted by path.
    pub files: Vec<FoundCopy>,
    /// Whether no file remains that may be a copy.
    pub complete: bool,
}

/// A file that is a copy, or may be one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct FoundCopy {
    /// Whether it is a copy.
    pub state: CopyState,
    /// Where it is.
    #[serde(flatten)]
    pub location: Location,
    /// Why it is not known whether it is a copy.
    pub reason: Option<String>,
}

/// Whether a file is a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CopyState {
    /// All bytes are equal.
    Copy,
    /// It is the same file: a hard link, or another path that leads to it.
    SameFile,
    /// It may be a copy and could not be compared.
    Possible,
    /// It was or may have been a copy, and has changed since the last scan.
    Changed,
}

/// A given file without an answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct FileError {
    /// Where the file is.
    #[serde(flatten)]
    pub location: Location,
    /// What is wrong, and what to do.
    pub error: String,
}

/// Finds the copies of files in the catalog. The files may be in scanned folders or not; for a symbolic link its target
/// is examined. The file itself is not listed. Files are equal if all their bytes are equal, by size and cryptographic
/// hash. An error of one file does not affect the others.
pub fn copies(store: &Store, files: &[PathBuf], options: &CopiesOptions) -> Result<Copies> {
    let subjects: Vec<_> = files.iter().map(|file| Subject::open(file)).collect();
    let opened = || subjects.iter().flatten();
    let sizes: Vec<u64> = opened().map(|subject| subject.stat.size).collect();
    let inodes: Vec<u64> = opened().map(|subject| subject.stat.inode).collect();
    let alike = if sizes.is_empty() { Vec::new() } else { store.catalog().files_like(&sizes, &inodes)? };
    let roots = store.roots().list()?;
    let handle = Arc::new(ScanHandle::with_token(options.cancel.clone()));
    let mut search = Search {
        by_size: index(&alike, |file| file.stat.size),
        by_inode: index(&alike, |file| file.stat.inode),
        alike: &alike,
        throttle: Throttle::new(handle, None),
        disk: Disk::new(store, &roots),
        coverage: coverage::gaps(store, |_| true, |_| true)?,
    };
    let mut answers = Vec::with_capacity(files.len());
    for (file, subject) in files.iter().zip(subjects) {
        let found = subject.and_then(|subject| search.copies_of(subject));
        answers.push(found.map_or_else(
            |error| FileAnswer::Failed(FileError { location: Location::new(absolute(file), None), error }),
            FileAnswer::Found,
        ));
    }
    let mut coverage = search.coverage;
    coverage.conclude();
    coverage.complete &= answers.iter().all(|answer| matches!(answer, FileAnswer::Found(_)));
    let filtered_roots = roots.into_iter().filter(|root| root.filters.is_some()).map(|root| root.path).collect();
    Ok(Copies { files: answers, filtered_roots, coverage })
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf())
}

fn index(alike: &[LikeFile], key: impl Fn(&LikeFile) -> u64) -> HashMap<u64, Vec<usize>> {
    let mut index: HashMap<u64, Vec<usize>> = HashMap::new();
    for (position, file) in alike.iter().enumerate() {
        index.entry(key(file)).or_default().push(position);
    }
    index
}

struct Search<'a> {
    /// Files with the size, or the inode number, of a given file.
    alike: &'a [LikeFile],
    by_size: HashMap<u64, Vec<usize>>,
    by_inode: HashMap<u64, Vec<usize>>,
    throttle: Throttle,
    disk: Disk<'a>,
    coverage: Coverage,
}

impl Search<'_> {
    /// Returns an error if the file had to be read and could not be.
    fn copies_of(&mut self, mut subject: Subject) -> Result<FileCopies, String> {
        let alike = self.alike;
        let rows = |index: &HashMap<u64, Vec<usize>>, key: u64| -> Vec<&LikeFile> {
            index.get(&key).into_iter().flatten().filter_map(|at| alike.get(*at)).collect()
        };
        let mut found = Vec::new();
        let (mut own_names, mut in_catalog) = (Vec::new(), false);
        for row in rows(&self.by_inode, subject.stat.inode).into_iter().filter(|row| row.stat.inode != 0) {
            let path = self.disk.path(row);
            let is_itself = path == subject.path || path == subject.asked;
            if !is_itself && !matches!(self.disk.stat(row), OnDisk::File(now) if subject.is(&now)) {
                continue;
            }
            own_names.push(row.id);
            let is_valid = row.stat.is_same(&subject.stat);
            if is_valid {
                subject.learn(row);
            }
            if is_itself {
                in_catalog = is_valid;
            } else {
                found.push(self.found(row, CopyState::SameFile, None));
            }
        }
        let mut complete = true;
        for row in rows(&self.by_size, subject.stat.size) {
            // Its own row may have another inode number.
            if own_names.contains(&row.id) || self.disk.path(row) == subject.path {
                continue;
            }
            match self.compare(&mut subject, row)? {
                Verdict::Differs => {}
                Verdict::Equal => found.push(self.found(row, CopyState::Copy, None)),
                Verdict::Possible(reason) => {
                    complete = false;
                    self.coverage.unread_files += 1;
                    match self.coverage.absent_ids.contains(&row.root) {
                        true => self.coverage.unreachable_files += 1,
                        false => self.coverage.unreadable_files += 1,
                    }
                    found.push(self.found(row, CopyState::Possible, Some(reason)));
                }
                Verdict::Changed { reason, may_be_equal } => {
                    complete &= !may_be_equal;
                    self.coverage.unread_files += u64::from(may_be_equal);
                    found.push(self.found(row, CopyState::Changed, Some(reason)));
                }
            }
        }
        found.sort_by(|a, b| (a.state, &a.location).cmp(&(b.state, &b.location)));
        let copies = found.iter().filter(|file| file.state == CopyState::Copy).count() as u64;
        let root = self.disk.root_of(&subject.asked).or_else(|| self.disk.root_of(&subject.path));
        let target = subject.is_link.then_some(subject.path);
        let location = Location::new(subject.asked, root);
        Ok(FileCopies { location, target, size: subject.stat.size, in_catalog, copies, files: found, complete })
    }

    fn found(&self, row: &LikeFile, state: CopyState, reason: Option<String>) -> FoundCopy {
        FoundCopy { state, location: Location::new(self.disk.path(row), self.disk.root_path(row)), reason }
    }

    /// Compares a given file with one of the catalog that has its size.
    fn compare(&mut self, subject: &mut Subject, row: &LikeFile) -> Result<Verdict, String> {
        let known = match self.compare_known(subject, row)? {
            Some(false) => return Ok(Verdict::Differs),
            known => known.is_some(),
        };
        let now = match self.disk.stat(row) {
            OnDisk::File(now) => now,
            OnDisk::Gone if known => {
                return Ok(Verdict::Changed { reason: "no longer exists".to_owned(), may_be_equal: false });
            }
            OnDisk::Gone => return Ok(Verdict::Differs),
            OnDisk::Unknown(reason) if known => {
                return Ok(Verdict::Possible(format!("{reason}; equal when it was last scanned")));
            }
            OnDisk::Unknown(reason) => return Ok(Verdict::Possible(format!("could not be compared: {reason}"))),
        };
        if subject.is(&now) {
            // A row with an outdated inode number.
            return Ok(Verdict::Differs);
        }
        if now.size != subject.stat.size {
            return Ok(match known {
                true => Verdict::Changed { reason: "changed since the last scan".to_owned(), may_be_equal: false },
                false => Verdict::Differs,
            });
        }
        if !now.is_same(&row.stat) {
            return Ok(Verdict::Changed { reason: "changed since the last scan".to_owned(), may_be_equal: true });
        }
        if known { Ok(Verdict::Equal) } else { self.compare_read(subject, row) }
    }

    /// Returns whether the files are equal by what the catalog knows, or `None` if it does not know enough. Reads only
    /// the given file.
    fn compare_known(&self, subject: &mut Subject, row: &LikeFile) -> Result<Option<bool>, String> {
        let size = subject.stat.size;
        if size == 0 {
            return Ok(Some(true));
        }
        if row.racy {
            return Ok(None);
        }
        if let Some(samples) = row.samples
            && subject.samples(&self.throttle)? != samples
        {
            return Ok(Some(false));
        }
        match &row.hash {
            Some((algorithm, hash)) => Ok(Some(subject.hash(*algorithm, &self.throttle)? == hash)),
            None => Ok(None),
        }
    }

    /// Reads a file of the catalog and compares it.
    fn compare_read(&mut self, subject: &mut Subject, row: &LikeFile) -> Result<Verdict, String> {
        let algorithm = subject.known_algorithm().unwrap_or(Algorithm::Blake3);
        let samples = (row.stat.size > MAX_SMALL_SIZE).then_some(HashScope::Samples);
        for scope in samples.into_iter().chain([HashScope::Content(algorithm)]) {
            let read = match self.disk.read(row, scope, &self.throttle) {
                Ok(read) => read,
                Err(verdict) => return Ok(verdict),
            };
            let is_equal = match scope {
                HashScope::Samples => read.samples == Some(subject.samples(&self.throttle)?),
                HashScope::Content(algorithm) => read.hash.as_deref() == Some(subject.hash(algorithm, &self.throttle)?),
            };
            if !is_equal {
                return Ok(Verdict::Differs);
            }
        }
        Ok(Verdict::Equal)
    }
}

/// Result of comparing two files.
enum Verdict {
    Differs,
    Equal,
    /// It could not be compared.
    Possible(String),
    Changed {
        reason: String,
        may_be_equal: bool,
    },
}
