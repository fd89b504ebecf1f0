//! `gristmill queues purge`: deletes the messages of a queue.

use serde_json::json;

use super::super::amqp_common::{self, BrokerArgs};
use super::super::confirm::{confirm, is_interactive};
use super::failed;
use crate::context::Context;
use crate::error::{Error, Outcome};
use crate::output::count_of;

pub(super) const HELP: &str = "\
Deletes the messages that are ready; those that a consumer holds are not deleted. They cannot be brought back.

On a terminal it asks first; elsewhere --yes is needed, and without it nothing is connected to.

Exit codes:
  0    done
  1    not confirmed; a queue that does not exist; no entry at the broker
  2    the system failed: no broker

Examples:
  gristmill queues purge orders.dead
  gristmill queues purge orders.dead --yes --json";

#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub(crate) struct Args {
    /// The queue whose messages are deleted
    queue: String,

    /// Do not ask
    #[arg(long)]
    yes: bool,

    #[command(flatten)]
    place: BrokerArgs,
}

pub(super) fn run(args: &Args, context: &mut Context) -> Result<Outcome, Error> {
    args.place.note(context);
    let settings = context.settings()?;
    let queue = &args.queue;
    if !args.yes && !is_interactive() {
        return Err(Error::Setting(format!(
            "nothing was deleted: the messages of {queue} would be deleted for good; with --yes they are"
        )));
    }
    let runtime = amqp_common::runtime(1)?;
    let client = runtime
        .block_on(amqp_common::builder(&settings.amqp, "gristmill queues purge").start())
        .map_err(amqp_common::failed)?;
    let (ready, _) = runtime.block_on(client.queue_depth(queue)).map_err(failed)?;
    let ready = count_of(ready.into(), "message");
    if !args.yes && confirm(&format!("Delete {ready} of {queue} for good?"), false)? != Some(true) {
        return Err(Error::Setting(format!("nothing was deleted: {ready} stay in {queue}")));
    }
    let deleted = runtime.block_on(client.purge(queue)).map_err(failed)?;
    runtime.block_on(amqp_common::close(client));
    runtime.shutdown_background();
    context.output.summary(&json!({"queue": queue, "deleted": deleted}), Outcome::Done, |_| {
        format!("{} of {queue} deleted", count_of(deleted.into(), "message"))
    })?;
    Ok(Outcome::Done)
}
