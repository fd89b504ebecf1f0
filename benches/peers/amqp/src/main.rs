//! lapin and amqprs as peers: `peer-amqp CLIENT URI QUEUE MESSAGES PREFETCH MODE HANDLER-MS WORKERS` prints the seconds
//! from the start of the first handler to the end of the last, the number of handled messages and the number of
//! different ones. The calling process checks the result.
//!
//! Each client is used as its documentation shows. A handler that does nothing is called in the receive loop. A handler
//! that sleeps runs in its own task, limited by a semaphore, and acknowledges there, as one would write it by hand.
//! With `watch` as the number of messages it never ends, and prints a line for each handled message.

mod amqprs_client;
mod lapin_client;
#[path = "../../../src/amqp/message_counter.rs"]
mod message_counter;

use std::{error::Error, process::ExitCode, sync::Arc, time::Duration};

use message_counter::MessageCounter;
use tokio::sync::Semaphore;

type BoxError = Box<dyn Error + Send + Sync>;

const USAGE: &str = "usage: peer-amqp lapin|lapin-recovering|amqprs URI QUEUE MESSAGES|watch PREFETCH each|batch|none \
                     HANDLER-MS WORKERS";

/// Number of messages per acknowledgement in batch mode.
const ACK_BATCH: usize = 50;

/// Maximum duration of a run.
const RUN_TIMEOUT: Duration = Duration::from_secs(600);

/// Time that a channel stays open after its last acknowledgement, when the measurement has ended. If a channel is
/// closed at once after many single acknowledgements, a quorum queue loses some of them and their messages return to
/// the queue. (A classic queue does not: the broker seems to process the acknowledgements and delete the messages.)
const CLOSE_DELAY: Duration = Duration::from_millis(500);

/// How messages are acknowledged.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Each,
    Batch,
    None,
}

struct Plan {
    uri: String,
    queue: String,
    /// `usize::MAX` in `watch` mode.
    messages: usize,
    prefetch: u16,
    mode: Mode,
    work: Duration,
    workers: usize,
    counter: Arc<MessageCounter>,
}

impl Plan {
    fn parse(args: &[String]) -> Result<Self, BoxError> {
        let [uri, queue, messages, prefetch, mode, handler, workers] = args else {
            return Err(USAGE.into());
        };
        let mode = match mode.as_str() {
            "each" => Mode::Each,
            "batch" => Mode::Batch,
            "none" => Mode::None,
            _ => return Err(USAGE.into()),
        };
        let work = Duration::from_millis(handler.parse()?);
        if mode != Mode::Each && !work.is_zero() {
            return Err("handlers that sleep need the mode `each`".into());
        }
        Ok(Plan {
            uri: uri.clone(),
            queue: queue.clone(),
            messages: if messages == "watch" { usize::MAX } else { messages.parse()? },
            prefetch: prefetch.parse()?,
            mode,
            work,
            workers: workers.parse()?,
            counter: Arc::new(MessageCounter::new(messages)?),
        })
    }

    /// Returns whether the acknowledgement of the `nth` message ends a batch.
    fn ends_batch(&self, nth: usize) -> bool {
        nth.is_multiple_of(ACK_BATCH) || nth == self.messages
    }

    /// Returns a semaphore with one permit per worker.
    fn permits(&self) -> Arc<Semaphore> {
        Arc::new(Semaphore::new(self.workers))
    }
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match start(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(1)
        }
    }
}

fn start(args: &[String]) -> Result<(), BoxError> {
    let (client, args) = args.split_first().ok_or(USAGE)?;
    let plan = Plan::parse(args)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let run = async {
            match client.as_str() {
                "lapin" => lapin_client::run(&plan, false).await,
                "lapin-recovering" => lapin_client::run(&plan, true).await,
                "amqprs" => amqprs_client::run(&plan).await,
                _ => Err(USAGE.into()),
            }
        };
        tokio::time::timeout(RUN_TIMEOUT, run).await?
    })?;
    println!("{}", plan.counter.report());
    Ok(())
}
