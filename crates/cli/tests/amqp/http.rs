//! `gristmill consume --http`.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use gristmill_amqp::Message;
use serde_json::json;

use crate::bed::{Bed, body, header};

/// What came: the head, and the body.
type Requests = Arc<Mutex<Vec<(String, String)>>>;

/// The other side: answers as `answer` says, which sees the body and how many requests with it came before.
fn server(answer: fn(&str, usize) -> String) -> (String, Requests) {
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
        let length =
            head.lines().find_map(|line| line.to_lowercase().strip_prefix("content-length: ")?.parse().ok());
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

fn status(status: &str, more: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\n{more}Content-Length: {}\r\n\r\n{body}", body.len())
}

#[test]
fn the_message_is_posted() {
    let (url, requests) = server(|_, _| status("204 No Content", "", ""));
    let bed = Bed::new("post");
    let mut message = Message::to_queue(&bed.queue, "{\"id\": 17}")
        .id("id-1")
        .header("tenant", "ac\u{e9}")
        .header("split", "a\r\nX-Evil: 1")
        .header("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
    message.properties.content_type = Some("application/json".to_owned());
    bed.send([message, Message::to_queue(&bed.queue, "bare")]);
    let stats = bed.drain(&["--http", &url]);
    assert_eq!((&stats["acknowledged"], &stats["rejected"]), (&json!(2), &json!(0)), "{stats}");
    let requests = requests.lock().unwrap();
    let of = |body: &str| requests.iter().find(|(_, found)| found == body).unwrap().0.to_lowercase();
    let head = of("{\"id\": 17}");
    assert!(head.starts_with("post /orders?token=secret http/1.1\r\n"), "{head}");
    for expected in [
        "content-type: application/json",
        "x-gristmill-message-id: id-1",
        &format!("x-gristmill-queue: {}", bed.queue),
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
fn the_status_decides() {
    let (url, requests) = server(|body, before| match (body, before) {
        ("busy", 0) => status("503 Service Unavailable", "", "later"),
        ("wrong", _) => status("400 Bad Request", "", "no such\n  customer"),
        ("moved", _) => status("302 Found", "Location: http://127.0.0.1:1/\r\n", ""),
        _ => status("200 OK", "", "fine"),
    });
    let bed = Bed::new("status");
    bed.publish(["busy", "wrong", "moved", "good"]);
    let stats = bed.drain(&["--retry-delay", "1ms", "--http", &url]);
    assert_eq!((&stats["retried"], &stats["rejected"]), (&json!(1), &json!(2)), "{stats}");
    assert_eq!(requests.lock().unwrap().len(), 5);
    let mut dead = bed.take(".dead", 2);
    dead.sort_by_key(body);
    let errors: Vec<String> = dead.iter().map(|one| header(one, "x-gristmill-error")).collect();
    let at = url.replace("me:secret@", "").replace("?token=secret", "");
    let expected = [format!("POST {at}: 302 Found"), format!("POST {at}: 400 Bad Request: no such customer")];
    assert_eq!(errors, expected);
    assert!(!stats["said"].as_str().unwrap().contains("secret"), "{stats}");
}

#[test]
fn an_answer_may_say_when_to_come_again() {
    let (url, _) = server(|_, _| status("429 Too Many Requests", "Retry-After: 3600\r\n", ""));
    let bed = Bed::new("retry-after");
    bed.publish(["x"]);
    let mut command = bed.command(&["consume", &bed.queue, "--http", &url]);
    let process =
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn().unwrap();
    // An hour, in the steps that there are: 125 ms times 2 to the 15th.
    bed.depth_is(".retry.4096000", 1);
    crate::common::signal(&process, "TERM");
    let said = crate::common::Said::of(&process.wait_with_output().unwrap());
    assert_eq!(said.code, Some(0), "{said:?}");
}

#[test]
fn nobody_there_is_tried_again() {
    let bed = Bed::new("nobody");
    bed.publish(["x"]);
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let url = format!("http://{free}/");
    let stats = bed.drain(&["--attempts", "2", "--retry-delay", "1ms", "--timeout", "10s", "--http", &url]);
    assert_eq!((&stats["retried"], &stats["rejected"]), (&json!(1), &json!(1)), "{stats}");
    let dead = bed.take(".dead", 1);
    assert_eq!(header(&dead[0], "x-gristmill-reason"), "attempts");
}

#[test]
fn a_server_that_never_answers_is_left_in_time() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let bed = Bed::new("silent");
    bed.publish(["x"]);
    let stats = bed.drain(&["--attempts", "1", "--timeout", "200ms", "--http", &url]);
    assert_eq!(stats["rejected"], 1, "{stats}");
    let dead = bed.take(".dead", 1);
    let error = header(&dead[0], "x-gristmill-error");
    assert!(error.contains("timeout"), "{error}");
}

/// Another side that answers one request after the other with 204, by TLS.
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
            // One that does not trust us hangs up here.
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
fn https_is_for_those_whom_the_system_trusts() {
    let certificate = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let url = format!("https://localhost:{}/", secure(&certificate));
    let bed = Bed::new("tls");
    let file = bed.home.write("authority.pem", &certificate.cert.pem());
    let stranger = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let other = bed.home.write("stranger.pem", &stranger.cert.pem());
    for (trusted, rejected) in [(&file, 0), (&other, 1)] {
        bed.publish(["x"]);
        let words =
            ["consume", &bed.queue, "--json", "--drain", "--for", "2m", "--attempts", "1", "--http", &url];
        let mut command = bed.command(&words);
        let said = crate::common::Said::of(&command.env("SSL_CERT_FILE", trusted).output().unwrap());
        assert_eq!(said.code, Some(0), "{said:?}");
        assert_eq!(said.json()["consumers"][0]["rejected"], rejected, "{said:?}");
    }
    let dead = bed.take(".dead", 1);
    let error = header(&dead[0], "x-gristmill-error");
    assert!(error.contains("certificate"), "{error}");
}
