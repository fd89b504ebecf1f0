//! Reads bytes of a broker as a connection does, without a socket. For the fuzz targets.

use super::{ChannelEntry, SendGate, Shared, TuneParams, handshake, lock, reader::Reader};
use crate::uri::Endpoint;
use bytes::BytesMut;
use std::{
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};
use tokio::sync::mpsc;

const CHANNELS: u16 = 3;

/// Events of the channels in order, bytes sent to the broker, and why the connection ended, if it did.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Replay {
    pub(crate) events: Vec<String>,
    pub(crate) sent: Vec<u8>,
    pub(crate) error: Option<String>,
}

/// Reads bytes that follow the handshake, in these pieces.
pub(crate) fn read<'a>(endpoint: &Endpoint, pieces: impl Iterator<Item = &'a [u8]>) -> Replay {
    let tune = TuneParams { channel_max: CHANNELS, frame_max: 4096, heartbeat: Duration::from_secs(10) };
    let shared = Arc::new(Shared::new(endpoint, tune));
    let mut receivers = Vec::new();
    for number in 1..=CHANNELS {
        let (sender, receiver) = mpsc::unbounded_channel();
        receivers.push(receiver);
        lock(&shared.channels).insert(number, ChannelEntry::Open(sender, SendGate::default()));
    }
    let mut reader = Reader::new(Arc::clone(&shared));
    let (mut buffer, mut error) = (BytesMut::new(), None);
    for piece in pieces {
        buffer.extend_from_slice(piece);
        if let Err(why) = reader.read_frames(&mut buffer) {
            error = Some(why.to_string());
            break;
        }
    }
    let mut events = Vec::new();
    for (number, receiver) in receivers.iter_mut().enumerate() {
        while let Ok(event) = receiver.try_recv() {
            events.push(format!("{number}: {event:?}"));
        }
    }
    let sent = lock(&shared.out).buffer.to_vec();
    Replay { events, sent, error }
}

/// Performs the handshake with a broker that sends these bytes. Returns whether it succeeded.
pub(crate) fn handshake(endpoint: &Endpoint, bytes: &[u8]) -> bool {
    let mut broker = tokio::io::join(bytes, tokio::io::sink());
    let mut handshake = pin!(handshake::perform(&mut broker, endpoint, "replay"));
    let mut context = Context::from_waker(Waker::noop());
    loop {
        // The stream is always ready; pending only means that the task has used its time budget.
        if let Poll::Ready(result) = handshake.as_mut().poll(&mut context) {
            return result.is_ok();
        }
    }
}
