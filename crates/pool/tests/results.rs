//! Delivery of results to the reader: in both orders, without losses, and with backpressure when the reader does not
//! read.

#![cfg(not(any(shuttle, loom)))]

#[macro_use]
mod suite;

use gristmill_pool::{Priority, QueueOrder, ResultOrder, Results, Retry, TaskError, clock::ManualClock, error::Cause};
use std::thread;
use suite::*;

/// Runs two tasks, of which the first is blocked until the second has ended. Returns their results.
fn slow_first<K: WorkerKind>(result_order: ResultOrder) -> Vec<u32> {
    let (fixture, results) = build_with_results::<u32, K>(pool_builder(2, 4), result_order);
    let (gate, started) = (Gate::default(), Signal::default());
    fixture.submit(hold::<u32, K>(&started, &gate, 0)).unwrap();
    started.wait_for(1);
    fixture.submit(returning::<u32, K>(1)).unwrap();
    wait_until(|| fixture.stats().completed == 1);
    gate.open();
    fixture.close();
    results.map(|outcome| outcome.result.unwrap()).collect()
}

fn completion_order_delivers_the_first_completed_first<K: WorkerKind>() {
    assert_eq!(slow_first::<K>(ResultOrder::AsCompleted), [1, 0]);
}

fn submit_order_delivers_the_first_submitted_first<K: WorkerKind>() {
    assert_eq!(slow_first::<K>(ResultOrder::AsSubmitted), [0, 1]);
}

fn results_are_delivered_while_the_pool_runs<K: WorkerKind>() {
    for result_order in RESULT_ORDERS {
        let (fixture, mut results) = build_with_results::<u32, K>(pool_builder(1, 1), result_order);
        for n in 0..3 {
            fixture.submit(returning::<u32, K>(n)).unwrap();
            assert_eq!(results.next().unwrap().result.unwrap(), n);
        }
        fixture.submit(returning::<u32, K>(3)).unwrap();
        assert_eq!(block_on(results.next_async()).unwrap().result.unwrap(), 3);
        fixture.close();
        assert!(block_on(results.next_async()).is_none());
        assert!(results.next().is_none(), "an ended iterator stays ended");
    }
}

/// Pools with the smallest capacities, and a reader on another thread.
fn every_result_is_delivered_once_from_tight_pools<K: WorkerKind>() {
    const TASKS: u32 = 300;
    for result_order in RESULT_ORDERS {
        for order in ORDERS {
            for workers in 1..=3 {
                let builder = pool_builder(workers, 1).result_capacity(1).order(order);
                let (fixture, results) = build_with_results::<u32, K>(builder, result_order);
                let reader =
                    thread::spawn(move || results.map(|outcome| outcome.result.unwrap()).collect::<Vec<u32>>());
                for n in 0..TASKS {
                    let task = returning::<u32, K>(n).priority(Priority(n as u8)).cost(u64::from(TASKS - n));
                    fixture.submit(task).unwrap();
                }
                fixture.close();
                let mut values = reader.join().unwrap();
                if result_order == ResultOrder::AsCompleted {
                    values.sort_unstable();
                }
                assert!(values == (0..TASKS).collect::<Vec<_>>(), "{result_order:?} {order:?} {workers}: {values:?}");
            }
        }
    }
}

/// Offers tasks until the pool accepts no more, and 500 further ones. Returns how many were accepted and started.
fn offer<K: WorkerKind>(fixture: &Fixture<u32, K>, full: usize) -> (usize, usize) {
    let (mut accepted, started) = (0, Signal::default());
    let mut offer = || {
        let begun = started.clone();
        let task = K::once(async move |_| {
            begun.notify();
            Ok(0)
        });
        if fixture.try_submit(task).is_ok() {
            accepted += 1;
        }
        thread::yield_now();
        accepted
    };
    while offer() < full {}
    for _ in 0..500 {
        offer();
    }
    (accepted, started.count())
}

