//! Imports JSONL into SQLite with a minimal handwritten pipeline: the lower bound of `cargo xtask bench import`. Its
//! columns are given as input; it infers nothing, reports nothing, and panics on a bad line.
//!
//! `peer-floor FOLDER DATABASE SCHEMA`: parser threads, one for each core but one, cut blocks at line ends and parse
//! them; the main thread writes them in order. Memory is limited to the blocks in flight.
//!
//! Tried and rejected: binding without a copy (SQLITE_STATIC, unsafe code; no difference), a larger page cache
//! (slower), no journal (no difference), a parser for every core (slower with two), syncing in parallel with the work
//! (5 %).

#![forbid(unsafe_code)]

mod block;
mod schema;
mod writer;

use std::{
    fs,
    path::Path,
    sync::{Arc, Mutex},
    thread,
};

use block::{Rows, Source};
use crossbeam_channel::{Receiver, Sender, bounded};
use schema::Table;
use writer::Writer;

/// Maximum number of blocks between the parsers and the writer.
const MAX_BLOCKS_IN_FLIGHT: usize = 16;

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let [_, folder, database, schema] = &args[..] else {
        panic!("usage: peer-floor FOLDER DATABASE SCHEMA");
    };
    let schema = fs::read_to_string(schema).expect("the schema is readable");
    let tables: Vec<Arc<Table>> = Table::all(&schema).into_iter().map(Arc::new).collect();
    let source = Mutex::new(Source::new(folder.into(), tables));
    let parsers = thread::available_parallelism().map_or(1, |cores| cores.get() - 1).max(1);
    let (order, in_order) = bounded(MAX_BLOCKS_IN_FLIGHT);
    let (used, unused) = bounded(MAX_BLOCKS_IN_FLIGHT);
    thread::scope(|scope| {
        for _ in 0..parsers {
            let (order, unused, source) = (order.clone(), unused.clone(), &source);
            scope.spawn(move || parse(source, &order, &unused));
        }
        drop(order);
        let mut writer = Writer::new(Path::new(database));
        while let Ok(parsed) = in_order.recv() {
            let rows = parsed.recv().expect("the parsers do not panic");
            writer.write(&rows);
            // A full channel has enough buffers; this one is dropped.
            let _ = used.try_send(rows.into_buffer());
        }
        writer.finish();
    });
}

/// Takes blocks until there are no more. The lock is held until the place of the block in the order is reserved.
fn parse(source: &Mutex<Source>, order: &Sender<Receiver<Rows>>, unused: &Receiver<Vec<u8>>) {
    loop {
        let buffer = unused.try_recv().unwrap_or_default();
        let (done, result) = bounded(1);
        let block = {
            let mut source = source.lock().expect("the parsers do not panic");
            let Some(block) = source.next(buffer) else { return };
            order.send(result).expect("the writer runs until the parsers end");
            block
        };
        done.send(Rows::parse(block)).expect("the writer runs until the parsers end");
    }
}
