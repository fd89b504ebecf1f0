//! The end of a pool by close, cancel, join, shutdown or drop, from any thread, in any state and any number of times,
//! with a report that lists every task exactly once.

#![cfg(not(any(shuttle, loom)))]

#[macro_use]
mod suite;

use gristmill_pool::{Report, ResultOrder, clock::ManualClock, error::Cause, error::SubmitErrorKind};
use std::{sync::mpsc, thread, time::Duration};
use suite::*;

fn report_lists_every_failure<K: WorkerKind>() {
    let fixture = build::<K>(pool_builder(2, 4));
    for _ in 0..3 {
        fixture.submit(returning::<(), K>(())).unwrap();
    }
    fixture.submit(fail::<(), K>("disk on fire").kind("copy").label("a.txt")).unwrap();
    fixture.submit(fail::<(), K>("no such file").label("b.txt")).unwrap();
    fixture.submit(K::once(async |_| panic!("ouch")).label("c.txt")).unwrap();
    let report = fixture.join();
    assert_reports_each_task_once(&report);
    assert_eq!((report.finished, report.failed, report.is_clean()), (3, 3, false));
    let mut reported: Vec<String> = report.failures.iter().map(ToString::to_string).collect();
    reported.sort();
    assert_eq!(reported[0], "copy #3 (a.txt): disk on fire");
    assert_eq!(reported[1], "task #4 (b.txt): no such file");
    assert!(reported[2].starts_with("task #5 (c.txt): panicked: ouch, at "), "{}", reported[2]);
    assert_eq!(report.to_string(), "3 finished, 3 failed");
}

fn all_failures_are_counted_when_few_are_kept<K: WorkerKind>() {
    let fixture = build::<K>(pool_builder(1, 4).keep_failures(1));
    for why in ["one", "two", "three"] {
        fixture.submit(fail::<(), K>(why)).unwrap();
    }
    let report = fixture.join();
    assert_eq!((report.failed, report.failures.len()), (3, 1));
    assert_eq!(report.failures[0].error.to_string(), "one");
}

fn close_finishes_accepted_tasks<K: WorkerKind>() {
    let (fixture, gate, started) = (build::<K>(pool_builder(1, 4)), Gate::default(), Signal::default());
    for _ in 0..4 {
        fixture.submit(hold::<(), K>(&started, &gate, ())).unwrap();
    }
    started.wait_for(1);
    fixture.close();
    assert!(!fixture.is_finished(), "ended with a task running");
    assert_eq!(fixture.submit(returning::<(), K>(())).unwrap_err().kind, SubmitErrorKind::Closed);
    gate.open();
    let report = fixture.join();
    assert_eq!((report.finished, report.is_clean(), fixture.is_finished()), (4, true, true));
}

fn cancel_starts_no_task_and_cancels_running_ones<K: WorkerKind>() {
    for result_order in RESULT_ORDERS {
        let (fixture, results) = build_with_results::<(), K>(pool_builder(1, 4), result_order);
        let (started, ran) = (Signal::default(), Signal::default());
        fixture.submit(run_until_cancelled::<(), K>(&started).label("running")).unwrap();
        started.wait_for(1);
        for label in ["x", "y"] {
            let ran = ran.clone();
            let task = K::once(async move |_| {
                ran.notify();
                Ok(())
            });
            fixture.submit(task.label(label)).unwrap();
        }
        fixture.cancel();
        let report = fixture.join();
        assert_reports_each_task_once(&report);
        assert_eq!(labels(&report.never_started), ["x", "y"]);
        assert_eq!(ran.count(), 0, "a task was started after cancel");
        assert_eq!(labels(report.failures.iter().map(|failure| &failure.task)), ["running"]);
        assert!(matches!(report.failures[0].error.cause(), Cause::Cancelled));
        assert_eq!(report.to_string(), "0 finished, 1 failed, 2 never started");
        assert_eq!(fixture.submit(returning::<(), K>(())).unwrap_err().kind, SubmitErrorKind::Cancelled);
        let outcomes: Vec<_> = results.map(|outcome| outcome.task.id.get()).collect();
        assert_eq!(outcomes, [0], "only started tasks have an outcome");
    }
}

/// Values that closures own, such as files and senders, do not outlive a cancelled pool.
fn cancel_drops_tasks_that_never_started<K: WorkerKind>() {
    let (fixture, started, dropped) = (build::<K>(pool_builder(1, 4)), Signal::default(), Signal::default());
    fixture.submit(run_until_cancelled::<(), K>(&started)).unwrap();
    started.wait_for(1);
    for _ in 0..3 {
        let guard = OnDrop(dropped.clone());
        let task = K::once(async move |_| {
            drop(guard);
            Ok(())
        });
        fixture.submit(task).unwrap();
    }
    fixture.cancel();
    fixture.join();
    assert_eq!(dropped.count(), 3);
}

