//! Gathers messages into batches for a handler of several messages, and runs them.
//!
//! Messages stay in the queue of the dispatcher until a worker is free, so a batch has everything that arrived while
//! the workers were busy.
//!
//! | worker | event                                             | next                                              |
//! |--------|---------------------------------------------------|---------------------------------------------------|
//! | free   | a message is ready                                | it is gathered; the first starts the linger time  |
//! | free   | a message is ready that failed or may have crashed| it runs alone at once; gathering continues        |
//! | free   | the batch is full, or the linger time is over     | the batch runs                                    |
//! | busy   | a message is ready                                | it waits in the queue                             |
//! | busy   | a message waits for the start timeout             | consuming pauses                                  |
//! | any    | the sink fails                                    | gathered messages go back to the queue            |
//! | any    | the channel is lost, or the consumer stops        | gathered messages are dropped: they are redelivered |

use super::{Dispatcher, InFlight};
use crate::{
    consumer::BatchHandler,
    handler_pool::{Decided, HandlerOutcome, JobOutput, Run},
    sink_gate::SinkGate,
};
use gristmill_pool::{Failure, TaskError};
use std::{collections::HashMap, ops::Range, sync::Arc, time::Duration};
use tokio::time::Instant;

/// The next batch, and those in the pool.
#[derive(Default)]
pub(super) struct Batches {
    pub(super) next: Gathered<InFlight>,
    /// Batches in the pool, by their numbers there.
    in_pool: HashMap<u64, RunningBatch>,
    /// Number of the last run. Messages of one batch have consecutive numbers.
    last_run: u64,
    /// Since when messages wait, all workers are busy and no batch has started.
    busy_since: Option<Instant>,
}

pub(super) struct RunningBatch {
    runs: Range<u64>,
    decided: Arc<Decided>,
}

/// Messages of the next batch.
pub(super) struct Gathered<T> {
    pub(super) items: Vec<T>,
    /// When the batch runs, full or not.
    due: Option<Instant>,
}

impl<T> Default for Gathered<T> {
    fn default() -> Self {
        Self { items: Vec::new(), due: None }
    }
}

impl<T> Gathered<T> {
    /// Adds a message. Returns the batch if it is full.
    fn add(&mut self, item: T, max: usize, linger: Duration) -> Option<Vec<T>> {
        self.items.push(item);
        if self.items.len() >= max {
            return Some(self.take());
        }
        self.due.get_or_insert_with(|| Instant::now() + linger);
        None
    }

    /// Returns the batch if its linger time is over.
    fn take_due(&mut self) -> Option<Vec<T>> {
        self.due.is_some_and(|due| due <= Instant::now()).then(|| self.take())
    }

    pub(super) fn take(&mut self) -> Vec<T> {
        self.due = None;
        std::mem::take(&mut self.items)
    }
}

impl Batches {
    /// When a batch or the start timeout is due. While consuming is paused neither is, because only probes start.
    fn due(&self, is_paused: bool, has_room: bool, start_timeout: Option<Duration>) -> Option<Instant> {
        if is_paused {
            return None;
        }
        let start_due = self.busy_since.zip(start_timeout).and_then(|(since, limit)| since.checked_add(limit));
        self.next.due.filter(|_| has_room).or(start_due)
    }
}

impl Dispatcher {
    /// Submits batches that are full or due, while workers are free.
    pub(super) fn dispatch_batches(&mut self, handler: &Arc<BatchHandler>) {
        // A batch that is larger than the prefetch would never be full.
        let prefetch = self.session.as_ref().map_or(u16::MAX, |session| session.prefetch);
        let max = self.config.sizing.batch.min(prefetch.into());
        while self.has_room() {
            let batch = match self.suspects.next(&mut self.keyed_queue) {
                Some(message) if message.runs_alone() => vec![message],
                Some(message) => match self.batches.next.add(message, max, self.config.declared.linger) {
                    Some(batch) => batch,
                    None => continue,
                },
                None => match self.batches.next.take_due() {
                    Some(batch) => batch,
                    None => break,
                },
            };
            if self.submit_batch(handler, batch, self.pause.gate.clone()).is_none() {
                return;
            }
        }
        self.check_start_timeout();
    }

    /// Whether a worker is free.
    fn has_room(&self) -> bool {
        self.batches.in_pool.len() < self.config.sizing.workers
    }

    /// Submits a batch and returns the number of its first run; none if it was not submitted.
    pub(super) fn submit_batch(
        &mut self,
        handler: &Arc<BatchHandler>,
        mut batch: Vec<InFlight>,
        gate: SinkGate,
    ) -> Option<u64> {
        let first = self.batches.last_run + 1;
        let runs: Vec<Run> = batch.iter_mut().map(|message| self.run_of(message)).collect();
        let decided = Arc::<Decided>::default();
        let job = self.run_context(gate).batch_job(Arc::clone(handler), runs, first, Arc::clone(&decided));
        let id = match self.pool.submit(job) {
            Ok(id) => id,
            Err(kind) => return self.not_submitted(kind, batch),
        };
        self.batches.busy_since = None;
        self.batches.last_run += batch.len() as u64;
        self.batches.in_pool.insert(id, RunningBatch { runs: first..self.batches.last_run + 1, decided });
        for (number, message) in (first..).zip(batch) {
            self.submitted(number, message);
        }
        Some(first)
    }

