//! Stores positions in streams, and finds the offset where a consumer begins.
//!
//! A position is the lowest unfinished offset. It is written a few times a second and at the end, not for each message:
//! after a kill, messages finished since the last write are read again.

use crate::{
    consumer::{ConsumerConfig, Offset},
    error::Error,
    net::{Channel, Connection, Event, Received},
    reconnect::BACKOFF,
    store::MessageStore,
    topology,
    wire::{
        method::Outgoing,
        table::{FieldValue, Headers},
    },
};
use std::{sync::Arc, time::Duration};
use tokio::{sync::watch, task::JoinHandle};

/// Interval between writes of a changing position.
const WRITE_INTERVAL: Duration = Duration::from_millis(200);
/// Maximum wait for the first message of a stream that is not empty.
const FIRST_MESSAGE_TIMEOUT: Duration = Duration::from_secs(30);
/// Wait without a message before the broker is asked whether the stream is empty.
const EMPTY_CHECK_DELAY: Duration = Duration::from_secs(3);
/// Number of rechecks, and interval between them, for a position past the end: a replica may lack messages.
const END_RECHECKS: u32 = 2;
const END_RECHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum time for writing the last position.
const FINAL_WRITE_TIMEOUT: Duration = Duration::from_secs(10);

/// Reads and writes the position of one consumer in the store.
#[derive(Clone)]
struct PositionStore {
    store: Arc<dyn MessageStore>,
    /// Virtual host and queue: streams of the same name on other virtual hosts are different.
    stream: String,
    consumer: String,
}

pub(crate) struct PositionWriter {
    position: watch::Sender<Option<u64>>,
    task: JoinHandle<()>,
}

impl PositionWriter {
    /// Starts the writer, and returns it with the offset where the consumer begins.
    pub(crate) async fn start(
        config: &Arc<ConsumerConfig>,
        store: Arc<dyn MessageStore>,
        connection: &Connection,
    ) -> Result<(Self, Option<u64>), Error> {
        let stream = format!("{}/{}", connection.user().1, config.queue);
        let store = PositionStore { store, stream, consumer: config.name.clone() };
        let first = starting_offset(config, &store, connection).await?;
        let (position, changes) = watch::channel(first);
        // A consumer that begins at the end has a position before the first message arrives.
        if let Some(first) = first {
            store.write(first).await?;
        }
        Ok((Self { position, task: tokio::spawn(write_positions(store, changes)) }, first))
    }

    /// Sets the position that is written next.
    pub(crate) fn record(&self, position: Option<u64>) {
        self.position.send_if_modified(|known| {
            let changed = position.is_some() && *known != position;
            if changed {
                *known = position;
            }
            changed
        });
    }

    /// Writes the last position and ends the task.
    pub(crate) async fn close(self) {
        let Self { position, task } = self;
        drop(position);
        if tokio::time::timeout(FINAL_WRITE_TIMEOUT, task).await.is_err() {
            tracing::error!("cannot write the last position in a stream; messages will be read again");
        }
    }
}

impl PositionStore {
    async fn write(&self, offset: u64) -> Result<(), Error> {
        let store = self.clone();
        let write = move || store.store.record_position(&store.stream, &store.consumer, offset);
        tokio::task::spawn_blocking(write).await.unwrap_or(Ok(())).map_err(Error::Store)
    }

    async fn read(&self) -> Result<Option<u64>, Error> {
        let store = self.clone();
        let read = move || store.store.position(&store.stream, &store.consumer);
        tokio::task::spawn_blocking(read).await.unwrap_or(Ok(None)).map_err(Error::Store)
    }
}

/// Writes positions until the sender is dropped. Warns, once, about a position that another consumer has written.
async fn write_positions(store: PositionStore, mut changes: watch::Receiver<Option<u64>>) {
    let (mut written, mut failed) = (*changes.borrow_and_update(), 0);
    let mut is_alone = true;
    loop {
        let is_last = changes.changed().await.is_err();
        let position = *changes.borrow_and_update();
        if let Some(offset) = position.filter(|_| position != written) {
            if is_alone && written.is_some() && store.read().await.is_ok_and(|stored| stored != written) {
                is_alone = false;
                tracing::warn!(
                    stream = store.stream,
                    consumer = store.consumer,
                    "another consumer with this name reads the stream and stores its position in the same database: both handle \
                     every message, and messages may be skipped after a restart. Give each consumer its own name (--name)"
                );
            }
            match store.write(offset).await {
                Ok(()) => (written, failed) = (position, 0),
                Err(error) => {
                    failed += 1;
                    tracing::error!(stream = store.stream, %error, "cannot write a position in a stream; retried");
                }
            }
        }
        if is_last && (written == position || failed > 3) {
            return;
        }
        let wait = if failed > 0 { BACKOFF.delay(failed) } else { WRITE_INTERVAL };
        match is_last {
            true => tokio::time::sleep(wait).await,
            // The last position is written at once.
            false => drop(tokio::time::timeout(wait, closed(&changes)).await),
        }
    }
}

