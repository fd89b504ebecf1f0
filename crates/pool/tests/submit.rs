//! Getting a task into a pool: backpressure, refusals, and whose turn it is.

#![cfg(not(any(shuttle, loom)))]

#[macro_use]
mod suite;

use gristmill_pool::{ResultOrder, clock::ManualClock, error::SubmitErrorKind, task::TaskId};
use std::{collections::HashSet, thread};
use suite::*;

/// A pool whose one worker is occupied and whose queue is full.
fn full<K: Kind>(queue: usize, clock: &ManualClock) -> (Rig<u32, K>, Gate, gristmill_pool::Results<u32>) {
    let builder = small(1, queue).clock(clock).result_capacity(1_000);
    let (rig, results) = build_with_results::<u32, K>(builder, ResultOrder::AsCompleted);
    let gate = Gate::default();
    occupy(&rig, &gate);
    for _ in 0..queue {
        rig.try_submit(make::<u32, K>(0)).expect("room");
    }
    (rig, gate, results)
}

/// What a pool handed back is whole: another one can run it.
#[track_caller]
fn assert_runs<K: Kind>(task: Job<u32, K>, want: u32) {
    let (rig, mut results) = build_with_results::<u32, K>(small(1, 1), ResultOrder::AsCompleted);
    rig.submit(task).unwrap();
    assert_eq!(results.next().unwrap().result.unwrap(), want);
}

fn try_submit_never_waits<K: Kind>() {
    for queue in [1, 3] {
        let (rig, gate, results) = full::<K>(queue, &ManualClock::new());
        let error = rig.try_submit(make::<u32, K>(7)).unwrap_err();
        assert_eq!(error.kind, SubmitErrorKind::Full);
        assert_runs::<K>(error.into_task(), 7);
        gate.open();
        assert_eq!(rig.join().finished, queue as u64 + 1);
        assert_eq!(results.count(), queue + 1);
    }
}

fn submit_timeout_gives_up_when_the_time_is_over<K: Kind>() {
    let clock = ManualClock::new();
    let (rig, gate, _results) = full::<K>(1, &clock);
    let pool = rig.pool.clone();
    let waiting = thread::spawn(move || pool.submit_timeout(make::<u32, K>(9), SEC * 10));
    clock.wait_for_timers(1);
    clock.advance(SEC * 10 - std::time::Duration::from_nanos(1));
    assert!(!waiting.is_finished(), "gave up too early");
    clock.advance(std::time::Duration::from_nanos(1));
    let error = waiting.join().unwrap().unwrap_err();
    assert_eq!(error.kind, SubmitErrorKind::TimedOut);
    assert_runs::<K>(error.into_task(), 9);
    // The place in line is gone with it: what is free belongs to whoever comes.
    gate.open();
    rig.submit(make::<u32, K>(1)).expect("room");
    assert_eq!(rig.join().finished, 3);
    assert_eq!(timers(&clock), 0);
}

fn submit_timeout_takes_the_room_it_gets_in_time<K: Kind>() {
    let clock = ManualClock::new();
    let (rig, gate, results) = full::<K>(1, &clock);
    let pool = rig.pool.clone();
    let waiting = thread::spawn(move || pool.submit_timeout(make::<u32, K>(9), SEC));
    clock.wait_for_timers(1);
    gate.open();
    assert_eq!(waiting.join().unwrap().unwrap().get(), 2);
    assert_eq!(timers(&clock), 0, "the deadline was left behind");
    rig.close();
    assert_eq!(results.map(|outcome| outcome.result.unwrap()).collect::<Vec<_>>(), [0, 0, 9]);
}

fn submit_timeout_does_not_wait_where_there_is_room<K: Kind>() {
    let clock = ManualClock::new();
    let (rig, mut results) =
        build_with_results::<u32, K>(small(1, 1).clock(&clock), ResultOrder::AsCompleted);
    rig.submit_timeout(make::<u32, K>(5), SEC).unwrap();
    assert_eq!(results.next().unwrap().result.unwrap(), 5);
    assert_eq!(timers(&clock), 0);
}

/// Released whether it waits already or is only about to, with its task.
fn stopping_releases_submitters_that_wait<K: Kind>() {
    for (cancel, want) in [(false, SubmitErrorKind::Closed), (true, SubmitErrorKind::Cancelled)] {
        for timed in [false, true] {
            let clock = ManualClock::new();
            let (rig, gate, results) = full::<K>(1, &clock);
            let submitters: Vec<_> = (0..3u32)
                .map(|n| {
                    let pool = rig.pool.clone();
                    thread::spawn(move || match timed {
                        true => pool.submit_timeout(make::<u32, K>(n), SEC),
                        false => pool.submit(make::<u32, K>(n)),
                    })
                })
                .collect();
            if timed {
                clock.wait_for_timers(3);
            }
            rig.stop(cancel);
            for (n, submitter) in submitters.into_iter().enumerate() {
                let error = submitter.join().unwrap().unwrap_err();
                assert_eq!(error.kind, want);
                assert_runs::<K>(error.into_task(), n as u32);
            }
            assert_eq!(rig.try_submit(make::<u32, K>(0)).unwrap_err().kind, want);
            assert_eq!(rig.submit_timeout(make::<u32, K>(0), SEC).unwrap_err().kind, want);
            gate.open();
            drop(results);
            assert_partition(&rig.join());
            assert_eq!(timers(&clock), 0);
        }
    }
}

