//! Opens and reads an input: a plain or compressed file, or standard input.
//!
//! Owns the fingerprint of a file. The file is hashed while it is read.

use std::fs::File;
use std::io::{self, BufReader, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::UNIX_EPOCH;

use crate::import::handle::ImportHandle;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Compression {
    Plain,
    Gzip,
    Zstd,
}

impl Compression {
    fn name(self) -> &'static str {
        match self {
            Compression::Plain => "plain",
            Compression::Gzip => "gzip",
            Compression::Zstd => "zstd",
        }
    }
}

/// Extensions of the files that are imported from a folder.
const EXTENSIONS: [&str; 2] = ["jsonl", "ndjson"];

/// Returns the name without its extensions, the compression, and whether it has a JSONL extension.
pub(crate) fn classify_name(name: &str) -> (String, Compression, bool) {
    let without = |name: &str, extension: &str| -> Option<String> {
        let (stem, found) = name.rsplit_once('.')?;
        (found.eq_ignore_ascii_case(extension) && !stem.is_empty()).then(|| stem.to_owned())
    };
    let (uncompressed, compression) = match (without(name, "gz"), without(name, "zst")) {
        (Some(stem), _) => (stem, Compression::Gzip),
        (_, Some(stem)) => (stem, Compression::Zstd),
        _ => (name.to_owned(), Compression::Plain),
    };
    match EXTENSIONS.iter().find_map(|extension| without(&uncompressed, extension)) {
        Some(stem) => (stem, compression, true),
        None => (uncompressed, compression, false),
    }
}

/// Identifies the contents of a file at the time it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fingerprint {
    pub(crate) bytes: u64,
    /// Time of the last modification, in nanoseconds since 1970.
    pub(crate) modified: Option<i64>,
    /// BLAKE3 hash of the file on disk, before decompression.
    pub(crate) hash: String,
}

/// Returns the size and modification time of a file, without reading it.
pub(crate) fn size_and_time(file: &File) -> io::Result<(u64, Option<i64>)> {
    let metadata = file.metadata()?;
    let modified = metadata.modified().ok().and_then(|time| match time.duration_since(UNIX_EPOCH) {
        Ok(since) => i64::try_from(since.as_nanos()).ok(),
        Err(before) => i64::try_from(before.duration().as_nanos()).ok().map(|nanos| -nanos),
    });
    Ok((metadata.len(), modified))
}

/// An open input that is decompressed as it is read.
pub(crate) struct InputFile {
    decoder: Decoder,
    /// Path, if it is a regular file.
    path: Option<PathBuf>,
    before: (u64, Option<i64>),
}

enum Decoder {
    Plain(HashingReader),
    Gzip(Box<flate2::bufread::MultiGzDecoder<BufReader<HashingReader>>>),
    Zstd(Box<zstd::Decoder<'static, BufReader<HashingReader>>>),
}

/// Maximum window of zstd, as a power of two: the window of `zstd --ultra --long=31`. The decoder allocates the window
/// that the frame declares, or the size of the contents if that is less.
const MAX_WINDOW_LOG: u32 = if cfg!(target_pointer_width = "64") { 31 } else { 27 };

/// Bytes per read of a compressed file, and of a file that is hashed.
const READ_BYTES: usize = 256 * 1024;

impl InputFile {
    /// Wraps an open file. `read` counts its bytes as they are read. `copy` receives all of them, because some inputs
    /// can be read only once. The first bytes decide the compression; data without compression is an error if
    /// `compression`, which comes from the file name, is not `Plain`.
    pub(crate) fn new(
        file: File,
        path: Option<&Path>,
        compression: Compression,
        read: &Arc<AtomicU64>,
        copy: Option<&File>,
    ) -> io::Result<Self> {
        if file.metadata()?.is_dir() {
            return Err(io::Error::new(ErrorKind::IsADirectory, "it is a folder"));
        }
        let before = size_and_time(&file)?;
        let copy = copy.map(File::try_clone).transpose()?;
        let hasher = Box::new(blake3::Hasher::new());
        let mut reader = HashingReader { file, hasher, bytes: 0, read: read.clone(), copy, head: Vec::new() };
        let compression = match (compression, reader.head()?) {
            (Compression::Plain, head) => detect_compression(head),
            (named, []) => named,
            (named, head) => match detect_compression(head) {
                Compression::Plain => {
                    return Err(io::Error::other(format!(
                        "its name ends in a {0} extension, but it is not {0} data",
                        named.name()
                    )));
                }
                found => found,
            },
        };
        let decoder = match compression {
            Compression::Plain => Decoder::Plain(reader),
            Compression::Gzip => {
                let buffered = BufReader::with_capacity(READ_BYTES, reader);
                Decoder::Gzip(Box::new(flate2::bufread::MultiGzDecoder::new(buffered)))
            }
            Compression::Zstd => {
                let buffered = BufReader::with_capacity(READ_BYTES, reader);
                let mut decoder = zstd::Decoder::with_buffer(buffered)?;
                decoder.window_log_max(MAX_WINDOW_LOG)?;
                Decoder::Zstd(Box::new(decoder))
            }
        };
        Ok(InputFile { decoder, path: path.map(Path::to_owned), before })
    }