fn repeated_close_and_cancel_keep_the_report<K: WorkerKind>() {
    let (fixture, started) = (build::<K>(pool_builder(1, 4)), Signal::default());
    fixture.submit(run_until_cancelled::<(), K>(&started)).unwrap();
    started.wait_for(1);
    fixture.submit(returning::<(), K>(())).unwrap();
    fixture.cancel();
    let first = fixture.join();
    assert_reports_each_task_once(&first);
    fixture.cancel();
    fixture.close();
    fixture.cancel();
    assert_same_report(&fixture.join(), &first);
    assert_same_report(&fixture.shutdown(SEC), &first);
    assert_same_report(&fixture.join(), &first);
}

type Stop<K> = fn(&Handle<(), K>) -> Option<Report>;

fn stops<K: WorkerKind>() -> [Stop<K>; 4] {
    [
        |pool| {
            pool.close();
            None
        },
        |pool| {
            pool.cancel();
            None
        },
        |pool| Some(pool.join()),
        |pool| Some(pool.shutdown(SEC * 3_600)),
    ]
}

/// Brings a pool into a state before it is stopped.
type State<K> = fn(&Handle<(), K>);

fn states<K: WorkerKind>() -> [State<K>; 6] {
    [
        |_new| {},
        |pool| {
            pool.submit(returning::<(), K>(())).unwrap();
        },
        |pool| {
            let started = Signal::default();
            pool.submit(run_until_cancelled::<(), K>(&started)).unwrap();
            started.wait_for(1);
            while pool.try_submit(returning::<(), K>(())).is_ok() {}
        },
        |pool| {
            let started = Signal::default();
            pool.submit(run_until_cancelled::<(), K>(&started)).unwrap();
            started.wait_for(1);
            pool.close();
        },
        |pool| {
            let started = Signal::default();
            pool.submit(run_until_cancelled::<(), K>(&started)).unwrap();
            started.wait_for(1);
            pool.cancel();
        },
        |pool| {
            pool.join();
        },
    ]
}

/// All four at once, each on its own thread, in each state: those that wait return the same report.
fn concurrent_close_cancel_join_and_shutdown_agree_in_every_state<K: WorkerKind>() {
    for state in states::<K>() {
        let fixture = build::<K>(pool_builder(2, 2));
        state(&fixture);
        let stoppers = stops::<K>().map(|stop| {
            let pool = fixture.pool.clone();
            thread::spawn(move || stop(&pool))
        });
        let reports = stoppers.map(|stopper| stopper.join().unwrap());
        let last = fixture.join();
        assert_reports_each_task_once(&last);
        for report in reports.iter().flatten() {
            assert_same_report(report, &last);
        }
    }
}

/// A task may stop its own pool, but `join` and `shutdown` do not wait there for its own end.
fn task_can_close_cancel_join_and_shut_down_its_own_pool<K: WorkerKind>() {
    for (name, cancels) in [("close", false), ("cancel", true), ("join", false), ("shutdown", true)] {
        let fixture = build::<K>(pool_builder(1, 4));
        let (pool, gate, started) = (fixture.pool.clone(), Gate::default(), Signal::default());
        let (passed, begun) = (gate.passed(), started.clone());
        let task = K::once(async move |context: ContextOf<(), K>| {
            begun.notify();
            passed.await;
            match name {
                "close" => pool.close(),
                "cancel" => pool.cancel(),
                "join" => drop(K::join(&pool.0).await),
                _ => drop(K::shutdown(&pool.0, SEC * 3_600).await),
            }
            assert_eq!(context.is_cancelled(), cancels, "after {name}");
            Ok(())
        });
        fixture.submit(task).unwrap();
        started.wait_for(1);
        fixture.submit(returning::<(), K>(())).unwrap();
        gate.open();
        // Not `join`, which would close the pool itself.
        wait_until(|| fixture.is_finished());
        let report = fixture.join();
        assert_reports_each_task_once(&report);
        assert_eq!(report.finished, if cancels { 1 } else { 2 }, "{name}: {report:?}");
    }
}

