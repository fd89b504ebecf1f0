//! The order in which queued tasks start: first in first out, by priority, by cost, and without starvation.

#![cfg(not(any(shuttle, loom)))]

#[macro_use]
mod suite;

use gristmill_pool::{Priority, QueueOrder, ResultOrder};
use suite::*;

/// Submits tasks of these ranks while the only worker is occupied, and returns the order in which they ran.
fn run<K: WorkerKind>(order: QueueOrder, ranks: &[u64]) -> Vec<u64> {
    let builder = pool_builder(1, ranks.len().max(1)).order(order);
    let (fixture, mut results) = build_with_results::<u64, K>(builder, ResultOrder::AsCompleted);
    let gate = Gate::default();
    occupy(&fixture, &gate);
    for (nth, rank) in ranks.iter().enumerate() {
        fixture.submit(returning::<u64, K>(nth as u64).priority(Priority(*rank as u8)).cost(*rank)).unwrap();
    }
    gate.open();
    fixture.close();
    results.next();
    results.map(|outcome| outcome.result.unwrap()).collect()
}

fn each_order_is_exact_with_one_worker<K: WorkerKind>() {
    let check = |order, ranks: &[u64], want: &[u64]| assert_eq!(run::<K>(order, ranks), want, "{order:?}");
    check(QueueOrder::Fifo, &[3, 1, 2, 1, 9], &[0, 1, 2, 3, 4]);
    check(QueueOrder::Priority, &[3, 1, 2, 1, 255, 0, 64], &[4, 6, 0, 2, 1, 3, 5]);
    check(QueueOrder::Cost, &[3, 1, 2, 1, 9], &[1, 3, 2, 0, 4]);
    check(QueueOrder::Priority, &[7; 12], &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]);
    check(QueueOrder::Cost, &[7; 12], &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]);
}

fn fifo_order_is_exact_with_one_worker_and_many_tasks<K: WorkerKind>() {
    for result_order in RESULT_ORDERS {
        let (fixture, results) = build_with_results::<u32, K>(pool_builder(1, 7), result_order);
        let reader = std::thread::spawn(move || results.map(|outcome| outcome.result.unwrap()).collect::<Vec<_>>());
        for n in 0..2_000 {
            fixture.submit(returning::<u32, K>(n)).unwrap();
        }
        fixture.close();
        assert!(reader.join().unwrap().into_iter().eq(0..2_000));
    }
}

fn tasks_without_priority_are_normal<K: WorkerKind>() {
    let (fixture, mut results) =
        build_with_results::<&str, K>(pool_builder(1, 9).order(QueueOrder::Priority), ResultOrder::AsCompleted);
    let gate = Gate::default();
    occupy(&fixture, &gate);
    fixture.submit(returning::<&str, K>("low").priority(Priority::LOW)).unwrap();
    fixture.submit(returning::<&str, K>("plain")).unwrap();
    fixture.submit(returning::<&str, K>("normal").priority(Priority::NORMAL)).unwrap();
    fixture.submit(returning::<&str, K>("high").priority(Priority::HIGH)).unwrap();
    gate.open();
    fixture.close();
    results.next();
    let values: Vec<&str> = results.map(|outcome| outcome.result.unwrap()).collect();
    assert_eq!(values, ["high", "plain", "normal", "low"]);
}

/// A task of good rank that submits another one like itself before it ends, so that a better task than the worst always
/// waits.
fn better<K: WorkerKind>(pool: Handle<(), K>, worst: Signal, count: Signal) -> TaskOf<(), K> {
    let task = K::once(async move |_| {
        count.notify();
        if worst.count() == 0 && count.count() < 10_000 {
            pool.clone().try_submit(better::<K>(pool, worst, count))?;
        }
        Ok(())
    });
    task.priority(Priority::HIGH).cost(1)
}

/// The worst task runs after at most 16 starts for each task that was queued before it.
fn worst_task_runs_despite_endless_better_ones<K: WorkerKind>() {
    for order in [QueueOrder::Priority, QueueOrder::Cost] {
        // The queue is too short for a worker to pop a batch, which would include the worst task.
        let fixture = build::<K>(pool_builder(1, 3).order(order));
        let (gate, worst, count) = (Gate::default(), Signal::default(), Signal::default());
        occupy(&fixture, &gate);
        for _ in 0..2 {
            fixture.submit(better::<K>(fixture.pool.clone(), worst.clone(), count.clone())).unwrap();
        }
        let ran = worst.clone();
        let task = K::once(async move |_| {
            ran.notify();
            Ok(())
        });
        fixture.submit(task.priority(Priority(0)).cost(1_000_000)).unwrap();
        gate.open();
        worst.wait_for(1);
        // It was queued third, and tasks behind it may have run since.
        assert!(count.count() <= 3 * 16 + 8, "{order:?}: overtaken by {}", count.count());
        wait_until(|| fixture.stats().queued == 0);
        assert!(fixture.join().is_clean());
    }
}

for_each_worker_kind!(
    each_order_is_exact_with_one_worker,
    fifo_order_is_exact_with_one_worker_and_many_tasks,
    tasks_without_priority_are_normal,
    worst_task_runs_despite_endless_better_ones,
);
