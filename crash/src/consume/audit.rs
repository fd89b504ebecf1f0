//! Checks a finished round: every confirmed message was done or is a dead letter, and nothing else was done.

use std::collections::BTreeMap;

use super::broker_client::DeadLetter;
use super::messages::{Action, Published};
use super::plan::ATTEMPTS;
use super::results::Results;

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Audit {
    /// Confirmed messages that are neither done nor dead letters; they may still arrive.
    pub(crate) missing: Vec<String>,
    /// Violations that waiting cannot remove.
    pub(crate) violations: Vec<String>,
    /// Number of messages that were done more than once.
    pub(crate) duplicates: u32,
}

/// Checks all messages. `cuts` is how often acknowledgements may have been lost; with 0, each message is done exactly
/// once.
pub(crate) fn audit(
    action: Action,
    published: &Published,
    results: &Results,
    dead_letters: &[DeadLetter],
    cuts: u32,
) -> Audit {
    let mut audit = Audit { violations: results.violations.clone(), ..Audit::default() };
    let counts = count_dead_letters(published, dead_letters, &mut audit.violations);
    for message in published.confirmed.iter().filter_map(|id| published.messages.get(id)) {
        let (id, outcome) = (&message.id, message.outcome);
        let done = results.done.get(id).copied().unwrap_or(0);
        let dead_lettered = counts.get(id.as_str()).copied().unwrap_or(0);
        let times = if outcome.is_done() { done } else { dead_lettered };
        if times == 0 {
            let expected_end = if outcome.is_done() { "done" } else { "a dead letter" };
            audit.missing.push(format!("{id} ({outcome:?}) was confirmed, but is not {expected_end}"));
        }
        audit.duplicates += u32::from(times > 1);
        if times > 1 && cuts == 0 {
            audit.violations.push(format!("no acknowledgement was lost, but {id} ({outcome:?}) ended {times} times"));
        }
        if done > 1 && action == Action::Enqueue {
            audit.violations.push(format!("{id} has {done} unfinished tasks with its id as their key"));
        }
        let attempts_expected = outcome.attempts(ATTEMPTS);
        if action == Action::Exec && cuts == 0 && times == 1 {
            let runs = results.runs.get(id).map_or(0, Vec::len);
            if runs != attempts_expected as usize {
                let text = format!("no acknowledgement was lost, but {id} ({outcome:?}) had {runs} attempts");
                audit.violations.push(format!("{text} instead of {attempts_expected}"));
            }
        }
    }
    if action == Action::Exec {
        audit.violations.extend(dead_letters.iter().filter_map(|dead_letter| unstarted_attempts(dead_letter, results)));
    }
    audit.violations.extend(results.runs.iter().filter_map(|(id, runs)| excess_attempts(id, runs, cuts)));
    audit
}

/// Counts the dead letters of each message, and adds a violation for each wrong one.
fn count_dead_letters<'a>(
    published: &Published,
    dead_letters: &'a [DeadLetter],
    violations: &mut Vec<String>,
) -> BTreeMap<&'a str, u32> {
    let mut counts = BTreeMap::new();
    for DeadLetter { id, reason, error, body, .. } in dead_letters {
        *counts.entry(id.as_str()).or_default() += 1;
        match published.messages.get(id) {
            None => violations.push(format!("dead letter of a message that was not published: {id} {body}")),
            Some(message) if message.body != *body => {
                violations.push(format!("{id} was published as {}, but its dead letter is {body}", message.body));
            }
            Some(message) if message.outcome.is_done() => {
                violations.push(format!("{id} ({:?}) is a dead letter: {reason}: {error}", message.outcome));
            }
            Some(message) if message.outcome.reason() != reason => {
                violations.push(format!("{id} ({:?}) was dead-lettered for {reason:?}: {error}", message.outcome));
            }
            Some(_) if error.is_empty() => violations.push(format!("dead letter {id} has no error text")),
            Some(_) => {}
        }
    }
    counts
}

/// Returns a violation unless every attempt that a dead letter counts, and at least one, was started.
fn unstarted_attempts(dead_letter: &DeadLetter, results: &Results) -> Option<String> {
    let started = results.runs.get(&dead_letter.id).map_or(0, Vec::len);
    let attempts = dead_letter.failed.max(1);
    (started < attempts as usize).then(|| {
        format!(
            "{} is a dead letter after {attempts} attempts ({}), but was started {started} times",
            dead_letter.id, dead_letter.reason
        )
    })
}

