//! Submitting tasks: backpressure, rejections, and the order of waiting submitters.

#![cfg(not(any(shuttle, loom)))]

#[macro_use]
mod suite;

use gristmill_pool::{CancelToken, ResultOrder, clock::ManualClock, error::SubmitErrorKind, task::TaskId};
use std::{collections::HashSet, thread};
use suite::*;

/// A pool whose only worker is occupied and whose queue is full.
fn full<K: WorkerKind>(queue: usize, clock: &ManualClock) -> (Fixture<u32, K>, Gate, gristmill_pool::Results<u32>) {
    let builder = pool_builder(1, queue).clock(clock).result_capacity(1_000);
    let (fixture, results) = build_with_results::<u32, K>(builder, ResultOrder::AsCompleted);
    let gate = Gate::default();
    occupy(&fixture, &gate);
    for _ in 0..queue {
        fixture.try_submit(returning::<u32, K>(0)).expect("room");
    }
    (fixture, gate, results)
}

/// Checks that another pool can run a rejected task.
#[track_caller]
fn assert_runs<K: WorkerKind>(task: TaskOf<u32, K>, want: u32) {
    let (fixture, mut results) = build_with_results::<u32, K>(pool_builder(1, 1), ResultOrder::AsCompleted);
    fixture.submit(task).unwrap();
    assert_eq!(results.next().unwrap().result.unwrap(), want);
}

fn try_submit_fails_when_queue_is_full<K: WorkerKind>() {
    for queue in [1, 3] {
        let (fixture, gate, results) = full::<K>(queue, &ManualClock::new());
        let error = fixture.try_submit(returning::<u32, K>(7)).unwrap_err();
        assert_eq!(error.kind, SubmitErrorKind::Full);
        assert_runs::<K>(error.into_task(), 7);
        gate.open();
        assert_eq!(fixture.join().finished, queue as u64 + 1);
        assert_eq!(results.count(), queue + 1);
    }
}

fn submit_timeout_fails_when_queue_stays_full<K: WorkerKind>() {
    let clock = ManualClock::new();
    let (fixture, gate, _results) = full::<K>(1, &clock);
    let pool = fixture.pool.clone();
    let waiting = thread::spawn(move || pool.submit_timeout(returning::<u32, K>(9), SEC * 10));
    clock.wait_for_timers(1);
    clock.advance(SEC * 10 - std::time::Duration::from_nanos(1));
    assert!(!waiting.is_finished(), "failed before the timeout");
    clock.advance(std::time::Duration::from_nanos(1));
    let error = waiting.join().unwrap().unwrap_err();
    assert_eq!(error.kind, SubmitErrorKind::TimedOut);
    assert_runs::<K>(error.into_task(), 9);
    // The submitter no longer waits, so the free room goes to the next one.
    gate.open();
    fixture.submit(returning::<u32, K>(1)).expect("room");
    assert_eq!(fixture.join().finished, 3);
    assert_eq!(pending_timers(&clock), 0);
}

fn submit_timeout_submits_when_room_appears_in_time<K: WorkerKind>() {
    let clock = ManualClock::new();
    let (fixture, gate, results) = full::<K>(1, &clock);
    let pool = fixture.pool.clone();
    let waiting = thread::spawn(move || pool.submit_timeout(returning::<u32, K>(9), SEC));
    clock.wait_for_timers(1);
    gate.open();
    assert_eq!(waiting.join().unwrap().unwrap().get(), 2);
    assert_eq!(pending_timers(&clock), 0, "the deadline timer was not cancelled");
    fixture.close();
    assert_eq!(results.map(|outcome| outcome.result.unwrap()).collect::<Vec<_>>(), [0, 0, 9]);
}