/// Many threads, a queue that is too short for them: every task runs once, and the queue is never longer than
/// it may be.
fn many_threads_submit_at_once<K: Kind>() {
    const THREADS: u32 = 8;
    const EACH: u32 = 100;
    for order in ORDERS {
        for delivery in DELIVERIES {
            let (rig, results) = build_with_results::<u32, K>(small(2, 2).order(order), delivery);
            let submitters: Vec<_> = (0..THREADS)
                .map(|thread| {
                    let pool = rig.pool.clone();
                    let ids = move || -> Vec<TaskId> {
                        let numbers = thread * EACH..(thread + 1) * EACH;
                        numbers.map(|n| pool.submit(make::<u32, K>(n)).unwrap()).collect()
                    };
                    thread::spawn(ids)
                })
                .collect();
            let reader =
                thread::spawn(move || results.map(|outcome| outcome.result.unwrap()).collect::<Vec<u32>>());
            let ids: HashSet<TaskId> = submitters.into_iter().flat_map(|one| one.join().unwrap()).collect();
            assert_eq!(ids.len() as u32, THREADS * EACH, "an id was given twice");
            let report = rig.join();
            assert_eq!((report.finished, report.is_clean()), (u64::from(THREADS * EACH), true));
            assert_eq!(report.stats.queue_high_water, 2);
            let mut made = reader.join().unwrap();
            made.sort_unstable();
            assert_eq!(made, (0..THREADS * EACH).collect::<Vec<_>>());
        }
    }
}

/// Waiting for room inside the pool's own task would be waiting for oneself.
fn a_task_that_submits_to_its_own_full_pool_does_not_wait<K: Kind>() {
    for timed in [false, true] {
        let clock = ManualClock::new();
        let builder = small(1, 1).clock(&clock).result_capacity(1_000);
        let (rig, results) = build_with_results::<u32, K>(builder, ResultOrder::AsCompleted);
        let (pool, gate, started) = (rig.pool.clone(), Gate::default(), Signal::default());
        let (begun, passed) = (started.clone(), gate.passed());
        let task = K::once(async move |_| {
            begun.give();
            passed.await;
            for n in 1..=50 {
                let limit = timed.then_some(SEC);
                K::submit(&pool.0, make::<u32, K>(n), limit)
                    .await
                    .map_err(|error| gristmill_pool::TaskError::permanent(format!("{n}: {error}")))?;
            }
            Ok(0)
        });
        rig.submit(task).unwrap();
        started.wait_for(1);
        rig.submit(make::<u32, K>(51)).unwrap();
        gate.open();
        // Not `join` yet: a closed pool takes nothing, from inside either.
        until(|| rig.stats().completed == 52 || rig.stats().failed > 0);
        let report = rig.join();
        assert_eq!((report.finished, report.stats.spawned), (52, 50), "{:?}", report.failures);
        let mut made: Vec<u32> = results.map(|outcome| outcome.result.unwrap()).collect();
        made.sort_unstable();
        assert_eq!(made, (0..=51).collect::<Vec<_>>());
    }
}

fn submitted_tasks_are_numbered_from_0<K: Kind>() {
    let (rig, results) = build_with_results::<u32, K>(small(2, 4), ResultOrder::AsSubmitted);
    let ids: Vec<u64> = (0..4).map(|n| rig.submit(make::<u32, K>(n)).unwrap().get()).collect();
    assert_eq!(ids, [0, 1, 2, 3]);
    rig.close();
    let told: Vec<(u64, u32)> =
        results.map(|outcome| (outcome.task.id.get(), outcome.result.unwrap())).collect();
    assert_eq!(told, [(0, 0), (1, 1), (2, 2), (3, 3)]);
}

every_kind!(
    try_submit_never_waits,
    submit_timeout_gives_up_when_the_time_is_over,
    submit_timeout_takes_the_room_it_gets_in_time,
    submit_timeout_does_not_wait_where_there_is_room,
    stopping_releases_submitters_that_wait,
    many_threads_submit_at_once,
    a_task_that_submits_to_its_own_full_pool_does_not_wait,
    submitted_tasks_are_numbered_from_0,
);

/// Submitters that wait, one step at a time: their futures are polled by hand. (The line is the same one that
/// threads stand in.)
#[cfg(feature = "tokio")]
mod in_line {
    use super::*;
    use std::{
        pin::Pin,
        sync::Arc,
        task::{Context, Poll, Waker},
    };