/// A task that stops its own pool gets a report at once. At that time one other task runs, one is held by a worker
/// until there is room for its result, and one is queued.
fn report_made_inside_a_task_accounts_for_every_task<K: WorkerKind>() {
    for cancels in [false, true] {
        let (fixture, results) =
            build_with_results::<u32, K>(pool_builder(3, 8).result_capacity(1), ResultOrder::AsCompleted);
        let (gate, started, may_report) = (Gate::default(), Signal::default(), Gate::default());
        let (sender, receiver) = mpsc::channel();
        let (pool, passed, begun) = (fixture.pool.clone(), may_report.passed(), started.clone());
        let reporter = K::once(async move |_: ContextOf<u32, K>| {
            begun.notify();
            passed.await;
            let report = if cancels { K::shutdown(&pool.0, SEC).await } else { K::join(&pool.0).await };
            sender.send(report)?;
            Ok(0)
        });
        fixture.submit(reporter).unwrap();
        fixture.submit(hold::<u32, K>(&started, &gate, 1)).unwrap();
        started.wait_for(2);
        for n in 2..5 {
            fixture.submit(returning::<u32, K>(n)).unwrap();
        }
        wait_until(|| fixture.stats().completed == 1 && fixture.stats().queued == 1);
        may_report.open();
        let report = receiver.recv().unwrap();
        assert_eq!(report.finished, 1);
        assert_eq!(report.abandoned.len(), 2, "{report:?}");
        let listed = (report.never_started.len() + report.abandoned.len()) as u64;
        let accounted = report.finished + report.failed + listed + report.waiting;
        assert_eq!(accounted, report.stats.submitted, "{report:?}");
        assert!(report.waiting + report.never_started.len() as u64 == 2, "{report:?}");
        assert!(!report.is_clean());
        gate.open();
        drop(results);
        let last = fixture.join();
        assert_reports_each_task_once(&last);
        assert_eq!(last.waiting, 0, "{last}");
    }
}

fn dropping_the_last_handle_closes_the_pool<K: WorkerKind>() {
    for result_order in RESULT_ORDERS {
        let (Fixture { pool, runtime }, results) = build_with_results::<u32, K>(pool_builder(1, 8), result_order);
        let other = pool.clone();
        for n in 0..4 {
            pool.submit(returning::<u32, K>(n)).unwrap();
        }
        drop(pool);
        other.submit(returning::<u32, K>(4)).expect("another handle exists");
        drop(other);
        let values: Vec<u32> = results.map(|outcome| outcome.result.unwrap()).collect();
        assert_eq!(values, [0, 1, 2, 3, 4]);
        drop(runtime);
    }
}

// ---- shutdown ----

fn shutdown_cancels_nothing_when_tasks_finish_in_time<K: WorkerKind>() {
    let clock = ManualClock::new();
    let fixture = build::<K>(pool_builder(2, 8).clock(&clock));
    for _ in 0..8 {
        let task = K::once(async |context: ContextOf<(), K>| {
            assert!(!context.is_cancelled());
            Ok(())
        });
        fixture.submit(task).unwrap();
    }
    let report = fixture.shutdown(SEC);
    assert_eq!((report.finished, report.is_clean()), (8, true));
    assert_eq!(pending_timers(&clock), 0, "the deadline timer was not cancelled");
}

fn shutdown_cancels_after_nine_tenths_of_the_deadline<K: WorkerKind>() {
    let clock = ManualClock::new();
    let (fixture, started) = (build::<K>(pool_builder(1, 8).clock(&clock)), Signal::default());
    fixture.submit(run_until_cancelled::<(), K>(&started)).unwrap();
    started.wait_for(1);
    fixture.submit(returning::<(), K>(())).unwrap();
    let pool = fixture.pool.clone();
    let stopping = thread::spawn(move || pool.shutdown(SEC * 5));
    clock.wait_for_timers(1);
    clock.advance(Duration::from_millis(4_499));
    assert!(!fixture.is_finished() && fixture.stats().never_started == 0, "cancelled too early");
    clock.advance(Duration::from_millis(1));
    let report = stopping.join().unwrap();
    assert_reports_each_task_once(&report);
    assert_eq!(report.to_string(), "0 finished, 1 failed, 1 never started");
}

/// Shuts down a pool with one task that does not stop when cancelled.
fn shutdown_past_deadline<K: WorkerKind>(fixture: &Fixture<u32, K>, clock: &ManualClock) -> Report {
    let pool = fixture.pool.clone();
    let stopping = thread::spawn(move || pool.shutdown(SEC * 10));
    clock.wait_for_timers(1);
    clock.advance(SEC * 9);
    clock.wait_for_timers(1);
    clock.advance(SEC);
    stopping.join().unwrap()
}

