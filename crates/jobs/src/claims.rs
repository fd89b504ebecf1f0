//! The claimed tasks of one kind: those that wait for a worker of this process, and those that run.
//!
//! Owns the order among them. A worker that becomes free takes the most urgent waiting task, whenever it was claimed;
//! the least urgent ones are released first. The pool's queue holds placeholders instead of tasks: a placeholder takes
//! the most urgent task when a worker reaches it, or none if that has been released.

use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use crate::claim_ahead::ClaimAhead;
use crate::in_flight::InFlight;

/// Sort key of waiting tasks, the most urgent first: position of the queue, priority, number of the task.
pub(crate) type Urgency = (usize, Reverse<i32>, i64);

/// Number of claimed tasks whose worker died before, by how often that happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CrashCounts {
    /// Tasks that crashed at most once.
    pub(crate) crashed_once: usize,
    /// Tasks that crashed at least twice.
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

    pub(crate) fn remove(&mut self, claim: &InFlight) {
        if let Some(counter) = self.counter(claim) {
            *counter -= 1;
        }
    }
}

#[derive(Default)]
pub(crate) struct Claims {
    pub(crate) estimate: ClaimAhead,
    all: HashMap<i64, Arc<InFlight>>,
    /// Sorted, the most urgent first. The store claims in this order, so most tasks are added at the end.
    waiting: VecDeque<(Urgency, Arc<InFlight>)>,
    crash_counts: CrashCounts,
    /// Tasks that a worker has taken; some of them have ended since.
    dispatched: Vec<Arc<InFlight>>,
    /// Length at which ended tasks are removed from `dispatched`.
    prune_at: usize,
    /// Number of placeholders in the pool's queue.
    placeholders: usize,
    /// Number of placeholders that a worker has reached and that started no handler.
    unused_placeholders: u64,
}

impl Claims {
    pub(crate) fn new(estimate: ClaimAhead) -> Self {
        Claims { estimate, ..Claims::default() }
    }

    pub(crate) fn all(&self) -> &HashMap<i64, Arc<InFlight>> {
        &self.all
    }

    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Whether a task has waited for a worker for at least `time`.
    pub(crate) fn has_waited(&self, time: Duration) -> bool {
        self.waiting.iter().any(|(_, claim)| claim.claimed_at.elapsed() >= time)
    }

    pub(crate) fn least_urgent(&self) -> Option<Urgency> {
        self.waiting.back().map(|(urgency, _)| *urgency)
    }

    /// Adds a claimed task. `rank`: position of its queue among those that are served. Returns an earlier claim of the
    /// task, which is lost: the caller cancels it without the lock, because nothing else refers to it any more.
    #[must_use]
    pub(crate) fn add(&mut self, rank: usize, claim: &Arc<InFlight>) -> Option<Arc<InFlight>> {
        let task = &claim.task;
        self.crash_counts.add(claim);
        let lost = self.all.insert(task.id, claim.clone());
        lost.iter().for_each(|lost| self.crash_counts.remove(lost));
        let urgency = (rank, Reverse(task.priority), task.id);
        let index = match self.waiting.back() {
            Some((last, _)) if *last >= urgency => self.waiting.partition_point(|(other, _)| *other < urgency),
            _ => self.waiting.len(),
        };
        match self.waiting.get_mut(index) {
            // The same task, whose earlier claim is lost.
            Some((other, lost)) if *other == urgency => *lost = claim.clone(),
            _ => self.waiting.insert(index, (urgency, claim.clone())),
        }
        lost
    }

    /// Number of placeholders to submit, so that the pool has one for each waiting task. Counts them as submitted.
    pub(crate) fn missing_placeholders(&mut self) -> usize {
        let missing = self.waiting.len().saturating_sub(self.placeholders);
        self.placeholders += missing;
        missing
    }

    /// Takes the most urgent task for a placeholder that a worker has reached.
    pub(crate) fn next(&mut self) -> Option<Arc<InFlight>> {
        self.placeholders = self.placeholders.saturating_sub(1);
        let Some((_, claim)) = self.waiting.pop_front() else {
            self.count_unused_placeholder();
            return None;
        };
        if self.dispatched.len() >= self.prune_at {
            self.dispatched.retain(|claim| !claim.has_ended());
            self.prune_at = 2 * self.dispatched.len() + 16;
        }
        self.dispatched.push(claim.clone());
        Some(claim)
    }

    /// Counts a placeholder whose task is not started.
    pub(crate) fn count_unused_placeholder(&mut self) {
        self.unused_placeholders += 1;
    }

    /// Number of placeholders that started no handler, and of those that will find no task.
    pub(crate) fn unused_placeholders(&self) -> (u64, u64) {
        (self.unused_placeholders, self.placeholders.saturating_sub(self.waiting.len()) as u64)
    }

