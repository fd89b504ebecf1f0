//! Workers that give no sign of life: seen, replaced, and their tasks settled exactly once.

#![cfg(not(any(shuttle, loom)))]

#[macro_use]
mod suite;

use gristmill_pool::{
    Breaker, ResultOrder, Results, breaker::BreakerState, clock::ManualClock, error::Cause,
    error::SubmitErrorKind,
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    thread,
};
use suite::*;

fn rig<K: Kind>(workers: usize, delivery: ResultOrder) -> (Rig<u32, K>, Results<u32>, ManualClock) {
    let clock = ManualClock::new();
    let builder = small(workers, 8).clock(&clock).stall_timeout(SEC * 8);
    let (rig, results) = build_with_results(builder, delivery);
    (rig, results, clock)
}

/// Lets the watch see every worker as it is, and then again when the limit is over.
fn stall(clock: &ManualClock) {
    clock.advance(SEC * 2);
    clock.advance(SEC * 8);
}

fn a_stalled_worker_is_replaced_and_its_task_has_failed<K: Kind>() {
    for delivery in DELIVERIES {
        for workers in [1, 3] {
            let (rig, mut results, clock) = rig::<K>(workers, delivery);
            let (gate, started, gone) = (Gate::default(), Signal::default(), Signal::default());
            let (begun, passed, guard) = (started.clone(), gate.passed(), OnDrop(gone.clone()));
            let stuck = K::once(async move |_| {
                let _guard = guard;
                begun.give();
                passed.await;
                Ok(1)
            });
            rig.submit(stuck.kind("mount").label("nfs")).unwrap();
            started.wait_for(1);
            stall(&clock);
            let outcome = results.next().unwrap();
            let failure = outcome.result.unwrap_err();
            assert!(matches!(failure.error.cause(), Cause::Stalled(after) if *after == SEC * 8));
            assert_eq!(failure.to_string(), "mount #0 (nfs): stalled: no heartbeat for 8s");
            assert_eq!(failure.attempts, 1);
            let stats = rig.stats();
            assert_eq!((stats.workers, stats.stalled, stats.failed), (workers, 1, 1));
            // The replacements work: as many as before, and at the same time.
            let meeting = Meeting::of(workers);
            for _ in 0..workers {
                let meeting = meeting.clone();
                let task = K::once(async move |_| {
                    meeting.attend().await;
                    Ok(2)
                });
                rig.submit(task).unwrap();
            }
            for _ in 0..workers {
                assert_eq!(results.next().unwrap().result.unwrap(), 2);
            }
            gate.open();
            gone.wait_for(1);
            let report = rig.join();
            assert_partition(&report);
            assert_eq!((report.finished, report.failed), (workers as u64, 1));
            assert_eq!(results.count(), 0, "delivered twice");
        }
    }
}

#[test]
fn the_late_result_of_a_thread_is_discarded_and_counted() {
    for delivery in DELIVERIES {
        let (rig, results, clock) = rig::<OnThreads>(1, delivery);
        let gate = Gate::default();
        occupy(&rig, &gate);
        stall(&clock);
        assert_eq!(rig.stats().late_discarded, 0);
        gate.open();
        until(|| rig.stats().late_discarded == 1);
        let report = rig.join();
        assert_partition(&report);
        assert_eq!((report.finished, report.failed, results.count()), (0, 1, 1));
    }
}

fn heartbeats_keep_a_worker<K: Kind>() {
    let (rig, mut results, clock) = rig::<K>(1, ResultOrder::AsCompleted);
    let (contexts, gate, started) = (Log::<Ctx<u32, K>>::default(), Gate::default(), Signal::default());
    let (kept, passed, begun) = (contexts.clone(), gate.passed(), started.clone());
    let task = K::once(async move |context: Ctx<u32, K>| {
        kept.add(context);
        begun.give();
        passed.await;
        Ok(5)
    });
    rig.submit(task).unwrap();
    started.wait_for(1);
    let context = contexts.all().remove(0);
    for _ in 0..20 {
        context.heartbeat();
        clock.advance(SEC * 6);
        assert!(!context.is_cancelled());
    }
    assert_eq!(rig.stats().stalled, 0);
    // And without them, no longer.
    stall(&clock);
    assert_eq!(rig.stats().stalled, 1);
    assert!(context.is_cancelled(), "a stalled task is told to stop");
    gate.open();
    assert!(results.next().unwrap().result.is_err());
}

