//! Counts starts of messages that did not finish, and failed attempts in place, across restarts, in the store.
//!
//! A message on its first delivery has no row. One that is redelivered may have been started before: its start is
//! committed before its handler runs, and its row is deleted when it has finished. So a crash only counts against
//! messages that were running. Without a store nothing is counted.

use crate::{
    fingerprint::Fingerprint,
    store::{MessageRun, MessageStore, RunKey},
};
use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::{
    sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    task::JoinHandle,
    time::Instant,
};

/// Rows of finished messages that are deleted together.
const DELETE_BATCH: usize = 256;
/// Maximum time before rows of finished messages are deleted.
const DELETE_INTERVAL: Duration = Duration::from_secs(1);
/// Rows not written for this long belong to messages that another consumer finished.
const ROW_RETENTION: Duration = Duration::from_secs(7 * 24 * 3600);
/// Maximum number of rows read when a channel is opened, and deleted at a time.
const MAX_ROWS: usize = 100_000;

/// Counts the starts of one queue's messages in the store.
#[derive(Clone)]
pub(crate) struct StartStore {
    store: Arc<dyn MessageStore>,
    scope: Arc<str>,
    limit: u32,
}

/// Whether the current run of a message has recorded a start that is not undone. Shared with the run. Set before the
/// start is committed, so that a start that may be committed is undone.
pub(crate) type StartRecorded = Arc<AtomicBool>;

/// A start to be counted, of a message that may have been started before.
#[derive(Clone)]
pub(crate) struct RunStart {
    pub(crate) store: StartStore,
    pub(crate) key: RunKey,
    pub(crate) recorded: StartRecorded,
}

impl RunStart {
    /// Commits starts of one consumer together. Returns for each the limit of starts, if it is reached. Blocks.
    pub(crate) fn record_all(starts: &[&Self]) -> Vec<Option<u32>> {
        let Some(first) = starts.first() else { return Vec::new() };
        starts.iter().for_each(|start| start.recorded.store(true, Relaxed));
        first.store.start_all(starts.iter().map(|start| start.key).collect())
    }

    /// Undoes starts of one consumer that were recorded. Blocks.
    pub(crate) fn undo_all(starts: &[&Self]) {
        let recorded = starts.iter().filter(|start| start.recorded.swap(false, Relaxed));
        let recorded: Vec<RunKey> = recorded.map(|start| start.key).collect();
        if let Some(first) = starts.first().filter(|_| !recorded.is_empty()) {
            first.store.undo_starts(recorded);
        }
    }
}

impl StartStore {
    pub(crate) fn new(store: Arc<dyn MessageStore>, queue: &str, limit: u32) -> Self {
        Self { store, scope: format!("amqp:{queue}").into(), limit }
    }

    /// Commits starts together. Returns for each the limit of starts, if it is reached: the message is not started. If
    /// the store cannot be written, the messages are started anyway. Blocks.
    fn start_all(&self, keys: Vec<RunKey>) -> Vec<Option<u32>> {
        let all = keys.len();
        match self.store.count_starts(&self.scope, keys, self.limit) {
            Ok(counts) => counts.into_iter().map(|count| count.is_none().then_some(self.limit)).collect(),
            Err(error) => {
                tracing::warn!(scope = &*self.scope, %error, "cannot count starts of messages; they are started anyway");
                vec![None; all]
            }
        }
    }

    /// Records that an attempt in place has failed. Blocks.
    pub(crate) fn record_failure(&self, key: RunKey, failed: u32, error: String) {
        if let Err(error) = self.store.record_failure(&self.scope, key, failed, error) {
            tracing::warn!(scope = &*self.scope, %error, "cannot record a failed attempt; it is lost in a restart");
        }
    }

    /// Reads the rows of messages that have not finished. Blocks.
    pub(crate) fn load(&self) -> Vec<MessageRun> {
        self.store.runs(&self.scope, MAX_ROWS).unwrap_or_else(|error| {
            tracing::warn!(scope = &*self.scope, %error, "cannot read the counted starts");
            Vec::new()
        })
    }

    /// Deletes the rows of finished messages. Blocks.
    fn delete(&self, keys: Vec<RunKey>) -> Deletion {
        let deleted = self.store.finish_runs(&self.scope, keys.clone());
        if let Err(error) = &deleted {
            tracing::warn!(scope = &*self.scope, %error, "cannot delete the starts of finished messages; retried");
        }
        (keys, deleted.is_ok())
    }

    /// Undoes starts of runs that did not crash. Blocks.
    fn undo_starts(&self, keys: Vec<RunKey>) {
        if let Err(error) = self.store.undo_starts(&self.scope, keys) {
            tracing::warn!(scope = &*self.scope, %error, "cannot undo interrupted starts");
        }
    }
}

