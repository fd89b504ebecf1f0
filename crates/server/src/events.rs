//! Live events: what has changed in the database, whichever process changed it.
//!
//! Owns the last events, by number, and the thread that watches the database. A stream that was interrupted continues
//! after the last event it got. An event says what to ask for again; only progress is in the event itself.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use gristmill_store::catalog::GroupQuery;
use gristmill_store::dead_letters::DeadLetterFilter;
use gristmill_store::jobs::{JobFilter, JobRow, JobStatus};
use gristmill_store::{ChangeWatcher, Store, UtcTime};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::app::App;

/// Events that are kept for streams that were interrupted.
const MAX_EVENTS: usize = 1_000;

/// Shortest interval between two looks at the database, so that there are at most four events of each kind per second.
const MIN_INTERVAL: Duration = Duration::from_millis(250);

/// Longest wait for a change, after which the watcher looks whether the server stops.
const MAX_WAIT: Duration = Duration::from_millis(500);

/// What an event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Topic {
    /// A job was created or has changed; the event has its state and progress.
    Jobs,
    /// The number of tasks in some state has changed; the event has all numbers.
    Tasks,
    /// A dead letter was added or removed; the event has their number and the id of the newest.
    DeadLetters,
    /// Duplicate groups have changed; the event has their version.
    Groups,
    /// A root was added, scanned or removed.
    Roots,
}

impl Topic {
    pub(crate) const ALL: [Topic; 5] = [Topic::Jobs, Topic::Tasks, Topic::DeadLetters, Topic::Groups, Topic::Roots];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Topic::Jobs => "jobs",
            Topic::Tasks => "tasks",
            Topic::DeadLetters => "dead-letters",
            Topic::Groups => "groups",
            Topic::Roots => "roots",
        }
    }

    pub(crate) fn parse(text: &str) -> Option<Self> {
        Topic::ALL.into_iter().find(|topic| topic.as_str() == text)
    }
}

/// One event. Its data is JSON.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) number: u64,
    pub(crate) topic: Topic,
    pub(crate) data: Arc<str>,
}

/// The last events.
#[derive(Debug)]
pub(crate) struct Events {
    /// Distinguishes the events of this server from those of an earlier one, whose numbers mean something else.
    epoch: i64,
    kept: Mutex<VecDeque<Event>>,
    /// Number of the last event; 0 before the first.
    last: watch::Sender<u64>,
}

/// What a stream gets next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Missed {
    /// The events after the one that the stream got last.
    Events(Vec<Event>),
    /// Some of them are not kept any more: everything has to be asked for again. The stream continues after this event.
    Resync(u64),
}

impl Events {
    pub(crate) fn new() -> Self {
        let epoch = UtcTime::of(gristmill_pool::clock::Clock::system()).micros();
        Events { epoch, kept: Mutex::default(), last: watch::Sender::new(0) }
    }

    pub(crate) fn publish(&self, topic: Topic, data: &Value) {
        let mut kept = self.kept();
        let number = *self.last.borrow() + 1;
        if kept.len() >= MAX_EVENTS {
            kept.pop_front();
        }
        kept.push_back(Event { number, topic, data: data.to_string().into() });
        self.last.send_replace(number);
    }

    /// Returns how many events were published.
    pub(crate) fn count(&self) -> u64 {
        *self.last.borrow()
    }

    /// Returns the text that identifies an event.
    pub(crate) fn id(&self, number: u64) -> String {
        format!("{}-{number}", self.epoch)
    }

    /// Returns the number of an event of this server.
    pub(crate) fn number(&self, id: &str) -> Option<u64> {
        let (epoch, number) = id.split_once('-')?;
        let number = number.parse().ok()?;
        (epoch == self.epoch.to_string() && number <= *self.last.borrow()).then_some(number)
    }

    /// Returns a receiver that is notified of new events.
    pub(crate) fn subscribe(&self) -> watch::Receiver<u64> {
        self.last.subscribe()
    }

    /// Returns the events after a number.
    pub(crate) fn after(&self, number: u64) -> Missed {
        let kept = self.kept();
        match kept.front() {
            Some(first) if first.number > number + 1 => {
                Missed::Resync(kept.back().map_or(number, |event| event.number))
            }
            _ => Missed::Events(kept.iter().filter(|event| event.number > number).cloned().collect()),
        }
    }

