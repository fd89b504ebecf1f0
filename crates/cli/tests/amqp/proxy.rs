//! Proxy to the broker that can hold back or close requests for the depth of one queue.
//!
//! Owns the port and two threads for each connection, which end with it. It parses frames and passive declarations.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use crate::fixture::broker;

/// What the proxy does with a request.
#[derive(Clone, Copy)]
pub(crate) enum Reaction {
    Forward,
    /// Closes the connection.
    Close,
    /// Holds back the request and everything after it on its connection.
    Hold,
}

/// Running proxy that counts the requests for one queue.
pub(crate) struct DepthProxy {
    address: SocketAddr,
    count: Arc<AtomicUsize>,
}

impl DepthProxy {
    /// Starts a proxy. `reaction` gets the number of earlier requests for the queue.
    pub(crate) fn about(queue: &str, reaction: fn(usize) -> Reaction) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, count) = (listener.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
        // Class, method, a reserved field, the name, and the flag for a passive declaration.
        let length = u8::try_from(queue.len()).unwrap();
        let request = [&[0, 50, 0, 10, 0, 0, length][..], queue.as_bytes(), &[1]].concat();
        let requests = Arc::clone(&count);
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let client = client.unwrap();
                let broker = TcpStream::connect(broker().address()).unwrap();
                let (mut answers, mut back) = (broker.try_clone().unwrap(), client.try_clone().unwrap());
                std::thread::spawn(move || {
                    let _ = std::io::copy(&mut answers, &mut back);
                    let _ = back.shutdown(Shutdown::Both);
                });
                let (request, requests) = (request.clone(), Arc::clone(&requests));
                std::thread::spawn(move || {
                    let react = |frame: &[u8]| match frame.starts_with(&request) {
                        true => reaction(requests.fetch_add(1, SeqCst)),
                        false => Reaction::Forward,
                    };
                    let _ = forward(&client, &broker, react);
                    let _ = broker.shutdown(Shutdown::Both);
                });
            }
        });
        DepthProxy { address, count }
    }

    /// Number of requests for the queue.
    pub(crate) fn count(&self) -> usize {
        self.count.load(SeqCst)
    }

    /// URI of the broker through the proxy.
    pub(crate) fn uri(&self) -> String {
        broker().uri().replace(&broker().address().to_string(), &self.address.to_string())
    }
}

/// Forwards the frames of the client until the connection ends.
fn forward(mut client: &TcpStream, mut broker: &TcpStream, react: impl Fn(&[u8]) -> Reaction) -> std::io::Result<()> {
    let mut protocol = [0; 8];
    client.read_exact(&mut protocol)?;
    broker.write_all(&protocol)?;
    loop {
        // Type, channel and size; then the content and the end byte.
        let mut head = [0; 7];
        client.read_exact(&mut head)?;
        let size = u32::from_be_bytes([head[3], head[4], head[5], head[6]]) as usize;
        let mut content = vec![0; size + 1];
        client.read_exact(&mut content)?;
        match react(&content) {
            Reaction::Forward => broker.write_all(&[&head[..], &content].concat())?,
            Reaction::Close => return Ok(()),
            Reaction::Hold => {
                std::io::copy(&mut client, &mut std::io::sink())?;
                return Ok(());
            }
        }
    }
}