/// Row of a message that may have been started before.
#[derive(Debug, Clone, Copy)]
struct KnownRun {
    starts: u32,
    failed: u32,
    /// Time since its last failed attempt, as of this instant.
    age: (Duration, Instant),
}

/// Rows of finished messages, and whether they were deleted.
type Deletion = (Vec<RunKey>, bool);

/// Rows of one consumer's queue, and which of its messages have them.
pub(crate) struct Starts {
    pub(crate) store: Option<StartStore>,
    known: HashMap<RunKey, KnownRun>,
    /// Rows of unacknowledged messages, and of finished ones until they are deleted. Equal messages have a row each.
    assigned: HashSet<RunKey>,
    ended: Vec<RunKey>,
    ended_since: Option<Instant>,
    interrupted: Vec<RunKey>,
    deletions: (UnboundedSender<Deletion>, UnboundedReceiver<Deletion>),
    /// After a failed deletion the next waits for its interval, whatever the number of rows.
    has_failed: bool,
}

impl Starts {
    pub(crate) fn new(store: Option<StartStore>) -> Self {
        Self {
            store,
            known: HashMap::new(),
            assigned: HashSet::new(),
            ended: Vec::new(),
            ended_since: None,
            interrupted: Vec::new(),
            deletions: unbounded_channel(),
            has_failed: false,
        }
    }

    /// Replaces the known rows by those in the store.
    pub(crate) fn refresh(&mut self, rows: Vec<MessageRun>) {
        let now = Instant::now();
        let known = |run: MessageRun| KnownRun { starts: run.starts, failed: run.failed, age: (run.age, now) };
        self.known = rows.into_iter().map(|run| (run.key, known(run))).collect();
    }

    /// Assigns a row to a message that may have been started before. None without a store.
    pub(crate) fn assign_row(&mut self, fingerprint: Fingerprint) -> Option<RunKey> {
        self.store.as_ref()?;
        self.apply_deletions();
        let mut key = RunKey { fingerprint, copy: 0 };
        while !self.assigned.insert(key) {
            key.copy += 1;
        }
        Some(key)
    }

    /// Releases the row of a message that goes back to the broker unfinished.
    pub(crate) fn release_row(&mut self, key: Option<RunKey>) {
        if let Some(key) = key {
            self.assigned.remove(&key);
        }
    }

    pub(crate) fn failed_attempts(&self, key: Option<RunKey>) -> u32 {
        key.and_then(|key| self.known.get(&key)).map_or(0, |known| known.failed)
    }

    /// Time since the last failed attempt of a message, if any.
    pub(crate) fn failed_ago(&self, key: Option<RunKey>) -> Option<Duration> {
        let known = key.and_then(|key| self.known.get(&key)).filter(|known| known.failed > 0)?;
        let (age, then) = known.age;
        Some(age.saturating_add(then.elapsed()))
    }

    /// Whether a message may have crashed its process: a committed start did not finish, or the limit is one start.
    pub(crate) fn is_suspect(&self, key: Option<RunKey>) -> bool {
        let starts = key.and_then(|key| self.known.get(&key)).map_or(0, |known| known.starts);
        let limit = self.store.as_ref().map_or(u32::MAX, |store| store.limit);
        key.is_some() && starts >= 1.min(limit - 1)
    }

    /// Counts a failed attempt in place. Returns the store that records it on another thread.
    pub(crate) fn attempt_failed(&mut self, key: RunKey, failed: u32) -> Option<StartStore> {
        self.known.insert(key, KnownRun { starts: 0, failed, age: (Duration::ZERO, Instant::now()) });
        self.store.clone()
    }

    /// Deletes the row of a finished message soon. No equal message gets the row before.
    pub(crate) fn finish(&mut self, key: Option<RunKey>) {
        let Some(key) = key else { return };
        self.known.remove(&key);
        self.ended.push(key);
        self.ended_since.get_or_insert_with(Instant::now);
    }

    /// Undoes the start of a run that was interrupted and will be started again.
    pub(crate) fn undo_start(&mut self, key: Option<RunKey>) {
        if let Some(key) = key {
            self.interrupted.push(key);
            self.ended_since.get_or_insert_with(Instant::now);
        }
    }

    /// Frees deleted rows for other messages. Rows that could not be deleted are deleted later.
    fn apply_deletions(&mut self) {
        while let Ok((keys, is_done)) = self.deletions.1.try_recv() {
            self.has_failed = !is_done;
            if is_done {
                for key in &keys {
                    self.assigned.remove(key);
                    // The store may have been read before the deletion.
                    self.known.remove(key);
                }
            } else {
                self.ended.extend(keys);
                self.ended_since.get_or_insert_with(Instant::now);
            }
        }
    }

