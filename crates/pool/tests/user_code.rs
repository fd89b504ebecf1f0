//! User code that the pool runs: drops and wakers that panic or call the pool.

#![cfg(not(any(shuttle, loom)))]

#[macro_use]
mod suite;

use gristmill_pool::{Retry, TaskError, clock::ManualClock};
use std::{
    pin::pin,
    sync::Arc,
    task::{self, Waker},
};
use suite::*;

/// An error of an earlier attempt calls the pool when it is dropped.
fn error_may_call_pool_when_dropped<K: WorkerKind>() {
    let clock = ManualClock::new();
    let fixture = build::<K>(pool_builder(1, 4).clock(&clock));
    let (pool, dropped) = (fixture.pool.clone(), Signal::default());
    let count = dropped.clone();
    let task = K::retrying(Retry::linear(3, SEC).without_jitter(), move |_| {
        let (pool, dropped) = (pool.clone(), count.clone());
        let error = DropHook(move || {
            pool.stats();
            dropped.notify();
        });
        async { Err(TaskError::transient(error)) }
    });
    fixture.submit(task).unwrap();
    for attempt in 1..3 {
        clock.wait_for_timers(1);
        clock.advance(SEC * attempt);
        dropped.wait_for(attempt as usize - 1);
    }
    assert_eq!(fixture.join().failed, 1);
    dropped.wait_for(2);
}

fn worker_survives_error_that_panics_on_drop<K: WorkerKind>() {
    let fixture = build::<K>(pool_builder(1, 4).keep_failures(0));
    for _ in 0..3 {
        fixture.submit(K::once(async |_| Err(TaskError::transient(DropHook(panic_now))))).unwrap();
    }
    wait_until(|| fixture.stats().failed == 3);
    fixture.submit(returning::<(), K>(())).unwrap();
    let report = fixture.join();
    assert_eq!((report.finished, report.failed), (1, 3));
}

fn waker_may_call_pool_when_task_is_cancelled<K: WorkerKind>() {
    let clock = ManualClock::new();
    let fixture = build::<K>(pool_builder(1, 4).stall_timeout(SEC).clock(&clock));
    let gate = Gate::default();
    let context = context_of(&fixture, &gate);
    let (pool, woken) = (fixture.pool.clone(), Signal::default());
    let reported = woken.clone();
    let waker = waker(move || {
        pool.stats();
        reported.notify();
    });
    let mut stopped = pin!(context.cancelled());
    assert!(stopped.as_mut().poll(&mut task::Context::from_waker(&waker)).is_pending());
    advance_past_stall(&clock);
    woken.wait_for(1);
    assert_eq!(fixture.stats().stalled, 1);
    gate.open();
}

/// Dropping the reader releases workers that wait for room, even if a result panics on drop.
fn workers_continue_when_dropped_results_panic<K: WorkerKind>() {
    for result_order in RESULT_ORDERS {
        let (fixture, results) =
            build_with_results::<Option<DropHook<fn()>>, K>(pool_builder(1, 8).result_capacity(1), result_order);
        fixture.submit(K::once(async |_| Ok(Some(DropHook(panic_now as fn()))))).unwrap();
        fixture.submit(returning::<_, K>(None)).unwrap();
        wait_until(|| fixture.stats().completed == 1 && fixture.stats().queued == 0);
        drop(results);
        assert_eq!(fixture.join().finished, 2);
    }
}

fn cancel_wakes_others_when_a_waker_panics<K: WorkerKind>() {
    let fixture = build::<K>(pool_builder(1, 4));
    let gate = Gate::default();
    let context = context_of(&fixture, &gate);
    let (flag, panicking) = (Arc::new(WakeFlag::default()), waker(panic_now));
    let (mut first, mut second) = (pin!(context.cancelled()), pin!(context.cancelled()));
    assert!(first.as_mut().poll(&mut task::Context::from_waker(&panicking)).is_pending());
    let waker = Waker::from(Arc::clone(&flag));
    assert!(second.as_mut().poll(&mut task::Context::from_waker(&waker)).is_pending());
    fixture.cancel();
    assert!(flag.is_woken());
    gate.open();
    assert_reports_each_task_once(&fixture.join());
}

for_each_worker_kind!(
    error_may_call_pool_when_dropped,
    worker_survives_error_that_panics_on_drop,
    waker_may_call_pool_when_task_is_cancelled,
    workers_continue_when_dropped_results_panic,
    cancel_wakes_others_when_a_waker_panics,
);

#[cfg(feature = "tokio")]
fn check_panicking_submitter_waker<K: WorkerKind>() {
    let fixture = build::<K>(pool_builder(1, 1));
    let gate = Gate::default();
    occupy(&fixture, &gate);
    fixture.submit(returning::<(), K>(())).unwrap();
    let (panicking, mut waiting) = (waker(panic_now), K::submit(&fixture.0, returning::<(), K>(()), None));
    assert!(waiting.as_mut().poll(&mut task::Context::from_waker(&panicking)).is_pending());
    gate.open();
    let report = fixture.join();
    assert_reports_each_task_once(&report);
    assert!(report.finished >= 2, "{report}");
}

#[cfg(feature = "tokio")]
#[test]
fn no_task_is_lost_when_submitter_waker_panics() {
    check_panicking_submitter_waker::<OnTokio>();
    check_panicking_submitter_waker::<OnTokioSingleThread>();
}