/// The result queue fills up, each worker takes one more task and waits with it, and the queue fills up.
fn pool_stops_accepting_tasks_when_results_are_not_read<K: WorkerKind>() {
    for workers in 1..=2 {
        let (queue, result_capacity) = (3, 2);
        let builder = pool_builder(workers, queue).result_capacity(result_capacity);
        let (fixture, mut results) = build_with_results::<u32, K>(builder, ResultOrder::AsCompleted);
        let (accepted, started) = offer(&fixture, queue + workers + result_capacity);
        // A worker may be running a task when the result queue fills up.
        assert!(started <= result_capacity + workers, "{started} tasks were started");
        assert!(accepted <= queue + 2 * workers + result_capacity, "{accepted} tasks were accepted");
        // Reading results makes room for tasks.
        let (pool, more) = (fixture.pool.clone(), 3 * accepted);
        let submitter = thread::spawn(move || {
            for _ in 0..more {
                pool.submit(returning::<u32, K>(0)).unwrap();
            }
        });
        for _ in 0..accepted + more {
            results.next().unwrap();
        }
        submitter.join().unwrap();
        fixture.close();
        assert_eq!(results.count(), 0);
    }
}

/// The first task is blocked, and the others run ahead of the reader up to the limit.
fn submit_order_limits_how_far_tasks_run_ahead<K: WorkerKind>() {
    let (workers, queue, result_capacity) = (2, 3, 2);
    let builder = pool_builder(workers, queue).result_capacity(result_capacity);
    let (fixture, mut results) = build_with_results::<u32, K>(builder, ResultOrder::AsSubmitted);
    let gate = Gate::default();
    occupy(&fixture, &gate);
    let (accepted, _) = offer(&fixture, workers + queue + result_capacity - 1);
    assert_eq!(accepted, workers + queue + result_capacity - 1, "with the blocked task, as many as may run ahead");
    // All but the blocked task can finish: full results do not keep tasks from starting that the reader waits for.
    wait_until(|| fixture.stats().completed as usize == accepted);
    let pool = fixture.pool.clone();
    let waiting = thread::spawn(move || pool.submit(returning::<u32, K>(1)));
    gate.open();
    for _ in 0..=accepted {
        assert_eq!(results.next().unwrap().result.unwrap(), 0);
    }
    waiting.join().unwrap().unwrap();
    assert_eq!(results.next().unwrap().result.unwrap(), 1);
    assert!(fixture.join().is_clean());
}

/// Once the results were read, no worker is held back.
fn every_worker_starts_once_results_are_read<K: WorkerKind>() {
    for result_order in RESULT_ORDERS {
        for workers in 2..=4 {
            let (fixture, mut results) =
                build_with_results::<u32, K>(pool_builder(workers, 8).result_capacity(1), result_order);
            fixture.submit(returning::<u32, K>(0)).unwrap();
            wait_until(|| fixture.stats().completed == 1);
            let barrier = Barrier::new(workers);
            for _ in 0..workers {
                let barrier = barrier.clone();
                let task = K::once(async move |_| {
                    barrier.wait().await;
                    Ok(1)
                });
                fixture.submit(task).unwrap();
            }
            // Each worker holds a task and waits for room for its result.
            wait_until(|| fixture.stats().queued == 0);
            let values: Vec<u32> = (0..=workers).map(|_| results.next().unwrap().result.unwrap()).collect();
            assert_eq!(values.iter().sum::<u32>(), workers as u32);
        }
    }
}

/// In submit order the task that the reader waits for must start, whatever else may.
fn submit_order_starts_the_task_that_the_reader_waits_for<K: WorkerKind>() {
    let builder = pool_builder(2, 8).result_capacity(1).order(QueueOrder::Priority);
    let (fixture, mut results) = build_with_results::<u32, K>(builder, ResultOrder::AsSubmitted);
    let (one, two, started) = (Gate::default(), Gate::default(), Signal::default());
    fixture.submit(hold::<u32, K>(&started, &one, 0)).unwrap();
    fixture.submit(hold::<u32, K>(&started, &two, 1)).unwrap();
    started.wait_for(2);
    fixture.submit(returning::<u32, K>(2).priority(Priority::LOW)).unwrap();
    fixture.submit(returning::<u32, K>(3).priority(Priority::HIGH)).unwrap();
    // The later task is popped first, and its worker is the first to wait for room.
    one.open();
    wait_until(|| fixture.stats().queued == 1);
    two.open();
    wait_until(|| fixture.stats().queued == 0);
    for n in 0..4 {
        assert_eq!(results.next().unwrap().result.unwrap(), n);
    }
}

