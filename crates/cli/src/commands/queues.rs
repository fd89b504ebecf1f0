//! `gristmill queues`: lists queues with their counts; its subcommands move, show and delete messages.

mod filter;
mod peek;
mod purge;
mod transfer;

use gristmill_amqp::{Client, Error as Fault, derived_queue_names};
use serde::Serialize;
use serde_json::json;

use super::amqp_common::{self, BrokerArgs};
use super::management::Management;
use crate::context::Context;
use crate::error::{Error, Outcome};
use crate::output::{Output, thousands};
use crate::settings::{Settings, consumers};

const EXAMPLES: &str = "\
Each queue is listed with its dead queue, QUEUE.dead, and its retry queues, QUEUE.retry.MILLISECONDS, where messages wait for \
another attempt, as far as these exist. Without names, the queues of the settings file's consumers are listed.

Messages that a consumer holds and has not acknowledged yet are not counted. Those of a stream are all that it keeps. \
RETURNING are messages whose wait is over and that the broker could not yet return to their queue, as when that is full; \
they are in no other count. Only the management API knows them (setting amqp.management), and its counts are up to 5 s \
old; without it, and for a queue that was just declared, they are unknown.

Exit codes:
  0    done
  1    a queue that was named does not exist; the broker or its management API refuses the user
  2    the system failed: no broker, or no management API at amqp.management

Examples:
  gristmill queues
  gristmill queues orders
  gristmill queues orders --json | jq '.items[0].messages'
  gristmill queues move orders.dead orders --where reason=attempts";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<Command>,

    /// The queues to list [default: those of the settings file's consumers]
    #[arg(value_name = "QUEUE")]
    names: Vec<String>,

    #[command(flatten)]
    place: BrokerArgs,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Move messages to another queue, such as dead letters back to theirs
    Move(transfer::Args),
    /// Show the first messages of a queue; they stay in it
    Peek(peek::Args),
    /// Delete the messages of a queue
    Purge(purge::Args),
}

/// A queue as it is.
#[derive(Debug, Serialize)]
struct Found {
    queue: String,
    exists: bool,
    messages: Option<u32>,
    consumers: Option<u32>,
    /// Messages that the broker is returning from this queue to the one that they wait for, and counts in neither. None is
    /// unknown.
    returning: Option<u64>,
}

/// A queue to be listed.
struct Wanted {
    name: String,
    /// Listed only if it exists.
    may_be_missing: bool,
    /// Looked up only if this one exists: the broker logs an error for each lookup of a queue that does not exist.
    only_with: Option<String>,
}

pub(crate) fn run(args: &Args, context: &mut Context) -> Result<Outcome, Error> {
    match &args.command {
        Some(Command::Move(args)) => return transfer::run(args, context),
        Some(Command::Peek(args)) => return peek::run(args, context),
        Some(Command::Purge(args)) => return purge::run(args, context),
        None => {}
    }
    args.place.note(context);
    let settings = context.settings()?;
    let wanted = wanted(args, &settings)?;
    let (signals, mut cancelled) = amqp_common::signals(1)?;
    let runtime = amqp_common::runtime(1)?;
    let found = runtime.block_on(async {
        let look = async {
            let client = amqp_common::builder(&settings.amqp, "gristmill queues").start().await?;
            look(&client, &wanted).await
        };
        tokio::select! {
            found = look => found.map(Some).map_err(amqp_common::failed),
            Some(()) = cancelled.recv() => Ok(None),
        }
    });
    runtime.shutdown_background();
    signals.stop();
    let Some(mut found) = found? else { return Ok(Outcome::Interrupted) };
    let counted = count_returning(&settings, &mut found);
    context.output.print(&json!({"items": found, "next_cursor": null}), |output| table(output, &found))?;
    let missing = found.iter().any(|one| !one.exists);
    let outcome = if missing { Outcome::UserError } else { Outcome::Done };
    match counted {
        Ok(()) => Ok(outcome),
        Err(error) => {
            let error = error.complete_commands(&context.hints);
            error.report();
            Ok(outcome.and(error.outcome()))
        }
    }
}

