//! Tasks that spawn tasks, at any depth and width, with one worker and a queue capacity of one: none is lost, none
//! deadlocks, and depth-first order bounds memory.

#![cfg(not(any(shuttle, loom)))]

#[macro_use]
mod suite;

use gristmill_pool::{ResultOrder, clock::ManualClock, error::SubmitErrorKind};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    thread,
};
use suite::*;

/// A task that spawns the next one, `depth` times.
fn chain<K: WorkerKind>(depth: u32) -> TaskOf<u32, K> {
    K::once(async move |context: ContextOf<u32, K>| {
        if depth > 0 {
            context.spawn_task(chain::<K>(depth - 1))?;
        }
        Ok(depth)
    })
}

fn deep_chain_of_spawned_tasks_runs_to_its_end<K: WorkerKind>() {
    for (result_order, workers) in
        RESULT_ORDERS.into_iter().flat_map(|result_order| [(result_order, 1), (result_order, 2)])
    {
        let builder = pool_builder(workers, 1).result_capacity(1);
        let (fixture, results) = build_with_results::<u32, K>(builder, result_order);
        fixture.submit(chain::<K>(10_000)).unwrap();
        fixture.close();
        let mut values: Vec<u32> = results.map(|outcome| outcome.result.unwrap()).collect();
        if result_order == ResultOrder::AsCompleted {
            values.sort_unstable_by(|one, two| two.cmp(one));
        }
        assert!(values.into_iter().eq((0..=10_000).rev()), "{result_order:?} {workers}");
    }
}

/// A tree of tasks, each of which spawns its children. Tasks just above the leaves record how many tasks wait.
struct Tree<K: WorkerKind> {
    pool: Handle<(), K>,
    fan_out: usize,
    run: AtomicUsize,
    max_waiting: AtomicUsize,
}

fn node<K: WorkerKind>(tree: Arc<Tree<K>>, depth: usize) -> TaskOf<(), K> {
    K::once(async move |context: ContextOf<(), K>| {
        tree.run.fetch_add(1, SeqCst);
        let children = if depth > 0 { tree.fan_out } else { 0 };
        for _ in 0..children {
            context.spawn_task(node(Arc::clone(&tree), depth - 1))?;
        }
        if depth == 1 {
            tree.max_waiting.fetch_max(tree.pool.stats().queued, SeqCst);
        }
        Ok(())
    })
}

/// Walks a tree. Returns how many tasks ran and the largest number that waited at once.
fn walk<K: WorkerKind>(workers: usize, fan_out: usize, depth: usize) -> (usize, usize) {
    let fixture = build::<K>(pool_builder(workers, 1));
    let (pool, run, max_waiting) = (fixture.pool.clone(), AtomicUsize::new(0), AtomicUsize::new(0));
    let tree = Arc::new(Tree { pool, fan_out, run, max_waiting });
    fixture.submit(node(Arc::clone(&tree), depth)).unwrap();
    let report = fixture.join();
    assert_reports_each_task_once(&report);
    assert!(report.is_clean(), "{report}");
    assert_eq!(report.stats.spawned + 1, report.finished);
    (tree.run.load(SeqCst), tree.max_waiting.load(SeqCst))
}

fn tree_is_walked_depth_first<K: WorkerKind>() {
    let (run, max_waiting) = walk::<K>(1, 10, 5);
    assert_eq!(run, 111_111);
    assert!((10..=5 * 10).contains(&max_waiting), "{max_waiting} waited");
}

/// Each worker walks its own part, may have stolen as much, and may have begun another branch in between: some hundreds
/// of tasks, whatever the size of the tree.
fn tree_needs_memory_for_its_depth_per_worker<K: WorkerKind>() {
    for workers in [2, 4] {
        let (run, max_waiting) = walk::<K>(workers, 8, 4);
        assert_eq!(run, 1 + 8 + 64 + 512 + 4_096);
        assert!(max_waiting <= workers * (2 * 4 * 8 + 64), "{max_waiting} waited for {workers} workers");
    }
}

