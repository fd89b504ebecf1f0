//! Reads and hashes files that other programs may be writing.
//!
//! Owns the condition for a valid read: the file's metadata is equal before and after it. A file that changes during
//! the read is read again, and recorded as failed after `MAX_ATTEMPTS`. Files are not memory-mapped, because
//! truncating a mapped file would kill the process.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::sync::Arc;

use gristmill_store::catalog::{Algorithm, Digest, LinkKind, ReadResult, Stat, prefix};
use gristmill_store::rate_limits::RateLimiter;

use crate::hash::{self, Hasher};
use crate::progress::{ScanHandle, add};
use crate::racy;
use crate::sys::{self, Advice, EntryKind, Folder};

/// Files up to this size are read and hashed as a whole. Two samples of a larger file cost less than reading it; below
/// this size, opening the file dominates the cost.
pub(crate) const MAX_SMALL_SIZE: u64 = 64 << 10;

const SAMPLE_SIZE: usize = 16 << 10;

/// Files from this size on have five samples instead of two: disk images and databases often differ only in the middle.
const MIN_FIVE_SAMPLES_SIZE: u64 = 1 << 20;

/// Block size for reading large files, which is also enough for a small one. Up to 4 MiB no difference could be
/// measured on a disk. From the page cache, with several workers per core, blocks four times as large take a tenth
/// longer because they no longer fit in the CPU cache.
const READ_BLOCK_SIZE: usize = 64 << 10;

/// Number of times that a file is read if it keeps changing.
const MAX_ATTEMPTS: u32 = 3;

/// The part of a file that is read and hashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HashScope {
    Samples,
    Content(Algorithm),
}

impl HashScope {
    /// Number of bytes that are read of a file of this size.
    pub(crate) fn bytes(self, size: u64) -> u64 {
        match self {
            HashScope::Content(_) => size,
            HashScope::Samples => sample_offsets(size).len() as u64 * SAMPLE_SIZE as u64,
        }
    }
}

#[derive(Debug)]
pub(crate) struct ReadFile {
    pub(crate) stat: Stat,
    pub(crate) result: ReadResult,
    /// Whether a later change may have left the same timestamps.
    pub(crate) racy: bool,
}

impl ReadFile {
    /// The result for a file that could not be opened or read.
    pub(crate) fn unread(listed: &Stat, error: &io::Error) -> Self {
        let result = match is_missing(error) {
            true => ReadResult::Gone,
            false => ReadResult::Failed(error.to_string()),
        };
        ReadFile { stat: *listed, result, racy: false }
    }

    pub(crate) fn is_read(&self) -> bool {
        !matches!(self.result, ReadResult::Gone | ReadResult::Failed(_))
    }

    /// Whether it was read and is unchanged since it was listed.
    pub(crate) fn is_same(&self, listed: &Stat) -> bool {
        self.is_read() && self.stat.is_same(listed)
    }
}

/// Delays, counts and ends the reads of all workers of a scan.
pub(crate) struct Throttle {
    pub(crate) handle: Arc<ScanHandle>,
    limiter: RateLimiter,
}

impl Throttle {
    /// `rate` is in bytes per second. `None` means no limit.
    pub(crate) fn new(handle: Arc<ScanHandle>, rate: Option<u64>) -> Self {
        Throttle { handle, limiter: RateLimiter::new(rate.unwrap_or(0)) }
    }

    /// Waits until `bytes` bytes may be read, and counts them. Returns false if the scan is cancelled.
    fn may_read(&self, bytes: u64) -> bool {
        let is_allowed = self.limiter.acquire(bytes, self.handle.token());
        add(&self.handle.bytes_read, if is_allowed { bytes } else { 0 });
        is_allowed
    }
}

thread_local! {
    /// Buffer of each worker. A new buffer for each file would cost more than reading the file.
    static BUFFER: RefCell<Vec<u8>> = RefCell::new(vec![0; READ_BLOCK_SIZE]);
}

