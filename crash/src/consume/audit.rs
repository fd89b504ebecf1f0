//! What must be true when nothing is left to do: every confirmed message was done or is a dead letter, and nothing else
//! was.

use std::collections::BTreeMap;

use super::books::Books;
use super::mail::{Action, Mail};
use super::plan::ATTEMPTS;
use super::post::Dead;

/// What was found.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Audit {
    /// Confirmed, and neither done nor a dead letter. It may yet come.
    pub(crate) missing: Vec<String>,
    /// What must not be, and will not go away.
    pub(crate) wrong: Vec<String>,
    /// Messages that were done more than once.
    pub(crate) twice: u32,
}

/// `cuts` is how often acknowledgements may have been lost: without, each message is done exactly once.
pub(crate) fn audit(action: Action, mail: &Mail, books: &Books, dead: &[Dead], cuts: u32) -> Audit {
    let mut audit = Audit { wrong: books.wrong.clone(), ..Audit::default() };
    let buried = letters(mail, dead, &mut audit.wrong);
    for parcel in mail.sure() {
        let (id, fate) = (&parcel.id, parcel.fate);
        let done = books.times_done(id);
        let letters = buried.get(id.as_str()).copied().unwrap_or(0);
        let times = if fate.is_done() { done } else { letters };
        if times == 0 {
            let wanted = if fate.is_done() { "done" } else { "a dead letter" };
            audit.missing.push(format!("{id} ({fate:?}) was confirmed, and is not {wanted}"));
        }
        audit.twice += u32::from(times > 1);
        if times > 1 && cuts == 0 {
            audit
                .wrong
                .push(format!("nothing was cut off, and {id} ({fate:?}) came to its end {times} times"));
        }
        if done > 1 && action == Action::Enqueue {
            audit.wrong.push(format!("{id} has {done} unfinished tasks with its id as their key"));
        }
        let expected = fate.attempts(ATTEMPTS);
        if action == Action::Exec && cuts == 0 && times == 1 {
            let runs = books.runs.get(id).map_or(0, Vec::len);
            if runs != expected as usize {
                let text = format!("nothing was cut off, and {id} ({fate:?}) was tried {runs} times");
                audit.wrong.push(format!("{text}, not {expected}"));
            }
        }
    }
    if action == Action::Exec {
        audit.wrong.extend(dead.iter().filter_map(|dead| not_started(dead, books)));
    }
    audit.wrong.extend(books.runs.iter().filter_map(|(id, runs)| too_often(id, runs, cuts)));
    audit
}

/// How many dead letters there are of each message; and what is wrong with them.
fn letters<'a>(mail: &Mail, dead: &'a [Dead], wrong: &mut Vec<String>) -> BTreeMap<&'a str, u32> {
    let mut buried = BTreeMap::new();
    for Dead { id, reason, error, body, .. } in dead {
        *buried.entry(id.as_str()).or_default() += 1;
        match mail.parcels.get(id) {
            None => wrong.push(format!("nobody has sent this dead letter: {id} {body}")),
            Some(parcel) if parcel.body != *body => {
                wrong.push(format!("{id} was sent as {} and is buried as {body}", parcel.body));
            }
            Some(parcel) if parcel.fate.is_done() => {
                wrong.push(format!("{id} ({:?}) is a dead letter: {reason}: {error}", parcel.fate));
            }
            Some(parcel) if parcel.fate.reason() != reason => {
                wrong.push(format!("{id} ({:?}) was given up for {reason:?}: {error}", parcel.fate));
            }
            Some(_) if error.is_empty() => wrong.push(format!("the dead letter {id} does not say why")),
            Some(_) => {}
        }
    }
    buried
}

/// A dead letter has had every attempt that it counts, and at least one.
fn not_started(dead: &Dead, books: &Books) -> Option<String> {
    let started = books.runs.get(&dead.id).map_or(0, Vec::len);
    let attempts = dead.failed.max(1);
    (started < attempts as usize).then(|| {
        format!(
            "{} is a dead letter after {attempts} attempts ({}), and was started {started} times",
            dead.id, dead.reason
        )
    })
}

