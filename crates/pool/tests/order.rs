//! Whose turn it is: first in first out, by priority, by cost; and nobody waits for ever.

#![cfg(not(any(shuttle, loom)))]

#[macro_use]
mod suite;

use gristmill_pool::{Priority, QueueOrder, ResultOrder};
use suite::*;

/// Submits tasks of these ranks while the one worker is occupied, and says in which order they then ran.
fn run<K: Kind>(order: QueueOrder, ranks: &[u64]) -> Vec<u64> {
    let builder = small(1, ranks.len().max(1)).order(order);
    let (rig, mut results) = build_with_results::<u64, K>(builder, ResultOrder::AsCompleted);
    let gate = Gate::default();
    occupy(&rig, &gate);
    for (nth, rank) in ranks.iter().enumerate() {
        rig.submit(make::<u64, K>(nth as u64).priority(Priority(*rank as u8)).cost(*rank)).unwrap();
    }
    gate.open();
    rig.close();
    results.next();
    results.map(|outcome| outcome.result.unwrap()).collect()
}

fn each_order_is_exact_with_one_worker<K: Kind>() {
    let check = |order, ranks: &[u64], want: &[u64]| assert_eq!(run::<K>(order, ranks), want, "{order:?}");
    check(QueueOrder::Fifo, &[3, 1, 2, 1, 9], &[0, 1, 2, 3, 4]);
    check(QueueOrder::Priority, &[3, 1, 2, 1, 255, 0, 64], &[4, 6, 0, 2, 1, 3, 5]);
    check(QueueOrder::Cost, &[3, 1, 2, 1, 9], &[1, 3, 2, 0, 4]);
    check(QueueOrder::Priority, &[7; 12], &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]);
    check(QueueOrder::Cost, &[7; 12], &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]);
}

fn first_in_is_first_out_however_many<K: Kind>() {
    for delivery in DELIVERIES {
        let (rig, results) = build_with_results::<u32, K>(small(1, 7), delivery);
        let reader =
            std::thread::spawn(move || results.map(|outcome| outcome.result.unwrap()).collect::<Vec<_>>());
        for n in 0..2_000 {
            rig.submit(make::<u32, K>(n)).unwrap();
        }
        rig.close();
        assert!(reader.join().unwrap().into_iter().eq(0..2_000));
    }
}

fn tasks_that_say_nothing_are_normal<K: Kind>() {
    let (rig, mut results) =
        build_with_results::<&str, K>(small(1, 9).order(QueueOrder::Priority), ResultOrder::AsCompleted);
    let gate = Gate::default();
    occupy(&rig, &gate);
    rig.submit(make::<&str, K>("low").priority(Priority::LOW)).unwrap();
    rig.submit(make::<&str, K>("plain")).unwrap();
    rig.submit(make::<&str, K>("normal").priority(Priority::NORMAL)).unwrap();
    rig.submit(make::<&str, K>("high").priority(Priority::HIGH)).unwrap();
    gate.open();
    rig.close();
    results.next();
    let made: Vec<&str> = results.map(|outcome| outcome.result.unwrap()).collect();
    assert_eq!(made, ["high", "plain", "normal", "low"]);
}

/// A task that is better than the worst, and puts another one like itself into the queue before it ends: there
/// always is a better one.
fn better<K: Kind>(pool: Handle<(), K>, worst: Signal, count: Signal) -> Job<(), K> {
    let task = K::once(async move |_| {
        count.give();
        if worst.count() == 0 && count.count() < 10_000 {
            pool.clone().try_submit(better::<K>(pool, worst, count))?;
        }
        Ok(())
    });
    task.priority(Priority::HIGH).cost(1)
}

/// The worst of all runs all the same, after at most sixteen starts for each one that was there before it.
fn nothing_starves<K: Kind>() {
    for order in [QueueOrder::Priority, QueueOrder::Cost] {
        // Too short a queue for a worker to take several at once, which would take the worst along.
        let rig = build::<K>(small(1, 3).order(order));
        let (gate, worst, count) = (Gate::default(), Signal::default(), Signal::default());
        occupy(&rig, &gate);
        for _ in 0..2 {
            rig.submit(better::<K>(rig.pool.clone(), worst.clone(), count.clone())).unwrap();
        }
        let ran = worst.clone();
        let task = K::once(async move |_| {
            ran.give();
            Ok(())
        });
        rig.submit(task.priority(Priority(0)).cost(1_000_000)).unwrap();
        gate.open();
        worst.wait_for(1);
        // It was the third, and those that are queued behind it may have run since.
        assert!(count.count() <= 3 * 16 + 8, "{order:?}: overtaken by {}", count.count());
        until(|| rig.stats().queued == 0);
        assert!(rig.join().is_clean());
    }
}

every_kind!(
    each_order_is_exact_with_one_worker,
    first_in_is_first_out_however_many,
    tasks_that_say_nothing_are_normal,
    nothing_starves,
);
