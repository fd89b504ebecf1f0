//! `gristmill jobs`: lists, shows, cancels and retries tasks and jobs.
//!
//! Owns the merging of the two tables: tasks have numbers; scan and hash jobs, which other programs create in the
//! database, have UUIDs.

use std::fmt;
use std::str::FromStr;

use gristmill_store::dead_letters::DeadLetterFilter;
use gristmill_store::jobs::{JobFilter, JobKind, JobRow, JobStatus};
use gristmill_store::tasks::{TaskFilter, TaskRow, TaskStatus};
use gristmill_store::{Page, Store, UtcTime};
use serde::Serialize;
use serde_json::{Value, json};

mod cancel;
mod show;
mod work_text;

use self::work_text::work_text;
use super::paging::{self, Paging};
use super::{dead, for_each_id, to_object};
use crate::context::Context;
use crate::error::{Error, Outcome};
use crate::units::{age, plural};

pub(crate) const EXAMPLES: &str = "\
Examples:
  gristmill jobs list --status failed
  gristmill jobs show 12";

const LIST: &str = "\
Tasks have numbers as ids; scan and hash jobs, which other programs create in the database, have UUIDs. FAILED is the \
number of failed attempts, AGE the time since the task was queued.

Examples:
  gristmill jobs list
  gristmill jobs list --status running
  gristmill jobs list --kind exec --status failed --limit 10
  gristmill jobs list --json --limit all | jq '.items[] | .id'";

const CANCEL: &str = "\
The worker of a running task ends its command and child processes within a second: SIGTERM, and SIGKILL half a second \
later. The task is cancelled, and its unique key free, when its run has ended. This command waits up to 3 seconds for \
it.

Examples:
  gristmill jobs cancel 12 13
  gristmill jobs list --json --status scheduled | jq .items[].id | xargs gristmill jobs cancel";

const RETRY: &str = "\
A scheduled task becomes due at once. A failed task is queued again from its dead letter. A retryable job becomes \
pending again.

Examples:
  gristmill jobs retry 12
  gristmill jobs retry 0b7a3c52-52fb-4a55-9d5e-6d6f0a3f5c11";

const RECOVER: &str = "\
Releases tasks whose lease has expired or whose worker on this machine has died. A lease expires after the setting \
worker.lease (5 minutes by default) without a heartbeat. Workers do this regularly; this command does it at once, also \
while no worker runs.

Examples:
  gristmill jobs recover
  gristmill jobs recover --json";

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// List tasks and jobs, the latest first
    #[command(after_help = LIST)]
    List(List),
    /// Show a task or a job with its failed attempts
    #[command(after_help = "Examples:\n  gristmill jobs show 12\n  gristmill jobs show 12 --json | jq .result")]
    Show {
        /// Number of a task or UUID of a job
        id: Id,
    },
    /// Cancel tasks and jobs, also running ones
    #[command(after_help = CANCEL)]
    Cancel {
        /// Numbers of tasks or UUIDs of jobs
        #[arg(value_name = "ID", required = true)]
        ids: Vec<Id>,
    },
    /// Retry failed tasks, or run scheduled ones now
    #[command(after_help = RETRY)]
    Retry {
        /// Numbers of tasks or UUIDs of jobs
        #[arg(value_name = "ID", required = true)]
        ids: Vec<Id>,
    },
    /// Release tasks whose lease has expired
    #[command(after_help = RECOVER)]
    Recover,
}

#[derive(Debug, clap::Args)]
pub(crate) struct List {
    /// List only this status: pending, scheduled, running, completed, failed, cancelled or retryable
    #[arg(long, value_parser = Status::from_str)]
    status: Option<Status>,
    /// List only this kind
    #[arg(long)]
    kind: Option<String>,
    /// List only tasks of this queue; jobs have none
    #[arg(long)]
    queue: Option<String>,
    #[command(flatten)]
    paging: Paging<Cursor>,
}

impl List {
    /// Returns true if there may be entries that the list does not show.
    fn is_filtered(&self) -> bool {
        self.status.is_some() || self.kind.is_some() || self.queue.is_some() || self.paging.is_continued()
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub(crate) enum Id {
    Task(i64),
    Job(String),
}

impl FromStr for Id {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let uuid = text.len() == 36 && text.bytes().all(|b| b == b'-' || b.is_ascii_hexdigit());
        match text.parse() {
            Ok(number) if number > 0 => Ok(Id::Task(number)),
            _ if uuid => Ok(Id::Job(text.to_owned())),
            _ => Err("expected: the number of a task, such as 12, or the UUID of a job".to_owned()),
        }
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Id::Task(number) => number.fmt(f),
            Id::Job(uuid) => uuid.fmt(f),
        }
    }
}

/// A status of tasks, of jobs or of both.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Status {
    task: Option<TaskStatus>,
    job: Option<JobStatus>,
}

