//! Faults of one command: kills, Ctrl-C, and system calls that fail or kill.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use gristmill_check::Rng;

/// Fault that is injected into a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    KillAfter(Duration),
    /// Kill at the n-th system call of one of these names.
    KillAtCall(&'static str, u64),
    /// The n-th system call of one of these names fails with EIO.
    FailCall(&'static str, u64),
    /// SIGINT (Ctrl-C) after this time.
    InterruptAfter(Duration),
}

impl Fault {
    /// Returns the command that runs `program` with this fault, if it is one at a system call.
    pub(crate) fn command(fault: Option<Fault>, program: &Path) -> Command {
        match fault {
            Some(Fault::KillAtCall(name, number)) => strace(name, &format!("signal=KILL:when={number}"), program),
            Some(Fault::FailCall(name, number)) => strace(name, &format!("error=EIO:when={number}"), program),
            _ => Command::new(program),
        }
    }
}

/// Returns a command that runs `program` with an injection into the system calls of these names.
fn strace(name: &str, injection: &str, program: &Path) -> Command {
    let mut strace = Command::new("strace");
    strace.args(["-f", "-qq", "-o", "/dev/null", "-e", &format!("trace={name}")]);
    strace.args(["-e", &format!("inject={name}:{injection}")]).arg(program);
    strace
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::KillAfter(time) => write!(f, "kill after {} ms", time.as_millis()),
            Fault::KillAtCall(name, number) => write!(f, "kill at {name} {number}"),
            Fault::FailCall(name, number) => write!(f, "failure of {name} {number}"),
            Fault::InterruptAfter(time) => write!(f, "Ctrl-C after {} ms", time.as_millis()),
        }
    }
}

/// Estimates of how many system calls a kind of command makes and how long it takes, so that faults come before its
/// end. They shrink after each fault that came too late.
pub(crate) struct Estimates<K> {
    calls: BTreeMap<(K, &'static str), u64>,
    durations: BTreeMap<K, Duration>,
}

impl<K: Ord + Copy> Estimates<K> {
    pub(crate) fn new() -> Self {
        Estimates { calls: BTreeMap::new(), durations: BTreeMap::new() }
    }

    /// Chooses the number of a call; `first` is the first estimate.
    pub(crate) fn call(&mut self, kind: K, (name, first): (&'static str, u64), rng: &mut Rng) -> u64 {
        rng.u64(1..=*self.calls.entry((kind, name)).or_insert(first))
    }

    /// Returns the duration; `first` is the first estimate.
    pub(crate) fn duration(&mut self, kind: K, first: Duration) -> Duration {
        *self.durations.entry(kind).or_insert(first)
    }

    /// Adjusts the estimates after a fault that came too late.
    pub(crate) fn too_late(&mut self, kind: K, fault: Fault) {
        match fault {
            Fault::KillAtCall(name, number) | Fault::FailCall(name, number) => {
                self.calls.insert((kind, name), (number * 4 / 5).max(5));
            }
            Fault::KillAfter(time) | Fault::InterruptAfter(time) => {
                self.durations.entry(kind).and_modify(|duration| *duration = time.min(*duration));
            }
        }
    }
}
