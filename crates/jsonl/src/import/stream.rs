//! The pipeline: one reader cuts files into blocks, workers parse them, and they come out in order.
//!
//! Owns how much is under way at a time: the pool's queue bounds the blocks, and the budget their bytes, for a line may
//! be larger than a block.

use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use gristmill_pool::worker::lower_priority;
use gristmill_pool::{Pool, ResultOrder, Results};

use super::control::ImportHandle;
use super::find::Source;
use super::options::ImportOptions;
use crate::block::Blocks;
use crate::error::{Error, Result};
use crate::parse::{Form, parse};
use crate::rows::{BadLine, Rows};
use crate::source::{Opened, Print};

/// A file to be read.
#[derive(Clone, Debug)]
pub(crate) struct Ticket {
    /// Which source.
    pub(crate) index: usize,
    pub(crate) source: Source,
    pub(crate) form: Arc<Form>,
    /// Shared by all files of a table.
    pub(crate) demand: Arc<Demand>,
    /// What standard input gave when it was read first.
    pub(crate) copy: Option<Arc<File>>,
}

/// Whether the writer needs the rest of a table's files.
#[derive(Debug, Default)]
pub(crate) struct Demand {
    /// They are read again, or cannot be loaded.
    pub(crate) abandoned: AtomicBool,
    /// The table has as many rows as are wanted.
    pub(crate) full: AtomicBool,
}

/// What comes out.
pub(crate) struct Item {
    /// Which source.
    pub(crate) index: usize,
    pub(crate) event: Event,
}

pub(crate) enum Event {
    Rows(Box<Rows>, Permit),
    /// The file was read to its end, or not.
    End(io::Result<Print>),
}

/// Blocks under way, beyond those in the pool's hands.
const BUDGET_BLOCKS: usize = 24;

/// Starts to read. The pool is for stopping it early.
pub(crate) fn start(
    tickets: Vec<Ticket>,
    options: &ImportOptions,
    control: &Arc<ImportHandle>,
    spare: &Arc<Spare>,
) -> Result<(Pool<Item>, Results<Item>)> {
    let workers = options.worker_count();
    let builder = Pool::builder()
        .name("parse")
        .workers(workers)
        .queue_capacity(workers * 2)
        .result_capacity(workers * 2);
    let built = builder.build_with_results(ResultOrder::AsSubmitted);
    let (pool, results) = built.map_err(|error| Error::System(error.to_string()))?;
    let budget = Arc::new(Budget::new(options.block.saturating_mul(BUDGET_BLOCKS.max(workers * 4))));
    control.wake_with({
        let (pool, budget) = (pool.clone(), budget.clone());
        move || {
            pool.cancel();
            budget.close();
        }
    });
    let reader = Reader {
        spare: spare.clone(),
        pool: pool.clone(),
        budget,
        control: control.clone(),
        options: options.clone(),
    };
    let thread = std::thread::Builder::new().name("read".to_owned());
    let spawned = thread.spawn(move || {
        // A pool that takes no more has been told to stop.
        let _ = tickets.into_iter().try_for_each(|ticket| reader.file(&ticket));
        reader.pool.close();
    });
    spawned.map_err(|error| Error::System(format!("cannot start a thread: {error}")))?;
    Ok((pool, results))
}

/// What was used and can be used again: buffers, and rows without theirs. Fresh memory has to be cleared, and costs a fault
/// a page: a fifteenth of all the work.
#[derive(Default)]
pub(crate) struct Spare {
    buffers: Mutex<Vec<Vec<u8>>>,
    rows: Mutex<Vec<Rows>>,
}

fn pop<T: Default>(spare: &Mutex<Vec<T>>) -> T {
    spare.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default()
}

fn push<T>(spare: &Mutex<Vec<T>>, used: T) {
    spare.lock().unwrap_or_else(PoisonError::into_inner).push(used);
}

impl Spare {
    /// Takes rows that nobody needs any more. A very long line's are not kept.
    pub(crate) fn give(&self, mut rows: Rows, block: usize) {
        let buffer = rows.original.take().unwrap_or_else(|| std::mem::take(&mut rows.text));
        if buffer.len() <= block * 2 {
            push(&self.buffers, buffer);
        }
        // Rows take some times the room of their text.
        let room = rows.beside.capacity().max(rows.text.capacity()).max(rows.cells.capacity() * 8);
        if room <= block * 2 {
            push(&self.rows, rows);
        }
    }
}

struct Reader {
    spare: Arc<Spare>,
    pool: Pool<Item>,
    budget: Arc<Budget>,
    control: Arc<ImportHandle>,
    options: ImportOptions,
}

/// The pool takes nothing more.
struct Stopped;

impl Reader {
    fn file(&self, ticket: &Ticket) -> std::result::Result<(), Stopped> {
        let index = ticket.index;
        let end = match self.blocks(ticket) {
            Ok(Ok(print)) => Ok(print),
            Ok(Err(error)) => Err(error),
            Err(stopped) => return Err(stopped),
        };
        self.pool.submit(move |_| Ok(Item { index, event: Event::End(end) })).map_err(|_| Stopped)?;
        Ok(())
    }

