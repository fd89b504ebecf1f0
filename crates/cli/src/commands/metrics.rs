//! `--metrics`: serves statistics to Prometheus.
//!
//! Owns a minimal HTTP server for `/metrics`. Requests are limited in size, time and number; other requests fail.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::task::AbortHandle;

use crate::error::Error;

/// Bytes of a request that are read at most.
const MAX_REQUEST_BYTES: usize = 8 << 10;
/// Time limit of a connection, including the response.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(5);
/// Number of open connections. A further one closes the oldest, so that idle connections block no others.
const MAX_CONNECTIONS: usize = 64;

/// Starts to listen; connections are answered by [`serve`].
pub(super) async fn bind(address: SocketAddr) -> Result<TcpListener, Error> {
    TcpListener::bind(address).await.map_err(|error| {
        Error::Setting(format!("cannot listen on {address} for --metrics: {error}; choose another address"))
    })
}

/// Answers requests until the runtime shuts down.
pub(super) async fn serve(listener: TcpListener, metrics: impl Fn() -> String + Clone + Send + Sync + 'static) {
    let mut open: VecDeque<AbortHandle> = VecDeque::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // Most likely there are no free file descriptors; connections that end free some.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        open.retain(|connection| !connection.is_finished());
        if open.len() >= MAX_CONNECTIONS
            && let Some(oldest) = open.pop_front()
        {
            oldest.abort();
        }
        let metrics = metrics.clone();
        let answer = async move { tokio::time::timeout(CONNECTION_TIMEOUT, respond(stream, &metrics)).await };
        open.push_back(tokio::spawn(answer).abort_handle());
    }
}

/// Metrics that are served on threads of their own, for commands without a runtime, until this is dropped.
pub(super) struct MetricsServer {
    address: SocketAddr,
    runtime: Option<Runtime>,
}

impl MetricsServer {
    pub(super) fn start(
        address: SocketAddr,
        metrics: impl Fn() -> String + Clone + Send + Sync + 'static,
    ) -> Result<Self, Error> {
        let failed = |error| Error::System(format!("cannot serve metrics: {error}"));
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.map_err(failed)?;
        let listener = runtime.block_on(bind(address))?;
        let address = listener.local_addr().map_err(failed)?;
        runtime.spawn(serve(listener, metrics));
        Ok(MetricsServer { address, runtime: Some(runtime) })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for MetricsServer {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

async fn respond(mut stream: TcpStream, metrics: &(impl Fn() -> String + Sync)) -> std::io::Result<()> {
    let mut request = Vec::new();
    let mut buffer = [0; 1 << 10];
    while !request.windows(4).any(|end| end == b"\r\n\r\n") && request.len() < MAX_REQUEST_BYTES {
        match stream.read(&mut buffer).await? {
            0 => break,
            count => request.extend_from_slice(&buffer[..count]),
        }
    }
    let first = request.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let mut words = first.split(|byte| *byte == b' ');
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let path = path.split(|byte| *byte == b'?').next().unwrap_or_default();
    let (status, body) = match (method, path) {
        (b"GET" | b"HEAD", b"/metrics") => ("200 OK", metrics()),
        (b"GET" | b"HEAD", _) => ("404 Not Found", "not found; metrics are at /metrics\n".to_owned()),
        _ => ("405 Method Not Allowed", "only GET and HEAD are allowed\n".to_owned()),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await?;
    if method != b"HEAD" {
        stream.write_all(body.as_bytes()).await?;
    }
    stream.shutdown().await
}
