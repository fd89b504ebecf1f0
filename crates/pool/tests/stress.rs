//! Ten threads that each start and stop fifty pools, in every way and at random times. Every pool ends and reports
//! every task.

#![cfg(not(any(shuttle, loom)))]

#[macro_use]
mod suite;

use gristmill_pool::{QueueOrder, ResultOrder, Retry, TaskError};
use std::{
    hash::{BuildHasher, RandomState},
    thread,
    time::Duration,
};
use suite::*;

/// A small pseudo-random generator. The test prints its seed.
struct Rng(u64);

impl Rng {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }
}

fn any_task<K: WorkerKind>(rng: &mut Rng) -> TaskOf<u32, K> {
    match rng.roll(6) {
        0 => fail::<u32, K>("no"),
        1 => K::once(async |_| panic!("ouch")),
        2 => K::retrying(Retry::linear(3, Duration::from_micros(10)), async |_| Err(TaskError::transient("busy"))),
        3 => K::once(async |context: ContextOf<u32, K>| {
            for n in 0..5 {
                // Rejected once the pool is cancelled.
                let _rejected = context.spawn_task(returning::<u32, K>(n));
            }
            Ok(0)
        }),
        4 => K::once(async |context: ContextOf<u32, K>| {
            context.heartbeat();
            Ok(context.is_cancelled().into())
        }),
        _ => returning::<u32, K>(1),
    }
}

/// Builds a random pool, submits random tasks and ends it in a random way.
fn run_one_pool<K: WorkerKind>(runtime: &K::Runtime, rng: &mut Rng) {
    let order = [QueueOrder::Fifo, QueueOrder::Priority, QueueOrder::Cost][rng.roll(3) as usize];
    let result_order = [ResultOrder::AsCompleted, ResultOrder::AsSubmitted][rng.roll(2) as usize];
    let builder = pool_builder(1 + rng.roll(3) as usize, 1 + rng.roll(4) as usize);
    let builder = builder.order(order).result_capacity(1 + rng.roll(3) as usize);
    let builder = if rng.roll(2) == 0 { builder.timeout(SEC * 100) } else { builder };
    let (pool, results) = K::build_with_results::<u32>(runtime, builder, result_order);
    let pool = Handle::<u32, K>(pool);
    let reader = thread::spawn({
        let results_to_read = rng.roll(20) as usize;
        let all = rng.roll(2) == 0;
        move || if all { results.count() } else { results.take(results_to_read).count() }
    });
    let submitter = thread::spawn({
        let (pool, mut rng) = (pool.clone(), Rng(rng.0 | 1));
        move || (0..20).take_while(|_| pool.submit(any_task::<K>(&mut rng)).is_ok()).count()
    });
    for _ in 0..rng.roll(10) {
        drop(pool.try_submit(any_task::<K>(rng)));
    }
    match rng.roll(5) {
        0 => pool.close(),
        1 => pool.cancel(),
        2 => assert_reports_each_task_once(&pool.join()),
        3 => assert_reports_each_task_once(&pool.shutdown(Duration::from_micros(rng.roll(2_000)))),
        _ => {}
    }
    submitter.join().unwrap();
    let report = if rng.roll(2) == 0 { pool.join() } else { pool.shutdown(SEC * 100) };
    assert_reports_each_task_once(&report);
    assert!(pool.is_finished() || !report.abandoned.is_empty());
    drop(pool);
    reader.join().unwrap();
}

fn every_pool_ends_under_concurrent_start_and_stop<K: WorkerKind>() {
    let runtime = K::runtime();
    let seed = RandomState::new().hash_one(0u8) | 1;
    println!("seed: {seed}");
    thread::scope(|scope| {
        let threads: Vec<_> = (0..10u64)
            .map(|thread| {
                let runtime = &runtime;
                scope.spawn(move || {
                    let mut rng = Rng(seed.wrapping_add(thread * 2));
                    (0..50).for_each(|_| run_one_pool::<K>(runtime, &mut rng));
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

for_each_worker_kind!(every_pool_ends_under_concurrent_start_and_stop);
