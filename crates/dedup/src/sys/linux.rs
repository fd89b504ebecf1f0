//! Linux implementation: all calls are relative to open folders.

mod filesystem;

use std::cell::Cell;
use std::ffi::{CStr, OsStr};
use std::fs::File;
use std::io::{self, IoSliceMut};
use std::num::NonZero;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};

use gristmill_store::catalog::{LinkKind, Stat};
use rustix::fs::{self, AtFlags, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::{Errno, ReadWriteFlags, preadv2};

use super::{Advice, EntryKind, EntryStat};

/// Maximum length of a path in one call, below the system's limit of 4,096.
const MAX_PATH_BYTES: usize = 3_500;

/// Buffer size for listing a folder, in bytes.
const DIR_BUFFER_SIZE: usize = 64 << 10;

/// A folder that is held open by a file descriptor.
#[derive(Debug)]
pub(crate) struct Folder(OwnedFd);

impl Folder {
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        Ok(Folder(fs::open(path, folder_flags(), Mode::empty())?))
    }

    /// Opens a folder below this one. Refuses symbolic links on the way unless `follow` is set.
    pub(crate) fn open_below(&self, path: &Path, follow: bool) -> io::Result<Self> {
        let bytes = path.as_os_str().as_bytes();
        if bytes.is_empty() {
            return Ok(Folder(fs::openat(&self.0, ".", folder_flags(), Mode::empty())?));
        }
        if bytes.len() <= MAX_PATH_BYTES {
            return self.open_step(path, follow);
        }
        // Splits a long path into steps that one call can open.
        let mut reached: Option<Folder> = None;
        let mut step = std::path::PathBuf::new();
        for part in path.components() {
            if step.as_os_str().len() + part.as_os_str().len() > MAX_PATH_BYTES {
                reached = Some(reached.as_ref().unwrap_or(self).open_step(&step, follow)?);
                step.clear();
            }
            step.push(part);
        }
        reached.as_ref().unwrap_or(self).open_step(&step, follow)
    }

    fn open_step(&self, path: &Path, follow: bool) -> io::Result<Self> {
        if follow {
            return Ok(Folder(fs::openat(&self.0, path, folder_flags(), Mode::empty())?));
        }
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        match fs::openat2(&self.0, path, folder_flags(), Mode::empty(), resolve) {
            Ok(fd) => Ok(Folder(fd)),
            // The kernel is too old, or a sandbox does not allow the call.
            Err(Errno::NOSYS | Errno::PERM) => self.open_each(path),
            Err(error) => Err(error.into()),
        }
    }

    fn open_each(&self, path: &Path) -> io::Result<Self> {
        let mut reached: Option<Folder> = None;
        for part in path.components() {
            let Component::Normal(name) = part else { return Err(Errno::INVAL.into()) };
            let here = reached.as_ref().map_or(&self.0, |folder| &folder.0);
            let flags = folder_flags() | OFlags::NOFOLLOW;
            reached = Some(Folder(fs::openat(here, name, flags, Mode::empty())?));
        }
        reached.ok_or_else(|| Errno::INVAL.into())
    }

    /// Lists the entries except `.` and `..`, in the order of the folder, until `visit` breaks.
    pub(crate) fn list(&self, mut visit: impl FnMut(&OsStr, EntryKind) -> ControlFlow<()>) -> io::Result<()> {
        thread_local! {
            /// Buffer of each worker. The allocator would return a buffer of this size to the system after each use.
            static DIR_BUFFER: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
        }
        let mut buffer = DIR_BUFFER.take();
        buffer.reserve(DIR_BUFFER_SIZE);
        let mut entries = fs::RawDir::new(&self.0, buffer.spare_capacity_mut());
        let ended = loop {
            let entry = match entries.next() {
                None => break Ok(()),
                Some(Err(error)) => break Err(error.into()),
                Some(Ok(entry)) => entry,
            };
            let name: &CStr = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            if visit(OsStr::from_bytes(name.to_bytes()), entry_kind(entry.file_type())).is_break() {
                break Ok(());
            }
        };
        DIR_BUFFER.set(buffer);
        ended
    }

    pub(crate) fn stat(&self, name: &OsStr, follow: bool) -> io::Result<EntryStat> {
        let flags = if follow { AtFlags::empty() } else { AtFlags::SYMLINK_NOFOLLOW };
        Ok(entry_stat(&fs::statat(&self.0, name, flags)?))
    }

    /// Whether the folder is on a virtual filesystem that the kernel generates.
    pub(crate) fn is_virtual(&self) -> bool {
        /// proc, sys, cgroup, cgroup2, debug, trace, bpf, pstore, security, config, efi variables, devpts, mqueue.
        const VIRTUAL_TYPES: [u32; 13] = [
            0x9fa0,
            0x6265_6572,
            0x27_e0eb,
            0x6367_7270,
            0x6462_6720,
            0x7472_6163,
            0xcafe_4a11,
            0x6165_676c,
            0x7363_6673,
            0x6265_6570,
            0xde5e_81e4,
            0x1cd1,
            0x1980_0202,
        ];
        fs::fstatfs(&self.0).is_ok_and(|found| VIRTUAL_TYPES.contains(&(found.f_type as u32)))
    }

    /// Identity of the filesystem, which does not depend on when and where it is mounted, or `None` if it has none.
    pub(crate) fn filesystem(&self) -> Option<String> {
        filesystem::identity(&self.0)
    }

    pub(crate) fn link_target(&self, name: &OsStr) -> io::Result<Vec<u8>> {
        Ok(fs::readlinkat(&self.0, name, Vec::new())?.into_bytes())
    }

    pub(crate) fn own_stat(&self) -> io::Result<Stat> {
        Ok(entry_stat(&fs::fstat(&self.0)?).stat)
    }

    /// Opens a file in the folder for reading. Does not wait for the other end of a pipe, does not follow symbolic
    /// links, and preserves the access time if permitted.
    pub(crate) fn open_file(&self, name: &OsStr) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let open = |flags| fs::openat(&self.0, name, flags, Mode::empty());
        // Only the owner of a file may open it without changing its access time.
        let fd = open(flags | OFlags::NOATIME).or_else(|error| match error {
            Errno::PERM => open(flags),
            error => Err(error),
        })?;
        Ok(File::from(fd))
    }

    pub(crate) fn open_linked_file(&self, name: &OsStr) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        Ok(File::from(fs::openat(&self.0, name, flags, Mode::empty())?))
    }

    #[cfg(test)]
    pub(crate) fn make_folder(&self, name: &OsStr) -> io::Result<()> {
        Ok(fs::mkdirat(&self.0, name, Mode::RWXU)?)
    }
}

