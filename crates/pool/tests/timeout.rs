//! A task's time, and what becomes of one that needs longer.

#![cfg(not(any(shuttle, loom)))]

#[macro_use]
mod suite;

use gristmill_pool::{
    ErrorClass, Failure, ResultOrder, Results, Retry, TaskError, clock::ManualClock, error::Cause,
    error::SubmitErrorKind,
};
use std::time::Duration;
use suite::*;

const NANO: Duration = Duration::from_nanos(1);

fn rig<K: Kind>(limit: Option<Duration>) -> (Rig<u32, K>, Results<u32>, ManualClock) {
    let clock = ManualClock::new();
    let builder = small(1, 4).clock(&clock);
    let builder = limit.map_or(builder.clone(), |limit| builder.timeout(limit));
    let (rig, results) = build_with_results(builder, ResultOrder::AsCompleted);
    (rig, results, clock)
}

#[track_caller]
fn assert_timed_out(failure: &Failure, after: Duration) {
    assert!(matches!(failure.error.cause(), Cause::TimedOut(limit) if *limit == after), "{failure}");
}

/// A task that has no time at all could never succeed: it is refused by every way into the pool, and handed back.
fn a_task_with_a_timeout_of_zero_is_refused<K: Kind>() {
    let (rig, mut results, _clock) = rig::<K>(Some(SEC));
    let task = || make::<u32, K>(1).timeout(Duration::ZERO);
    let spawner = K::once(async move |context: Ctx<u32, K>| {
        assert_eq!(context.spawn_task(task()).unwrap_err().kind, SubmitErrorKind::ZeroTimeout);
        Ok(2)
    });
    let refused = [rig.submit(task()), rig.submit_timeout(task(), SEC), rig.try_submit(task())];
    for refused in refused {
        let refused = refused.unwrap_err();
        assert_eq!(refused.kind, SubmitErrorKind::ZeroTimeout);
        assert!(refused.to_string().contains("timeout is zero"), "{refused}");
    }
    rig.submit(spawner).unwrap();
    assert_eq!(results.next().unwrap().result.unwrap(), 2);
    assert_eq!(rig.join().stats.submitted, 1);
}

/// Runs a task until its context says stop, and answers after how long that was.
fn a_task_is_told_when_its_time_is_over<K: Kind>() {
    for (pool, own, want) in
        [(Some(3), None, 3), (None, Some(2), 2), (Some(3), Some(2), 2), (Some(3), Some(5), 5)]
    {
        let (rig, mut results, clock) = rig::<K>(pool.map(|secs| SEC * secs));
        let (started, want) = (Signal::default(), SEC * want);
        let task = listen::<u32, K>(&started);
        rig.submit(if let Some(own) = own { task.timeout(SEC * own) } else { task }).unwrap();
        started.wait_for(1);
        clock.advance(want - NANO);
        assert_eq!((rig.stats().timed_out, rig.stats().active), (0, 1), "too early");
        clock.advance(NANO);
        assert_timed_out(&results.next().unwrap().result.unwrap_err(), want);
        assert_eq!((rig.stats().timed_out, rig.stats().failed, rig.stats().overdue), (1, 1, 0));
        // The worker has nothing left of it.
        let fresh = K::once(async |context: Ctx<u32, K>| Ok(context.is_cancelled().into()));
        rig.submit(fresh).unwrap();
        assert_eq!(results.next().unwrap().result.unwrap(), 0, "cancelled by the timeout of another task");
        assert_partition(&rig.join());
    }
}

/// Limits come and go by the thousand; none is left behind by a task that was in time.
fn timers_are_forgotten<K: Kind>() {
    let (rig, results, clock) = rig::<K>(Some(SEC));
    drop(results);
    for n in 0..500 {
        let task = if n % 2 == 0 { make::<u32, K>(n) } else { fail::<u32, K>("no") };
        rig.submit(task.timeout(SEC * 9)).unwrap();
    }
    let panicking = K::once(async |_| panic!("ouch"));
    rig.submit(panicking.timeout(SEC * 9)).unwrap();
    let report = rig.join();
    assert_eq!((report.finished, report.failed, report.stats.timed_out), (250, 251, 0));
    assert_eq!(timers(&clock), 0);
}

fn a_timeout_is_tried_again_with_its_full_time<K: Kind>() {
    let (rig, mut results, clock) = rig::<K>(None);
    let started = Signal::default();
    let begun = started.clone();
    let task = K::retrying(Retry::linear(3, SEC).without_jitter(), move |context: Ctx<u32, K>| {
        let begun = begun.clone();
        async move {
            let whole = context.remaining();
            begun.give();
            if context.attempt() < 3 {
                context.cancelled().await;
                return Err(TaskError::cancelled());
            }
            assert_eq!(whole, Some(SEC * 7));
            Ok(context.attempt())
        }
    });
    rig.submit(task.timeout(SEC * 7)).unwrap();
    for attempt in 1..3 {
        started.wait_for(attempt as usize);
        clock.wait_for_timers(1);
        clock.advance(SEC * 7);
        clock.wait_for_timers(1);
        clock.advance(SEC * attempt);
    }
    assert_eq!(results.next().unwrap().result.unwrap(), 3);
    assert_eq!((rig.stats().timed_out, rig.stats().retried, timers(&clock)), (2, 2, 0));
}