/// Each cut can make two of a message, and each of the two has its attempts.
fn too_often(id: &str, runs: &[u32], cuts: u32) -> Option<String> {
    let most = (ATTEMPTS as usize) << cuts.min(16);
    let last = runs.iter().max().copied().unwrap_or(0);
    (last > ATTEMPTS || runs.len() > most)
        .then(|| format!("{id} was tried {} times after {cuts} cuts, up to attempt {last}", runs.len()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::consume::mail::{Fate, Parcel};

    fn mail(fates: &[Fate]) -> Mail {
        let parcel = |(number, fate): (usize, &Fate)| {
            let id = format!("m{number}");
            (id.clone(), Parcel { id: id.clone(), fate: *fate, body: id })
        };
        let parcels: BTreeMap<String, Parcel> = fates.iter().enumerate().map(parcel).collect();
        let confirmed = parcels.keys().cloned().collect();
        Mail { parcels, confirmed }
    }

    fn dead(id: &str, reason: &str) -> Dead {
        let failed = if reason == "attempts" { ATTEMPTS } else { 1 };
        Dead {
            id: id.to_owned(),
            reason: reason.to_owned(),
            error: "so".to_owned(),
            body: id.to_owned(),
            failed,
        }
    }

    /// What is said of one message, done so often, tried so often, and buried so.
    #[track_caller]
    fn check(fate: Fate, runs: &[u32], done: u32, dead: &[Dead], cuts: u32, expected: [&str; 2]) {
        let mut books = Books::default();
        books.done.insert("m0".to_owned(), done);
        books.runs.insert("m0".to_owned(), runs.to_vec());
        let found = audit(Action::Exec, &mail(&[fate]), &books, dead, cuts);
        for (said, expected) in [&found.missing, &found.wrong].into_iter().zip(expected) {
            let as_expected = match (said.first(), expected) {
                (said, "") => said.is_none(),
                (said, expected) => said.is_some_and(|said| said.contains(expected)),
            };
            assert!(as_expected, "{found:?}, expected {expected:?}");
        }
    }

    #[test]
    fn nothing_is_lost_and_nothing_is_too_much() {
        let gone = dead("m0", "permanent");
        check(Fate::Done, &[1], 1, &[], 0, ["", ""]);
        check(Fate::Done, &[], 0, &[], 1, ["not done", ""]);
        check(Fate::Done, &[1, 1], 2, &[], 1, ["", ""]);
        check(Fate::Done, &[1, 1], 2, &[], 0, ["", "nothing was cut off"]);
        check(Fate::Done, &[1], 1, std::slice::from_ref(&gone), 1, ["", "is a dead letter"]);
        check(Fate::Later, &[1, 2], 1, &[], 0, ["", ""]);
        check(Fate::Later, &[1, 1, 2], 1, &[], 0, ["", "was tried 3 times"]);
        check(Fate::Refused, &[1], 0, std::slice::from_ref(&gone), 0, ["", ""]);
        check(Fate::Refused, &[1], 0, &[], 1, ["not a dead letter", ""]);
        check(Fate::Failing, &[1, 2, 3], 0, &[dead("m0", "attempts")], 0, ["", ""]);
        check(Fate::Failing, &[1, 2], 0, &[dead("m0", "attempts")], 1, ["", "was started 2 times"]);
        check(Fate::Refused, &[], 0, std::slice::from_ref(&gone), 1, ["", "was started 0 times"]);
        check(Fate::Failing, &[1, 2, 3], 0, &[gone], 1, ["", "given up for"]);
        check(Fate::Failing, &[1, 2, 3, 4], 0, &[dead("m0", "attempts")], 1, ["", "up to attempt 4"]);
        check(Fate::Failing, &[3; 7], 0, &[dead("m0", "attempts")], 1, ["", "was tried 7 times"]);
        check(Fate::Done, &[1], 1, &[dead("m9", "permanent")], 1, ["", "nobody has sent"]);
    }

    #[test]
    fn a_task_is_there_once_whoever_was_killed() {
        let mut books = Books::default();
        books.done.insert("m0".to_owned(), 2);
        let found = audit(Action::Enqueue, &mail(&[Fate::Done]), &books, &[], 3);
        assert!(found.wrong[0].contains("2 unfinished tasks"), "{found:?}");
    }
}
