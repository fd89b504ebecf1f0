//! Reads everything that is known about a finished run, from the database and from the logs beside it.
//!
//! `checker` has the rules.

use std::collections::HashMap;
use std::path::Path;

use crate::effects::Effects;
use crate::history::{Change, HistoryReader, Task};
use crate::paths::RunPaths;
use crate::{Error, ErrorContext};

/// A task whose enqueueing was acknowledged.
#[derive(Clone, Debug)]
pub(crate) struct Ack {
    pub(crate) id: i64,
    pub(crate) kind: String,
    pub(crate) key: String,
}

/// Event that a handler logged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum HandlerEvent {
    /// A worker began to run a task.
    Start(i64, String),
    /// A run of a task is about to look up its checkpoint; each lookup has a unique name.
    LookUp(i64, String),
    /// That lookup found this step.
    Resumed(i64, String, u32),
    /// The checkpoint of this step was acknowledged.
    Saved(i64, u32),
}

/// The run, as the checker sees it.
#[derive(Clone, Debug, Default)]
pub(crate) struct RunRecord {
    pub(crate) acks: Vec<Ack>,
    pub(crate) handler_events: Vec<HandlerEvent>,
    pub(crate) effects: Vec<(String, i64)>,
    pub(crate) tasks: Vec<Task>,
    /// Task and reason of each dead letter.
    pub(crate) dead_letters: Vec<(String, String)>,
    pub(crate) changes: Vec<Change>,
    /// Tasks that have checkpoints.
    pub(crate) checkpointed: Vec<i64>,
    pub(crate) damage: Vec<String>,
    /// Processes that were killed or killed themselves, with the time of death.
    pub(crate) deaths: HashMap<String, f64>,
    /// Beginning and end of each suspension of a worker; the end includes one more lease.
    pub(crate) suspensions: Vec<(f64, f64)>,
    /// Whether disk faults were injected, so that attempts may have failed because of them.
    pub(crate) bad_disk: bool,
}

impl RunRecord {
    pub(crate) fn read(paths: &RunPaths, bad_disk: bool) -> Result<Self, Error> {
        let reader = HistoryReader::open(&paths.database())?;
        let effects = Effects::open(&paths.effects()).and_then(|effects| effects.all());
        Ok(RunRecord {
            acks: lines(&paths.acks(), parse_ack)?,
            handler_events: lines(&paths.runs(), parse_handler_event)?,
            effects: effects.context("cannot read the effects")?,
            tasks: reader.tasks()?,
            dead_letters: reader.dead_letters()?,
            changes: reader.changes()?,
            checkpointed: reader.checkpointed()?,
            damage: reader.damage()?,
            deaths: HashMap::new(),
            suspensions: Vec::new(),
            bad_disk,
        })
    }
}

/// Parses the lines of a log. An invalid line could hide a violation, so it is an error.
fn lines<T>(path: &Path, read: fn(&str) -> Option<T>) -> Result<Vec<T>, Error> {
    let text = std::fs::read_to_string(path).context(format!("cannot read {}", path.display()))?;
    let line =
        |line: &str| read(line).ok_or_else(|| Error::System(format!("{}: invalid line {line:?}", path.display())));
    text.lines().map(line).collect()
}

fn parse_ack(line: &str) -> Option<Ack> {
    let mut fields = line.split(' ');
    Some(Ack { id: fields.next()?.parse().ok()?, kind: fields.next()?.to_owned(), key: fields.next()?.to_owned() })
}

fn parse_handler_event(line: &str) -> Option<HandlerEvent> {
    let mut fields = line.split(' ');
    let (event, task, more) = (fields.next()?, fields.next()?.parse().ok()?, fields.next()?);
    match event {
        "start" => Some(HandlerEvent::Start(task, more.to_owned())),
        "lookup" => Some(HandlerEvent::LookUp(task, more.to_owned())),
        "resumed" => Some(HandlerEvent::Resumed(task, more.to_owned(), fields.next()?.parse().ok()?)),
        "saved" => Some(HandlerEvent::Saved(task, more.parse().ok()?)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_handler_events_are_rejected() {
        assert_eq!(parse_handler_event("start 7 w1"), Some(HandlerEvent::Start(7, "w1".to_owned())));
        assert_eq!(parse_handler_event("saved 7 3"), Some(HandlerEvent::Saved(7, 3)));
        assert_eq!(parse_handler_event("resumed 7 w1/2 3"), Some(HandlerEvent::Resumed(7, "w1/2".to_owned(), 3)));
        assert_eq!(parse_handler_event("saved 7 thr"), None);
        assert_eq!(parse_handler_event("sta"), None);
    }
}
