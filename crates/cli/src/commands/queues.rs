//! `gristmill queues`: lists queues with their counts. Subcommands move, show and delete messages.

mod filter;
mod peek;
mod purge;
mod transfer;

use gristmill_amqp::{Client, Error as AmqpError, derived_queue_names};
use serde::Serialize;

use super::amqp_common::{self, BrokerArgs, unless_cancelled, with_client};
use super::management::Management;
use super::paging;
use crate::context::Context;
use crate::error::{Error, Outcome};
use crate::output::Output;
use crate::settings::{Settings, consumers};
use crate::units::thousands;

const HELP: &str = "\
Each queue is listed with its dead queue, QUEUE.dead, and its retry queues, QUEUE.retry.MILLISECONDS, if they exist.

MESSAGES counts the messages that are ready; for a stream, all that it stores. Messages that a consumer has received \
and not acknowledged are not counted. RETURNING counts the messages whose retry delay is over and that the broker \
cannot return to their queue, for example because it is full; no other count includes them. It needs the management \
API (setting amqp.management), whose counts are up to 5 s old. Without the API, and for a queue that was just \
declared, it is unknown.

Exit status:
  0    done
  1    a named queue does not exist; access refused by the broker or by its
       management API
  2    system failure: no broker, or no management API at amqp.management

Examples:
  gristmill queues
  gristmill queues orders
  gristmill queues orders --json | jq '.items[0].messages'
  gristmill queues move orders.dead orders --where reason=attempts";

#[derive(Debug, clap::Args)]
#[command(after_help = HELP, args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<Command>,

    /// Queues to list [default: the queues of the consumers in the settings file]
    #[arg(value_name = "QUEUE")]
    names: Vec<String>,

    #[command(flatten)]
    broker: BrokerArgs,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Move messages to another queue, such as dead letters back to their queue
    Move(transfer::Args),
    /// Show the first messages of a queue without removing them
    Peek(peek::Args),
    /// Delete all ready messages of a queue
    Purge(purge::Args),
}

#[derive(Debug, Serialize)]
struct ListedQueue {
    queue: String,
    exists: bool,
    messages: Option<u32>,
    consumers: Option<u32>,
    /// Messages that the broker is returning from this queue to another and counts in neither. None if unknown.
    returning: Option<u64>,
}

struct QueueLookup {
    name: String,
    /// The queue is listed only if it exists.
    is_optional: bool,
    /// Looked up only if this queue exists, because the broker logs an error for each lookup of a missing queue.
    only_if_exists: Option<String>,
}

pub(crate) fn run(args: &Args, context: &mut Context) -> Result<Outcome, Error> {
    match &args.command {
        Some(Command::Move(args)) => return transfer::run(args, context),
        Some(Command::Peek(args)) => return peek::run(args, context),
        Some(Command::Purge(args)) => return purge::run(args, context),
        None => {}
    }
    args.broker.apply(context);
    let settings = context.settings()?;
    let lookups = lookups(args, &settings)?;
    let found = with_client(&settings, "gristmill queues", async |client, stop| {
        unless_cancelled(stop, look_up(client, &lookups)).await
    })?;
    let Some(found) = found.flatten() else { return Ok(Outcome::Interrupted) };
    let mut found = found.map_err(amqp_common::failed)?;
    let counted = count_returning(&settings, &mut found);
    context.output.print(&paging::whole(&found), |output| table(output, &found))?;
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

/// Returns the named queues, or those of the settings file, each followed by its dead queue and retry queues.
fn lookups(args: &Args, settings: &Settings) -> Result<Vec<QueueLookup>, Error> {
    let named = match args.names.is_empty() {
        false => args.names.clone(),
        true => queues_of_consumers(settings)?,
    };
    let mut lookups: Vec<QueueLookup> = Vec::new();
    for queue in &named {
        // The dead queue, then the retry queues, of which the first exists whenever another one does.
        let first = derived_queue_names(queue).nth(1);
        let derived = derived_queue_names(queue).enumerate().map(|(at, name)| QueueLookup {
            is_optional: !named.contains(&name),
            only_if_exists: first.clone().filter(|_| at > 1 && !named.contains(&name)),
            name,
        });
        let own = QueueLookup { name: queue.clone(), is_optional: false, only_if_exists: None };
        for one in std::iter::once(own).chain(derived) {
            if !lookups.iter().any(|other| other.name == one.name) {
                lookups.push(one);
            }
        }
    }
    Ok(lookups)
}

fn queues_of_consumers(settings: &Settings) -> Result<Vec<String>, Error> {
    if settings.consumers.is_empty() {
        return Err(Error::Setting(
            "no queue given, and the settings file has no [[consumers]]; name one with `gristmill queues QUEUE`"
                .to_owned(),
        ));
    }
    let queue = |declared| Ok(consumers::resolve(declared, "the settings file")?.queue);
    settings.consumers.iter().map(queue).collect()
}

async fn look_up(client: &Client, lookups: &[QueueLookup]) -> Result<Vec<ListedQueue>, AmqpError> {
    let mut found = Vec::new();
    for QueueLookup { name, is_optional, only_if_exists } in lookups {
        let exists = |other: &String| found.iter().any(|one: &ListedQueue| one.queue == *other);
        if only_if_exists.as_ref().is_some_and(|other| !exists(other)) {
            continue;
        }
        let queue = name.clone();
        match client.queue_depth(name).await {
            Ok((messages, consumers)) => {
                let (messages, consumers) = (Some(messages), Some(consumers));
                found.push(ListedQueue { queue, exists: true, messages, consumers, returning: None });
            }
            Err(AmqpError::Channel { code: 404, .. }) if *is_optional => {}
            Err(AmqpError::Channel { code: 404, .. }) => {
                found.push(ListedQueue { queue, exists: false, messages: None, consumers: None, returning: None });
            }
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

/// Adds the counts of the management API, if its URL is set.
fn count_returning(settings: &Settings, found: &mut [ListedQueue]) -> Result<(), Error> {
    let Some(management) = Management::from_settings(settings) else { return Ok(()) };
    for one in found.iter_mut().filter(|one| one.exists) {
        one.returning = management.counts(&one.queue)?.and_then(|counts| counts.returning());
    }
    Ok(())
}

fn table(output: &Output, found: &[ListedQueue]) -> String {
    let number = |number: Option<u32>| number.map_or_else(|| "-".to_owned(), |number| thousands(number.into()));
    let row = |one: &ListedQueue| {
        let state = if one.exists { "" } else { "does not exist" };
        let returning = match one.returning {
            Some(count) => thousands(count),
            None if one.exists => "unknown".to_owned(),
            None => "-".to_owned(),
        };
        vec![one.queue.clone(), number(one.messages), number(one.consumers), returning, state.to_owned()]
    };
    output.table(&["QUEUE", "MESSAGES", "CONSUMERS", "RETURNING", ""], found.iter().map(row))
}

/// Adds advice to an error about a named queue.
fn failed(error: AmqpError) -> Error {
    let text = error.to_string();
    match error {
        AmqpError::Channel { code: 404, .. } => Error::Setting(format!("{text}. Check its name and the virtual host")),
        AmqpError::ConnectionRefused { code: 540, .. } => {
            Error::Setting(format!("{text}. Read a stream with `gristmill consume QUEUE --offset first`"))
        }
        other => amqp_common::failed(other),
    }
}
