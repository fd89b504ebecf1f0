//! A real broker: started, killed, restarted, paused, orphaned.

mod common;

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use common::{processes_of, until};
use gristmill_broker::{Broker, Error, Settings};

fn start() -> Broker {
    with(&Settings::new())
}

fn with(settings: &Settings) -> Broker {
    Broker::start_with(settings).unwrap_or_else(|error| panic!("{error}"))
}

#[track_caller]
fn refuses(broker: &Broker) {
    let error = TcpStream::connect(broker.address()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
}

#[test]
fn durable_objects_survive_a_kill_and_a_stop() {
    let mut broker = start();
    assert!(broker.answers());
    let uri = broker.uri();
    broker.ctl(["add_vhost", "vhost-a"]).unwrap();
    // An open connection of a client must not keep the next node from using the port.
    let _client = TcpStream::connect(broker.address()).unwrap();

    broker.kill();
    assert_eq!(broker.id(), None);
    refuses(&broker);
    let error = broker.ctl(["list_vhosts"]).unwrap_err();
    assert!(matches!(error, Error::Ctl { .. }), "{error}");
    broker.restart().unwrap();
    assert!(broker.ctl(["list_vhosts"]).unwrap().contains("vhost-a"));

    broker.stop();
    refuses(&broker);
    broker.restart().unwrap();
    assert!(broker.answers());
    assert!(broker.ctl(["list_vhosts"]).unwrap().contains("vhost-a"));
    assert_eq!(broker.uri(), uri);
}

#[test]
fn two_brokers_at_a_time_are_independent() {
    let one = start();
    let mut other = with(&Settings::new().line("disk_free_limit.absolute = 51MB"));
    assert_ne!(one.address(), other.address());
    one.ctl(["add_vhost", "vhost-a"]).unwrap();
    assert!(!other.ctl(["list_vhosts"]).unwrap().contains("vhost-a"));
    let limit = ["eval", "application:get_env(rabbit, disk_free_limit)."];
    assert!(one.ctl(limit).unwrap().contains("50MB"));
    assert!(other.ctl(limit).unwrap().contains("51MB"), "the caller's line overrides the default");
    other.kill();
    assert!(one.answers());
    let folders = [one.folder().to_owned(), other.folder().to_owned()];
    drop((one, other));
    for folder in folders {
        assert!(!folder.exists());
        assert_eq!(processes_of(&folder), 0);
    }
}

#[test]
fn paused_broker_keeps_its_connections_and_does_not_answer() {
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
    // Neither stop nor kill waits for a paused broker to continue.
    broker.pause();
    broker.stop();
    broker.restart().unwrap();
    broker.pause();
    broker.kill();
}

#[test]
fn failed_start_shows_the_reason() {
    let error = Broker::start_with(&Settings::new().line("no.such.setting = 1")).unwrap_err();
    assert!(error.to_string().contains("no.such.setting"), "{error}");
}

#[cfg(feature = "tls")]
#[test]
fn broker_with_tls_has_a_second_port_and_a_certificate() {
    let broker = with(&Settings::new().tls());
    assert!(broker.tls_uri().unwrap().starts_with("amqps://"));
    let ca = std::fs::read_to_string(broker.ca().unwrap()).unwrap();
    assert!(ca.starts_with("-----BEGIN CERTIFICATE-----"), "{ca}");
    // A client that does not speak TLS there gets a TLS alert.
    let mut client = TcpStream::connect(broker.tls_address().unwrap()).unwrap();
    client.write_all(b"AMQP\x00\x00\x09\x01").unwrap();
    let mut answer = [0];
    client.read_exact(&mut answer).unwrap();
    assert_eq!(answer, [21]);
    assert!(broker.answers());
}

#[test]
fn management_plugin_answers_http_on_one_loopback_address() {
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

/// Environment variable of the processes that [`spawn_parent`] starts.
const ORPHAN: &str = "GRISTMILL_BROKER_ORPHAN";

fn spawn_parent() -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "orphaned_broker_process", "--ignored", "--nocapture"]).env(ORPHAN, "1");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
}

/// Not a test: the body of the process that the next test kills.
#[test]
#[ignore = "run by broker_is_killed_and_deleted_when_its_process_ends"]
fn orphaned_broker_process() {
    static BROKER: OnceLock<Broker> = OnceLock::new();
    if std::env::var_os(ORPHAN).is_none() {
        return;
    }
    println!("\nfolder={}", BROKER.get_or_init(start).folder().display());
    let _ = std::io::stdin().read(&mut [0]);
}

#[test]
fn broker_is_killed_and_deleted_when_its_process_ends() {
    for is_killed in [true, false] {
        let mut parent = spawn_parent();
        let mut lines = BufReader::new(parent.stdout.take().unwrap()).lines().map(Result::unwrap);
        let folder = lines.find_map(|line| Some(line.strip_prefix("folder=")?.to_owned())).unwrap();
        assert!(processes_of(folder.as_ref()) >= 2, "the node and its epmd");
        if is_killed {
            parent.kill().unwrap();
        } else {
            // The process exits without a signal, and its static is not dropped.
            drop(parent.stdin.take());
        }
        parent.wait().unwrap();
        until("its processes have ended", || processes_of(folder.as_ref()) == 0);
        until("its folder is deleted", || !std::fs::exists(&folder).unwrap());
    }
}