/// Waits until the sender of positions is dropped.
async fn closed(changes: &watch::Receiver<Option<u64>>) {
    let mut changes = changes.clone();
    while changes.changed().await.is_ok() {}
}

/// Whether a position is past the end of its stream: the stream was deleted and recreated since.
pub(crate) async fn is_past_end(
    config: &ConsumerConfig,
    position: u64,
    connection: &Connection,
) -> Result<bool, Error> {
    let mut next = next(config, connection).await?;
    for _ in 0..END_RECHECKS {
        if position <= next {
            return Ok(false);
        }
        tokio::time::sleep(END_RECHECK_INTERVAL).await;
        next = self::next(config, connection).await?;
    }
    if position > next {
        tracing::warn!(
            consumer = config.name,
            queue = &*config.queue,
            position,
            next,
            "the position is past the end of the stream, which was recreated; reading from its beginning"
        );
    }
    Ok(position > next)
}

/// Offset of the next message published to a stream.
async fn next(config: &ConsumerConfig, connection: &Connection) -> Result<u64, Error> {
    Ok(end(connection, &config.queue).await?.map_or(0, |last| last.saturating_add(1)))
}

/// Offset to begin with, if known before the first message: the stored one, a number, or the end.
async fn starting_offset(
    config: &ConsumerConfig,
    store: &PositionStore,
    connection: &Connection,
) -> Result<Option<u64>, Error> {
    let stored = if config.declared.rewind { None } else { store.read().await? };
    if let Some(stored) = stored {
        return Ok(Some(if is_past_end(config, stored, connection).await? { 0 } else { stored }));
    }
    let next = next(config, connection).await?;
    match &config.offset {
        Offset::Next => Ok(Some(next)),
        Offset::Number(number) if *number > next => {
            tracing::warn!(
                consumer = config.name,
                queue = &*config.queue,
                offset = number,
                next,
                "the offset is past the end of the stream; reading from its end"
            );
            Ok(Some(next))
        }
        Offset::Number(number) => Ok(Some(*number)),
        Offset::First | Offset::Last => Ok(None),
    }
}

/// Offset of the last message of a stream; none if it is empty.
///
/// AMQP 0-9-1 cannot query it, and the message count of a declaration is seconds old. So the last chunk of the stream
/// is read: the broker delivers all its messages in one step, before it answers the next request.
pub(crate) async fn end(connection: &Connection, queue: &str) -> Result<Option<u64>, Error> {
    let mut channel = Channel::open(connection).await?;
    channel.call(&Outgoing::Qos { prefetch: u16::MAX }).await?;
    let arguments = Headers::new().with("x-stream-offset", "last");
    channel.call(&Outgoing::Consume { queue, tag: "gristmill.end", flags: 0, arguments: &arguments }).await?;
    let Some(first) = first(&mut channel, connection, queue).await? else { return Ok(None) };
    let mut last = offset(queue, &first)?;
    channel.call(&Outgoing::Qos { prefetch: u16::MAX }).await?;
    while let Some(event) = channel.try_next() {
        if let Event::Message(received) = event? {
            last = last.max(offset(queue, &received)?);
        }
    }
    channel.close(Duration::from_secs(5)).await;
    Ok(Some(last))
}

/// Waits for the first message; none if the stream is empty: nothing arrives and the broker counts no message.
async fn first(channel: &mut Channel, connection: &Connection, queue: &str) -> Result<Option<Box<Received>>, Error> {
    let until = tokio::time::Instant::now() + FIRST_MESSAGE_TIMEOUT;
    loop {
        match tokio::time::timeout(EMPTY_CHECK_DELAY, channel.next()).await {
            Ok(event) => {
                if let Event::Message(received) = event? {
                    return Ok(Some(received));
                }
            }
            Err(_) if topology::depth(&mut Channel::open(connection).await?, queue).await?.0 == 0 => {
                return Ok(None);
            }
            Err(_) if tokio::time::Instant::now() > until => {
                let text = format!("the broker delivered no message of stream {queue} within 30 s");
                return Err(Error::Message(text));
            }
            Err(_) => {}
        }
    }
}

/// Offset in the headers of a delivery. A publisher can set a header of that name.
pub(crate) fn offset_of(headers: &Headers) -> Option<u64> {
    headers.get("x-stream-offset").and_then(FieldValue::as_int).and_then(|at| u64::try_from(at).ok())
}

fn offset(queue: &str, received: &Received) -> Result<u64, Error> {
    offset_of(&received.properties.headers).ok_or_else(|| {
        Error::Declaration(format!("queue {queue} is not a stream: its messages have no offsets; omit the offset"))
    })
}