/// The shutdown returns, and the report does not change when the abandoned task ends later.
fn shutdown_abandons_and_reports_task_that_does_not_stop<K: WorkerKind>() {
    for result_order in RESULT_ORDERS {
        let clock = ManualClock::new();
        let (fixture, results) = build_with_results::<u32, K>(pool_builder(1, 8).clock(&clock), result_order);
        let (gate, started, gone) = (Gate::default(), Signal::default(), Signal::default());
        fixture.submit(returning::<u32, K>(1)).unwrap();
        let (begun, passed, guard) = (started.clone(), gate.passed(), OnDrop(gone.clone()));
        let stubborn = K::once(async move |_| {
            let _guard = guard;
            begun.notify();
            passed.await;
            Ok(2)
        });
        fixture.submit(stubborn.kind("walk").label("/")).unwrap();
        fixture.submit(returning::<u32, K>(3).label("next")).unwrap();
        started.wait_for(1);
        let report = shutdown_past_deadline(&fixture, &clock);
        assert_reports_each_task_once(&report);
        assert_eq!(report.to_string(), "1 finished, 1 never started, 1 did not stop");
        assert_eq!((report.abandoned[0].kind, labels(&report.abandoned)), ("walk", vec!["/".to_owned()]));
        assert!(fixture.is_finished());
        gate.open();
        gone.wait_for(1);
        let values: Vec<u32> = results.map(|outcome| outcome.result.unwrap()).collect();
        assert_eq!(values, [1], "a late result was delivered");
        let later = fixture.join();
        assert_reports_each_task_once(&later);
        assert_same_report(&later, &report);
    }
}

/// A worker may be about to see the cancel when the report is made: the task that it holds is still reported.
fn shutdown_with_tiny_deadline_reports_every_task<K: WorkerKind>() {
    for _ in 0..200 {
        let builder = pool_builder(2, 4).result_capacity(1);
        let (fixture, results) = build_with_results::<u32, K>(builder, ResultOrder::AsCompleted);
        let accepted = (0..6).filter(|_| fixture.try_submit(returning::<u32, K>(0)).is_ok()).count();
        let report = fixture.shutdown(Duration::from_nanos(1));
        assert_eq!(report.stats.submitted, accepted as u64);
        assert_reports_each_task_once(&report);
        drop(results);
        assert_same_report(&fixture.join(), &report);
    }
}

for_each_worker_kind!(
    report_lists_every_failure,
    all_failures_are_counted_when_few_are_kept,
    close_finishes_accepted_tasks,
    cancel_starts_no_task_and_cancels_running_ones,
    cancel_drops_tasks_that_never_started,
    repeated_close_and_cancel_keep_the_report,
    concurrent_close_cancel_join_and_shutdown_agree_in_every_state,
    task_can_close_cancel_join_and_shut_down_its_own_pool,
    report_made_inside_a_task_accounts_for_every_task,
    dropping_the_last_handle_closes_the_pool,
    shutdown_cancels_nothing_when_tasks_finish_in_time,
    shutdown_cancels_after_nine_tenths_of_the_deadline,
    shutdown_abandons_and_reports_task_that_does_not_stop,
    shutdown_with_tiny_deadline_reports_every_task,
);

#[test]
fn late_result_of_abandoned_thread_is_counted() {
    let clock = ManualClock::new();
    let (fixture, results) =
        build_with_results::<u32, OnThreads>(pool_builder(1, 8).clock(&clock), ResultOrder::AsCompleted);
    let gate = Gate::default();
    occupy(&fixture, &gate);
    let report = shutdown_past_deadline(&fixture, &clock);
    assert_eq!((report.abandoned.len(), report.stats.late_discarded), (1, 0));
    gate.open();
    wait_until(|| fixture.stats().late_discarded == 1);
    assert_eq!((results.count(), fixture.stats().completed), (0, 0));
}

/// A pool of tokio tasks whose runtime ends first.
#[cfg(feature = "tokio")]
mod runtime {
    use super::*;
    use gristmill_pool::{Retry, TaskError, worker::TokioTasks};
    use std::sync::mpsc;
    use tokio::runtime::{Builder as Tokio, Runtime};

    fn on_two_threads() -> Runtime {
        Tokio::new_multi_thread().worker_threads(2).build().unwrap()
    }

    fn inside(runtime: &Runtime, builder: gristmill_pool::PoolBuilder) -> Handle<(), OnTokio> {
        let _inside = runtime.enter();
        Handle(builder.build_async().unwrap())
    }