fn task_can_spawn_beyond_queue_capacity<K: WorkerKind>() {
    for result_order in RESULT_ORDERS {
        let (fixture, results) = build_with_results::<u32, K>(pool_builder(2, 1).result_capacity(1), result_order);
        let task = K::once(async |context: ContextOf<u32, K>| {
            for n in 1..1_000 {
                context.spawn_task(returning::<u32, K>(n))?;
            }
            Ok(0)
        });
        fixture.submit(task).unwrap();
        fixture.close();
        let mut values: Vec<u32> = results.map(|outcome| outcome.result.unwrap()).collect();
        values.sort_unstable();
        assert!(values.into_iter().eq(0..1_000));
    }
}

fn spawned_tasks_run_newest_first_before_the_queue<K: WorkerKind>() {
    let (fixture, results) = build_with_results::<&str, K>(pool_builder(1, 4), ResultOrder::AsCompleted);
    let gate = Gate::default();
    occupy(&fixture, &gate);
    let parent = K::once(async |context: ContextOf<&str, K>| {
        for child in ["one", "two", "three"] {
            context.spawn_task(returning::<&str, K>(child))?;
        }
        Ok("parent")
    });
    fixture.submit(parent).unwrap();
    fixture.submit(returning::<&str, K>("queued")).unwrap();
    gate.open();
    fixture.close();
    let values: Vec<&str> = results.map(|outcome| outcome.result.unwrap()).collect();
    assert_eq!(values, ["", "parent", "three", "two", "one", "queued"]);
}

fn tasks_of_closed_pool_can_spawn<K: WorkerKind>() {
    let (fixture, results) = build_with_results::<u32, K>(pool_builder(1, 4), ResultOrder::AsCompleted);
    let (gate, started) = (Gate::default(), Signal::default());
    let (begun, passed) = (started.clone(), gate.passed());
    let task = K::once(async move |context: ContextOf<u32, K>| {
        begun.notify();
        passed.await;
        context.spawn_task(chain::<K>(100))?;
        Ok(1_000)
    });
    fixture.submit(task).unwrap();
    started.wait_for(1);
    fixture.close();
    gate.open();
    let values: Vec<u32> = results.map(|outcome| outcome.result.unwrap()).collect();
    assert!(values.into_iter().eq([1_000].into_iter().chain((0..=100).rev())));
    assert_eq!(fixture.join().finished, 102);
}

fn cancelled_pool_returns_the_rejected_task<K: WorkerKind>() {
    for result_order in RESULT_ORDERS {
        let (fixture, results) = build_with_results::<u32, K>(pool_builder(2, 4), result_order);
        let (started, second) = (Signal::default(), build::<K>(pool_builder(1, 1)));
        let (begun, ran) = (started.clone(), Signal::default());
        let (other, count) = (second.pool.clone(), ran.clone());
        let task = K::once(async move |context: ContextOf<u32, K>| {
            let kept = context.spawn_task(returning::<u32, K>(1));
            begun.notify();
            context.cancelled().await;
            let rejected = context.spawn_task(returning::<u32, K>(2).label("back")).unwrap_err();
            assert_eq!(rejected.kind, SubmitErrorKind::Cancelled);
            assert!(format!("{:?}", rejected.into_task()).contains("back"));
            // The task still works: another pool runs it.
            let work = K::once(async move |_| {
                count.notify();
                Ok(())
            });
            K::submit(&other.0, work, None).await?;
            Ok(kept.is_ok().into())
        });
        fixture.submit(task).unwrap();
        started.wait_for(1);
        fixture.cancel();
        let report = fixture.join();
        assert_reports_each_task_once(&report);
        assert_eq!((report.failed, report.stats.submitted), (0, 2), "{:?}", report.failures);
        assert!(results.count() <= 2);
        second.join();
        assert_eq!(ran.count(), 1);
    }
}

