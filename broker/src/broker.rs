//! A RabbitMQ broker, from its start to the deletion of its folder.
//!
//! Owns the order in which processes are started, retried and ended. Command lines are in `command`, processes in
//! `process`.

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
use crate::ports::{self, Ports};
use crate::process::Process;
use crate::reaper::Reaper;
use crate::settings::Settings;

/// Timeout of a start or stop, which takes seconds, or minutes on a busy machine.
const START_TIMEOUT: Duration = Duration::from_secs(120);

/// Time within which a broker answers a protocol header.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum number of starts, each with other ports.
const MAX_ATTEMPTS: usize = 5;

/// Last line that a node prints when it starts, whatever its log level is. Its queues are recovered and its listeners
/// open by then.
const STARTED_LINE: &str = "Starting broker... completed";

/// Reason of a failed start. Epmd exits without a signal only if its port is in use.
const EPMD_EXITED: &str = "epmd exited, because its port is in use";

/// A RabbitMQ broker on 127.0.0.1 with its own folder, ports, user and password.
///
/// Dropping it kills it and deletes the folder. If it is not dropped (a static of a test, a killed process), both
/// happen when this process ends.
#[derive(Debug)]
pub struct Broker {
    commands: Commands,
    files: Files,
    login: Login,
    ports: Ports,
    node: Option<Process>,
    epmd: Process,
    reaper: Reaper,
}

impl Broker {
    /// Starts a broker with the defaults. Returns when it accepts connections.
    pub fn start() -> Result<Broker, Error> {
        Broker::start_with(&Settings::new())
    }

    /// Starts a broker. Returns when it accepts connections.
    pub fn start_with(settings: &Settings) -> Result<Broker, Error> {
        Broker::start_on(settings, || Ports::free(settings))
    }

    /// Starts a broker, with other ports if another process has taken one after it was found free.
    fn start_on(settings: &Settings, mut ports: impl FnMut() -> Result<Ports, Error>) -> Result<Broker, Error> {
        let installation = Installation::find()?;
        let mut attempt = 1;
        loop {
            match Broker::attempt(&installation, settings, ports()?) {
                Err(error) if attempt < MAX_ATTEMPTS && is_port_conflict(&error) => attempt += 1,
                result => return result,
            }
        }
    }

    fn attempt(installation: &Installation, settings: &Settings, ports: Ports) -> Result<Broker, Error> {
        let login = Login::new()?;
        let files = Files::new()?;
        let mut reaper = Reaper::start(&files.folder)?;
        let mut applications = installation.applications();
        if settings.management {
            applications.extend(installation.management_plugins()?);
        }
        files.link(&applications)?;
        files.write(settings, &login, &ports)?;
        #[cfg(feature = "tls")]
        if settings.tls {
            crate::tls::write(&files)?;
        }
        let commands = Commands::new(installation, &files, &ports);
        let mut epmd = commands.epmd()?;
        reaper.set_processes(&[epmd.id()])?;
        epmd.release()?;
        let mut broker = Broker { commands, files, login, ports, node: None, epmd, reaper };
        broker.start_node()?;
        Ok(broker)
    }

    /// URI of the broker: `amqp://user:password@127.0.0.1:port/%2f`.
    pub fn uri(&self) -> String {
        let Login { user, password } = &self.login;
        format!("amqp://{user}:{password}@{}/%2f", self.address())
    }

    /// URI of the TLS listener, if there is one: `amqps://user:password@localhost:port/%2f`.
    pub fn tls_uri(&self) -> Option<String> {
        let Login { user, password } = &self.login;
        let port = self.ports.tls?;
        Some(format!("amqps://{user}:{password}@localhost:{port}/%2f"))
    }

    /// Path of the certificate, in PEM, of the authority that signed the broker's, if it has TLS.
    pub fn ca(&self) -> Option<PathBuf> {
        self.ports.tls.map(|_| self.files.at("ca.pem"))
    }

    /// Address of the AMQP listener.
    pub fn address(&self) -> SocketAddr {
        ports::at(self.ports.amqp)
    }

    /// Address of the TLS listener, if there is one.
    pub fn tls_address(&self) -> Option<SocketAddr> {
        self.ports.tls.map(ports::at)
    }

    /// URL of the management API with user and password, if the plugin is enabled:
    /// `http://user:password@127.0.0.1:port`.
    pub fn management_url(&self) -> Option<String> {
        let Login { user, password } = &self.login;
        self.management_address().map(|address| format!("http://{user}:{password}@{address}"))
    }