    #[test]
    fn runtime_end_ends_the_pool_and_reports_every_task() {
        let (runtime, clock) = (on_two_threads(), ManualClock::new());
        let pool = inside(&runtime, pool_builder(1, 8).clock(&clock));
        pool.submit(returning::<(), OnTokio>(())).unwrap();
        let busy = OnTokio::retrying(Retry::linear(2, SEC), async |_| Err(TaskError::transient("busy")));
        pool.submit(busy.label("waits")).unwrap();
        clock.wait_for_timers(1);
        let (started, gone) = (Signal::default(), Signal::default());
        let (begun, guard) = (started.clone(), OnDrop(gone.clone()));
        let endless = OnTokio::once(async move |_| {
            let _guard = guard;
            begun.notify();
            std::future::pending().await
        });
        pool.submit(endless.label("runs")).unwrap();
        started.wait_for(1);
        pool.submit(returning::<(), OnTokio>(()).label("queued")).unwrap();
        drop(runtime);
        let report = pool.join();
        assert_reports_each_task_once(&report);
        assert_eq!(report.finished, 1);
        assert_eq!(labels(&report.never_started), ["queued"]);
        let mut failures: Vec<String> = report.failures.iter().map(ToString::to_string).collect();
        failures.sort();
        assert_eq!(failures, ["task #1 (waits): busy", "task #2 (runs): cancelled"]);
        assert_eq!(gone.count(), 1, "the future was not dropped");
        assert_eq!(pool.submit(returning::<(), OnTokio>(())).unwrap_err().kind, SubmitErrorKind::Cancelled);
    }

    #[test]
    fn runtime_end_releases_readers_and_submitters() {
        for result_order in RESULT_ORDERS {
            let runtime = on_two_threads();
            let entered = runtime.enter();
            let (pool, results) = pool_builder(1, 1).build_async_with_results::<()>(result_order).unwrap();
            drop(entered);
            let (pool, started) = (Handle::<(), OnTokio>(pool), Signal::default());
            pool.submit(run_until_cancelled::<(), OnTokio>(&started)).unwrap();
            started.wait_for(1);
            pool.submit(returning::<(), OnTokio>(())).unwrap();
            let submitter = pool.clone();
            let submitter = thread::spawn(move || submitter.submit(returning::<(), OnTokio>(())));
            let reader = thread::spawn(move || results.count());
            drop(runtime);
            assert_eq!(submitter.join().unwrap().unwrap_err().kind, SubmitErrorKind::Cancelled);
            assert_eq!(reader.join().unwrap(), 1, "the task that was running");
        }
    }

    /// The runtime never polls the workers.
    #[test]
    fn runtime_end_before_first_poll_ends_the_pool() {
        let runtime = Tokio::new_current_thread().build().unwrap();
        let pool = inside(&runtime, pool_builder(2, 8));
        pool.submit(returning::<(), OnTokio>(()).label("lost")).unwrap();
        drop(runtime);
        let report = pool.join();
        assert_reports_each_task_once(&report);
        assert_eq!(labels(&report.never_started), ["lost"]);
    }

    #[test]
    fn build_async_fails_without_runtime() {
        let error = pool_builder(1, 1).build_async().unwrap_err();
        assert!(matches!(error, gristmill_pool::error::BuildError::NoRuntime), "{error}");
    }

    #[test]
    fn join_can_be_repeated_after_its_future_was_dropped() {
        let (runtime, gate) = (on_two_threads(), Gate::default());
        let pool = inside(&runtime, pool_builder(1, 8));
        occupy(&pool, &gate);
        let (sender, receiver) = mpsc::channel();
        let joining: gristmill_pool::Pool<(), TokioTasks> = pool.0.clone();
        let task = runtime.spawn(async move {
            let _sent = sender.send(());
            joining.join().await
        });
        receiver.recv().unwrap();
        task.abort();
        gate.open();
        assert!(pool.join().is_clean());
    }

    fn check_runtime_end_cancels_timers<K: WorkerKind>() {
        let clock = ManualClock::new();
        let fixture = build::<K>(pool_builder(1, 4).timeout(SEC * 3600).clock(&clock));
        occupy(&fixture, &Gate::default());
        let Fixture { pool, runtime } = fixture;
        assert_eq!(pending_timers(&clock), 1);
        drop(runtime);
        wait_until(|| pool.is_finished());
        drop(pool);
        assert_eq!(pending_timers(&clock), 0);
    }

    /// The timeout of a task that ended with its runtime is cancelled.
    #[test]
    fn runtime_end_cancels_task_timers() {
        check_runtime_end_cancels_timers::<OnTokio>();
        check_runtime_end_cancels_timers::<OnTokioSingleThread>();
    }
}