/// The queues to list: those that are named, or those of the settings file's consumers, each followed by its dead queue and its
/// retry queues.
fn wanted(args: &Args, settings: &Settings) -> Result<Vec<Wanted>, Error> {
    let named = match args.names.is_empty() {
        false => args.names.clone(),
        true => queues_of_consumers(settings)?,
    };
    let mut wanted: Vec<Wanted> = Vec::new();
    for queue in &named {
        // The dead queue, and then retry queues, of which the first exists whenever another does.
        let first = derived_queue_names(queue).nth(1);
        let beside = derived_queue_names(queue).enumerate().map(|(at, name)| Wanted {
            may_be_missing: !named.contains(&name),
            only_with: first.clone().filter(|_| at > 1 && !named.contains(&name)),
            name,
        });
        let own = Wanted { name: queue.clone(), may_be_missing: false, only_with: None };
        for one in std::iter::once(own).chain(beside) {
            if !wanted.iter().any(|other| other.name == one.name) {
                wanted.push(one);
            }
        }
    }
    Ok(wanted)
}

fn queues_of_consumers(settings: &Settings) -> Result<Vec<String>, Error> {
    if settings.consumers.is_empty() {
        return Err(Error::Setting(
            "no queue is named, and the settings file has no [[consumers]]; `gristmill queues QUEUE` shows one".to_owned(),
        ));
    }
    let queue = |declared| Ok(consumers::resolve(declared, "the settings file")?.queue);
    settings.consumers.iter().map(queue).collect()
}

async fn look(client: &Client, wanted: &[Wanted]) -> Result<Vec<Found>, Fault> {
    let mut found = Vec::new();
    for Wanted { name, may_be_missing, only_with } in wanted {
        let exists = |other: &String| found.iter().any(|one: &Found| one.queue == *other);
        if only_with.as_ref().is_some_and(|other| !exists(other)) {
            continue;
        }
        let queue = name.clone();
        match client.queue_depth(name).await {
            Ok((messages, consumers)) => {
                found.push(Found {
                    queue,
                    exists: true,
                    messages: Some(messages),
                    consumers: Some(consumers),
                    returning: None,
                });
            }
            Err(Fault::Channel { code: 404, .. }) if *may_be_missing => {}
            Err(Fault::Channel { code: 404, .. }) => {
                found.push(Found { queue, exists: false, messages: None, consumers: None, returning: None });
            }
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

/// Asks the management API, if its URL is set, for the counts that AMQP does not have.
fn count_returning(settings: &Settings, found: &mut [Found]) -> Result<(), Error> {
    let Some(management) = Management::of(settings) else { return Ok(()) };
    for one in found.iter_mut().filter(|one| one.exists) {
        one.returning = management.counts(&one.queue)?.and_then(|counts| counts.returning());
    }
    Ok(())
}

fn table(output: &Output, found: &[Found]) -> String {
    let number =
        |number: Option<u32>| number.map_or_else(|| "-".to_owned(), |number| thousands(number.into()));
    let row = |one: &Found| {
        let there = if one.exists { "" } else { "not there" };
        let returning = match one.returning {
            Some(count) => thousands(count),
            None if one.exists => "unknown".to_owned(),
            None => "-".to_owned(),
        };
        vec![one.queue.clone(), number(one.messages), number(one.consumers), returning, there.to_owned()]
    };
    output.table(
        &["QUEUE", "MESSAGES", "CONSUMERS", "RETURNING", ""],
        &found.iter().map(row).collect::<Vec<_>>(),
    )
}

/// Why a queue that was named cannot be used.
fn failed(fault: Fault) -> Error {
    let text = fault.to_string();
    match fault {
        Fault::Channel { code: 404, .. } => {
            Error::Setting(format!("{text}. `gristmill queues QUEUE` shows one"))
        }
        Fault::ConnectionRefused { code: 540, .. } => {
            Error::Setting(format!("{text}. Streams are read with `gristmill consume QUEUE --offset first`"))
        }
        other => amqp_common::failed(other),
    }
}
