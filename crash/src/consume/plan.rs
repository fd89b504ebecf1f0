//! What a round is: choices that follow from its seed, and the command line that they make.

use std::ffi::OsString;
use std::fmt;
use std::path::Path;
use std::time::Duration;

use super::books::{NAME, place};
use super::mail::{Action, SCRIPT};
use crate::chance::Chance;

/// How many attempts a message has.
pub(crate) const ATTEMPTS: u32 = 3;

/// Calls at which consumers are killed: what reaches the disk, and what the broker hears; and about how many of them a
/// thread makes.
const CALLS: [(&str, u64); 3] = [("sendto,writev", 40), ("fsync,fdatasync", 20), ("pwrite64", 200)];

/// In so many rounds the broker is killed once, and once nobody is killed.
const CYCLE: u32 = 5;

/// A queue with a bound holds this many messages.
const BOUND: u32 = 40;

/// The broker's timeout for acknowledgements in rounds with slow handlers, and how long a slow handler takes.
pub(crate) const CONSUMER_TIMEOUT: Duration = Duration::from_secs(2);

/// Something that happens, after so long.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    Kill,
    Term,
    /// The broker is killed, and is gone for so long.
    Broker(Duration),
    /// The connections of all consumers are cut this many times.
    Storm(u32),
    /// What consumers write to fails for this long: a locked database, a command that is unavailable.
    Sink(Duration),
    /// The disk that consumers write to is full for this long.
    FullDisk(Duration),
}

/// What a round has beside kills and stops. Seven of them, so that each meets every action and a killed broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hazard {
    None,
    Storm,
    Sink,
    /// The queue refuses what is beyond its bound.
    Bounded,
    FullDisk,
    /// Some handlers take longer than the broker waits for an acknowledgement.
    Slow,
    StormAndSink,
}

const HAZARDS: [Hazard; 7] = [
    Hazard::None,
    Hazard::Storm,
    Hazard::Sink,
    Hazard::Bounded,
    Hazard::FullDisk,
    Hazard::Slow,
    Hazard::StormAndSink,
];

/// One round in this many has a sink that fails for minutes.
const LONG_FAILURE: u32 = 49;

pub(crate) struct Plan {
    pub(crate) action: Action,
    pub(crate) quorum: bool,
    pub(crate) count: u64,
    /// Of a hundred messages.
    pub(crate) bad: u64,
    /// Of a hundred messages: published before anybody consumes.
    pub(crate) before: u64,
    /// In which time the others are published.
    pub(crate) spread: Duration,
    pub(crate) hands: usize,
    /// How many of those that are started may be killed at a call.
    pub(crate) calls: u32,
    pub(crate) events: Vec<(Duration, Event)>,
    /// The most messages that the queue takes.
    pub(crate) bound: Option<u32>,
    hazard: Hazard,
    workers: u64,
    prefetch: u64,
}

