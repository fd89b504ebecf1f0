//! `--metrics`: how it goes, for Prometheus.
//!
//! Owns a responder that knows one page. Requests are bounded in size, time and number; whoever sends something else
//! is told so and hung up on.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use gristmill_amqp::stats::StatsHandle;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;

use crate::error::Error;

/// The longest request.
const MAX_REQUEST: usize = 8 << 10;
/// How long a connection may take from its first byte to the end of its answer.
const WITHIN: Duration = Duration::from_secs(5);
/// Connections that are open at a time. The oldest is closed for one more, so that connections which send nothing keep
/// nobody out.
const MAX_CONNECTIONS: usize = 64;

/// Where it listens from now on; nothing is answered yet.
pub(super) async fn bind(address: SocketAddr) -> Result<TcpListener, Error> {
    TcpListener::bind(address).await.map_err(|error| {
        Error::Setting(format!(
            "cannot listen on {address} for --metrics: {error}; another address may be free"
        ))
    })
}

/// Answers until the runtime ends.
pub(super) async fn serve(listener: TcpListener, watch: StatsHandle) {
    let mut open: VecDeque<AbortHandle> = VecDeque::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // Most likely there are no more file descriptors: connections that end free some.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        open.retain(|connection| !connection.is_finished());
        if open.len() >= MAX_CONNECTIONS
            && let Some(oldest) = open.pop_front()
        {
            oldest.abort();
        }
        let watch = watch.clone();
        let answer = async move { tokio::time::timeout(WITHIN, answer(stream, &watch)).await };
        open.push_back(tokio::spawn(answer).abort_handle());
    }
}

async fn answer(mut stream: TcpStream, watch: &StatsHandle) -> std::io::Result<()> {
    let mut request = Vec::new();
    let mut buffer = [0; 1 << 10];
    while !request.windows(4).any(|end| end == b"\r\n\r\n") && request.len() < MAX_REQUEST {
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
        (b"GET" | b"HEAD", b"/metrics") => ("200 OK", watch.stats().prometheus()),
        (b"GET" | b"HEAD", _) => ("404 Not Found", "there is only /metrics\n".to_owned()),
        _ => ("405 Method Not Allowed", "only GET is answered\n".to_owned()),
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
