//! Chooses free ports of 127.0.0.1.
//!
//! Ports are not reserved, so another process may take one before the broker does; `broker` then retries with others.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};

use crate::error::{Error, IoContext};
use crate::files;
use crate::settings::Settings;

/// Ports below those that the system assigns to clients (from 32768 on Linux). A client that reconnects to a killed
/// broker at an assignable port would eventually get that port as its own, connect to itself, and keep the port from
/// the broker.
const FIRST_PORT: u16 = 12_000;
const PORT_COUNT: u16 = 20_000;

const MAX_ATTEMPTS: usize = 1_000;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Ports {
    pub(crate) amqp: u16,
    pub(crate) tls: Option<u16>,
    /// Port of the HTTP API of the plugin rabbitmq_management.
    pub(crate) management: Option<u16>,
    /// Port where other Erlang nodes, such as `rabbitmqctl`, connect to the broker's node.
    pub(crate) node: u16,
    /// Port of epmd, where they look up the node.
    pub(crate) epmd: u16,
}

impl Ports {
    pub(crate) fn free(settings: &Settings) -> Result<Ports, Error> {
        // All are bound until the last one is found, so that they differ.
        let held = [free()?, free()?, free()?, free()?, free()?];
        let [amqp, tls, management, node, epmd] = held.each_ref().map(|(port, _)| *port);
        let tls = settings.tls.then_some(tls);
        let management = settings.management.then_some(management);
        Ok(Ports { amqp, tls, management, node, epmd })
    }
}

/// Binds a free port. Returns its number and the listener.
pub(crate) fn free() -> Result<(u16, TcpListener), Error> {
    let mut last = None;
    for _ in 0..MAX_ATTEMPTS {
        let word = files::random_word()?;
        let number = u32::from_str_radix(&word[..8], 16).unwrap_or_default() % u32::from(PORT_COUNT);
        let port = FIRST_PORT + u16::try_from(number).unwrap_or_default();
        match TcpListener::bind(at(port)) {
            Ok(listener) => return Ok((port, listener)),
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or_else(|| std::io::ErrorKind::AddrInUse.into())).context("find a free port on 127.0.0.1")
}

/// Returns the address of a port.
pub(crate) fn at(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}
