//! The writing task: writes the output buffer, and a heartbeat when it is empty.

use super::{Shared, lock};
use crate::{error::Error, wire::frame};
use bytes::BytesMut;
use std::{io, sync::Arc, time::Duration};
use tokio::io::{AsyncWrite, AsyncWriteExt};

/// Buffer size above which publishers wait.
pub(super) const OUT_BUFFER_CAPACITY: usize = 4 << 20;

/// Maximum time for the last write of a connection.
const FINAL_WRITE_TIMEOUT: Duration = Duration::from_secs(1);

pub(super) async fn run<W: AsyncWrite + Unpin>(shared: Arc<Shared>, mut stream: W) {
    let mut buffer = BytesMut::with_capacity(64 << 10);
    let mut connection_ended = shared.ended.subscribe();
    loop {
        let idle = tokio::time::timeout(shared.tune.heartbeat / 2, shared.written.notified()).await.is_err();
        let ended = {
            let mut out = lock(&shared.out);
            std::mem::swap(&mut out.buffer, &mut buffer);
            out.ended
        };
        if idle && buffer.is_empty() {
            frame::put_heartbeat(&mut buffer);
        }
        // Data queued before the end is still written: it may have the last acknowledgements. There is no timeout,
        // because a broker that is short of memory reads nothing for hours. The reader detects a dead broker.
        let write = async {
            stream.write_all(&buffer).await?;
            stream.flush().await
        };
        tokio::pin!(write);
        let written = tokio::select! {
            biased;
            written = &mut write => written,
            () = async { drop(connection_ended.wait_for(Option::is_some).await) } => {
                tokio::time::timeout(FINAL_WRITE_TIMEOUT, write).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
            }
        };
        let failed = written.is_err();
        if let Err(source) = written {
            shared.end(Error::Io { to: shared.name.clone(), source });
        }
        if ended || failed {
            let _ = tokio::time::timeout(FINAL_WRITE_TIMEOUT, stream.shutdown()).await;
            return;
        }
        buffer.clear();
        if buffer.capacity() > OUT_BUFFER_CAPACITY * 2 {
            buffer = BytesMut::with_capacity(64 << 10);
        }
        shared.drained.notify_waiters();
    }
}
