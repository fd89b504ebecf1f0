//! The wire that can be cut, with an echo at its other end.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use gristmill_broker::Proxy;

/// Somebody who says back what was said, to each who calls. The thread ends with the process.
fn proxy_to_an_echo() -> Proxy {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || std::io::copy(&mut &stream, &mut &stream));
        }
    });
    Proxy::to(address).unwrap()
}

fn call(proxy: &Proxy) -> TcpStream {
    TcpStream::connect(proxy.address()).unwrap()
}

#[track_caller]
fn echoes(client: &mut TcpStream) {
    client.write_all(b"grist").unwrap();
    let mut answer = [0; 5];
    client.read_exact(&mut answer).unwrap();
    assert_eq!(answer, *b"grist");
}

/// Whether it is over as a connection ends: with an end, or with a reset where something was under way.
#[track_caller]
fn is_closed(client: &mut TcpStream) {
    match client.read(&mut [0]) {
        Ok(count) => assert_eq!(count, 0),
        Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
    }
}

#[test]
fn a_cut_closes_all_and_refuses_until_it_is_mended() {
    let proxy = proxy_to_an_echo();
    let mut clients = [call(&proxy), call(&proxy)];
    clients.iter_mut().for_each(echoes);
    proxy.cut();
    clients.iter_mut().for_each(is_closed);
    is_closed(&mut call(&proxy));
    assert_eq!(proxy.connections(), 2);
    proxy.restore();
    echoes(&mut call(&proxy));
    assert_eq!(proxy.connections(), 3);
}

#[test]
fn a_stall_holds_bytes_back_and_loses_none() {
    let proxy = proxy_to_an_echo();
    let mut client = call(&proxy);
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
    // Who is stalled can be cut all the same.
    proxy.stall();
    client.write_all(b"three").unwrap();
    proxy.cut();
    is_closed(&mut client);
}

#[test]
fn an_end_is_passed_on_after_all_that_was_said() {
    let proxy = proxy_to_an_echo();
    let mut client = call(&proxy);
    client.write_all(b"grist").unwrap();
    client.shutdown(std::net::Shutdown::Write).unwrap();
    let mut answer = Vec::new();
    client.read_to_end(&mut answer).unwrap();
    assert_eq!(answer, b"grist");
}

#[test]
fn a_target_that_is_gone_is_seen_as_a_connection_that_closes() {
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let proxy = Proxy::to(nobody).unwrap();
    is_closed(&mut call(&proxy));
    assert_eq!(proxy.connections(), 0);
}

#[test]
fn a_proxy_that_is_dropped_closes_its_connections_and_its_port() {
    let proxy = proxy_to_an_echo();
    let address = proxy.address();
    let mut client = call(&proxy);
    echoes(&mut client);
    drop(proxy);
    is_closed(&mut client);
    assert_eq!(TcpStream::connect(address).unwrap_err().kind(), ErrorKind::ConnectionRefused);
}
