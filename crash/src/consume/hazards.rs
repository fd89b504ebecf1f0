//! What happens to a round beside kills: connections that are cut, sinks that fail, a disk that is full, a broker with a
//! short timeout for acknowledgements.

use std::path::{Path, PathBuf};

use gristmill_broker::{Broker, Proxy};
use rusqlite::Connection;

use super::books::{disk, place};
use super::mail::Action;
use super::plan::{CONSUMER_TIMEOUT, Plan};
use crate::disk::SmallDisk;
use crate::mill::Mill;
use crate::{OrTrouble, Trouble};

/// What a round needs for its hazards, and what is put back after it.
pub(crate) struct Hazards {
    proxy: Option<Proxy>,
    disk: Option<SmallDisk>,
    impatient: bool,
    /// Connections are being cut.
    pub(crate) storming: bool,
}

impl Hazards {
    pub(crate) fn set_up(plan: &Plan, mill: &Mill, folder: &Path, broker: &Broker) -> Result<Self, Trouble> {
        let proxy = plan.has_storm().then(|| Proxy::to(broker.address())).transpose();
        let small = plan.has_full_disk().then(|| SmallDisk::mount(&disk(folder))).transpose()?;
        if small.is_some() {
            mill.give(&disk(folder))?;
        }
        if plan.is_slow() {
            // The broker looks at every channel once in a tick. Both are read when a channel is opened.
            set(broker, "consumer_timeout", &CONSUMER_TIMEOUT.as_millis().to_string())?;
            set(broker, "channel_tick_interval", "300")?;
        }
        Ok(Hazards {
            proxy: proxy.or_trouble("cannot open a port")?,
            disk: small,
            impatient: plan.is_slow(),
            storming: false,
        })
    }

    /// Where consumers connect to.
    pub(crate) fn uri(&self, broker: &Broker) -> String {
        self.proxy.as_ref().map_or_else(|| broker.uri(), |proxy| proxy.uri(&broker.uri()))
    }

    pub(crate) fn cut(&self) {
        self.proxy.iter().for_each(Proxy::cut);
    }

    pub(crate) fn mend(&self) {
        self.proxy.iter().for_each(Proxy::restore);
    }

    pub(crate) fn fill(&self) -> Result<(), Trouble> {
        self.disk.iter().try_for_each(SmallDisk::fill)
    }

    pub(crate) fn free(&self) -> Result<(), Trouble> {
        self.disk.iter().try_for_each(SmallDisk::free)
    }

    /// Puts back what was changed. What was on the small disk is kept where something was found.
    pub(crate) fn end(self, broker: &Broker, folder: &Path, well: bool) -> Result<(), Trouble> {
        if self.impatient {
            set(broker, "consumer_timeout", "1800000")?;
            set(broker, "channel_tick_interval", "60000")?;
        }
        match &self.disk {
            Some(disk) if !well => {
                disk.rescue(&folder.join("rescued")).or_trouble("cannot copy files of a disk")
            }
            _ => Ok(()),
        }
    }
}

fn set(broker: &Broker, name: &str, value: &str) -> Result<(), Trouble> {
    let call = format!("application:set_env(rabbit, {name}, {value}).");
    broker.ctl(["eval", &call]).map(drop).or_trouble("cannot change a setting of the broker")
}

/// A sink that fails until this ends.
pub(crate) enum FailingSink {
    /// A database that another connection has locked.
    Locked(Connection),
    /// The command finds this file.
    Unavailable(PathBuf),
}

/// Makes what consumers write to fail. Nothing, where it is not there yet.
pub(crate) fn fail_sink(action: Action, folder: &Path) -> Result<Option<FailingSink>, Trouble> {
    let place = place(action, folder);
    if action == Action::Exec {
        let flag = place.with_extension("unavailable");
        std::fs::write(&flag, "").or_trouble("cannot make a file")?;
        return Ok(Some(FailingSink::Unavailable(flag)));
    }
    if !place.exists() {
        return Ok(None);
    }
    let conn = Connection::open(&place).or_trouble("cannot open a sink")?;
    conn.busy_timeout(std::time::Duration::from_secs(5)).or_trouble("cannot set a timeout")?;
    conn.execute_batch("BEGIN IMMEDIATE").or_trouble("cannot lock a sink")?;
    Ok(Some(FailingSink::Locked(conn)))
}

impl FailingSink {
    pub(crate) fn end(self) -> Result<(), Trouble> {
        match self {
            FailingSink::Locked(conn) => conn.execute_batch("ROLLBACK").or_trouble("cannot unlock a sink"),
            FailingSink::Unavailable(flag) => std::fs::remove_file(flag).or_trouble("cannot remove a file"),
        }
    }
}
