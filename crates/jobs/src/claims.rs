//! The claimed tasks of one kind: those that wait for a worker of this process, and those that run.
//!
//! Owns the order among them. A worker that becomes free takes the most urgent task that waits, whenever it was claimed;
//! what is given back to the store is the least urgent. The pool holds no tasks, only turns: each takes the task that is
//! the most urgent when the turn comes, or nothing if that has been given back.

use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::flight::Flight;

/// Which of two tasks goes first: by queue in the order in which they are served, priority, and number.
pub(crate) type Urgency = (usize, Reverse<i32>, i64);

/// How many tasks are claimed that may have ended a worker before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Suspicious {
    /// Those that crashed at most once.
    pub(crate) shaken: usize,
    /// Those that crashed more often.
    pub(crate) suspect: usize,
}

impl Suspicious {
    fn counter(&mut self, flight: &Flight) -> Option<&mut usize> {
        let counter = if flight.task.crashes < 2 { &mut self.shaken } else { &mut self.suspect };
        flight.may_have_crashed().then_some(counter)
    }

    fn add(&mut self, flight: &Flight) {
        if let Some(counter) = self.counter(flight) {
            *counter += 1;
        }
    }

    /// Takes one off that was added.
    pub(crate) fn remove(&mut self, flight: &Flight) {
        if let Some(counter) = self.counter(flight) {
            *counter -= 1;
        }
    }
}

/// The claimed and unsettled tasks of a kind.
#[derive(Default)]
pub(crate) struct Claims {
    all: HashMap<i64, Arc<Flight>>,
    /// The most urgent first. Claims come in this order, so most are added at the end.
    waiting: VecDeque<(Urgency, Arc<Flight>)>,
    suspicious: Suspicious,
    /// Tasks that were given to a worker; some of them have ended since.
    given: Vec<Arc<Flight>>,
    /// At this length those that have ended are removed from `given`.
    prune_at: usize,
    /// Turns that the pool holds and has not begun.
    turns: usize,
    /// Turns that found no task, because it had been given back.
    empty_turns: u64,
}

impl Claims {
    /// All claimed tasks.
    pub(crate) fn all(&self) -> &HashMap<i64, Arc<Flight>> {
        &self.all
    }

    /// How many wait for a worker.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Whether a task has waited for a worker for at least `time`.
    pub(crate) fn has_waited(&self, time: Duration) -> bool {
        self.waiting.iter().any(|(_, flight)| flight.claimed_at.elapsed() >= time)
    }

    /// The least urgent task that waits.
    pub(crate) fn last(&self) -> Option<Urgency> {
        self.waiting.back().map(|(urgency, _)| *urgency)
    }

    /// Adds a claimed task. `rank`: its queue's place in the order in which they are served.
    pub(crate) fn add(&mut self, rank: usize, flight: &Arc<Flight>) {
        let task = &flight.task;
        self.suspicious.add(flight);
        if let Some(lost) = self.all.insert(task.id, flight.clone()) {
            self.suspicious.remove(&lost);
            // Its claim was lost, and its run can be reached from nowhere else.
            lost.stop.set();
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
            Some((other, lost)) if *other == urgency => *lost = flight.clone(),
            _ => self.waiting.insert(place, (urgency, flight.clone())),
        }
    }

    /// How many turns the pool lacks; they are counted as given.
    pub(crate) fn lacking_turns(&mut self) -> usize {
        let lacking = self.waiting.len().saturating_sub(self.turns);
        self.turns += lacking;
        lacking
    }

    /// The task for a turn that has come, if one waits.
    pub(crate) fn next(&mut self) -> Option<Arc<Flight>> {
        self.turns = self.turns.saturating_sub(1);
        let Some((_, flight)) = self.waiting.pop_front() else {
            self.empty_turns += 1;
            return None;
        };
        if self.given.len() >= self.prune_at {
            self.given.retain(|flight| !flight.has_ended());
            self.prune_at = 2 * self.given.len() + 16;
        }
        self.given.push(flight.clone());
        Some(flight)
    }

    /// How many turns found no task, and how many will find none.
    pub(crate) fn empty_turns(&self) -> (u64, u64) {
        (self.empty_turns, self.turns.saturating_sub(self.waiting.len()) as u64)
    }