every_kind!(
    a_task_with_a_timeout_of_zero_is_refused,
    a_task_is_told_when_its_time_is_over,
    timers_are_forgotten,
    a_timeout_is_tried_again_with_its_full_time,
);

/// Holds a thread in a task that has run out of time, with this result. Answers its outcome.
fn overdue(result: fn() -> Result<u32, TaskError>) -> Result<u32, Failure> {
    let (rig, mut results, clock) = rig::<OnThreads>(Some(SEC));
    let (gate, started) = (Gate::default(), Signal::default());
    let (passed, begun) = (gate.passed(), started.clone());
    let task = OnThreads::once(async move |context: Ctx<u32, OnThreads>| {
        begun.give();
        passed.await;
        assert!(context.is_cancelled());
        result()
    });
    rig.submit(task).unwrap();
    started.wait_for(1);
    assert_eq!(rig.stats().overdue, 0);
    clock.advance(SEC);
    let stats = rig.stats();
    assert_eq!((stats.timed_out, stats.overdue, stats.active, stats.workers), (1, 1, 1, 1));
    gate.open();
    let outcome = results.next().unwrap();
    until(|| rig.stats().overdue == 0);
    assert_partition(&rig.join());
    outcome.result
}

#[test]
fn a_thread_past_its_time_is_overdue_until_it_comes_back() {
    assert_eq!(overdue(|| Ok(7)).unwrap(), 7, "what was made after all is not thrown away");
    assert_timed_out(&overdue(|| Err(TaskError::cancelled())).unwrap_err(), SEC);
    let partial = overdue(|| Err(TaskError::partial("upload", "interrupted"))).unwrap_err();
    assert_timed_out(&partial, SEC);
    assert_eq!((partial.error.class(), partial.error.step()), (ErrorClass::Partial, Some("upload")));
    let panic = overdue(|| panic!("ouch")).unwrap_err();
    assert!(matches!(panic.error.cause(), Cause::Panic { .. }), "{panic}");
}

#[test]
fn a_thread_that_stopped_at_a_step_resumes_there() {
    let (rig, mut results, clock) = rig::<OnThreads>(Some(SEC));
    let (started, steps) = (Signal::default(), Log::default());
    let (begun, log) = (started.clone(), steps.clone());
    let task =
        OnThreads::retrying(Retry::linear(2, SEC).without_jitter(), move |context: Ctx<u32, OnThreads>| {
            log.add(context.failed_step().map(str::to_owned));
            begun.give();
            async move {
                if context.attempt() == 1 {
                    context.cancelled().await;
                    return Err(TaskError::partial("upload", "interrupted"));
                }
                Ok(1)
            }
        });
    rig.submit(task).unwrap();
    started.wait_for(1);
    clock.advance(SEC);
    clock.wait_for_timers(1);
    clock.advance(SEC);
    results.next().unwrap().result.unwrap();
    assert_eq!(steps.all(), [None, Some("upload".to_owned())]);
}

#[cfg(feature = "tokio")]
mod dropped {
    use super::*;

    /// An async task cannot refuse: it is dropped where it waits, and its worker is free.
    fn a_future_out_of_time_is_dropped<K: Kind>() {
        let (rig, mut results, clock) = rig::<K>(Some(SEC));
        let (started, gone) = (Signal::default(), Signal::default());
        let (begun, guard) = (started.clone(), OnDrop(gone.clone()));
        let task = K::once(async move |_| {
            let _guard = guard;
            begun.give();
            std::future::pending().await
        });
        rig.submit(task).unwrap();
        started.wait_for(1);
        assert_eq!(gone.count(), 0);
        clock.advance(SEC);
        let failure = results.next().unwrap().result.unwrap_err();
        assert_eq!(gone.count(), 1, "told before the future was gone");
        assert_timed_out(&failure, SEC);
        rig.submit(make::<u32, K>(1)).unwrap();
        assert_eq!(results.next().unwrap().result.unwrap(), 1);
        assert_eq!((rig.stats().timed_out, rig.stats().overdue), (1, 0));
    }

    /// Its drop may panic; that is its own affair.
    fn a_future_that_panics_as_it_is_dropped_costs_no_worker<K: Kind>() {
        struct Bomb;
        impl Drop for Bomb {
            fn drop(&mut self) {
                panic!("in drop");
            }
        }
        let (rig, mut results, clock) = rig::<K>(Some(SEC));
        let started = Signal::default();
        let begun = started.clone();
        let task = K::once(async move |_| {
            let _bomb = Bomb;
            begun.give();
            std::future::pending().await
        });
        rig.submit(task).unwrap();
        started.wait_for(1);
        clock.advance(SEC);
        assert!(results.next().unwrap().result.is_err());
        rig.submit(make::<u32, K>(1)).unwrap();
        assert_eq!(results.next().unwrap().result.unwrap(), 1);
        assert_eq!(rig.stats().workers, 1);
    }

    #[test]
    fn on_two_threads() {
        a_future_out_of_time_is_dropped::<OnTasks>();
        a_future_that_panics_as_it_is_dropped_costs_no_worker::<OnTasks>();
    }

    #[test]
    fn on_one_thread() {
        a_future_out_of_time_is_dropped::<OnOneThread>();
        a_future_that_panics_as_it_is_dropped_costs_no_worker::<OnOneThread>();
    }
}
