//! One broker: its whole life, from a free port to a folder that is gone.
//!
//! Owns the order in which things are started, retried and ended. The command lines of its programs stand in
//! `command`, what a process is in `node`.

use std::ffi::OsStr;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use rustix::process::Signal;

use crate::command::Commands;
use crate::error::Error;
use crate::files::{Files, Login};
use crate::handshake::speaks_amqp;
use crate::installation::Installation;
use crate::node::Process;
use crate::ports::Ports;
use crate::settings::Settings;
use crate::watcher::Watcher;

/// A start takes seconds; on a machine that has other things to do, many of them.
const PATIENCE: Duration = Duration::from_secs(120);

/// How often a start is tried again with other ports.
const ATTEMPTS: usize = 5;

/// The last thing a node says as it starts, whatever its log is set to. By then its queues are recovered and its
/// listeners are open.
const STARTED: &str = "Starting broker... completed";

/// It ends by itself where it cannot have its port, and only there.
const EPMD_ENDED: &str = "its epmd ended, so that port is in use";

/// A RabbitMQ of one's own on 127.0.0.1.
///
/// It has a folder, ports, a user and a password of its own. Dropping it kills it and deletes the folder;
/// where nothing is dropped (a static of a test, a process that is killed) that happens as the process ends.
#[derive(Debug)]
pub struct Broker {
    commands: Commands,
    files: Files,
    login: Login,
    ports: Ports,
    node: Option<Process>,
    epmd: Process,
    watcher: Watcher,
}

impl Broker {
    /// Starts one with the defaults. Returns when it accepts connections.
    pub fn start() -> Result<Broker, Error> {
        Broker::start_with(&Settings::new())
    }

    /// Starts one. Returns when it accepts connections.
    pub fn start_with(settings: &Settings) -> Result<Broker, Error> {
        Broker::on(settings, || Ports::free(settings))
    }

    /// Another process may take a port after it was found free: then other ports are tried.
    fn on(settings: &Settings, mut ports: impl FnMut() -> Result<Ports, Error>) -> Result<Broker, Error> {
        let kit = Installation::find()?;
        let mut attempt = 1;
        loop {
            match Broker::attempt(&kit, settings, ports()?) {
                Err(fault) if attempt < ATTEMPTS && is_about_a_port(&fault) => attempt += 1,
                done => return done,
            }
        }
    }

    fn attempt(kit: &Installation, settings: &Settings, ports: Ports) -> Result<Broker, Error> {
        let login = Login::new()?;
        let files = Files::new()?;
        let mut watcher = Watcher::of(files.folder())?;
        let mut applications = kit.applications();
        if settings.management {
            applications.extend(kit.management_plugins()?);
        }
        files.link(&applications)?;
        files.write(settings, &login, &ports)?;
        #[cfg(feature = "tls")]
        if settings.tls {
            crate::tls::write(&files)?;
        }
        let commands = Commands::new(kit, &files, &ports);
        let mut epmd = commands.epmd()?;
        watcher.tell(&[epmd.id()])?;
        epmd.go()?;
        let mut broker = Broker { commands, files, login, ports, node: None, epmd, watcher };
        broker.boot()?;
        Ok(broker)
    }

    /// Where it is: `amqp://user:password@127.0.0.1:port/%2f`.
    pub fn uri(&self) -> String {
        let Login { user, password } = &self.login;
        format!("amqp://{user}:{password}@{}/%2f", self.address())
    }

    /// The same with TLS, if it has that: `amqps://user:password@localhost:port/%2f`.
    pub fn tls_uri(&self) -> Option<String> {
        let Login { user, password } = &self.login;
        let port = self.ports.tls?;
        Some(format!("amqps://{user}:{password}@localhost:{port}/%2f"))
    }

    /// The certificate, in PEM, of the authority that signed the broker's, if it has TLS.
    pub fn ca(&self) -> Option<PathBuf> {
        self.ports.tls.map(|_| self.files.at("ca.pem"))
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.ports.amqp_address()
    }

    /// Where it listens for TLS, if it does.
    pub fn tls_address(&self) -> Option<SocketAddr> {
        self.ports.tls_address()
    }

    /// The URL of its management API with the user's name and password, if it has the plugin:
    /// `http://user:password@127.0.0.1:port`.
    pub fn management_url(&self) -> Option<String> {
        let Login { user, password } = &self.login;
        self.management_address().map(|address| format!("http://{user}:{password}@{address}"))
    }

    /// The address of its management API, if it has the plugin.
    pub fn management_address(&self) -> Option<SocketAddr> {
        self.ports.management_address()
    }

    /// The user that was made for it, who may do everything.
    pub fn user(&self) -> &str {
        &self.login.user
    }

