//! Runs whose channel was lost, and what became of them: the next delivery of the same message takes the run over instead
//! of starting another.
//!
//! Pure data. Equal messages are exchangeable: each run is taken over by at most one delivery.

use crate::fingerprint::Fingerprint;
use std::{
    collections::{HashMap, VecDeque},
    time::Duration,
};
use tokio::time::Instant;

/// How long the outcome of a run is kept for the delivery that it belongs to. A broker that did not notice the loss of the
/// connection delivers the message again after some heartbeats.
const OUTCOME_RETENTION: Duration = Duration::from_secs(300);

/// Where a run is, or what became of it.
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

    /// Whether a run has ended whose message was not delivered again and may still be.
    pub(crate) fn has_outcomes(&self, now: Instant) -> bool {
        let is_kept = |at: &Instant| now.duration_since(*at) < OUTCOME_RETENTION;
        self.0.values().flatten().any(|orphan| matches!(orphan, Orphan::Ended(_, at) if is_kept(at)))
    }

    /// A channel is lost: these runs have none any more. Outcomes of earlier runs stay.
    pub(crate) fn detach(&mut self, running: impl Iterator<Item = (Fingerprint, P)>) {
        self.0.retain(|_, orphans| {
            orphans.retain(|orphan| matches!(orphan, Orphan::Ended(..)));
            !orphans.is_empty()
        });
        for (fingerprint, place) in running {
            self.0.entry(fingerprint).or_default().push_back(Orphan::Running(place));
        }
    }

    /// A run has ended before a delivery took it over. Its outcome is kept, or, without one, it is forgotten.
    pub(crate) fn run_ended(
        &mut self,
        fingerprint: &Fingerprint,
        place: &P,
        outcome: Option<E>,
        now: Instant,
    ) {
        let Some(orphans) = self.0.get_mut(fingerprint) else { return };
        let is_it = |orphan: &Orphan<P, E>| matches!(orphan, Orphan::Running(running) if running == place);
        let Some(at) = orphans.iter().position(is_it) else { return };
        orphans.remove(at);
        if let Some(outcome) = outcome {
            // What has ended is taken over first: the delivery can be acknowledged at once.
            orphans.push_front(Orphan::Ended(outcome, now));
        }
        if orphans.is_empty() {
            self.0.remove(fingerprint);
        }
    }

    /// The run that this delivery belongs to.
    pub(crate) fn adopt(&mut self, fingerprint: &Fingerprint) -> Option<Orphan<P, E>> {
        let orphans = self.0.get_mut(fingerprint)?;
        let orphan = orphans.pop_front();
        if orphans.is_empty() {
            self.0.remove(fingerprint);
        }
        orphan
    }

    /// Forgets outcomes whose messages were not delivered again for long, and gives them back.
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

    fn shown(orphan: &Option<Orphan<u8, &str>>) -> String {
        match orphan {
            Some(Orphan::Running(place)) => format!("running {place}"),
            Some(Orphan::Ended(outcome, _)) => format!("ended {outcome}"),
            None => "none".to_owned(),
        }
    }

    #[test]
    fn each_run_is_taken_over_once_and_what_has_ended_first() {
        let (mut orphans, now) = (Orphans::default(), Instant::now());
        orphans.detach([(ONE, 1), (ONE, 2), (TWO, 3)].into_iter());
        orphans.run_ended(&ONE, &2, Some("done"), now);
        orphans.run_ended(&TWO, &3, None, now);
        assert!(orphans.has_outcomes(now) && !orphans.has_outcomes(now + OUTCOME_RETENTION));
        let all: Vec<_> = (0..3).map(|_| shown(&orphans.adopt(&ONE))).collect();
        assert_eq!(all, ["ended done", "running 1", "none"]);
        assert_eq!(shown(&orphans.adopt(&TWO)), "none");
        assert!(orphans.is_empty() && !orphans.has_outcomes(now));
    }

    #[test]
    fn outcomes_are_forgotten_after_a_while_and_runs_are_not() {
        let (mut orphans, now) = (Orphans::default(), Instant::now());
        orphans.detach([(ONE, 1), (TWO, 2)].into_iter());
        orphans.run_ended(&ONE, &1, Some("done"), now);
        assert!(orphans.take_expired(now).is_empty());
        assert_eq!(orphans.take_expired(now + OUTCOME_RETENTION), ["done"]);
        assert_eq!(shown(&orphans.adopt(&ONE)), "none");
        assert_eq!(shown(&orphans.adopt(&TWO)), "running 2");
    }

    #[test]
    fn a_second_loss_keeps_outcomes_and_counts_each_run_once() {
        let (mut orphans, now) = (Orphans::default(), Instant::now());
        orphans.detach([(ONE, 1), (TWO, 2)].into_iter());
        orphans.run_ended(&ONE, &1, Some("done"), now);
        orphans.detach([(TWO, 2)].into_iter());
        assert_eq!(shown(&orphans.adopt(&ONE)), "ended done");
        assert_eq!(
            (shown(&orphans.adopt(&TWO)), shown(&orphans.adopt(&TWO))),
            ("running 2".into(), "none".into())
        );
    }
}
