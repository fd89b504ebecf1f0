//! Timeouts of tasks: cancellation of threads, dropping of futures, and retries.

#![cfg(not(any(shuttle, loom)))]

#[macro_use]
mod suite;

use gristmill_pool::{
    ErrorClass, Failure, ResultOrder, Results, Retry, TaskError, clock::ManualClock, error::Cause,
    error::SubmitErrorKind,
};
use std::time::Duration;
use suite::*;

fn fixture<K: WorkerKind>(limit: Option<Duration>) -> (Fixture<u32, K>, Results<u32>, ManualClock) {
    let clock = ManualClock::new();
    let builder = pool_builder(1, 4).clock(&clock);
    let builder = limit.map_or(builder.clone(), |limit| builder.timeout(limit));
    let (fixture, results) = build_with_results(builder, ResultOrder::AsCompleted);
    (fixture, results, clock)
}

#[track_caller]
fn assert_timed_out(failure: &Failure, after: Duration) {
    assert!(matches!(failure.error.cause(), Cause::TimedOut(limit) if *limit == after), "{failure}");
}

/// Every way to submit rejects and returns a task whose timeout is zero, which could never succeed.
fn task_with_timeout_of_zero_is_rejected<K: WorkerKind>() {
    let (fixture, mut results, _clock) = fixture::<K>(Some(SEC));
    let task = || returning::<u32, K>(1).timeout(Duration::ZERO);
    let spawner = K::once(async move |context: ContextOf<u32, K>| {
        assert_eq!(context.spawn_task(task()).unwrap_err().kind, SubmitErrorKind::ZeroTimeout);
        Ok(2)
    });
    let rejected = [fixture.submit(task()), fixture.submit_timeout(task(), SEC), fixture.try_submit(task())];
    for rejected in rejected {
        let rejected = rejected.unwrap_err();
        assert_eq!(rejected.kind, SubmitErrorKind::ZeroTimeout);
        assert!(rejected.to_string().contains("timeout is zero"), "{rejected}");
    }
    fixture.submit(spawner).unwrap();
    assert_eq!(results.next().unwrap().result.unwrap(), 2);
    assert_eq!(fixture.join().stats.submitted, 1);
}

/// A task's own timeout replaces that of the pool.
fn task_is_cancelled_after_its_timeout<K: WorkerKind>() {
    for (pool, own, want) in [(Some(3), None, 3), (None, Some(2), 2), (Some(3), Some(2), 2), (Some(3), Some(5), 5)] {
        let (fixture, mut results, clock) = fixture::<K>(pool.map(|secs| SEC * secs));
        let (started, want) = (Signal::default(), SEC * want);
        let task = run_until_cancelled::<u32, K>(&started);
        fixture.submit(if let Some(own) = own { task.timeout(SEC * own) } else { task }).unwrap();
        started.wait_for(1);
        clock.advance(want - NANO);
        assert_eq!((fixture.stats().timed_out, fixture.stats().active), (0, 1), "too early");
        clock.advance(NANO);
        assert_timed_out(&results.next().unwrap().result.unwrap_err(), want);
        assert_eq!((fixture.stats().timed_out, fixture.stats().failed, fixture.stats().overdue), (1, 1, 0));
        // The timeout does not affect the worker's next task.
        let fresh = K::once(async |context: ContextOf<u32, K>| Ok(context.is_cancelled().into()));
        fixture.submit(fresh).unwrap();
        assert_eq!(results.next().unwrap().result.unwrap(), 0, "cancelled by the timeout of another task");
        assert_reports_each_task_once(&fixture.join());
    }
}

fn timers_are_cancelled_when_tasks_end_in_time<K: WorkerKind>() {
    let (fixture, results, clock) = fixture::<K>(Some(SEC));
    drop(results);
    for n in 0..500 {
        let task = if n % 2 == 0 { returning::<u32, K>(n) } else { fail::<u32, K>("no") };
        fixture.submit(task.timeout(SEC * 9)).unwrap();
    }
    let panicking = K::once(async |_| panic!("ouch"));
    fixture.submit(panicking.timeout(SEC * 9)).unwrap();
    let report = fixture.join();
    assert_eq!((report.finished, report.failed, report.stats.timed_out), (250, 251, 0));
    assert_eq!(pending_timers(&clock), 0);
}

