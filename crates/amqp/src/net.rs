//! One connection to one broker: a task that reads, a task that writes, and channels that share them.
//!
//! Owns sockets, heartbeats and the rule by which a connection ends: once, with one reason, which every channel
//! is told. It never connects again; that is `link`'s. No frame of the other side, in whatever order, panics here.

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

/// A way to the broker. When the last handle goes, channels included, the connection ends.
#[derive(Clone)]
pub(crate) struct Connection {
    shared: Arc<Shared>,
    _close_on_drop: Arc<CloseOnDrop>,
}

/// Ends the connection when nobody is left to use it. The two tasks hold only `Shared`.
struct CloseOnDrop(Arc<Shared>);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.0.end(Error::Closed);
    }
}

struct Shared {
    /// Without the password.
    name: String,
    user: String,
    vhost: String,
    out: Mutex<OutBuffer>,
    /// There is something to write.
    written: Notify,
    /// There is room again in `out`.
    drained: Notify,
    channels: Mutex<BTreeMap<u16, ChannelEntry>>,
    /// Why the broker reads nothing more, while it does not.
    blocked: watch::Sender<Option<String>>,
    ended: watch::Sender<Option<Arc<Error>>>,
    /// We have said good-bye.
    is_closing: AtomicBool,
    tune: TuneParams,
}

/// What both sides agreed on.
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

/// A channel as the connection sees it.
enum ChannelEntry {
    Open(mpsc::UnboundedSender<Event>, SendGate),
    /// We have closed it; its number is free when the broker says so too. Whoever waits for that is told by there being
    /// nobody to tell.
    Closing {
        _events: mpsc::UnboundedSender<Event>,
    },
    /// The broker has closed it; its number is free when its owner has seen that, and not before: what the owner
    /// still says would reach whoever had the number next.
    ClosedByBroker,
}

/// Whether a channel can still be spoken through. Shut and looked at under the lock of `out`, so that nothing goes out
/// behind the end of a channel: the broker closes the whole connection over that.
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
    /// How often each side must let the other hear from it.
    pub(crate) fn heartbeat(&self) -> Duration {
        self.shared.tune.heartbeat
    }

    /// Connects, and is let in.
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
                let source = std::io::Error::new(std::io::ErrorKind::TimedOut, "no answer in time");
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
        Ok(Self { _close_on_drop: Arc::new(CloseOnDrop(Arc::clone(&shared))), shared })
    }

    /// Waits for the end, and says why.
    pub(crate) async fn ended(&self) -> Arc<Error> {
        let mut ended = self.shared.ended.subscribe();
        let reason = ended.wait_for(Option::is_some).await;
        reason.ok().and_then(|reason| reason.clone()).unwrap_or_else(|| Arc::new(Error::Closed))
    }

    /// The user that is connected, and the virtual host.
    pub(crate) fn user(&self) -> (&str, &str) {
        (&self.shared.user, &self.shared.vhost)
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.shared.ended.borrow().is_some()
    }

    /// Why the broker reads nothing more, while it does not.
    pub(crate) fn blocked(&self) -> watch::Receiver<Option<String>> {
        self.shared.blocked.subscribe()
    }

    /// Says good-bye. Returns when the broker has answered, which is after everything sent before.
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

    /// The last word on a channel.
    fn send_final(&self, channel: u16, method: &Outgoing<'_>, gate: &SendGate) {
        self.write(Some(gate), |out| {
            frame::put_method(out, channel, method);
            gate.0.store(true, Relaxed);
        });
    }

    /// Adds to what is to be written. All that gathers until the writer comes by goes out in one piece.
    fn write(&self, gate: Option<&SendGate>, put: impl FnOnce(&mut BytesMut)) {
        let mut out = lock(&self.out);
        if out.ended || gate.is_some_and(SendGate::is_closed) {
            return;
        }
        put(&mut out.buffer);
        drop(out);
        self.written.notify_one();
    }

    /// The first reason stays.
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
            // Their receivers learn of it by there being nobody to send.
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
