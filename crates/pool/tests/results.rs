//! What tasks make, and how it reaches the reader: in both orders, nothing dropped, and a reader who does not
//! read holds the pool up instead of filling memory.

#![cfg(not(any(shuttle, loom)))]

#[macro_use]
mod suite;

use gristmill_pool::{
    Priority, QueueOrder, ResultOrder, Results, Retry, TaskError, clock::ManualClock, error::Cause,
};
use std::thread;
use suite::*;

/// The first task is held until the second is done.
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

/// As soon as it is there, not at the end.
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
        assert!(results.next().is_none(), "the end is the end");
    }
}

/// The tightest of pools and a reader on a thread of its own: everything comes, once, and in order if asked.
fn every_result_is_delivered_once_from_tight_pools<K: WorkerKind>() {
    const TASKS: u32 = 300;
    for result_order in RESULT_ORDERS {
        for order in ORDERS {
            for workers in 1..=3 {
                let builder = pool_builder(workers, 1).result_capacity(1).order(order);
                let (fixture, results) = build_with_results::<u32, K>(builder, result_order);
                let reader = thread::spawn(move || {
                    results.map(|outcome| outcome.result.unwrap()).collect::<Vec<u32>>()
                });
                for n in 0..TASKS {
                    let task = returning::<u32, K>(n).priority(Priority(n as u8)).cost(u64::from(TASKS - n));
                    fixture.submit(task).unwrap();
                }
                fixture.close();
                let mut made = reader.join().unwrap();
                if result_order == ResultOrder::AsCompleted {
                    made.sort_unstable();
                }
                assert!(
                    made == (0..TASKS).collect::<Vec<_>>(),
                    "{result_order:?} {order:?} {workers}: {made:?}"
                );
            }
        }
    }
}

/// Offers tasks until no more is taken, and then some. Answers how many were, and how many were started.
fn offer<K: WorkerKind>(fixture: &Fixture<u32, K>, full: usize) -> (usize, usize) {
    let (mut taken, started) = (0, Signal::default());
    let mut offer = || {
        let begun = started.clone();
        let task = K::once(async move |_| {
            begun.notify();
            Ok(0)
        });
        if fixture.try_submit(task).is_ok() {
            taken += 1;
        }
        thread::yield_now();
        taken
    };
    while offer() < full {}
    for _ in 0..500 {
        offer();
    }
    (taken, started.count())
}

/// Nobody reads: the shelf fills, the workers take one more each and wait with it, the queue fills.
fn pool_stops_accepting_tasks_when_results_are_not_read<K: WorkerKind>() {
    for workers in 1..=2 {
        let (queue, result_capacity) = (3, 2);
        let builder = pool_builder(workers, queue).result_capacity(result_capacity);
        let (fixture, mut results) = build_with_results::<u32, K>(builder, ResultOrder::AsCompleted);
        let (taken, started) = offer(&fixture, queue + workers + result_capacity);
        // A worker may finish a task as the shelf fills up under it.
        assert!(started <= result_capacity + workers, "{started} were started");
        assert!(taken <= queue + 2 * workers + result_capacity, "{taken} were taken in");
        // Reading makes room.
        let (pool, more) = (fixture.pool.clone(), 3 * taken);
        let submitter = thread::spawn(move || {
            for _ in 0..more {
                pool.submit(returning::<u32, K>(0)).unwrap();
            }
        });
        for _ in 0..taken + more {
            results.next().unwrap();
        }
        submitter.join().unwrap();
        fixture.close();
        assert_eq!(results.count(), 0);
    }
}

/// The first task is held: the others run ahead of the reader, as far as the window and no further.
fn submit_order_limits_how_far_tasks_run_ahead<K: WorkerKind>() {
    let (workers, queue, result_capacity) = (2, 3, 2);
    let builder = pool_builder(workers, queue).result_capacity(result_capacity);
    let (fixture, mut results) = build_with_results::<u32, K>(builder, ResultOrder::AsSubmitted);
    let gate = Gate::default();
    occupy(&fixture, &gate);
    let (taken, _) = offer(&fixture, workers + queue + result_capacity - 1);
    assert_eq!(taken, workers + queue + result_capacity - 1, "with the held one, the window");
    // All but the held one can finish: the shelf is no reason not to start what the reader waits for.
    wait_until(|| fixture.stats().completed as usize == taken);
    let pool = fixture.pool.clone();
    let waiting = thread::spawn(move || pool.submit(returning::<u32, K>(1)));
    gate.open();
    for _ in 0..=taken {
        assert_eq!(results.next().unwrap().result.unwrap(), 0);
    }
    waiting.join().unwrap().unwrap();
    assert_eq!(results.next().unwrap().result.unwrap(), 1);
    assert!(fixture.join().is_clean());
}

/// The shelf is empty again, so nothing keeps any worker from its work.
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
            // All have one in hand and wait for room.
            wait_until(|| fixture.stats().queued == 0);
            let made: Vec<u32> = (0..=workers).map(|_| results.next().unwrap().result.unwrap()).collect();
            assert_eq!(made.iter().sum::<u32>(), workers as u32);
        }
    }
}

