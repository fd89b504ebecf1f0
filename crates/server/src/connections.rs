//! Accepts connections and serves HTTP/1.1 on them.
//!
//! Owns the limits of a connection: time for the TLS handshake and for the headers, bytes of the headers, and the number
//! of connections. If all are in use, the one that was used first is closed, of those without a request and those whose
//! request has shown no credential yet. So clients without a credential keep no one out. `axum::serve` is not used: it sets no timer, so hyper would wait for headers forever.

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::Response;
use gristmill_pool::CancelToken;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use crate::counted_body::{CountedBody, CountedRequest};
use crate::problem::Problem;
use crate::security::Peer;

/// Time to send the headers of a request, and to complete a TLS handshake.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);

/// Bytes of the headers of a request.
const MAX_HEADER_BYTES: usize = 64 << 10;

/// Connections that are open at the same time.
const MAX_CONNECTIONS: usize = 256;

/// Maximum time from the cancellation of a server until its connections have ended.
const STOP_TIMEOUT: Duration = Duration::from_millis(1_500);

/// Pause after a connection could not be accepted. Most likely there are no free file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Time to send the answer to a connection that is refused, and to read what its client sends meanwhile.
const REFUSE_TIMEOUT: Duration = Duration::from_secs(1);

/// The open connections.
#[derive(Debug, Default)]
struct Connections {
    open: Mutex<HashMap<u64, Arc<Connection>>>,
    next: AtomicU64,
}

/// One connection, as far as others need to know it.
#[derive(Debug)]
pub(crate) struct Connection {
    /// Requests that are not answered completely.
    requests: AtomicUsize,
    /// Whether the last request has shown a valid credential.
    is_trusted: AtomicBool,
    /// When the last request began or ended, or the connection began.
    last_used: Mutex<Instant>,
    /// Closes it.
    close: CancelToken,
}

/// A connection in the list of open ones, until this is dropped.
struct Entry {
    connections: Arc<Connections>,
    id: u64,
    connection: Arc<Connection>,
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.connections.lock().remove(&self.id);
    }
}

