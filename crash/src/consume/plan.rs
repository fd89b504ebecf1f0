//! The plan of a round: random choices from its seed, and the command line that follows from them.

use std::ffi::OsString;
use std::fmt;
use std::path::Path;
use std::time::Duration;

use clap::ValueEnum;
use gristmill_check::Rng;

use super::messages::{Action, SCRIPT};
use super::results::{TARGET_NAME, output_path};
use crate::faults::Fault;
use crate::harness::Named;

/// Maximum number of attempts of a message.
pub(crate) const ATTEMPTS: u32 = 3;

/// System calls at which consumers are killed (network and disk writes), and about how many of them a thread makes.
const CALLS: [(&str, u64); 3] = [("sendto,writev", 40), ("fsync,fdatasync", 20), ("pwrite64", 200)];

/// Rounds from one kill of the broker to the next; every second cycle has one round without kills.
const KILL_CYCLE: u32 = 5;

const MAX_QUEUE_LENGTH: u32 = 40;

/// The broker's acknowledgement timeout in rounds with slow handlers, which take 5 s.
pub(crate) const CONSUMER_TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    Kill,
    Terminate,
    /// Kills the broker and restarts it after this time.
    KillBroker(Duration),
    /// Cuts the connections of all consumers this many times.
    CutConnections(u32),
    /// Makes the sink fail for this time: a locked database, or an unavailable command.
    FailSink(Duration),
    /// Fills the disk that consumers write to for this time.
    FillDisk(Duration),
}

/// Hazard of a round besides kills and stops. There are seven, so that each meets every action and a killed broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Hazard {
    None,
    ConnectionCuts,
    SinkFailure,
    /// The queue refuses messages beyond its maximum length.
    BoundedQueue,
    FullDisk,
    /// Some handlers take longer than the broker's acknowledgement timeout.
    SlowHandlers,
    CutsAndSinkFailure,
}

/// Rounds from one sink or disk failure of two minutes to the next.
const LONG_OUTAGE_CYCLE: u32 = 49;

pub(crate) struct Plan {
    pub(crate) action: Action,
    pub(crate) quorum: bool,
    pub(crate) count: u64,
    /// Percentage of bad messages.
    pub(crate) bad_percent: usize,
    /// Percentage of messages that are published before consumers start.
    pub(crate) early_percent: u64,
    /// Time over which the others are published.
    pub(crate) publish_time: Duration,
    pub(crate) consumers: usize,
    /// Maximum number of consumers that are killed at a system call.
    pub(crate) kills_at_calls: u32,
    pub(crate) events: Vec<(Duration, Event)>,
    /// Maximum length of the queue, if it is bounded.
    pub(crate) max_length: Option<u32>,
    hazard: Hazard,
    workers: u64,
    prefetch: u64,
}

impl Plan {
    /// Chooses the plan of a round. Actions and kills of the broker alternate, so that few rounds cover all of them.
    pub(crate) fn new(round: u32, strace: bool, rng: &mut Rng) -> Self {
        let (hazards, actions) = (Hazard::value_variants(), Action::value_variants());
        let hazard = hazards[round as usize % hazards.len()];
        let action = match hazard {
            // Only commands can be slow.
            Hazard::SlowHandlers => Action::Exec,
            _ => actions[(round as usize - 1) % actions.len()],
        };
        let (kills_broker, without_kills) = (round % KILL_CYCLE == 4, round % (2 * KILL_CYCLE) == 2);
        let count = match action {
            Action::Exec => rng.u64(60..250),
            _ => rng.u64(300..4_000),
        };
        let prefetch = [0, 0, 1, 30][rng.usize(..4)];
        // With a prefetch of 1, each message waits for its own commit.
        let count = if prefetch == 1 && action != Action::Exec { count / 4 } else { count };
        let publish_time = rng.millis(100..1_500);
        let max = u64::try_from(publish_time.as_millis()).unwrap_or(1_000) / 2 + 200;
        let mut events = Vec::new();
        for _ in 0..rng.u64(1..5) {
            let kills = !without_kills && rng.percent(75);
            events.push((rng.millis(0..max), if kills { Event::Kill } else { Event::Terminate }));
        }
        if kills_broker {
            let at = rng.usize(..events.len() + 1);
            events.insert(at, (rng.millis(0..max), Event::KillBroker(rng.millis(0..800))));
        }
        let outage = if round.is_multiple_of(LONG_OUTAGE_CYCLE) { 120_000 } else { rng.u64(1_000..8_000) };
        let outage = Duration::from_millis(outage);
        let cuts = |cuts| (Duration::from_millis(max / 4), Event::CutConnections(cuts));
        let hazard_events = match hazard {
            Hazard::ConnectionCuts => vec![cuts(17)],
            Hazard::SinkFailure => vec![(Duration::ZERO, Event::FailSink(outage))],
            Hazard::CutsAndSinkFailure => vec![cuts(8), (Duration::ZERO, Event::FailSink(outage))],
            Hazard::FullDisk => vec![(Duration::ZERO, Event::FillDisk(outage))],
            Hazard::None | Hazard::BoundedQueue | Hazard::SlowHandlers => Vec::new(),
        };
        // Publishing continues for as long as a hazard lasts.
        let publish_time = if hazard_events.is_empty() { publish_time } else { publish_time + Duration::from_secs(3) };
        if hazard == Hazard::SlowHandlers {
            // Without kills, a message that is done twice is a violation.
            events.clear();
        }
        events.splice(0..0, hazard_events);
        let slow = hazard == Hazard::SlowHandlers;
        Plan {
            action,
            quorum: rng.percent(60),
            count,
            bad_percent: [0, 2, 10][rng.usize(..3)],
            early_percent: [0, 50, 100][rng.usize(..3)],
            publish_time,
            // A second process would run a message that the broker redelivers while the first still runs it.
            consumers: if slow { 1 } else { 1 + rng.usize(..3) },
            // A consumer that starts while the disk is full cannot open its database.
            kills_at_calls: match strace && !without_kills && !slow && hazard != Hazard::FullDisk {
                true => [0, 1, 2, 2][rng.usize(..4)],
                false => 0,
            },
            max_length: (hazard == Hazard::BoundedQueue).then_some(MAX_QUEUE_LENGTH),
            hazard,
            events,
            workers: match action {
                Action::Exec => rng.u64(1..7),
                _ => [0, 0, 1, 20][rng.usize(..4)],
            },
            prefetch,
        }
    }