fn dropped_results_do_not_block_the_pool<K: WorkerKind>() {
    for result_order in RESULT_ORDERS {
        let (fixture, results) = build_with_results::<u32, K>(pool_builder(2, 2).result_capacity(1), result_order);
        let pool = fixture.pool.clone();
        let submitter = thread::spawn(move || {
            for n in 0..100 {
                pool.submit(returning::<u32, K>(n)).unwrap();
            }
        });
        wait_until(|| fixture.stats().completed >= 1);
        drop(results);
        submitter.join().unwrap();
        let report = fixture.join();
        assert_eq!((report.finished, report.is_clean()), (100, true));
    }
}

fn unread_results_are_dropped_with_the_reader<K: WorkerKind>() {
    for result_order in RESULT_ORDERS {
        let (fixture, results) = build_with_results::<OnDrop, K>(pool_builder(1, 8), result_order);
        let dropped = Signal::default();
        fixture.submit(returning::<OnDrop, K>(OnDrop(dropped.clone()))).unwrap();
        wait_until(|| fixture.stats().completed == 1);
        assert_eq!(dropped.count(), 0);
        drop(results);
        fixture.submit(returning::<OnDrop, K>(OnDrop(dropped.clone()))).unwrap();
        fixture.join();
        assert_eq!(dropped.count(), 2);
    }
}

fn results_can_be_read_after_the_pool_ended<K: WorkerKind>() {
    for result_order in RESULT_ORDERS {
        let (fixture, results) = build_with_results::<u32, K>(pool_builder(2, 8), result_order);
        for n in 0..5 {
            fixture.submit(returning::<u32, K>(n)).unwrap();
        }
        assert_eq!(fixture.join().finished, 5);
        drop(fixture);
        let mut values: Vec<u32> = results.map(|outcome| outcome.result.unwrap()).collect();
        values.sort_unstable();
        assert_eq!(values, [0, 1, 2, 3, 4]);
    }
}

/// Every task that was started has one outcome, even if the pool is cancelled before anything was read.
fn outcomes_of_started_tasks_are_delivered_after_cancel<K: WorkerKind>() {
    for result_order in RESULT_ORDERS {
        let (fixture, results) = build_with_results::<u32, K>(pool_builder(2, 4).result_capacity(1), result_order);
        let (started, gate) = (Signal::default(), Gate::default());
        for n in 0..4 {
            fixture.submit(hold::<u32, K>(&started, &gate, n)).unwrap();
        }
        started.wait_for(2);
        fixture.cancel();
        gate.open();
        let report = fixture.join();
        assert_reports_each_task_once(&report);
        assert_eq!((report.finished, report.never_started.len()), (2, 2));
        let mut values: Vec<u32> = results.map(|outcome| outcome.result.unwrap()).collect();
        values.sort_unstable();
        assert_eq!(values, [0, 1]);
    }
}

fn failures_are_delivered_as_outcomes<K: WorkerKind>() {
    for result_order in RESULT_ORDERS {
        let (fixture, results) = build_with_results::<u32, K>(pool_builder(1, 8), result_order);
        fixture.submit(returning::<u32, K>(1)).unwrap();
        fixture.submit(fail::<u32, K>("bad line").kind("parse").label("7.json")).unwrap();
        fixture.submit(K::once(async |_| panic!("ouch"))).unwrap();
        fixture.submit(returning::<u32, K>(4)).unwrap();
        fixture.close();
        let reported: Vec<String> = results.map(describe).collect();
        assert_eq!(reported[0], "task #0 returned 1");
        assert_eq!(reported[1], "parse #1 (7.json) failed after 1: bad line");
        assert!(reported[2].starts_with("task #2 panicked after 1: ouch, at "), "{}", reported[2]);
        assert_eq!((&*reported[3], reported.len()), ("task #3 returned 4", 4));
    }
}

fn describe(outcome: gristmill_pool::Outcome<u32>) -> String {
    let task = outcome.task;
    match outcome.result {
        Ok(value) => format!("{task} returned {value}"),
        Err(failure) => {
            assert_eq!(failure.task, task);
            let attempts = failure.attempts;
            match failure.error.cause() {
                Cause::Panic { message, .. } => format!("{task} panicked after {attempts}: {message}"),
                _ => format!("{task} failed after {attempts}: {}", failure.error),
            }
        }
    }
}

