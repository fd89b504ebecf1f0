//! The end of a pool: close, cancel, join, shutdown, drop; from anywhere, in any state, as often as one
//! likes; and a report that has every task in exactly one place.

#![cfg(not(any(shuttle, loom)))]

#[macro_use]
mod suite;

use gristmill_pool::{Report, ResultOrder, clock::ManualClock, error::Cause, error::SubmitErrorKind};
use std::{sync::mpsc, thread, time::Duration};
use suite::*;

fn the_report_names_every_error<K: Kind>() {
    let rig = build::<K>(small(2, 4));
    for _ in 0..3 {
        rig.submit(make::<(), K>(())).unwrap();
    }
    rig.submit(fail::<(), K>("disk on fire").kind("copy").label("a.txt")).unwrap();
    rig.submit(fail::<(), K>("no such file").label("b.txt")).unwrap();
    rig.submit(K::once(async |_| panic!("ouch")).label("c.txt")).unwrap();
    let report = rig.join();
    assert_partition(&report);
    assert_eq!((report.finished, report.failed, report.is_clean()), (3, 3, false));
    let mut told: Vec<String> = report.failures.iter().map(ToString::to_string).collect();
    told.sort();
    assert_eq!(told[0], "copy #3 (a.txt): disk on fire");
    assert_eq!(told[1], "task #4 (b.txt): no such file");
    assert!(told[2].starts_with("task #5 (c.txt): panicked: ouch, at "), "{}", told[2]);
    assert_eq!(report.to_string(), "3 finished, 3 failed");
}

fn all_failures_are_counted_even_if_few_are_kept<K: Kind>() {
    let rig = build::<K>(small(1, 4).keep_failures(1));
    for why in ["one", "two", "three"] {
        rig.submit(fail::<(), K>(why)).unwrap();
    }
    let report = rig.join();
    assert_eq!((report.failed, report.failures.len()), (3, 1));
    assert_eq!(report.failures[0].error.to_string(), "one");
}

fn close_finishes_what_was_taken<K: Kind>() {
    let (rig, gate, started) = (build::<K>(small(1, 4)), Gate::default(), Signal::default());
    for _ in 0..4 {
        rig.submit(hold::<(), K>(&started, &gate, ())).unwrap();
    }
    started.wait_for(1);
    rig.close();
    assert!(!rig.is_finished(), "ended with a task running");
    assert_eq!(rig.submit(make::<(), K>(())).unwrap_err().kind, SubmitErrorKind::Closed);
    gate.open();
    let report = rig.join();
    assert_eq!((report.finished, report.is_clean(), rig.is_finished()), (4, true, true));
}

fn cancel_starts_nothing_more_and_tells_what_runs<K: Kind>() {
    for delivery in DELIVERIES {
        let (rig, results) = build_with_results::<(), K>(small(1, 4), delivery);
        let (started, ran) = (Signal::default(), Signal::default());
        rig.submit(listen::<(), K>(&started).label("running")).unwrap();
        started.wait_for(1);
        for label in ["x", "y"] {
            let ran = ran.clone();
            let task = K::once(async move |_| {
                ran.give();
                Ok(())
            });
            rig.submit(task.label(label)).unwrap();
        }
        rig.cancel();
        let report = rig.join();
        assert_partition(&report);
        assert_eq!(labels(&report.never_started), ["x", "y"]);
        assert_eq!(ran.count(), 0, "a task was started after cancel");
        assert_eq!(labels(report.failures.iter().map(|failure| &failure.task)), ["running"]);
        assert!(matches!(report.failures[0].error.cause(), Cause::Cancelled));
        assert_eq!(report.to_string(), "0 finished, 1 failed, 2 never started");
        assert_eq!(rig.submit(make::<(), K>(())).unwrap_err().kind, SubmitErrorKind::Cancelled);
        let outcomes: Vec<_> = results.map(|outcome| outcome.task.id.get()).collect();
        assert_eq!(outcomes, [0], "only what was started has an outcome");
    }
}