fn folder_flags() -> OFlags {
    OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC
}

pub(crate) fn file_stat(file: &File) -> io::Result<EntryStat> {
    Ok(entry_stat(&fs::fstat(file.as_fd())?))
}

/// Returns the metadata of a path, following symbolic links.
pub(crate) fn path_stat(path: &Path) -> io::Result<EntryStat> {
    Ok(entry_stat(&fs::stat(path)?))
}

/// Whether an error means that a symbolic link was refused.
pub(crate) fn is_link_error(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::LOOP.raw_os_error())
}

/// Tells the kernel how a file will be read. Errors are ignored, because this is only a hint.
pub(crate) fn advise(file: &File, advice: Advice) {
    let (advice, offset, length) = match advice {
        Advice::Sequential => (fs::Advice::Sequential, 0, 0),
        Advice::Random => (fs::Advice::Random, 0, 0),
        Advice::WillNeed(offset, length) => (fs::Advice::WillNeed, offset, length),
    };
    let _ = fs::fadvise(file, offset, NonZero::new(length), advice);
}

/// Fills the buffer from the beginning of the file, if that is in the page cache. Returns whether it was filled.
pub(crate) fn read_cached(file: &File, buffer: &mut [u8]) -> bool {
    let length = buffer.len();
    let mut slices = [IoSliceMut::new(buffer)];
    preadv2(file, &mut slices, 0, ReadWriteFlags::NOWAIT).is_ok_and(|read| read == length)
}

fn entry_kind(file_type: FileType) -> EntryKind {
    match file_type {
        FileType::RegularFile => EntryKind::File,
        FileType::Directory => EntryKind::Folder,
        FileType::Symlink => EntryKind::Link,
        FileType::Unknown => EntryKind::Unknown,
        _ => EntryKind::Special,
    }
}

fn entry_stat(stat: &fs::Stat) -> EntryStat {
    let nanoseconds = |seconds: i64, rest: i64| seconds.saturating_mul(1_000_000_000).saturating_add(rest);
    EntryStat {
        kind: match FileType::from_raw_mode(stat.st_mode) {
            FileType::Unknown => EntryKind::Special,
            file_type => entry_kind(file_type),
        },
        stat: Stat {
            size: u64::try_from(stat.st_size).unwrap_or(0),
            allocated: u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512),
            links: if stat.st_nlink > 1 { LinkKind::HardLinked } else { LinkKind::Single },
            mtime_ns: nanoseconds(stat.st_mtime, stat.st_mtime_nsec.cast_signed()),
            ctime_ns: nanoseconds(stat.st_ctime, stat.st_ctime_nsec.cast_signed()),
            inode: stat.st_ino,
            device: stat.st_dev,
        },
    }
}