/// Tasks that always spawn a successor: queued tasks still run, and so do those that a worker popped ahead in a batch.
/// With a frozen clock tasks seem to take no time and are popped in large batches.
fn endless_chain_does_not_starve_the_queue<K: WorkerKind>() {
    fn link<K: WorkerKind>(stop: Arc<AtomicBool>) -> TaskOf<(), K> {
        K::once(async move |context: ContextOf<(), K>| {
            if !stop.load(SeqCst) {
                context.spawn_task(link::<K>(stop))?;
            }
            Ok(())
        })
    }
    let shapes = [(1, 64), (3, 64), (3, 1)];
    for (order, (chains, queue)) in ORDERS.into_iter().flat_map(|order| shapes.map(|shape| (order, shape))) {
        for frozen_clock in [false, true] {
            let builder = pool_builder(1, queue).order(order);
            let builder = if frozen_clock { builder.clock(ManualClock::new()) } else { builder };
            let (fixture, stop) = (build::<K>(builder), Arc::new(AtomicBool::new(false)));
            for _ in 0..chains {
                fixture.submit(link::<K>(Arc::clone(&stop))).unwrap();
            }
            let ran = Signal::default();
            for _ in 0..100 {
                let ran = ran.clone();
                let task = K::once(async move |_| {
                    ran.notify();
                    Ok(())
                });
                fixture.submit(task).unwrap();
            }
            ran.wait_for(100);
            stop.store(true, SeqCst);
            assert!(fixture.join().is_clean());
        }
    }
}

/// As many spawned tasks as workers, none of which ends before all have started.
fn idle_workers_run_tasks_that_another_spawns<K: WorkerKind>() {
    for workers in 2..=5 {
        for _ in 0..20 {
            let fixture = build::<K>(pool_builder(workers, 8));
            // The workers are asleep or about to sleep.
            let barrier = Barrier::new(workers);
            let task = K::once(async move |context: ContextOf<(), K>| {
                for _ in 0..workers {
                    let barrier = barrier.clone();
                    let task = K::once(async move |_| {
                        barrier.wait().await;
                        Ok(())
                    });
                    context.spawn_task(task)?;
                }
                Ok(())
            });
            fixture.submit(task).unwrap();
            assert_eq!(fixture.join().finished, workers as u64 + 1);
        }
    }
}

/// A context may outlive its task and spawn from another thread while the pool drains and ends: every accepted task is
/// settled.
fn tasks_spawned_after_their_parent_ended_are_not_lost<K: WorkerKind>() {
    for round in 0..100 {
        let fixture = build::<K>(pool_builder(2, 8));
        let (context, ran) = (Log::<ContextOf<(), K>>::default(), Signal::default());
        let kept = context.clone();
        let task = K::once(async move |context: ContextOf<(), K>| {
            kept.add(context);
            Ok(())
        });
        fixture.submit(task).unwrap();
        wait_until(|| fixture.stats().completed == 1);
        let (context, count) = (context.all().remove(0), ran.clone());
        let spawner = thread::spawn(move || {
            let one = |_| {
                let count = count.clone();
                let task = K::once(async move |_| {
                    count.notify();
                    Ok(())
                });
                context.spawn_task(task).is_ok()
            };
            (0..1_000).map_while(|n| one(n).then_some(())).count()
        });
        if round % 2 == 0 {
            fixture.close();
        } else {
            wait_until(|| fixture.stats().completed > 5);
        }
        let report = fixture.join();
        let spawned = spawner.join().unwrap();
        assert_eq!((ran.count(), report.finished), (spawned, spawned as u64 + 1), "lost in round {round}");
        assert_reports_each_task_once(&report);
    }
}

for_each_worker_kind!(
    deep_chain_of_spawned_tasks_runs_to_its_end,
    tree_is_walked_depth_first,
    tree_needs_memory_for_its_depth_per_worker,
    task_can_spawn_beyond_queue_capacity,
    spawned_tasks_run_newest_first_before_the_queue,
    tasks_of_closed_pool_can_spawn,
    cancelled_pool_returns_the_rejected_task,
    endless_chain_does_not_starve_the_queue,
    idle_workers_run_tasks_that_another_spawns,
    tasks_spawned_after_their_parent_ended_are_not_lost,
);
