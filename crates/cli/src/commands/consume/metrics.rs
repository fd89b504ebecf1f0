//! `--metrics`: how it goes, for Prometheus.
//!
//! Owns a responder that knows one page. Requests are bounded in size, time and number; whoever sends something else
//! is told so and hung up on.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use gristmill_amqp::stats::Watch;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use crate::error::Error;

/// The longest request, the longest time it may take, and how many are answered at once.
const LONGEST: usize = 8 << 10;
const WITHIN: Duration = Duration::from_secs(5);
const AT_ONCE: usize = 16;

/// Where it listens from now on; nothing is answered yet.
pub(super) async fn bind(address: SocketAddr) -> Result<TcpListener, Error> {
    TcpListener::bind(address).await.map_err(|error| {
        Error::Setting(format!(
            "cannot listen on {address} for --metrics: {error}; another address may be free"
        ))
    })
}

/// Answers until the runtime ends.
pub(super) async fn serve(listener: TcpListener, watch: Watch) {
    let room = Arc::new(Semaphore::new(AT_ONCE));
    while let Ok(room) = Arc::clone(&room).acquire_owned().await {
        let Ok((stream, _)) = listener.accept().await else {
            // No more files, most likely: that passes.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let watch = watch.clone();
        tokio::spawn(async move {
            let _room = room;
            let _ = tokio::time::timeout(WITHIN, answer(stream, &watch)).await;
        });
    }
}

async fn answer(mut stream: TcpStream, watch: &Watch) -> std::io::Result<()> {
    let mut request = Vec::new();
    let mut buffer = [0; 1 << 10];
    while !request.windows(4).any(|end| end == b"\r\n\r\n") && request.len() < LONGEST {
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