fn idle_workers_do_not_stall<K: Kind>() {
    let (rig, mut results, clock) = rig::<K>(2, ResultOrder::AsCompleted);
    for _ in 0..3 {
        (0..10).for_each(|_| stall(&clock));
        rig.submit(make::<u32, K>(1)).unwrap();
        assert_eq!(results.next().unwrap().result.unwrap(), 1);
    }
    assert_eq!((rig.stats().stalled, rig.stats().workers), (0, 2));
}

/// Many short tasks on a worker that is always busy are many signs of life.
fn a_busy_worker_does_not_stall<K: Kind>() {
    let (rig, mut results, clock) = rig::<K>(1, ResultOrder::AsCompleted);
    let mut next = Gate::default();
    occupy(&rig, &next);
    for _ in 0..10 {
        let (gate, started) = (Gate::default(), Signal::default());
        rig.submit(hold::<u32, K>(&started, &gate, 1)).unwrap();
        clock.advance(SEC * 6);
        next.open();
        results.next().unwrap();
        started.wait_for(1);
        next = gate;
    }
    next.open();
    assert_eq!((rig.stats().stalled, rig.join().finished), (0, 11));
}

/// What the stalled worker had spawned waits on its shelf; others run it.
fn tasks_of_a_stalled_worker_are_run_by_others<K: Kind>() {
    for delivery in DELIVERIES {
        let (rig, results, clock) = rig::<K>(1, delivery);
        let (gate, started) = (Gate::default(), Signal::default());
        let (passed, begun) = (gate.passed(), started.clone());
        let task = K::once(async move |context: Ctx<u32, K>| {
            for n in 1..=5 {
                context.spawn_task(make::<u32, K>(n))?;
            }
            begun.give();
            passed.await;
            Ok(0)
        });
        rig.submit(task).unwrap();
        started.wait_for(1);
        assert_eq!(rig.stats().queued, 5);
        stall(&clock);
        rig.close();
        let (made, failed): (Vec<_>, Vec<_>) = results.map(|outcome| outcome.result).partition(Result::is_ok);
        let mut made: Vec<u32> = made.into_iter().map(Result::unwrap).collect();
        made.sort_unstable();
        assert_eq!((made, failed.len()), (vec![1, 2, 3, 4, 5], 1));
        gate.open();
        assert_partition(&rig.join());
    }
}

/// The last worker of a closed pool stalls: the pool ends without it.
fn a_stalled_task_does_not_hold_a_join_up<K: Kind>() {
    for cancel in [false, true] {
        let (rig, results, clock) = rig::<K>(1, ResultOrder::AsCompleted);
        let gate = Gate::default();
        occupy(&rig, &gate);
        rig.stop(cancel);
        let pool = rig.pool.clone();
        let joining = thread::spawn(move || pool.join());
        stall(&clock);
        let report = joining.join().unwrap();
        assert_partition(&report);
        assert_eq!((report.failed, report.stats.stalled), (1, 1));
        assert_eq!(results.count(), 1);
        gate.open();
    }
}

every_kind!(
    a_stalled_worker_is_replaced_and_its_task_has_failed,
    heartbeats_keep_a_worker,
    idle_workers_do_not_stall,
    a_busy_worker_does_not_stall,
    tasks_of_a_stalled_worker_are_run_by_others,
    a_stalled_task_does_not_hold_a_join_up,
);

