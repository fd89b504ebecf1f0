//! Reading files that others may be writing.
//!
//! Owns what counts as having read a file: the file system said the same about it before and after. One that would
//! not hold still is tried again, then recorded as unstable. Nothing is mapped into memory: a file that is cut
//! short while it is mapped ends the process.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, ErrorKind, Read, Seek, SeekFrom};

use gristmill_store::catalog::{Algorithm, LinkKind, ReadResult, Stat};

use crate::hash::{self, Hasher};
use crate::racy;
use crate::sys::{self, Advice, EntryKind, Folder};

/// Files up to this size are read at once, and hashed as a whole. Two reads at the edges of a larger one cost less
/// than reading it; below, the opening of the file is what costs.
pub(crate) const MAX_SMALL_SIZE: u64 = 64 << 10;

/// The size of a block at an edge.
const SAMPLE_SIZE: usize = 16 << 10;

/// Files from this size on are looked at in the middle, too: disk images and databases often differ only there.
const MIN_FIVE_SAMPLES_SIZE: u64 = 1 << 20;

/// Large files are read in blocks of this size. From here to 4 MiB no difference could be measured on a disk; from memory,
/// with several workers on a core, four times as much takes a tenth longer: their blocks no longer stay in its cache.
const READ_BLOCK_SIZE: usize = 64 << 10;

/// How often a file that changes under our eyes is read.
const MAX_ATTEMPTS: u32 = 3;

/// What a file is read for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HashScope {
    /// A hash over a few blocks.
    Samples,
    /// The hash of all of it.
    Content(Algorithm),
}

impl HashScope {
    /// How many bytes that takes of a file.
    pub(crate) fn bytes(self, size: u64) -> u64 {
        match self {
            HashScope::Content(_) => size,
            HashScope::Samples => sample_offsets(size).len() as u64 * SAMPLE_SIZE as u64,
        }
    }
}

/// A file that was read.
#[derive(Debug)]
pub(crate) struct ReadFile {
    /// As it was when it was read.
    pub(crate) stat: Stat,
    pub(crate) result: ReadResult,
    /// Whether a change since then may have left the same times.
    pub(crate) racy: bool,
}

/// Somebody who may want the reading to stop, or to slow down.
pub(crate) trait Throttle {
    /// About to read so many bytes. False: stop.
    fn may_read(&self, bytes: u64) -> bool;
}