impl FromStr for Status {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match (TaskStatus::parse(text), JobStatus::parse(text)) {
            (None, None) => Err("expected: pending, scheduled, running, completed, failed, cancelled (tasks); \
                pending, running, completed, failed, cancelled, retryable (jobs)"
                .to_owned()),
            (task, job) => Ok(Status { task, job }),
        }
    }
}

/// Last task and last job of a page, as text `TASK~JOB`; `-` stands for none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cursor {
    task: Option<i64>,
    job: Option<String>,
}

impl paging::Cursor for Cursor {
    fn parse(text: &str) -> Option<Self> {
        let (task, job) = text.split_once('~')?;
        let task = if task == "-" { None } else { Some(task.parse().ok()?) };
        let job = if job == "-" { None } else { Some(job.to_owned()) };
        Some(Cursor { task, job })
    }
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let task = self.task.map_or_else(|| "-".to_owned(), |task| task.to_string());
        write!(f, "{task}~{}", self.job.as_deref().unwrap_or("-"))
    }
}

#[derive(Clone, Debug)]
enum Entry {
    Task(Box<TaskRow>),
    Job(Box<JobRow>),
}

/// Returns the status of a task for display: `cancelling` for a running task whose cancellation was requested.
fn status(task: &TaskRow) -> &'static str {
    match task.status {
        TaskStatus::Running if task.cancel_requested_at.is_some() => "cancelling",
        status => status.as_str(),
    }
}

impl Entry {
    fn created_at(&self) -> UtcTime {
        match self {
            Entry::Task(task) => task.created_at,
            Entry::Job(job) => job.created_at,
        }
    }

    fn as_value(&self) -> Result<Value, Error> {
        let (mut object, table) = match self {
            Entry::Task(task) => (to_object(task)?, "task"),
            Entry::Job(job) => (to_object(job)?, "job"),
        };
        object.insert("type".to_owned(), json!(table));
        Ok(Value::Object(object))
    }

    fn row(&self, now: UtcTime) -> Vec<String> {
        let (id, kind, queue, status, failed, error, payload) = match self {
            Entry::Task(task) => (
                task.id.to_string(),
                task.kind.as_str(),
                task.queue.as_str(),
                status(task),
                task.attempts.to_string(),
                &task.error_message,
                &task.payload,
            ),
            Entry::Job(job) => (
                job.id.clone(),
                job.kind.as_str(),
                "-",
                job.status.as_str(),
                "-".to_owned(),
                &job.error_message,
                &job.payload,
            ),
        };
        let error = error.clone().unwrap_or_default();
        let (work, age) = (work_text(kind, payload), age(self.created_at(), now));
        vec![id, kind.to_owned(), queue.to_owned(), status.to_owned(), failed, age, work, error]
    }
}

pub(crate) fn run(command: Command, context: &Context) -> Result<Outcome, Error> {
    if let Command::Recover = command {
        return recover(context);
    }
    let store = context.open_store()?;
    match command {
        Command::List(list) => {
            let page = list.paging.collect(|after, limit| page(&store, &list, after, limit))?;
            print_list(context, &page, list.is_filtered(), store.now())
        }
        Command::Show { id } => show::show(context, &store, &id),
        Command::Cancel { ids } => cancel::cancel(context, &store, &ids),
        Command::Retry { ids } => for_each_id(context, &ids, |id| retry(&store, id)),
        Command::Recover => Ok(Outcome::Done),
    }
}

/// Returns one page of both tables merged: each table keeps its order, and of two entries the later one comes first.
fn page(store: &Store, list: &List, after: Option<&Cursor>, limit: usize) -> Result<Page<Entry>, Error> {
    let mut cursor = after.cloned().unwrap_or_default();
    let tasks = tasks(store, list, cursor.task, limit)?;
    let jobs = jobs(store, list, cursor.job.as_deref(), limit)?;
    let has_next = tasks.next_cursor.is_some() || jobs.next_cursor.is_some();
    let more = has_next || tasks.items.len() + jobs.items.len() > limit;
    let mut tasks = tasks.items.into_iter().map(|task| Entry::Task(Box::new(task))).peekable();
    let mut jobs = jobs.items.into_iter().map(|job| Entry::Job(Box::new(job))).peekable();
    let mut items = Vec::new();
    while items.len() < limit {
        let later = match (tasks.peek(), jobs.peek()) {
            (Some(task), Some(job)) if task.created_at() < job.created_at() => jobs.next(),
            (Some(_), _) => tasks.next(),
            (None, _) => jobs.next(),
        };
        match &later {
            None => break,
            Some(Entry::Task(task)) => cursor.task = Some(task.id),
            Some(Entry::Job(job)) => cursor.job = Some(job.id.clone()),
        }
        items.extend(later);
    }
    Ok(Page { items, next_cursor: more.then(|| cursor.to_string()) })
}

