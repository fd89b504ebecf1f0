//! The claimed tasks of one kind: those that wait for a worker of this process, and those that run.
//!
//! Owns the order among them. A worker that becomes free takes the most urgent task that waits, whenever it was claimed;
//! what is dispatched back to the store is the least urgent. The pool holds no tasks, only placeholders: each takes the task that is
//! the most urgent when the turn comes, or nothing if that has been dispatched back.

use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::in_flight::InFlight;

/// Which of two tasks goes first: by queue in the order in which they are served, priority, and number.
pub(crate) type Urgency = (usize, Reverse<i32>, i64);

/// How many tasks are claimed that may have ended a worker before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CrashCounts {
    /// Those that crashed at most once.
    pub(crate) crashed_once: usize,
    /// Those that crashed more often.
    pub(crate) crashed_often: usize,
}

impl CrashCounts {
    fn counter(&mut self, claim: &InFlight) -> Option<&mut usize> {
        let counter = if claim.task.crashes < 2 { &mut self.crashed_once } else { &mut self.crashed_often };
        claim.may_have_crashed().then_some(counter)
    }

    fn add(&mut self, claim: &InFlight) {
        if let Some(counter) = self.counter(claim) {
            *counter += 1;
        }
    }

    /// Takes one off that was added.
    pub(crate) fn remove(&mut self, claim: &InFlight) {
        if let Some(counter) = self.counter(claim) {
            *counter -= 1;
        }
    }
}

/// The claimed and unsettled tasks of a kind.
#[derive(Default)]
pub(crate) struct Claims {
    all: HashMap<i64, Arc<InFlight>>,
    /// The most urgent first. Claims come in this order, so most are added at the end.
    waiting: VecDeque<(Urgency, Arc<InFlight>)>,
    crash_counts: CrashCounts,
    /// Tasks that were dispatched to a worker; some of them have ended since.
    dispatched: Vec<Arc<InFlight>>,
    /// At this length those that have ended are removed from `dispatched`.
    prune_at: usize,
    /// Turns that the pool holds and has not begun.
    placeholders: usize,
    /// Turns that found no task, because it had been dispatched back.
    unused_placeholders: u64,
}

impl Claims {
    /// All claimed tasks.
    pub(crate) fn all(&self) -> &HashMap<i64, Arc<InFlight>> {
        &self.all
    }

    /// How many wait for a worker.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Whether a task has waited for a worker for at least `time`.
    pub(crate) fn has_waited(&self, time: Duration) -> bool {
        self.waiting.iter().any(|(_, claim)| claim.claimed_at.elapsed() >= time)
    }

    /// The least urgent task that waits.
    pub(crate) fn least_urgent(&self) -> Option<Urgency> {
        self.waiting.back().map(|(urgency, _)| *urgency)
    }

    /// Adds a claimed task. `rank`: its queue's place in the order in which they are served.
    pub(crate) fn add(&mut self, rank: usize, claim: &Arc<InFlight>) {
        let task = &claim.task;
        self.crash_counts.add(claim);
        if let Some(lost) = self.all.insert(task.id, claim.clone()) {
            self.crash_counts.remove(&lost);
            // Its claim was lost, and its run can be reached from nowhere else.
            lost.cancel_token.cancel();
        }
        let urgency = (rank, Reverse(task.priority), task.id);
        let place = match self.waiting.back() {
            Some((last, _)) if *last >= urgency => {
                self.waiting.partition_point(|(other, _)| *other < urgency)
            }
            _ => self.waiting.len(),
        };
        match self.waiting.get_mut(place) {
            // The same task: its earlier claim was lost.
            Some((other, lost)) if *other == urgency => *lost = claim.clone(),
            _ => self.waiting.insert(place, (urgency, claim.clone())),
        }
    }

    /// How many placeholders the pool lacks; they are counted as dispatched.
    pub(crate) fn missing_placeholders(&mut self) -> usize {
        let missing = self.waiting.len().saturating_sub(self.placeholders);
        self.placeholders += missing;
        missing
    }

    /// The task for a turn that has come, if one waits.
    pub(crate) fn next(&mut self) -> Option<Arc<InFlight>> {
        self.placeholders = self.placeholders.saturating_sub(1);
        let Some((_, claim)) = self.waiting.pop_front() else {
            self.unused_placeholders += 1;
            return None;
        };
        if self.dispatched.len() >= self.prune_at {
            self.dispatched.retain(|claim| !claim.has_ended());
            self.prune_at = 2 * self.dispatched.len() + 16;
        }
        self.dispatched.push(claim.clone());
        Some(claim)
    }

    /// How many placeholders found no task, and how many will find none.
    pub(crate) fn unused_placeholders(&self) -> (u64, u64) {
        (self.unused_placeholders, self.placeholders.saturating_sub(self.waiting.len()) as u64)
    }

    /// Takes up to `count` tasks out of those that wait, the least urgent ones. They stay claimed until that is settled.
    pub(crate) fn take_least_urgent(&mut self, count: usize) -> Vec<Arc<InFlight>> {
        (0..count).map_while(|_| self.waiting.pop_back()).map(|(_, claim)| claim).collect()
    }

