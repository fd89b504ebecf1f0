//! A way to the broker on which a question about one queue can remain without an answer.
//!
//! Owns the port, and two threads for each connection, which end with it. It knows of AMQP how frames are cut, and how a client
//! asks how many messages a queue has.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use crate::bed::broker;

/// What becomes of a question.
#[derive(Clone, Copy)]
pub(crate) enum Reaction {
    Forward,
    /// Its connection is closed.
    Close,
    /// It is held back, with all that comes after it on its connection.
    Hold,
}

pub(crate) struct Questions {
    address: SocketAddr,
    count: Arc<AtomicUsize>,
}

impl Questions {
    /// `reaction` is given how many questions about the queue there were before.
    pub(crate) fn about(queue: &str, reaction: fn(usize) -> Reaction) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, count) = (listener.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
        // Class, method, a reserved number, the name, and that the queue is not to be made.
        let length = u8::try_from(queue.len()).unwrap();
        let question = [&[0, 50, 0, 10, 0, 0, length][..], queue.as_bytes(), &[1]].concat();
        let asked = Arc::clone(&count);
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let client = client.unwrap();
                let broker = TcpStream::connect(broker().address()).unwrap();
                let (mut answers, mut back) = (broker.try_clone().unwrap(), client.try_clone().unwrap());
                std::thread::spawn(move || {
                    let _ = std::io::copy(&mut answers, &mut back);
                    let _ = back.shutdown(Shutdown::Both);
                });
                let (question, asked) = (question.clone(), Arc::clone(&asked));
                std::thread::spawn(move || {
                    let react = |frame: &[u8]| match frame.starts_with(&question) {
                        true => reaction(asked.fetch_add(1, SeqCst)),
                        false => Reaction::Forward,
                    };
                    let _ = forward(&client, &broker, react);
                    let _ = broker.shutdown(Shutdown::Both);
                });
            }
        });
        Questions { address, count }
    }

    /// How many there were.
    pub(crate) fn count(&self) -> usize {
        self.count.load(SeqCst)
    }

    /// The broker's URI with this way to it.
    pub(crate) fn uri(&self) -> String {
        broker().uri().replace(&broker().address().to_string(), &self.address.to_string())
    }
}

/// Forwards what the client sends, frame by frame, until its end.
fn forward(
    mut client: &TcpStream,
    mut broker: &TcpStream,
    react: impl Fn(&[u8]) -> Reaction,
) -> std::io::Result<()> {
    let mut protocol = [0; 8];
    client.read_exact(&mut protocol)?;
    broker.write_all(&protocol)?;
    loop {
        // Type, channel and size; then the content, and a byte that ends it.
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
