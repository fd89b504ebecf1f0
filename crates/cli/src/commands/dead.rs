//! `gristmill dead`: lists, shows, retries and discards dead letters of tasks and messages.

mod messages;

use gristmill_jobs::dead_letters;
use gristmill_store::dead_letters::{DeadLetter, DeadLetterFilter};
use gristmill_store::{Page, Store};
use serde_json::{Value, json};

use self::messages::Republisher;
use super::paging::{self, Paging};
use super::{dead_letter_id, for_each_id, to_object};
use crate::context::Context;
use crate::error::{Error, Outcome};
use crate::hints::Hints;
use crate::units::{plural, time, utc};

pub(crate) const EXAMPLES: &str = "\
Examples:
  gristmill dead list
  gristmill dead retry --all --kind exec";

const LIST: &str = "\
A task becomes a dead letter when its last attempt has failed or it failed permanently. Messages are listed only if \
`gristmill consume` ran with --store-dead-letters; `gristmill queues peek QUEUE.dead` shows those at the broker.

Examples:
  gristmill dead list
  gristmill dead list --kind exec --reason 'exit status 3'
  gristmill dead list --json --limit 200 --after 41";

const RETRY: &str = "\
A task is queued again with its full number of attempts, and continues at its last checkpoint. Its dead letter is \
deleted.

A message (from `gristmill consume --store-dead-letters`) is published to its queue again, with its properties and \
headers and its full number of attempts. Its dead letter is deleted when the broker has confirmed the message; if the \
command is interrupted between the two, the dead letter stays, and retrying it publishes the message twice. The copy \
in QUEUE.dead stays there; to use that one instead, run `gristmill queues move`.

Examples:
  gristmill dead retry 4 5
  gristmill dead retry --all --kind exec
  gristmill dead retry --all --kind amqp:orders
  gristmill dead retry --all --reason 'connection refused'";

const DISCARD: &str = "\
A discarded dead letter cannot be restored, and its task can no longer be retried.

Examples:
  gristmill dead discard 4
  gristmill dead discard --all --kind exec --yes";

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// List dead letters, the latest first
    #[command(after_help = LIST)]
    List {
        #[command(flatten)]
        filter: Filter,
        #[command(flatten)]
        paging: Paging<i64>,
    },
    /// Show a dead letter with its payload and errors
    #[command(after_help = "Examples:\n  gristmill dead show 4\n  gristmill dead show 4 --json | jq .payload")]
    Show {
        /// Number of the dead letter
        #[arg(value_parser = dead_letter_id)]
        id: i64,
    },
    /// Queue tasks again, or publish messages again
    #[command(after_help = RETRY)]
    Retry(Selection),
    /// Delete dead letters
    #[command(after_help = DISCARD)]
    Discard {
        #[command(flatten)]
        which: Selection,
        /// Confirm deleting all that match
        #[arg(long, requires = "all")]
        yes: bool,
    },
}

#[derive(Debug, clap::Args)]
pub(crate) struct Filter {
    /// List only this kind, such as exec or amqp:QUEUE
    #[arg(long)]
    kind: Option<String>,
    /// List only this document
    #[arg(long, value_name = "ID")]
    document: Option<String>,
    /// List only reasons that contain this text
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

#[derive(Debug, clap::Args)]
#[command(group(clap::ArgGroup::new("which").required(true).args(["ids", "all"])))]
pub(crate) struct Selection {
    /// Numbers of dead letters
    #[arg(value_name = "ID", value_parser = dead_letter_id)]
    ids: Vec<i64>,
    /// Select all dead letters that match the filters
    #[arg(long)]
    all: bool,
    /// With --all: only this kind, such as exec or amqp:QUEUE
    #[arg(long, requires = "all")]
    kind: Option<String>,
    /// With --all: only this document
    #[arg(long, value_name = "ID", requires = "all")]
    document: Option<String>,
    /// With --all: only reasons that contain this text
    #[arg(long, value_name = "TEXT", requires = "all")]
    reason: Option<String>,
}

impl Selection {
    /// Refuses filters without `--all`, because they would have no effect on ids.
    fn check(&self) -> Result<(), Error> {
        let given = [("--kind", &self.kind), ("--document", &self.document), ("--reason", &self.reason)];
        match given.iter().find(|(_, value)| value.is_some()) {
            Some((flag, _)) if !self.all => {
                Err(Error::Setting(format!("{flag} filters the dead letters of --all; omit it when you name numbers")))
            }
            _ => Ok(()),
        }
    }