impl Connections {
    /// Adds a connection. If there are too many, another one is closed; `None` if all are busy.
    fn add(self: &Arc<Self>) -> Option<Entry> {
        let mut open = self.lock();
        if open.len() >= MAX_CONNECTIONS {
            let closable = open.iter().filter(|(_, other)| other.may_be_closed());
            let oldest = closable.min_by_key(|(_, other)| other.last_used()).map(|(id, _)| *id)?;
            if let Some(closed) = open.remove(&oldest) {
                closed.close.cancel();
            }
        }
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let connection = Arc::new(Connection {
            requests: AtomicUsize::new(0),
            is_trusted: AtomicBool::new(false),
            last_used: Mutex::new(Instant::now()),
            close: CancelToken::new(),
        });
        open.insert(id, connection.clone());
        Some(Entry { connections: self.clone(), id, connection })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Arc<Connection>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Connection {
    fn last_used(&self) -> Instant {
        *self.last_used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn may_be_closed(&self) -> bool {
        self.requests.load(Ordering::Acquire) == 0 || !self.is_trusted.load(Ordering::Acquire)
    }

    fn begin_request(&self) {
        self.is_trusted.store(false, Ordering::Release);
        self.requests.fetch_add(1, Ordering::AcqRel);
        self.use_now();
    }

    /// Records that the request has shown a valid credential.
    pub(crate) fn trust(&self) {
        self.is_trusted.store(true, Ordering::Release);
    }

    /// Records that the answer to a request was sent, or cannot be sent any more.
    pub(crate) fn end_request(&self) {
        self.requests.fetch_sub(1, Ordering::AcqRel);
        self.use_now();
    }

    fn use_now(&self) {
        *self.last_used.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }
}

/// Serves until `stop` is cancelled and the connections have ended, which takes at most [`STOP_TIMEOUT`].
pub(crate) async fn serve(listeners: Vec<TcpListener>, tls: Option<TlsAcceptor>, router: Router, stop: CancelToken) {
    let connections = Arc::new(Connections::default());
    let mut accepting = JoinSet::new();
    for listener in listeners {
        accepting.spawn(accept(listener, tls.clone(), router.clone(), connections.clone(), stop.clone()));
    }
    accepting.join_all().await;
}

async fn accept(
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    router: Router,
    connections: Arc<Connections>,
    stop: CancelToken,
) {
    let mut tasks = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => break,
            accepted = listener.accept() => accepted,
            // Ended connections are removed.
            Some(_) = tasks.join_next() => continue,
        };
        match accepted {
            Ok((stream, peer)) => {
                let (tls, router, stop) = (tls.clone(), router.clone(), stop.clone());
                let connections = connections.clone();
                tasks.spawn(async move {
                    match connections.add() {
                        None => refuse(stream, tls.is_some()).await,
                        Some(entry) => handle(stream, tls, peer.ip(), router, &entry.connection, &stop).await,
                    }
                });
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    let ended = tokio::time::timeout(STOP_TIMEOUT, async { while tasks.join_next().await.is_some() {} }).await;
    if ended.is_err() {
        tracing::warn!(connections = tasks.len(), "closed connections that did not end in time");
    }
}

/// Says that the server is busy, unless the client would not understand that before a TLS handshake.
async fn refuse(mut stream: TcpStream, tls: bool) {
    if tls {
        return;
    }
    let problem = Problem::new(StatusCode::SERVICE_UNAVAILABLE, "all connections are in use; try again later");
    let body = serde_json::to_string(&problem).unwrap_or_default();
    let text = format!(
        "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/problem+json\r\nContent-Length: {}\r\n\
         Retry-After: 10\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    let answer = async {
        stream.write_all(text.as_bytes()).await?;
        stream.shutdown().await?;
        // A close with unread bytes would reset the connection, and the client might not see the answer.
        let mut unread = [0; 4 << 10];
        while stream.read(&mut unread).await? > 0 {}
        std::io::Result::Ok(())
    };
    let _ = tokio::time::timeout(REFUSE_TIMEOUT, answer).await;
}

async fn handle(
    stream: TcpStream,
    tls: Option<TlsAcceptor>,
    peer: IpAddr,
    router: Router,
    connection: &Arc<Connection>,
    stop: &CancelToken,
) {
    // Answers are small; without this, the last packet of one would wait for the client's acknowledgement.
    let _ = stream.set_nodelay(true);
    match tls {
        None => serve_http(stream, peer, router, connection, stop).await,
        Some(tls) => {
            let stream = tokio::select! {
                () = connection.close.cancelled() => return,
                () = stop.cancelled() => return,
                stream = tokio::time::timeout(HEADER_TIMEOUT, tls.accept(stream)) => stream,
            };
            match stream {
                Ok(Ok(stream)) => serve_http(stream, peer, router, connection, stop).await,
                Ok(Err(error)) => tracing::debug!(%peer, %error, "TLS handshake failed"),
                Err(_) => tracing::debug!(%peer, "TLS handshake took too long"),
            }
        }
    }
}

async fn serve_http(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    peer: IpAddr,
    router: Router,
    connection: &Arc<Connection>,
    stop: &CancelToken,
) {
    let service = service_fn({
        let connection = connection.clone();
        move |request: hyper::Request<Incoming>| {
            connection.begin_request();
            let counted = CountedRequest(connection.clone());
            let mut request: Request = request.map(Body::new);
            request.extensions_mut().insert(Peer(peer));
            request.extensions_mut().insert(connection.clone());
            let router = router.clone();
            async move {
                let response: Response = call(router, request).await;
                // The request ends when the body of its response was sent, which may be an event stream.
                Ok::<_, Infallible>(response.map(|body| CountedBody::new(body, counted)))
            }
        }
    });
    let mut http = hyper::server::conn::http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT).max_buf_size(MAX_HEADER_BYTES);
    let mut served = std::pin::pin!(http.serve_connection(TokioIo::new(stream), service));
    let mut is_stopping = false;
    loop {
        let ended = tokio::select! {
            ended = served.as_mut() => ended,
            () = connection.close.cancelled() => return,
            () = stop.cancelled(), if !is_stopping => {
                is_stopping = true;
                served.as_mut().graceful_shutdown();
                continue;
            }
        };
        if let Err(error) = ended {
            tracing::debug!(%peer, %error, "connection failed");
        }
        return;
    }
}

async fn call(router: Router, request: Request) -> Response {
    use hyper::service::Service as _;
    match hyper_util::service::TowerToHyperService::new(router).call(request).await {
        Ok(response) => response,
        Err(never) => match never {},
    }
}
