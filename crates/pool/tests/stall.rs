//! Stalled workers: detected, replaced, and their tasks settled exactly once.

#![cfg(not(any(shuttle, loom)))]

#[macro_use]
mod suite;

use gristmill_pool::{
    Breaker, ResultOrder, Results, breaker::BreakerState, clock::ManualClock, error::Cause, error::SubmitErrorKind,
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    thread,
};
use suite::*;

fn fixture<K: WorkerKind>(workers: usize, result_order: ResultOrder) -> (Fixture<u32, K>, Results<u32>, ManualClock) {
    let clock = ManualClock::new();
    let builder = pool_builder(workers, 8).clock(&clock).stall_timeout(SEC * 8);
    let (fixture, results) = build_with_results(builder, result_order);
    (fixture, results, clock)
}

/// Lets the stall detector observe every worker, and again after the timeout of 8 s.
fn stall(clock: &ManualClock) {
    clock.advance(SEC * 2);
    clock.advance(SEC * 8);
}

fn stalled_worker_is_replaced_and_its_task_fails<K: WorkerKind>() {
    for result_order in RESULT_ORDERS {
        for workers in [1, 3] {
            let (fixture, mut results, clock) = fixture::<K>(workers, result_order);
            let (gate, started, gone) = (Gate::default(), Signal::default(), Signal::default());
            let (begun, passed, guard) = (started.clone(), gate.passed(), OnDrop(gone.clone()));
            let stuck = K::once(async move |_| {
                let _guard = guard;
                begun.notify();
                passed.await;
                Ok(1)
            });
            fixture.submit(stuck.kind("mount").label("nfs")).unwrap();
            started.wait_for(1);
            stall(&clock);
            let outcome = results.next().unwrap();
            let failure = outcome.result.unwrap_err();
            assert!(matches!(failure.error.cause(), Cause::Stalled(after) if *after == SEC * 8));
            assert_eq!(failure.to_string(), "mount #0 (nfs): stalled: no heartbeat for 8s");
            assert_eq!(failure.attempts, 1);
            let stats = fixture.stats();
            assert_eq!((stats.workers, stats.stalled, stats.failed), (workers, 1, 1));
            // As many workers as before run tasks at the same time.
            let barrier = Barrier::new(workers);
            for _ in 0..workers {
                let barrier = barrier.clone();
                let task = K::once(async move |_| {
                    barrier.wait().await;
                    Ok(2)
                });
                fixture.submit(task).unwrap();
            }
            for _ in 0..workers {
                assert_eq!(results.next().unwrap().result.unwrap(), 2);
            }
            gate.open();
            gone.wait_for(1);
            let report = fixture.join();
            assert_reports_each_task_once(&report);
            assert_eq!((report.finished, report.failed), (workers as u64, 1));
            assert_eq!(results.count(), 0, "delivered twice");
        }
    }
}

#[test]
fn late_result_of_stalled_thread_is_discarded_and_counted() {
    for result_order in RESULT_ORDERS {
        let (fixture, results, clock) = fixture::<OnThreads>(1, result_order);
        let gate = Gate::default();
        occupy(&fixture, &gate);
        stall(&clock);
        assert_eq!(fixture.stats().late_discarded, 0);
        gate.open();
        wait_until(|| fixture.stats().late_discarded == 1);
        let report = fixture.join();
        assert_reports_each_task_once(&report);
        assert_eq!((report.finished, report.failed, results.count()), (0, 1, 1));
    }
}

fn heartbeats_keep_a_worker_from_stalling<K: WorkerKind>() {
    let (fixture, mut results, clock) = fixture::<K>(1, ResultOrder::AsCompleted);
    let (contexts, gate, started) = (Log::<ContextOf<u32, K>>::default(), Gate::default(), Signal::default());
    let (kept, passed, begun) = (contexts.clone(), gate.passed(), started.clone());
    let task = K::once(async move |context: ContextOf<u32, K>| {
        kept.add(context);
        begun.notify();
        passed.await;
        Ok(5)
    });
    fixture.submit(task).unwrap();
    started.wait_for(1);
    let context = contexts.all().remove(0);
    for _ in 0..20 {
        context.heartbeat();
        clock.advance(SEC * 6);
        assert!(!context.is_cancelled());
    }
    assert_eq!(fixture.stats().stalled, 0);
    // Without heartbeats the worker stalls.
    stall(&clock);
    assert_eq!(fixture.stats().stalled, 1);
    assert!(context.is_cancelled(), "a stalled task is cancelled");
    gate.open();
    assert!(results.next().unwrap().result.is_err());
}

