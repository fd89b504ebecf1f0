//! The environment of the runs: a broker, its queues and a temporary folder.
//!
//! Owns the broker and the contents of its queues before and after a run. Gristmill's publisher fills the queues for
//! all candidates, and every message is confirmed before the measurement starts. A queue that still has messages after
//! a run is not used again.

use std::{fs, path::PathBuf, time::Duration};

use clap::ValueEnum;
use gristmill_amqp::{Client, Error, Message, Queue};
use gristmill_broker::Broker;
use tokio::runtime::Runtime;

use crate::{options::value_name, scratch::Scratch};

/// Size of a message in bytes: its number in 20 digits, padding, a newline.
pub(super) const BYTES: usize = 100;

/// Number of messages published at a time.
const PUBLISH_BATCH: u64 = 10_000;

/// Maximum wait until the broker notices that a consumer is gone, and for a client to shut down.
const BROKER_TIMEOUT: Duration = Duration::from_secs(20);

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum QueueKind {
    Classic,
    Quorum,
}

impl QueueKind {
    fn queue(self, name: &str) -> Queue {
        match self {
            QueueKind::Classic => Queue::classic(name),
            QueueKind::Quorum => Queue::quorum(name),
        }
    }
}

/// A running broker and a folder for the runs.
pub(super) struct Environment {
    pub(super) broker: Broker,
    runtime: Runtime,
    scratch: Scratch,
    /// Suffix of the queue names, incremented after a run that left messages in its queue.
    queue_generation: u32,
}

impl Environment {
    pub(super) fn start() -> Result<Self, String> {
        let broker = Broker::start().map_err(|fault| fault.to_string())?;
        let runtime = Runtime::new().map_err(|error| error.to_string())?;
        Ok(Environment { broker, runtime, scratch: Scratch::new(&std::env::temp_dir())?, queue_generation: 0 })
    }

    /// Returns the folder for the files of a run.
    pub(super) fn folder(&self) -> PathBuf {
        self.scratch.path().to_path_buf()
    }

    /// Fills a queue of this kind with this number of messages and returns its name.
    pub(super) fn fill(&self, kind: QueueKind, messages: u64) -> Result<String, String> {
        let name = format!("{}-{}", value_name(&kind), self.queue_generation);
        let filled = self.runtime.block_on(async {
            let client = Client::builder(self.broker.uri()).queue(kind.queue(&name)).start().await?;
            let publisher = client.publisher();
            for first in (0..messages).step_by(PUBLISH_BATCH as usize) {
                let batch = first..(first + PUBLISH_BATCH).min(messages);
                let results = publisher.publish_all(batch.map(|nth| Message::to_queue(&name, body(nth)))).await;
                results.into_iter().collect::<Result<(), _>>()?;
            }
            client.shutdown(BROKER_TIMEOUT).await;
            Ok::<(), Error>(())
        });
        filled.map(|()| name).map_err(|error| format!("cannot fill a {} queue: {error}", value_name(&kind)))
    }

    /// Returns the number of messages in a queue once it has no consumer: messages that were delivered but not
    /// acknowledged are then back in it.
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

    /// Makes the next run use new queues.
    pub(super) fn discard_queues(&mut self) {
        self.queue_generation += 1;
    }

    /// Returns the CPU seconds that the broker has used so far, if the system reports them.
    pub(super) fn broker_cpu(&self) -> Option<f64> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.broker.id()?)).ok()?;
        parse_cpu_seconds(&stat)
    }
}

/// Parses the CPU seconds from a line of /proc/PID/stat; see proc(5). The unit there is 1/100 s on any machine.
fn parse_cpu_seconds(stat: &str) -> Option<f64> {
    // The name of the process is in parentheses and can itself contain spaces and parentheses.
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
    fn body_is_a_line_that_starts_with_its_number() {
        let body = body(17);
        assert_eq!(body.len(), BYTES);
        assert!(body.starts_with("00000000000000000017x") && body.ends_with("xx\n"), "{body}");
    }

    #[test]
    fn cpu_seconds_are_parsed_when_the_process_name_has_parentheses() {
        let stat = "4711 (a (very) odd name) S 1 2 3 0 -1 4 5 6 7 8 150 25 0 0 20 0 9 0";
        assert_eq!(parse_cpu_seconds(stat), Some(1.75));
        assert_eq!(parse_cpu_seconds("4711 (short) S 1"), None);
    }
}
