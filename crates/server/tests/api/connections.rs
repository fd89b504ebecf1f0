//! Limits of connections: slow and idle clients, and long headers.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::client::{FULL, Fixture};

#[test]
fn idle_connections_keep_no_one_out() {
    let fixture = Fixture::new();
    let idle: Vec<TcpStream> = (0..1_000).map(|_| TcpStream::connect(fixture.address).unwrap()).collect();
    for _ in 0..20 {
        assert_eq!(fixture.send("GET", "/health", &[], None).status, 200);
    }
    drop(idle);
}

#[test]
fn slow_headers_are_cut_off() {
    let fixture = Fixture::new();
    let mut stream = TcpStream::connect(fixture.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream.write_all(b"GET /health HTTP/1.1\r\nHost: ").unwrap();
    // Closed by the server.
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest);
    assert!(!rest.starts_with(b"HTTP/1.1 200"));
}

#[test]
fn slow_body_is_cut_off() {
    let fixture = Fixture::new();
    let mut stream = TcpStream::connect(fixture.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let head = format!(
        "POST /api/v1/jobs HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {FULL}\r\nContent-Type: application/json\r\n\
         Content-Length: 20\r\n\r\n{{",
        fixture.host()
    );
    stream.write_all(head.as_bytes()).unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    assert!(answer.starts_with(b"HTTP/1.1 408"), "{}", String::from_utf8_lossy(&answer));
}

#[test]
fn long_headers_are_refused() {
    let fixture = Fixture::new();
    let long = "x".repeat(10 << 20);
    let answer = fixture.send("GET", "/health", &[("X-Long", &long)], None);
    assert!([0, 400, 431].contains(&answer.status), "{}", answer.status);
    assert_eq!(fixture.send("GET", "/health", &[("X-Long", &long[..40 << 10])], None).status, 200);
}

#[test]
fn connection_is_used_for_several_requests() {
    let fixture = Fixture::new();
    let mut stream = TcpStream::connect(fixture.address).unwrap();
    for _ in 0..3 {
        let request = format!("GET /health HTTP/1.1\r\nHost: {}\r\n\r\n", fixture.host());
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = [0; 1_024];
        let count = stream.read(&mut answer).unwrap();
        assert!(answer[..count].starts_with(b"HTTP/1.1 200"));
    }
}

/// Clients without a credential cannot occupy all connections, whatever they send.
#[test]
fn unfinished_requests_without_a_credential_keep_no_one_out() {
    let fixture = Fixture::new();
    let head = format!(
        "POST /api/v1/sign-in HTTP/1.1\r\nHost: {}\r\nSec-Fetch-Site: same-origin\r\nContent-Type: application/json\r\n\
         Content-Length: 20\r\n\r\n",
        fixture.host()
    );
    let connect = || {
        let mut stream = TcpStream::connect(fixture.address).unwrap();
        stream.write_all(head.as_bytes()).unwrap();
        stream
    };
    let waiting: Vec<TcpStream> = (0..300).map(|_| connect()).collect();
    for _ in 0..20 {
        assert_eq!(fixture.get("/api/v1/session").status, 200);
    }
    drop(waiting);
}

/// A further event stream is refused, and one that ends makes room for another.
#[test]
fn event_streams_leave_connections_for_others() {
    let fixture = Fixture::new();
    let head =
        format!("GET /api/v1/events HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {FULL}\r\n\r\n", fixture.host());
    let stream = || {
        let mut stream = TcpStream::connect(fixture.address).unwrap();
        stream.write_all(head.as_bytes()).unwrap();
        let mut begin = [0; 12];
        stream.read_exact(&mut begin).unwrap();
        (stream, String::from_utf8_lossy(&begin).into_owned())
    };
    let mut streams: Vec<_> = (0..128).map(|_| stream()).collect();
    assert!(streams.iter().all(|(_, begin)| begin == "HTTP/1.1 200"));
    assert_eq!(stream().1, "HTTP/1.1 429");
    assert_eq!(fixture.get("/api/v1/jobs").status, 200);
    streams.truncate(100);
    // The server notices the ends of streams when it sends something, or when the connection is closed.
    while stream().1 != "HTTP/1.1 200" {}
}
