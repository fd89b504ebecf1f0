//! Tests of `gristmill consume --http`.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use gristmill_amqp::Message;
use serde_json::json;

use crate::fixture::{Fixture, body, header};

/// Received requests: head and body.
pub(crate) type Requests = Arc<Mutex<Vec<(String, String)>>>;

/// Starts an HTTP server. `answer` gets the body of a request and the number of earlier requests with that body.
pub(crate) fn server(answer: fn(&str, usize) -> String) -> (String, Requests) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://me:secret@{}/orders?token=secret", listener.local_addr().unwrap());
    let requests = Requests::default();
    let log = Arc::clone(&requests);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let log = Arc::clone(&log);
            std::thread::spawn(move || serve(&stream.unwrap(), answer, &log));
        }
    });
    (url, requests)
}

fn serve(stream: &TcpStream, answer: fn(&str, usize) -> String, log: &Requests) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    loop {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if reader.read_line(&mut head).unwrap_or(0) == 0 {
                return;
            }
        }
        let length = head.lines().find_map(|line| line.to_lowercase().strip_prefix("content-length: ")?.parse().ok());
        let mut body = vec![0; length.unwrap_or(0)];
        reader.read_exact(&mut body).unwrap();
        let body = String::from_utf8(body).unwrap();
        let before = {
            let mut log = log.lock().unwrap();
            let before = log.iter().filter(|(_, other)| *other == body).count();
            log.push((head, body.clone()));
            before
        };
        { stream }.write_all(answer(&body, before).as_bytes()).unwrap();
    }
}

pub(crate) fn status(status: &str, more: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\n{more}Content-Length: {}\r\n\r\n{body}", body.len())
}

