//! The connection handshake: authentication, and negotiation of limits and heartbeat.

use super::TuneParams;
use crate::{
    error::Error,
    uri::Endpoint,
    wire::{
        frame::{self, Content, Frame},
        method::{Incoming, Outgoing},
        table::Headers,
    },
};
use bytes::BytesMut;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Maximum frame size before negotiation.
const MAX_HANDSHAKE_FRAME: usize = 1 << 17;
/// Maximum frame size offered: RabbitMQ's default.
const FRAME_MAX: u32 = 1 << 17;
const CHANNEL_MAX: u16 = 2047;

/// Performs the handshake. Returns the negotiated parameters and bytes received after it.
pub(super) async fn perform<S>(
    stream: &mut S,
    endpoint: &Endpoint,
    connection_name: &str,
) -> Result<(TuneParams, BytesMut), Error>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut handshake = Handshake { stream, endpoint, buffer: BytesMut::with_capacity(8192) };
    handshake.write(frame::PROTOCOL_HEADER).await?;
    let mechanism = if endpoint.external { "EXTERNAL" } else { "PLAIN" };
    match handshake.read().await? {
        Incoming::Start { mechanisms }
            if mechanisms.split(|byte| *byte == b' ').any(|one| one == mechanism.as_bytes()) => {}
        Incoming::Start { mechanisms } => {
            let mechanisms = String::from_utf8_lossy(&mechanisms);
            return Err(handshake.protocol_error(format!("it authenticates by {mechanisms}, not by {mechanism}")));
        }
        other => return Err(handshake.unexpected(other)),
    }
    let response = match endpoint.external {
        true => String::new(),
        false => format!("\0{}\0{}", endpoint.user, endpoint.password),
    };
    let properties = properties(connection_name);
    handshake.send(&Outgoing::StartOk { properties: &properties, mechanism, response: response.as_bytes() }).await?;
    let tune = match handshake.read().await? {
        Incoming::Tune { channel_max, frame_max, heartbeat } => negotiate(endpoint, channel_max, frame_max, heartbeat),
        other => return Err(handshake.unexpected(other)),
    };
    let (frame_max, heartbeat) = (tune.frame_max as u32, tune.heartbeat.as_secs() as u16);
    handshake.send(&Outgoing::TuneOk { channel_max: tune.channel_max, frame_max, heartbeat }).await?;
    handshake.send(&Outgoing::Open { vhost: &endpoint.vhost }).await?;
    match handshake.read().await? {
        Incoming::OpenOk => Ok((tune, handshake.buffer)),
        other => Err(handshake.unexpected(other)),
    }
}

/// Takes the smaller limit of both sides, where 0 means no limit. The heartbeat is never off.
fn negotiate(endpoint: &Endpoint, channel_max: u16, frame_max: u32, heartbeat: u16) -> TuneParams {
    let smaller = |ours: u32, theirs: u32| if theirs == 0 { ours } else { ours.min(theirs) };
    let ours = endpoint.heartbeat.as_secs() as u32;
    TuneParams {
        channel_max: smaller(CHANNEL_MAX.into(), channel_max.into()) as u16,
        // 4,096 is the minimum of the protocol.
        frame_max: smaller(FRAME_MAX, frame_max).max(4096) as usize,
        heartbeat: Duration::from_secs(smaller(ours, heartbeat.into()).into()),
    }
}

/// Client properties: what the broker's tools show, and the extensions that it may use.
fn properties(connection_name: &str) -> Headers {
    let capabilities = Headers::new()
        .with("authentication_failure_close", true)
        .with("basic.nack", true)
        .with("connection.blocked", true)
        .with("consumer_cancel_notify", true)
        .with("publisher_confirms", true);
    Headers::new()
        .with("product", "Gristmill")
        .with("version", env!("CARGO_PKG_VERSION"))
        .with("platform", "Rust")
        .with("connection_name", connection_name)
        .with("capabilities", capabilities)
}

struct Handshake<'a, S> {
    stream: &'a mut S,
    endpoint: &'a Endpoint,
    buffer: BytesMut,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Handshake<'_, S> {
    async fn send(&mut self, method: &Outgoing<'_>) -> Result<(), Error> {
        let mut out = BytesMut::new();
        frame::put_method(&mut out, 0, method);
        self.write(&out).await
    }

    async fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let written = async {
            self.stream.write_all(bytes).await?;
            self.stream.flush().await
        };
        written.await.map_err(|source| self.io_error(source))
    }

    async fn read(&mut self) -> Result<Incoming, Error> {
        loop {
            let cut = frame::cut(&mut self.buffer, MAX_HANDSHAKE_FRAME);
            match cut.map_err(|malformed| self.protocol_error(malformed.to_string()))? {
                None => {
                    let read = self.stream.read_buf(&mut self.buffer).await;
                    if read.map_err(|source| self.io_error(source))? == 0 {
                        let what = "closed during the handshake; see the broker's log";
                        return Err(self.io_error(std::io::Error::new(std::io::ErrorKind::UnexpectedEof, what)));
                    }
                }
                Some(Frame { content: Content::Method(payload), .. }) => {
                    return Incoming::read(&payload).map_err(|error| self.protocol_error(error.to_string()));
                }
                Some(_) => {}
            }
        }
    }

    fn io_error(&self, source: std::io::Error) -> Error {
        Error::Io { to: self.endpoint.to_string(), source }
    }

    fn protocol_error(&self, what: String) -> Error {
        Error::Protocol { to: self.endpoint.to_string(), what }
    }

    fn unexpected(&self, incoming: Incoming) -> Error {
        match incoming {
            Incoming::Close { code, text } => Error::ConnectionRefused { to: self.endpoint.to_string(), code, text },
            _ => self.protocol_error("an unexpected method in the handshake".to_owned()),
        }
    }
}