/// Returns a violation for too many attempts. Each cut can duplicate a message, and each copy has its own attempts.
fn excess_attempts(id: &str, runs: &[u32], cuts: u32) -> Option<String> {
    let max = (ATTEMPTS as usize) << cuts.min(16);
    let last = runs.iter().max().copied().unwrap_or(0);
    (last > ATTEMPTS || runs.len() > max)
        .then(|| format!("{id} had {} attempts after {cuts} cuts, up to attempt {last}", runs.len()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::consume::messages::{Outcome, TestMessage};

    fn published(outcomes: &[Outcome]) -> Published {
        let message = |(number, outcome): (usize, &Outcome)| {
            let id = format!("m{number}");
            (id.clone(), TestMessage { id: id.clone(), outcome: *outcome, body: id })
        };
        let messages: BTreeMap<String, TestMessage> = outcomes.iter().enumerate().map(message).collect();
        let confirmed = messages.keys().cloned().collect();
        Published { messages, confirmed }
    }

    fn dead(id: &str, reason: &str) -> DeadLetter {
        let failed = if reason == "attempts" { ATTEMPTS } else { 1 };
        let [id, reason, error, body] = [id, reason, "error", id].map(str::to_owned);
        DeadLetter { id, reason, error, body, failed }
    }

    /// Checks the first missing message and the first violation of a round with one message.
    #[track_caller]
    fn check(outcome: Outcome, runs: &[u32], done: u32, dead: &[DeadLetter], cuts: u32, expected: [&str; 2]) {
        let mut results = Results::default();
        results.done.insert("m0".to_owned(), done);
        results.runs.insert("m0".to_owned(), runs.to_vec());
        let found = audit(Action::Exec, &published(&[outcome]), &results, dead, cuts);
        for (lines, expected) in [&found.missing, &found.violations].into_iter().zip(expected) {
            let as_expected = match (lines.first(), expected) {
                (line, "") => line.is_none(),
                (line, expected) => line.is_some_and(|line| line.contains(expected)),
            };
            assert!(as_expected, "{found:?}, expected {expected:?}");
        }
    }

    #[test]
    fn lost_and_repeated_messages_are_reported() {
        let rejected = dead("m0", "permanent");
        check(Outcome::Done, &[1], 1, &[], 0, ["", ""]);
        check(Outcome::Done, &[], 0, &[], 1, ["not done", ""]);
        check(Outcome::Done, &[1, 1], 2, &[], 1, ["", ""]);
        check(Outcome::Done, &[1, 1], 2, &[], 0, ["", "no acknowledgement was lost"]);
        check(Outcome::Done, &[1], 1, std::slice::from_ref(&rejected), 1, ["", "is a dead letter"]);
        check(Outcome::SecondAttempt, &[1, 2], 1, &[], 0, ["", ""]);
        check(Outcome::SecondAttempt, &[1, 1, 2], 1, &[], 0, ["", "had 3 attempts"]);
        check(Outcome::Rejected, &[1], 0, std::slice::from_ref(&rejected), 0, ["", ""]);
        check(Outcome::Rejected, &[1], 0, &[], 1, ["not a dead letter", ""]);
        check(Outcome::Exhausted, &[1, 2, 3], 0, &[dead("m0", "attempts")], 0, ["", ""]);
        check(Outcome::Exhausted, &[1, 2], 0, &[dead("m0", "attempts")], 1, ["", "was started 2 times"]);
        check(Outcome::Rejected, &[], 0, std::slice::from_ref(&rejected), 1, ["", "was started 0 times"]);
        check(Outcome::Exhausted, &[1, 2, 3], 0, &[rejected], 1, ["", "dead-lettered for"]);
        check(Outcome::Exhausted, &[1, 2, 3, 4], 0, &[dead("m0", "attempts")], 1, ["", "up to attempt 4"]);
        check(Outcome::Exhausted, &[3; 7], 0, &[dead("m0", "attempts")], 1, ["", "had 7 attempts"]);
        check(Outcome::Done, &[1], 1, &[dead("m9", "permanent")], 1, ["", "was not published"]);
    }

    #[test]
    fn two_tasks_of_one_message_are_a_violation_despite_cuts() {
        let mut results = Results::default();
        results.done.insert("m0".to_owned(), 2);
        let found = audit(Action::Enqueue, &published(&[Outcome::Done]), &results, &[], 3);
        assert!(found.violations[0].contains("2 unfinished tasks"), "{found:?}");
    }
}
