//! Keeps a connection to a broker: tries the nodes in turn, and reconnects with back-off when it is lost.
//!
//! Owns the back-off. Stops only when it is stopped or, before the first success, when its caller stops waiting.

use crate::{
    error::Error,
    net::{Channel, Connection},
    uri::Endpoint,
};
use gristmill_pool::Retry;
use std::{sync::Arc, time::Duration};
use tokio::sync::watch;

/// Handle of a connection that is reconnected until it is stopped.
#[derive(Clone)]
pub(crate) struct ManagedConnection {
    state: watch::Receiver<ConnectionState>,
    /// Sending, or dropping the last handle, ends the reconnect task.
    stop: Arc<watch::Sender<()>>,
}

#[derive(Clone)]
pub(crate) enum ConnectionState {
    /// Why the last attempt or connection failed, the number of failed attempts, and the number of connections so far.
    Disconnected(Option<Arc<Error>>, u32, u64),
    /// The connection, and the number of connections so far.
    Connected(Connection, u64),
}

/// Back-off from 100 ms to 5 s, with jitter because many consumers reconnect at once.
pub(crate) const BACKOFF: Retry =
    Retry::exponential(u32::MAX, Duration::from_millis(100)).max_delay(Duration::from_secs(5));
/// A connection that lasted this long resets the back-off.
const STABLE_AFTER: Duration = Duration::from_secs(5);

impl ManagedConnection {
    pub(crate) fn start(endpoints: Arc<[Endpoint]>, connection_name: String) -> Self {
        let (state, watching) = watch::channel(ConnectionState::Disconnected(None, 0, 0));
        let (stop, stopped) = watch::channel(());
        tokio::spawn(reconnect_loop(endpoints, connection_name, state, stopped));
        Self { state: watching, stop: Arc::new(stop) }
    }

    /// Waits for a connection, and returns it with its number.
    pub(crate) async fn connected(&self) -> Result<(Connection, u64), Error> {
        let mut state = self.state.clone();
        loop {
            if let ConnectionState::Connected(connection, count) = &*state.borrow_and_update()
                && !connection.has_ended()
            {
                return Ok((connection.clone(), *count));
            }
            state.changed().await.map_err(|_| Error::Closed)?;
        }
    }

    /// Opens a channel, after waiting for a connection.
    pub(crate) async fn channel(&self) -> Result<Channel, Error> {
        Channel::open(&self.connected().await?.0).await
    }

    /// Waits for the first connection. Returns a permanent error once all `nodes` were tried, else the last error.
    pub(crate) async fn wait_for_first(&self, nodes: usize, within: Duration) -> Result<(), Error> {
        let mut state = self.state.clone();
        let mut last = None;
        let connected = async {
            loop {
                match &*state.borrow_and_update() {
                    ConnectionState::Connected(..) => return Ok(()),
                    ConnectionState::Disconnected(Some(error), failed, _)
                        if !error.is_transient() && *failed as usize >= nodes =>
                    {
                        return Err(error.duplicate());
                    }
                    ConnectionState::Disconnected(why, ..) => last = why.clone(),
                }
                state.changed().await.map_err(|_| Error::Closed)?;
            }
        };
        match tokio::time::timeout(within, connected).await {
            Ok(connected) => connected,
            Err(_) => Err(last.map_or(Error::Closed, |error| error.duplicate())),
        }
    }

    pub(crate) fn state(&self) -> ConnectionState {
        self.state.borrow().clone()
    }

    pub(crate) fn stop(&self) {
        self.stop.send_replace(());
    }

    /// Watches the state without keeping the connection alive.
    pub(crate) fn watch(&self) -> watch::Receiver<ConnectionState> {
        self.state.clone()
    }
}

/// Deadline `wait` from now, capped at one year.
pub(crate) fn deadline_after(wait: Duration) -> tokio::time::Instant {
    const MAX_WAIT: Duration = Duration::from_secs(365 * 24 * 3600);
    tokio::time::Instant::now() + wait.min(MAX_WAIT)
}

async fn reconnect_loop(
    endpoints: Arc<[Endpoint]>,
    connection_name: String,
    state: watch::Sender<ConnectionState>,
    mut stopped: watch::Receiver<()>,
) {
    let (mut failed, mut connected, mut is_warned) = (0_u32, 0, false);
    // Start at a different node in each process, so that consumers spread over a cluster.
    let mut node = std::process::id() as usize;
    loop {
        let endpoint = &endpoints[node % endpoints.len()];
        node += 1;
        let opened = tokio::select! {
            opened = Connection::open(endpoint, &connection_name) => opened,
            _ = stopped.changed() => return,
        };
        let error = match opened {
            Err(error) => Arc::new(error),
            Ok(connection) => {
                connected += 1;
                tracing::info!(broker = %endpoint, connection = connection_name, "connected");
                let since = tokio::time::Instant::now();
                state.send_replace(ConnectionState::Connected(connection.clone(), connected));
                let error = tokio::select! {
                    error = connection.ended() => error,
                    _ = stopped.changed() => return,
                };
                // This client closed the connection.
                if matches!(*error, Error::Closed) {
                    return;
                }
                if since.elapsed() >= STABLE_AFTER {
                    (failed, is_warned) = (0, false);
                }
                error
            }
        };
        let wait = BACKOFF.delay(failed + 1);
        failed = failed.saturating_add(1);
        // Warn at every 20th failure, and at the first one of a lost connection. Before the first connection,
        // `wait_for_first` returns the error.
        if (connected > 0 && !is_warned) || failed.is_multiple_of(20) {
            is_warned = true;
            tracing::warn!(broker = %endpoint, connection = connection_name, %error, failed, "not connected; retrying");
        } else {
            tracing::debug!(broker = %endpoint, connection = connection_name, %error, retry_in = ?wait, "not connected");
        }
        state.send_replace(ConnectionState::Disconnected(Some(error), failed, connected));
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            _ = stopped.changed() => return,
        }
    }
}
