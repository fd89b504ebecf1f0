//! Waiting until a pool is idle: nothing queued, delayed, spawned, running or being delivered.

#![cfg(not(any(shuttle, loom)))]

#[macro_use]
mod suite;

use gristmill_pool::{CancelToken, ResultOrder, Retry, TaskError, clock::ManualClock};
use std::{
    pin::pin,
    sync::{Arc, OnceLock},
    task::{Context as Poller, Waker},
    thread::{self, JoinHandle},
    time::Duration,
};
use suite::*;

fn wait_in_background<T: Send + 'static, K: WorkerKind>(pool: &Handle<T, K>) -> JoinHandle<()> {
    let pool = pool.clone();
    thread::spawn(move || pool.wait_idle())
}

/// A counter and a task that spawns `below` levels of two tasks each, and then increments the counter.
fn tree<K: WorkerKind>(counter: &Signal, below: u32) -> TaskOf<(), K> {
    let counter = counter.clone();
    K::once(move |context: ContextOf<(), K>| async move {
        for _ in 0..if below > 0 { 2 } else { 0 } {
            context.spawn_task(tree::<K>(&counter, below - 1))?;
        }
        counter.notify();
        Ok(())
    })
}

fn new_pool_becomes_idle<K: WorkerKind>() {
    let fixture = build::<K>(pool_builder(3, 4));
    fixture.wait_idle();
    fixture.wait_idle();
    assert_eq!(fixture.stats().submitted, 0);
}

fn every_task_before_has_ended_and_the_pool_stays_open<K: WorkerKind>() {
    for order in ORDERS {
        for workers in 1..=3 {
            let (fixture, counter) = (build::<K>(pool_builder(workers, 4).order(order)), Signal::default());
            for round in 1..=20 {
                fixture.submit(tree::<K>(&counter, 3)).unwrap();
                fixture.submit(tree::<K>(&counter, 0)).unwrap();
                fixture.wait_idle();
                assert_eq!(counter.count(), 16 * round);
                let stats = fixture.stats();
                assert_eq!((stats.completed, stats.active, stats.queued), (16 * round as u64, 0, 0));
            }
            assert!(fixture.join().is_clean());
        }
    }
}

/// A running task, a queued task and a task between two attempts each keep the pool busy.
fn pool_is_busy_while_a_task_runs_waits_or_is_delayed<K: WorkerKind>() {
    let clock = ManualClock::new();
    let (fixture, gate) = (build::<K>(pool_builder(1, 4).clock(&clock)), Gate::default());
    let second_time = K::retrying(Retry::linear(2, SEC).without_jitter(), |context: ContextOf<(), K>| async move {
        if context.attempt() == 1 { Err(TaskError::transient("busy")) } else { Ok(()) }
    });
    fixture.submit(second_time).unwrap();
    clock.wait_for_timers(1);
    occupy(&fixture, &gate);
    fixture.submit(returning::<(), K>(())).unwrap();
    let waiters = [(); 3].map(|()| wait_in_background(&fixture));
    assert!(waiters.iter().all(|waiter| !waiter.is_finished()), "a task runs");
    gate.open();
    wait_until(|| fixture.stats().completed == 2);
    assert!(waiters.iter().all(|waiter| !waiter.is_finished()), "a task waits for its retry");
    clock.advance(SEC);
    waiters.into_iter().for_each(|waiter| waiter.join().unwrap());
    assert_eq!((fixture.stats().completed, fixture.stats().waiting_retry), (3, 0));
}

fn callbacks_have_returned_when_the_pool_is_idle<K: WorkerKind>() {
    let (entered, gate, returned) = (Signal::default(), Gate::default(), Signal::default());
    let (begun, held, done) = (entered.clone(), gate.clone(), returned.clone());
    let fixture = build_with_callback::<(), K>(pool_builder(1, 4), move |_| {
        begun.notify();
        block_on(held.passed());
        done.notify();
    });
    fixture.submit(returning::<(), K>(())).unwrap();
    entered.wait_for(1);
    let waiter = wait_in_background(&fixture);
    assert!(!waiter.is_finished());
    gate.open();
    waiter.join().unwrap();
    assert_eq!(returned.count(), 1);
}

