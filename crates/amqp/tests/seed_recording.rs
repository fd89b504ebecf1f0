//! Compares frames of a real broker with the seeds of the fuzz targets. For a new broker version, write them again:
//! `GRISTMILL_WRITE_SEEDS=1 cargo test -p gristmill-amqp --test seed_recording`.

use gristmill_amqp::{Client, Consumer, Message, Queue};
use gristmill_broker::Broker;
use gristmill_pool::{Retry, TaskError};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::mpsc,
};

/// Maximum seed length in bytes, as `cargo xtask fuzz` sets it.
const MAX_SEED_BYTES: usize = 1_150;

const QUICK: Retry = Retry::exponential(4, Duration::from_millis(10));

type Recorded = Arc<Mutex<Vec<Vec<u8>>>>;

/// Forwards bytes, and records those of the broker by connection.
async fn pass(client: TcpStream, broker: TcpStream, recorded: Recorded) {
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_broker, mut to_broker) = broker.into_split();
    tokio::spawn(async move { tokio::io::copy(&mut from_client, &mut to_broker).await });
    let mut received = Vec::new();
    let mut buffer = vec![0; 1 << 16];
    while let Ok(count @ 1..) = from_broker.read(&mut buffer).await {
        received.extend_from_slice(&buffer[..count]);
        if to_client.write_all(&buffer[..count]).await.is_err() {
            break;
        }
    }
    recorded.lock().unwrap().push(received);
}

/// Splits a stream into frames: kind, whole frame, payload.
fn frames(mut stream: &[u8]) -> Vec<(u8, &[u8], &[u8])> {
    let mut frames = Vec::new();
    while let [kind, _, _, a, b, c, d, ..] = *stream {
        let size = u32::from_be_bytes([a, b, c, d]) as usize;
        let Some((frame, rest)) = stream.split_at_checked(size + 8) else { break };
        frames.push((kind, frame, &frame[7..7 + size]));
        stream = rest;
    }
    frames
}

#[test]
fn seeds_cover_every_method_and_property_set_of_a_broker() {
    let broker = Broker::start().unwrap();
    let recorded = Recorded::default();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let uri = broker.uri().replace(&broker.address().to_string(), &listener.local_addr().unwrap().to_string());
        let (address, kept) = (broker.address(), recorded.clone());
        let (passing, mut passes) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let broker = TcpStream::connect(address).await.unwrap();
                let _ = passing.send(tokio::spawn(pass(client, broker, kept.clone())));
            }
        });
        let (done, mut is_done) = mpsc::unbounded_channel();
        let consumer = Consumer::new("seeds", "seeds").retry(QUICK).handle(move |delivery| {
            let done = done.clone();
            async move {
                if delivery.attempt() == 1 {
                    return Err(TaskError::transient("once more"));
                }
                let _ = done.send(());
                if delivery.message_id() == Some("bad") { Err(TaskError::permanent("no")) } else { Ok(()) }
            }
        });
        let client = Client::builder(uri).queue(Queue::new("seeds")).consumer(consumer).start().await.unwrap();
        for id in ["good", "bad"] {
            let mut message = Message::to_queue("seeds", r#"{"id": 17}"#).header("traceparent", "00-0af7-b7ad-01");
            message.properties.message_id = Some(id.to_owned());
            message.properties.content_type = Some("application/json".to_owned());
            client.publisher().publish(message).await.unwrap();
        }
        for _ in 0..2 {
            is_done.recv().await.unwrap();
        }
        let _unroutable = client.publisher().publish(Message::to_queue("nowhere", "x")).await;
        client.shutdown(Duration::from_secs(10)).await;
        // The bytes of a connection are recorded when it ends.
        while let Ok(pass) = passes.try_recv() {
            pass.await.unwrap();
        }
    });
    let seeds = seeds(&recorded.lock().unwrap());
    match std::env::var_os("GRISTMILL_WRITE_SEEDS") {
        Some(_) => write(&seeds),
        None => compare(&seeds),
    }
}

/// Seeds by file name.
type Seeds = BTreeMap<String, Vec<u8>>;

fn seeds(streams: &[Vec<u8>]) -> Seeds {
    // One seed per shape: methods by their numbers, headers by the properties that they have.
    let mut seeds = Seeds::new();
    for (number, stream) in streams.iter().enumerate() {
        let mut part = Vec::new();
        let mut parts = 0;
        for (kind, frame, payload) in frames(stream) {
            match kind {
                1 => seeds.insert(format!("methods/real_{}_{}", payload[1], payload[3]), payload.to_vec()),
                2 => {
                    let name = format!("properties/real_{:02x}{:02x}_{}", payload[12], payload[13], payload.len());
                    seeds.insert(name, payload.to_vec())
                }
                _ => None,
            };
            if !part.is_empty() && part.len() + frame.len() > MAX_SEED_BYTES {
                parts += 1;
                seeds.insert(format!("frames/real_{number}_{parts}"), std::mem::take(&mut part));
            }
            part.extend_from_slice(frame);
        }
        seeds.insert(format!("frames/real_{number}_{}", parts + 1), part);
    }
    seeds
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds")
}

fn write(seeds: &Seeds) {
    for (name, bytes) in seeds {
        let sizes: &[u8] = if name.starts_with("frames/") { &[6, 0, 40] } else { &[] };
        std::fs::write(folder().join(name), [sizes, bytes].concat()).unwrap();
    }
}

/// Compares shapes only: lengths and frames differ between runs, because they have times and generated names.
fn compare(seeds: &Seeds) {
    let shape = |name: &str| name.rsplit_once('_').map(|(shape, _)| shape.to_owned());
    let kept = std::fs::read_dir(folder().join("properties")).unwrap();
    let kept = kept.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let shapes: Vec<Option<String>> = kept.map(|name| shape(&format!("properties/{name}"))).collect();
    for name in seeds.keys() {
        if name.starts_with("methods/") {
            assert!(folder().join(name).exists(), "no seed for the method {name}");
        }
        if name.starts_with("properties/") {
            assert!(shapes.contains(&shape(name)), "no seed for the properties {name}");
        }
    }
    assert!(seeds.keys().filter(|name| name.starts_with("methods/")).count() > 10, "{:?}", seeds.keys());
}