fn submit_timeout_does_not_wait_when_there_is_room<K: WorkerKind>() {
    let clock = ManualClock::new();
    let (fixture, mut results) =
        build_with_results::<u32, K>(pool_builder(1, 1).clock(&clock), ResultOrder::AsCompleted);
    fixture.submit_timeout(returning::<u32, K>(5), SEC).unwrap();
    assert_eq!(results.next().unwrap().result.unwrap(), 5);
    assert_eq!(pending_timers(&clock), 0);
}

/// The token rejects the task at once or while it waits.
fn submit_until_ends_when_the_token_is_cancelled<K: WorkerKind>() {
    let clock = ManualClock::new();
    let (fixture, gate, _results) = full::<K>(1, &clock);
    let (token, other) = (CancelToken::new(), CancelToken::new());
    let wait = |token: &CancelToken, n| {
        let (pool, token) = (fixture.pool.clone(), token.clone());
        thread::spawn(move || pool.submit_until(returning::<u32, K>(n), &token))
    };
    let (cancelled, admitted) = ([1, 2, 3].map(|n| wait(&token, n)), wait(&other, 9));
    token.cancel();
    for (n, waiting) in cancelled.into_iter().enumerate() {
        let error = waiting.join().unwrap().unwrap_err();
        assert_eq!(error.kind, SubmitErrorKind::Cancelled);
        assert_runs::<K>(error.into_task(), n as u32 + 1);
    }
    gate.open();
    admitted.join().unwrap().expect("room");
    fixture.wait_idle();
    let error = fixture.submit_until(returning::<u32, K>(4), &token).unwrap_err();
    assert_eq!(error.kind, SubmitErrorKind::Cancelled, "a cancelled token rejects though there is room");
    fixture.submit_until(returning::<u32, K>(5), &other).expect("room");
    assert_eq!(fixture.join().finished, 4);
}

fn submit_until_ends_when_the_pool_ends<K: WorkerKind>() {
    for (cancel, want) in [(false, SubmitErrorKind::Closed), (true, SubmitErrorKind::Cancelled)] {
        let (fixture, gate, _results) = full::<K>(1, &ManualClock::new());
        let (pool, token) = (fixture.pool.clone(), CancelToken::new());
        let waiting = thread::spawn(move || pool.submit_until(returning::<u32, K>(1), &token));
        fixture.stop(cancel);
        assert_eq!(waiting.join().unwrap().unwrap_err().kind, want);
        gate.open();
    }
}

/// Submitters that wait or are about to wait are released with their tasks.
fn close_and_cancel_release_waiting_submitters<K: WorkerKind>() {
    for (cancel, want) in [(false, SubmitErrorKind::Closed), (true, SubmitErrorKind::Cancelled)] {
        for timed in [false, true] {
            let clock = ManualClock::new();
            let (fixture, gate, results) = full::<K>(1, &clock);
            let submitters: Vec<_> = (0..3u32)
                .map(|n| {
                    let pool = fixture.pool.clone();
                    thread::spawn(move || match timed {
                        true => pool.submit_timeout(returning::<u32, K>(n), SEC),
                        false => pool.submit(returning::<u32, K>(n)),
                    })
                })
                .collect();
            if timed {
                clock.wait_for_timers(3);
            }
            fixture.stop(cancel);
            for (n, submitter) in submitters.into_iter().enumerate() {
                let error = submitter.join().unwrap().unwrap_err();
                assert_eq!(error.kind, want);
                assert_runs::<K>(error.into_task(), n as u32);
            }
            assert_eq!(fixture.try_submit(returning::<u32, K>(0)).unwrap_err().kind, want);
            assert_eq!(fixture.submit_timeout(returning::<u32, K>(0), SEC).unwrap_err().kind, want);
            gate.open();
            drop(results);
            assert_reports_each_task_once(&fixture.join());
            assert_eq!(pending_timers(&clock), 0);
        }
    }
}

