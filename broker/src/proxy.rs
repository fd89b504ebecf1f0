//! A wire that can be cut: a TCP proxy on 127.0.0.1 between a client and a broker.
//!
//! Owns its connections, two threads for each. It knows nothing of what goes through it.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use crate::ports;

/// A proxy to one address. Dropping it closes everything.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    wire: Arc<Wire>,
    door: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Wire {
    target: SocketAddr,
    state: Mutex<State>,
    /// When the state has changed.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    over: bool,
    cut: bool,
    stalled: bool,
    accepted: usize,
    open: Vec<Line>,
}

/// A connection that is open: both ends, to close them by.
#[derive(Debug)]
struct Line {
    number: usize,
    ends: [TcpStream; 2],
    /// Whether one of its two ways is at its end.
    half_closed: bool,
    /// Whether the client's end is closed and the broker's is not to know.
    half_open: bool,
}

impl Line {
    fn close(&self) {
        for end in &self.ends {
            // An end that is closed already is what is wanted.
            let _ = end.shutdown(Shutdown::Both);
        }
    }
}

impl Proxy {
    /// Opens a port; what connects to it is connected to the target.
    pub fn to(target: SocketAddr) -> io::Result<Proxy> {
        let (_, listener) = ports::free().map_err(io::Error::other)?;
        let address = listener.local_addr()?;
        let wire = Wire { target, state: Mutex::default(), changed: Condvar::new() };
        let wire = Arc::new(wire);
        let door = std::thread::spawn({
            let wire = Arc::clone(&wire);
            move || wire.accept(&listener)
        });
        Ok(Proxy { address, wire, door: Some(door) })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// A broker's URI with our address in the place of the broker's. A name stays: a certificate is for it.
    pub fn uri(&self, uri: &str) -> String {
        swapped(uri, self.address)
    }

    /// Closes all connections now, and each that is opened until [`Proxy::mend`].
    pub fn cut(&self) {
        let mut state = self.wire.lock();
        state.cut = true;
        state.close_all();
        drop(state);
        self.wire.changed.notify_all();
    }

    /// Closes the clients' ends of all connections and keeps the broker's open: the broker notices by its heartbeat alone.
    pub fn cut_unnoticed(&self) {
        let mut state = self.wire.lock();
        for line in &mut state.open {
            line.half_open = true;
            let _ = line.ends[0].shutdown(Shutdown::Both);
        }
    }

    /// Lets connections be opened again.
    pub fn restore(&self) {
        self.wire.lock().cut = false;
    }

    /// Holds back every byte, both ways, while connections stay open and can be opened.
    pub fn stall(&self) {
        self.wire.lock().stalled = true;
    }

    /// Lets bytes flow again, those first that were held back.
    pub fn flow(&self) {
        self.wire.lock().stalled = false;
        self.wire.changed.notify_all();
    }

    /// How many connections it has put through so far, those that are closed again among them.
    pub fn connections(&self) -> usize {
        self.wire.lock().accepted
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let mut state = self.wire.lock();
        state.over = true;
        state.close_all();
        drop(state);
        self.wire.changed.notify_all();
        // A connection wakes the thread that accepts.
        let _ = TcpStream::connect(self.address);
        if let Some(door) = self.door.take() {
            let _ = door.join();
        }
    }
}

impl State {
    fn close_all(&mut self) {
        for line in self.open.drain(..) {
            line.close();
        }
    }
}

impl Wire {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn accept(self: &Arc<Self>, listener: &TcpListener) {
        while let Ok((client, _)) = listener.accept() {
            if self.lock().over {
                return;
            }
            // A client that could not be connected to the target sees its connection closed.
            let _ = self.put_through(client);
        }
    }

    fn put_through(self: &Arc<Self>, client: TcpStream) -> io::Result<()> {
        if self.lock().cut {
            return Ok(());
        }
        let broker = TcpStream::connect(self.target)?;
        client.set_nodelay(true)?;
        broker.set_nodelay(true)?;
        let ways = [(client.try_clone()?, broker.try_clone()?), (broker.try_clone()?, client.try_clone()?)];
        let mut state = self.lock();
        // It may have been cut while we called the broker.
        if state.cut || state.over {
            return Ok(());
        }
        let number = state.accepted;
        state.accepted += 1;
        state.open.push(Line { number, ends: [client, broker], half_closed: false, half_open: false });
        drop(state);
        for ((from, to), is_from_client) in ways.into_iter().zip([true, false]) {
            let wire = Arc::clone(self);
            std::thread::spawn(move || {
                let is_broken = wire.pump(&from, &to, number, is_from_client).is_err();
                wire.close(number, is_broken);
            });
        }
        Ok(())
    }

    /// Carries bytes one way until there are no more. An end is passed on as what it is: the other way may go on.
    fn pump(
        &self,
        mut from: &TcpStream,
        mut to: &TcpStream,
        number: usize,
        is_from_client: bool,
    ) -> io::Result<()> {
        let mut buffer = vec![0; 64 * 1024];
        loop {
            let read = from.read(&mut buffer);
            self.wait_for_flow(number);
            if self.is_half_open(number) {
                // The client's end is closed: nothing more comes from it, and what comes for it is thrown away.
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
        self.lock().open.iter().any(|line| line.number == number && line.half_open)
    }

    fn wait_for_close(&self, number: usize) {
        let is_open =
            |state: &mut State| state.open.iter().any(|line| line.number == number && !line.half_closed);
        drop(self.changed.wait_while(self.lock(), is_open));
    }

    fn wait_for_flow(&self, number: usize) {
        let is_open = |state: &State| state.open.iter().any(|line| line.number == number);
        let held = |state: &mut State| state.stalled && is_open(state);
        let state = self.changed.wait_while(self.lock(), held);
        drop(state);
    }

    /// One way is at its end. The line is closed with the second, or at once where it is broken.
    fn close(&self, number: usize, is_broken: bool) {
        let mut state = self.lock();
        let Some(place) = state.open.iter().position(|line| line.number == number) else { return };
        if state.open[place].half_closed || is_broken {
            state.open.swap_remove(place).close();
        } else {
            state.open[place].half_closed = true;
        }
        drop(state);
        self.changed.notify_all();
    }
}

fn swapped(uri: &str, address: SocketAddr) -> String {
    let (scheme, rest) = uri.split_once("://").unwrap_or(("amqp", uri));
    let (authority, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
    let (login, host) =
        authority.rsplit_once('@').map_or((None, authority), |(login, host)| (Some(login), host));
    let login = login.map(|login| format!("{login}@")).unwrap_or_default();
    let name = if host.starts_with("localhost") { "localhost".to_owned() } else { address.ip().to_string() };
    format!("{scheme}://{login}{name}:{}{path}", address.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(uri: &str, expected: &str) {
        assert_eq!(swapped(uri, "127.0.0.1:12345".parse().unwrap()), expected);
    }

    #[test]
    fn a_uri_keeps_all_but_the_address() {
        check("amqp://user:word@10.0.0.1:5672/%2f", "amqp://user:word@127.0.0.1:12345/%2f");
        check("amqps://user:w%40rd@localhost:5671/%2f?x=1", "amqps://user:w%40rd@localhost:12345/%2f?x=1");
        check("amqp://10.0.0.1", "amqp://127.0.0.1:12345");
    }
}