    fn reader(&mut self) -> &mut HashingReader {
        match &mut self.decoder {
            Decoder::Plain(reader) => reader,
            Decoder::Gzip(decoder) => decoder.get_mut().get_mut(),
            Decoder::Zstd(decoder) => decoder.get_mut().get_mut(),
        }
    }

    /// Reads the file to its end and returns its fingerprint. Fails if the file changed while it was read.
    pub(crate) fn fingerprint(mut self) -> io::Result<Fingerprint> {
        let (path, before) = (self.path.take(), self.before);
        let reader = self.reader();
        io::copy(reader, &mut io::sink())?;
        let after = size_and_time(&reader.file)?;
        if let Some(path) = path {
            let current = size_and_time(&File::open(&path)?)?;
            if after != before || current != after || reader.bytes != after.0 {
                return Err(changed_while_read(&path));
            }
        }
        let hash = reader.hasher.finalize().to_hex().to_string();
        Ok(Fingerprint { bytes: reader.bytes, modified: after.1, hash })
    }
}

impl Read for InputFile {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let (compression, result) = match &mut self.decoder {
            Decoder::Plain(file) => return file.read(buffer),
            Decoder::Gzip(decoder) => (Compression::Gzip, decoder.read(buffer)),
            Decoder::Zstd(decoder) => (Compression::Zstd, decoder.read(buffer)),
        };
        let name = compression.name();
        result.map_err(|error| match error.kind() {
            ErrorKind::Interrupted => error,
            kind @ ErrorKind::UnexpectedEof => {
                io::Error::new(kind, format!("the {name} data ends too early; is the file cut off?"))
            }
            kind => io::Error::new(kind, format!("the {name} data is not valid: {error}")),
        })
    }
}

/// No JSON begins with the bytes that are compared here.
fn detect_compression(head: &[u8]) -> Compression {
    match head {
        [0x1f, 0x8b, ..] => Compression::Gzip,
        [0x28, 0xb5, 0x2f, 0xfd] | [0x50..=0x5f, 0x2a, 0x4d, 0x18] => Compression::Zstd,
        _ => Compression::Plain,
    }
}

pub(crate) fn changed_while_read(path: &Path) -> io::Error {
    io::Error::other(format!(
        "it was changed while it was read; load it again when it is complete, or load its current contents: cat {} | \
         gristmill import - --table NAME",
        path.display()
    ))
}

struct HashingReader {
    file: File,
    hasher: Box<blake3::Hasher>,
    bytes: u64,
    read: Arc<AtomicU64>,
    copy: Option<File>,
    /// First bytes of the file, to be returned by the next read.
    head: Vec<u8>,
}

impl HashingReader {
    /// Returns the first four bytes, or all if there are fewer.
    fn head(&mut self) -> io::Result<&[u8]> {
        let mut head = Vec::new();
        self.by_ref().take(4).read_to_end(&mut head)?;
        self.head = head;
        Ok(&self.head)
    }
}

impl Read for HashingReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if !self.head.is_empty() {
            let length = self.head.len().min(buffer.len());
            buffer[..length].copy_from_slice(&self.head[..length]);
            self.head.drain(..length);
            return Ok(length);
        }
        let read = self.file.read(buffer)?;
        self.hasher.update(&buffer[..read]);
        if let Some(copy) = &mut self.copy {
            copy.write_all(&buffer[..read])?;
        }
        self.bytes += read as u64;
        self.read.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}

pub(crate) fn hash_file(path: &Path, handle: &ImportHandle) -> io::Result<String> {
    let mut hasher = blake3::Hasher::new();
    let mut file = File::open(path)?;
    let mut buffer = vec![0; READ_BYTES];
    loop {
        if handle.is_cancelled() {
            return Err(ErrorKind::Interrupted.into());
        }
        match file.read(&mut buffer)? {
            0 => return Ok(hasher.finalize().to_hex().to_string()),
            read => hasher.update(&buffer[..read]),
        };
    }
}