impl Plan {
    /// The choices of a round. Which action, and whether the broker is killed, goes round, so that few rounds have all.
    pub(crate) fn new(round: u32, strace: bool, chance: &mut Chance) -> Self {
        let hazard = HAZARDS[round as usize % HAZARDS.len()];
        let action = match hazard {
            // Only commands can be slow.
            Hazard::Slow => Action::Exec,
            _ => Action::ALL[(round as usize - 1) % Action::ALL.len()],
        };
        let (broker, calm) = (round % CYCLE == 4, round % (2 * CYCLE) == 2);
        let count = match action {
            Action::Exec => chance.within(60..250),
            _ => chance.within(300..4_000),
        };
        let prefetch = [0, 0, 1, 30][chance.index(4)];
        // One at a time, each waits for its own commit.
        let count = if prefetch == 1 && action != Action::Exec { count / 4 } else { count };
        let spread = chance.millis(100..1_500);
        let most = u64::try_from(spread.as_millis()).unwrap_or(1_000) / 2 + 200;
        let mut events = Vec::new();
        for _ in 0..chance.within(1..5) {
            let kills = !calm && chance.percent(75);
            events.push((chance.millis(0..most), if kills { Event::Kill } else { Event::Term }));
        }
        if broker {
            let at = chance.index(events.len() + 1);
            events.insert(at, (chance.millis(0..most), Event::Broker(chance.millis(0..800))));
        }
        let failing = if round.is_multiple_of(LONG_FAILURE) { 120_000 } else { chance.within(1_000..8_000) };
        let failing = Duration::from_millis(failing);
        let storm = |cuts| (Duration::from_millis(most / 4), Event::Storm(cuts));
        let at_first = match hazard {
            Hazard::Storm => vec![storm(17)],
            Hazard::Sink => vec![(Duration::ZERO, Event::Sink(failing))],
            Hazard::StormAndSink => vec![storm(8), (Duration::ZERO, Event::Sink(failing))],
            Hazard::FullDisk => vec![(Duration::ZERO, Event::FullDisk(failing))],
            Hazard::None | Hazard::Bounded | Hazard::Slow => Vec::new(),
        };
        // There is something to disturb for as long as it lasts.
        let spread = if at_first.is_empty() { spread } else { spread + Duration::from_secs(3) };
        if hazard == Hazard::Slow {
            // Only kills of consumers would explain what is done twice.
            events.clear();
        }
        events.splice(0..0, at_first);
        let slow = hazard == Hazard::Slow;
        Plan {
            action,
            quorum: chance.percent(60),
            count,
            bad: [0, 2, 10][chance.index(3)],
            before: [0, 50, 100][chance.index(3)],
            spread,
            // What is sent to another process runs there as well, while the first still runs it.
            hands: if slow { 1 } else { 1 + chance.index(3) },
            // A consumer that starts while the disk is full cannot open its database.
            calls: match strace && !calm && !slow && hazard != Hazard::FullDisk {
                true => [0, 1, 2, 2][chance.index(4)],
                false => 0,
            },
            bound: (hazard == Hazard::Bounded).then_some(BOUND),
            hazard,
            events,
            workers: match action {
                Action::Exec => chance.within(1..7),
                _ => [0, 0, 1, 20][chance.index(4)],
            },
            prefetch,
        }
    }

    /// Whether the broker is killed.
    pub(crate) fn has_broker(&self) -> bool {
        self.events.iter().any(|(_, event)| matches!(event, Event::Broker(_)))
    }

    /// Whether connections of consumers are cut.
    pub(crate) fn has_storm(&self) -> bool {
        matches!(self.hazard, Hazard::Storm | Hazard::StormAndSink)
    }

    /// Whether the disk is filled.
    pub(crate) fn has_full_disk(&self) -> bool {
        self.hazard == Hazard::FullDisk
    }

    /// Whether some handlers take longer than the broker waits.
    pub(crate) fn is_slow(&self) -> bool {
        self.hazard == Hazard::Slow
    }

    /// At which call somebody is killed.
    pub(crate) fn call(&self, chance: &mut Chance) -> (&'static str, u64) {
        let calls = if self.action == Action::Exec { &CALLS[..1] } else { &CALLS[..] };
        let (name, most) = calls[chance.index(calls.len())];
        (name, chance.within(1..most + 1))
    }

    /// The command.
    pub(crate) fn words(&self, queue: &str, folder: &Path) -> Vec<OsString> {
        let kind = if self.quorum { "quorum" } else { "classic" };
        let (workers, prefetch, attempts) =
            (self.workers.to_string(), self.prefetch.to_string(), ATTEMPTS.to_string());
        let mut words: Vec<OsString> = ["consume", queue].map(OsString::from).to_vec();
        // One with a bound is there already.
        if self.bound.is_none() {
            words.extend(["--declare", kind].map(OsString::from));
        }
        words.extend(["--attempts", &attempts, "--retry-delay", "125ms"].map(OsString::from));
        words.extend(["--workers", &workers, "--prefetch", &prefetch].map(OsString::from));
        // Whoever is told to end has time enough, on whatever machine.
        words.extend(["--shutdown", "60s"].map(OsString::from));
        let place = place(self.action, folder).into_os_string();
        words.extend(match self.action {
            Action::Into => vec!["--into".into(), place, "--table".into(), NAME.into()],
            Action::Enqueue => vec!["--enqueue".into(), NAME.into()],
            Action::Exec => vec!["--exec".into(), "sh".into(), "-c".into(), SCRIPT.into(), place],
        });
        words
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.quorum { "quorum" } else { "classic" };
        write!(f, "{} from {kind}, {} messages, {}% bad", self.action.word(), self.count, self.bad)?;
        write!(f, ", {} at once", self.hands)?;
        match self.hazard {
            Hazard::Bounded => write!(f, ", at most {BOUND} in the queue")?,
            Hazard::Slow => write!(f, ", acknowledgements within {CONSUMER_TIMEOUT:?}")?,
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
