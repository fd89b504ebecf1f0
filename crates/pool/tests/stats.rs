//! Statistics: each counter, durations by kind, consistency of snapshots, and the JSON keys.

#![cfg(not(any(shuttle, loom)))]

#[macro_use]
mod suite;

use gristmill_pool::{Breaker, PoolStats, ResultOrder, Retry, TaskError, clock::ManualClock};
use serde_json::Value;
use std::{thread, time::Duration};
use suite::*;

/// A snapshot of a pool with tasks in every state.
fn stats_count_each_state_of_a_task<K: WorkerKind>() {
    let clock = ManualClock::new();
    let fixture = build::<K>(pool_builder(1, 5).clock(&clock));
    let new = fixture.stats();
    assert_eq!(new, empty_stats(1, 5));
    fixture.submit(returning::<(), K>(())).unwrap();
    fixture.submit(fail::<(), K>("no")).unwrap();
    fixture.submit(K::once(async |_| panic!("ouch"))).unwrap();
    let busy = Retry::linear(2, SEC * 100);
    fixture.submit(K::retrying(busy, async |_| Err(TaskError::transient("busy")))).unwrap();
    clock.wait_for_timers(1);
    let gate = Gate::default();
    let (started, passed) = (Signal::default(), gate.passed());
    let begun = started.clone();
    let parent = K::once(async move |context: ContextOf<(), K>| {
        context.spawn_task(returning::<(), K>(()))?;
        begun.notify();
        passed.await;
        Ok(())
    });
    fixture.submit(parent).unwrap();
    started.wait_for(1);
    for _ in 0..3 {
        fixture.submit(returning::<(), K>(())).unwrap();
    }
    let stats = fixture.stats();
    assert_eq!((stats.workers, stats.active, stats.overdue), (1, 1, 0));
    assert_eq!((stats.queued, stats.waiting_retry, stats.queue_capacity), (3 + 1, 1, 5));
    assert_eq!((stats.submitted, stats.spawned), (5 + 3 + 1, 1));
    assert_eq!((stats.completed, stats.failed, stats.panicked, stats.retried), (1, 2, 1, 1));
    assert_eq!((stats.timed_out, stats.stalled, stats.late_discarded, stats.never_started), (0, 0, 0, 0));
    fixture.cancel();
    gate.open();
    let stats = fixture.join().stats;
    assert_eq!((stats.workers, stats.active, stats.queued, stats.waiting_retry), (0, 0, 0, 0));
    assert_eq!((stats.completed, stats.failed, stats.never_started), (2, 3, 4));
}

fn empty_stats(workers: usize, queue: usize) -> PoolStats {
    let mut stats = PoolStats::default();
    (stats.workers, stats.queue_capacity) = (workers, queue);
    stats
}

fn high_water_is_the_longest_queue_so_far<K: WorkerKind>() {
    let fixture = build::<K>(pool_builder(1, 8));
    for (rounds, want) in [(3, 3), (7, 7), (2, 7)] {
        let gate = Gate::default();
        occupy(&fixture, &gate);
        for _ in 0..rounds {
            fixture.submit(returning::<(), K>(())).unwrap();
        }
        assert_eq!((fixture.stats().queued, fixture.stats().queue_high_water), (rounds, want));
        gate.open();
        wait_until(|| fixture.stats().queued == 0 && fixture.stats().active == 0);
    }
}

/// Each task advances the clock by its duration.
fn durations_are_reported_by_kind<K: WorkerKind>() {
    let clock = ManualClock::new();
    let fixture = build::<K>(pool_builder(1, 8).clock(&clock));
    let submit = |kind, millis: u64| {
        let clock = clock.clone();
        let task = K::once(async move |_| {
            clock.advance(Duration::from_millis(millis));
            Ok(())
        });
        fixture.submit(task.kind(kind)).unwrap();
    };
    (1..=100).for_each(|millis| submit("walk", millis));
    (0..10).for_each(|_| submit("hash", 50));
    fixture.submit(returning::<(), K>(())).unwrap();
    let kinds = fixture.join().stats.kinds;
    let names: Vec<&str> = kinds.iter().map(|kind| kind.kind).collect();
    assert_eq!(names, ["walk", "hash", "task"]);
    let close = |got: u64, millis: f64| {
        let off = got as f64 / 1e6 / millis - 1.0;
        assert!(off.abs() <= 1.0 / 16.0, "{got} ns for {millis} ms");
    };
    let (walk, hash, plain) = (&kinds[0], &kinds[1], &kinds[2]);
    assert_eq!((walk.count, walk.mean_ns, walk.max_ns), (100, 50_500_000, 100_000_000));
    close(walk.p50_ns, 50.0);
    close(walk.p95_ns, 95.0);
    close(walk.p99_ns, 99.0);
    assert_eq!((hash.count, hash.mean_ns, hash.max_ns), (10, 50_000_000, 50_000_000));
    close(hash.p50_ns, 50.0);
    close(hash.p99_ns, 50.0);
    assert_eq!((plain.count, plain.max_ns), (1, 0));
}