    /// Deletes rows of finished messages if there are many, if they have waited long, or `now`.
    pub(crate) fn flush(&mut self, now: bool) -> Option<JoinHandle<()>> {
        self.apply_deletions();
        let is_due = (self.ended.len() >= DELETE_BATCH && !self.has_failed)
            || self.ended_since.is_some_and(|since| since.elapsed() >= DELETE_INTERVAL);
        let has_any = !self.ended.is_empty() || !self.interrupted.is_empty();
        let store = self.store.clone().filter(|_| has_any && (is_due || now))?;
        self.ended_since = None;
        let (ended, interrupted) = (std::mem::take(&mut self.ended), std::mem::take(&mut self.interrupted));
        let deletions = self.deletions.0.clone();
        Some(tokio::task::spawn_blocking(move || {
            // The dispatcher may have ended.
            let _ = deletions.send(store.delete(ended));
            store.undo_starts(interrupted);
        }))
    }
}

/// Deletes rows past their retention, every hour.
pub(crate) async fn prune(store: StartStore) {
    loop {
        let store = Arc::clone(&store.store);
        let pruned = tokio::task::spawn_blocking(move || store.prune_runs(ROW_RETENTION, MAX_ROWS)).await;
        if let Ok(Err(error)) = pruned {
            tracing::debug!(%error, "cannot delete old starts of messages");
        }
        tokio::time::sleep(Duration::from_secs(3600)).await;
    }
}

#[cfg(all(test, feature = "store"))]
mod tests {
    use super::*;
    use gristmill_store::Store;

    fn starts(limit: u32) -> (Starts, tempfile::TempDir) {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path().join("starts.db")).unwrap();
        (Starts::new(Some(StartStore::new(Arc::new(store), "q", limit))), folder)
    }

    fn row(key: RunKey, starts: u32, failed: u32) -> MessageRun {
        MessageRun { key, starts, failed, age: Duration::ZERO }
    }

    #[test]
    fn nothing_is_counted_without_a_store() {
        let mut starts = Starts::new(None);
        assert_eq!(starts.assign_row([1; 16]), None);
        assert!(!starts.is_suspect(None));
        assert!(starts.flush(true).is_none());
    }

    #[test]
    fn equal_messages_have_a_row_each_and_started_ones_are_suspect() {
        let (mut starts, _folder) = starts(3);
        let key = |copy| RunKey { fingerprint: [1; 16], copy };
        starts.refresh(vec![row(key(1), 1, 2)]);
        assert_eq!((starts.assign_row([1; 16]), starts.assign_row([1; 16])), (Some(key(0)), Some(key(1))));
        assert_eq!((starts.is_suspect(Some(key(0))), starts.is_suspect(Some(key(1)))), (false, true));
        assert_eq!((starts.failed_attempts(Some(key(0))), starts.failed_attempts(Some(key(1)))), (0, 2));
        starts.release_row(Some(key(1)));
        assert_eq!(starts.assign_row([1; 16]), Some(key(1)));
    }

    #[tokio::test]
    async fn row_is_reused_for_an_equal_message_once_deleted() {
        let (mut starts, folder) = starts(1);
        let key = |copy| Some(RunKey { fingerprint: [1; 16], copy });
        let store = starts.store.clone().unwrap();
        let (file, elsewhere) = (folder.path().join("starts.db"), folder.path().join("elsewhere.db"));
        assert_eq!(starts.assign_row([1; 16]), key(0));
        assert_eq!(store.start_all(vec![key(0).unwrap()]), [None]);
        let row = store.load();
        starts.finish(key(0));
        assert_eq!(starts.assign_row([1; 16]), key(1));
        // A row read before the deletion does not come back.
        starts.refresh(row);
        // The first deletion fails.
        for (is_missing, next) in [(true, 2), (false, 0)] {
            if is_missing {
                std::fs::rename(&file, &elsewhere).unwrap();
            }
            starts.flush(true).unwrap().await.unwrap();
            if is_missing {
                std::fs::rename(&elsewhere, &file).unwrap();
            }
            assert_eq!(starts.assign_row([1; 16]), key(next));
        }
        assert!(starts.known.is_empty());
        assert_eq!(store.start_all(vec![key(0).unwrap()]), [None]);
    }

    #[test]
    fn every_redelivered_message_is_suspect_with_a_limit_of_one() {
        let (mut starts, _folder) = starts(1);
        let key = starts.assign_row([1; 16]);
        assert!(starts.is_suspect(key));
    }
}
