//! The task that writes: whatever has gathered, in one piece, and a heartbeat when nothing has.

use super::{Shared, lock};
use crate::{error::Error, wire::frame};
use bytes::BytesMut;
use std::sync::Arc;
use tokio::io::{AsyncWrite, AsyncWriteExt};

/// Above this, publishers wait for room.
pub(super) const ENOUGH: usize = 4 << 20;

pub(super) async fn run<W: AsyncWrite + Unpin>(shared: Arc<Shared>, mut stream: W) {
    let mut buffer = BytesMut::with_capacity(64 << 10);
    loop {
        let idle =
            tokio::time::timeout(shared.agreed.heartbeat / 2, shared.written.notified()).await.is_err();
        let ended = {
            let mut out = lock(&shared.out);
            std::mem::swap(&mut out.buffer, &mut buffer);
            out.ended
        };
        if idle && buffer.is_empty() {
            frame::put_heartbeat(&mut buffer);
        }
        // What was said before the end is still written: the last acknowledgements may be among it.
        let write = async {
            stream.write_all(&buffer).await?;
            stream.flush().await
        };
        match tokio::time::timeout(shared.agreed.heartbeat * 2, write).await {
            Ok(Ok(())) => {}
            Ok(Err(source)) => shared.end(Error::Io { to: shared.name.clone(), source }),
            Err(_) => {
                shared.end(Error::Silent { to: shared.name.clone(), after: shared.agreed.heartbeat * 2 });
            }
        }
        if ended || shared.ended.borrow().is_some() {
            let _ = stream.shutdown().await;
            return;
        }
        buffer.clear();
        if buffer.capacity() > ENOUGH * 2 {
            buffer = BytesMut::with_capacity(64 << 10);
        }
        shared.drained.notify_waiters();
    }
}
