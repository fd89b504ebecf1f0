//! A minimal AMQP client and server, for methods and violations that the client under test does not produce.

use crate::fixture::{Gate, Log, broker};
use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

const METHOD: u8 = 1;
const HEADER: u8 = 2;
const BODY: u8 = 3;

/// Payload of a frame, built field by field.
struct Payload(Vec<u8>);

fn method(class: u16, method: u16) -> Payload {
    Payload(Vec::new()).number16(class).number16(method)
}

impl Payload {
    fn byte(mut self, byte: u8) -> Self {
        self.0.push(byte);
        self
    }

    fn number16(mut self, number: u16) -> Self {
        self.0.extend(number.to_be_bytes());
        self
    }

    fn number32(mut self, number: u32) -> Self {
        self.0.extend(number.to_be_bytes());
        self
    }

    fn number64(mut self, number: u64) -> Self {
        self.0.extend(number.to_be_bytes());
        self
    }

    fn short(mut self, text: &[u8]) -> Self {
        self.0.push(text.len() as u8);
        self.0.extend(text);
        self
    }

    fn long(mut self, text: &[u8]) -> Self {
        self.0.extend((text.len() as u32).to_be_bytes());
        self.0.extend(text);
        self
    }
}

/// One end of a connection.
struct RawConnection(TcpStream);

impl RawConnection {
    async fn send(&mut self, kind: u8, channel: u16, payload: &[u8]) {
        let mut frame = vec![kind];
        frame.extend(channel.to_be_bytes());
        frame.extend((payload.len() as u32).to_be_bytes());
        frame.extend(payload);
        frame.push(0xCE);
        // The peer may have closed the connection.
        let _ = self.0.write_all(&frame).await;
    }

    async fn send_method(&mut self, channel: u16, payload: Payload) {
        self.send(METHOD, channel, &payload.0).await;
    }

    async fn frame(&mut self) -> Option<(u8, u16, Vec<u8>)> {
        let mut start = [0; 7];
        self.0.read_exact(&mut start).await.ok()?;
        let size = u32::from_be_bytes([start[3], start[4], start[5], start[6]]) as usize;
        let mut payload = vec![0; size + 1];
        self.0.read_exact(&mut payload).await.ok()?;
        payload.pop();
        Some((start[0], u16::from_be_bytes([start[1], start[2]]), payload))
    }
}

/// Client of the shared broker, with one channel.
pub(crate) struct RawClient(RawConnection);

impl RawClient {
    pub(crate) async fn new() -> Self {
        let mut connection = RawConnection(TcpStream::connect(broker().address()).await.unwrap());
        connection.0.write_all(b"AMQP\x00\x00\x09\x01").await.unwrap();
        connection.frame().await.unwrap();
        let login = format!("\0{}\0{}", broker().user(), broker().password());
        let start_ok = method(10, 11).long(b"").short(b"PLAIN").long(login.as_bytes()).short(b"en_US");
        connection.send_method(0, start_ok).await;
        connection.frame().await.unwrap();
        connection.send_method(0, method(10, 31).number16(10).number32(131_072).number16(0)).await;
        connection.send_method(0, method(10, 40).short(b"/").byte(0).byte(0)).await;
        connection.frame().await.unwrap();
        connection.send_method(1, method(20, 10).byte(0)).await;
        connection.frame().await.unwrap();
        Self(connection)
    }

    /// Publishes a message with these bytes as its two ids.
    pub(crate) async fn publish(&mut self, queue: &str, correlation: &[u8], id: &[u8], body: &[u8]) {
        self.0.send_method(1, method(60, 40).number16(0).short(b"").short(queue.as_bytes()).byte(0)).await;
        let flags = (1 << 12) | (1 << 10) | (1 << 7);
        let header = method(60, 0).number64(body.len() as u64).number16(flags).byte(2).short(correlation).short(id);
        self.0.send(HEADER, 1, &header.0).await;
        self.0.send(BODY, 1, body).await;
    }

    /// Removes one message from a queue and returns its correlation id and message id.
    pub(crate) async fn take(&mut self, queue: &str) -> (Vec<u8>, Vec<u8>) {
        self.0.send_method(1, method(60, 70).number16(0).short(queue.as_bytes()).byte(1)).await;
        loop {
            let (kind, _, payload) = self.0.frame().await.unwrap();
            if kind == METHOD && payload.starts_with(&method(60, 72).0) {
                panic!("{queue} is empty");
            }
            if kind == HEADER {
                return ids(&payload);
            }
        }
    }

    /// Gets and requeues one message, as the management pages do to show it.
    pub(crate) async fn peek(&mut self, queue: &str) {
        self.0.send_method(1, method(60, 70).number16(0).short(queue.as_bytes()).byte(0)).await;
        let mut tag = None;
        loop {
            let (kind, _, payload) = self.0.frame().await.unwrap();
            match (kind, tag) {
                (METHOD, _) if payload.starts_with(&method(60, 71).0) => {
                    tag = Some(u64::from_be_bytes(payload[4..12].try_into().unwrap()));
                }
                (METHOD, _) => panic!("{queue} is empty"),
                (BODY, Some(tag)) => {
                    return self.0.send_method(1, method(60, 90).number64(tag).byte(1)).await;
                }
                _ => {}
            }
        }
    }

