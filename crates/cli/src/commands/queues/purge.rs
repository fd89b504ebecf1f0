//! `gristmill queues purge`: deletes all ready messages of a queue.

use serde_json::json;

use super::super::amqp_common::{self, BrokerArgs};
use super::super::confirm::{confirm, is_interactive};
use super::failed;
use crate::context::Context;
use crate::error::{Error, Outcome};
use crate::units::count_of;

pub(super) const HELP: &str = "\
Deletes the messages that are ready, for good. Messages that a consumer has received and not acknowledged are kept.

Asks for confirmation on a terminal. Without a terminal, --yes is required, and the command fails before it connects.

Exit status:
  0    done
  1    not confirmed; missing queue; access refused by the broker
  2    system failure: no broker

Examples:
  gristmill queues purge orders.dead
  gristmill queues purge orders.dead --yes --json";

#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub(crate) struct Args {
    /// Queue to purge
    queue: String,

    /// Delete without asking
    #[arg(long)]
    yes: bool,

    #[command(flatten)]
    broker: BrokerArgs,
}

pub(super) fn run(args: &Args, context: &mut Context) -> Result<Outcome, Error> {
    args.broker.apply(context);
    let settings = context.settings()?;
    let queue = &args.queue;
    if !args.yes && !is_interactive() {
        return Err(Error::Setting(format!(
            "nothing was deleted: give --yes to delete the messages of {queue} without a confirmation"
        )));
    }
    let runtime = amqp_common::runtime(1)?;
    let client = runtime
        .block_on(amqp_common::builder(&settings.amqp, "gristmill queues purge").start())
        .map_err(amqp_common::failed)?;
    let (ready, _) = runtime.block_on(client.queue_depth(queue)).map_err(failed)?;
    let ready = count_of(ready.into(), "message");
    if !args.yes && confirm(&format!("Delete {ready} of {queue} for good?"), false)? != Some(true) {
        return Err(Error::Setting(format!("nothing was deleted: not confirmed; {ready} left in {queue}")));
    }
    let deleted = runtime.block_on(client.purge(queue)).map_err(failed)?;
    runtime.block_on(amqp_common::close(client));
    runtime.shutdown_background();
    context.output.summary(&json!({"queue": queue, "deleted": deleted}), Outcome::Done, |_| {
        format!("deleted {} of {queue}", count_of(deleted.into(), "message"))
    })
}
