//! Tasks that make tasks: at any depth, in any width, with one worker and a queue of one; none is lost, none
//! deadlocks, and memory is bounded by going deep before wide.

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

/// A task that spawns the next, so many deep.
fn chain<K: Kind>(depth: u32) -> Job<u32, K> {
    K::once(async move |context: Ctx<u32, K>| {
        if depth > 0 {
            context.spawn_task(chain::<K>(depth - 1))?;
        }
        Ok(depth)
    })
}

fn a_chain_of_any_depth_runs_to_its_end<K: Kind>() {
    for (delivery, workers) in DELIVERIES.into_iter().flat_map(|delivery| [(delivery, 1), (delivery, 2)]) {
        let builder = small(workers, 1).result_capacity(1);
        let (rig, results) = build_with_results::<u32, K>(builder, delivery);
        rig.submit(chain::<K>(10_000)).unwrap();
        rig.close();
        let mut made: Vec<u32> = results.map(|outcome| outcome.result.unwrap()).collect();
        if delivery == ResultOrder::AsCompleted {
            made.sort_unstable_by(|one, two| two.cmp(one));
        }
        assert!(made.into_iter().eq((0..=10_000).rev()), "{delivery:?} {workers}");
    }
}

/// A tree of tasks: each spawns its children. Above the leaves, where most wait, it looks at how many do.
struct Tree<K: Kind> {
    pool: Handle<(), K>,
    fan_out: usize,
    run: AtomicUsize,
    most_waiting: AtomicUsize,
}

fn node<K: Kind>(tree: Arc<Tree<K>>, depth: usize) -> Job<(), K> {
    K::once(async move |context: Ctx<(), K>| {
        tree.run.fetch_add(1, SeqCst);
        let children = if depth > 0 { tree.fan_out } else { 0 };
        for _ in 0..children {
            context.spawn_task(node(Arc::clone(&tree), depth - 1))?;
        }
        if depth == 1 {
            tree.most_waiting.fetch_max(tree.pool.stats().queued, SeqCst);
        }
        Ok(())
    })
}

/// Walks a tree; answers how many tasks ran, and the most that waited at a time.
fn walk<K: Kind>(workers: usize, fan_out: usize, depth: usize) -> (usize, usize) {
    let rig = build::<K>(small(workers, 1));
    let (pool, run, most_waiting) = (rig.pool.clone(), AtomicUsize::new(0), AtomicUsize::new(0));
    let tree = Arc::new(Tree { pool, fan_out, run, most_waiting });
    rig.submit(node(Arc::clone(&tree), depth)).unwrap();
    let report = rig.join();
    assert_partition(&report);
    assert!(report.is_clean(), "{report}");
    assert_eq!(report.stats.spawned + 1, report.finished);
    (tree.run.load(SeqCst), tree.most_waiting.load(SeqCst))
}

fn a_tree_is_walked_deep_before_wide<K: Kind>() {
    let (run, most_waiting) = walk::<K>(1, 10, 5);
    assert_eq!(run, 111_111);
    assert!((10..=5 * 10).contains(&most_waiting), "{most_waiting} waited");
}

/// Each worker walks a part of its own, may have stolen as much, and may have begun another branch in between:
/// some hundreds, whatever the size of the tree.
fn a_tree_on_many_workers_takes_the_depth_for_each<K: Kind>() {
    for workers in [2, 4] {
        let (run, most_waiting) = walk::<K>(workers, 8, 4);
        assert_eq!(run, 1 + 8 + 64 + 512 + 4_096);
        assert!(most_waiting <= workers * (2 * 4 * 8 + 64), "{most_waiting} waited for {workers} workers");
    }
}

fn a_wide_task_is_not_held_by_the_queue<K: Kind>() {
    for delivery in DELIVERIES {
        let (rig, results) = build_with_results::<u32, K>(small(2, 1).result_capacity(1), delivery);
        let task = K::once(async |context: Ctx<u32, K>| {
            for n in 1..1_000 {
                context.spawn_task(make::<u32, K>(n))?;
            }
            Ok(0)
        });
        rig.submit(task).unwrap();
        rig.close();
        let mut made: Vec<u32> = results.map(|outcome| outcome.result.unwrap()).collect();
        made.sort_unstable();
        assert!(made.into_iter().eq(0..1_000));
    }
}

/// With one worker: newest first, and before what waits in the queue.
fn spawned_tasks_run_newest_first<K: Kind>() {
    let (rig, results) = build_with_results::<&str, K>(small(1, 4), ResultOrder::AsCompleted);
    let gate = Gate::default();
    occupy(&rig, &gate);
    let parent = K::once(async |context: Ctx<&str, K>| {
        for child in ["one", "two", "three"] {
            context.spawn_task(make::<&str, K>(child))?;
        }
        Ok("parent")
    });
    rig.submit(parent).unwrap();
    rig.submit(make::<&str, K>("queued")).unwrap();
    gate.open();
    rig.close();
    let made: Vec<&str> = results.map(|outcome| outcome.result.unwrap()).collect();
    assert_eq!(made, ["", "parent", "three", "two", "one", "queued"]);
}

fn a_closed_pool_lets_its_tasks_spawn<K: Kind>() {
    let (rig, results) = build_with_results::<u32, K>(small(1, 4), ResultOrder::AsCompleted);
    let (gate, started) = (Gate::default(), Signal::default());
    let (begun, passed) = (started.clone(), gate.passed());
    let task = K::once(async move |context: Ctx<u32, K>| {
        begun.give();
        passed.await;
        context.spawn_task(chain::<K>(100))?;
        Ok(1_000)
    });
    rig.submit(task).unwrap();
    started.wait_for(1);
    rig.close();
    gate.open();
    let made: Vec<u32> = results.map(|outcome| outcome.result.unwrap()).collect();
    assert!(made.into_iter().eq([1_000].into_iter().chain((0..=100).rev())));
    assert_eq!(rig.join().finished, 102);
}

