//! What tasks make, and how it reaches the reader: in both orders, nothing dropped, and a reader who does not
//! read holds the pool up instead of filling memory.

#![cfg(not(any(shuttle, loom)))]

#[macro_use]
mod suite;

use gristmill_pool::{Priority, QueueOrder, ResultOrder, Results, error::Cause};
use std::thread;
use suite::*;

/// The first task is held until the second is done.
fn slow_first<K: Kind>(delivery: ResultOrder) -> Vec<u32> {
    let (rig, results) = build_with_results::<u32, K>(small(2, 4), delivery);
    let (gate, started) = (Gate::default(), Signal::default());
    rig.submit(hold::<u32, K>(&started, &gate, 0)).unwrap();
    started.wait_for(1);
    rig.submit(make::<u32, K>(1)).unwrap();
    until(|| rig.stats().completed == 1);
    gate.open();
    rig.close();
    results.map(|outcome| outcome.result.unwrap()).collect()
}

fn completed_first_is_delivered_first<K: Kind>() {
    assert_eq!(slow_first::<K>(ResultOrder::AsCompleted), [1, 0]);
}

fn submitted_first_is_delivered_first<K: Kind>() {
    assert_eq!(slow_first::<K>(ResultOrder::AsSubmitted), [0, 1]);
}

/// As soon as it is there, not at the end.
fn a_result_is_delivered_while_the_pool_runs<K: Kind>() {
    for delivery in DELIVERIES {
        let (rig, mut results) = build_with_results::<u32, K>(small(1, 1), delivery);
        for n in 0..3 {
            rig.submit(make::<u32, K>(n)).unwrap();
            assert_eq!(results.next().unwrap().result.unwrap(), n);
        }
        rig.submit(make::<u32, K>(3)).unwrap();
        assert_eq!(block_on(results.next_async()).unwrap().result.unwrap(), 3);
        rig.close();
        assert!(block_on(results.next_async()).is_none());
        assert!(results.next().is_none(), "the end is the end");
    }
}

/// The tightest of pools and a reader on a thread of its own: everything comes, once, and in order if asked.
fn nothing_is_dropped<K: Kind>() {
    const TASKS: u32 = 300;
    for delivery in DELIVERIES {
        for order in ORDERS {
            for workers in 1..=3 {
                let builder = small(workers, 1).result_capacity(1).order(order);
                let (rig, results) = build_with_results::<u32, K>(builder, delivery);
                let reader = thread::spawn(move || {
                    results.map(|outcome| outcome.result.unwrap()).collect::<Vec<u32>>()
                });
                for n in 0..TASKS {
                    let task = make::<u32, K>(n).priority(Priority(n as u8)).cost(u64::from(TASKS - n));
                    rig.submit(task).unwrap();
                }
                rig.close();
                let mut made = reader.join().unwrap();
                if delivery == ResultOrder::AsCompleted {
                    made.sort_unstable();
                }
                assert!(made == (0..TASKS).collect::<Vec<_>>(), "{delivery:?} {order:?} {workers}: {made:?}");
            }
        }
    }
}

