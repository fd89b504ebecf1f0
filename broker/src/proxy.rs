//! A TCP proxy on 127.0.0.1 between a client and a broker, whose connections can be cut and stalled.
//!
//! Owns its connections, two threads for each. It does not interpret the bytes.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use crate::ports;

/// A proxy to one address. Dropping it closes its port and its connections.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    target: SocketAddr,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    closed: bool,
    cut: bool,
    stalled: bool,
    accepted: usize,
    open: Vec<Connection>,
}

/// An open connection: the client's and the broker's stream.
#[derive(Debug)]
struct Connection {
    number: usize,
    ends: [TcpStream; 2],
    /// Whether one direction has ended.
    half_closed: bool,
    /// Whether the client's stream is closed, and the broker must not notice.
    half_open: bool,
}

impl Connection {
    fn close(&self) {
        for end in &self.ends {
            // Fails if it is closed already.
            let _ = end.shutdown(Shutdown::Both);
        }
    }
}

impl Proxy {
    /// Opens a port and forwards each connection to the target.
    pub fn to(target: SocketAddr) -> io::Result<Proxy> {
        let (_, listener) = ports::free().map_err(io::Error::other)?;
        let address = listener.local_addr()?;
        let shared = Shared { target, state: Mutex::default(), changed: Condvar::new() };
        let shared = Arc::new(shared);
        let acceptor = std::thread::spawn({
            let shared = Arc::clone(&shared);
            move || shared.accept(&listener)
        });
        Ok(Proxy { address, shared, acceptor: Some(acceptor) })
    }

    /// Address that the proxy listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns a broker's URI with the proxy's address. The host name `localhost` is kept, because certificates are
    /// issued for it.
    pub fn uri(&self, uri: &str) -> String {
        replace_address(uri, self.address)
    }

    /// Closes all connections now, and each new one until [`Proxy::restore`].
    pub fn cut(&self) {
        let mut state = self.shared.lock();
        state.cut = true;
        state.close_all();
        drop(state);
        self.shared.changed.notify_all();
    }

    /// Closes the clients' streams and keeps the broker's open: the broker notices only by its heartbeat.
    pub fn cut_unnoticed(&self) {
        let mut state = self.shared.lock();
        for connection in &mut state.open {
            connection.half_open = true;
            let _ = connection.ends[0].shutdown(Shutdown::Both);
        }
    }

    /// Accepts connections again.
    pub fn restore(&self) {
        self.shared.lock().cut = false;
    }

    /// Holds back every byte in both directions, while connections stay open and new ones are accepted.
    pub fn stall(&self) {
        self.shared.lock().stalled = true;
    }

    /// Forwards bytes again, beginning with those that were held back.
    pub fn flow(&self) {
        self.shared.lock().stalled = false;
        self.shared.changed.notify_all();
    }

    /// Number of connections forwarded so far, closed ones included.
    pub fn connections(&self) -> usize {
        self.shared.lock().accepted
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.closed = true;
        state.close_all();
        drop(state);
        self.shared.changed.notify_all();
        // A connection wakes the accepting thread.
        let _ = TcpStream::connect(self.address);
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
    }
}

impl State {
    fn close_all(&mut self) {
        for connection in self.open.drain(..) {
            connection.close();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn accept(self: &Arc<Self>, listener: &TcpListener) {
        while let Ok((client, _)) = listener.accept() {
            if self.lock().closed {
                return;
            }
            // If the target cannot be reached, the client's connection is closed.
            let _ = self.connect(client);
        }
    }

    fn connect(self: &Arc<Self>, client: TcpStream) -> io::Result<()> {
        if self.lock().cut {
            return Ok(());
        }
        let broker = TcpStream::connect(self.target)?;
        client.set_nodelay(true)?;
        broker.set_nodelay(true)?;
        let directions = [(client.try_clone()?, broker.try_clone()?), (broker.try_clone()?, client.try_clone()?)];
        let mut state = self.lock();
        // The proxy may have been cut meanwhile.
        if state.cut || state.closed {
            return Ok(());
        }
        let number = state.accepted;
        state.accepted += 1;
        state.open.push(Connection { number, ends: [client, broker], half_closed: false, half_open: false });
        drop(state);
        for ((from, to), is_from_client) in directions.into_iter().zip([true, false]) {
            let shared = Arc::clone(self);
            std::thread::spawn(move || {
                let is_broken = shared.copy(&from, &to, number, is_from_client).is_err();
                shared.close(number, is_broken);
            });
        }
        Ok(())
    }

    /// Copies bytes in one direction until it ends. The end is forwarded, because the other direction may continue.
    fn copy(&self, mut from: &TcpStream, mut to: &TcpStream, number: usize, is_from_client: bool) -> io::Result<()> {
        let mut buffer = vec![0; 64 * 1024];
        loop {
            let read = from.read(&mut buffer);
            self.wait_for_flow(number);
            if self.is_half_open(number) {
                // The client's stream is closed: nothing more arrives from it, and bytes for it are discarded.
                match read {
                    Ok(1..) => continue,
                    _ if is_from_client => {
                        self.wait_for_close(number);
                        return Ok(());
                    }
                    other => return other.map(drop),
                }
            }
            let count = read?;
            if count == 0 {
                return to.shutdown(Shutdown::Write);
            }
            to.write_all(&buffer[..count])?;
        }
    }

    fn is_half_open(&self, number: usize) -> bool {
        self.lock().open.iter().any(|connection| connection.number == number && connection.half_open)
    }

    fn wait_for_close(&self, number: usize) {
        let is_open = |state: &mut State| {
            state.open.iter().any(|connection| connection.number == number && !connection.half_closed)
        };
        drop(self.changed.wait_while(self.lock(), is_open));
    }

    fn wait_for_flow(&self, number: usize) {
        let is_open = |state: &State| state.open.iter().any(|connection| connection.number == number);
        let held = |state: &mut State| state.stalled && is_open(state);
        let state = self.changed.wait_while(self.lock(), held);
        drop(state);
    }

    /// Called when one direction has ended. Closes the connection with the second one, or at once after an error.
    fn close(&self, number: usize, is_broken: bool) {
        let mut state = self.lock();
        let Some(index) = state.open.iter().position(|connection| connection.number == number) else {
            return;
        };
        if state.open[index].half_closed || is_broken {
            state.open.swap_remove(index).close();
        } else {
            state.open[index].half_closed = true;
        }
        drop(state);
        self.changed.notify_all();
    }
}

fn replace_address(uri: &str, address: SocketAddr) -> String {
    let (scheme, rest) = uri.split_once("://").unwrap_or(("amqp", uri));
    let (authority, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
    let (login, host) = authority.rsplit_once('@').map_or((None, authority), |(login, host)| (Some(login), host));
    let login = login.map(|login| format!("{login}@")).unwrap_or_default();
    let name = if host.starts_with("localhost") { "localhost".to_owned() } else { address.ip().to_string() };
    format!("{scheme}://{login}{name}:{}{path}", address.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(uri: &str, expected: &str) {
        assert_eq!(replace_address(uri, "127.0.0.1:12345".parse().unwrap()), expected);
    }

    #[test]
    fn replace_address_keeps_everything_else() {
        check("amqp://user:word@10.0.0.1:5672/%2f", "amqp://user:word@127.0.0.1:12345/%2f");
        check("amqps://user:w%40rd@localhost:5671/%2f?x=1", "amqps://user:w%40rd@localhost:12345/%2f?x=1");
        check("amqp://10.0.0.1", "amqp://127.0.0.1:12345");
    }
}
