//! `gristmill queues move`: messages of one queue into another, such as dead letters back into their queue.

use gristmill_amqp::{Error as Fault, Transfer, Transferred};
use serde_json::json;

use super::super::amqp_common::{self, BrokerArgs};
use super::super::to_object;
use super::failed;
use super::filter::{self, Condition};
use crate::context::Context;
use crate::error::{Error, Outcome};
use crate::output::{count_of, note, thousands};

pub(super) const HELP: &str = "\
Each message is published to TARGET, confirmed by the broker, and only then removed from SOURCE. Killed at any instant, \
it loses none; a message that was confirmed and not yet removed is then in both queues.

Only messages that are in SOURCE at the start are moved. Messages that do not match are held until the end and go back to \
SOURCE, where their order may change; at most 1,000,000 are held. For a quorum queue the broker counts that as a \
delivery of each: a queue with a delivery limit drops or dead-letters a message that was looked at too often.

A message keeps its properties, except expiration, and its headers, and begins anew: notes about its failures (x-gristmill-…, x-death) are \
removed. A consumer of TARGET sees the exchange and the routing key that it was first published with.

Keys of --where:
  reason          why it is a dead letter: permanent, attempts, starts or unreadable
  error           part of the text of its last error
  consumer, queue that dead-lettered it, where it came from
  id, type, correlation-id, routing-key
  header:NAME     the value of any header

Exit codes:
  0    done
  1    a wrong argument; a queue that does not exist; a message that cannot be moved
  2    the system failed: no broker, or one that does not confirm; a full queue
  130  interrupted; what it reports as moved is

Examples:
  gristmill queues move orders.dead orders --dry-run
  gristmill queues move orders.dead orders --where reason=attempts --limit 100
  gristmill queues move orders.dead orders --where 'error=connection refused'";

#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub(crate) struct Args {
    /// The queue to take messages from
    source: String,

    /// The queue to put them into; it must exist
    target: String,

    /// Only messages with this; may be given several times, and then all must hold
    #[arg(long = "where", value_name = "KEY=VALUE", value_parser = filter::condition)]
    conditions: Vec<Condition>,

    /// Move at most N messages
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,

    /// Move nothing; count the messages that would be moved
    #[arg(long)]
    dry_run: bool,

    #[command(flatten)]
    place: BrokerArgs,
}

pub(super) fn run(args: &Args, context: &mut Context) -> Result<Outcome, Error> {
    args.place.note(context);
    let settings = context.settings()?;
    let conditions = args.conditions.clone();
    let mut transfer = Transfer::new(&args.source, &args.target)
        .only(move |delivery| filter::matches(&conditions, delivery));
    if let Some(limit) = args.limit {
        transfer = transfer.limit(limit);
    }
    if args.dry_run {
        transfer = transfer.dry_run();
    }
    let (signals, mut cancelled) = amqp_common::signals(1)?;
    let runtime = amqp_common::runtime(2)?;
    let ended = runtime.block_on(async {
        let start = amqp_common::builder(&settings.amqp, "gristmill queues move").start();
        let client = tokio::select! {
            client = start => client.map_err(amqp_common::failed)?,
            Some(()) = cancelled.recv() => return Ok(None),
        };
        let cancelled = async {
            cancelled.recv().await;
        };
        let ended = client.transfer(&transfer, cancelled).await;
        amqp_common::close(client).await;
        Ok::<_, Error>(Some(ended))
    });
    runtime.shutdown_background();
    signals.stop();
    let Some((progress, result)) = ended? else { return Ok(Outcome::Interrupted) };
    let outcome = match result {
        Ok(()) => outcome(args, &progress),
        // Nothing was begun.
        Err(error) if progress.examined == 0 => return Err(failed(error)),
        Err(error) => {
            let error = refused(error).complete_commands(&context.hints);
            error.report();
            error.outcome()
        }
    };
    let mut value = to_object(&progress)?;
    value.insert("source".to_owned(), json!(args.source));
    value.insert("target".to_owned(), json!(args.target));
    value.insert("dry_run".to_owned(), json!(args.dry_run));
    context.output.summary(&value, outcome, |_| text(args, &progress))?;
    Ok(outcome)
}

fn outcome(args: &Args, progress: &Transferred) -> Outcome {
    if progress.unreadable > 0 {
        let count = count_of(progress.unreadable, "message");
        note(&format!("error: {count} of {}: properties that cannot be read; left there", args.source));
    }
    if progress.interrupted > 0 {
        note("the connection was lost on the way: messages may be in both queues");
    }
    let outcome = if progress.cancelled { Outcome::Interrupted } else { Outcome::Done };
    if progress.unreadable > 0 { outcome.and(Outcome::UserError) } else { outcome }
}

fn refused(error: Fault) -> Error {
    match error {
        Fault::Nacked => {
            Error::System("the broker did not take a message: TARGET is full; the rest stays".to_owned())
        }
        other => failed(other),
    }
}

fn text(args: &Args, progress: &Transferred) -> String {
    let Transferred { examined, matched, moved, .. } = progress;
    let of = format!("of {} examined in {}", count_of(*examined, "message"), args.source);
    match args.dry_run {
        true => format!("{} {of} would be moved to {}", thousands(*matched), args.target),
        false => format!("{} {of} moved to {}", thousands(*moved), args.target),
    }
}
