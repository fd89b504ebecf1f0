//! Delivery of outcomes to a callback: one for each started task, with attempts, duration and error already decided.

#![cfg(not(any(shuttle, loom)))]

#[macro_use]
mod suite;

use gristmill_pool::{
    Breaker, Outcome, Retry, TaskError,
    breaker::BreakerState,
    clock::ManualClock,
    error::{Cause, SubmitErrorKind},
};
use std::{
    sync::{Arc, OnceLock},
    thread,
    time::Duration,
};
use suite::*;

/// What an outcome says, as a value that can be compared.
type Seen = (u64, u32, Duration, Result<u32, String>);

fn seen(outcome: &Outcome<u32>) -> Seen {
    if let Err(failure) = &outcome.result {
        assert_eq!((&failure.task, failure.attempts), (&outcome.task, outcome.attempts));
    }
    let result = outcome.result.as_ref().map(|value| *value).map_err(|failure| failure.error.to_string());
    (outcome.task.id.get(), outcome.attempts, outcome.duration, result)
}

/// A pool whose callback logs what it gets.
fn logged<K: WorkerKind>(builder: gristmill_pool::PoolBuilder) -> (Fixture<u32, K>, Log<Seen>) {
    let log = Log::default();
    let seen_by_callback = log.clone();
    let fixture = build_with_callback(builder, move |outcome| seen_by_callback.add(seen(&outcome)));
    (fixture, log)
}

/// Each way in which a task can end, on a clock that only the tasks advance.
fn every_end_of_a_task_has_one_outcome<K: WorkerKind>() {
    let clock = ManualClock::new();
    let taking = |seconds: u32, result: fn(u32) -> Result<u32, TaskError>| {
        let clock = clock.clone();
        K::once(async move |_| {
            clock.advance(SEC * seconds);
            result(seconds)
        })
    };
    let retried = {
        let clock = clock.clone();
        K::retrying(Retry::linear(3, Duration::ZERO), move |context: ContextOf<u32, K>| {
            let clock = clock.clone();
            async move {
                clock.advance(SEC * context.attempt());
                if context.attempt() < 3 { Err(TaskError::transient("busy")) } else { Ok(7) }
            }
        })
    };
    let cases: [(TaskOf<u32, K>, _, _, Result<_, &str>); 8] = [
        (taking(2, Ok), 1, 2, Ok(2)),
        (taking(0, Ok), 1, 0, Ok(0)),
        (taking(1, |_| Err(TaskError::permanent("no"))), 1, 1, Err("no")),
        (taking(4, |_| Err(TaskError::cancelled())), 1, 4, Err("cancelled")),
        (retried, 3, 3, Ok(7)),
        (taking(3, |_| Err(TaskError::transient("late"))).timeout(SEC * 2), 1, 3, Err("timed out after 2s")),
        (taking(3, |_| Err(TaskError::cancelled())).timeout(SEC * 2), 1, 3, Err("timed out after 2s")),
        // Another attempt would fail too.
        (taking(3, |_| Err(TaskError::permanent("no"))).timeout(SEC * 2), 1, 3, Err("no")),
    ];
    let (fixture, log) = logged::<K>(pool_builder(1, 8).clock(&clock));
    let mut want = Vec::new();
    for (task, attempts, seconds, result) in cases {
        let id = fixture.submit(task).unwrap().get();
        want.push((id, attempts, SEC * seconds, result.map_err(str::to_owned)));
        wait_until(|| {
            log.all().len() == want.len() || {
                clock.advance(Duration::ZERO);
                false
            }
        });
        assert_eq!(log.all(), want);
    }
    let report = fixture.join();
    assert_eq!((report.finished, report.failed, log.all().len()), (3, 5, 8));
}

fn panic_of_a_task_is_an_outcome<K: WorkerKind>() {
    let log = Log::default();
    let messages = log.clone();
    let fixture = build_with_callback::<(), K>(pool_builder(1, 4), move |outcome| {
        let failure = outcome.result.unwrap_err();
        let Cause::Panic { message, .. } = failure.error.cause() else { panic!("{failure}") };
        messages.add((outcome.attempts, message.clone()));
    });
    fixture.submit(K::once(async |_| panic!("bang"))).unwrap();
    assert_eq!(fixture.join().stats.panicked, 1);
    let all = log.all();
    assert!(all.len() == 1 && all[0].0 == 1 && all[0].1.starts_with("bang"), "{all:?}");
}