/// A task's closure holds things: files, senders. None outlives a cancelled pool.
fn cancel_drops_what_it_never_starts<K: Kind>() {
    let (rig, started, dropped) = (build::<K>(small(1, 4)), Signal::default(), Signal::default());
    rig.submit(listen::<(), K>(&started)).unwrap();
    started.wait_for(1);
    for _ in 0..3 {
        let guard = OnDrop(dropped.clone());
        let task = K::once(async move |_| {
            drop(guard);
            Ok(())
        });
        rig.submit(task).unwrap();
    }
    rig.cancel();
    rig.join();
    assert_eq!(dropped.count(), 3);
}

fn stopping_again_changes_nothing<K: Kind>() {
    let (rig, started) = (build::<K>(small(1, 4)), Signal::default());
    rig.submit(listen::<(), K>(&started)).unwrap();
    started.wait_for(1);
    rig.submit(make::<(), K>(())).unwrap();
    rig.cancel();
    let first = rig.join();
    assert_partition(&first);
    rig.cancel();
    rig.close();
    rig.cancel();
    assert_same(&rig.join(), &first);
    assert_same(&rig.shutdown(SEC), &first);
    assert_same(&rig.join(), &first);
}

type Stop<K> = fn(&Handle<(), K>) -> Option<Report>;

