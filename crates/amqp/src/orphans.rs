//! Keeps runs whose channel was lost, and their outcomes, for the redelivery of their messages.
//!
//! Pure data. Equal messages are interchangeable: each run is taken over by at most one delivery.

use crate::fingerprint::Fingerprint;
use std::{
    collections::{HashMap, VecDeque},
    time::Duration,
};
use tokio::time::Instant;

/// How long an outcome is kept for the redelivery of its message. A broker that did not notice the loss of the
/// connection redelivers after a few heartbeats.
const OUTCOME_RETENTION: Duration = Duration::from_secs(300);

/// A run without a channel: where it runs, or its outcome and when it ended.
#[derive(Debug)]
pub(crate) enum Orphan<P, E> {
    Running(P),
    Ended(E, Instant),
}

#[derive(Debug)]
pub(crate) struct Orphans<P, E>(HashMap<Fingerprint, VecDeque<Orphan<P, E>>>);

impl<P, E> Default for Orphans<P, E> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<P: PartialEq, E> Orphans<P, E> {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether an outcome is kept whose message may still be redelivered.
    pub(crate) fn has_outcomes(&self, now: Instant) -> bool {
        let is_kept = |at: &Instant| now.duration_since(*at) < OUTCOME_RETENTION;
        self.0.values().flatten().any(|orphan| matches!(orphan, Orphan::Ended(_, at) if is_kept(at)))
    }

    /// Adds the runs of a lost channel. Outcomes of earlier runs stay.
    pub(crate) fn detach(&mut self, running: impl Iterator<Item = (Fingerprint, P)>) {
        self.0.retain(|_, orphans| {
            orphans.retain(|orphan| matches!(orphan, Orphan::Ended(..)));
            !orphans.is_empty()
        });
        for (fingerprint, place) in running {
            self.0.entry(fingerprint).or_default().push_back(Orphan::Running(place));
        }
    }

    /// Records that a run ended before a delivery took it over. Without an outcome the run is forgotten.
    pub(crate) fn ended(&mut self, fingerprint: &Fingerprint, place: &P, outcome: Option<E>, now: Instant) {
        let Some(orphans) = self.0.get_mut(fingerprint) else { return };
        let is_this_run = |orphan: &Orphan<P, E>| matches!(orphan, Orphan::Running(running) if running == place);
        let Some(at) = orphans.iter().position(is_this_run) else { return };
        orphans.remove(at);
        if let Some(outcome) = outcome {
            // Ended runs are taken over first: their delivery can be acknowledged at once.
            orphans.push_front(Orphan::Ended(outcome, now));
        }
        if orphans.is_empty() {
            self.0.remove(fingerprint);
        }
    }

    /// Takes out the run that this delivery belongs to.
    pub(crate) fn adopt(&mut self, fingerprint: &Fingerprint) -> Option<Orphan<P, E>> {
        let orphans = self.0.get_mut(fingerprint)?;
        let orphan = orphans.pop_front();
        if orphans.is_empty() {
            self.0.remove(fingerprint);
        }
        orphan
    }

    /// Takes out outcomes whose messages were not redelivered in time.
    pub(crate) fn take_expired(&mut self, now: Instant) -> Vec<E> {
        let is_old = |orphan: &Orphan<P, E>| matches!(orphan, Orphan::Ended(_, at) if now.duration_since(*at) >= OUTCOME_RETENTION);
        let mut old = Vec::new();
        self.0.retain(|_, orphans| {
            if orphans.iter().any(is_old) {
                let (forgotten, kept) = std::mem::take(orphans).into_iter().partition(is_old);
                let forgotten: VecDeque<_> = forgotten;
                *orphans = kept;
                old.extend(forgotten.into_iter().filter_map(|orphan| match orphan {
                    Orphan::Ended(outcome, _) => Some(outcome),
                    Orphan::Running(_) => None,
                }));
            }
            !orphans.is_empty()
        });
        old
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Fingerprint = [1; 16];
    const TWO: Fingerprint = [2; 16];

    fn describe(orphan: &Option<Orphan<u8, &str>>) -> String {
        match orphan {
            Some(Orphan::Running(place)) => format!("running {place}"),
            Some(Orphan::Ended(outcome, _)) => format!("ended {outcome}"),
            None => "none".to_owned(),
        }
    }

    #[test]
    fn each_run_is_taken_over_once_and_ended_runs_first() {
        let (mut orphans, now) = (Orphans::default(), Instant::now());
        orphans.detach([(ONE, 1), (ONE, 2), (TWO, 3)].into_iter());
        orphans.ended(&ONE, &2, Some("done"), now);
        orphans.ended(&TWO, &3, None, now);
        assert!(orphans.has_outcomes(now) && !orphans.has_outcomes(now + OUTCOME_RETENTION));
        let all: Vec<_> = (0..3).map(|_| describe(&orphans.adopt(&ONE))).collect();
        assert_eq!(all, ["ended done", "running 1", "none"]);
        assert_eq!(describe(&orphans.adopt(&TWO)), "none");
        assert!(orphans.is_empty() && !orphans.has_outcomes(now));
    }

    #[test]
    fn outcomes_expire_and_running_runs_do_not() {
        let (mut orphans, now) = (Orphans::default(), Instant::now());
        orphans.detach([(ONE, 1), (TWO, 2)].into_iter());
        orphans.ended(&ONE, &1, Some("done"), now);
        assert!(orphans.take_expired(now).is_empty());
        assert_eq!(orphans.take_expired(now + OUTCOME_RETENTION), ["done"]);
        assert_eq!(describe(&orphans.adopt(&ONE)), "none");
        assert_eq!(describe(&orphans.adopt(&TWO)), "running 2");
    }

    #[test]
    fn second_loss_keeps_outcomes_and_adds_each_run_once() {
        let (mut orphans, now) = (Orphans::default(), Instant::now());
        orphans.detach([(ONE, 1), (TWO, 2)].into_iter());
        orphans.ended(&ONE, &1, Some("done"), now);
        orphans.detach([(TWO, 2)].into_iter());
        assert_eq!(describe(&orphans.adopt(&ONE)), "ended done");
        assert_eq!(
            (describe(&orphans.adopt(&TWO)), describe(&orphans.adopt(&TWO))),
            ("running 2".into(), "none".into())
        );
    }
}