/// Many threads share a queue that is too short for them, and it never exceeds its capacity.
fn every_task_runs_once_when_many_threads_submit<K: WorkerKind>() {
    const THREADS: u32 = 8;
    const EACH: u32 = 100;
    for order in ORDERS {
        for result_order in RESULT_ORDERS {
            let (fixture, results) = build_with_results::<u32, K>(pool_builder(2, 2).order(order), result_order);
            let submitters: Vec<_> = (0..THREADS)
                .map(|thread| {
                    let pool = fixture.pool.clone();
                    let ids = move || -> Vec<TaskId> {
                        let numbers = thread * EACH..(thread + 1) * EACH;
                        numbers.map(|n| pool.submit(returning::<u32, K>(n)).unwrap()).collect()
                    };
                    thread::spawn(ids)
                })
                .collect();
            let reader = thread::spawn(move || results.map(|outcome| outcome.result.unwrap()).collect::<Vec<u32>>());
            let ids: HashSet<TaskId> = submitters.into_iter().flat_map(|one| one.join().unwrap()).collect();
            assert_eq!(ids.len() as u32, THREADS * EACH, "two tasks have the same id");
            let report = fixture.join();
            assert_eq!((report.finished, report.is_clean()), (u64::from(THREADS * EACH), true));
            assert_eq!(report.stats.queue_high_water, 2);
            let mut values = reader.join().unwrap();
            values.sort_unstable();
            assert_eq!(values, (0..THREADS * EACH).collect::<Vec<_>>());
        }
    }
}

/// A task that waited for room in its own pool would wait for itself.
fn submit_does_not_wait_inside_a_task_of_the_same_pool<K: WorkerKind>() {
    for timed in [false, true] {
        let clock = ManualClock::new();
        let builder = pool_builder(1, 1).clock(&clock).result_capacity(1_000);
        let (fixture, results) = build_with_results::<u32, K>(builder, ResultOrder::AsCompleted);
        let (pool, gate, started) = (fixture.pool.clone(), Gate::default(), Signal::default());
        let (begun, passed) = (started.clone(), gate.passed());
        let task = K::once(async move |_| {
            begun.notify();
            passed.await;
            for n in 1..=50 {
                let limit = timed.then_some(SEC);
                K::submit(&pool.0, returning::<u32, K>(n), limit)
                    .await
                    .map_err(|error| gristmill_pool::TaskError::permanent(format!("{n}: {error}")))?;
            }
            Ok(0)
        });
        fixture.submit(task).unwrap();
        started.wait_for(1);
        fixture.submit(returning::<u32, K>(51)).unwrap();
        gate.open();
        // Not `join` yet, because a closed pool also rejects tasks from inside.
        wait_until(|| fixture.stats().completed == 52 || fixture.stats().failed > 0);
        let report = fixture.join();
        assert_eq!((report.finished, report.stats.spawned), (52, 50), "{:?}", report.failures);
        let mut values: Vec<u32> = results.map(|outcome| outcome.result.unwrap()).collect();
        values.sort_unstable();
        assert_eq!(values, (0..=51).collect::<Vec<_>>());
    }
}

fn submitted_tasks_are_numbered_from_0<K: WorkerKind>() {
    let (fixture, results) = build_with_results::<u32, K>(pool_builder(2, 4), ResultOrder::AsSubmitted);
    let ids: Vec<u64> = (0..4).map(|n| fixture.submit(returning::<u32, K>(n)).unwrap().get()).collect();
    assert_eq!(ids, [0, 1, 2, 3]);
    fixture.close();
    let reported: Vec<(u64, u32)> = results.map(|outcome| (outcome.task.id.get(), outcome.result.unwrap())).collect();
    assert_eq!(reported, [(0, 0), (1, 1), (2, 2), (3, 3)]);
}

/// The operating system rejects such names of threads.
fn pool_name_may_contain_nul<K: WorkerKind>() {
    let fixture = build::<K>(pool_builder(1, 4).name("a\0b"));
    fixture.submit(returning::<(), K>(())).unwrap();
    assert!(fixture.join().is_clean());
}

