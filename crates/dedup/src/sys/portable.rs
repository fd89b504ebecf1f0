//! Fallback for other systems: uses paths and the standard library.

use std::ffi::OsStr;
use std::fs::{self, File, FileType, Metadata};
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use gristmill_store::catalog::{LinkKind, Stat};

use super::{Advice, EntryKind, EntryStat};

/// A folder identified by its path.
#[derive(Debug)]
pub(crate) struct Folder(PathBuf);

#[cfg_attr(test, allow(dead_code, reason = "on Linux only tests use it"))]
impl Folder {
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        if fs::metadata(path)?.is_dir() {
            return Ok(Folder(path.to_path_buf()));
        }
        Err(io::ErrorKind::NotADirectory.into())
    }

    pub(crate) fn open_below(&self, path: &Path, follow: bool) -> io::Result<Self> {
        let mut reached = self.0.clone();
        for part in path.components() {
            reached.push(part);
            if !follow && fs::symlink_metadata(&reached)?.is_symlink() {
                return Err(io::ErrorKind::NotADirectory.into());
            }
        }
        Folder::open(&reached)
    }

    pub(crate) fn list(&self, mut visit: impl FnMut(&OsStr, EntryKind) -> ControlFlow<()>) -> io::Result<()> {
        for entry in fs::read_dir(&self.0)? {
            let entry = entry?;
            if visit(&entry.file_name(), entry_kind(entry.file_type()?)).is_break() {
                break;
            }
        }
        Ok(())
    }

    pub(crate) fn stat(&self, name: &OsStr, follow: bool) -> io::Result<EntryStat> {
        let path = self.0.join(name);
        Ok(entry_stat(&if follow { fs::metadata(path)? } else { fs::symlink_metadata(path)? }))
    }

    /// Always false: the standard library does not report this.
    pub(crate) fn is_virtual(&self) -> bool {
        false
    }

    /// Always `None`: the standard library does not report this.
    pub(crate) fn filesystem(&self) -> Option<String> {
        None
    }

    pub(crate) fn link_target(&self, name: &OsStr) -> io::Result<Vec<u8>> {
        Ok(fs::read_link(self.0.join(name))?.into_os_string().into_encoded_bytes())
    }

    pub(crate) fn own_stat(&self) -> io::Result<Stat> {
        Ok(entry_stat(&fs::metadata(&self.0)?).stat)
    }

    pub(crate) fn open_file(&self, name: &OsStr) -> io::Result<File> {
        match self.stat(name, false)?.kind {
            EntryKind::File => self.open_linked_file(name),
            _ => Err(io::Error::other("no longer a regular file")),
        }
    }

    pub(crate) fn open_linked_file(&self, name: &OsStr) -> io::Result<File> {
        File::open(self.0.join(name))
    }
}

#[cfg_attr(test, allow(dead_code, reason = "on Linux only tests use it"))]
pub(crate) fn file_stat(file: &File) -> io::Result<EntryStat> {
    Ok(entry_stat(&file.metadata()?))
}

#[cfg_attr(test, allow(dead_code, reason = "on Linux only tests use it"))]
pub(crate) fn path_stat(path: &Path) -> io::Result<EntryStat> {
    Ok(entry_stat(&fs::metadata(path)?))
}

/// Always false: refused links are reported as `NotADirectory`.
#[cfg_attr(test, allow(dead_code, reason = "on Linux only tests use it"))]
pub(crate) fn is_link_error(_: &io::Error) -> bool {
    false
}

#[cfg_attr(test, allow(dead_code, reason = "on Linux only tests use it"))]
pub(crate) fn advise(_: &File, _: Advice) {}

/// Always false: the standard library cannot read only from the page cache.
#[cfg_attr(test, allow(dead_code, reason = "on Linux only tests use it"))]
pub(crate) fn read_cached(_: &File, _: &mut [u8]) -> bool {
    false
}

fn entry_kind(file_type: FileType) -> EntryKind {
    match file_type {
        kind if kind.is_file() => EntryKind::File,
        kind if kind.is_dir() => EntryKind::Folder,
        kind if kind.is_symlink() => EntryKind::Link,
        _ => EntryKind::Special,
    }
}

fn entry_stat(metadata: &Metadata) -> EntryStat {
    let since = metadata.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    let mtime_ns = since.and_then(|since| i64::try_from(since.as_nanos()).ok()).unwrap_or(0);
    let size = metadata.len();
    EntryStat {
        kind: entry_kind(metadata.file_type()),
        stat: with_identity(metadata, Stat { size, mtime_ns, ..Stat::default() }),
    }
}

#[cfg(unix)]
fn with_identity(metadata: &Metadata, stat: Stat) -> Stat {
    use std::os::unix::fs::MetadataExt;
    let time = |seconds: i64, rest: i64| seconds.saturating_mul(1_000_000_000).saturating_add(rest);
    Stat {
        mtime_ns: time(metadata.mtime(), metadata.mtime_nsec()),
        ctime_ns: time(metadata.ctime(), metadata.ctime_nsec()),
        inode: metadata.ino(),
        device: metadata.dev(),
        allocated: metadata.blocks().saturating_mul(512),
        links: if metadata.nlink() > 1 { LinkKind::HardLinked } else { LinkKind::Single },
        ..stat
    }
}

/// Without inode numbers, size and time identify a file, and each name is a separate file.
#[cfg(not(unix))]
fn with_identity(_: &Metadata, stat: Stat) -> Stat {
    Stat { allocated: stat.size, links: LinkKind::Single, ..stat }
}
