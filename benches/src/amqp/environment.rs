//! Where it is played: a broker of its own, its queues, and a folder.
//!
//! Owns the broker, and what lies in its queues before a run and after it. Queues are filled by Gristmill's own publisher,
//! for everybody alike, every message confirmed before the clock starts. One that a run remaining something in is not used again.

use std::{fs, path::PathBuf, time::Duration};

use gristmill_amqp::{Client, Error, Message, Queue};
use gristmill_broker::Broker;
use tokio::runtime::Runtime;

use crate::scratch::Scratch;

/// Of one message: its number in 20 digits, then something, then the end of a line.
pub(super) const BYTES: usize = 100;

/// How many are published at a time.
const PUBLISH_BATCH: u64 = 10_000;

/// How long the broker is waited for to notice that a consumer is gone.
const BROKER_TIMEOUT: Duration = Duration::from_secs(20);

/// A kind of queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QueueKind {
    Classic,
    Quorum,
}

impl QueueKind {
    pub(super) const ALL: [QueueKind; 2] = [QueueKind::Classic, QueueKind::Quorum];

    pub(super) fn name(self) -> &'static str {
        match self {
            QueueKind::Classic => "classic",
            QueueKind::Quorum => "quorum",
        }
    }

    fn queue(self, name: &str) -> Queue {
        match self {
            QueueKind::Classic => Queue::classic(name),
            QueueKind::Quorum => Queue::quorum(name),
        }
    }
}

/// The broker and what is around it.
pub(super) struct Environment {
    pub(super) broker: Broker,
    runtime: Runtime,
    scratch: Scratch,
    /// How many runs remaining something behind.
    queue_generation: u32,
}

impl Environment {
    pub(super) fn start() -> Result<Self, String> {
        let broker = Broker::start().map_err(|fault| fault.to_string())?;
        let runtime = Runtime::new().map_err(|error| error.to_string())?;
        Ok(Environment {
            broker,
            runtime,
            scratch: Scratch::new(&std::env::temp_dir())?,
            queue_generation: 0,
        })
    }

    /// A folder for what a run writes.
    pub(super) fn folder(&self) -> PathBuf {
        self.scratch.path().to_path_buf()
    }

    /// A queue of this kind with so many messages and nothing else in it: its name.
    pub(super) fn fill(&self, kind: QueueKind, messages: u64) -> Result<String, String> {
        let name = format!("{}-{}", kind.name(), self.queue_generation);
        let filled = self.runtime.block_on(async {
            let client = Client::builder(self.broker.uri()).queue(kind.queue(&name)).start().await?;
            let publisher = client.publisher();
            for first in (0..messages).step_by(PUBLISH_BATCH as usize) {
                let some = first..(first + PUBLISH_BATCH).min(messages);
                let results =
                    publisher.publish_all(some.map(|nth| Message::to_queue(&name, body(nth)))).await;
                results.into_iter().collect::<Result<(), _>>()?;
            }
            client.shutdown(BROKER_TIMEOUT).await;
            Ok::<(), Error>(())
        });
        filled.map(|()| name).map_err(|error| format!("filling a {} queue: {error}", kind.name()))
    }

    /// How many messages are remaining in a queue once nobody consumes from it: those that were delivered and not
    /// acknowledged are back in it then.
    pub(super) fn remaining(&mut self, queue: &str) -> Result<u32, String> {
        let counted = self.runtime.block_on(async {
            let client = Client::builder(self.broker.uri()).start().await?;
            let counted = tokio::time::timeout(BROKER_TIMEOUT, async {
                loop {
                    match client.queue_depth(queue).await? {
                        (messages, 0) => return Ok(messages),
                        _ => tokio::time::sleep(Duration::from_millis(5)).await,
                    }
                }
            });
            let counted = counted.await;
            client.shutdown(BROKER_TIMEOUT).await;
            counted.map_or_else(|_| Ok(None), |remaining: Result<u32, Error>| remaining.map(Some))
        });
        let remaining = match counted {
            Ok(Some(remaining)) => Ok(remaining),
            Ok(None) => Err(format!("{queue} still has a consumer after {} s", BROKER_TIMEOUT.as_secs())),
            Err(error) => Err(format!("{queue}: {error}")),
        };
        if remaining != Ok(0) {
            self.discard_queues();
        }
        remaining
    }

    /// The queues as they are will not be used again.
    pub(super) fn discard_queues(&mut self) {
        self.queue_generation += 1;
    }

    /// Seconds of the processor's time that the broker has used so far, where the system tells.
    pub(super) fn broker_cpu(&self) -> Option<f64> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.broker.id()?)).ok()?;
        parse_cpu_seconds(&stat)
    }
}

/// From a line of Linux about a process, as proc(5) has it. Time is in hundredths of a second there, on any machine.
fn parse_cpu_seconds(stat: &str) -> Option<f64> {
    // What the process is called stands in parentheses, and may have spaces and parentheses in it.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let mut ticks = || fields.next()?.parse::<f64>().ok();
    Some((ticks()? + ticks()?) / 100.0)
}

fn body(nth: u64) -> String {
    format!("{nth:020}{:x<1$}\n", "", BYTES - 21)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_a_line_with_a_number_in_front() {
        let body = body(17);
        assert_eq!(body.len(), BYTES);
        assert!(body.starts_with("00000000000000000017x") && body.ends_with("xx\n"), "{body}");
    }

    #[test]
    fn the_time_of_a_process_is_read_past_its_name() {
        let stat = "4711 (a (very) odd name) S 1 2 3 0 -1 4 5 6 7 8 150 25 0 0 20 0 9 0";
        assert_eq!(parse_cpu_seconds(stat), Some(1.75));
        assert_eq!(parse_cpu_seconds("4711 (short) S 1"), None);
    }
}
