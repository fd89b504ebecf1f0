//! The life of a server: bind, serve, stop.

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};

use gristmill_pool::CancelToken;
use gristmill_store::Store;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use crate::app::{self, App};
use crate::connections;
use crate::events;
use crate::options::{ServerOptions, WorkerStats};
use crate::security::credentials::Access;

/// Reason why a server cannot start.
#[derive(Debug)]
#[non_exhaustive]
pub enum ServerError {
    /// An address cannot be listened on.
    Listen(SocketAddr, io::Error),
    /// An option is invalid. The text says what is expected.
    Invalid(String),
    /// The store reported an error.
    Store(gristmill_store::Error),
}

impl fmt::Display for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ServerError::Listen(address, error) => write!(f, "cannot listen on {address}: {error}"),
            ServerError::Invalid(reason) => f.write_str(reason),
            ServerError::Store(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ServerError {}

/// A server that listens. Connections wait until it is [run](Server::run).
pub struct Server {
    app: App,
    listeners: Vec<StdListener>,
    addresses: Vec<SocketAddr>,
    tls: Option<TlsAcceptor>,
    stop: CancelToken,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("addresses", &self.addresses).finish_non_exhaustive()
    }
}

impl Server {
    /// Listens on the addresses of the options.
    pub fn bind(store: &Store, options: ServerOptions, stop: &CancelToken) -> Result<Self, ServerError> {
        let base = &options.base_path;
        let is_path = base.starts_with('/') && !base.ends_with('/') && base.bytes().all(is_path_byte);
        if !base.is_empty() && (!is_path || base.contains("//")) {
            return Err(ServerError::Invalid(format!(
                "invalid base path {base:?}; expected a path such as /gristmill, without a slash at its end"
            )));
        }
        let (mut listeners, mut addresses) = (Vec::new(), Vec::new());
        for &address in &options.listen {
            let failed = |error| ServerError::Listen(address, error);
            let listener = StdListener::bind(address).map_err(failed)?;
            listener.set_nonblocking(true).map_err(failed)?;
            addresses.push(listener.local_addr().map_err(failed)?);
            listeners.push(listener);
        }
        let Some(first) = addresses.first() else {
            return Err(ServerError::Invalid("no address to listen on".to_owned()));
        };
        let tls = options.tls.clone().map(TlsAcceptor::from);
        let stop = stop.child();
        let app = App::new(store, options, first.port(), &stop);
        Ok(Server { app, listeners, addresses, tls, stop })
    }

    /// Returns the addresses that it listens on, with their ports.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Returns the path below which everything is; empty for the root.
    pub fn base_path(&self) -> &str {
        &self.app.base_path
    }

    /// Returns the path with a one-time code that signs a browser in, to be appended to the address.
    pub fn sign_in_path(&self) -> String {
        format!("{}/#k={}", self.app.base_path, self.app.credentials.new_code(Access::Full))
    }

    /// Sets the statistics of the worker in this process.
    pub fn set_worker(&mut self, stats: WorkerStats) {
        // Set once, before the server runs.
        let _ = self.app.worker.set(stats);
    }

    /// Serves until the token that it was bound with is cancelled, or the database cannot be used any more, which is an
    /// error. Needs a tokio runtime with I/O and time.
    pub async fn run(self) -> Result<(), ServerError> {
        let Server { app, listeners, addresses, tls, stop } = self;
        let listeners: Vec<TcpListener> = listeners
            .into_iter()
            .zip(addresses)
            .map(|(listener, address)| {
                TcpListener::from_std(listener).map_err(|error| ServerError::Listen(address, error))
            })
            .collect::<Result<_, _>>()?;
        let watcher = events::watch(&app).map_err(ServerError::Store)?;
        connections::serve(listeners, tls, app::router(&app), stop.clone()).await;
        stop.cancel();
        let panicked = || gristmill_store::Error::Internal("the thread of the events panicked".to_owned());
        match tokio::task::spawn_blocking(move || watcher.join()).await {
            Ok(Ok(result)) => result.map_err(ServerError::Store),
            _ => Err(ServerError::Store(panicked())),
        }
    }
}

fn is_path_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'/' | b'-' | b'_' | b'.' | b'~')
}
