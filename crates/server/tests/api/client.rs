//! A server on a free port, and a client that sends bytes as they are.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::Duration;

use gristmill_pool::CancelToken;
use gristmill_server::{Server, ServerError, ServerOptions};
use gristmill_store::{Durability, Store};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::Value;
use tempfile::TempDir;

pub(crate) const FULL: &str = "full-token-0123456789";
pub(crate) const READ: &str = "read-token-0123456789";

/// A running server with its database in a temporary folder.
pub(crate) struct Fixture {
    pub(crate) store: Store,
    pub(crate) folder: TempDir,
    pub(crate) address: SocketAddr,
    /// Path and code of a sign-in link.
    pub(crate) link: String,
    pub(crate) stop: CancelToken,
    thread: Option<JoinHandle<Result<(), ServerError>>>,
}

/// An answer of the server.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let found = self.head.lines().filter_map(|line| line.split_once(": "));
        found.filter(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value).next()
    }

    /// The text of a problem, whose form is checked.
    #[track_caller]
    pub(crate) fn problem(&self) -> String {
        assert_eq!(self.header("content-type"), Some("application/problem+json"), "{self:?}");
        let value = self.json();
        assert_eq!(value["status"], self.status, "{value}");
        assert!(value["title"].is_string(), "{value}");
        value["detail"].as_str().unwrap_or_else(|| panic!("no detail: {value}")).to_owned()
    }
}

impl Fixture {
    pub(crate) fn new() -> Self {
        Self::with(|_| {})
    }

    pub(crate) fn with(change: impl FnOnce(&mut ServerOptions)) -> Self {
        raise_file_limit();
        let folder = tempfile::tempdir().unwrap();
        let store = Store::options().durability(Durability::Normal).open(folder.path().join("g.db")).unwrap();
        let mut options = ServerOptions::default();
        options.listen = vec![SocketAddr::from(([127, 0, 0, 1], 0))];
        options.full_token = FULL.to_owned();
        options.read_token = READ.to_owned();
        options.protected_files = vec![folder.path().join("g.db")];
        change(&mut options);
        let stop = CancelToken::new();
        let server = Server::bind(&store, options, &stop).unwrap();
        let (address, link) = (server.addresses()[0], server.sign_in_path());
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
            let result = runtime.block_on(server.run());
            runtime.shutdown_timeout(Duration::from_secs(1));
            result
        });
        Fixture { store, folder, address, link, stop, thread: Some(thread) }
    }

    /// Waits until the server has ended by itself.
    pub(crate) fn ended(mut self) -> Result<(), ServerError> {
        self.thread.take().unwrap().join().unwrap()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn host(&self) -> String {
        self.address.to_string()
    }

    /// Executes SQL as another program.
    pub(crate) fn sql(&self, sql: &str) {
        let conn = rusqlite::Connection::open(self.path("g.db")).unwrap();
        conn.busy_timeout(Duration::from_secs(10)).unwrap();
        conn.execute_batch(sql).unwrap_or_else(|error| panic!("{sql}: {error}"));
    }

    /// Sends a request line and headers with `Host`, and returns the answer.
    pub(crate) fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: Option<&str>) -> Answer {
        let mut request = format!("{method} {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n", self.host());
        for (name, value) in headers {
            request.push_str(&format!("{name}: {value}\r\n"));
        }
        if let Some(body) = body {
            request.push_str(&format!("Content-Length: {}\r\n", body.len()));
        }
        request.push_str("\r\n");
        request.push_str(body.unwrap_or_default());
        self.raw(request.as_bytes())
    }

    /// Sends bytes and reads the answer until the server closes the connection.
    pub(crate) fn raw(&self, request: &[u8]) -> Answer {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        // The server may answer and close before it has read everything.
        let _ = stream.write_all(request);
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes);
        parse(&bytes)
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        self.send("GET", path, &[("Authorization", &format!("Bearer {FULL}"))], None)
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Answer {
        let headers = [("Authorization", format!("Bearer {FULL}")), ("Content-Type", "application/json".to_owned())];
        let headers = [(headers[0].0, headers[0].1.as_str()), (headers[1].0, headers[1].1.as_str())];
        self.send("POST", path, &headers, Some(&body.to_string()))
    }

    /// Signs in with the link. Returns the cookie.
    pub(crate) fn sign_in(&self) -> String {
        let code = self.link.split_once("k=").unwrap().1;
        let body = serde_json::json!({ "code": code }).to_string();
        let headers = [("Content-Type", "application/json"), ("Sec-Fetch-Site", "same-origin")];
        let answer = self.send("POST", "/api/v1/sign-in", &headers, Some(&body));
        assert_eq!(answer.status, 204, "{answer:?}");
        let cookie = answer.header("set-cookie").unwrap();
        for attribute in ["HttpOnly", "SameSite=Strict", "Path=/"] {
            assert!(cookie.contains(attribute), "{cookie}");
        }
        cookie.split(';').next().unwrap().to_owned()
    }

    /// Registers a folder as a root and scans it.
    pub(crate) fn scan(&self, root: &Path) {
        let root = self.store.roots().register(&root.canonicalize().unwrap()).unwrap();
        gristmill_dedup::scan(&self.store, &[root], &Default::default(), &Default::default()).unwrap();
    }
}

/// Raises the limit of open files as far as it may be: some tests open more than a thousand connections.
fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    // Without it, these tests fail with a message that says so.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}

impl Drop for Fixture {
    fn drop(&mut self) {
        self.stop.cancel();
        if let Some(thread) = self.thread.take() {
            let joined = thread.join();
            assert!(matches!(joined, Ok(Ok(()))) || std::thread::panicking(), "{joined:?}");
        }
        self.store.close();
    }
}

fn parse(bytes: &[u8]) -> Answer {
    let end = bytes.windows(4).position(|end| end == b"\r\n\r\n").unwrap_or(bytes.len());
    let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
    let mut body = bytes.get(end + 4..).unwrap_or_default().to_vec();
    if head.to_lowercase().contains("transfer-encoding: chunked") {
        body = unchunked(&body);
    }
    Answer { status, head, body }
}

fn unchunked(mut bytes: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    while let Some(end) = bytes.windows(2).position(|end| end == b"\r\n") {
        let length = usize::from_str_radix(&String::from_utf8_lossy(&bytes[..end]), 16).unwrap_or(0);
        if length == 0 {
            break;
        }
        body.extend_from_slice(bytes.get(end + 2..end + 2 + length).unwrap_or_default());
        bytes = bytes.get(end + 4 + length..).unwrap_or_default();
    }
    body
}
