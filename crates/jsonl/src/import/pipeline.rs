//! The pipeline: one reader thread cuts files into blocks, and workers parse them; results are in file order.
//!
//! Owns the limits on memory. The pool's queue limits the number of blocks in flight, and the budget limits their
//! bytes, because a line may be larger than the block size.

use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::os::fd::AsFd;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use gristmill_pool::worker::lower_priority;
use gristmill_pool::{CancelCallback, CancelToken, Pool, ResultOrder, Results};

use super::discover::Source;
use super::handle::ImportHandle;
use super::options::ImportOptions;
use crate::block::Blocks;
use crate::error::{Error, Result};
use crate::parse::{ParseOptions, parse};
use crate::parsed_block::{BadLine, ParsedBlock};
use crate::source::{Fingerprint, InputFile};

/// A file to read and how to parse it.
#[derive(Clone, Debug)]
pub(crate) struct FileJob {
    /// Index of the source.
    pub(crate) index: usize,
    pub(crate) source: Source,
    pub(crate) parse_options: Arc<ParseOptions>,
    /// Ends reading; shared by all files of the table.
    pub(crate) stop: ReadStop,
    /// Copy of an input that can be read only once, for later passes.
    pub(crate) copy: Option<Arc<File>>,
}

/// Tells the reader that the writer does not need the rest of a table's files.
#[derive(Clone, Debug)]
pub(crate) struct ReadStop {
    /// Cancelled when the table has reached the limit of rows.
    pub(crate) limit_reached: CancelToken,
    /// Cancelled also when the files will be read again, or cannot be loaded.
    pub(crate) abandoned: CancelToken,
}

impl ReadStop {
    pub(crate) fn new(handle: &ImportHandle) -> Self {
        let limit_reached = handle.cancel_token().child();
        ReadStop { abandoned: limit_reached.child(), limit_reached }
    }
}

pub(crate) struct PipelineItem {
    pub(crate) index: usize,
    pub(crate) event: PipelineEvent,
}

pub(crate) enum PipelineEvent {
    Block(Box<ParsedBlock>, Permit),
    /// The file was read to its end, or reading failed.
    End(io::Result<Fingerprint>),
}

/// Minimum size of the memory budget, in blocks.
const BUDGET_BLOCKS: usize = 24;

/// A running pass over files. It is cancelled with the import.
pub(crate) struct Pipeline {
    pub(crate) pool: Pool<PipelineItem>,
    pub(crate) results: Results<PipelineItem>,
    _on_cancel: CancelCallback,
}

/// Starts the reader thread and the workers.
pub(crate) fn start(
    jobs: Vec<FileJob>,
    options: &ImportOptions,
    handle: &Arc<ImportHandle>,
    buffers: &Arc<BufferPool>,
) -> Result<Pipeline> {
    let workers = options.worker_count();
    let builder =
        Pool::builder().name("parse").workers(workers).queue_capacity(workers * 2).result_capacity(workers * 2);
    let built = builder.build_with_results(ResultOrder::AsSubmitted);
    let (pool, results) = built.map_err(|error| Error::Worker(Arc::new(error)))?;
    let budget = Arc::new(MemoryBudget::new(options.block.saturating_mul(BUDGET_BLOCKS.max(workers * 4))));
    // A reader that waits for standard input ends with its next bytes, but the results end now.
    let on_cancel = handle.cancel_token().on_cancel({
        let (pool, budget) = (pool.clone(), budget.clone());
        move || {
            pool.cancel();
            budget.close();
        }
    });
    let reader = FileReader {
        buffers: buffers.clone(),
        pool: pool.clone(),
        budget,
        bytes_read: handle.bytes_read.clone(),
        options: options.clone(),
    };
    let thread = std::thread::Builder::new().name("read".to_owned());
    let spawned = thread.spawn(move || {
        // Submission fails only after cancellation.
        let _ = jobs.into_iter().try_for_each(|job| reader.file(&job));
        reader.pool.close();
    });
    let failed = |error: io::Error| io::Error::new(error.kind(), format!("cannot start a thread: {error}"));
    spawned.map_err(|error| Error::Worker(Arc::new(failed(error))))?;
    Ok(Pipeline { pool, results, _on_cancel: on_cancel })
}