/// A pool without tasks ends, and a reader that waits for results is woken.
fn waiting_reader_is_woken_at_the_end<K: WorkerKind>() {
    for (result_order, cancel) in RESULT_ORDERS.into_iter().flat_map(|d| [(d, false), (d, true)]) {
        let (fixture, results) = build_with_results::<u32, K>(pool_builder(2, 2), result_order);
        let reader = thread::spawn(move || Results::count(results));
        fixture.stop(cancel);
        assert_eq!(reader.join().unwrap(), 0);
    }
}

fn submit_order_works_with_unlimited_queue<K: WorkerKind>() {
    let (fixture, mut results) = build_with_results::<u32, K>(pool_builder(2, usize::MAX), ResultOrder::AsSubmitted);
    for n in 0..10 {
        fixture.submit(returning::<u32, K>(n)).unwrap();
        assert_eq!(results.next().unwrap().result.unwrap(), n);
    }
}

for_each_worker_kind!(
    completion_order_delivers_the_first_completed_first,
    submit_order_delivers_the_first_submitted_first,
    results_are_delivered_while_the_pool_runs,
    every_result_is_delivered_once_from_tight_pools,
    pool_stops_accepting_tasks_when_results_are_not_read,
    submit_order_limits_how_far_tasks_run_ahead,
    every_worker_starts_once_results_are_read,
    submit_order_starts_the_task_that_the_reader_waits_for,
    dropped_results_do_not_block_the_pool,
    unread_results_are_dropped_with_the_reader,
    results_can_be_read_after_the_pool_ended,
    outcomes_of_started_tasks_are_delivered_after_cancel,
    failures_are_delivered_as_outcomes,
    waiting_reader_is_woken_at_the_end,
    submit_order_works_with_unlimited_queue,
);

/// A task that got an id and was then rejected leaves a gap in submit order. Neither the reader nor a worker that waits
/// for room for results waits for it.
#[test]
fn rejected_spawn_leaves_no_gap_in_submit_order() {
    type K = OnThreads;
    let clock = ManualClock::new();
    let builder = pool_builder(2, 8).result_capacity(1).stall_timeout(SEC).clock(&clock);
    let (fixture, mut results) = build_with_results::<u32, K>(builder, ResultOrder::AsSubmitted);
    let (go, started, rejected) = (Gate::default(), Signal::default(), Signal::default());
    let (passed, begun, reported) = (go.passed(), started.clone(), rejected.clone());
    let stuck = K::once(async move |context: ContextOf<u32, K>| {
        begun.notify();
        passed.await;
        assert!(context.spawn_task(returning::<u32, K>(2)).is_err());
        reported.notify();
        Ok(0)
    });
    fixture.submit(stuck).unwrap();
    started.wait_for(1);
    advance_past_stall(&clock);
    results.next().unwrap().result.unwrap_err();
    let first = Gate::default();
    fixture.submit(hold::<u32, K>(&started, &first, 1)).unwrap();
    started.wait_for(2);
    // The spawn is rejected, with an id between those of the tasks before and after it.
    go.open();
    rejected.wait_for(1);
    let again = K::retrying(Retry::linear(2, SEC / 100).without_jitter(), async |context: ContextOf<u32, K>| {
        if context.attempt() == 1 { Err(TaskError::transient("not yet")) } else { Ok(3) }
    });
    fixture.submit(again).unwrap();
    wait_until(|| fixture.stats().waiting_retry == 1);
    fixture.submit(returning::<u32, K>(4)).unwrap();
    wait_until(|| fixture.stats().completed == 1);
    first.open();
    wait_until(|| fixture.stats().completed == 2);
    // Two results wait for the reader, so the worker that takes this task waits for room.
    clock.advance(SEC / 50);
    wait_until(|| fixture.stats().queued == 0 && fixture.stats().waiting_retry == 0);
    fixture.close();
    let values: Vec<u32> = results.map(|outcome| outcome.result.unwrap()).collect();
    assert_eq!(values, [1, 3, 4]);
}
