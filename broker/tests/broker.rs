//! A broker's life, on a real one: started, killed, started again, paused, left behind.

mod common;

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use common::{processes_at_home_in, until};
use gristmill_broker::{Broker, Error, Settings};

fn start() -> Broker {
    with(&Settings::new())
}

fn with(settings: &Settings) -> Broker {
    Broker::start_with(settings).unwrap_or_else(|fault| panic!("{fault}"))
}

#[track_caller]
fn refuses(broker: &Broker) {
    let error = TcpStream::connect(broker.address()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
}

#[test]
fn what_is_durable_survives_a_kill_and_a_stop() {
    let mut broker = start();
    assert!(broker.answers());
    let uri = broker.uri();
    broker.ctl(["add_vhost", "granary"]).unwrap();
    // A client that holds its end open must not keep the port from the next node.
    let _client = TcpStream::connect(broker.address()).unwrap();

    broker.kill();
    assert_eq!(broker.id(), None);
    refuses(&broker);
    let fault = broker.ctl(["list_vhosts"]).unwrap_err();
    assert!(matches!(fault, Error::Ctl { .. }), "{fault}");
    broker.restart().unwrap();
    assert!(broker.ctl(["list_vhosts"]).unwrap().contains("granary"));

    broker.stop();
    refuses(&broker);
    broker.restart().unwrap();
    assert!(broker.answers());
    assert!(broker.ctl(["list_vhosts"]).unwrap().contains("granary"));
    assert_eq!(broker.uri(), uri);
}

#[test]
fn two_at_once_know_nothing_of_each_other() {
    let one = start();
    let mut other = with(&Settings::new().line("disk_free_limit.absolute = 51MB"));
    assert_ne!(one.address(), other.address());
    one.ctl(["add_vhost", "granary"]).unwrap();
    assert!(!other.ctl(["list_vhosts"]).unwrap().contains("granary"));
    let limit = ["eval", "application:get_env(rabbit, disk_free_limit)."];
    assert!(one.ctl(limit).unwrap().contains("50MB"));
    assert!(other.ctl(limit).unwrap().contains("51MB"), "the caller's line goes before ours");
    other.kill();
    assert!(one.answers());
    let folders = [one.folder().to_owned(), other.folder().to_owned()];
    drop((one, other));
    for folder in folders {
        assert!(!folder.exists());
        assert_eq!(processes_at_home_in(&folder), 0);
    }
}

#[test]
fn one_that_is_paused_keeps_its_connections_and_says_nothing() {
    let mut broker = start();
    broker.pause();
    let mut client = TcpStream::connect(broker.address()).unwrap();
    client.write_all(b"AMQP\x00\x00\x09\x01").unwrap();
    client.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    let mut answer = [0];
    assert_eq!(client.read(&mut answer).unwrap_err().kind(), ErrorKind::WouldBlock);
    broker.resume();
    client.set_read_timeout(None).unwrap();
    client.read_exact(&mut answer).unwrap();
    assert_eq!(answer, [1], "a frame with a method");
    // Neither waits for somebody who is paused.
    broker.pause();
    broker.stop();
    broker.restart().unwrap();
    broker.pause();
    broker.kill();
}

#[test]
fn a_start_that_fails_shows_why() {
    let fault = Broker::start_with(&Settings::new().line("no.such.setting = 1")).unwrap_err();
    assert!(fault.to_string().contains("no.such.setting"), "{fault}");
}

#[cfg(feature = "tls")]
#[test]
fn one_with_tls_has_a_second_port_and_a_certificate() {
    let broker = with(&Settings::new().tls());
    assert!(broker.tls_uri().unwrap().starts_with("amqps://"));
    let ca = std::fs::read_to_string(broker.ca().unwrap()).unwrap();
    assert!(ca.starts_with("-----BEGIN CERTIFICATE-----"), "{ca}");
    // Whoever does not speak TLS there is told so, in TLS: an alert.
    let mut client = TcpStream::connect(broker.tls_address().unwrap()).unwrap();
    client.write_all(b"AMQP\x00\x00\x09\x01").unwrap();
    let mut answer = [0];
    client.read_exact(&mut answer).unwrap();
    assert_eq!(answer, [21]);
    assert!(broker.answers());
}

#[test]
fn one_with_the_management_plugin_answers_http_on_one_loopback_address() {
    let broker = with(&Settings::new().management());
    let address = broker.management_address().unwrap();
    let mut client = TcpStream::connect(address).unwrap();
    client.write_all(b"GET /api/overview HTTP/1.0\r\n\r\n").unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 401 Unauthorized"), "{answer}");
    assert!(broker.answers());
    // A listener on all addresses of the machine would accept this.
    let other = (std::net::Ipv4Addr::new(127, 0, 0, 2), address.port());
    assert_eq!(TcpStream::connect(other).unwrap_err().kind(), ErrorKind::ConnectionRefused);
}

/// Set where a test of this file has started it again to leave a broker behind.
const ORPHAN: &str = "GRISTMILL_BROKER_ORPHAN";

fn parent_of_an_orphan() -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "leaves_a_broker_behind", "--ignored", "--nocapture"]).env(ORPHAN, "1");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
}

/// Not a test of its own: the process that the next one kills.
#[test]
#[ignore = "run by nothing_outlives_the_process_that_started_it"]
fn leaves_a_broker_behind() {
    static BROKER: OnceLock<Broker> = OnceLock::new();
    if std::env::var_os(ORPHAN).is_none() {
        return;
    }
    println!("\nfolder={}", BROKER.get_or_init(start).folder().display());
    let _ = std::io::stdin().read(&mut [0]);
}

#[test]
fn nothing_outlives_the_process_that_started_it() {
    for is_killed in [true, false] {
        let mut parent = parent_of_an_orphan();
        let mut lines = BufReader::new(parent.stdout.take().unwrap()).lines().map(Result::unwrap);
        let folder = lines.find_map(|line| Some(line.strip_prefix("folder=")?.to_owned())).unwrap();
        assert!(processes_at_home_in(folder.as_ref()) >= 2, "the node and its epmd");
        if is_killed {
            parent.kill().unwrap();
        } else {
            // It ends by itself, and its static is not dropped.
            drop(parent.stdin.take());
        }
        parent.wait().unwrap();
        until("its processes are gone", || processes_at_home_in(folder.as_ref()) == 0);
        until("its folder is gone", || !std::fs::exists(&folder).unwrap());
    }
}
