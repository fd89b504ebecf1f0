//! A response body whose parts are sent through a channel.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Body;
use bytes::Bytes;
use http_body::Frame;
use tokio::sync::mpsc::{Receiver, Sender, channel};

/// Parts that wait to be sent.
const CAPACITY: usize = 4;

struct ChannelBody(Receiver<io::Result<Bytes>>);

/// Makes a body, and the channel to it. The body ends when the sender is dropped, and fails after an error.
pub(crate) fn channel_body() -> (Sender<io::Result<Bytes>>, Body) {
    let (sender, receiver) = channel(CAPACITY);
    (sender, Body::new(ChannelBody(receiver)))
}

impl http_body::Body for ChannelBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        self.0.poll_recv(context).map(|part| part.map(|part| part.map(Frame::data)))
    }
}