    fn filter(&self) -> DeadLetterFilter {
        DeadLetterFilter::default()
            .kind(self.kind.clone())
            .document_id(self.document.clone())
            .reason(self.reason.clone())
    }
}

pub(crate) fn run(command: Command, context: &Context) -> Result<Outcome, Error> {
    if let Command::Retry(which) | Command::Discard { which, .. } = &command {
        which.check()?;
    }
    let store = context.open_store()?;
    match command {
        Command::List { filter, paging } => {
            let Filter { kind, document, reason } = filter;
            let is_filtered = kind.is_some() || document.is_some() || reason.is_some() || paging.is_continued();
            let filter = DeadLetterFilter::default().kind(kind).document_id(document).reason(reason);
            list(context, &paging.collect(pages(&store, &filter))?, is_filtered)
        }
        Command::Show { id } => show(context, &store.dead_letters().get(id)?),
        Command::Retry(which) if which.all => retry_all(context, &store, &which.filter()),
        Command::Retry(which) => {
            let mut republisher = Republisher::new(context);
            for_each_id(context, &which.ids, |id| match store.dead_letters().get(*id)? {
                dead_letter if dead_letter.is_message() => republisher.publish(&store, &dead_letter),
                _ => retry(&store, *id),
            })
        }
        Command::Discard { which, yes } if which.all => discard_all(context, &store, &which.filter(), yes),
        Command::Discard { which, .. } => for_each_id(context, &which.ids, |id| {
            store.dead_letters().discard(*id)?;
            Ok((json!({"id": id, "discarded": true}), format!("discarded dead letter {id}")))
        }),
    }
}

fn list(context: &Context, page: &Page<DeadLetter>, is_filtered: bool) -> Result<Outcome, Error> {
    let headers = ["ID", "TASK", "KIND", "ATTEMPTS", "LAST FAILURE (UTC)", "REASON"];
    let row = |dead_letter: &DeadLetter| {
        vec![
            dead_letter.id.to_string(),
            dead_letter.task_id.clone(),
            dead_letter.task_type.clone(),
            dead_letter.attempt_count.to_string(),
            time(dead_letter.last_failure),
            dead_letter.failure_reason.clone(),
        ]
    };
    let item = |dead_letter: &DeadLetter| to_object(dead_letter).map(Value::Object);
    paging::print(&context.output, page, item, (&headers, row), || match is_filtered {
        true => none_match(&context.hints),
        false => format!("no dead letters; `{}` lists all tasks", context.hints.command("jobs list")),
    })
}

fn show(context: &Context, dead_letter: &DeadLetter) -> Result<Outcome, Error> {
    let document = Some(dead_letter.document_id.clone()).filter(|document| !document.is_empty());
    let task = Some(dead_letter.task_id.clone());
    let (task, message) = if dead_letter.is_message() { (None, task) } else { (task, None) };
    let discard = context.hints.command(&format!("dead discard {}", dead_letter.id));
    let next = format!("{}, or {discard}", context.hints.command(&format!("dead retry {}", dead_letter.id)));
    context.output.print(&to_object(dead_letter)?, |output| {
        output.fields(&[
            ("id", Some(dead_letter.id.to_string())),
            ("task", task),
            ("message", message),
            ("kind", Some(dead_letter.task_type.clone())),
            ("queue", dead_letter.queue.clone()),
            ("document", document),
            ("reason", Some(dead_letter.failure_reason.clone())),
            ("attempts", Some(dead_letter.attempt_count.to_string())),
            ("first failure", Some(utc(dead_letter.first_failure))),
            ("last failure", Some(utc(dead_letter.last_failure))),
            ("unique key", dead_letter.unique_key.clone()),
            ("payload", dead_letter.payload.clone()),
            ("checkpoint", dead_letter.checkpoint.clone()),
            ("details", dead_letter.error_details.clone()),
            ("next", Some(next)),
        ])
    })
}

/// Queues the task of a dead letter again. No kind of this program builds its retried tasks itself.
pub(crate) fn retry(store: &Store, id: i64) -> Result<(Value, String), Error> {
    let task = dead_letters::retry(store, &[], id)?.id;
    let value = json!({"id": id, "task": task});
    Ok((value, format!("queued dead letter {id} again as task {task}")))
}

fn retry_all(context: &Context, store: &Store, filter: &DeadLetterFilter) -> Result<Outcome, Error> {
    let retried = dead_letters::retry_all(store, &[], filter)?;
    let tasks = retried.tasks.len() as u64;
    let mut items: Vec<Value> = retried.tasks.iter().map(|(id, task)| json!({"id": id, "task": task.id})).collect();
    let mut refused: Vec<(i64, Error)> = retried.refused.into_iter().map(|(id, error)| (id, error.into())).collect();
    let mut republisher = Republisher::new(context);
    let mut published = 0;
    for id in retried.messages {
        match store
            .dead_letters()
            .get(id)
            .map_err(Error::from)
            .and_then(|dead_letter| republisher.publish(store, &dead_letter))
        {
            Ok((item, _)) => {
                items.push(item);
                published += 1;
            }
            Err(error) => refused.push((id, error)),
        }
    }
    let mut outcome = Outcome::Done;
    for (id, error) in refused {
        let error = error.complete_commands(&context.hints);
        outcome = outcome.and(error.outcome());
        error.report();
        items.push(json!({"id": id, "error": error.to_string()}));
    }
    let refused = outcome != Outcome::Done;
    context.output.summary(&paging::whole(&items), Outcome::Done, |_| match (tasks, published) {
        (0, 0) if !refused => none_match(&context.hints),
        (tasks, 0) => format!("queued {} again", plural(tasks, "task")),
        (0, messages) => format!("published {} again", plural(messages, "message")),
        (tasks, messages) => {
            format!("queued {} and published {} again", plural(tasks, "task"), plural(messages, "message"))
        }
    })?;
    Ok(outcome)
}

fn none_match(hints: &Hints) -> String {
    format!("no dead letter matches; `{}` lists all", hints.command("dead list"))
}

fn discard_all(context: &Context, store: &Store, filter: &DeadLetterFilter, yes: bool) -> Result<Outcome, Error> {
    let ids: Vec<i64> = paging::all(pages(store, filter))?.iter().map(|dead_letter| dead_letter.id).collect();
    let count = plural(ids.len() as u64, "dead letter");
    if !yes && !ids.is_empty() {
        return Err(Error::Setting(format!("this deletes {count}; confirm with --yes")));
    }
    for id in &ids {
        match store.dead_letters().discard(*id) {
            // Another process removed or retried it first.
            Ok(()) | Err(gristmill_store::Error::NotFound(_)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    context.output.summary(&json!({"discarded": ids.len()}), Outcome::Done, |_| match ids.len() {
        0 => none_match(&context.hints),
        _ => format!("discarded {count}"),
    })
}

/// Returns the function that reads a page of the dead letters that match.
fn pages(
    store: &Store,
    filter: &DeadLetterFilter,
) -> impl FnMut(Option<&i64>, usize) -> Result<Page<DeadLetter>, Error> {
    move |after, limit| Ok(store.dead_letters().list(filter, after.copied(), limit)?)
}