fn stops<K: Kind>() -> [Stop<K>; 4] {
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

/// Brings a pool into a state in which it is then stopped.
type State<K> = fn(&Handle<(), K>);

fn states<K: Kind>() -> [State<K>; 6] {
    [
        |_new| {},
        |pool| {
            pool.submit(make::<(), K>(())).unwrap();
        },
        |pool| {
            let started = Signal::default();
            pool.submit(listen::<(), K>(&started)).unwrap();
            started.wait_for(1);
            while pool.try_submit(make::<(), K>(())).is_ok() {}
        },
        |pool| {
            let started = Signal::default();
            pool.submit(listen::<(), K>(&started)).unwrap();
            started.wait_for(1);
            pool.close();
        },
        |pool| {
            let started = Signal::default();
            pool.submit(listen::<(), K>(&started)).unwrap();
            started.wait_for(1);
            pool.cancel();
        },
        |pool| {
            pool.join();
        },
    ]
}

/// All four at once, from threads of their own, in each state; whoever waits sees the same end.
fn every_stop_at_once_in_every_state<K: Kind>() {
    for state in states::<K>() {
        let rig = build::<K>(small(2, 2));
        state(&rig);
        let stoppers = stops::<K>().map(|stop| {
            let pool = rig.pool.clone();
            thread::spawn(move || stop(&pool))
        });
        let reports = stoppers.map(|stopper| stopper.join().unwrap());
        let last = rig.join();
        assert_partition(&last);
        for report in reports.iter().flatten() {
            assert_same(report, &last);
        }
    }
}

/// A task may stop its own pool, but cannot wait for the end of itself.
fn a_task_can_stop_its_own_pool<K: Kind>() {
    for (name, cancels) in [("close", false), ("cancel", true), ("join", false), ("shutdown", true)] {
        let rig = build::<K>(small(1, 4));
        let (pool, gate, started) = (rig.pool.clone(), Gate::default(), Signal::default());
        let (passed, begun) = (gate.passed(), started.clone());
        let task = K::once(async move |context: Ctx<(), K>| {
            begun.give();
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
        rig.submit(task).unwrap();
        started.wait_for(1);
        rig.submit(make::<(), K>(())).unwrap();
        gate.open();
        // Not `join`: it would close the pool by itself.
        until(|| rig.is_finished());
        let report = rig.join();
        assert_partition(&report);
        assert_eq!(report.finished, if cancels { 1 } else { 2 }, "{name}: {report:?}");
    }
}

/// A task that stops its own pool gets a report at once. Beside it are a task that runs, one that a worker holds until
/// there is room for its result, and one in the queue.
fn a_report_made_inside_a_task_accounts_for_every_task<K: Kind>() {
    for cancels in [false, true] {
        let (rig, results) =
            build_with_results::<u32, K>(small(3, 8).result_capacity(1), ResultOrder::AsCompleted);
        let (gate, started, may_report) = (Gate::default(), Signal::default(), Gate::default());
        let (sender, receiver) = mpsc::channel();
        let (pool, passed, begun) = (rig.pool.clone(), may_report.passed(), started.clone());
        let reporter = K::once(async move |_: Ctx<u32, K>| {
            begun.give();
            passed.await;
            let report = if cancels { K::shutdown(&pool.0, SEC).await } else { K::join(&pool.0).await };
            sender.send(report)?;
            Ok(0)
        });
        rig.submit(reporter).unwrap();
        rig.submit(hold::<u32, K>(&started, &gate, 1)).unwrap();
        started.wait_for(2);
        for n in 2..5 {
            rig.submit(make::<u32, K>(n)).unwrap();
        }
        until(|| rig.stats().completed == 1 && rig.stats().queued == 1);
        may_report.open();
        let report = receiver.recv().unwrap();
        assert_eq!(report.finished, 1);
        assert_eq!(report.abandoned.len(), 2, "{report:?}");
        let named = (report.never_started.len() + report.abandoned.len()) as u64;
        let accounted = report.finished + report.failed + named + report.waiting;
        assert_eq!(accounted, report.stats.submitted, "{report:?}");
        assert!(report.waiting + report.never_started.len() as u64 == 2, "{report:?}");
        assert!(!report.is_clean());
        gate.open();
        drop(results);
        let last = rig.join();
        assert_partition(&last);
        assert_eq!(last.waiting, 0, "{last}");
    }
}

fn the_last_handle_closes_the_pool<K: Kind>() {
    for delivery in DELIVERIES {
        let (Rig { pool, runtime }, results) = build_with_results::<u32, K>(small(1, 8), delivery);
        let other = pool.clone();
        for n in 0..4 {
            pool.submit(make::<u32, K>(n)).unwrap();
        }
        drop(pool);
        other.submit(make::<u32, K>(4)).expect("a handle is left");
        drop(other);
        let made: Vec<u32> = results.map(|outcome| outcome.result.unwrap()).collect();
        assert_eq!(made, [0, 1, 2, 3, 4]);
        drop(runtime);
    }
}

// ---- shutdown ----

fn a_shutdown_in_time_cancels_nothing<K: Kind>() {
    let clock = ManualClock::new();
    let rig = build::<K>(small(2, 8).clock(&clock));
    for _ in 0..8 {
        let task = K::once(async |context: Ctx<(), K>| {
            assert!(!context.is_cancelled());
            Ok(())
        });
        rig.submit(task).unwrap();
    }
    let report = rig.shutdown(SEC);
    assert_eq!((report.finished, report.is_clean()), (8, true));
    assert_eq!(timers(&clock), 0, "a deadline was left behind");
}

/// Nine tenths to finish, one to stop.
fn a_shutdown_cancels_in_time_to_stop<K: Kind>() {
    let clock = ManualClock::new();
    let (rig, started) = (build::<K>(small(1, 8).clock(&clock)), Signal::default());
    rig.submit(listen::<(), K>(&started)).unwrap();
    started.wait_for(1);
    rig.submit(make::<(), K>(())).unwrap();
    let pool = rig.pool.clone();
    let stopping = thread::spawn(move || pool.shutdown(SEC * 5));
    clock.wait_for_timers(1);
    clock.advance(Duration::from_millis(4_499));
    assert!(!rig.is_finished() && rig.stats().never_started == 0, "cancelled too early");
    clock.advance(Duration::from_millis(1));
    let report = stopping.join().unwrap();
    assert_partition(&report);
    assert_eq!(report.to_string(), "0 finished, 1 failed, 1 never started");
}

/// Shuts a pool down around one task that waits for the gate, whatever its context says.
fn shut_down_around<K: Kind>(rig: &Rig<u32, K>, clock: &ManualClock) -> Report {
    let pool = rig.pool.clone();
    let stopping = thread::spawn(move || pool.shutdown(SEC * 10));
    clock.wait_for_timers(1);
    clock.advance(SEC * 9);
    clock.wait_for_timers(1);
    clock.advance(SEC);
    stopping.join().unwrap()
}

/// The task is named, the shutdown returns, and nothing that comes later changes the report.
fn what_does_not_stop_is_named_and_left_behind<K: Kind>() {
    for delivery in DELIVERIES {
        let clock = ManualClock::new();
        let (rig, results) = build_with_results::<u32, K>(small(1, 8).clock(&clock), delivery);
        let (gate, started, gone) = (Gate::default(), Signal::default(), Signal::default());
        rig.submit(make::<u32, K>(1)).unwrap();
        let (begun, passed, guard) = (started.clone(), gate.passed(), OnDrop(gone.clone()));
        let stubborn = K::once(async move |_| {
            let _guard = guard;
            begun.give();
            passed.await;
            Ok(2)
        });
        rig.submit(stubborn.kind("walk").label("/")).unwrap();
        rig.submit(make::<u32, K>(3).label("next")).unwrap();
        started.wait_for(1);
        let report = shut_down_around(&rig, &clock);
        assert_partition(&report);
        assert_eq!(report.to_string(), "1 finished, 1 never started, 1 did not stop");
        assert_eq!((report.abandoned[0].kind, labels(&report.abandoned)), ("walk", vec!["/".to_owned()]));
        assert!(rig.is_finished());
        gate.open();
        gone.wait_for(1);
        let made: Vec<u32> = results.map(|outcome| outcome.result.unwrap()).collect();
        assert_eq!(made, [1], "a late result was delivered");
        let later = rig.join();
        assert_partition(&later);
        assert_same(&later, &report);
    }
}

/// The worker is about to see that it is cancelled when the report is made; the task in its hand is in the
/// report all the same.
fn a_shutdown_without_patience_loses_no_task<K: Kind>() {
    for _ in 0..200 {
        let builder = small(2, 4).result_capacity(1);
        let (rig, results) = build_with_results::<u32, K>(builder, ResultOrder::AsCompleted);
        let accepted = (0..6).filter(|_| rig.try_submit(make::<u32, K>(0)).is_ok()).count();
        let report = rig.shutdown(Duration::from_nanos(1));
        assert_eq!(report.stats.submitted, accepted as u64);
        assert_partition(&report);
        drop(results);
        assert_same(&rig.join(), &report);
    }
}

every_kind!(
    the_report_names_every_error,
    all_failures_are_counted_even_if_few_are_kept,
    close_finishes_what_was_taken,
    cancel_starts_nothing_more_and_tells_what_runs,
    cancel_drops_what_it_never_starts,
    stopping_again_changes_nothing,
    every_stop_at_once_in_every_state,
    a_task_can_stop_its_own_pool,
    a_report_made_inside_a_task_accounts_for_every_task,
    the_last_handle_closes_the_pool,
    a_shutdown_in_time_cancels_nothing,
    a_shutdown_cancels_in_time_to_stop,
    what_does_not_stop_is_named_and_left_behind,
    a_shutdown_without_patience_loses_no_task,
);

#[test]
fn the_late_result_of_an_unstopped_thread_is_counted() {
    let clock = ManualClock::new();
    let (rig, results) =
        build_with_results::<u32, OnThreads>(small(1, 8).clock(&clock), ResultOrder::AsCompleted);
    let gate = Gate::default();
    occupy(&rig, &gate);
    let report = shut_down_around(&rig, &clock);
    assert_eq!((report.abandoned.len(), report.stats.late_discarded), (1, 0));
    gate.open();
    until(|| rig.stats().late_discarded == 1);
    assert_eq!((results.count(), rig.stats().completed), (0, 0));
}

/// What a pool of tokio tasks comes to when its runtime ends around it.
#[cfg(feature = "tokio")]
mod runtime {
    use super::*;
    use gristmill_pool::{Retry, TaskError, worker::TokioTasks};
    use std::sync::mpsc;
    use tokio::runtime::{Builder as Tokio, Runtime};

    fn on_two_threads() -> Runtime {
        Tokio::new_multi_thread().worker_threads(2).build().unwrap()
    }

    fn inside(runtime: &Runtime, builder: gristmill_pool::PoolBuilder) -> Handle<(), OnTasks> {
        let _inside = runtime.enter();
        Handle(builder.build_async().unwrap())
    }

    #[test]
    fn its_end_ends_the_pool_and_names_what_was_lost() {
        let (runtime, clock) = (on_two_threads(), ManualClock::new());
        let pool = inside(&runtime, small(1, 8).clock(&clock));
        pool.submit(make::<(), OnTasks>(())).unwrap();
        let busy = OnTasks::retrying(Retry::linear(2, SEC), async |_| Err(TaskError::transient("busy")));
        pool.submit(busy.label("waits")).unwrap();
        clock.wait_for_timers(1);
        let (started, gone) = (Signal::default(), Signal::default());
        let (begun, guard) = (started.clone(), OnDrop(gone.clone()));
        let endless = OnTasks::once(async move |_| {
            let _guard = guard;
            begun.give();
            std::future::pending().await
        });
        pool.submit(endless.label("runs")).unwrap();
        started.wait_for(1);
        pool.submit(make::<(), OnTasks>(()).label("queued")).unwrap();
        drop(runtime);
        let report = pool.join();
        assert_partition(&report);
        assert_eq!(report.finished, 1);
        assert_eq!(labels(&report.never_started), ["queued"]);
        let mut failures: Vec<String> = report.failures.iter().map(ToString::to_string).collect();
        failures.sort();
        assert_eq!(failures, ["task #1 (waits): busy", "task #2 (runs): cancelled"]);
        assert_eq!(gone.count(), 1, "the future was not dropped");
        assert_eq!(pool.submit(make::<(), OnTasks>(())).unwrap_err().kind, SubmitErrorKind::Cancelled);
    }

    #[test]
    fn its_end_releases_readers_and_submitters() {
        for delivery in DELIVERIES {
            let runtime = on_two_threads();
            let entered = runtime.enter();
            let (pool, results) = small(1, 1).build_async_with_results::<()>(delivery).unwrap();
            drop(entered);
            let (pool, started) = (Handle::<(), OnTasks>(pool), Signal::default());
            pool.submit(listen::<(), OnTasks>(&started)).unwrap();
            started.wait_for(1);
            pool.submit(make::<(), OnTasks>(())).unwrap();
            let submitter = pool.clone();
            let submitter = thread::spawn(move || submitter.submit(make::<(), OnTasks>(())));
            let reader = thread::spawn(move || results.count());
            drop(runtime);
            assert_eq!(submitter.join().unwrap().unwrap_err().kind, SubmitErrorKind::Cancelled);
            assert_eq!(reader.join().unwrap(), 1, "the task that was lost");
        }
    }

    /// Built, and never given a turn: its workers have not run one line.
    #[test]
    fn its_end_before_the_first_worker_has_run_ends_the_pool() {
        let runtime = Tokio::new_current_thread().build().unwrap();
        let pool = inside(&runtime, small(2, 8));
        pool.submit(make::<(), OnTasks>(()).label("lost")).unwrap();
        drop(runtime);
        let report = pool.join();
        assert_partition(&report);
        assert_eq!(labels(&report.never_started), ["lost"]);
    }

    #[test]
    fn there_is_no_async_pool_without_one() {
        let error = small(1, 1).build_async().unwrap_err();
        assert!(matches!(error, gristmill_pool::error::BuildError::NoRuntime), "{error}");
    }

    /// The future of a join is dropped and asked again: nothing is lost with it.
    #[test]
    fn a_join_that_is_given_up_can_be_repeated() {
        let (runtime, gate) = (on_two_threads(), Gate::default());
        let pool = inside(&runtime, small(1, 8));
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
}
