//! Opens databases that another program may have locked at the start.
//!
//! The store is waited for, because every consumer needs it. The database of `--into` is opened before the first
//! batch if it is locked at the start, so that the lock pauses its consumer as a later lock does.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use gristmill_jsonl::{AppendResult, Error as SinkError, FileIdentity, RejectedObject, Sink, WithId};
use gristmill_pool::{CancelToken, TaskError};
use gristmill_store::{Error as StoreError, Store};
use tokio::time::{Instant, timeout};

use crate::commands::amqp_common::unless_cancelled;
use crate::context::open_or_create;
use crate::error::Error;
use crate::output::path;
use crate::settings::Settings;

/// Wait between two attempts to open the store. Each attempt itself waits for the setting `busy_timeout`.
const OPEN_RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// Opens the store. Waits up to `limit` while another program locks it. Returns none after a signal.
pub(super) async fn open_store(
    settings: &Settings,
    limit: Option<Duration>,
    stop: &CancelToken,
) -> Result<Option<Store>, Error> {
    let deadline = limit.and_then(|limit| Instant::now().checked_add(limit));
    let settings = Arc::new(settings.clone());
    let mut is_reported = false;
    loop {
        let opening = Arc::clone(&settings);
        let opening = tokio::task::spawn_blocking(move || open_or_create(&opening));
        let Some(opened) = unless_cancelled(stop, opening).await else { return Ok(None) };
        let error = match opened {
            Ok(Err(error @ Error::Store(StoreError::Busy(_)))) => error,
            Ok(opened) => return opened.map(Some),
            Err(error) => return Err(Error::System(format!("cannot open the database: {error}"))),
        };
        if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            return Err(error);
        }
        if !is_reported {
            tracing::warn!("{error}. Consuming starts once the database can be opened");
            is_reported = true;
        }
        if timeout(OPEN_RETRY_INTERVAL, stop.cancelled()).await.is_ok() {
            return Ok(None);
        }
    }
}

/// Table of `--into`, opened on demand.
pub(super) struct SinkTable {
    database: PathBuf,
    name: String,
    /// Name under which ids of messages are stored, and for how long they are kept.
    dedup: Option<(String, Duration)>,
    sink: Option<Sink>,
    state: SinkTableState,
}

/// Shares with the supervisor whether the database of a table can be used.
#[derive(Clone, Default)]
pub(super) struct SinkTableState(Arc<Mutex<OpenState>>);

#[derive(Default)]
enum OpenState {
    /// Every attempt to open the database found it locked.
    #[default]
    Locked,
    Open(FileIdentity),
    /// The database cannot be used, for example because the table is a view.
    Unusable(SinkError),
}

impl SinkTableState {
    /// Fails if the database was deleted, moved or replaced, or cannot be used.
    pub(super) fn check(&self) -> Result<(), Error> {
        match &*self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            OpenState::Locked => Ok(()),
            OpenState::Open(identity) => Ok(identity.check()?),
            OpenState::Unusable(error) => Err(error.clone().into()),
        }
    }

    fn set(&self, opened: OpenState) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = opened;
    }
}

impl SinkTable {
    /// Opens the database unless another program has locked it.
    pub(super) fn open(database: PathBuf, name: &str, dedup: Option<(String, Duration)>) -> Result<Self, Error> {
        let mut table =
            SinkTable { database, name: name.to_owned(), dedup, sink: None, state: SinkTableState::default() };
        match table.sink() {
            Ok(_) => {}
            Err(SinkError::Busy(_)) => tracing::warn!(
                "{} is locked by another program: consuming pauses at the first message until the lock is released",
                path(&table.database)
            ),
            Err(error) => return Err(error.into()),
        }
        Ok(table)
    }

    pub(super) fn state(&self) -> SinkTableState {
        self.state.clone()
    }

    /// Writes a batch. An error of the whole batch is caused by the database. A database that turns out to be
    /// unusable ends consuming, and the messages return to their queue.
    pub(super) fn append(
        &mut self,
        objects: &[WithId<'_>],
    ) -> Result<Vec<Result<AppendResult, RejectedObject>>, TaskError> {
        match self.sink() {
            Ok(sink) => sink.append_deduplicated(objects).map_err(|error| TaskError::unavailable(error.to_string())),
            Err(error) if error.is_transient() => Err(TaskError::unavailable(error.to_string())),
            Err(error) => {
                self.state.set(OpenState::Unusable(error));
                Err(TaskError::cancelled())
            }
        }
    }

    /// Returns the open table, opening it first if needed.
    fn sink(&mut self) -> Result<&mut Sink, SinkError> {
        let sink = match self.sink.take() {
            Some(sink) => sink,
            None => {
                let sink = Sink::open(&self.database, &self.name)?;
                self.state.set(OpenState::Open(sink.file_identity()));
                match &self.dedup {
                    Some((name, window)) => sink.dedup_window(name.clone(), *window),
                    None => sink,
                }
            }
        };
        Ok(self.sink.insert(sink))
    }
}