/// Buffers and parsed blocks for reuse. Fresh memory has to be cleared and causes page faults, which take about 7 % of
/// the time of an import.
#[derive(Default)]
pub(crate) struct BufferPool {
    bytes: Mutex<Vec<Vec<u8>>>,
    blocks: Mutex<Vec<ParsedBlock>>,
}

fn pop<T: Default>(free: &Mutex<Vec<T>>) -> T {
    free.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default()
}

fn push<T>(free: &Mutex<Vec<T>>, used: T) {
    free.lock().unwrap_or_else(PoisonError::into_inner).push(used);
}

impl BufferPool {
    /// Keeps a block for reuse, unless it is much larger than the block size.
    pub(crate) fn recycle(&self, mut parsed: ParsedBlock, block: usize) {
        let buffer = parsed.original.take().unwrap_or_else(|| std::mem::take(&mut parsed.text));
        if buffer.len() <= block * 2 {
            push(&self.bytes, buffer);
        }
        // Cells take several times the memory of their text.
        let capacity = parsed.scratch.capacity().max(parsed.text.capacity()).max(parsed.cells.capacity() * 8);
        if capacity <= block * 2 {
            push(&self.blocks, parsed);
        }
    }
}

struct FileReader {
    buffers: Arc<BufferPool>,
    pool: Pool<PipelineItem>,
    budget: Arc<MemoryBudget>,
    bytes_read: Arc<AtomicU64>,
    options: ImportOptions,
}

/// The pool was closed or cancelled.
struct PoolClosed;

impl FileReader {
    fn file(&self, job: &FileJob) -> std::result::Result<(), PoolClosed> {
        let index = job.index;
        let end = self.blocks(job)?;
        self.pool
            .submit(move |_| Ok(PipelineItem { index, event: PipelineEvent::End(end) }))
            .map_err(|_| PoolClosed)?;
        Ok(())
    }

    fn blocks(&self, job: &FileJob) -> std::result::Result<io::Result<Fingerprint>, PoolClosed> {
        let opened = match open(job, &self.bytes_read) {
            Ok(opened) => opened,
            Err(error) => return Ok(Err(error)),
        };
        let mut blocks = Blocks::new(opened, self.options.block, self.options.max_line);
        let mut is_first = true;
        // An input that can be read only once is read to its end, because the next pass reads the copy.
        let stop = if job.copy.is_some() { &job.stop.limit_reached } else { &job.stop.abandoned };
        loop {
            if stop.is_cancelled() {
                return Ok(Err(io::Error::other("abandoned")));
            }
            let block = match blocks.next(pop(&self.buffers.bytes)) {
                Ok(Some(block)) => block,
                Ok(None) => return Ok(blocks.into_source().fingerprint()),
                Err(error) => return Ok(Err(error)),
            };
            if std::mem::take(&mut is_first)
                && let Some(why) = unsupported_format(block.bytes())
            {
                return Ok(Err(io::Error::other(why)));
            }
            let mut permit = self.budget.acquire(block.length);
            let (index, options, buffers) = (job.index, job.parse_options.clone(), self.buffers.clone());
            let task = move |_: &_| {
                lower_priority();
                let parsed = parse(block, &options, pop(&buffers.blocks));
                permit.grow(parsed.bad.len() * size_of::<BadLine>());
                Ok(PipelineItem { index, event: PipelineEvent::Block(Box::new(parsed), permit) })
            };
            self.pool.submit(task).map_err(|_| PoolClosed)?;
        }
    }
}

