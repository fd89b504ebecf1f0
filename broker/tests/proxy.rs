//! The proxy in front of an echo server.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use gristmill_broker::Proxy;

/// A proxy to a server that sends back what it receives. The server's thread ends with the process.
fn proxy_to_echo_server() -> Proxy {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || std::io::copy(&mut &stream, &mut &stream));
        }
    });
    Proxy::to(address).unwrap()
}

fn connect(proxy: &Proxy) -> TcpStream {
    TcpStream::connect(proxy.address()).unwrap()
}

#[track_caller]
fn echoes(client: &mut TcpStream) {
    client.write_all(b"bytes").unwrap();
    let mut answer = [0; 5];
    client.read_exact(&mut answer).unwrap();
    assert_eq!(answer, *b"bytes");
}

/// Checks that the connection is closed, or reset if bytes were in flight.
#[track_caller]
fn is_closed(client: &mut TcpStream) {
    match client.read(&mut [0]) {
        Ok(count) => assert_eq!(count, 0),
        Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
    }
}

#[test]
fn cut_closes_all_connections_and_new_ones_until_restored() {
    let proxy = proxy_to_echo_server();
    let mut clients = [connect(&proxy), connect(&proxy)];
    clients.iter_mut().for_each(echoes);
    proxy.cut();
    clients.iter_mut().for_each(is_closed);
    is_closed(&mut connect(&proxy));
    assert_eq!(proxy.connections(), 2);
    proxy.restore();
    echoes(&mut connect(&proxy));
    assert_eq!(proxy.connections(), 3);
}

#[test]
fn stall_holds_bytes_back_and_loses_none() {
    let proxy = proxy_to_echo_server();
    let mut client = connect(&proxy);
    echoes(&mut client);
    proxy.stall();
    client.write_all(b"one").unwrap();
    client.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    assert_eq!(client.read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
    client.set_read_timeout(None).unwrap();
    client.write_all(b"two").unwrap();
    proxy.flow();
    let mut answer = [0; 6];
    client.read_exact(&mut answer).unwrap();
    assert_eq!(answer, *b"onetwo");
    // A stalled connection can be cut.
    proxy.stall();
    client.write_all(b"three").unwrap();
    proxy.cut();
    is_closed(&mut client);
}

#[test]
fn end_of_a_direction_is_forwarded_after_its_bytes() {
    let proxy = proxy_to_echo_server();
    let mut client = connect(&proxy);
    client.write_all(b"bytes").unwrap();
    client.shutdown(std::net::Shutdown::Write).unwrap();
    let mut answer = Vec::new();
    client.read_to_end(&mut answer).unwrap();
    assert_eq!(answer, b"bytes");
}

#[test]
fn connection_is_closed_when_the_target_refuses() {
    let closed_port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let proxy = Proxy::to(closed_port).unwrap();
    is_closed(&mut connect(&proxy));
    assert_eq!(proxy.connections(), 0);
}

#[test]
fn drop_closes_the_connections_and_the_port() {
    let proxy = proxy_to_echo_server();
    let address = proxy.address();
    let mut client = connect(&proxy);
    echoes(&mut client);
    drop(proxy);
    is_closed(&mut client);
    assert_eq!(TcpStream::connect(address).unwrap_err().kind(), ErrorKind::ConnectionRefused);
}
