//! `gristmill queues move`: moves messages to another queue, such as dead letters back to their queue.

use gristmill_amqp::{Error as AmqpError, Transfer, Transferred};
use serde_json::json;

use super::super::amqp_common::{BrokerArgs, with_client};
use super::super::to_object;
use super::failed;
use super::filter::{self, Condition};
use crate::context::Context;
use crate::error::{Error, Outcome};
use crate::output::note;
use crate::units::{count_of, thousands};

pub(super) const HELP: &str = "\
Each message is published to TARGET and confirmed by the broker before it is removed from SOURCE. If the command is \
killed at any time, no message is lost; a message that was confirmed and not yet removed is then in both queues.

Only messages that are in SOURCE at the start are moved. Messages that do not match are held until the end and then \
return to SOURCE, where their order may change; at most 1,000,000 are held. A quorum queue counts a delivery of each: \
a queue with a delivery limit drops or dead-letters a message that was examined too often.

A message keeps its headers and its properties except expiration. Its attempts restart: headers about earlier failures \
(x-gristmill-…, x-death) are removed. A consumer of TARGET sees the exchange and the routing key of the first \
publication.

Keys of --where:
  reason         reason of the dead letter: permanent, attempts, starts, unreadable
  error          part of the text of the last error
  consumer       consumer that dead-lettered the message
  queue          queue that the message came from
  id, type, correlation-id, routing-key
                 property of the message
  header:NAME    value of a header

Exit status:
  0    done
  1    invalid argument; missing queue; a message that cannot be moved
  2    system failure: no broker, or one that does not confirm; TARGET is full
  130  interrupted; the messages counted as moved are in TARGET

Examples:
  gristmill queues move orders.dead orders --dry-run
  gristmill queues move orders.dead orders --where reason=attempts --limit 100
  gristmill queues move orders.dead orders --where 'error=connection refused'";

#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub(crate) struct Args {
    /// Queue to move messages from
    source: String,

    /// Existing queue to move messages to
    target: String,

    /// Move only messages that meet this condition; repeatable, all conditions must be met
    #[arg(long = "where", value_name = "KEY=VALUE", value_parser = filter::condition)]
    conditions: Vec<Condition>,

    /// Move at most N messages
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,

    /// Count the messages that would be moved, without moving any
    #[arg(long)]
    dry_run: bool,

    #[command(flatten)]
    broker: BrokerArgs,
}

pub(super) fn run(args: &Args, context: &mut Context) -> Result<Outcome, Error> {
    args.broker.apply(context);
    let settings = context.settings()?;
    let conditions = args.conditions.clone();
    let mut transfer =
        Transfer::new(&args.source, &args.target).only(move |delivery| filter::matches(&conditions, delivery));
    if let Some(limit) = args.limit {
        transfer = transfer.limit(limit);
    }
    if args.dry_run {
        transfer = transfer.dry_run();
    }
    let ended = with_client(&settings, "gristmill queues move", async |client, stop| {
        client.transfer(&transfer, stop.cancelled()).await
    })?;
    let Some((progress, result)) = ended else { return Ok(Outcome::Interrupted) };
    let outcome = match result {
        Ok(()) => outcome(args, &progress),
        // No message was examined.
        Err(error) if progress.examined == 0 => return Err(failed(error)),
        Err(error) => {
            let error = transfer_error(error).complete_commands(&context.hints);
            error.report();
            error.outcome()
        }
    };
    let mut value = to_object(&progress)?;
    value.insert("source".to_owned(), json!(args.source));
    value.insert("target".to_owned(), json!(args.target));
    value.insert("dry_run".to_owned(), json!(args.dry_run));
    context.output.summary(&value, outcome, |_| text(args, &progress))
}

fn outcome(args: &Args, progress: &Transferred) -> Outcome {
    if progress.unreadable > 0 {
        let count = count_of(progress.unreadable, "message");
        note(&format!("error: {count} of {} not moved: cannot read the properties", args.source));
    }
    if progress.connection_losses > 0 {
        note("warning: the connection was lost: some messages may be in both queues");
    }
    let outcome = if progress.interrupted { Outcome::Interrupted } else { Outcome::Done };
    if progress.unreadable > 0 { outcome.and(Outcome::UserError) } else { outcome }
}

fn transfer_error(error: AmqpError) -> Error {
    match error {
        AmqpError::Nacked => Error::System(
            "the broker rejected a message: TARGET is full; the remaining messages stay in SOURCE".to_owned(),
        ),
        other => failed(other),
    }
}

fn text(args: &Args, progress: &Transferred) -> String {
    let Transferred { examined, matched, moved, .. } = progress;
    let (verb, count) = if args.dry_run { ("would move", *matched) } else { ("moved", *moved) };
    let of = count_of(*examined, "message");
    format!("{verb} {} of {of} from {} to {}", thousands(count), args.source, args.target)
}