fn timed_out_task_is_retried_with_its_full_timeout<K: WorkerKind>() {
    let (fixture, mut results, clock) = fixture::<K>(None);
    let started = Signal::default();
    let begun = started.clone();
    let task = K::retrying(Retry::linear(3, SEC).without_jitter(), move |context: ContextOf<u32, K>| {
        let begun = begun.clone();
        async move {
            let whole = context.remaining();
            begun.notify();
            if context.attempt() < 3 {
                context.cancelled().await;
                return Err(TaskError::cancelled());
            }
            assert_eq!(whole, Some(SEC * 7));
            Ok(context.attempt())
        }
    });
    fixture.submit(task.timeout(SEC * 7)).unwrap();
    for attempt in 1..3 {
        started.wait_for(attempt as usize);
        clock.wait_for_timers(1);
        clock.advance(SEC * 7);
        clock.wait_for_timers(1);
        clock.advance(SEC * attempt);
    }
    assert_eq!(results.next().unwrap().result.unwrap(), 3);
    assert_eq!((fixture.stats().timed_out, fixture.stats().retried, pending_timers(&clock)), (2, 2, 0));
}

for_each_worker_kind!(
    task_with_timeout_of_zero_is_rejected,
    task_is_cancelled_after_its_timeout,
    timers_are_cancelled_when_tasks_end_in_time,
    timed_out_task_is_retried_with_its_full_timeout,
);

/// Runs a task on a thread that returns this error after its timeout. (An async task is dropped and returns none.)
fn report_of_late_error(error: fn() -> TaskError) -> gristmill_pool::Report {
    let clock = ManualClock::new();
    let fixture = build::<OnThreads>(pool_builder(1, 4).timeout(SEC).clock(&clock));
    let started = Signal::default();
    let begun = started.clone();
    let task = OnThreads::once(async move |context: ContextOf<(), OnThreads>| {
        begun.notify();
        context.cancelled().await;
        Err(error())
    });
    fixture.submit(task).unwrap();
    started.wait_for(1);
    clock.advance(SEC);
    let report = fixture.join();
    assert_reports_each_task_once(&report);
    assert!(matches!(report.failures[0].error.cause(), Cause::TimedOut(after) if *after == SEC));
    report
}

#[test]
fn task_is_settled_when_its_late_error_panics_on_drop() {
    assert_eq!(report_of_late_error(|| TaskError::transient(DropHook(panic_now))).failed, 1);
}

/// The error becomes a timeout that keeps the details of the late error.
#[test]
fn timeout_keeps_step_hint_and_retry_after_of_late_error() {
    let check = |error, class| {
        let report = report_of_late_error(error);
        let error = &report.failures[0].error;
        assert_eq!(error.class(), class);
        assert_eq!(error.step(), Some("upload"));
        assert_eq!(error.hint(), Some("log in"));
        assert_eq!(error.retry_after(), Some(SEC * 7));
    };
    check(
        || TaskError::transient("503").with_step("upload").with_hint("log in").with_retry_after(SEC * 7),
        ErrorClass::Transient,
    );
    check(|| TaskError::partial("upload", "403").with_hint("log in").with_retry_after(SEC * 7), ErrorClass::Partial);
}

/// Runs a task on a thread past its timeout until it returns this result. Returns its outcome.
fn overdue(result: fn() -> Result<u32, TaskError>) -> Result<u32, Failure> {
    let (fixture, mut results, clock) = fixture::<OnThreads>(Some(SEC));
    let (gate, started) = (Gate::default(), Signal::default());
    let (passed, begun) = (gate.passed(), started.clone());
    let task = OnThreads::once(async move |context: ContextOf<u32, OnThreads>| {
        begun.notify();
        passed.await;
        assert!(context.is_cancelled());
        result()
    });
    fixture.submit(task).unwrap();
    started.wait_for(1);
    assert_eq!(fixture.stats().overdue, 0);
    clock.advance(SEC);
    let stats = fixture.stats();
    assert_eq!((stats.timed_out, stats.overdue, stats.active, stats.workers), (1, 1, 1, 1));
    gate.open();
    let outcome = results.next().unwrap();
    wait_until(|| fixture.stats().overdue == 0);
    assert_reports_each_task_once(&fixture.join());
    outcome.result
}

#[test]
fn thread_past_its_timeout_is_overdue_until_it_returns() {
    assert_eq!(overdue(|| Ok(7)).unwrap(), 7, "a late value is kept");
    assert_timed_out(&overdue(|| Err(TaskError::cancelled())).unwrap_err(), SEC);
    let partial = overdue(|| Err(TaskError::partial("upload", "interrupted"))).unwrap_err();
    assert_timed_out(&partial, SEC);
    assert_eq!((partial.error.class(), partial.error.step()), (ErrorClass::Partial, Some("upload")));
    let panic = overdue(|| panic!("ouch")).unwrap_err();
    assert!(matches!(panic.error.cause(), Cause::Panic { .. }), "{panic}");
}