/// A thread cannot be stopped, so it goes on and tries: with its context, and with the pool itself. What it is
/// refused is not counted, and costs readers and submitters nothing.
#[test]
fn a_given_up_thread_can_spawn_no_more() {
    for delivery in DELIVERIES {
        let (rig, mut results, clock) = rig::<OnThreads>(1, delivery);
        let (gate, started) = (Gate::default(), Signal::default());
        let (passed, begun, pool) = (gate.passed(), started.clone(), rig.pool.clone());
        let refused = Signal::default();
        let count = refused.clone();
        let task = OnThreads::once(async move |context: Ctx<u32, OnThreads>| {
            begun.give();
            passed.await;
            assert!(context.is_cancelled());
            for _ in 0..100 {
                let error = context.spawn_task(make::<u32, OnThreads>(1)).unwrap_err();
                assert_eq!(error.kind, SubmitErrorKind::Cancelled);
                assert!(pool.submit(make::<u32, OnThreads>(1)).is_err());
                count.give();
            }
            Ok(0)
        });
        rig.submit(task).unwrap();
        started.wait_for(1);
        stall(&clock);
        results.next().unwrap().result.unwrap_err();
        gate.open();
        until(|| rig.stats().late_discarded == 1);
        assert_eq!(refused.count(), 100);
        for n in 0..50 {
            rig.submit(make::<u32, OnThreads>(n)).unwrap();
            assert_eq!(results.next().unwrap().result.unwrap(), n);
        }
        let report = rig.join();
        assert_partition(&report);
        assert_eq!(report.stats.submitted, 51);
    }
}

/// Nobody hears of the probe again, so the breaker must not wait for it.
#[test]
fn a_probe_that_stalls_has_failed() {
    let clock = ManualClock::new();
    let breaker = Breaker::new(1, SEC * 100).clock(&clock);
    let builder = small(1, 8).clock(&clock).stall_timeout(SEC * 8).breaker(breaker.clone());
    let (rig, mut results) = build_with_results::<u32, OnThreads>(builder, ResultOrder::AsCompleted);
    let down = OnThreads::once(async |_| Err(gristmill_pool::TaskError::transient("down")));
    rig.submit(down).unwrap();
    results.next().unwrap().result.unwrap_err();
    clock.advance(SEC * 100);
    let gate = Gate::default();
    occupy(&rig, &gate);
    assert_eq!(breaker.stats().state, BreakerState::HalfOpen);
    stall(&clock);
    results.next().unwrap().result.unwrap_err();
    clock.advance(SEC * 100);
    rig.submit(make::<u32, OnThreads>(3)).unwrap();
    assert_eq!(results.next().unwrap().result.unwrap(), 3, "the next probe");
    assert_eq!((breaker.stats().state, breaker.stats().probes), (BreakerState::Closed, 2));
    // What the given-up probe has to say comes too late.
    gate.open();
    until(|| rig.stats().late_discarded == 1);
    rig.join();
    assert_eq!(breaker.stats().state, BreakerState::Closed);
}

/// Workers stall, finish and are replaced at the same instant, again and again; every task is settled once.
#[test]
fn a_race_between_finishing_and_stalling_settles_once() {
    let clock = ManualClock::new();
    let builder = small(2, 4).clock(&clock).stall_timeout(SEC).result_capacity(10_000);
    let (rig, results) = build_with_results::<u32, OnThreads>(builder, ResultOrder::AsCompleted);
    let over = Arc::new(AtomicBool::new(false));
    let stop = Arc::clone(&over);
    let ticker = thread::spawn(move || {
        while !stop.load(SeqCst) {
            clock.advance(SEC / 2);
        }
    });
    for n in 0..2_000 {
        rig.submit(make::<u32, OnThreads>(n)).unwrap();
    }
    rig.close();
    let mut ids: Vec<u64> = results.map(|outcome| outcome.task.id.get()).collect();
    over.store(true, SeqCst);
    ticker.join().unwrap();
    ids.sort_unstable();
    assert!(ids.into_iter().eq(0..2_000), "an outcome is missing, or there twice");
    assert_partition(&rig.join());
}