fn a_cancelled_pool_gives_the_task_back<K: Kind>() {
    for delivery in DELIVERIES {
        let (rig, results) = build_with_results::<u32, K>(small(2, 4), delivery);
        let (started, second) = (Signal::default(), build::<K>(small(1, 1)));
        let (begun, ran) = (started.clone(), Signal::default());
        let (other, count) = (second.pool.clone(), ran.clone());
        let task = K::once(async move |context: Ctx<u32, K>| {
            let kept = context.spawn_task(make::<u32, K>(1));
            begun.give();
            context.cancelled().await;
            let refused = context.spawn_task(make::<u32, K>(2).label("back")).unwrap_err();
            assert_eq!(refused.kind, SubmitErrorKind::Cancelled);
            assert!(format!("{:?}", refused.into_task()).contains("back"));
            // The pool is gone, but not the closure: another pool takes it.
            let work = K::once(async move |_| {
                count.give();
                Ok(())
            });
            K::submit(&other.0, work, None).await?;
            Ok(kept.is_ok().into())
        });
        rig.submit(task).unwrap();
        started.wait_for(1);
        rig.cancel();
        let report = rig.join();
        assert_partition(&report);
        assert_eq!((report.failed, report.stats.submitted), (0, 2), "{:?}", report.failures);
        assert!(results.count() <= 2);
        second.join();
        assert_eq!(ran.count(), 1);
    }
}

/// Tasks that spawn their successors for ever: what is queued has its turn, and so has what a worker took from
/// the queue ahead of time. (Where the clock stands still, tasks look tiny and are taken many at a time.)
fn a_chain_without_end_does_not_starve_the_queue<K: Kind>() {
    fn link<K: Kind>(stop: Arc<AtomicBool>) -> Job<(), K> {
        K::once(async move |context: Ctx<(), K>| {
            if !stop.load(SeqCst) {
                context.spawn_task(link::<K>(stop))?;
            }
            Ok(())
        })
    }
    let shapes = [(1, 64), (3, 64), (3, 1)];
    for (order, (chains, queue)) in ORDERS.into_iter().flat_map(|order| shapes.map(|shape| (order, shape))) {
        for still in [false, true] {
            let builder = small(1, queue).order(order);
            let builder = if still { builder.clock(ManualClock::new()) } else { builder };
            let (rig, stop) = (build::<K>(builder), Arc::new(AtomicBool::new(false)));
            for _ in 0..chains {
                rig.submit(link::<K>(Arc::clone(&stop))).unwrap();
            }
            let ran = Signal::default();
            for _ in 0..100 {
                let ran = ran.clone();
                let task = K::once(async move |_| {
                    ran.give();
                    Ok(())
                });
                rig.submit(task).unwrap();
            }
            ran.wait_for(100);
            stop.store(true, SeqCst);
            assert!(rig.join().is_clean());
        }
    }
}

/// As many spawned tasks as workers, and none can end before all have begun.
fn idle_workers_take_what_one_spawns<K: Kind>() {
    for workers in 2..=5 {
        for _ in 0..20 {
            let rig = build::<K>(small(workers, 8));
            // All asleep, or about to.
            let meeting = Meeting::of(workers);
            let task = K::once(async move |context: Ctx<(), K>| {
                for _ in 0..workers {
                    let meeting = meeting.clone();
                    let task = K::once(async move |_| {
                        meeting.attend().await;
                        Ok(())
                    });
                    context.spawn_task(task)?;
                }
                Ok(())
            });
            rig.submit(task).unwrap();
            assert_eq!(rig.join().finished, workers as u64 + 1);
        }
    }
}

/// A context may outlive its task and spawn from elsewhere, while the pool drains and ends: what it was told
/// is taken has a fate.
fn a_context_that_outlives_its_task_loses_nothing<K: Kind>() {
    for round in 0..100 {
        let rig = build::<K>(small(2, 8));
        let (context, ran) = (Log::<Ctx<(), K>>::default(), Signal::default());
        let kept = context.clone();
        let task = K::once(async move |context: Ctx<(), K>| {
            kept.add(context);
            Ok(())
        });
        rig.submit(task).unwrap();
        until(|| rig.stats().completed == 1);
        let (context, count) = (context.all().remove(0), ran.clone());
        let spawner = thread::spawn(move || {
            let one = |_| {
                let count = count.clone();
                let task = K::once(async move |_| {
                    count.give();
                    Ok(())
                });
                context.spawn_task(task).is_ok()
            };
            (0..1_000).map_while(|n| one(n).then_some(())).count()
        });
        if round % 2 == 0 {
            rig.close();
        } else {
            until(|| rig.stats().completed > 5);
        }
        let report = rig.join();
        let spawned = spawner.join().unwrap();
        assert_eq!((ran.count(), report.finished), (spawned, spawned as u64 + 1), "lost in round {round}");
        assert_partition(&report);
    }
}

every_kind!(
    a_chain_of_any_depth_runs_to_its_end,
    a_tree_is_walked_deep_before_wide,
    a_tree_on_many_workers_takes_the_depth_for_each,
    a_wide_task_is_not_held_by_the_queue,
    spawned_tasks_run_newest_first,
    a_closed_pool_lets_its_tasks_spawn,
    a_cancelled_pool_gives_the_task_back,
    a_chain_without_end_does_not_starve_the_queue,
    idle_workers_take_what_one_spawns,
    a_context_that_outlives_its_task_loses_nothing,
);