fn stalled_task_does_not_keep_the_pool_busy<K: WorkerKind>() {
    let clock = ManualClock::new();
    let (outcomes, gate) = (Signal::default(), Gate::default());
    let delivered = outcomes.clone();
    let builder = pool_builder(1, 4).stall_timeout(SEC).clock(&clock);
    let fixture = build_with_callback::<(), K>(builder, move |_| delivered.notify());
    occupy(&fixture, &gate);
    let waiter = wait_in_background(&fixture);
    advance_past_stall(&clock);
    waiter.join().unwrap();
    assert_eq!((outcomes.count(), fixture.stats().stalled), (1, 1));
    gate.open();
    fixture.submit(returning::<(), K>(())).unwrap();
    fixture.wait_idle();
    assert_eq!(fixture.stats().completed, 1);
}

/// A waiter is woken when the pool is closed or cancelled and has done what is left, and an ended pool is idle.
fn ended_pool_is_idle<K: WorkerKind>() {
    for cancel in [false, true] {
        let (fixture, gate) = (build::<K>(pool_builder(1, 4)), Gate::default());
        occupy(&fixture, &gate);
        fixture.submit(returning::<(), K>(())).unwrap();
        let waiter = wait_in_background(&fixture);
        fixture.stop(cancel);
        gate.open();
        waiter.join().unwrap();
        fixture.wait_idle();
        assert_reports_each_task_once(&fixture.join());
        fixture.wait_idle();
    }
}

fn abandoned_task_does_not_keep_the_pool_busy<K: WorkerKind>() {
    let (fixture, gate) = (build::<K>(pool_builder(1, 4)), Gate::default());
    occupy(&fixture, &gate);
    let waiter = wait_in_background(&fixture);
    assert_eq!(fixture.shutdown(Duration::ZERO).abandoned.len(), 1);
    waiter.join().unwrap();
    gate.open();
}

fn wait_ends_at_its_limit_or_when_its_token_is_cancelled<K: WorkerKind>() {
    let clock = ManualClock::new();
    let (fixture, gate) = (build::<K>(pool_builder(1, 4).clock(&clock)), Gate::default());
    occupy(&fixture, &gate);
    let (token, other) = (CancelToken::new(), CancelToken::new());
    let wait = |token: &CancelToken, limit| {
        let (pool, token) = (fixture.pool.clone(), token.clone());
        thread::spawn(move || pool.wait_idle_until(&token, limit))
    };
    let (cancelled, limited, idle) = (wait(&token, SEC * 9), wait(&other, SEC), wait(&other, SEC * 9));
    token.cancel();
    assert!(!cancelled.join().unwrap());
    clock.wait_for_timers(2);
    clock.advance(SEC);
    assert!(!limited.join().unwrap());
    gate.open();
    assert!(idle.join().unwrap());
    assert!(fixture.wait_idle_until(&token, SEC), "an idle pool wins over a cancelled token");
    assert_eq!(pending_timers(&clock), 0);
}

/// A task or callback that waited for its own pool would wait for itself.
fn wait_inside_the_pool_returns_at_once<K: WorkerKind>() {
    let own_pool: Arc<OnceLock<Handle<(), K>>> = Arc::default();
    let (in_task, in_callback) = (Arc::clone(&own_pool), Arc::clone(&own_pool));
    let fixture = build_with_callback::<(), K>(pool_builder(1, 4), move |_| in_callback.get().unwrap().wait_idle());
    assert!(own_pool.set(fixture.pool.clone()).is_ok());
    let task = K::once(async move |_| {
        K::wait_idle(&in_task.get().unwrap().0).await;
        Ok(())
    });
    fixture.submit(task).unwrap();
    fixture.wait_idle();
    assert!(fixture.join().is_clean());
}

