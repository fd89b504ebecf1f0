//! lapin and amqprs as contenders: `peer-amqp CLIENT URI QUEUE MESSAGES PREFETCH MODE HANDLER-MS WORKERS` prints the
//! seconds from the first handler's start to the last one's end, and how many messages were handled, in all and
//! different ones. Who calls it checks the answer.
//!
//! Each is used as its own documentation shows. A handler that does nothing is called where messages received in; one that
//! waits runs in a task of its own, a semaphore holding them to so many at a time, and is acknowledged there: what one
//! writes by hand. With `watch` for the number of messages it never ends, and every message handled is a line.

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

/// How many messages one acknowledgement is for, in batches.
const ACK_BATCH: usize = 50;

/// Longer than any run should take.
const RUN_TIMEOUT: Duration = Duration::from_secs(600);

/// How long a channel stays open behind its last acknowledgement, when the clock has stopped. Of many single ones for a
/// quorum queue some are lost if the channel closes at once, and their messages are in the queue again. (Not so with a
/// classic queue: it seems that the broker has them and forgets them.)
const CLOSE_DELAY: Duration = Duration::from_millis(500);

/// How messages are acknowledged.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Each,
    Batch,
    None,
}

/// What is to be done.
struct Plan {
    uri: String,
    queue: String,
    /// More than ever received, when it is to watch.
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
            return Err("messages with work to do are acknowledged each".into());
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

    /// Whether all that are handled up to this one, the `nth`, are to be acknowledged with it.
    fn ends_batch(&self, nth: usize) -> bool {
        nth.is_multiple_of(ACK_BATCH) || nth == self.messages
    }

    /// As many as may work at a time.
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
