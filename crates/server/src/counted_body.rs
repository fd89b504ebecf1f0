//! A response body that ends its request when it was sent, or when the client has gone.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::Body;
use bytes::Bytes;
use http_body::{Frame, SizeHint};

use crate::connections::Connection;

pub(crate) struct CountedBody {
    body: Body,
    _request: CountedRequest,
}

/// A request that its connection counts until this is dropped.
pub(crate) struct CountedRequest(pub(crate) Arc<Connection>);

impl CountedBody {
    pub(crate) fn new(body: Body, request: CountedRequest) -> Self {
        CountedBody { body, _request: request }
    }
}

impl Drop for CountedRequest {
    fn drop(&mut self) {
        self.0.end_request();
    }
}

impl http_body::Body for CountedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