/// A task that waits until its result has room is not idle.
fn pool_is_busy_until_the_reader_makes_room<K: WorkerKind>() {
    let (fixture, mut results) =
        build_with_results::<u32, K>(pool_builder(1, 4).result_capacity(1), ResultOrder::AsCompleted);
    for n in 0..3 {
        fixture.submit(returning::<u32, K>(n)).unwrap();
    }
    let cancelled = CancelToken::new();
    cancelled.cancel();
    assert!(!fixture.wait_idle_until(&cancelled, SEC));
    let waiter = wait_in_background(&fixture);
    let values = [(); 3].map(|()| results.next().unwrap().result.unwrap());
    waiter.join().unwrap();
    assert_eq!(values, [0, 1, 2]);
}

for_each_worker_kind!(
    new_pool_becomes_idle,
    every_task_before_has_ended_and_the_pool_stays_open,
    pool_is_busy_while_a_task_runs_waits_or_is_delayed,
    callbacks_have_returned_when_the_pool_is_idle,
    stalled_task_does_not_keep_the_pool_busy,
    ended_pool_is_idle,
    abandoned_task_does_not_keep_the_pool_busy,
    wait_ends_at_its_limit_or_when_its_token_is_cancelled,
    wait_inside_the_pool_returns_at_once,
    pool_is_busy_until_the_reader_makes_room,
);

/// Polled by hand: the future is woken once, at the moment at which the pool becomes idle.
#[cfg(feature = "tokio")]
#[test]
fn future_is_woken_when_the_last_worker_parks() {
    let (fixture, gate) = (build::<OnTokio>(pool_builder(2, 4)), Gate::default());
    occupy(&fixture, &gate);
    let flag = Arc::new(WakeFlag::default());
    let waker = Waker::from(Arc::clone(&flag));
    let mut idle = pin!(fixture.0.wait_idle());
    for _ in 0..3 {
        assert!(idle.as_mut().poll(&mut Poller::from_waker(&waker)).is_pending());
    }
    assert!(!flag.is_woken());
    gate.open();
    flag.wait();
    assert!(idle.as_mut().poll(&mut Poller::from_waker(&waker)).is_ready());
}

#[cfg(feature = "tokio")]
#[test]
fn dropped_wait_is_unregistered() {
    let (fixture, gate) = (build::<OnTokio>(pool_builder(1, 4)), Gate::default());
    occupy(&fixture, &gate);
    let flag = Arc::new(WakeFlag::default());
    let waker = Waker::from(Arc::clone(&flag));
    for _ in 0..3 {
        let mut idle = Box::pin(fixture.0.wait_idle());
        assert!(idle.as_mut().poll(&mut Poller::from_waker(&waker)).is_pending());
        let mut other = Box::pin(fixture.0.wait_idle());
        assert!(other.as_mut().poll(&mut Poller::from_waker(&waker)).is_pending());
        drop(idle);
        assert_eq!(Arc::strong_count(&flag), 3, "the flag, the waker and the wait that is left");
        drop(other);
        assert_eq!(Arc::strong_count(&flag), 2);
    }
    gate.open();
    fixture.wait_idle();
    assert!(!flag.is_woken());
}

/// The runtime ends with a task running and another queued.
#[cfg(feature = "tokio")]
#[test]
fn pool_is_idle_after_its_runtime_has_ended() {
    let fixture = build::<OnTokio>(pool_builder(1, 4));
    occupy(&fixture, &Gate::default());
    fixture.submit(returning::<(), OnTokio>(())).unwrap();
    let waiter = wait_in_background(&fixture);
    let Fixture { pool, runtime } = fixture;
    drop(runtime);
    waiter.join().unwrap();
    assert_reports_each_task_once(&pool.join());
}