    /// Address of the management API, if the plugin is enabled.
    pub fn management_address(&self) -> Option<SocketAddr> {
        self.ports.management.map(ports::at)
    }

    /// Name of the broker's user, who has all permissions.
    pub fn user(&self) -> &str {
        &self.login.user
    }

    /// Password of that user.
    pub fn password(&self) -> &str {
        &self.login.password
    }

    /// Folder of the broker, with its data and `log/broker.log`.
    pub fn folder(&self) -> &Path {
        &self.files.folder
    }

    /// Id of the broker's process, the Erlang VM, while it runs.
    pub fn id(&self) -> Option<u32> {
        self.node.as_ref().map(Process::id)
    }

    /// Whether the broker answers an AMQP protocol header now.
    pub fn answers(&self) -> bool {
        speaks_amqp(self.address(), ANSWER_TIMEOUT).is_ok()
    }

    /// Kills the broker with SIGKILL and waits until it has ended. Written data is kept, because the operating system
    /// continues to run.
    pub fn kill(&mut self) {
        if let Some(node) = self.node.take() {
            node.signal(Signal::KILL);
            self.reap(node);
        }
    }

    /// Stops the broker with SIGTERM and waits until it has ended; kills it after 120 s.
    pub fn stop(&mut self) {
        if let Some(mut node) = self.node.take() {
            node.signal(Signal::CONT);
            node.signal(Signal::TERM);
            if !node.wait_exit(START_TIMEOUT) {
                node.signal(Signal::KILL);
            }
            self.reap(node);
        }
    }

    /// Starts the broker again with its ports and data; one that still runs is stopped first. Returns when its queues
    /// are recovered and it accepts connections.
    pub fn restart(&mut self) -> Result<(), Error> {
        self.stop();
        self.start_node()
    }

    /// Suspends the broker, heartbeats included, while its connections stay open.
    pub fn pause(&self) {
        self.node.iter().for_each(|node| node.signal(Signal::STOP));
    }

    /// Continues a paused broker.
    pub fn resume(&self) {
        self.node.iter().for_each(|node| node.signal(Signal::CONT));
    }

    /// Runs `rabbitmqctl -q` with these arguments and returns its output. Takes about a second, because it starts an
    /// Erlang VM.
    pub fn ctl<W: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = W>) -> Result<String, Error> {
        self.commands.ctl(args)
    }

    fn start_node(&mut self) -> Result<(), Error> {
        let mut node = self.commands.node()?;
        let registered = self.reaper.set_processes(&[self.epmd.id(), node.id()]).and_then(|()| node.release());
        // From here on a drop of the broker kills it.
        let node = self.node.insert(node);
        registered?;
        let why = match node.wait_for_output(STARTED_LINE, START_TIMEOUT) {
            Ok(()) => match speaks_amqp(ports::at(self.ports.amqp), ANSWER_TIMEOUT) {
                Ok(()) if !self.epmd.wait_exit(Duration::ZERO) => return Ok(()),
                Ok(()) => EPMD_EXITED.to_owned(),
                Err(error) => format!("it has started, but does not answer on its port: {error}"),
            },
            Err(_) if self.epmd.wait_exit(Duration::ZERO) => EPMD_EXITED.to_owned(),
            Err(RecvTimeoutError::Disconnected) => "it exited".to_owned(),
            Err(RecvTimeoutError::Timeout) => {
                format!("it did not start within {} s", START_TIMEOUT.as_secs())
            }
        };
        let output = [self.files.tail("log/broker.log", 30), node.recent_output(), self.epmd.recent_output()];
        self.kill();
        Err(Error::NotStarted { why, log: output.join("\n") })
    }

    /// Removes a process from the reaper's list before its id can be reused.
    fn reap(&mut self, mut node: Process) {
        // This fails only if the reaper has ended, and then it signals no process.
        let _ = self.reaper.set_processes(&[self.epmd.id()]);
        node.reap();
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        self.kill();
        self.epmd.signal(Signal::KILL);
        let _ = self.reaper.set_processes(&[]);
        self.epmd.reap();
        // The reaper, dropped after this, deletes the folder.
    }
}

fn is_port_conflict(error: &Error) -> bool {
    let texts = ["eaddrinuse", "dist_port_already_used", EPMD_EXITED];
    matches!(error, Error::NotStarted { why, log }
        if texts.iter().any(|text| why.contains(text) || log.contains(text)))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn start_is_repeated_with_other_ports_when_one_is_taken() {
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
        let broker = Broker::start_on(&Settings::new(), ports).unwrap_or_else(|error| panic!("{error}"));
        assert!(broker.answers());
        assert_eq!(attempts, 4);
    }
}