/// Tiny tasks are taken in batches. Neither their neighbours nor the callback count as theirs.
fn duration_is_exact_for_each_of_many_tiny_tasks<K: WorkerKind>() {
    let (clock, log, gate) = (ManualClock::new(), Log::default(), Gate::default());
    let (callback_log, callback_clock) = (log.clone(), clock.clone());
    let fixture = build_with_callback::<u32, K>(pool_builder(1, 300).clock(&clock), move |outcome| {
        callback_clock.advance(SEC * 100);
        callback_log.add((outcome.result.unwrap(), outcome.duration));
    });
    occupy(&fixture, &gate);
    for n in 0..200 {
        let clock = clock.clone();
        let task = K::once(async move |_| {
            clock.advance(NANO * (n % 3));
            Ok(n)
        });
        fixture.submit(task).unwrap();
    }
    gate.open();
    fixture.join();
    let all = log.all();
    assert_eq!(all.len(), 201);
    assert!(all[1..].iter().all(|(n, duration)| *duration == NANO * (n % 3)), "{all:?}");
}

fn open_breaker_gives_an_outcome_with_its_delay<K: WorkerKind>() {
    let (clock, log) = (ManualClock::new(), Log::default());
    let breaker = Breaker::new(1, SEC * 30).clock(&clock);
    let (outcomes, watched) = (log.clone(), breaker.clone());
    let builder = pool_builder(1, 4).clock(&clock).breaker(breaker);
    let fixture = build_with_callback::<u32, K>(builder, move |outcome| {
        let failure = outcome.result.unwrap_err();
        let rejected = matches!(failure.error.cause(), Cause::BreakerOpen);
        let state = watched.stats().state;
        outcomes.add((rejected, outcome.attempts, failure.error.retry_after(), outcome.duration, state));
    });
    let failing = clock.clone();
    let task = K::once(async move |_| {
        failing.advance(SEC);
        Err(TaskError::transient("down"))
    });
    fixture.submit(task).unwrap();
    wait_until(|| log.all().len() == 1);
    clock.advance(SEC * 10);
    fixture.submit(returning::<u32, K>(1)).unwrap();
    fixture.join();
    let open = BreakerState::Open;
    assert_eq!(log.all(), [(false, 1, None, SEC, open), (true, 0, Some(SEC * 20), Duration::ZERO, open)]);
}

fn stalled_task_has_one_outcome<K: WorkerKind>() {
    let clock = ManualClock::new();
    let (fixture, log) = logged::<K>(pool_builder(1, 4).stall_timeout(SEC).clock(&clock));
    let gate = Gate::default();
    clock.advance(SEC / 4);
    occupy(&fixture, &gate);
    advance_past_stall(&clock);
    let stalled = (0, 1, SEC + SEC / 4, Err("stalled: no heartbeat for 1s".to_owned()));
    assert_eq!(log.all(), std::slice::from_ref(&stalled));
    gate.open();
    fixture.submit(returning::<u32, K>(5)).unwrap();
    assert_eq!(fixture.join().failed, 1);
    assert_eq!(log.all(), [stalled, (1, 1, Duration::ZERO, Ok(5))]);
}

/// Tasks that have not run have no outcome; a task between two attempts fails with the error of its last attempt.
fn cancel_gives_an_outcome_to_started_tasks_only<K: WorkerKind>() {
    let clock = ManualClock::new();
    let (fixture, log) = logged::<K>(pool_builder(1, 4).clock(&clock));
    let (gate, advanced) = (Gate::default(), clock.clone());
    let retried = K::retrying(Retry::linear(3, SEC), move |_| {
        advanced.advance(SEC * 2);
        async { Err(TaskError::transient("busy")) }
    });
    fixture.submit(retried).unwrap();
    clock.wait_for_timers(1);
    occupy(&fixture, &gate);
    fixture.submit(returning::<u32, K>(1)).unwrap();
    fixture.cancel();
    assert_eq!(log.all(), [(0, 1, SEC * 2, Err("busy".to_owned()))]);
    gate.open();
    let report = fixture.join();
    assert_eq!((report.finished, report.failed, report.never_started.len()), (1, 1, 1));
    assert_eq!(log.all()[1..], [(1, 1, Duration::ZERO, Ok(0))]);
}

