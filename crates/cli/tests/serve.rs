//! `gristmill serve`: addresses, tokens, and its end.

mod common;

use std::fs;
use std::io::{BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Child, Stdio};
use std::sync::Arc;

use common::{Home, signal};
use serde_json::Value;
use tokio_rustls::rustls::crypto::ring;
use ureq::tls::{Certificate, RootCerts, TlsConfig};

/// A server on a free port.
struct Running {
    child: Child,
    /// What it printed when it had started.
    started: Value,
}

impl Running {
    fn start(home: &Home, words: &[&str]) -> Self {
        let words = [&["serve", "--listen", "0", "--json"], words].concat();
        let mut command = home.command(&words);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let started = serde_json::Deserializer::from_reader(stdout).into_iter::<Value>().next();
        Running { child, started: started.expect("output").unwrap() }
    }

    /// Sends a request with a token. Returns status and body.
    fn request(&self, request: &str, token: &str, body: &str) -> (u16, String) {
        let address = self.started["address"].as_str().unwrap();
        let mut stream = TcpStream::connect(address).unwrap();
        let text = format!(
            "{request} HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {token}\r\nConnection: close\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(text.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
        (status, answer.split_once("\r\n\r\n").unwrap().1.to_owned())
    }

    fn stop(mut self) -> i32 {
        signal(&self.child, "TERM");
        self.child.wait().unwrap().code().unwrap()
    }
}

#[test]
fn server_runs_jobs_and_ends_with_a_signal() {
    let home = Home::new();
    home.write("pictures/a", "same");
    home.write("pictures/b", "same");
    home.scan(&["pictures"]);
    let server = Running::start(&home, &[]);
    let token_file = home.path(".local/share/gristmill/gristmill.db.token");
    assert_eq!(fs::metadata(&token_file).unwrap().permissions().mode() & 0o777, 0o600);
    let token = fs::read_to_string(&token_file).unwrap();
    let token = token.trim();
    assert!(server.started["sign_in"].as_str().unwrap().contains("/#k="), "{}", server.started);
    let (status, groups) = server.request("GET /api/v1/duplicates/groups", token, "");
    assert_eq!((status, groups.matches("group_key").count()), (200, 1), "{groups}");
    // Found by the scan of the worker in the same process.
    home.write("pictures/c", "same");
    for kind in ["scan", "hash"] {
        let (status, job) = server.request("POST /api/v1/jobs", token, &format!(r#"{{"kind": "{kind}"}}"#));
        assert_eq!(status, 201);
        let id = serde_json::from_str::<Value>(&job).unwrap()["id"].as_str().unwrap().to_owned();
        loop {
            let (_, job) = server.request(&format!("GET /api/v1/jobs/{id}"), token, "");
            match serde_json::from_str::<Value>(&job).unwrap()["status"].as_str() {
                Some("pending" | "running") => {}
                other => break assert_eq!(other, Some("completed"), "{job}"),
            }
        }
    }
    let (_, groups) = server.request("GET /api/v1/duplicates/groups", token, "");
    assert!(groups.contains("\"file_count\":3"), "{groups}");
    assert_eq!(server.stop(), 0);
    // The token stays the same.
    let server = Running::start(&home, &["--no-worker", "--read-only"]);
    assert_eq!(server.request("GET /api/v1/jobs", token, "").0, 200);
    assert_eq!(server.request("POST /api/v1/jobs", token, r#"{"kind": "scan"}"#).0, 403);
    assert_eq!(server.stop(), 0);
}

#[test]
fn other_addresses_need_encryption() {
    let home = Home::new();
    home.check(&["serve", "--listen", "0.0.0.0:0"], 1, "", "add --insecure");
    home.check(&["serve", "--listen", "nowhere"], 1, "", "expected: an address");
    home.check(&["serve", "--base-path", "x/"], 1, "", "serve.base_path");
    let server = Running::start(&home, &["--insecure"]);
    assert_eq!(server.stop(), 0);
    let config = home.write("c.toml", "[serve]\ntls_key = \"/no/such/key\"\n");
    home.check(&["serve", "--config", config.to_str().unwrap()], 1, "", "belong together");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    home.check(&["serve", "--listen", &address], 1, "", "another program listens");
}

#[test]
fn traffic_is_encrypted_with_a_certificate() {
    let home = Home::new();
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let certificate = home.write("cert.pem", &made.cert.pem());
    let key = home.write("key.pem", &made.signing_key.serialize_pem());
    let text = format!(
        "[serve]\ntls_certificate = {:?}\ntls_key = {:?}\n",
        certificate.to_str().unwrap(),
        key.to_str().unwrap()
    );
    let config = home.write("c.toml", &text);
    let server = Running::start(&home, &["--config", config.to_str().unwrap()]);
    let address = server.started["address"].as_str().unwrap();
    assert!(server.started["sign_in"].as_str().unwrap().starts_with("https://"), "{}", server.started);
    let port = address.rsplit_once(':').unwrap().1;
    let trusted = [Certificate::from_pem(made.cert.pem().as_bytes()).unwrap()];
    let tls = TlsConfig::builder().root_certs(RootCerts::new_with_certs(&trusted));
    let tls = tls.unversioned_rustls_crypto_provider(Arc::new(ring::default_provider())).build();
    let agent = ureq::Agent::config_builder().tls_config(tls).build().new_agent();
    let mut answer = agent.get(&format!("https://localhost:{port}/health")).call().unwrap();
    assert!(answer.body_mut().read_to_string().unwrap().contains("\"status\":\"ok\""));
    // Without TLS there is no answer.
    let mut plain = TcpStream::connect(address).unwrap();
    plain.write_all(format!("GET /health HTTP/1.1\r\nHost: {address}\r\n\r\n").as_bytes()).unwrap();
    let mut text = Vec::new();
    let _ = plain.read_to_end(&mut text);
    assert!(!text.starts_with(b"HTTP"));
    assert_eq!(server.stop(), 0);
}

#[test]
fn log_of_a_failed_request_has_no_secret() {
    let home = Home::new();
    home.scan(&["."]);
    let mut server = Running::start(&home, &["-vvv", "--no-worker"]);
    let token = fs::read_to_string(home.path(".local/share/gristmill/gristmill.db.token")).unwrap();
    let sql = "INSERT INTO jobs (id, kind, status, dry_run, progress, processed_items, payload, created_at, updated_at)
        VALUES ('00000000-0000-4000-8000-000000000001', 'scan', 'cancelled', 1, 0, 0, '{}', 'not a time', 'not a time')";
    rusqlite::Connection::open(home.database()).unwrap().execute_batch(sql).unwrap();
    let request = "GET /api/v1/jobs/00000000-0000-4000-8000-000000000001 HTTP/1.1\r\nCookie: gristmill-1=secret-cookie\r\nX-Other: secret-header\r\nX-Rest:";
    let (status, body) = server.request(request, token.trim(), "");
    assert_eq!(status, 500, "{body}");
    assert!(body.contains("\"detail\":\"the server failed; its log has the reason\""), "{body}");
    let (status, _) = server.request("GET /api/v1/jobs", "secret-wrong-token", "");
    assert_eq!(status, 401);
    let mut stderr = server.child.stderr.take().unwrap();
    assert_eq!(server.stop(), 0);
    let mut log = String::new();
    stderr.read_to_string(&mut log).unwrap();
    assert!(log.contains("not a time"), "{log}");
    for secret in [token.trim(), "secret-"] {
        assert!(!log.contains(secret), "{log}");
    }
}

#[test]
fn damaged_token_is_an_error() {
    let home = Home::new();
    home.scan(&["."]);
    for text in ["", "short", "with a space in the middle of the token"] {
        home.write(".local/share/gristmill/gristmill.db.token", text);
        home.check(&["serve", "--listen", "0"], 1, "", "delete it, and a new one is made");
    }
}