#[test]
fn http_posts_body_with_properties_as_headers() {
    let (url, requests) = server(|_, _| status("204 No Content", "", ""));
    let fixture = Fixture::new("post");
    let mut message = Message::to_queue(&fixture.queue, "{\"id\": 17}")
        .id("id-1")
        .header("tenant", "ac\u{e9}")
        .header("split", "a\r\nX-Evil: 1")
        .header("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
    message.properties.content_type = Some("application/json".to_owned());
    fixture.send([message, Message::to_queue(&fixture.queue, "bare")]);
    let stats = fixture.drain(&["--http", &url]);
    assert_eq!((&stats["acknowledged"], &stats["dead_lettered"]), (&json!(2), &json!(0)), "{stats}");
    let requests = requests.lock().unwrap();
    let of = |body: &str| requests.iter().find(|(_, found)| found == body).unwrap().0.to_lowercase();
    let head = of("{\"id\": 17}");
    assert!(head.starts_with("post /orders?token=secret http/1.1\r\n"), "{head}");
    for expected in [
        "content-type: application/json",
        "x-gristmill-message-id: id-1",
        &format!("x-gristmill-queue: {}", fixture.queue),
        "x-gristmill-attempt: 1",
        "x-gristmill-header-tenant: ac%c3%a9",
        "x-gristmill-header-split: a%0d%0ax-evil: 1",
        "traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    ] {
        assert!(head.lines().any(|line| line == expected), "no {expected} in\n{head}");
    }
    assert!(of("bare").contains("content-type: application/octet-stream"), "{}", of("bare"));
}

#[test]
fn http_status_decides_between_done_pause_and_dead_letter() {
    let (url, requests) = server(|body, before| match (body, before) {
        ("busy", 0) => status("503 Service Unavailable", "", "later"),
        ("wrong", _) => status("400 Bad Request", "", "no such\n  customer"),
        ("moved", _) => status("302 Found", "Location: http://127.0.0.1:1/\r\n", ""),
        _ => status("200 OK", "", "fine"),
    });
    let fixture = Fixture::new("status");
    fixture.publish(["busy", "wrong", "moved", "good"]);
    let stats = fixture.drain(&["--retry-delay", "1ms", "--http", &url]);
    assert_eq!(
        (&stats["handled"], &stats["retried"], &stats["dead_lettered"]),
        (&json!(2), &json!(0), &json!(2)),
        "{stats}"
    );
    assert_eq!(requests.lock().unwrap().len(), 5);
    let mut dead = fixture.take(".dead", 2);
    dead.sort_by_key(body);
    let errors: Vec<String> = dead.iter().map(|one| header(one, "x-gristmill-error")).collect();
    let at = url.replace("me:secret@", "").replace("?token=secret", "");
    let expected = [format!("POST {at}: 302 Found"), format!("POST {at}: 400 Bad Request: no such customer")];
    assert_eq!(errors, expected);
    assert!(!stats["stderr"].as_str().unwrap().contains("secret"), "{stats}");
}

#[test]
fn retry_after_delays_further_requests() {
    let (url, requests) = server(|_, _| status("429 Too Many Requests", "Retry-After: 3600\r\n", ""));
    let fixture = Fixture::new("retry-after");
    fixture.publish((0..40).map(|number| number.to_string()));
    let words = ["consume", &fixture.queue, "--workers", "4", "--json", "--for", "3s", "--http", &url];
    let output = fixture.run(&words);
    // Requests in flight at the first response, and none in the seconds after it.
    let count = requests.lock().unwrap().len();
    assert!((1..=12).contains(&count), "{count} requests");
    assert_eq!(output.code, Some(2), "{output:?}");
    let stats = &output.json()["consumers"][0];
    assert_eq!((&stats["retried"], &stats["dead_lettered"]), (&json!(0), &json!(0)), "{stats}");
    fixture.wait_for_depth("", 40);
}

#[test]
fn message_without_response_is_dead_lettered_after_timeout() {
    let (url, _) = server(|body, _| match body {
        // The announced body never arrives.
        "x" => "HTTP/1.1 200 OK\r\nContent-Length: 9".to_owned(),
        _ => status("200 OK", "", ""),
    });
    let fixture = Fixture::new("silent");
    fixture.publish((0..20).map(|number| if number == 5 { "x".to_owned() } else { number.to_string() }));
    let words = ["--workers", "2", "--attempts", "1", "--timeout", "2s", "--http", &url];
    let stats = fixture.drain(&words);
    assert_eq!((&stats["handled"], &stats["dead_lettered"]), (&json!(19), &json!(1)), "{stats}");
    let dead = fixture.take(".dead", 1);
    let error = header(&dead[0], "x-gristmill-error");
    assert!(error.contains("timeout"), "{error}");
}

/// Starts a TLS server that answers each request with 204.
fn secure(certificate: &rcgen::CertifiedKey<rcgen::KeyPair>) -> u16 {
    use tokio_rustls::rustls::pki_types::PrivateKeyDer;
    use tokio_rustls::rustls::{ServerConfig, ServerConnection, StreamOwned, crypto::ring};
    let key = PrivateKeyDer::try_from(certificate.signing_key.serialize_der()).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.cert.der().clone()], key)
        .unwrap();
    let config = Arc::new(config);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let connection = ServerConnection::new(Arc::clone(&config)).unwrap();
            let mut stream = StreamOwned::new(connection, stream.unwrap());
            let mut request = [0; 4096];
            // A client that does not trust the certificate disconnects here.
            if stream.read(&mut request).is_ok_and(|count| count > 0) {
                let _ = stream.write_all(status("204 No Content", "Connection: close\r\n", "").as_bytes());
                stream.conn.send_close_notify();
                let _ = stream.flush();
            }
        }
    });
    port
}

#[test]
fn https_requires_certificate_trusted_by_the_system() {
    let certificate = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let url = format!("https://localhost:{}/", secure(&certificate));
    let fixture = Fixture::new("tls");
    let file = fixture.home.write("authority.pem", &certificate.cert.pem());
    let untrusted = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let other = fixture.home.write("untrusted.pem", &untrusted.cert.pem());
    for (trusted, code) in [(&file, 0), (&other, 2)] {
        fixture.publish(["x"]);
        let words = ["consume", &fixture.queue, "--drain", "--drain-timeout", "1s", "--http", &url];
        let mut command = fixture.command(&words);
        let output = crate::common::RunOutput::of(&command.env("SSL_CERT_FILE", trusted).output().unwrap());
        assert_eq!(output.code, Some(code), "{output:?}");
        assert_eq!(output.err.contains("certificate"), code == 2, "{output:?}");
    }
}
