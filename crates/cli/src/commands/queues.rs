//! `gristmill queues`: how many messages wait, and for how many consumers.

use gristmill_amqp::{Client, Error as Fault, companions};
use serde::Serialize;
use serde_json::json;

use super::broker::{self, Place};
use crate::context::Context;
use crate::error::{Error, Outcome};
use crate::output::{Output, grouped};
use crate::settings::{Settings, consumers};

const EXAMPLES: &str = "\
Without names, the queues of the settings file's consumers are shown, and, where they are there, those beside them: \
QUEUE.dead for dead letters, and QUEUE.retry.MILLISECONDS where messages wait for another attempt.

Messages that a consumer holds and has not acknowledged yet are not counted. Those of a stream are all that it keeps.

Exit codes:
  0    done
  1    a queue that was named is not there; no entry at the broker
  2    the system failed: no broker

Examples:
  gristmill queues
  gristmill queues orders orders.dead
  gristmill queues orders --json | jq '.items[0].messages'";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Which queues [default: those of the settings file's consumers]
    #[arg(value_name = "QUEUE")]
    names: Vec<String>,

    #[command(flatten)]
    place: Place,
}

/// A queue as it is.
#[derive(Debug, Serialize)]
struct Found {
    queue: String,
    exists: bool,
    messages: Option<u32>,
    consumers: Option<u32>,
}

/// A queue to be looked at.
struct Wanted {
    name: String,
    /// Said so only when it is there.
    may_be_missing: bool,
}

pub(crate) fn run(args: &Args, context: &mut Context) -> Result<Outcome, Error> {
    args.place.note(context);
    let settings = context.settings()?;
    let wanted = wanted(args, &settings)?;
    let (signals, mut told) = broker::signals(1)?;
    let runtime = broker::runtime(1)?;
    let found = runtime.block_on(async {
        let look = async {
            let client = broker::builder(&settings.amqp, "gristmill queues").start().await?;
            look(&client, &wanted).await
        };
        tokio::select! {
            found = look => found.map(Some).map_err(broker::failed),
            Some(()) = told.recv() => Ok(None),
        }
    });
    runtime.shutdown_background();
    signals.stop();
    let Some(found) = found? else { return Ok(Outcome::Interrupted) };
    context.output.say(&json!({"items": found, "next_cursor": null}), |output| table(output, &found))?;
    let missing = found.iter().any(|one| !one.exists);
    Ok(if missing { Outcome::ForTheUser } else { Outcome::Done })
}

fn wanted(args: &Args, settings: &Settings) -> Result<Vec<Wanted>, Error> {
    if !args.names.is_empty() {
        let named = args.names.iter().map(|name| Wanted { name: name.clone(), may_be_missing: false });
        return Ok(named.collect());
    }
    if settings.consumers.is_empty() {
        return Err(Error::Setting(
            "no queue is named, and the settings file has no [[consumers]]; `gristmill queues QUEUE` shows one".to_owned(),
        ));
    }
    let mut wanted: Vec<Wanted> = Vec::new();
    for declared in &settings.consumers {
        let queue = consumers::resolve(declared, "the settings file")?.queue;
        if wanted.iter().any(|one| one.name == queue) {
            continue;
        }
        let beside = companions(&queue);
        let beside: Vec<Wanted> = beside.map(|name| Wanted { name, may_be_missing: true }).collect();
        wanted.push(Wanted { name: queue, may_be_missing: false });
        wanted.extend(beside);
    }
    Ok(wanted)
}

async fn look(client: &Client, wanted: &[Wanted]) -> Result<Vec<Found>, Fault> {
    let mut found = Vec::new();
    for Wanted { name, may_be_missing } in wanted {
        let queue = name.clone();
        match client.depth(name).await {
            Ok((messages, consumers)) => {
                found.push(Found {
                    queue,
                    exists: true,
                    messages: Some(messages),
                    consumers: Some(consumers),
                });
            }
            Err(Fault::Channel { code: 404, .. }) if *may_be_missing => {}
            Err(Fault::Channel { code: 404, .. }) => {
                found.push(Found { queue, exists: false, messages: None, consumers: None });
            }
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

fn table(output: &Output, found: &[Found]) -> String {
    let number = |number: Option<u32>| number.map_or_else(|| "-".to_owned(), |number| grouped(number.into()));
    let row = |one: &Found| {
        let there = if one.exists { "" } else { "not there" };
        vec![one.queue.clone(), number(one.messages), number(one.consumers), there.to_owned()]
    };
    output.table(&["QUEUE", "MESSAGES", "CONSUMERS", ""], &found.iter().map(row).collect::<Vec<_>>())
}