    /// Removes up to `count` waiting tasks, the least urgent first. They stay claimed until they are settled.
    pub(crate) fn take_least_urgent(&mut self, count: usize) -> Vec<Arc<InFlight>> {
        (0..count).map_while(|_| self.waiting.pop_back()).map(|(_, claim)| claim).collect()
    }

    /// Removes a waiting task, which stays claimed until it is settled. Returns whether it was waiting.
    pub(crate) fn remove_waiting(&mut self, claim: &Arc<InFlight>) -> bool {
        let before = self.waiting.len();
        self.waiting.retain(|(_, other)| !Arc::ptr_eq(other, claim));
        self.waiting.len() < before
    }

    /// Removes a settled task, unless it has been claimed again since.
    pub(crate) fn remove(&mut self, claim: &InFlight) {
        let task = &claim.task;
        if self.all.get(&task.id).is_some_and(|other| other.task.token == task.token) {
            self.all.remove(&task.id);
            self.crash_counts.remove(claim);
        }
    }

    pub(crate) fn crash_counts(&self) -> CrashCounts {
        self.crash_counts
    }

    /// How many tasks may be claimed and unsettled, by how long all workers have been busy. They have not if one is free
    /// or about to start a task.
    pub(crate) fn capacity(&self) -> usize {
        let (mut count, mut last) = (0, None);
        for start in self.running().filter_map(|claim| claim.started()) {
            count += 1;
            last = last.max(Some(start));
        }
        let busy_since = last.filter(|_| count >= self.estimate.workers);
        self.estimate.capacity(busy_since.map_or(Duration::ZERO, |start| start.elapsed()))
    }

    /// Tasks that have run for at least `time` and whose start is not recorded.
    pub(crate) fn unrecorded(&self, time: Duration) -> impl Iterator<Item = &Arc<InFlight>> {
        let unrecorded = self.running().filter(|claim| !claim.recorded.load(SeqCst));
        unrecorded.filter(move |claim| claim.started().is_some_and(|start| start.elapsed() >= time))
    }

    fn running(&self) -> impl Iterator<Item = &Arc<InFlight>> {
        self.dispatched.iter().filter(|claim| !claim.has_ended())
    }

    /// When the next start must be recorded, if starts are recorded after `time`.
    pub(crate) fn next_record(&self, time: Duration) -> Option<Instant> {
        let unrecorded = self.running().filter(|claim| !claim.recorded.load(SeqCst));
        unrecorded.filter_map(|claim| claim.started()).min().map(|start| start + time)
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
    fn next_is_the_most_urgent_task_and_the_least_urgent_is_released() {
        let mut claims = Claims::new(ClaimAhead::new(2, true));
        let now = Instant::now();
        for (rank, priority, id) in [(1, 9, 1), (0, 0, 2), (0, 5, 4), (0, 5, 3)] {
            assert!(claims.add(rank, &claimed(id, priority, now)).is_none());
        }
        assert_eq!(claims.missing_placeholders(), 4);
        assert_eq!(claims.next().map(|claim| claim.task.id), Some(3));
        assert_eq!(claims.take_least_urgent(1)[0].task.id, 1);
        assert_eq!((claims.waiting(), claims.all().len()), (2, 4));
    }

    #[test]
    fn has_waited_when_any_task_was_claimed_long_enough_ago() {
        let mut claims = Claims::new(ClaimAhead::new(2, true));
        let (now, second) = (Instant::now(), Duration::from_secs(1));
        let _ = claims.add(0, &claimed(1, 0, now));
        assert!(!claims.has_waited(second * 60));
        let _ = claims.add(0, &claimed(2, -1, now.checked_sub(second).expect("a clock that has run for a second")));
        assert!(claims.has_waited(second));
    }

    #[test]
    fn crashed_tasks_are_counted_while_they_are_claimed() {
        let mut claims = Claims::new(ClaimAhead::new(2, true));
        let now = Instant::now();
        let held: Vec<_> = (0..4).map(|id| claimed(id, 0, now)).collect();
        assert!(held.iter().all(|claim| claims.add(0, claim).is_none()));
        assert_eq!(claims.crash_counts(), CrashCounts { crashed_once: 1, crashed_often: 2 });
        // The same task is claimed again, then the lost claim is settled.
        let again = claimed(3, 0, now);
        let lost = claims.add(0, &again).expect("the earlier claim");
        assert!(Arc::ptr_eq(&lost, &held[3]));
        claims.remove(&held[3]);
        assert_eq!(claims.crash_counts(), CrashCounts { crashed_once: 1, crashed_often: 2 });
        [&held[1], &held[2], &again].into_iter().for_each(|claim| claims.remove(claim));
        assert_eq!(claims.crash_counts(), CrashCounts::default());
    }
}