    fn blocks(&self, ticket: &Ticket) -> std::result::Result<io::Result<Print>, Stopped> {
        let opened = match open(ticket, &self.control.bytes_read) {
            Ok(opened) => opened,
            Err(error) => return Ok(Err(error)),
        };
        let mut blocks = Blocks::new(opened, self.options.block, self.options.max_line);
        let mut is_first = true;
        // What can be read only once is read to its end, whatever becomes of it: the next pass has only the copy.
        let is_once = ticket.copy.is_some();
        loop {
            if self.control.is_cancelled() {
                return Err(Stopped);
            }
            let is_set = |flag: &AtomicBool| flag.load(Ordering::Relaxed);
            if is_set(&ticket.demand.full) || (is_set(&ticket.demand.abandoned) && !is_once) {
                return Ok(Err(io::Error::other("abandoned")));
            }
            let block = match blocks.next(pop(&self.spare.buffers)) {
                Ok(Some(block)) => block,
                Ok(None) => return Ok(blocks.into_source().print()),
                Err(error) => return Ok(Err(error)),
            };
            if std::mem::take(&mut is_first)
                && let Some(why) = not_lines(block.bytes())
            {
                return Ok(Err(io::Error::other(why)));
            }
            let mut permit = self.budget.take(block.length);
            let (index, form, spare) = (ticket.index, ticket.form.clone(), self.spare.clone());
            let task = move |_: &_| {
                lower_priority();
                let rows = parse(block, &form, pop(&spare.rows));
                permit.grow(rows.bad.len() * size_of::<BadLine>());
                Ok(Item { index, event: Event::Rows(Box::new(rows), permit) })
            };
            self.pool.submit(task).map_err(|_| Stopped)?;
        }
    }
}

/// What a source is that begins so, and cannot be lines of JSON.
fn not_lines(bytes: &[u8]) -> Option<&'static str> {
    match bytes {
        [0xff, 0xfe, ..] | [b'{', 0, ..] => {
            Some("it is UTF-16; convert it first: iconv -f UTF-16LE -t UTF-8")
        }
        [0xfe, 0xff, ..] | [0, b'{', ..] => {
            Some("it is UTF-16; convert it first: iconv -f UTF-16BE -t UTF-8")
        }
        [0x1f, 0x8b, ..] => Some("it is compressed twice; unpack it first: zcat"),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => Some("it is compressed twice; unpack it first: zstdcat"),
        [0xfd, b'7', b'z', b'X', ..] => {
            Some("it is compressed with xz, which is not read; decompress it first: xzcat")
        }
        [b'B', b'Z', b'h', b'1'..=b'9', ..] => {
            Some("it is compressed with bzip2, which is not read; decompress it first: bzcat")
        }
        [0x04, 0x22, 0x4d, 0x18, ..] | [0x02, 0x21, 0x4c, 0x18, ..] => {
            Some("it is compressed with lz4, which is not read; decompress it first: lz4cat")
        }
        [b'L', b'Z', b'I', b'P', ..] => {
            Some("it is compressed with lzip, which is not read; decompress it first: lzip -dc")
        }
        [b'P', b'K', 3, 4, ..] => {
            Some("it is compressed with zip, which is not read; decompress it first: unzip -p")
        }
        [b'7', b'z', 0xbc, 0xaf, ..] => {
            Some("it is compressed with 7z, which is not read; decompress it first: 7z x -so")
        }
        [0x1f, 0x9d, ..] => {
            Some("it is compressed with compress, which is not read; decompress it first: zcat")
        }
        [b'S', b'Q', b'L', b'i', b't', b'e', b' ', b'f', ..] => Some("it is an SQLite database, not JSONL"),
        _ => None,
    }
}

fn open(ticket: &Ticket, read: &Arc<AtomicU64>) -> io::Result<Opened> {
    if let Some(copy) = &ticket.copy {
        let mut again = copy.try_clone()?;
        if again.metadata()?.len() > 0 {
            again.seek(SeekFrom::Start(0))?;
            return Opened::new(again, None, ticket.source.packing, read, None);
        }
    }
    let file = match &ticket.source.path {
        Some(path) => File::open(path)?,
        None => File::from(io::stdin().as_fd().try_clone_to_owned()?),
    };
    let path = ticket.source.path.as_deref().filter(|_| ticket.source.is_file);
    Opened::new(file, path, ticket.source.packing, read, ticket.copy.as_deref())
}

/// How many bytes may be under way.
struct Budget {
    most: usize,
    taken: Mutex<(usize, bool)>,
    returned: Condvar,
}

/// Some of them, until it is dropped.
pub(crate) struct Permit {
    budget: Arc<Budget>,
    bytes: usize,
}

impl Budget {
    fn new(most: usize) -> Self {
        Budget { most, taken: Mutex::default(), returned: Condvar::new() }
    }

    /// Waits until there is room. What is larger than all of it goes alone.
    fn take(self: &Arc<Self>, bytes: usize) -> Permit {
        let taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let full = |(taken, closed): &mut (usize, bool)| !*closed && *taken > 0 && *taken + bytes > self.most;
        let mut taken = self.returned.wait_while(taken, full).unwrap_or_else(PoisonError::into_inner);
        taken.0 += bytes;
        Permit { budget: self.clone(), bytes }
    }

    /// Lets all through: nothing will come of it.
    fn close(&self) {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner).1 = true;
        self.returned.notify_all();
    }
}

impl Permit {
    /// More of them than was thought. It does not wait: what is there is there; but the next does.
    fn grow(&mut self, bytes: usize) {
        self.bytes += bytes;
        self.budget.taken.lock().unwrap_or_else(PoisonError::into_inner).0 += bytes;
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.budget.taken.lock().unwrap_or_else(PoisonError::into_inner).0 -= self.bytes;
        self.budget.returned.notify_all();
    }
}