/// Offers tasks until no more is taken, and then some. Answers how many were, and how many were started.
fn offer<K: Kind>(rig: &Rig<u32, K>, full: usize) -> (usize, usize) {
    let (mut taken, started) = (0, Signal::default());
    let mut offer = || {
        let begun = started.clone();
        let task = K::once(async move |_| {
            begun.give();
            Ok(0)
        });
        if rig.try_submit(task).is_ok() {
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
fn a_reader_who_does_not_read_is_backpressure<K: Kind>() {
    for workers in 1..=2 {
        let (queue, shelf) = (3, 2);
        let builder = small(workers, queue).result_capacity(shelf);
        let (rig, mut results) = build_with_results::<u32, K>(builder, ResultOrder::AsCompleted);
        let (taken, started) = offer(&rig, queue + workers + shelf);
        // A worker may finish a task as the shelf fills up under it.
        assert!(started <= shelf + workers, "{started} were started");
        assert!(taken <= queue + 2 * workers + shelf, "{taken} were taken in");
        // Reading makes room.
        let (pool, more) = (rig.pool.clone(), 3 * taken);
        let submitter = thread::spawn(move || {
            for _ in 0..more {
                pool.submit(make::<u32, K>(0)).unwrap();
            }
        });
        for _ in 0..taken + more {
            results.next().unwrap();
        }
        submitter.join().unwrap();
        rig.close();
        assert_eq!(results.count(), 0);
    }
}

/// The first task is held: the others run ahead of the reader, as far as the window and no further.
fn the_window_bounds_how_far_tasks_run_ahead<K: Kind>() {
    let (workers, queue, shelf) = (2, 3, 2);
    let builder = small(workers, queue).result_capacity(shelf);
    let (rig, mut results) = build_with_results::<u32, K>(builder, ResultOrder::AsSubmitted);
    let gate = Gate::default();
    occupy(&rig, &gate);
    let (taken, _) = offer(&rig, workers + queue + shelf - 1);
    assert_eq!(taken, workers + queue + shelf - 1, "with the held one, the window");
    // All but the held one can finish: the shelf is no reason not to start what the reader waits for.
    until(|| rig.stats().completed as usize == taken);
    let pool = rig.pool.clone();
    let waiting = thread::spawn(move || pool.submit(make::<u32, K>(1)));
    gate.open();
    for _ in 0..=taken {
        assert_eq!(results.next().unwrap().result.unwrap(), 0);
    }
    waiting.join().unwrap().unwrap();
    assert_eq!(results.next().unwrap().result.unwrap(), 1);
    assert!(rig.join().is_clean());
}

/// The shelf is empty again, so nothing keeps any worker from its work.
fn an_emptied_shelf_lets_every_worker_start<K: Kind>() {
    for delivery in DELIVERIES {
        for workers in 2..=4 {
            let (rig, mut results) =
                build_with_results::<u32, K>(small(workers, 8).result_capacity(1), delivery);
            rig.submit(make::<u32, K>(0)).unwrap();
            until(|| rig.stats().completed == 1);
            let meeting = Meeting::of(workers);
            for _ in 0..workers {
                let meeting = meeting.clone();
                let task = K::once(async move |_| {
                    meeting.attend().await;
                    Ok(1)
                });
                rig.submit(task).unwrap();
            }
            // All have one in hand and wait for room.
            until(|| rig.stats().queued == 0);
            let made: Vec<u32> = (0..=workers).map(|_| results.next().unwrap().result.unwrap()).collect();
            assert_eq!(made.iter().sum::<u32>(), workers as u32);
        }
    }
}

/// In submit order: whoever else may start, the task that the reader waits for must.
fn the_task_that_the_reader_waits_for_is_started<K: Kind>() {
    let builder = small(2, 8).result_capacity(1).order(QueueOrder::Priority);
    let (rig, mut results) = build_with_results::<u32, K>(builder, ResultOrder::AsSubmitted);
    let (one, two, started) = (Gate::default(), Gate::default(), Signal::default());
    rig.submit(hold::<u32, K>(&started, &one, 0)).unwrap();
    rig.submit(hold::<u32, K>(&started, &two, 1)).unwrap();
    started.wait_for(2);
    rig.submit(make::<u32, K>(2).priority(Priority::LOW)).unwrap();
    rig.submit(make::<u32, K>(3).priority(Priority::HIGH)).unwrap();
    // The later task is taken first, and its worker is the first to wait for room.
    one.open();
    until(|| rig.stats().queued == 1);
    two.open();
    until(|| rig.stats().queued == 0);
    for n in 0..4 {
        assert_eq!(results.next().unwrap().result.unwrap(), n);
    }
}

fn dropped_results_hold_nothing_up<K: Kind>() {
    for delivery in DELIVERIES {
        let (rig, results) = build_with_results::<u32, K>(small(2, 2).result_capacity(1), delivery);
        let pool = rig.pool.clone();
        let submitter = thread::spawn(move || {
            for n in 0..100 {
                pool.submit(make::<u32, K>(n)).unwrap();
            }
        });
        until(|| rig.stats().completed >= 1);
        drop(results);
        submitter.join().unwrap();
        let report = rig.join();
        assert_eq!((report.finished, report.is_clean()), (100, true));
    }
}

/// What was made but is not wanted is dropped, not kept.
fn results_that_nobody_wants_are_dropped<K: Kind>() {
    for delivery in DELIVERIES {
        let (rig, results) = build_with_results::<OnDrop, K>(small(1, 8), delivery);
        let dropped = Signal::default();
        rig.submit(make::<OnDrop, K>(OnDrop(dropped.clone()))).unwrap();
        until(|| rig.stats().completed == 1);
        assert_eq!(dropped.count(), 0);
        drop(results);
        rig.submit(make::<OnDrop, K>(OnDrop(dropped.clone()))).unwrap();
        rig.join();
        assert_eq!(dropped.count(), 2);
    }
}

fn results_can_be_read_after_the_end<K: Kind>() {
    for delivery in DELIVERIES {
        let (rig, results) = build_with_results::<u32, K>(small(2, 8), delivery);
        for n in 0..5 {
            rig.submit(make::<u32, K>(n)).unwrap();
        }
        assert_eq!(rig.join().finished, 5);
        drop(rig);
        let mut made: Vec<u32> = results.map(|outcome| outcome.result.unwrap()).collect();
        made.sort_unstable();
        assert_eq!(made, [0, 1, 2, 3, 4]);
    }
}

/// Every task that was started has one outcome, also when the pool is cancelled and nobody had read.
fn after_a_cancel_what_was_started_is_delivered<K: Kind>() {
    for delivery in DELIVERIES {
        let (rig, results) = build_with_results::<u32, K>(small(2, 4).result_capacity(1), delivery);
        let (started, gate) = (Signal::default(), Gate::default());
        for n in 0..4 {
            rig.submit(hold::<u32, K>(&started, &gate, n)).unwrap();
        }
        started.wait_for(2);
        rig.cancel();
        gate.open();
        let report = rig.join();
        assert_partition(&report);
        assert_eq!((report.finished, report.never_started.len()), (2, 2));
        let mut made: Vec<u32> = results.map(|outcome| outcome.result.unwrap()).collect();
        made.sort_unstable();
        assert_eq!(made, [0, 1]);
    }
}

fn failures_are_outcomes_too<K: Kind>() {
    for delivery in DELIVERIES {
        let (rig, results) = build_with_results::<u32, K>(small(1, 8), delivery);
        rig.submit(make::<u32, K>(1)).unwrap();
        rig.submit(fail::<u32, K>("bad line").kind("parse").label("7.json")).unwrap();
        rig.submit(K::once(async |_| panic!("ouch"))).unwrap();
        rig.submit(make::<u32, K>(4)).unwrap();
        rig.close();
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
fn a_waiting_reader_sees_the_end<K: Kind>() {
    for (delivery, cancel) in DELIVERIES.into_iter().flat_map(|d| [(d, false), (d, true)]) {
        let (rig, results) = build_with_results::<u32, K>(small(2, 2), delivery);
        let reader = thread::spawn(move || Results::count(results));
        rig.stop(cancel);
        assert_eq!(reader.join().unwrap(), 0);
    }
}

every_kind!(
    completed_first_is_delivered_first,
    submitted_first_is_delivered_first,
    a_result_is_delivered_while_the_pool_runs,
    nothing_is_dropped,
    a_reader_who_does_not_read_is_backpressure,
    the_window_bounds_how_far_tasks_run_ahead,
    an_emptied_shelf_lets_every_worker_start,
    the_task_that_the_reader_waits_for_is_started,
    dropped_results_hold_nothing_up,
    results_that_nobody_wants_are_dropped,
    results_can_be_read_after_the_end,
    after_a_cancel_what_was_started_is_delivered,
    failures_are_outcomes_too,
    a_waiting_reader_sees_the_end,
);