    /// Settles the messages of a batch, or returns the result of a task that is no batch.
    pub(super) fn settle_batch(
        &mut self,
        id: u64,
        result: Result<JobOutput, Failure>,
    ) -> Option<Result<HandlerOutcome, Arc<TaskError>>> {
        let results = match result {
            Ok(JobOutput::One(outcome)) => return Some(Ok(outcome)),
            Ok(JobOutput::Batch(results)) => Ok(results),
            Err(failure) => Err(failure.error),
        };
        let Some(RunningBatch { runs, decided }) = self.batches.in_pool.remove(&id) else {
            return results.err().map(Err);
        };
        let mut results = results.map(Vec::into_iter);
        for (at, number) in runs.enumerate() {
            let decided = decided.get().and_then(|outcomes| *outcomes.get(at)?);
            let result = match (decided, &mut results) {
                (Some(outcome), _) => Ok(outcome),
                (None, Err(error)) => Err(Arc::clone(error)),
                (None, Ok(results)) => results.next().unwrap_or(Ok(HandlerOutcome::Skipped)).map_err(Arc::new),
            };
            self.settle_run(number, result);
        }
        None
    }

    /// Puts gathered messages back to the front of the queue and ends the start timeout, because consuming is paused.
    pub(super) fn ungather(&mut self) {
        self.batches.busy_since = None;
        for message in self.batches.next.take().into_iter().rev() {
            self.keyed_queue.push_front(message);
        }
    }

    /// When a batch or the start timeout is due.
    pub(super) fn batch_due(&self) -> Option<Instant> {
        let timeout = self.config.declared.start_timeout.as_ref().map(|(limit, _)| *limit);
        self.batches.due(self.pause.is_paused(), self.has_room(), timeout)
    }

    /// Pauses consuming when a message has waited for the start timeout while all workers are busy: the sink hangs.
    fn check_start_timeout(&mut self) {
        let is_busy = self.waiting() > 0 && !self.has_room();
        let Some((limit, why)) = self.config.declared.start_timeout.clone().filter(|_| is_busy) else {
            self.batches.busy_since = None;
            return;
        };
        let since = *self.batches.busy_since.get_or_insert_with(Instant::now);
        if since.elapsed() >= limit {
            self.batches.busy_since = None;
            self.sink_hangs(&TaskError::unavailable(why));
        }
    }
}

impl InFlight {
    /// Whether it runs in no batch with others: it failed before, or may have crashed its process.
    fn runs_alone(&self) -> bool {
        self.suspect || self.delivery.attempt() > 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batch_or_start_timeout_is_due_unless_consuming_is_paused() {
        let (now, limit) = (Instant::now(), Duration::from_secs(5));
        let (batch, start) = (now + Duration::from_secs(1), now + limit);
        let gathering = || Batches { next: Gathered { due: Some(batch), ..Gathered::default() }, ..Batches::default() };
        let busy = || Batches { busy_since: Some(now), ..gathering() };
        // Batches, whether consuming is paused, whether a worker is free, and what is due.
        for (batches, is_paused, has_room, expected) in [
            (Batches::default(), false, true, None),
            (gathering(), false, true, Some(batch)),
            (gathering(), false, false, None),
            (gathering(), true, true, None),
            (busy(), false, false, Some(start)),
            (busy(), true, false, None),
        ] {
            assert_eq!(batches.due(is_paused, has_room, Some(limit)), expected, "{is_paused} {has_room}");
        }
        assert_eq!(busy().due(false, false, None), None);
    }

    enum Event {
        Ready(u8),
        Wait(u64),
        Dropped,
    }

    #[tokio::test(start_paused = true)]
    async fn batch_is_taken_when_it_is_full_or_due() {
        use Event::{Dropped, Ready, Wait};
        // Events, and the batches that they lead to with at most three messages and a linger time of 10 s.
        let cases: [(&[Event], &[&[u8]]); 6] = [
            (&[Ready(1), Wait(9)], &[]),
            (&[Ready(1), Wait(10)], &[&[1]]),
            (&[Ready(1), Ready(2), Ready(3), Ready(4), Wait(9)], &[&[1, 2, 3]]),
            // The first message starts the time, also after a full batch.
            (&[Ready(1), Wait(9), Ready(2), Wait(1), Ready(3), Wait(9)], &[&[1, 2]]),
            (&[Ready(1), Ready(2), Ready(3), Wait(20), Ready(4), Wait(10)], &[&[1, 2, 3], &[4]]),
            (&[Ready(1), Wait(9), Dropped, Ready(2), Wait(9)], &[]),
        ];
        for (events, expected) in cases {
            let (mut gathered, mut batches) = (Gathered::default(), Vec::new());
            for event in events {
                match event {
                    Ready(number) => batches.extend(gathered.add(*number, 3, Duration::from_secs(10))),
                    Wait(seconds) => tokio::time::advance(Duration::from_secs(*seconds)).await,
                    Dropped => drop(gathered.take()),
                }
                batches.extend(gathered.take_due());
            }
            assert_eq!(batches, expected);
        }
    }
}