thread_local! {
    /// Each worker's own: a new one for each file would cost more than reading it.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Reads a file, which may be open already. `expected` is what the catalog has about it. Nothing when it was told to stop.
pub(crate) fn read_file(
    opened: Option<File>,
    open: impl Fn() -> io::Result<File>,
    expected: &Stat,
    scope: HashScope,
    throttle: &impl Throttle,
) -> Option<ReadFile> {
    BUFFER.with_borrow_mut(|buffer| read_with_retries(opened, open, expected, scope, buffer, throttle))
}

/// Reads a file without waiting. Nothing when it is not in memory, not as it was, or has changed just now.
pub(crate) fn read_if_cached(
    file: &File,
    expected: &Stat,
    scope: HashScope,
    throttle: &impl Throttle,
) -> Option<ReadFile> {
    if !racy::is_settled(expected) {
        return None;
    }
    BUFFER.with_borrow_mut(|buffer| {
        buffer.resize(buffer.len().max(MAX_SMALL_SIZE as usize), 0);
        let result = match scope {
            HashScope::Content(algorithm) => {
                let content = buffer.get_mut(..usize::try_from(expected.size).ok()?)?;
                (sys::read_ready(file, content) && throttle.may_read(expected.size))
                    .then(|| ReadResult::Content(algorithm, hash::hash_bytes(algorithm, content)))
            }
            // With its first block the others are likely to be there.
            HashScope::Samples if sys::read_ready(file, buffer.get_mut(..SAMPLE_SIZE)?) => {
                hash_samples(file, expected.size, buffer, throttle).ok().flatten()
            }
            HashScope::Samples => None,
        }?;
        let found = sys::file_stat(file).ok()?;
        let stat = with_link_kind(found.stat, expected);
        (found.kind == EntryKind::File && stat.is_same(expected)).then_some(ReadFile {
            stat,
            result,
            racy: false,
        })
    })
}

/// Has the system fetch what will be read of a file.
pub(crate) fn prefetch(file: &File, size: u64, scope: HashScope) {
    match scope {
        HashScope::Content(_) => sys::advise(file, Advice::WillNeed(0, size)),
        HashScope::Samples => {
            for offset in sample_offsets(size) {
                sys::advise(file, Advice::WillNeed(offset, SAMPLE_SIZE as u64));
            }
        }
    }
}

fn read_with_retries(
    mut opened: Option<File>,
    open: impl Fn() -> io::Result<File>,
    expected: &Stat,
    scope: HashScope,
    buffer: &mut Vec<u8>,
    throttle: &impl Throttle,
) -> Option<ReadFile> {
    let unread = |result: ReadResult| ReadFile { stat: *expected, result, racy: false };
    let failed = |error: &io::Error| match is_gone(error) {
        true => unread(ReadResult::Gone),
        false => unread(ReadResult::Failed(error.to_string())),
    };
    for attempt in 0..MAX_ATTEMPTS {
        let file = match opened.take().map_or_else(&open, Ok) {
            Ok(file) => file,
            Err(error) => return Some(failed(&error)),
        };
        let before = if attempt == 0 {
            // The walk looked just now: that spares small files a call.
            *expected
        } else {
            match sys::file_stat(&file) {
                Ok(found) => found.stat,
                Err(error) => return Some(failed(&error)),
            }
        };
        let racy = !racy::wait_until_settled(&before);
        let read = read_scope(&file, before.size, scope, buffer, throttle);
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
    Some(unread(ReadResult::Failed(format!("it changed {MAX_ATTEMPTS} times while it was read"))))
}

/// What an open file says about itself does not tell that a symbolic link led to it.
fn with_link_kind(stat: Stat, expected: &Stat) -> Stat {
    match expected.links {
        LinkKind::ViaSymlink => Stat { links: LinkKind::ViaSymlink, ..stat },
        _ => stat,
    }
}

/// What was asked for; nothing when the file is not as large as it was, or the reading was stopped.
fn read_scope(
    file: &File,
    size: u64,
    scope: HashScope,
    buffer: &mut Vec<u8>,
    throttle: &impl Throttle,
) -> io::Result<Option<ReadResult>> {
    match scope {
        HashScope::Content(algorithm) if size <= MAX_SMALL_SIZE => {
            hash_small(file, size, algorithm, buffer, throttle)
        }
        HashScope::Content(algorithm) => hash_large(file, size, algorithm, buffer, throttle),
        HashScope::Samples => hash_samples(file, size, buffer, throttle),
    }
}

/// A small file, at once: one call, if the system gives all at once, and room for one byte that should not be there.
fn hash_small(
    mut file: &File,
    size: u64,
    algorithm: Algorithm,
    buffer: &mut Vec<u8>,
    throttle: &impl Throttle,
) -> io::Result<Option<ReadResult>> {
    if !throttle.may_read(size) {
        return Ok(None);
    }
    let expected = usize::try_from(size).unwrap_or(usize::MAX);
    buffer.resize(expected.saturating_add(1).max(MAX_SMALL_SIZE as usize + 1), 0);
    let mut filled = 0;
    while filled <= expected {
        match file.read(&mut buffer[filled..=expected]) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        if filled == expected {
            // The stat that follows tells whether the file has grown.
            break;
        }
    }
    Ok((filled == expected)
        .then(|| ReadResult::Content(algorithm, hash::hash_bytes(algorithm, &buffer[..expected]))))
}

fn hash_large(
    mut file: &File,
    size: u64,
    algorithm: Algorithm,
    buffer: &mut Vec<u8>,
    throttle: &impl Throttle,
) -> io::Result<Option<ReadResult>> {
    sys::advise(file, Advice::Sequential);
    let mut hasher = Hasher::new(algorithm);
    buffer.resize(READ_BLOCK_SIZE.max(buffer.len()), 0);
    let mut left = size;
    while left > 0 {
        let length = usize::try_from(left).unwrap_or(READ_BLOCK_SIZE).min(READ_BLOCK_SIZE);
        if !throttle.may_read(length as u64) {
            return Ok(None);
        }
        match file.read(&mut buffer[..length]) {
            Ok(0) => return Ok(None),
            Ok(read) => {
                hasher.update(&buffer[..read]);
                left -= read as u64;
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(Some(ReadResult::Content(algorithm, hasher.finish())))
}

/// Where blocks are read: the first, the last, and of a large file three between.
fn sample_offsets(size: u64) -> Vec<u64> {
    let last = size.saturating_sub(SAMPLE_SIZE as u64);
    match size {
        0..=MAX_SMALL_SIZE => vec![0],
        size if size < MIN_FIVE_SAMPLES_SIZE => vec![0, last],
        size => vec![0, size / 4, size / 2, size / 4 * 3, last],
    }
}

fn hash_samples(
    mut file: &File,
    size: u64,
    buffer: &mut Vec<u8>,
    throttle: &impl Throttle,
) -> io::Result<Option<ReadResult>> {
    if !throttle.may_read(HashScope::Samples.bytes(size)) {
        return Ok(None);
    }
    sys::advise(file, Advice::Random);
    buffer.resize(SAMPLE_SIZE.max(buffer.len()), 0);
    let mut hasher = blake3::Hasher::new();
    for offset in sample_offsets(size) {
        // The first, too: somebody may have begun to read this file.
        file.seek(SeekFrom::Start(offset))?;
        match file.read_exact(&mut buffer[..SAMPLE_SIZE]) {
            Ok(()) => drop(hasher.update(&buffer[..SAMPLE_SIZE])),
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(None),
            Err(error) => return Err(error),
        }
    }
    let mut first = [0; 8];
    hasher.finalize_xof().fill(&mut first);
    Ok(Some(ReadResult::Samples(i64::from_le_bytes(first))))
}

/// Whether an error says that a file or folder is not there: nothing has its name, or something else has taken its place or
/// that of a folder above it.
pub(crate) fn is_gone(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) || sys::is_link_error(error)
}

/// Opens a file as its root wants it.
pub(crate) fn open_file(folder: &Folder, name: &OsStr, follow: bool) -> io::Result<File> {
    if follow { folder.linked_file(name) } else { folder.file(name) }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Unthrottled;

    impl Throttle for Unthrottled {
        fn may_read(&self, _: u64) -> bool {
            true
        }
    }

    /// A first reading that failed in the middle leaves the file where it was then.
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
            found.push(hash_samples(&file, size, &mut Vec::new(), &Unthrottled).unwrap().unwrap());
        }
        assert!(found.windows(2).all(|pair| pair[0] == pair[1]), "{found:?}");
    }
}