    pub(crate) async fn delete_exchange(&mut self, exchange: &str) {
        self.0.send_method(1, method(40, 20).number16(0).short(exchange.as_bytes()).byte(0)).await;
        let (_, _, reply) = self.0.frame().await.unwrap();
        assert!(reply.starts_with(&method(40, 21).0), "{reply:?}");
    }
}

fn ids(header: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let flags = u16::from_be_bytes([header[12], header[13]]);
    let mut rest = &header[14..];
    let mut take = |size: usize| {
        let (taken, behind) = rest.split_at(size);
        rest = behind;
        taken.to_vec()
    };
    let mut found = Vec::new();
    for bit in (7..16).rev().filter(|bit| flags & (1 << bit) != 0) {
        let size = match bit {
            13 => u32::from_be_bytes(take(4).try_into().unwrap()) as usize,
            11 | 12 => 1,
            _ => usize::from(take(1)[0]),
        };
        let value = take(size);
        if bit == 10 || bit == 7 {
            found.push(value);
        }
    }
    let id = found.pop().unwrap();
    (found.pop().unwrap(), id)
}

/// Behaviour of a peer when a client consumes.
#[derive(Clone)]
pub(crate) enum Behavior {
    /// Delivers messages with these delivery tags.
    DeliveryTags(Vec<u64>),
    /// Sends an unexpected close-ok, the first time and when the gate is open.
    SendsCloseOk(Gate),
    /// Delivers one message with these headers, closes the channel when something was published, and redelivers it.
    /// Confirms publications when the gate is open.
    Delivers { headers: &'static [u8], published: Log<()>, is_published: Gate, confirms: Gate },
}

/// Starts a server that answers every method and is no broker.
pub(crate) async fn peer(behavior: Behavior) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let consume_count = Arc::new(AtomicUsize::new(0));
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            tokio::spawn(reply(RawConnection(stream), behavior.clone(), Arc::clone(&consume_count)));
        }
    });
    address
}

async fn reply(mut connection: RawConnection, behavior: Behavior, consume_count: Arc<AtomicUsize>) {
    let mut greeting = [0; 8];
    if connection.0.read_exact(&mut greeting).await.is_err() {
        return;
    }
    connection.send_method(0, method(10, 10).byte(0).byte(9).long(b"").long(b"PLAIN").long(b"en_US")).await;
    let mut confirmed = 0;
    while let Some((kind, channel, payload)) = connection.frame().await {
        if kind != METHOD {
            continue;
        }
        let number = |at: usize| u16::from_be_bytes([payload[at], payload[at + 1]]);
        match (number(0), number(2)) {
            (10, 11) => {
                connection.send_method(0, method(10, 30).number16(100).number32(131_072).number16(60)).await;
            }
            (10, 31) | (20, 41) | (60, 80) => {}
            (10, 40) => connection.send_method(0, method(10, 41).byte(0)).await,
            (20, 10) => connection.send_method(channel, method(20, 11).number32(0)).await,
            (50, 10) => {
                connection.send_method(channel, method(50, 11).short(b"q").number32(0).number32(0)).await;
            }
            (60, 20) => {
                connection.send_method(channel, method(60, 21).short(b"t")).await;
                let before = consume_count.fetch_add(1, Relaxed);
                match &behavior {
                    Behavior::DeliveryTags(tags) => {
                        for number in tags {
                            let deliver = method(60, 60).short(b"t").number64(*number).byte(0);
                            connection.send_method(channel, deliver.short(b"").short(b"q")).await;
                            connection.send(HEADER, channel, &method(60, 0).number64(1).number16(0).0).await;
                            connection.send(BODY, channel, b"x").await;
                        }
                    }
                    Behavior::SendsCloseOk(gate) if before == 0 => {
                        gate.pass().await;
                        connection.send_method(0, method(10, 51)).await;
                    }
                    Behavior::SendsCloseOk(_) => {}
                    Behavior::Delivers { headers, is_published, .. } => {
                        let deliver = method(60, 60).short(b"t").number64(1).byte(u8::from(before > 0));
                        connection.send_method(channel, deliver.short(b"").short(b"q")).await;
                        let header = method(60, 0).number64(1).number16(1 << 13).long(headers);
                        connection.send(HEADER, channel, &header.0).await;
                        connection.send(BODY, channel, b"x").await;
                        if before == 0 {
                            is_published.pass().await;
                            let close = method(20, 40).number16(541).short(b"").number16(0).number16(0);
                            connection.send_method(channel, close).await;
                        }
                    }
                }
            }
            (60, 40) => {
                if let Behavior::Delivers { published, is_published, confirms, .. } = &behavior {
                    published.add(());
                    is_published.open(1);
                    confirms.pass().await;
                    confirmed += 1;
                    connection.send_method(channel, method(60, 80).number64(confirmed).byte(0)).await;
                }
            }
            (class, consume_count) => connection.send_method(channel, method(class, consume_count + 1)).await,
        }
    }
}
