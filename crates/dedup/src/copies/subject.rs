//! The files whose copies are searched.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use gristmill_store::catalog::{Algorithm, LikeFile, ReadResult, Stat, prefix};

use super::absolute;
use crate::read::{self, HashScope, MAX_SMALL_SIZE, Throttle};
use crate::sys::{self, EntryKind, Folder};

/// A file, and what is known about its content.
pub(super) struct Subject {
    /// Absolute path as it was given.
    pub(super) asked: PathBuf,
    /// Path without symbolic links.
    pub(super) path: PathBuf,
    /// Whether the last name of the given path is a symbolic link.
    pub(super) is_link: bool,
    pub(super) stat: Stat,
    samples: Option<i64>,
    hashes: BTreeMap<Algorithm, Vec<u8>>,
}

impl Subject {
    /// Examines a file without reading it. Returns what is wrong with it.
    pub(super) fn open(asked: &Path) -> Result<Self, String> {
        let unreadable = |error: io::Error| match error.kind() {
            ErrorKind::NotFound => "no such file".to_owned(),
            _ => format!("cannot be examined: {error}"),
        };
        let is_link = std::fs::symlink_metadata(asked).map_err(unreadable)?.is_symlink();
        let path = std::fs::canonicalize(asked).map_err(|error| match error.kind() {
            ErrorKind::NotFound if is_link => "a symbolic link whose target does not exist".to_owned(),
            _ => unreadable(error),
        })?;
        let found = sys::path_stat(&path).map_err(unreadable)?;
        match found.kind {
            EntryKind::File => {}
            EntryKind::Folder => return Err("a folder; `gristmill folders` compares folders".to_owned()),
            _ => return Err("not a regular file".to_owned()),
        }
        let (samples, hashes) = (None, BTreeMap::new());
        Ok(Subject { asked: absolute(asked), path, is_link, stat: found.stat, samples, hashes })
    }

    /// Whether these are the metadata of this file.
    pub(super) fn is(&self, other: &Stat) -> bool {
        self.stat.inode != 0 && (self.stat.device, self.stat.inode) == (other.device, other.inode)
    }

    /// Adopts what the catalog knows about the content. The row must be valid.
    pub(super) fn learn(&mut self, row: &LikeFile) {
        if row.racy {
            return;
        }
        self.samples = self.samples.or(row.samples);
        if let Some((algorithm, hash)) = &row.hash {
            self.add_hash(*algorithm, hash.clone());
        }
    }

    fn add_hash(&mut self, algorithm: Algorithm, hash: Vec<u8>) {
        if algorithm == Algorithm::Blake3 && self.stat.size <= MAX_SMALL_SIZE {
            self.samples = Some(prefix(&hash).cast_signed());
        }
        self.hashes.insert(algorithm, hash);
    }

    /// An algorithm with which the content was hashed.
    pub(super) fn known_algorithm(&self) -> Option<Algorithm> {
        self.hashes.keys().next().copied()
    }

    /// Returns the samples, and reads the file if need be.
    pub(super) fn samples(&mut self, throttle: &Throttle) -> Result<i64, String> {
        let scope = match self.stat.size {
            0..=MAX_SMALL_SIZE => HashScope::Content(Algorithm::Blake3),
            _ => HashScope::Samples,
        };
        if self.samples.is_none() {
            self.read(scope, throttle)?;
        }
        self.samples.ok_or_else(|| "has no samples".to_owned())
    }

    /// Returns the hash of the content, and reads the file if need be.
    pub(super) fn hash(&mut self, algorithm: Algorithm, throttle: &Throttle) -> Result<&[u8], String> {
        if !self.hashes.contains_key(&algorithm) {
            self.read(HashScope::Content(algorithm), throttle)?;
        }
        self.hashes.get(&algorithm).map(Vec::as_slice).ok_or_else(|| "was not hashed".to_owned())
    }

    fn read(&mut self, scope: HashScope, throttle: &Throttle) -> Result<(), String> {
        let open = || self.open_file();
        let read = read::read_file(None, open, &self.stat, scope, throttle).ok_or("reading was cancelled")?;
        if read.is_read() && !read.is_same(&self.stat) {
            return Err("changed while it was compared; try again".to_owned());
        }
        match read.result {
            ReadResult::Content(digest) => self.add_hash(digest.algorithm, digest.hash),
            ReadResult::Samples(samples) => self.samples = Some(samples),
            ReadResult::Gone => return Err("was removed while it was compared".to_owned()),
            ReadResult::Failed(error) => return Err(format!("cannot be read: {error}")),
        }
        Ok(())
    }

    /// Opens the file. If its folder cannot be listed, it is opened by its path.
    fn open_file(&self) -> io::Result<File> {
        let folder = self.path.parent().map(Folder::open);
        match (folder, self.path.file_name()) {
            (Some(Ok(folder)), Some(name)) => folder.open_file(name),
            _ => File::open(&self.path),
        }
    }
}