fn panic_in_callback_does_not_end_its_worker<K: WorkerKind>() {
    let calls = Signal::default();
    let called = calls.clone();
    let fixture = build_with_callback::<(), K>(pool_builder(1, 4), move |_| {
        called.notify();
        panic_now();
    });
    for _ in 0..3 {
        fixture.submit(returning::<(), K>(())).unwrap();
    }
    let report = fixture.join();
    assert_eq!((report.finished, report.failed, report.stats.panicked, calls.count()), (3, 0, 0, 3));
}

/// The callback sees its task in the statistics, submits more than the queue holds, and does not wait for its own pool.
fn callback_may_use_its_pool<K: WorkerKind>() {
    let own_pool: Arc<OnceLock<Handle<u32, K>>> = Arc::default();
    let (pool_in_callback, calls) = (Arc::clone(&own_pool), Signal::default());
    let called = calls.clone();
    let fixture = build_with_callback::<u32, K>(pool_builder(1, 1), move |outcome| {
        let pool = pool_in_callback.get().unwrap();
        assert!(pool.stats().completed >= u64::from(outcome.result.is_ok()));
        if outcome.result.unwrap() == 0 {
            for n in 1..=5 {
                pool.submit(returning::<u32, K>(n)).unwrap();
            }
            pool.join();
            assert_eq!(pool.submit(returning::<u32, K>(6)).unwrap_err().kind, SubmitErrorKind::Closed);
        }
        called.notify();
    });
    assert!(own_pool.set(fixture.pool.clone()).is_ok());
    fixture.submit(returning::<u32, K>(0)).unwrap();
    calls.wait_for(6);
    assert_eq!(fixture.join().finished, 6);
}

fn pool_ends_after_the_last_callback<K: WorkerKind>() {
    let (entered, gate) = (Signal::default(), Gate::default());
    let (begun, held) = (entered.clone(), gate.clone());
    let fixture = build_with_callback::<(), K>(pool_builder(2, 4), move |_| {
        begun.notify();
        block_on(held.passed());
    });
    fixture.submit(returning::<(), K>(())).unwrap();
    entered.wait_for(1);
    let pool = fixture.pool.clone();
    let joining = thread::spawn(move || pool.join());
    assert!(!fixture.is_finished());
    gate.open();
    assert_eq!(joining.join().unwrap().finished, 1);
    assert!(fixture.is_finished());
}

for_each_worker_kind!(
    every_end_of_a_task_has_one_outcome,
    panic_of_a_task_is_an_outcome,
    duration_is_exact_for_each_of_many_tiny_tasks,
    open_breaker_gives_an_outcome_with_its_delay,
    stalled_task_has_one_outcome,
    cancel_gives_an_outcome_to_started_tasks_only,
    panic_in_callback_does_not_end_its_worker,
    callback_may_use_its_pool,
    pool_ends_after_the_last_callback,
);

/// A runtime that ends drops the running task, which then fails.
#[cfg(feature = "tokio")]
#[test]
fn ended_runtime_gives_an_outcome_to_the_running_task() {
    let clock = ManualClock::new();
    let (fixture, log) = logged::<OnTokio>(pool_builder(1, 4).clock(&clock));
    occupy(&fixture, &Gate::default());
    fixture.submit(returning::<u32, OnTokio>(1)).unwrap();
    clock.advance(SEC);
    let Fixture { pool, runtime } = fixture;
    drop(runtime);
    let report = pool.join();
    assert_eq!((report.failed, report.never_started.len()), (1, 1));
    assert_eq!(log.all(), [(0, 1, SEC, Err("cancelled".to_owned()))]);
}
