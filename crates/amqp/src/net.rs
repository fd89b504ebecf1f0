//! One connection to one broker: a reading task, a writing task, and channels that share them.
//!
//! Owns sockets, heartbeats and the rule that a connection ends once, with one reason that every channel gets. It never
//! reconnects; `reconnect` does. No frame from the broker, in any order, causes a panic.

mod channel;
mod handshake;
mod reader;
pub(crate) mod replay;
mod writer;

pub(crate) use channel::{Channel, Event, Received, Returned};

use crate::{
    error::Error,
    uri::Endpoint,
    wire::{frame, method::Outgoing},
};
use bytes::BytesMut;
use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::{Notify, mpsc, watch},
};

/// Handle of a connection, which ends when the last handle or channel is dropped.
#[derive(Clone)]
pub(crate) struct Connection {
    shared: Arc<Shared>,
    _guard: Arc<CloseOnDrop>,
}

/// Ends the connection when dropped. The two tasks hold only `Shared`.
struct CloseOnDrop(Arc<Shared>);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.0.end(Error::Closed);
    }
}

struct Shared {
    /// URI of the broker without the password.
    name: String,
    user: String,
    vhost: String,
    out: Mutex<OutBuffer>,
    /// Signalled when `out` has data to write.
    written: Notify,
    /// Signalled when `out` has been written.
    drained: Notify,
    channels: Mutex<BTreeMap<u16, ChannelEntry>>,
    /// Why the broker has blocked the connection, while it has.
    blocked: watch::Sender<Option<String>>,
    ended: watch::Sender<Option<Arc<Error>>>,
    /// Whether this client has sent `connection.close`.
    is_closing: AtomicBool,
    tune: TuneParams,
}

/// Parameters negotiated with the broker.
#[derive(Debug, Clone, Copy)]
struct TuneParams {
    channel_max: u16,
    frame_max: usize,
    heartbeat: Duration,
}

#[derive(Default)]
struct OutBuffer {
    buffer: BytesMut,
    ended: bool,
}

/// State of a channel number.
enum ChannelEntry {
    Open(mpsc::UnboundedSender<Event>, SendGate),
    /// Closed here. The number is free when the broker has confirmed; dropping this sender then notifies the channel.
    Closing {
        _events: mpsc::UnboundedSender<Event>,
    },
    /// Closed by the broker; the number is free when its owner has seen that, so that nothing reaches another channel.
    ClosedByBroker,
}

/// Whether a channel may send. Closed and read under the lock of `out`, so that nothing is sent after the end of a
/// channel: the broker would close the whole connection.
#[derive(Clone, Default)]
struct SendGate(Arc<AtomicBool>);

impl SendGate {
    fn is_closed(&self) -> bool {
        self.0.load(Relaxed)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Connection {
    pub(crate) fn heartbeat(&self) -> Duration {
        self.shared.tune.heartbeat
    }

    /// Connects and authenticates.
    pub(crate) async fn open(endpoint: &Endpoint, connection_name: &str) -> Result<Self, Error> {
        let limit = endpoint.connect_timeout;
        let opening = async {
            let io = |source| Error::Io { to: endpoint.to_string(), source };
            let address = (endpoint.host.as_str(), endpoint.port);
            let stream = tokio::net::TcpStream::connect(address).await.map_err(io)?;
            stream.set_nodelay(true).map_err(io)?;
            match &endpoint.tls {
                None => Self::start(stream, endpoint, connection_name).await,
                Some(files) => {
                    let stream = crate::tls::connect(stream, endpoint, files).await?;
                    Self::start(stream, endpoint, connection_name).await
                }
            }
        };
        match tokio::time::timeout(limit, opening).await {
            Ok(opened) => opened,
            Err(_) => {
                let source = std::io::Error::new(std::io::ErrorKind::TimedOut, "connection timed out");
                Err(Error::Io { to: endpoint.to_string(), source })
            }
        }
    }

    async fn start<S>(mut stream: S, endpoint: &Endpoint, connection_name: &str) -> Result<Self, Error>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (tune, rest) = handshake::perform(&mut stream, endpoint, connection_name).await?;
        let shared = Arc::new(Shared::new(endpoint, tune));
        let (read, write) = tokio::io::split(stream);
        tokio::spawn(reader::run(Arc::clone(&shared), read, rest));
        tokio::spawn(writer::run(Arc::clone(&shared), write));
        Ok(Self { _guard: Arc::new(CloseOnDrop(Arc::clone(&shared))), shared })
    }

    /// Waits for the end of the connection, and returns the reason.
    pub(crate) async fn ended(&self) -> Arc<Error> {
        let mut ended = self.shared.ended.subscribe();
        let reason = ended.wait_for(Option::is_some).await;
        reason.ok().and_then(|reason| reason.clone()).unwrap_or_else(|| Arc::new(Error::Closed))
    }

    /// User and virtual host of the connection.
    pub(crate) fn user(&self) -> (&str, &str) {
        (&self.shared.user, &self.shared.vhost)
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.shared.ended.borrow().is_some()
    }

    /// Watches why the broker has blocked the connection.
    pub(crate) fn blocked(&self) -> watch::Receiver<Option<String>> {
        self.shared.blocked.subscribe()
    }

    /// Closes the connection. Returns when the broker has answered, after everything sent before.
    pub(crate) async fn close(&self, within: Duration) {
        self.shared.is_closing.store(true, Relaxed);
        self.shared.send(0, &Outgoing::Close { code: 200, text: "" });
        let _ = tokio::time::timeout(within, self.ended()).await;
        self.shared.end(Error::Closed);
    }
}

impl Shared {
    fn new(endpoint: &Endpoint, tune: TuneParams) -> Self {
        Shared {
            name: endpoint.to_string(),
            user: endpoint.user.clone(),
            vhost: endpoint.vhost.clone(),
            out: Mutex::default(),
            written: Notify::new(),
            drained: Notify::new(),
            channels: Mutex::default(),
            blocked: watch::Sender::new(None),
            ended: watch::Sender::new(None),
            is_closing: AtomicBool::new(false),
            tune,
        }
    }

    fn send(&self, channel: u16, method: &Outgoing<'_>) {
        self.write(None, |out| frame::put_method(out, channel, method));
    }

    /// Sends the last method of a channel and closes its gate.
    fn send_final(&self, channel: u16, method: &Outgoing<'_>, gate: &SendGate) {
        self.write(Some(gate), |out| {
            frame::put_method(out, channel, method);
            gate.0.store(true, Relaxed);
        });
    }

    /// Appends to the output buffer. The writer sends everything in the buffer at once.
    fn write(&self, gate: Option<&SendGate>, put: impl FnOnce(&mut BytesMut)) {
        let mut out = lock(&self.out);
        if out.ended || gate.is_some_and(SendGate::is_closed) {
            return;
        }
        put(&mut out.buffer);
        drop(out);
        self.written.notify_one();
    }

    /// Ends the connection. The first reason is kept.
    fn end(&self, why: Error) {
        let first = self.ended.send_if_modified(|ended| {
            let first = ended.is_none();
            if first {
                *ended = Some(Arc::new(why));
            }
            first
        });
        if first {
            lock(&self.out).ended = true;
            // Dropping the senders notifies the channels.
            lock(&self.channels).clear();
            self.written.notify_one();
            self.drained.notify_waiters();
        }
    }

    fn reason(&self) -> Error {
        match self.ended.borrow().as_deref() {
            Some(reason) => reason.duplicate(),
            None => Error::Channel { code: 541, text: "the channel is closed".to_owned() },
        }
    }
}