fn tasks(store: &Store, list: &List, after: Option<i64>, limit: usize) -> Result<Page<TaskRow>, Error> {
    let status = list.status.map(|status| status.task);
    if status == Some(None) {
        return Ok(Page { items: Vec::new(), next_cursor: None });
    }
    let filter = TaskFilter::default().status(status.flatten()).kind(list.kind.clone()).queue(list.queue.clone());
    Ok(store.tasks().list(&filter, after, limit)?)
}

fn jobs(store: &Store, list: &List, after: Option<&str>, limit: usize) -> Result<Page<JobRow>, Error> {
    let status = list.status.map(|status| status.job);
    let kind = list.kind.as_deref().map(JobKind::parse);
    if status == Some(None) || kind == Some(None) || list.queue.is_some() {
        return Ok(Page { items: Vec::new(), next_cursor: None });
    }
    let filter = JobFilter::default().status(status.flatten()).kind(kind.flatten());
    Ok(store.jobs().list(filter, after, limit)?)
}

fn print_list(context: &Context, page: &Page<Entry>, is_filtered: bool, now: UtcTime) -> Result<Outcome, Error> {
    let headers = ["ID", "KIND", "QUEUE", "STATUS", "FAILED", "AGE", "WORK", "LAST ERROR"];
    let hints = &context.hints;
    paging::print(&context.output, page, Entry::as_value, (&headers, |entry| entry.row(now)), || match is_filtered {
        true => format!("no task or job matches; `{}` lists all", hints.command("jobs list")),
        false => format!("no tasks; `{}` queues a command", hints.command("enqueue exec -- echo hello")),
    })
}

/// Returns the id of the dead letter of a failed task, or none if it was retried or discarded.
fn dead_letter_of(store: &Store, task: i64) -> Result<Option<i64>, Error> {
    let filter = DeadLetterFilter::default().task_id(Some(task.to_string()));
    Ok(store.dead_letters().list(&filter, None, 1)?.items.pop().map(|dead_letter| dead_letter.id))
}

fn retry(store: &Store, id: &Id) -> Result<(Value, String), Error> {
    let number = match id {
        Id::Job(uuid) => {
            store.jobs().reset(uuid)?;
            return Ok((json!({"id": id, "status": "pending"}), format!("job {uuid} is pending again")));
        }
        Id::Task(number) => *number,
    };
    match store.tasks().get(number)?.status {
        TaskStatus::Failed => {}
        TaskStatus::Scheduled => {
            store.tasks().run_now(number)?;
            return Ok((json!({"id": id, "status": "pending"}), format!("task {number} is due now")));
        }
        other => {
            let other = other.as_str();
            return Err(Error::Setting(format!(
                "task {number} is {other}; only scheduled and failed tasks can be retried"
            )));
        }
    }
    let Some(dead_letter) = dead_letter_of(store, number)? else {
        return Err(Error::Setting(format!(
            "task {number} failed, and its dead letter was retried or discarded; queue a new task with \
             `gristmill enqueue`"
        )));
    };
    let (value, line) = dead::retry(store, dead_letter)?;
    Ok((json!({"id": id, "status": "pending", "task": value["task"]}), format!("task {number}: {line}")))
}

fn recover(context: &Context) -> Result<Outcome, Error> {
    let max_crashes = context.settings()?.worker.max_crashes;
    let store = context.open_store()?;
    // Commands of dead workers must not run beside the next attempt.
    gristmill_jobs::ProcessGroups::for_database(store.path()).kill_orphans(None);
    let tasks = store.tasks().recover(max_crashes)?;
    let others = [
        ("jobs", store.jobs().recover()?),
        ("thumbnails", store.thumbnails().recover()?),
        ("thumbnail_cleanup_jobs", store.cleanups().recover()?),
        ("wal_maintenance_jobs", store.wal().recover()?),
    ];
    let mut value = json!({"tasks": tasks.freed, "cancelled": tasks.cancelled, "poisoned": tasks.poisoned});
    for (table, released) in others {
        value[table] = json!(released);
    }
    context.output.summary(&value, Outcome::Done, |_| {
        let released = std::iter::once(("tasks", tasks.freed)).chain(others);
        let mut lines: Vec<String> = released
            .filter(|(_, count)| *count > 0)
            .map(|(table, count)| format!("released {} of {table}", plural(count as u64, "row")))
            .collect();
        if tasks.cancelled > 0 {
            let count = plural(tasks.cancelled as u64, "task");
            lines.push(format!("cancelled {count} as requested"));
        }
        if !tasks.poisoned.is_empty() {
            let count = plural(tasks.poisoned.len() as u64, "task");
            lines.push(format!(
                "dead-lettered {count} whose workers crashed too often; see `{}`",
                context.hints.command("dead list")
            ));
        }
        if lines.is_empty() {
            "nothing to release: no lease has expired, and no worker on this machine has died".to_owned()
        } else {
            lines.join("\n")
        }
    })
}
