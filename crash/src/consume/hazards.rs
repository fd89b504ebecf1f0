//! Faults of a round besides kills: cut connections, failing sinks, a full disk, a broker with a short acknowledgement
//! timeout.

use std::path::{Path, PathBuf};

use gristmill_broker::{Broker, Proxy};

use super::messages::Action;
use super::plan::{CONSUMER_TIMEOUT, Plan};
use super::results::{output_dir, output_path};
use crate::cli::Cli;
use crate::disk::SmallDisk;
use crate::sqlite::Database;
use crate::{Error, ErrorContext};

/// Set-up of the hazards of a round, undone after it.
pub(crate) struct Hazards {
    /// Proxy between consumers and broker, if connections are cut.
    pub(crate) proxy: Option<Proxy>,
    /// Disk that consumers write to, if it is filled.
    pub(crate) disk: Option<SmallDisk>,
    short_ack_timeout: bool,
    /// Whether consumers cannot connect at times.
    pub(crate) unreachable: bool,
}

impl Hazards {
    pub(crate) fn set_up(plan: &Plan, cli: &Cli, folder: &Path, broker: &Broker) -> Result<Self, Error> {
        let proxy = plan.cuts_connections().then(|| Proxy::to(broker.address())).transpose();
        let disk = plan.has_full_disk().then(|| SmallDisk::mount(&output_dir(folder))).transpose()?;
        if disk.is_some() {
            cli.chown(&output_dir(folder))?;
        }
        if plan.has_slow_handlers() {
            // The broker checks every channel once per tick. It reads both settings when a channel is opened.
            set_broker_env(broker, "consumer_timeout", &CONSUMER_TIMEOUT.as_millis().to_string())?;
            set_broker_env(broker, "channel_tick_interval", "300")?;
        }
        if plan.max_length.is_some() {
            // A full queue refuses messages that return from a retry queue, and the broker tries again after 3 minutes.
            set_broker_env(broker, "dead_letter_worker_publisher_confirm_timeout", "1000")?;
        }
        Ok(Hazards {
            proxy: proxy.context("cannot open a port")?,
            disk,
            short_ack_timeout: plan.has_slow_handlers(),
            unreachable: false,
        })
    }

    /// Returns the URI that consumers connect to.
    pub(crate) fn uri(&self, broker: &Broker) -> String {
        self.proxy.as_ref().map_or_else(|| broker.uri(), |proxy| proxy.uri(&broker.uri()))
    }

    /// Restores the broker's settings. Copies the files of the small disk if the round had violations.
    pub(crate) fn end(self, broker: &Broker, folder: &Path, passed: bool) -> Result<(), Error> {
        if self.short_ack_timeout {
            set_broker_env(broker, "consumer_timeout", "1800000")?;
            set_broker_env(broker, "channel_tick_interval", "60000")?;
        }
        match &self.disk {
            Some(disk) if !passed => {
                disk.copy_files_to(&folder.join("rescued")).context("cannot copy the files of the small disk")
            }
            _ => Ok(()),
        }
    }
}

fn set_broker_env(broker: &Broker, name: &str, value: &str) -> Result<(), Error> {
    let call = format!("application:set_env(rabbit, {name}, {value}).");
    broker.ctl(["eval", &call]).map(drop).context("cannot change a setting of the broker")
}

/// A sink that fails until [`FailingSink::end`].
pub(crate) enum FailingSink {
    /// A database that another connection has locked.
    Locked(Database),
    /// A command that fails while this file exists.
    Unavailable(PathBuf),
}

/// Makes the sink of the consumers fail. Returns `None` if it does not exist yet.
pub(crate) fn fail_sink(action: Action, folder: &Path) -> Result<Option<FailingSink>, Error> {
    let output_path = output_path(action, folder);
    if action == Action::Exec {
        let flag = output_path.with_extension("unavailable");
        std::fs::write(&flag, "").context("cannot create a file")?;
        return Ok(Some(FailingSink::Unavailable(flag)));
    }
    if !output_path.exists() {
        return Ok(None);
    }
    let sink = Database::open_copy(&output_path)?;
    sink.0.busy_timeout(std::time::Duration::from_secs(5)).context("cannot set a timeout")?;
    sink.0.execute_batch("BEGIN IMMEDIATE").context("cannot lock a sink")?;
    Ok(Some(FailingSink::Locked(sink)))
}

impl FailingSink {
    pub(crate) fn end(self) -> Result<(), Error> {
        match self {
            FailingSink::Locked(sink) => sink.0.execute_batch("ROLLBACK").context("cannot unlock a sink"),
            FailingSink::Unavailable(flag) => std::fs::remove_file(flag).context("cannot remove a file"),
        }
    }
}