fn idle_workers_do_not_stall<K: WorkerKind>() {
    let (fixture, mut results, clock) = fixture::<K>(2, ResultOrder::AsCompleted);
    for _ in 0..3 {
        (0..10).for_each(|_| stall(&clock));
        fixture.submit(returning::<u32, K>(1)).unwrap();
        assert_eq!(results.next().unwrap().result.unwrap(), 1);
    }
    assert_eq!((fixture.stats().stalled, fixture.stats().workers), (0, 2));
}

/// Each new task counts as progress of its worker.
fn worker_with_many_short_tasks_does_not_stall<K: WorkerKind>() {
    let (fixture, mut results, clock) = fixture::<K>(1, ResultOrder::AsCompleted);
    let mut next = Gate::default();
    occupy(&fixture, &next);
    for _ in 0..10 {
        let (gate, started) = (Gate::default(), Signal::default());
        fixture.submit(hold::<u32, K>(&started, &gate, 1)).unwrap();
        clock.advance(SEC * 6);
        next.open();
        results.next().unwrap();
        started.wait_for(1);
        next = gate;
    }
    next.open();
    assert_eq!((fixture.stats().stalled, fixture.join().finished), (0, 11));
}

/// Tasks that the stalled worker spawned wait in its local queue, and other workers run them.
fn local_tasks_of_stalled_worker_run_elsewhere<K: WorkerKind>() {
    for result_order in RESULT_ORDERS {
        let (fixture, results, clock) = fixture::<K>(1, result_order);
        let (gate, started) = (Gate::default(), Signal::default());
        let (passed, begun) = (gate.passed(), started.clone());
        let task = K::once(async move |context: ContextOf<u32, K>| {
            for n in 1..=5 {
                context.spawn_task(returning::<u32, K>(n))?;
            }
            begun.notify();
            passed.await;
            Ok(0)
        });
        fixture.submit(task).unwrap();
        started.wait_for(1);
        assert_eq!(fixture.stats().queued, 5);
        stall(&clock);
        fixture.close();
        let (values, failed): (Vec<_>, Vec<_>) = results.map(|outcome| outcome.result).partition(Result::is_ok);
        let mut values: Vec<u32> = values.into_iter().map(Result::unwrap).collect();
        values.sort_unstable();
        assert_eq!((values, failed.len()), (vec![1, 2, 3, 4, 5], 1));
        gate.open();
        assert_reports_each_task_once(&fixture.join());
    }
}

/// The last worker of a closed pool stalls, and the pool ends without it.
fn join_does_not_wait_for_stalled_task<K: WorkerKind>() {
    for cancel in [false, true] {
        let (fixture, results, clock) = fixture::<K>(1, ResultOrder::AsCompleted);
        let gate = Gate::default();
        occupy(&fixture, &gate);
        fixture.stop(cancel);
        let pool = fixture.pool.clone();
        let joining = thread::spawn(move || pool.join());
        stall(&clock);
        let report = joining.join().unwrap();
        assert_reports_each_task_once(&report);
        assert_eq!((report.failed, report.stats.stalled), (1, 1));
        assert_eq!(results.count(), 1);
        gate.open();
    }
}

/// The detector checks several times per timeout, at intervals of at least one nanosecond.
fn shortest_stall_timeout_does_not_loop<K: WorkerKind>() {
    for limit in [NANO, NANO * 3] {
        let clock = ManualClock::new();
        let fixture = build::<K>(pool_builder(1, 4).stall_timeout(limit).clock(&clock));
        clock.advance(NANO * 1000);
        assert_eq!(fixture.stats().stalled, 0);
    }
}

fn heartbeat_of_ended_task_does_not_count_for_the_next<K: WorkerKind>() {
    let clock = ManualClock::new();
    let fixture = build::<K>(pool_builder(1, 4).stall_timeout(SEC).clock(&clock));
    let (open, gate) = (Gate::default(), Gate::default());
    open.open();
    let ended_context = context_of(&fixture, &open);
    occupy(&fixture, &gate);
    for _ in 0..8 {
        clock.advance(SEC / 4);
        ended_context.heartbeat();
    }
    assert_eq!(fixture.stats().stalled, 1);
    gate.open();
}