/// Describes a format that is not JSONL, detected from its first bytes.
fn unsupported_format(bytes: &[u8]) -> Option<&'static str> {
    match bytes {
        [0xff, 0xfe, ..] | [b'{', 0, ..] => Some("it is UTF-16; convert it first: iconv -f UTF-16LE -t UTF-8"),
        [0xfe, 0xff, ..] | [0, b'{', ..] => Some("it is UTF-16; convert it first: iconv -f UTF-16BE -t UTF-8"),
        [0x1f, 0x8b, ..] => Some("it is compressed twice; decompress it first: zcat"),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => Some("it is compressed twice; decompress it first: zstdcat"),
        [0xfd, b'7', b'z', b'X', ..] => {
            Some("it is compressed with xz, which is not supported; decompress it first: xzcat")
        }
        [b'B', b'Z', b'h', b'1'..=b'9', ..] => {
            Some("it is compressed with bzip2, which is not supported; decompress it first: bzcat")
        }
        [0x04, 0x22, 0x4d, 0x18, ..] | [0x02, 0x21, 0x4c, 0x18, ..] => {
            Some("it is compressed with lz4, which is not supported; decompress it first: lz4cat")
        }
        [b'L', b'Z', b'I', b'P', ..] => {
            Some("it is compressed with lzip, which is not supported; decompress it first: lzip -dc")
        }
        [b'P', b'K', 3, 4, ..] => {
            Some("it is compressed with zip, which is not supported; decompress it first: unzip -p")
        }
        [b'7', b'z', 0xbc, 0xaf, ..] => {
            Some("it is compressed with 7z, which is not supported; decompress it first: 7z x -so")
        }
        [0x1f, 0x9d, ..] => Some("it is compressed with compress, which is not supported; decompress it first: zcat"),
        [b'S', b'Q', b'L', b'i', b't', b'e', b' ', b'f', ..] => Some("it is an SQLite database, not JSONL"),
        _ => None,
    }
}

fn open(job: &FileJob, read: &Arc<AtomicU64>) -> io::Result<InputFile> {
    if let Some(copy) = &job.copy {
        let mut copy = copy.try_clone()?;
        if copy.metadata()?.len() > 0 {
            copy.seek(SeekFrom::Start(0))?;
            return InputFile::new(copy, None, job.source.compression, read, None);
        }
    }
    let file = match &job.source.path {
        Some(path) => File::open(path)?,
        None => File::from(io::stdin().as_fd().try_clone_to_owned()?),
    };
    let path = job.source.path.as_deref().filter(|_| job.source.is_file);
    InputFile::new(file, path, job.source.compression, read, job.copy.as_deref())
}

struct MemoryBudget {
    limit: usize,
    in_use: Mutex<(usize, bool)>,
    returned: Condvar,
}

/// Bytes of the budget that are in use until this is dropped.
pub(crate) struct Permit {
    budget: Arc<MemoryBudget>,
    bytes: usize,
}

impl MemoryBudget {
    fn new(limit: usize) -> Self {
        MemoryBudget { limit, in_use: Mutex::default(), returned: Condvar::new() }
    }

    /// Waits until the bytes are available. A block larger than the budget waits until no other is in flight.
    fn acquire(self: &Arc<Self>, bytes: usize) -> Permit {
        let in_use = self.in_use.lock().unwrap_or_else(PoisonError::into_inner);
        let full = |(in_use, closed): &mut (usize, bool)| !*closed && *in_use > 0 && *in_use + bytes > self.limit;
        let mut in_use = self.returned.wait_while(in_use, full).unwrap_or_else(PoisonError::into_inner);
        in_use.0 += bytes;
        Permit { budget: self.clone(), bytes }
    }

    /// Ends all waits, after cancellation.
    fn close(&self) {
        self.in_use.lock().unwrap_or_else(PoisonError::into_inner).1 = true;
        self.returned.notify_all();
    }
}

impl Permit {
    /// Adds bytes to the permit without waiting, because they are already allocated.
    fn grow(&mut self, bytes: usize) {
        self.bytes += bytes;
        self.budget.in_use.lock().unwrap_or_else(PoisonError::into_inner).0 += bytes;
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.budget.in_use.lock().unwrap_or_else(PoisonError::into_inner).0 -= self.bytes;
        self.budget.returned.notify_all();
    }
}
