//! Free ports of 127.0.0.1.
//!
//! Owns the choice. Nothing reserves a port, so another process may take one before the broker does; `broker` then tries
//! again with others.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};

use crate::error::{Error, OrFault};
use crate::files;
use crate::settings::Settings;

/// Below those that the system hands out by itself (from 32768 on Linux). A client that keeps calling a killed
/// broker at such a port is sooner or later given that very port to call from, reaches itself, and holds the port
/// when the broker wants it back.
const FIRST: u16 = 12_000;
const COUNT: u16 = 20_000;

const ATTEMPTS: usize = 1_000;

/// What one broker listens on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ports {
    pub(crate) amqp: u16,
    pub(crate) tls: Option<u16>,
    /// The HTTP API of the plugin rabbitmq_management.
    pub(crate) management: Option<u16>,
    /// Where other Erlang nodes find this one, which is to say `rabbitmqctl`.
    pub(crate) node: u16,
    /// Where they ask for it.
    pub(crate) epmd: u16,
}

impl Ports {
    pub(crate) fn free(settings: &Settings) -> Result<Ports, Error> {
        // All are held until each is found, so that none is given twice.
        let held = [free()?, free()?, free()?, free()?, free()?];
        let [amqp, tls, management, node, epmd] = held.each_ref().map(|(port, _)| *port);
        let tls = settings.tls.then_some(tls);
        let management = settings.management.then_some(management);
        Ok(Ports { amqp, tls, management, node, epmd })
    }

    pub(crate) fn amqp_address(&self) -> SocketAddr {
        at(self.amqp)
    }

    pub(crate) fn tls_address(&self) -> Option<SocketAddr> {
        self.tls.map(at)
    }

    pub(crate) fn management_address(&self) -> Option<SocketAddr> {
        self.management.map(at)
    }
}

/// A listener on a port of that kind, for those who can use it at once.
pub(crate) fn free() -> Result<(u16, TcpListener), Error> {
    let mut last = None;
    for _ in 0..ATTEMPTS {
        let word = files::random_word()?;
        let number = u32::from_str_radix(&word[..8], 16).unwrap_or_default() % u32::from(COUNT);
        let port = FIRST + u16::try_from(number).unwrap_or_default();
        match TcpListener::bind(at(port)) {
            Ok(listener) => return Ok((port, listener)),
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or_else(|| std::io::ErrorKind::AddrInUse.into()))
        .or_fault("find a free port on 127.0.0.1")
}

fn at(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}