    /// That user's password.
    pub fn password(&self) -> &str {
        &self.login.password
    }

    /// Its folder: what it keeps, and `log/broker.log`.
    pub fn folder(&self) -> &Path {
        self.files.folder()
    }

    /// The number of its process while it runs: Erlang's machine itself, to be measured.
    pub fn id(&self) -> Option<u32> {
        self.node.as_ref().map(Process::id)
    }

    /// Whether it answers the first bytes of AMQP now.
    pub fn answers(&self) -> bool {
        speaks_amqp(self.address()).is_ok()
    }

    /// Kills it with the signal that it cannot see. Nothing is left of the process after this; what it had written
    /// is there, as the system does not go down with it.
    pub fn kill(&mut self) {
        if let Some(node) = self.node.take() {
            node.signal(Signal::KILL);
            self.bury(node);
        }
    }

    /// Stops it in an orderly way, and waits for that; kills it where it does not stop.
    pub fn stop(&mut self) {
        if let Some(mut node) = self.node.take() {
            node.signal(Signal::CONT);
            node.signal(Signal::TERM);
            if !node.ends(PATIENCE) {
                node.signal(Signal::KILL);
            }
            self.bury(node);
        }
    }

    /// Starts it again where it was, with all it had kept; one that still runs is stopped first. Returns when its
    /// queues are recovered and it accepts connections.
    pub fn restart(&mut self) -> Result<(), Error> {
        self.stop();
        self.boot()
    }

    /// Stops it from doing anything, heartbeats included, while its connections stay open.
    pub fn pause(&self) {
        if let Some(node) = &self.node {
            node.signal(Signal::STOP);
        }
    }

    /// Lets it go on.
    pub fn resume(&self) {
        if let Some(node) = &self.node {
            node.signal(Signal::CONT);
        }
    }

    /// Runs `rabbitmqctl -q` with these words on it, and returns what that says. Takes a second: an Erlang is
    /// started for it.
    pub fn ctl<W: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = W>) -> Result<String, Error> {
        self.commands.ctl(words)
    }

    fn boot(&mut self) -> Result<(), Error> {
        let mut node = self.commands.node()?;
        let watched = self.watcher.tell(&[self.epmd.id(), node.id()]).and_then(|()| node.go());
        // From here on it is ended with us.
        let node = self.node.insert(node);
        watched?;
        let why = match node.says(STARTED, PATIENCE) {
            Ok(()) => match speaks_amqp(self.ports.amqp_address()) {
                Ok(()) if !self.epmd.ends(Duration::ZERO) => return Ok(()),
                Ok(()) => EPMD_ENDED.to_owned(),
                Err(error) => format!("it says that it did, and its port says: {error}"),
            },
            Err(_) if self.epmd.ends(Duration::ZERO) => EPMD_ENDED.to_owned(),
            Err(RecvTimeoutError::Disconnected) => "it ended".to_owned(),
            Err(RecvTimeoutError::Timeout) => format!("it kept silent for {} s", PATIENCE.as_secs()),
        };
        let said = [self.files.tail("log/broker.log", 30), node.last_words(), self.epmd.last_words()];
        self.kill();
        Err(Error::NotStarted { why, log: said.join("\n") })
    }

    /// Removes a process from the watcher's list before its number can be given to another process.
    fn bury(&mut self, mut node: Process) {
        // This fails only if the watcher has ended, and then it signals no process.
        let _ = self.watcher.tell(&[self.epmd.id()]);
        node.reap();
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        self.kill();
        self.epmd.signal(Signal::KILL);
        let _ = self.watcher.tell(&[]);
        self.epmd.reap();
        // The watcher, dropped after this, deletes the folder.
    }
}

/// Whether another start with other ports may do.
fn is_about_a_port(fault: &Error) -> bool {
    let words = ["eaddrinuse", "dist_port_already_used", EPMD_ENDED];
    matches!(fault, Error::NotStarted { why, log }
        if words.iter().any(|words| why.contains(words) || log.contains(words)))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_port_that_was_taken_meanwhile_is_replaced() {
        let taken = |port: u16| TcpListener::bind(("127.0.0.1", port)).unwrap();
        let mut holders = Vec::new();
        let mut attempts = 0;
        let ports = || {
            let ports = Ports::free(&Settings::new())?;
            attempts += 1;
            match attempts {
                1 => holders.push(taken(ports.amqp)),
                2 => holders.push(taken(ports.node)),
                3 => holders.push(taken(ports.epmd)),
                _ => {}
            }
            Ok(ports)
        };
        let broker = Broker::on(&Settings::new(), ports).unwrap_or_else(|fault| panic!("{fault}"));
        assert!(broker.answers());
        assert_eq!(attempts, 4);
    }
}