/// Reads a file from the page cache without waiting. Returns `None` if it is not cached, has changed, or is racy.
pub(crate) fn read_if_cached(file: &File, expected: &Stat, scope: HashScope, throttle: &Throttle) -> Option<ReadFile> {
    if !racy::is_settled(expected) {
        return None;
    }
    BUFFER.with_borrow_mut(|buffer| {
        let result = match scope {
            HashScope::Content(algorithm) => {
                let content = buffer.get_mut(..usize::try_from(expected.size).ok()?)?;
                (sys::read_cached(file, content) && throttle.may_read(expected.size))
                    .then(|| ReadResult::Content(small_digest(algorithm, content)))
            }
            // If the first sample is cached, the others probably are.
            HashScope::Samples if sys::read_cached(file, buffer.get_mut(..SAMPLE_SIZE)?) => {
                OpenFile { file, size: expected.size, throttle }.hash_samples(buffer).ok().flatten()
            }
            HashScope::Samples => None,
        }?;
        let found = sys::file_stat(file).ok()?;
        let stat = with_link_kind(found.stat, expected);
        (found.kind == EntryKind::File && stat.is_same(expected)).then_some(ReadFile { stat, result, racy: false })
    })
}

/// Asks the operating system to load the parts of a file that will be read. A large file is read from start to end,
/// which the system recognises itself.
pub(crate) fn prefetch(file: &File, size: u64, scope: HashScope) {
    match scope {
        HashScope::Content(_) if size > MAX_SMALL_SIZE => {}
        HashScope::Content(_) => sys::advise(file, Advice::WillNeed(0, size)),
        HashScope::Samples => {
            for offset in sample_offsets(size) {
                sys::advise(file, Advice::WillNeed(offset, SAMPLE_SIZE as u64));
            }
        }
    }
}

/// Reads a file, which may already be open. `expected` is the metadata in the catalog. Returns `None` if the scan was
/// cancelled.
pub(crate) fn read_file(
    mut opened: Option<File>,
    open: impl Fn() -> io::Result<File>,
    expected: &Stat,
    scope: HashScope,
    throttle: &Throttle,
) -> Option<ReadFile> {
    let unread = |result: ReadResult| ReadFile { stat: *expected, result, racy: false };
    let failed = |error: &io::Error| ReadFile::unread(expected, error);
    for attempt in 0..MAX_ATTEMPTS {
        let file = match opened.take().map_or_else(&open, Ok) {
            Ok(file) => file,
            Err(error) => return Some(failed(&error)),
        };
        // Using `expected` saves a system call per file.
        let before = if attempt == 0 { Ok(*expected) } else { sys::file_stat(&file).map(|found| found.stat) };
        let before = match before {
            Ok(before) => before,
            Err(error) => return Some(failed(&error)),
        };
        let racy = !racy::wait_until_settled(&before, throttle.handle.token());
        let open_file = OpenFile { file: &file, size: before.size, throttle };
        let read = BUFFER.with_borrow_mut(|buffer| open_file.hash(scope, buffer));
        let after = match sys::file_stat(&file) {
            Ok(found) if found.kind == EntryKind::File => with_link_kind(found.stat, expected),
            Ok(_) => return Some(unread(ReadResult::Gone)),
            Err(error) => return Some(failed(&error)),
        };
        match read {
            Ok(Some(result)) if after.is_same(&before) => {
                return Some(ReadFile { stat: after, result, racy });
            }
            Ok(_) if !throttle.may_read(0) => return None,
            Ok(_) => {}
            Err(error) if after.is_same(&before) => return Some(failed(&error)),
            Err(_) => {}
        }
    }
    Some(unread(ReadResult::Failed(format!("changed during each of {MAX_ATTEMPTS} attempts to read it"))))
}

/// Keeps `LinkKind::ViaSymlink`, because the metadata of an open file does not show that a symbolic link led to it.
fn with_link_kind(stat: Stat, expected: &Stat) -> Stat {
    match expected.links {
        LinkKind::ViaSymlink => Stat { links: LinkKind::ViaSymlink, ..stat },
        _ => stat,
    }
}

/// Hashes the content of a small file. Its samples are the whole content, and do not depend on the algorithm.
fn small_digest(algorithm: Algorithm, content: &[u8]) -> Digest {
    let hash = hash::hash_bytes(algorithm, content);
    let samples = match algorithm {
        Algorithm::Blake3 => prefix(&hash),
        _ => prefix(&hash::hash_bytes(Algorithm::Blake3, content)),
    };
    Digest { samples: Some(samples.cast_signed()), ..Digest::unshared(algorithm, hash) }
}

struct OpenFile<'a> {
    file: &'a File,
    size: u64,
    throttle: &'a Throttle,
}