for_each_worker_kind!(
    stalled_worker_is_replaced_and_its_task_fails,
    heartbeats_keep_a_worker_from_stalling,
    idle_workers_do_not_stall,
    worker_with_many_short_tasks_does_not_stall,
    local_tasks_of_stalled_worker_run_elsewhere,
    join_does_not_wait_for_stalled_task,
    shortest_stall_timeout_does_not_loop,
    heartbeat_of_ended_task_does_not_count_for_the_next,
);

/// A stalled thread continues and tries to spawn through its context and to submit to the pool. Rejected tasks are not
/// counted, and do not affect readers and submitters.
#[test]
fn stalled_thread_cannot_spawn() {
    for result_order in RESULT_ORDERS {
        let (fixture, mut results, clock) = fixture::<OnThreads>(1, result_order);
        let (gate, started) = (Gate::default(), Signal::default());
        let (passed, begun, pool) = (gate.passed(), started.clone(), fixture.pool.clone());
        let rejected = Signal::default();
        let count = rejected.clone();
        let task = OnThreads::once(async move |context: ContextOf<u32, OnThreads>| {
            begun.notify();
            passed.await;
            assert!(context.is_cancelled());
            for _ in 0..100 {
                let error = context.spawn_task(returning::<u32, OnThreads>(1)).unwrap_err();
                assert_eq!(error.kind, SubmitErrorKind::Cancelled);
                assert!(pool.submit(returning::<u32, OnThreads>(1)).is_err());
                count.notify();
            }
            Ok(0)
        });
        fixture.submit(task).unwrap();
        started.wait_for(1);
        stall(&clock);
        results.next().unwrap().result.unwrap_err();
        gate.open();
        wait_until(|| fixture.stats().late_discarded == 1);
        assert_eq!(rejected.count(), 100);
        for n in 0..50 {
            fixture.submit(returning::<u32, OnThreads>(n)).unwrap();
            assert_eq!(results.next().unwrap().result.unwrap(), n);
        }
        let report = fixture.join();
        assert_reports_each_task_once(&report);
        assert_eq!(report.stats.submitted, 51);
    }
}

/// An abandoned probe reports no result, so the breaker must not wait for it.
#[test]
fn stalled_probe_counts_as_failed() {
    let clock = ManualClock::new();
    let breaker = Breaker::new(1, SEC * 100).clock(&clock);
    let builder = pool_builder(1, 8).clock(&clock).stall_timeout(SEC * 8).breaker(breaker.clone());
    let (fixture, mut results) = build_with_results::<u32, OnThreads>(builder, ResultOrder::AsCompleted);
    let down = OnThreads::once(async |_| Err(gristmill_pool::TaskError::transient("down")));
    fixture.submit(down).unwrap();
    results.next().unwrap().result.unwrap_err();
    clock.advance(SEC * 100);
    let gate = Gate::default();
    occupy(&fixture, &gate);
    assert_eq!(breaker.stats().state, BreakerState::HalfOpen);
    stall(&clock);
    results.next().unwrap().result.unwrap_err();
    clock.advance(SEC * 100);
    fixture.submit(returning::<u32, OnThreads>(3)).unwrap();
    assert_eq!(results.next().unwrap().result.unwrap(), 3, "the next probe");
    assert_eq!((breaker.stats().state, breaker.stats().probes), (BreakerState::Closed, 2));
    // The result of the abandoned probe comes too late.
    gate.open();
    wait_until(|| fixture.stats().late_discarded == 1);
    fixture.join();
    assert_eq!(breaker.stats().state, BreakerState::Closed);
}

/// Workers stall, finish and are replaced at the same instant, again and again.
#[test]
fn task_is_settled_once_when_finish_and_stall_race() {
    let clock = ManualClock::new();
    let builder = pool_builder(2, 4).clock(&clock).stall_timeout(SEC).result_capacity(10_000);
    let (fixture, results) = build_with_results::<u32, OnThreads>(builder, ResultOrder::AsCompleted);
    let ended = Arc::new(AtomicBool::new(false));
    let stop = Arc::clone(&ended);
    let ticker = thread::spawn(move || {
        while !stop.load(SeqCst) {
            clock.advance(SEC / 2);
        }
    });
    for n in 0..2_000 {
        fixture.submit(returning::<u32, OnThreads>(n)).unwrap();
    }
    fixture.close();
    let mut ids: Vec<u64> = results.map(|outcome| outcome.task.id.get()).collect();
    ended.store(true, SeqCst);
    ticker.join().unwrap();
    ids.sort_unstable();
    assert!(ids.into_iter().eq(0..2_000), "an outcome is missing or duplicated");
    assert_reports_each_task_once(&fixture.join());
}
