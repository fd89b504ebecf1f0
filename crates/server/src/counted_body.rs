//! A response body that ends its request when it was sent, or when the client has gone.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use axum::body::Body;
use bytes::Bytes;
use http_body::{Frame, SizeHint};

pub(crate) struct CountedBody {
    body: Body,
    _request: CountedRequest,
}

/// A request that is counted until this is dropped.
struct CountedRequest(Arc<AtomicUsize>);

impl CountedBody {
    /// `requests` counts the request already.
    pub(crate) fn new(body: Body, requests: Arc<AtomicUsize>) -> Self {
        CountedBody { body, _request: CountedRequest(requests) }
    }
}

impl Drop for CountedRequest {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
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