    type Pending<'a> = Pin<Box<dyn Future<Output = Accepted<u32, OnTasks>> + Send + 'a>>;

    struct Submitter<'a> {
        future: Pending<'a>,
        bell: Arc<Bell>,
    }

    impl<'a> Submitter<'a> {
        fn new(pool: &'a Handle<u32, OnTasks>, task: Job<u32, OnTasks>) -> Self {
            let mut made = Self { future: OnTasks::submit(&pool.0, task, None), bell: Arc::default() };
            assert!(made.poll().is_none(), "did not wait");
            made
        }

        fn poll(&mut self) -> Option<Accepted<u32, OnTasks>> {
            let waker = Waker::from(Arc::clone(&self.bell));
            match self.future.as_mut().poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(done) => Some(done),
                Poll::Pending => None,
            }
        }

        fn taken(mut self) -> u64 {
            self.bell.wait();
            self.poll().expect("woken without room").unwrap().get()
        }
    }

    /// A full pool, and a gate for the task that runs, and one for the task that is queued.
    fn pool() -> (Rig<u32, OnTasks>, Gate, Gate, gristmill_pool::Results<u32>) {
        let builder = small(1, 1).result_capacity(100);
        let (rig, results) = build_with_results::<u32, OnTasks>(builder, ResultOrder::AsCompleted);
        let (first, second, started) = (Gate::default(), Gate::default(), Signal::default());
        rig.submit(hold::<u32, OnTasks>(&started, &first, 0)).unwrap();
        started.wait_for(1);
        rig.submit(hold::<u32, OnTasks>(&started, &second, 1)).unwrap();
        (rig, first, second, results)
    }

    #[test]
    fn they_are_served_in_order() {
        let (rig, first, second, results) = pool();
        let waiting: Vec<_> = (10..15).map(|n| Submitter::new(&rig, make::<u32, OnTasks>(n))).collect();
        first.open();
        second.open();
        let ids: Vec<u64> = waiting.into_iter().map(Submitter::taken).collect();
        assert_eq!(ids, [2, 3, 4, 5, 6]);
        rig.close();
        let made: Vec<u32> = results.map(|outcome| outcome.result.unwrap()).collect();
        assert_eq!(made, [0, 1, 10, 11, 12, 13, 14]);
    }

    /// Room goes to the one that was woken, even if somebody else comes before it has.
    #[test]
    fn nobody_overtakes_the_one_that_was_woken() {
        let (rig, first, second, _results) = pool();
        let waiting = Submitter::new(&rig, make::<u32, OnTasks>(10));
        first.open();
        waiting.bell.wait();
        assert_eq!(rig.try_submit(make::<u32, OnTasks>(11)).unwrap_err().kind, SubmitErrorKind::Full);
        let mut late = Submitter::new(&rig, make::<u32, OnTasks>(12));
        let Submitter { mut future, bell } = waiting;
        let waker = Waker::from(bell);
        assert!(future.as_mut().poll(&mut Context::from_waker(&waker)).is_ready());
        assert!(late.poll().is_none(), "room for two in a queue of one");
        second.open();
        late.taken();
    }

    #[test]
    fn one_that_is_dropped_leaves_no_hole() {
        let (rig, first, second, results) = pool();
        let [one, two, three] = [10, 11, 12].map(|n| Submitter::new(&rig, make::<u32, OnTasks>(n)));
        drop(two);
        first.open();
        second.open();
        one.taken();
        three.taken();
        let made = results.take(4).map(|outcome| outcome.result.unwrap()).collect::<Vec<_>>();
        assert_eq!(made, [0, 1, 10, 12]);
    }

    #[test]
    fn one_that_is_dropped_after_it_was_woken_passes_its_room_on() {
        let (rig, first, second, results) = pool();
        let [one, two] = [10, 11].map(|n| Submitter::new(&rig, make::<u32, OnTasks>(n)));
        first.open();
        one.bell.wait();
        assert!(!two.bell.has_rung(), "room for two in a queue of one");
        drop(one);
        two.taken();
        second.open();
        rig.close();
        let made = results.map(|outcome| outcome.result.unwrap()).collect::<Vec<_>>();
        assert_eq!(made, [0, 1, 11]);
    }

    /// After close the room that was promised is nobody's.
    #[test]
    fn one_that_was_woken_is_still_refused_once_the_pool_is_closed() {
        let (rig, first, second, results) = pool();
        let [mut one, two] = [10, 11].map(|n| Submitter::new(&rig, make::<u32, OnTasks>(n)));
        first.open();
        one.bell.wait();
        rig.close();
        drop(two);
        assert_eq!(one.poll().unwrap().unwrap_err().kind, SubmitErrorKind::Closed);
        second.open();
        assert_eq!(results.count(), 2);
    }
}