for_each_worker_kind!(
    try_submit_fails_when_queue_is_full,
    submit_timeout_fails_when_queue_stays_full,
    submit_timeout_submits_when_room_appears_in_time,
    submit_timeout_does_not_wait_when_there_is_room,
    submit_until_ends_when_the_token_is_cancelled,
    submit_until_ends_when_the_pool_ends,
    close_and_cancel_release_waiting_submitters,
    every_task_runs_once_when_many_threads_submit,
    submit_does_not_wait_inside_a_task_of_the_same_pool,
    submitted_tasks_are_numbered_from_0,
    pool_name_may_contain_nul,
);

/// Waiting submitters, one step at a time: their futures are polled by hand. Threads wait in the same list.
#[cfg(feature = "tokio")]
mod waiting_submitters {
    use super::*;
    use std::{
        pin::Pin,
        sync::Arc,
        task::{Context, Poll, Waker},
    };

    type Pending<'a> = Pin<Box<dyn Future<Output = SubmitResult<u32, OnTokio>> + Send + 'a>>;

    struct Submitter<'a> {
        future: Pending<'a>,
        flag: Arc<WakeFlag>,
    }

    impl<'a> Submitter<'a> {
        fn new(pool: &'a Handle<u32, OnTokio>, task: TaskOf<u32, OnTokio>) -> Self {
            let mut submitter = Self { future: OnTokio::submit(&pool.0, task, None), flag: Arc::default() };
            assert!(submitter.poll().is_none(), "did not wait");
            submitter
        }

        fn poll(&mut self) -> Option<SubmitResult<u32, OnTokio>> {
            let waker = Waker::from(Arc::clone(&self.flag));
            match self.future.as_mut().poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(done) => Some(done),
                Poll::Pending => None,
            }
        }

        fn accepted(mut self) -> u64 {
            self.flag.wait();
            self.poll().expect("woken without room").unwrap().get()
        }
    }

    /// A full pool, a gate for its running task and a gate for its queued task.
    fn pool() -> (Fixture<u32, OnTokio>, Gate, Gate, gristmill_pool::Results<u32>) {
        let builder = pool_builder(1, 1).result_capacity(100);
        let (fixture, results) = build_with_results::<u32, OnTokio>(builder, ResultOrder::AsCompleted);
        let (first, second, started) = (Gate::default(), Gate::default(), Signal::default());
        fixture.submit(hold::<u32, OnTokio>(&started, &first, 0)).unwrap();
        started.wait_for(1);
        fixture.submit(hold::<u32, OnTokio>(&started, &second, 1)).unwrap();
        (fixture, first, second, results)
    }

    #[test]
    fn submitters_are_served_in_order() {
        let (fixture, first, second, results) = pool();
        let waiting: Vec<_> = (10..15).map(|n| Submitter::new(&fixture, returning::<u32, OnTokio>(n))).collect();
        first.open();
        second.open();
        let ids: Vec<u64> = waiting.into_iter().map(Submitter::accepted).collect();
        assert_eq!(ids, [2, 3, 4, 5, 6]);
        fixture.close();
        let values: Vec<u32> = results.map(|outcome| outcome.result.unwrap()).collect();
        assert_eq!(values, [0, 1, 10, 11, 12, 13, 14]);
    }

    /// Room is reserved for the woken submitter, even if another one polls first.
    #[test]
    fn woken_submitter_keeps_its_room() {
        let (fixture, first, second, _results) = pool();
        let waiting = Submitter::new(&fixture, returning::<u32, OnTokio>(10));
        first.open();
        waiting.flag.wait();
        assert_eq!(fixture.try_submit(returning::<u32, OnTokio>(11)).unwrap_err().kind, SubmitErrorKind::Full);
        let mut late = Submitter::new(&fixture, returning::<u32, OnTokio>(12));
        let Submitter { mut future, flag } = waiting;
        let waker = Waker::from(flag);
        assert!(future.as_mut().poll(&mut Context::from_waker(&waker)).is_ready());
        assert!(late.poll().is_none(), "room for two in a queue of one");
        second.open();
        late.accepted();
    }

    #[test]
    fn dropped_submitter_frees_its_place() {
        let (fixture, first, second, results) = pool();
        let [one, two, three] = [10, 11, 12].map(|n| Submitter::new(&fixture, returning::<u32, OnTokio>(n)));
        drop(two);
        first.open();
        second.open();
        one.accepted();
        three.accepted();
        let values = results.take(4).map(|outcome| outcome.result.unwrap()).collect::<Vec<_>>();
        assert_eq!(values, [0, 1, 10, 12]);
    }

    /// Room that was reserved for a submitter whose token is cancelled goes to the next one, and its place is freed.
    #[test]
    fn cancelled_submitter_passes_its_room_on() {
        let (fixture, first, second, results) = pool();
        let token = CancelToken::new();
        let until = |n| {
            let future = OnTokio::submit_until(&fixture.0, returning::<u32, OnTokio>(n), &token);
            let mut submitter = Submitter { future, flag: Arc::default() };
            assert!(submitter.poll().is_none(), "did not wait");
            submitter
        };
        let mut waiting = until(10);
        let next = Submitter::new(&fixture, returning::<u32, OnTokio>(11));
        token.cancel();
        assert!(waiting.flag.is_woken());
        assert_eq!(waiting.poll().unwrap().unwrap_err().kind, SubmitErrorKind::Cancelled);
        first.open();
        next.accepted();
        second.open();
        fixture.close();
        assert_eq!(results.map(|outcome| outcome.result.unwrap()).collect::<Vec<_>>(), [0, 1, 11]);
    }

    #[test]
    fn woken_submitter_passes_its_room_on_when_dropped() {
        let (fixture, first, second, results) = pool();
        let [one, two] = [10, 11].map(|n| Submitter::new(&fixture, returning::<u32, OnTokio>(n)));
        first.open();
        one.flag.wait();
        assert!(!two.flag.is_woken(), "room for two in a queue of one");
        drop(one);
        two.accepted();
        second.open();
        fixture.close();
        let values = results.map(|outcome| outcome.result.unwrap()).collect::<Vec<_>>();
        assert_eq!(values, [0, 1, 11]);
    }

    /// Closing the pool revokes reserved room.
    #[test]
    fn woken_submitter_is_rejected_when_pool_closes() {
        let (fixture, first, second, results) = pool();
        let [mut one, two] = [10, 11].map(|n| Submitter::new(&fixture, returning::<u32, OnTokio>(n)));
        first.open();
        one.flag.wait();
        fixture.close();
        drop(two);
        assert_eq!(one.poll().unwrap().unwrap_err().kind, SubmitErrorKind::Closed);
        second.open();
        assert_eq!(results.count(), 2);
    }
}

/// Room was granted to the submitter, and its token was cancelled, before it was polled again.
#[cfg(feature = "tokio")]
#[test]
fn cancelled_token_wins_over_room_granted_meanwhile() {
    let (fixture, gate, _results) = full::<OnTokio>(1, &ManualClock::new());
    let token = CancelToken::new();
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    let mut waiting = Box::pin(fixture.0.submit_until(returning::<u32, OnTokio>(1), &token));
    assert!(waiting.as_mut().poll(&mut cx).is_pending());
    gate.open();
    fixture.wait_idle();
    token.cancel();
    let std::task::Poll::Ready(Err(error)) = waiting.as_mut().poll(&mut cx) else { panic!("accepted") };
    assert_eq!(error.kind, SubmitErrorKind::Cancelled);
    // The room that was granted is free again.
    fixture.try_submit(returning::<u32, OnTokio>(2)).expect("room");
    assert_eq!(fixture.join().finished, 3);
}