#[test]
fn timed_out_thread_resumes_at_its_failed_step() {
    let (fixture, mut results, clock) = fixture::<OnThreads>(Some(SEC));
    let (started, steps) = (Signal::default(), Log::default());
    let (begun, log) = (started.clone(), steps.clone());
    let task =
        OnThreads::retrying(Retry::linear(2, SEC).without_jitter(), move |context: ContextOf<u32, OnThreads>| {
            log.add(context.failed_step().map(str::to_owned));
            begun.notify();
            async move {
                if context.attempt() == 1 {
                    context.cancelled().await;
                    return Err(TaskError::partial("upload", "interrupted"));
                }
                Ok(1)
            }
        });
    fixture.submit(task).unwrap();
    started.wait_for(1);
    clock.advance(SEC);
    clock.wait_for_timers(1);
    clock.advance(SEC);
    results.next().unwrap().result.unwrap();
    assert_eq!(steps.all(), [None, Some("upload".to_owned())]);
}

#[cfg(feature = "tokio")]
mod futures {
    use super::*;

    /// The future is dropped at the point where it waits, and its worker is free.
    fn future_past_its_timeout_is_dropped<K: WorkerKind>() {
        let (fixture, mut results, clock) = fixture::<K>(Some(SEC));
        let (started, gone) = (Signal::default(), Signal::default());
        let (begun, guard) = (started.clone(), OnDrop(gone.clone()));
        let task = K::once(async move |_| {
            let _guard = guard;
            begun.notify();
            std::future::pending().await
        });
        fixture.submit(task).unwrap();
        started.wait_for(1);
        assert_eq!(gone.count(), 0);
        clock.advance(SEC);
        let failure = results.next().unwrap().result.unwrap_err();
        assert_eq!(gone.count(), 1, "reported before the future was dropped");
        assert_timed_out(&failure, SEC);
        fixture.submit(returning::<u32, K>(1)).unwrap();
        assert_eq!(results.next().unwrap().result.unwrap(), 1);
        assert_eq!((fixture.stats().timed_out, fixture.stats().overdue), (1, 0));
    }

    fn worker_survives_future_that_panics_on_drop<K: WorkerKind>() {
        struct PanicOnDrop;
        impl Drop for PanicOnDrop {
            fn drop(&mut self) {
                panic!("in drop");
            }
        }
        let (fixture, mut results, clock) = fixture::<K>(Some(SEC));
        let started = Signal::default();
        let begun = started.clone();
        let task = K::once(async move |_| {
            let _guard = PanicOnDrop;
            begun.notify();
            std::future::pending().await
        });
        fixture.submit(task).unwrap();
        started.wait_for(1);
        clock.advance(SEC);
        assert!(results.next().unwrap().result.is_err());
        fixture.submit(returning::<u32, K>(1)).unwrap();
        assert_eq!(results.next().unwrap().result.unwrap(), 1);
        assert_eq!(fixture.stats().workers, 1);
    }

    #[test]
    fn timed_out_future_is_dropped_on_two_threads() {
        future_past_its_timeout_is_dropped::<OnTokio>();
        worker_survives_future_that_panics_on_drop::<OnTokio>();
    }

    #[test]
    fn timed_out_future_is_dropped_on_one_thread() {
        future_past_its_timeout_is_dropped::<OnTokioSingleThread>();
        worker_survives_future_that_panics_on_drop::<OnTokioSingleThread>();
    }
}

/// The time spent waiting for the reader does not count. On a single-threaded runtime, a task that runs after the
/// worker shows that the worker waits.
#[cfg(feature = "tokio")]
#[test]
fn task_has_its_full_timeout_after_waiting_for_reader() {
    type K = OnTokioSingleThread;
    let clock = ManualClock::new();
    let builder = pool_builder(1, 8).result_capacity(1).timeout(SEC).clock(&clock);
    let (fixture, mut results) = build_with_results::<Option<Duration>, K>(builder, ResultOrder::AsCompleted);
    for _ in 0..2 {
        let task = K::once(async |context: ContextOf<Option<Duration>, K>| Ok(context.remaining()));
        fixture.submit(task).unwrap();
    }
    wait_until(|| fixture.stats().completed == 1 && fixture.stats().queued == 0);
    let after = Handle::<(), K>(K::build(&fixture.runtime, pool_builder(1, 4)));
    after.submit(returning::<(), K>(())).unwrap();
    assert!(after.join().is_clean());
    clock.advance(SEC * 60);
    for _ in 0..2 {
        assert_eq!(results.next().unwrap().result.unwrap(), Some(SEC));
    }
    assert_eq!(fixture.join().stats.kinds[0].max_ns, 0);
}