/// Durations count attempts, failed and retried ones included, on every worker.
fn every_attempt_is_measured_by_kind<K: WorkerKind>() {
    for workers in [1, 3] {
        let fixture = build::<K>(pool_builder(workers, 64));
        for n in 0..3_000 {
            let kind = if n % 3 == 0 { "a" } else { "b" };
            fixture.submit(returning::<(), K>(()).kind(kind)).unwrap();
        }
        fixture.submit(fail::<(), K>("no").kind("fails")).unwrap();
        let busy = K::retrying(Retry::linear(4, Duration::ZERO), async |_| Err(TaskError::transient("busy")));
        fixture.submit(busy.kind("retries")).unwrap();
        let kinds = fixture.join().stats.kinds;
        let mut counts: Vec<_> = kinds.iter().map(|kind| (kind.kind, kind.count)).collect();
        counts.sort_unstable();
        assert_eq!(counts, [("a", 1_000), ("b", 2_000), ("fails", 1), ("retries", 4)]);
    }
}

/// Takes snapshots while tasks are submitted, spawned and settled.
fn stats_never_show_more_ended_than_submitted_tasks<K: WorkerKind>() {
    let fixture = build::<K>(pool_builder(2, 64));
    let ended = Signal::default();
    thread::scope(|scope| {
        scope.spawn(|| {
            while ended.count() == 0 {
                let stats = fixture.stats();
                let settled = stats.completed + stats.failed + stats.never_started;
                assert!(settled <= stats.submitted, "{settled} of {} have ended: {stats:?}", stats.submitted);
            }
        });
        for _ in 0..10_000 {
            let parent = K::once(async |context: ContextOf<(), K>| {
                context.spawn_task(returning::<(), K>(()))?;
                Ok(())
            });
            fixture.submit(parent).unwrap();
        }
        let stats = fixture.join().stats;
        ended.notify();
        assert_eq!((stats.completed, stats.submitted), (20_000, 20_000));
    });
}

/// The keys are public: the web page and the metrics read them.
fn keys(value: &Value) -> String {
    let object = value.as_object().unwrap();
    object.keys().map(String::as_str).collect::<Vec<_>>().join(" ")
}

fn stats_serialise_with_stable_keys<K: WorkerKind>() {
    let builder = pool_builder(1, 2).breaker(Breaker::new(3, SEC));
    let (fixture, mut results) = build_with_results::<u32, K>(builder, ResultOrder::AsCompleted);
    fixture.submit(returning::<u32, K>(1).kind("hash")).unwrap();
    results.next().unwrap();
    let json = serde_json::to_value(fixture.join().stats).unwrap();
    assert_eq!(
        keys(&json),
        "active breaker completed failed kinds late_discarded never_started overdue panicked queue_capacity \
         queue_high_water queued retried spawned stalled submitted timed_out waiting_retry workers"
    );
    assert_eq!(keys(&json["kinds"][0]), "count kind max_ns mean_ns p50_ns p95_ns p99_ns");
    assert_eq!(json["kinds"][0]["kind"], "hash");
    assert_eq!(keys(&json["breaker"]), "failures opened probes rejected state");
    assert_eq!(json["breaker"]["state"], "closed");
    assert_eq!((&json["completed"], &json["submitted"]), (&Value::from(1), &Value::from(1)));
    let bare = serde_json::to_value(build::<K>(pool_builder(1, 2)).stats()).unwrap();
    assert!(bare["breaker"].is_null());
}

for_each_worker_kind!(
    stats_count_each_state_of_a_task,
    high_water_is_the_longest_queue_so_far,
    durations_are_reported_by_kind,
    every_attempt_is_measured_by_kind,
    stats_never_show_more_ended_than_submitted_tasks,
    stats_serialise_with_stable_keys,
);