    /// Takes a task out of those that wait. It stays claimed until that is settled.
    pub(crate) fn remove_waiting(&mut self, claim: &Arc<InFlight>) -> bool {
        let before = self.waiting.len();
        self.waiting.retain(|(_, other)| !Arc::ptr_eq(other, claim));
        self.waiting.len() < before
    }

    /// Removes a task that was settled. The same task may be claimed again if the first claim was lost.
    pub(crate) fn remove(&mut self, claim: &InFlight) {
        let task = &claim.task;
        if self.all.get(&task.id).is_some_and(|other| other.task.token == task.token) {
            self.all.remove(&task.id);
            self.crash_counts.remove(claim);
        }
    }

    /// How many of them may have ended a worker before.
    pub(crate) fn crash_counts(&self) -> CrashCounts {
        self.crash_counts
    }

    /// How long all of `workers` workers have been busy; zero if one is free or about to take a task.
    pub(crate) fn busy_for(&self, workers: usize) -> Duration {
        let (mut count, mut last) = (0, None);
        for start in self.running().filter_map(|claim| claim.started()) {
            count += 1;
            last = last.max(Some(start));
        }
        last.filter(|_| count >= workers).map_or(Duration::ZERO, |start| start.elapsed())
    }

    /// Tasks that have run for at least `time` and whose start is not recorded.
    pub(crate) fn unrecorded(&self, time: Duration) -> impl Iterator<Item = &Arc<InFlight>> {
        let unrecorded = self.running().filter(|claim| !claim.is_recorded());
        unrecorded.filter(move |claim| claim.started().is_some_and(|start| start.elapsed() >= time))
    }

    /// When the first start has to be recorded, if it may be put off for `time`.
    pub(crate) fn next_record(&self, time: Duration) -> Option<Instant> {
        let unrecorded = self.running().filter(|claim| !claim.is_recorded());
        unrecorded.filter_map(|claim| claim.started()).min().map(|start| start + time)
    }

    fn running(&self) -> impl Iterator<Item = &Arc<InFlight>> {
        self.dispatched.iter().filter(|claim| !claim.has_ended())
    }
}

#[cfg(test)]
mod tests {
    use gristmill_store::UtcTime;
    use gristmill_store::lease::WorkerId;
    use gristmill_store::tasks::ClaimedTask;

    use super::*;

    fn claimed(id: i64, priority: i32, at: Instant) -> Arc<InFlight> {
        let task = ClaimedTask {
            id,
            kind: "k".into(),
            queue: "default".into(),
            payload: "1".to_owned(),
            priority,
            attempts: 0,
            max_attempts: None,
            starts: 0,
            crashes: u32::try_from(id).unwrap_or(0),
            abandoned: 0,
            failed_step: None,
            document_id: None,
            token: WorkerId::new("worker").token(),
        };
        Arc::new(InFlight::new(task, (at, UtcTime::from_micros(0))))
    }

    #[test]
    fn workers_take_the_most_urgent_task_and_the_least_urgent_is_given_back() {
        let mut claims = Claims::default();
        let now = Instant::now();
        for (rank, priority, id) in [(1, 9, 1), (0, 0, 2), (0, 5, 4), (0, 5, 3)] {
            claims.add(rank, &claimed(id, priority, now));
        }
        assert_eq!(claims.missing_placeholders(), 4);
        assert_eq!(claims.next().map(|claim| claim.task.id), Some(3));
        assert_eq!(claims.take_least_urgent(1)[0].task.id, 1);
        assert_eq!((claims.waiting(), claims.all().len()), (2, 4));
    }

    #[test]
    fn tasks_that_were_claimed_a_moment_ago_have_not_waited() {
        let mut claims = Claims::default();
        let (now, second) = (Instant::now(), Duration::from_secs(1));
        claims.add(0, &claimed(1, 0, now));
        assert!(!claims.has_waited(second * 60));
        // The most urgent one may have come just now, while another has waited.
        claims.add(0, &claimed(2, -1, now.checked_sub(second).expect("a clock that has run for a second")));
        assert!(claims.has_waited(second));
    }

    #[test]
    fn tasks_that_may_have_ended_a_worker_are_counted_while_they_are_claimed() {
        let mut claims = Claims::default();
        let now = Instant::now();
        let held: Vec<_> = (0..4).map(|id| claimed(id, 0, now)).collect();
        held.iter().for_each(|claim| claims.add(0, claim));
        assert_eq!(claims.crash_counts(), CrashCounts { crashed_once: 1, crashed_often: 2 });
        // The same task again, under another claim; then the lost claim is settled.
        let again = claimed(3, 0, now);
        claims.add(0, &again);
        assert!(held[3].cancel_token.is_cancelled() && !again.cancel_token.is_cancelled());
        claims.remove(&held[3]);
        assert_eq!(claims.crash_counts(), CrashCounts { crashed_once: 1, crashed_often: 2 });
        [&held[1], &held[2], &again].into_iter().for_each(|claim| claims.remove(claim));
        assert_eq!(claims.crash_counts(), CrashCounts::default());
    }
}
