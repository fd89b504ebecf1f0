//! `--metrics`: serves statistics to Prometheus.
//!
//! Owns a minimal HTTP server for `/metrics`. Requests are limited in size, time and number; other requests fail.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use gristmill_amqp::stats::StatsHandle;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
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
pub(super) async fn serve(listener: TcpListener, stats: StatsHandle) {
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
        let stats = stats.clone();
        let answer = async move { tokio::time::timeout(CONNECTION_TIMEOUT, respond(stream, &stats)).await };
        open.push_back(tokio::spawn(answer).abort_handle());
    }
}

async fn respond(mut stream: TcpStream, stats: &StatsHandle) -> std::io::Result<()> {
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
        (b"GET" | b"HEAD", b"/metrics") => ("200 OK", stats.stats().prometheus()),
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
