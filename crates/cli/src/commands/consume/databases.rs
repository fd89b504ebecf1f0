//! Databases that another program may have locked at the start.
//!
//! Owns what happens until they are open. The store is waited for: every consumer needs it. The database of `--into` is opened
//! before the first batch if it is locked at the start, so that the lock pauses its consumer as a lock does later.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use gristmill_jsonl::{AppendResult, Error as SinkError, FileIdentity, RejectedObject, Sink, WithId};
use gristmill_pool::TaskError;
use gristmill_store::{Error as StoreError, Store};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::{Instant, timeout};

use crate::context::open_or_create;
use crate::error::Error;
use crate::output::path;
use crate::settings::Settings;

/// The pause between two attempts to open the store. Each attempt waits by itself as long as the setting `busy_timeout` says.
const PAUSE: Duration = Duration::from_millis(100);

/// Opens the store, and waits while another program keeps it locked: for `limit` at most. None: a signal ended the wait.
pub(super) async fn open_store(
    settings: &Settings,
    limit: Option<Duration>,
    told: &mut UnboundedReceiver<()>,
) -> Result<Option<Store>, Error> {
    let until = limit.and_then(|limit| Instant::now().checked_add(limit));
    let settings = Arc::new(settings.clone());
    let mut is_reported = false;
    loop {
        let opening = Arc::clone(&settings);
        let opening = tokio::task::spawn_blocking(move || open_or_create(&opening));
        let opened = tokio::select! {
            opened = opening => opened,
            Some(()) = told.recv() => return Ok(None),
        };
        let error = match opened {
            Ok(Err(error @ Error::Store(StoreError::Busy(_)))) => error,
            Ok(opened) => return opened.map(Some),
            Err(error) => return Err(Error::System(format!("cannot open the database: {error}"))),
        };
        if until.is_some_and(|until| Instant::now() >= until) {
            return Err(error);
        }
        if !is_reported {
            tracing::warn!("{error}. Consuming starts when the database can be opened");
            is_reported = true;
        }
        if let Ok(Some(())) = timeout(PAUSE, told.recv()).await {
            return Ok(None);
        }
    }
}

/// The table of `--into`.
pub(super) struct Table {
    database: PathBuf,
    name: String,
    /// Under which name ids of messages are remembered, and for how long.
    once: Option<(String, Duration)>,
    sink: Option<Sink>,
    state: TableState,
}

/// Whether the database of a table can be used, for the thread that watches it.
#[derive(Clone, Default)]
pub(super) struct TableState(Arc<Mutex<Opened>>);

#[derive(Default)]
enum Opened {
    /// Every attempt to open it found it locked.
    #[default]
    NotYet,
    Open(FileIdentity),
    /// It cannot be used as it is.
    Refused(SinkError),
}

impl TableState {
    /// Fails when the database was deleted, moved or replaced, or cannot be used as it is.
    pub(super) fn check(&self) -> Result<(), Error> {
        match &*self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            Opened::NotYet => Ok(()),
            Opened::Open(in_place) => Ok(in_place.check()?),
            Opened::Refused(error) => Err(error.clone().into()),
        }
    }

    fn set(&self, opened: Opened) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = opened;
    }
}

impl Table {
    /// Opens the database, if no other program has locked it.
    pub(super) fn open(
        database: PathBuf,
        name: &str,
        once: Option<(String, Duration)>,
    ) -> Result<Self, Error> {
        let mut table =
            Table { database, name: name.to_owned(), once, sink: None, state: TableState::default() };
        match table.sink() {
            Ok(_) => {}
            Err(SinkError::Busy(_)) => tracing::warn!(
                "{} is locked by another program: consuming starts, and is paused with the first message until the lock is \
                 released",
                path(&table.database)
            ),
            Err(error) => return Err(error.into()),
        }
        Ok(table)
    }

    pub(super) fn state(&self) -> TableState {
        self.state.clone()
    }

    /// Writes a batch. An error that concerns the whole batch is the database's. A database that turns out to be
    /// unusable ends consuming, and its messages are neither done nor failed.
    pub(super) fn append(
        &mut self,
        objects: &[WithId<'_>],
    ) -> Result<Vec<Result<AppendResult, RejectedObject>>, TaskError> {
        match self.sink() {
            Ok(sink) => {
                sink.append_deduplicated(objects).map_err(|error| TaskError::unavailable(error.to_string()))
            }
            Err(error) if error.is_transient() => Err(TaskError::unavailable(error.to_string())),
            Err(error) => {
                self.state.set(Opened::Refused(error));
                Err(TaskError::cancelled())
            }
        }
    }

    /// The open table. Opens it if it is not.
    fn sink(&mut self) -> Result<&mut Sink, SinkError> {
        let sink = match self.sink.take() {
            Some(sink) => sink,
            None => {
                let sink = Sink::open(&self.database, &self.name)?;
                self.state.set(Opened::Open(sink.file_identity()));
                match &self.once {
                    Some((name, window)) => sink.dedup_window(name.clone(), *window),
                    None => sink,
                }
            }
        };
        Ok(self.sink.insert(sink))
    }
}