    pub(crate) fn kills_broker(&self) -> bool {
        self.events.iter().any(|(_, event)| matches!(event, Event::KillBroker(_)))
    }

    pub(crate) fn cuts_connections(&self) -> bool {
        matches!(self.hazard, Hazard::ConnectionCuts | Hazard::CutsAndSinkFailure)
    }

    pub(crate) fn has_full_disk(&self) -> bool {
        self.hazard == Hazard::FullDisk
    }

    pub(crate) fn has_slow_handlers(&self) -> bool {
        self.hazard == Hazard::SlowHandlers
    }

    /// Chooses the system call at which a consumer is killed.
    pub(crate) fn kill_at_call(&self, rng: &mut Rng) -> Fault {
        let (name, max) = *rng.pick(if self.action == Action::Exec { &CALLS[..1] } else { &CALLS[..] });
        Fault::KillAtCall(name, rng.u64(1..=max))
    }

    /// Returns the arguments of `gristmill`, with additional options.
    pub(crate) fn args(&self, queue: &str, extra: &[&str], folder: &Path) -> Vec<OsString> {
        let kind = if self.quorum { "quorum" } else { "classic" };
        let (workers, prefetch, attempts) = (self.workers.to_string(), self.prefetch.to_string(), ATTEMPTS.to_string());
        let mut args: Vec<OsString> = ["consume", queue].iter().chain(extra).map(OsString::from).collect();
        // A bounded queue was declared by the harness.
        if self.max_length.is_none() {
            args.extend(["--declare", kind].map(OsString::from));
        }
        args.extend(["--attempts", &attempts, "--retry-delay", "125ms"].map(OsString::from));
        args.extend(["--workers", &workers, "--prefetch", &prefetch].map(OsString::from));
        // Enough time to stop on a slow machine.
        args.extend(["--shutdown", "60s"].map(OsString::from));
        let output_path = output_path(self.action, folder).into_os_string();
        args.extend(match self.action {
            Action::Into => vec!["--into".into(), output_path, "--table".into(), TARGET_NAME.into()],
            Action::Enqueue => vec!["--enqueue".into(), TARGET_NAME.into()],
            Action::Exec => vec!["--exec".into(), "sh".into(), "-c".into(), SCRIPT.into(), output_path],
        });
        args
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.quorum { "quorum" } else { "classic" };
        write!(f, "{} from {kind}, {} messages, {}% bad", self.action.name(), self.count, self.bad_percent)?;
        write!(f, ", {} consumers", self.consumers)?;
        match self.hazard {
            Hazard::BoundedQueue => write!(f, ", at most {MAX_QUEUE_LENGTH} in the queue")?,
            Hazard::SlowHandlers => write!(f, ", acknowledgements within {CONSUMER_TIMEOUT:?}")?,
            _ => {}
        }
        for (name, value) in [("workers", self.workers), ("prefetch", self.prefetch)] {
            if value != 0 {
                write!(f, ", {name} {value}")?;
            }
        }
        Ok(())
    }
}
