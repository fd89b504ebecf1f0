//! A client with one connection, and the load of several.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    time::{Duration, Instant},
};

use super::servers::Running;

/// A connection on which one request follows the other.
pub(super) struct Client {
    stream: BufReader<TcpStream>,
    head: String,
}

/// What a server has answered within a time.
pub(super) struct Load {
    pub(super) per_second: f64,
    pub(super) p99_ms: f64,
}

impl Client {
    pub(super) fn connect(server: &Running) -> Result<Self, String> {
        let stream = TcpStream::connect(&server.address).map_err(|error| format!("{}: {error}", server.address))?;
        stream.set_nodelay(true).map_err(|error| error.to_string())?;
        let head = format!("Host: {}\r\nAuthorization: Bearer {}\r\n\r\n", server.address, server.token);
        Ok(Client { stream: BufReader::with_capacity(64 << 10, stream), head })
    }

    /// Sends a request and returns the body of the answer, which must be 200.
    pub(super) fn get(&mut self, path: &str) -> Result<String, String> {
        self.exchange(path).map_err(|error| format!("{path}: {error}"))
    }

    fn exchange(&mut self, path: &str) -> std::io::Result<String> {
        let failed = |text: String| std::io::Error::other(text);
        self.stream.get_mut().write_all(format!("GET {path} HTTP/1.1\r\n{}", self.head).as_bytes())?;
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        let status = line.trim_end().to_owned();
        let mut length = 0;
        loop {
            line.clear();
            self.stream.read_line(&mut line)?;
            match line.trim_end().split_once(": ") {
                Some((name, value)) if name.eq_ignore_ascii_case("content-length") => {
                    length = value.parse().map_err(|_| failed(format!("content-length: {value}")))?;
                }
                Some(_) => {}
                None => break,
            }
        }
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body)?;
        let body = String::from_utf8(body).map_err(|error| failed(error.to_string()))?;
        if status.contains(" 200 ") { Ok(body) } else { Err(failed(format!("{status} {body}"))) }
    }
}

/// Sends requests on several connections for `time`.
pub(super) fn load(server: &Running, path: &str, connections: usize, time: Duration) -> Result<Load, String> {
    let end = Instant::now() + time;
    let results: Vec<Result<Vec<f64>, String>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..connections)
            .map(|_| {
                scope.spawn(move || {
                    let mut client = Client::connect(server)?;
                    let mut times = Vec::new();
                    while Instant::now() < end {
                        let begun = Instant::now();
                        client.get(path)?;
                        times.push(begun.elapsed().as_secs_f64() * 1e3);
                    }
                    Ok(times)
                })
            })
            .collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, _>| {
            thread.join().unwrap_or_else(|_| Err("a client panicked".to_owned()))
        };
        threads.into_iter().map(join).collect()
    });
    let mut times = results.into_iter().collect::<Result<Vec<_>, _>>()?.concat();
    times.sort_by(f64::total_cmp);
    let p99_ms = times.get(times.len() * 99 / 100).copied().unwrap_or(f64::NAN);
    Ok(Load { per_second: times.len() as f64 / time.as_secs_f64(), p99_ms })
}
