//! What the tasks of a run are: one kind for each way a task can go.
//!
//! Owns what is expected of each kind. How a kind is done stands in `worker`, who asks for it in `customer`, and
//! whether it was done in `judge`.

use serde::{Deserialize, Serialize};

/// The steps of [`Errand::Steps`].
pub(crate) const STEPS: u32 = 4;

/// The kinds of tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Errand {
    /// Done at once.
    Swift,
    /// Fails twice in a passing way, then succeeds.
    Flaky,
    /// Fails for good.
    Doomed,
    /// Goes step by step, with checkpoints; the first attempt fails in the middle.
    Steps,
    /// Enqueues a swift one that follows it.
    Parent,
    /// Takes about a lease; stops when it is told to.
    Slow,
    /// Takes about a lease; hears nothing, so its verdict comes late when its process was stopped.
    Stubborn,
    /// Kills its own process.
    Poison,
}

impl Errand {
    pub(crate) const ALL: [Errand; 8] = [
        Errand::Swift,
        Errand::Flaky,
        Errand::Doomed,
        Errand::Steps,
        Errand::Parent,
        Errand::Slow,
        Errand::Stubborn,
        Errand::Poison,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Errand::Swift => "swift",
            Errand::Flaky => "flaky",
            Errand::Doomed => "doomed",
            Errand::Steps => "steps",
            Errand::Parent => "parent",
            Errand::Slow => "slow",
            Errand::Stubborn => "stubborn",
            Errand::Poison => "poison",
        }
    }

    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|errand| errand.name() == name)
    }

    /// Whether it is done in the end, if its workers live long enough.
    pub(crate) fn succeeds(self) -> bool {
        !matches!(self, Errand::Doomed | Errand::Poison)
    }

    /// The effects that a task of this kind with this key has when it is done, each once.
    pub(crate) fn effects(self, key: &str) -> Vec<String> {
        match self {
            Errand::Doomed | Errand::Poison => Vec::new(),
            Errand::Steps => (1..=STEPS).map(|step| step_key(key, step)).collect(),
            _ => vec![key.to_owned()],
        }
    }
}

pub(crate) fn step_key(key: &str, step: u32) -> String {
    format!("{key}/{step}")
}

/// The payload of a task.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Order {
    /// What its effect is keyed by: the same however often it is enqueued or run.
    pub(crate) key: String,
    /// How long a slow one takes.
    pub(crate) millis: u64,
    /// Ballast, so that a small disk fills up.
    pub(crate) padding: String,
}

/// What a completed task keeps: who says that it is done.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Signature {
    pub(crate) by: String,
}
