//! Models the files on the disk by a naive walk and a byte comparison.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use gristmill_store::catalog::Stat;

use crate::rules::{Ignores, Rules};

/// A file as it is on the disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Version {
    pub(crate) bytes: Rc<Vec<u8>>,
    /// Identifier of the filesystem, which does not depend on the mount point.
    pub(crate) filesystem: u64,
    pub(crate) inode: u64,
    pub(crate) links: u64,
    pub(crate) mtime_ns: i64,
    /// Change time. A file with another change time must be examined again.
    ctime_ns: i64,
    /// Bytes allocated on the disk.
    pub(crate) allocated: u64,
    /// Whether it was reached through a symbolic link.
    pub(crate) via_link: bool,
}

impl Version {
    fn read(path: &Path, metadata: &Metadata, via_link: bool) -> Option<Self> {
        Some(Version {
            bytes: Rc::new(fs::read(path).ok()?),
            filesystem: rustix::fs::statvfs(path).ok()?.f_fsid,
            inode: metadata.ino(),
            links: metadata.nlink(),
            mtime_ns: mtime_ns(metadata),
            ctime_ns: metadata.ctime() * 1_000_000_000 + metadata.ctime_nsec(),
            allocated: metadata.blocks() * 512,
            via_link,
        })
    }

    /// Whether both are the same inode of one disk, whatever their contents.
    pub(crate) fn has_same_inode(&self, other: &Version) -> bool {
        (self.filesystem, self.inode) == (other.filesystem, other.inode)
    }

    /// Whether it is the same file with the same content.
    pub(crate) fn is_same(&self, other: &Version) -> bool {
        let parts =
            |version: &Version| (version.inode, version.links, version.mtime_ns, version.ctime_ns, version.via_link);
        parts(self) == parts(other) && self.bytes == other.bytes
    }
}

pub(crate) fn mtime_ns(metadata: &Metadata) -> i64 {
    metadata.mtime() * 1_000_000_000 + metadata.mtime_nsec()
}

/// The files of a root, by path relative to it.
pub(crate) type Files = BTreeMap<PathBuf, Version>;

pub(crate) fn is_same(files: &Files, others: &Files) -> bool {
    files.len() == others.len() && files.iter().zip(others).all(|((a, file), (b, other))| a == b && file.is_same(other))
}

/// Returns the current files of a root that match `rules`. `roots` are the paths of all roots.
pub(crate) fn files(root: &Path, rules: &Rules, follow: bool, roots: &[PathBuf]) -> Files {
    let Ok(metadata) = fs::metadata(root) else { return Files::new() };
    let mut walk = Walk {
        root,
        rules,
        roots,
        device: metadata.dev(),
        files: Files::new(),
        links: BTreeSet::new(),
        visited: HashSet::new(),
    };
    walk.folder(Path::new(""), Ignores::new(), false);
    while follow && let Some(link) = walk.links.pop_first() {
        walk.link(link);
    }
    walk.files
}

struct Walk<'a> {
    root: &'a Path,
    rules: &'a Rules,
    roots: &'a [PathBuf],
    device: u64,
    files: Files,
    links: BTreeSet<PathBuf>,
    visited: HashSet<(u64, u64)>,
}