/// In submit order: whoever else may start, the task that the reader waits for must.
fn submit_order_starts_the_task_that_the_reader_waits_for<K: WorkerKind>() {
    let builder = pool_builder(2, 8).result_capacity(1).order(QueueOrder::Priority);
    let (fixture, mut results) = build_with_results::<u32, K>(builder, ResultOrder::AsSubmitted);
    let (one, two, started) = (Gate::default(), Gate::default(), Signal::default());
    fixture.submit(hold::<u32, K>(&started, &one, 0)).unwrap();
    fixture.submit(hold::<u32, K>(&started, &two, 1)).unwrap();
    started.wait_for(2);
    fixture.submit(returning::<u32, K>(2).priority(Priority::LOW)).unwrap();
    fixture.submit(returning::<u32, K>(3).priority(Priority::HIGH)).unwrap();
    // The later task is taken first, and its worker is the first to wait for room.
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
        let (fixture, results) =
            build_with_results::<u32, K>(pool_builder(2, 2).result_capacity(1), result_order);
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

/// What was made but is not wanted is dropped, not kept.
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
        let mut made: Vec<u32> = results.map(|outcome| outcome.result.unwrap()).collect();
        made.sort_unstable();
        assert_eq!(made, [0, 1, 2, 3, 4]);
    }
}

/// Every task that was started has one outcome, also when the pool is cancelled and nobody had read.
fn outcomes_of_started_tasks_are_delivered_after_cancel<K: WorkerKind>() {
    for result_order in RESULT_ORDERS {
        let (fixture, results) =
            build_with_results::<u32, K>(pool_builder(2, 4).result_capacity(1), result_order);
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
        let mut made: Vec<u32> = results.map(|outcome| outcome.result.unwrap()).collect();
        made.sort_unstable();
        assert_eq!(made, [0, 1]);
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
        let told: Vec<String> = results.map(tell).collect();
        assert_eq!(told[0], "task #0 made 1");
        assert_eq!(told[1], "parse #1 (7.json) failed after 1: bad line");
        assert!(told[2].starts_with("task #2 panicked after 1: ouch, at "), "{}", told[2]);
        assert_eq!((&*told[3], told.len()), ("task #3 made 4", 4));
    }
}

fn tell(outcome: gristmill_pool::Outcome<u32>) -> String {
    let task = outcome.task;
    match outcome.result {
        Ok(made) => format!("{task} made {made}"),
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

/// A reader that waits is woken by the end, and by nothing else.
fn waiting_reader_is_woken_at_the_end<K: WorkerKind>() {
    for (result_order, cancel) in RESULT_ORDERS.into_iter().flat_map(|d| [(d, false), (d, true)]) {
        let (fixture, results) = build_with_results::<u32, K>(pool_builder(2, 2), result_order);
        let reader = thread::spawn(move || Results::count(results));
        fixture.stop(cancel);
        assert_eq!(reader.join().unwrap(), 0);
    }
}

fn submit_order_works_with_unlimited_queue<K: WorkerKind>() {
    let (fixture, mut results) =
        build_with_results::<u32, K>(pool_builder(2, usize::MAX), ResultOrder::AsSubmitted);
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

/// A task that was numbered and then refused leaves a gap in submit order, for which nobody waits: neither the
/// reader nor a worker that is held back until there is room for results.
#[test]
fn rejected_spawn_leaves_no_gap_in_submit_order() {
    type K = OnThreads;
    let clock = ManualClock::new();
    let builder = pool_builder(2, 8).result_capacity(1).stall_timeout(SEC).clock(&clock);
    let (fixture, mut results) = build_with_results::<u32, K>(builder, ResultOrder::AsSubmitted);
    let (go, started, refused) = (Gate::default(), Signal::default(), Signal::default());
    let (passed, begun, told) = (go.passed(), started.clone(), refused.clone());
    let stuck = K::once(async move |context: ContextOf<u32, K>| {
        begun.notify();
        passed.await;
        assert!(context.spawn_task(returning::<u32, K>(2)).is_err());
        told.notify();
        Ok(0)
    });
    fixture.submit(stuck).unwrap();
    started.wait_for(1);
    advance_past_stall(&clock);
    results.next().unwrap().result.unwrap_err();
    let first = Gate::default();
    fixture.submit(hold::<u32, K>(&started, &first, 1)).unwrap();
    started.wait_for(2);
    // This one is refused, with a number between its neighbours'.
    go.open();
    refused.wait_for(1);
    let again =
        K::retrying(Retry::linear(2, SEC / 100).without_jitter(), async |context: ContextOf<u32, K>| {
            if context.attempt() == 1 { Err(TaskError::transient("not yet")) } else { Ok(3) }
        });
    fixture.submit(again).unwrap();
    wait_until(|| fixture.stats().waiting_retry == 1);
    fixture.submit(returning::<u32, K>(4)).unwrap();
    wait_until(|| fixture.stats().completed == 1);
    first.open();
    wait_until(|| fixture.stats().completed == 2);
    // Two results wait for the reader, so the worker that takes this one is held back.
    clock.advance(SEC / 50);
    wait_until(|| fixture.stats().queued == 0 && fixture.stats().waiting_retry == 0);
    fixture.close();
    let made: Vec<u32> = results.map(|outcome| outcome.result.unwrap()).collect();
    assert_eq!(made, [1, 3, 4]);
}