    /// Takes up to `count` tasks out of those that wait, the least urgent ones. They stay claimed until that is settled.
    pub(crate) fn give_back(&mut self, count: usize) -> Vec<Arc<Flight>> {
        (0..count).map_while(|_| self.waiting.pop_back()).map(|(_, flight)| flight).collect()
    }

    /// Takes a task out of those that wait. It stays claimed until that is settled.
    pub(crate) fn withdraw(&mut self, flight: &Arc<Flight>) -> bool {
        let before = self.waiting.len();
        self.waiting.retain(|(_, other)| !Arc::ptr_eq(other, flight));
        self.waiting.len() < before
    }

    /// Removes a task that was settled. The same task may be claimed again if the first claim was lost.
    pub(crate) fn remove(&mut self, flight: &Flight) {
        let task = &flight.task;
        if self.all.get(&task.id).is_some_and(|other| other.task.token == task.token) {
            self.all.remove(&task.id);
            self.suspicious.remove(flight);
        }
    }

    /// How many of them may have ended a worker before.
    pub(crate) fn suspicious(&self) -> Suspicious {
        self.suspicious
    }

    /// How long all of `workers` workers have been busy; zero if one is free or about to take a task.
    pub(crate) fn busy_for(&self, workers: usize) -> Duration {
        let (mut count, mut last) = (0, None);
        for start in self.running().filter_map(|flight| flight.started()) {
            count += 1;
            last = last.max(Some(start));
        }
        last.filter(|_| count >= workers).map_or(Duration::ZERO, |start| start.elapsed())
    }

    /// Tasks that have run for at least `time` and whose start is not recorded.
    pub(crate) fn unrecorded(&self, time: Duration) -> impl Iterator<Item = &Arc<Flight>> {
        let unrecorded = self.running().filter(|flight| !flight.is_recorded());
        unrecorded.filter(move |flight| flight.started().is_some_and(|start| start.elapsed() >= time))
    }

    /// When the first start has to be recorded, if it may be put off for `time`.
    pub(crate) fn next_record(&self, time: Duration) -> Option<Instant> {
        let unrecorded = self.running().filter(|flight| !flight.is_recorded());
        unrecorded.filter_map(|flight| flight.started()).min().map(|start| start + time)
    }

    fn running(&self) -> impl Iterator<Item = &Arc<Flight>> {
        self.given.iter().filter(|flight| !flight.has_ended())
    }
}

#[cfg(test)]
mod tests {
    use gristmill_store::UtcTime;
    use gristmill_store::lease::WorkerId;
    use gristmill_store::tasks::ClaimedTask;

    use super::*;

    fn claimed(id: i64, priority: i32, at: Instant) -> Arc<Flight> {
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
        Arc::new(Flight::new(task, (at, UtcTime::from_micros(0))))
    }

    #[test]
    fn workers_take_the_most_urgent_task_and_the_least_urgent_is_given_back() {
        let mut claims = Claims::default();
        let now = Instant::now();
        for (rank, priority, id) in [(1, 9, 1), (0, 0, 2), (0, 5, 4), (0, 5, 3)] {
            claims.add(rank, &claimed(id, priority, now));
        }
        assert_eq!(claims.lacking_turns(), 4);
        assert_eq!(claims.next().map(|flight| flight.task.id), Some(3));
        assert_eq!(claims.give_back(1)[0].task.id, 1);
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
        let flights: Vec<_> = (0..4).map(|id| claimed(id, 0, now)).collect();
        flights.iter().for_each(|flight| claims.add(0, flight));
        assert_eq!(claims.suspicious(), Suspicious { shaken: 1, suspect: 2 });
        // The same task again, under another claim; then the lost claim is settled.
        let again = claimed(3, 0, now);
        claims.add(0, &again);
        assert!(flights[3].stop.is_set() && !again.stop.is_set());
        claims.remove(&flights[3]);
        assert_eq!(claims.suspicious(), Suspicious { shaken: 1, suspect: 2 });
        [&flights[1], &flights[2], &again].into_iter().for_each(|flight| claims.remove(flight));
        assert_eq!(claims.suspicious(), Suspicious::default());
    }
}