impl Walk<'_> {
    fn folder(&mut self, path: &Path, mut ignores: Ignores, via_link: bool) {
        let full = self.root.join(path);
        if via_link {
            let is_root = fs::canonicalize(&full).is_ok_and(|full| self.roots.contains(&full));
            let new = fs::metadata(&full).is_ok_and(|own| self.visited.insert((own.dev(), own.ino())));
            if is_root || !new {
                return;
            }
        }
        if let Ok(line) = fs::read_to_string(full.join(".gitignore")) {
            ignores.push((path.to_path_buf(), line.trim().to_owned()));
        }
        for entry in fs::read_dir(&full).expect("a folder") {
            let name = entry.expect("an entry").file_name();
            let (path, full) = (path.join(&name), full.join(&name));
            let metadata = fs::symlink_metadata(&full).expect("its metadata");
            if metadata.is_symlink() {
                if self.rules.matches_folder(&path, &ignores) {
                    self.links.insert(path);
                }
            } else if metadata.is_dir() {
                let elsewhere = self.rules.one_file_system && metadata.dev() != self.device;
                let is_root = self.roots.contains(&full);
                let is_included = self.rules.matches_folder(&path, &ignores) && !self.rules.is_too_deep(&path);
                if !elsewhere && !is_root && is_included {
                    self.folder(&path, ignores.clone(), via_link);
                }
            } else if metadata.is_file() && self.rules.matches_file(&path, &ignores) {
                self.file(path, &full, &metadata, via_link);
            }
        }
    }

    fn file(&mut self, path: PathBuf, full: &Path, metadata: &Metadata, via_link: bool) {
        if self.rules.matches_stat(metadata.len(), mtime_ns(metadata)) {
            self.files.insert(path, Version::read(full, metadata, via_link).expect("its bytes"));
        }
    }

    fn link(&mut self, path: PathBuf) {
        let full = self.root.join(&path);
        let Ok(target) = fs::canonicalize(&full) else { return };
        let Ok(metadata) = fs::metadata(&full) else { return };
        // Files inside a root are found by the walk of that root.
        if full.starts_with(&target) || self.roots.iter().any(|root| target.starts_with(root)) {
            return;
        }
        if metadata.is_dir() {
            if !self.rules.is_too_deep(&path) {
                self.folder(&path, Ignores::new(), true);
            }
        } else if metadata.is_file() && self.rules.matches_file(&path, &Ignores::new()) {
            self.file(path, &full, &metadata, true);
        }
    }
}

/// An expected duplicate group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ExpectedGroup {
    /// Number of copies. Several names of one inode are one copy.
    pub(crate) copies: u64,
    /// Allocated bytes that are freed if the copy that occupies most space is kept. Targets of symbolic links are kept
    /// too.
    pub(crate) reclaimable: u64,
}

/// Groups by the absolute paths of their members.
pub(crate) type Groups = BTreeMap<BTreeSet<PathBuf>, ExpectedGroup>;

/// Returns the groups of equal files. A file is compared only with files of the same `class`; empty files have one
/// class.
pub(crate) fn groups<'a>(files: impl IntoIterator<Item = (PathBuf, &'a Version, String)>) -> Groups {
    let mut alike: BTreeMap<(String, Rc<Vec<u8>>), Vec<_>> = BTreeMap::new();
    for (path, version, class) in files {
        let class = if version.bytes.is_empty() { "empty".to_owned() } else { class };
        alike.entry((class, version.bytes.clone())).or_default().push((path, version));
    }
    let mut groups = Groups::new();
    for members in alike.into_values() {
        let mut copies: BTreeMap<(u64, u64), (u64, bool)> = BTreeMap::new();
        for (_, version) in &members {
            let copy = copies.entry((version.filesystem, version.inode)).or_insert((version.allocated, true));
            copy.1 &= !version.via_link;
        }
        if copies.len() > 1 {
            let removable = || copies.values().filter(|(_, removable)| *removable).map(|(allocated, _)| *allocated);
            let all_removable = removable().count() == copies.len();
            let kept = if all_removable { removable().max().unwrap_or(0) } else { 0 };
            let reclaimable = removable().sum::<u64>() - kept;
            let paths = members.into_iter().map(|(path, _)| path).collect();
            groups.insert(paths, ExpectedGroup { copies: copies.len() as u64, reclaimable });
        }
    }
    groups
}

/// Returns device and inode of a file that is unchanged since it was recorded. `None` where timestamps are whole
/// seconds, because the file may have changed nevertheless.
pub(crate) fn inode_if_same(path: &Path, known: &Stat) -> Option<(u64, u64)> {
    let now = fs::metadata(path).ok()?;
    let ctime_ns = now.ctime() * 1_000_000_000 + now.ctime_nsec();
    let stat = (now.len(), mtime_ns(&now), ctime_ns, now.ino());
    let is_same = stat == (known.size, known.mtime_ns, known.ctime_ns, known.inode);
    (now.is_file() && is_same && ctime_ns % 1_000_000_000 != 0).then_some((now.dev(), now.ino()))
}
