//! All that is known of a run when it is over, from the database and from what was written down beside it.
//!
//! Owns the reading. What it means is `judge`'s affair.

use std::collections::HashMap;
use std::path::Path;

use crate::ledger::Effects;
use crate::site::Site;
use crate::witness::{Change, Task, Witness};
use crate::{OrTrouble, Trouble};

/// A task that somebody was told is safe.
#[derive(Clone, Debug)]
pub(crate) struct Ack {
    pub(crate) id: i64,
    pub(crate) kind: String,
    pub(crate) key: String,
}

/// What a handler wrote down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Note {
    /// A worker began to run a task.
    Start(i64, String),
    /// A run of a task is about to look for its checkpoint; the look has a name of its own.
    Looks(i64, String),
    /// That look found this step.
    Resumed(i64, String, u32),
    /// A run of a task was told that this step is safe.
    Saved(i64, u32),
}

/// The run, as it is judged.
#[derive(Clone, Debug, Default)]
pub(crate) struct Record {
    pub(crate) acks: Vec<Ack>,
    pub(crate) notes: Vec<Note>,
    pub(crate) effects: Vec<(String, i64)>,
    pub(crate) tasks: Vec<Task>,
    /// Dead letters: of which task, and why.
    pub(crate) letters: Vec<(String, String)>,
    pub(crate) history: Vec<Change>,
    /// Tasks that have checkpoints.
    pub(crate) checkpointed: Vec<i64>,
    pub(crate) damage: Vec<String>,
    /// Who was killed, or killed itself, and when.
    pub(crate) deaths: HashMap<String, f64>,
    /// When somebody was stopped, from and until, and a while longer.
    pub(crate) stops: Vec<(f64, f64)>,
    /// Whether the disk was bad on purpose: attempts may then have failed for its sake.
    pub(crate) bad_disk: bool,
}

impl Record {
    pub(crate) fn read(site: &Site, bad_disk: bool) -> Result<Self, Trouble> {
        let witness = Witness::open(&site.database())?;
        let effects = Effects::open(&site.effects()).and_then(|all| all.all());
        Ok(Record {
            acks: lines(&site.acks(), ack)?,
            notes: lines(&site.runs(), note)?,
            effects: effects.or_trouble("cannot read the effects")?,
            tasks: witness.tasks()?,
            letters: witness.letters()?,
            history: witness.history()?,
            checkpointed: witness.checkpointed()?,
            damage: witness.damage()?,
            deaths: HashMap::new(),
            stops: Vec::new(),
            bad_disk,
        })
    }
}

/// The lines of a log. One that cannot be read would hide something: it is trouble, not a finding.
fn lines<T>(path: &Path, read: fn(&str) -> Option<T>) -> Result<Vec<T>, Trouble> {
    let text = std::fs::read_to_string(path).or_trouble(format!("cannot read {}", path.display()))?;
    let line = |line: &str| {
        read(line).ok_or_else(|| Trouble::System(format!("{} has a line {line:?}", path.display())))
    };
    text.lines().map(line).collect()
}

fn ack(line: &str) -> Option<Ack> {
    let mut words = line.split(' ');
    Some(Ack {
        id: words.next()?.parse().ok()?,
        kind: words.next()?.to_owned(),
        key: words.next()?.to_owned(),
    })
}

fn note(line: &str) -> Option<Note> {
    let mut words = line.split(' ');
    let (what, task, more) = (words.next()?, words.next()?.parse().ok()?, words.next()?);
    match what {
        "start" => Some(Note::Start(task, more.to_owned())),
        "looks" => Some(Note::Looks(task, more.to_owned())),
        "resumed" => Some(Note::Resumed(task, more.to_owned(), words.next()?.parse().ok()?)),
        "saved" => Some(Note::Saved(task, more.parse().ok()?)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_are_read_or_refused() {
        assert_eq!(note("start 7 w1"), Some(Note::Start(7, "w1".to_owned())));
        assert_eq!(note("saved 7 3"), Some(Note::Saved(7, 3)));
        assert_eq!(note("resumed 7 w1/2 3"), Some(Note::Resumed(7, "w1/2".to_owned(), 3)));
        assert_eq!(note("saved 7 thr"), None);
        assert_eq!(note("sta"), None);
    }
}