impl OpenFile<'_> {
    /// Reads and hashes the requested part. Returns `None` if the file's size has changed, or reading was cancelled.
    fn hash(&self, scope: HashScope, buffer: &mut [u8]) -> io::Result<Option<ReadResult>> {
        match scope {
            HashScope::Content(algorithm) if self.size <= MAX_SMALL_SIZE => self.hash_small(algorithm, buffer),
            HashScope::Content(algorithm) => self.hash_large(algorithm, buffer),
            HashScope::Samples => self.hash_samples(buffer),
        }
    }

    /// Hashes a small file with one system call. If the file has grown, its metadata after the read shows that.
    fn hash_small(&self, algorithm: Algorithm, buffer: &mut [u8]) -> io::Result<Option<ReadResult>> {
        let content = &mut buffer[..self.size as usize];
        let is_read = self.throttle.may_read(self.size) && self.fill(content)?;
        Ok(is_read.then(|| ReadResult::Content(small_digest(algorithm, content))))
    }

    fn hash_large(&self, algorithm: Algorithm, buffer: &mut [u8]) -> io::Result<Option<ReadResult>> {
        sys::advise(self.file, Advice::Sequential);
        let mut hasher = Hasher::new(algorithm);
        let mut left = self.size;
        while left > 0 {
            let length = left.min(buffer.len() as u64);
            let block = &mut buffer[..length as usize];
            if !self.throttle.may_read(length) || !self.fill(block)? {
                return Ok(None);
            }
            hasher.update(block);
            left -= length;
        }
        Ok(Some(ReadResult::Content(Digest::unshared(algorithm, hasher.finish()))))
    }

    fn hash_samples(&self, buffer: &mut [u8]) -> io::Result<Option<ReadResult>> {
        if !self.throttle.may_read(HashScope::Samples.bytes(self.size)) {
            return Ok(None);
        }
        sys::advise(self.file, Advice::Random);
        let sample = &mut buffer[..SAMPLE_SIZE];
        let mut hasher = blake3::Hasher::new();
        for offset in sample_offsets(self.size) {
            // Seeks for the first sample too, because an earlier attempt may have moved the position.
            let mut file = self.file;
            file.seek(SeekFrom::Start(offset))?;
            if !self.fill(sample)? {
                return Ok(None);
            }
            hasher.update(sample);
        }
        let mut first = [0; 8];
        hasher.finalize_xof().fill(&mut first);
        Ok(Some(ReadResult::Samples(i64::from_le_bytes(first))))
    }

    /// Fills the buffer. Returns false if the file is too short.
    fn fill(&self, buffer: &mut [u8]) -> io::Result<bool> {
        let mut file = self.file;
        match file.read_exact(buffer) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// Offsets of the samples: the first block, the last, and three between in files from `MIN_FIVE_SAMPLES_SIZE` on.
fn sample_offsets(size: u64) -> Vec<u64> {
    let last = size.saturating_sub(SAMPLE_SIZE as u64);
    match size {
        0..=MAX_SMALL_SIZE => vec![0],
        size if size < MIN_FIVE_SAMPLES_SIZE => vec![0, last],
        size => vec![0, size / 4, size / 2, size / 4 * 3, last],
    }
}

/// Whether an error means that a file or folder no longer exists: its name is missing, or something else has replaced
/// it or a folder above it.
pub(crate) fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) || sys::is_link_error(error)
}

/// Opens a file, following symbolic links if its root follows them.
pub(crate) fn open_file(folder: &Folder, name: &OsStr, follow: bool) -> io::Result<File> {
    if follow { folder.open_linked_file(name) } else { folder.open_file(name) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A read that failed midway leaves the file position in the middle.
    #[test]
    fn samples_do_not_depend_on_the_file_position() {
        let mut file = tempfile::tempfile().unwrap();
        let size = MIN_FIVE_SAMPLES_SIZE + 5;
        for number in 0..size / 8 + 1 {
            io::Write::write_all(&mut file, &number.to_le_bytes()).unwrap();
        }
        let mut found = Vec::new();
        for position in [0, 1, size / 4, size] {
            file.seek(SeekFrom::Start(position)).unwrap();
            let open_file = OpenFile { file: &file, size, throttle: &Throttle::new(Arc::default(), None) };
            found.push(open_file.hash_samples(&mut vec![0; READ_BLOCK_SIZE]).unwrap().unwrap());
        }
        assert!(found.windows(2).all(|pair| pair[0] == pair[1]), "{found:?}");
    }
}