    fn kept(&self) -> MutexGuard<'_, VecDeque<Event>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Starts the thread that publishes what changes in the database after this call. It ends when the server stops, or with
/// an error that does not pass, such as a replaced database; then it stops the server.
pub(crate) fn watch(app: &App) -> gristmill_store::Result<JoinHandle<gristmill_store::Result<()>>> {
    let mut watcher = app.store.watch()?;
    let app = app.clone();
    let mut seen = Seen::default();
    seen.compare(&app.store, None);
    let thread = std::thread::Builder::new().name("events".to_owned());
    let spawned = thread.spawn(move || {
        let result = publish_changes(&app, &mut watcher, &mut seen);
        app.stop.cancel();
        result
    });
    spawned.map_err(|error| gristmill_store::Error::Internal(format!("cannot start a thread: {error}")))
}

fn publish_changes(app: &App, watcher: &mut ChangeWatcher, seen: &mut Seen) -> gristmill_store::Result<()> {
    while !app.stop.is_cancelled() {
        match watcher.wait(MAX_WAIT) {
            Ok(false) => continue,
            Ok(true) => seen.compare(&app.store, Some(&app.events)),
            Err(error) if error.is_transient() => tracing::warn!(%error, "cannot see what has changed"),
            Err(error) => return Err(error),
        }
        app.stop.wait_timeout(MIN_INTERVAL);
    }
    Ok(())
}

/// What was published last of each topic.
#[derive(Debug, Default)]
struct Seen {
    values: Vec<(Topic, Value)>,
}

impl Seen {
    /// Publishes the topics whose value has changed.
    fn compare(&mut self, store: &Store, events: Option<&Events>) {
        for topic in Topic::ALL {
            let value = match current(store, topic) {
                Ok(value) => value,
                Err(error) => {
                    tracing::warn!(%error, topic = topic.as_str(), "cannot read what has changed");
                    continue;
                }
            };
            let known = self.values.iter_mut().find(|(known, _)| *known == topic);
            match known {
                Some((_, known)) if *known == value => continue,
                Some((_, known)) => known.clone_from(&value),
                None => self.values.push((topic, value.clone())),
            }
            if let Some(events) = events {
                events.publish(topic, &value);
            }
        }
    }
}

/// Running jobs, and newest jobs, whose state and progress are published.
const RECENT_JOBS: usize = 20;

fn current(store: &Store, topic: Topic) -> gristmill_store::Result<Value> {
    Ok(match topic {
        Topic::Jobs => {
            let running = JobFilter::default().status(Some(JobStatus::Running));
            let mut jobs = store.jobs().list(running, None, RECENT_JOBS)?.items;
            let newest = store.jobs().list(JobFilter::default(), None, RECENT_JOBS)?.items;
            jobs.extend(newest.into_iter().filter(|job| job.status != JobStatus::Running));
            let job = |job: &JobRow| {
                json!({
                    "id": job.id, "kind": job.kind, "status": job.status, "progress": job.progress,
                    "processed_items": job.processed_items, "total_items": job.total_items,
                })
            };
            json!({ "jobs": jobs.iter().map(job).collect::<Vec<_>>() })
        }
        Topic::Tasks => {
            let counts = store.tasks().counts()?.into_iter();
            Value::Object(counts.map(|(status, count)| (status.as_str().to_owned(), json!(count))).collect())
        }
        Topic::DeadLetters => {
            // A task that is retried and fails again leaves the number unchanged.
            let newest = store.dead_letters().list(&DeadLetterFilter::default(), None, 1)?.items;
            json!({ "count": store.dead_letters().count()?, "newest_id": newest.first().map(|newest| newest.id) })
        }
        Topic::Groups => {
            let state = store.catalog().group_page(&GroupQuery::default().limit(1), None)?.state;
            json!({ "version": state.version, "current": state.is_current })
        }
        Topic::Roots => {
            let roots = store.roots().list()?;
            let root = |root: &gristmill_store::roots::Root| json!({ "id": root.id, "files": root.files, "bytes": root.bytes, "scanned_at": root.last_scanned_at });
            json!({ "roots": roots.iter().map(root).collect::<Vec<_>>() })
        }
    })
}
