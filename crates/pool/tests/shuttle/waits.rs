//! The waiting points of callers: for an idle pool, for room until a token is cancelled, for a token, and the callback
//! for outcomes.

use super::{Counter, Gate, SEC, assert_reports_each_task_once, drive, explore, submit_two_that_are_retried};
use gristmill_pool::{
    AsyncContext, AsyncPool, CancelToken, Outcome, Pool, Task, TaskError, clock::ManualClock, error::SubmitErrorKind,
};
use shuttle::{
    future::{block_on, yield_now},
    sync::atomic::{AtomicBool, Ordering::SeqCst},
    thread,
};
use std::{sync::Arc, time::Duration};

/// Each waiter returns after the tasks that were submitted before it waited, and the trees below them, have ended.
#[test]
fn waiters_for_an_idle_pool_see_every_task_before() {
    explore(|| {
        let pool = Pool::builder().workers(2).queue_capacity(1).build().unwrap();
        let callers: Vec<_> = (0..2)
            .map(|_| {
                let pool = pool.clone();
                thread::spawn(move || {
                    for _ in 0..2 {
                        let counter = Counter::default();
                        pool.submit_task(counter.tree(1)).unwrap();
                        pool.wait_idle();
                        assert_eq!(counter.count(), 3);
                    }
                })
            })
            .collect();
        callers.into_iter().for_each(|caller| caller.join().unwrap());
        assert_eq!(pool.join().finished, 12);
    });
}

#[test]
fn idle_pool_has_no_task_between_two_attempts() {
    explore(|| {
        let clock = ManualClock::new();
        let pool = Pool::builder().workers(2).queue_capacity(2).clock(&clock).build().unwrap();
        submit_two_that_are_retried(&pool);
        let driver = drive(&pool, &clock);
        pool.wait_idle();
        assert_eq!(pool.stats().completed, 2);
        pool.close();
        driver.join().unwrap();
    });
}

/// The pool is cancelled, closed or shut down while callers wait and tasks run, spawn and wait.
#[test]
fn ending_pool_wakes_waiters_for_idle() {
    for end in [Pool::cancel, Pool::close, |pool: &Pool| drop(pool.shutdown(Duration::ZERO))] {
        explore(move || {
            let pool = Pool::builder().workers(2).queue_capacity(2).build().unwrap();
            let counter = Counter::default();
            pool.submit_task(counter.tree(1)).unwrap();
            let _ = pool.submit_task(counter.task());
            let waiters: Vec<_> = (0..2)
                .map(|_| {
                    let pool = pool.clone();
                    thread::spawn(move || pool.wait_idle())
                })
                .collect();
            end(&pool);
            waiters.into_iter().for_each(|waiter| waiter.join().unwrap());
            assert_reports_each_task_once(&pool.join());
            pool.wait_idle();
        });
    }
}

/// The callback for the stalled task has returned when the pool is idle; the task itself still runs.
#[test]
fn pool_is_idle_after_a_stall() {
    explore(|| {
        let clock = ManualClock::new();
        let (outcomes, gate) = (Counter::default(), Gate::default());
        let (delivered, held) = (outcomes.clone(), gate.clone());
        let builder = Pool::builder().workers(1).queue_capacity(2).stall_timeout(SEC).clock(&clock);
        let pool = builder.build_with_callback(move |_: Outcome<()>| delivered.increment()).unwrap();
        pool.submit(move |_| Ok(held.wait(1))).unwrap();
        let driver = drive(&pool, &clock);
        pool.wait_idle();
        assert_eq!((outcomes.count(), pool.stats().stalled), (1, 1));
        gate.pass();
        pool.submit(|_| Ok(())).unwrap();
        pool.wait_idle();
        assert_eq!(outcomes.count(), 2);
        pool.close();
        driver.join().unwrap();
    });
}

#[test]
fn wait_for_idle_ends_when_its_token_is_cancelled() {
    explore(|| {
        let pool = Pool::builder().workers(1).queue_capacity(1).build().unwrap();
        let (gate, token) = (Gate::default(), CancelToken::new());
        let held = gate.clone();
        pool.submit(move |_| Ok(held.wait(1))).unwrap();
        let waiter = thread::spawn({
            let (pool, token) = (pool.clone(), token.clone());
            move || pool.wait_idle_until(&token, SEC)
        });
        token.cancel();
        assert!(!waiter.join().unwrap());
        gate.pass();
        assert!(pool.join().is_clean());
    });
}

/// A submitter that is cancelled while it waits or was granted room does not keep that room.
#[test]
fn cancelled_submitter_passes_its_room_on() {
    explore(|| {
        let pool = Pool::builder().workers(1).queue_capacity(1).build().unwrap();
        let (counter, token) = (Counter::default(), CancelToken::new());
        let submitters: Vec<_> = (0..2)
            .map(|_| {
                let (pool, counter, token) = (pool.clone(), counter.clone(), token.child());
                thread::spawn(move || match pool.submit_until(counter.task(), &token) {
                    Ok(_) => 1,
                    Err(error) => {
                        assert_eq!(error.kind, SubmitErrorKind::Cancelled);
                        0
                    }
                })
            })
            .collect();
        let canceller = thread::spawn(move || token.cancel());
        for _ in 0..2 {
            pool.submit_task(counter.task()).unwrap();
        }
        let accepted: usize = submitters.into_iter().map(|submitter| submitter.join().unwrap()).sum();
        canceller.join().unwrap();
        assert!(pool.join().is_clean());
        assert_eq!(counter.count(), accepted + 2);
    });
}

/// Every started task has one outcome, and none is delivered after the pool has ended.
#[test]
fn callback_is_not_called_after_the_end() {
    for end in [|pool: &Pool| pool.join(), |pool: &Pool| pool.shutdown(Duration::ZERO)] {
        explore(move || {
            let (outcomes, late, ended) = (Counter::default(), Counter::default(), Arc::new(AtomicBool::new(false)));
            let (delivered, delivered_late, has_ended) = (outcomes.clone(), late.clone(), Arc::clone(&ended));
            let builder = Pool::builder().workers(2).queue_capacity(2);
            let pool = builder
                .build_with_callback(move |_: Outcome<()>| {
                    if has_ended.load(SeqCst) { &delivered_late } else { &delivered }.increment();
                })
                .unwrap();
            let counter = Counter::default();
            for _ in 0..2 {
                pool.submit_task(counter.tree(1)).unwrap();
            }
            let canceller = thread::spawn({
                let pool = pool.clone();
                move || pool.cancel()
            });
            let report = end(&pool);
            ended.store(true, SeqCst);
            assert_reports_each_task_once(&report);
            assert_eq!(outcomes.count() as u64, report.finished + report.failed);
            canceller.join().unwrap();
            assert_eq!(late.count(), 0, "an outcome after the end");
        });
    }
}

/// The callback submits further tasks, which the pool finishes before it is idle.
#[test]
fn tasks_submitted_by_the_callback_are_not_lost() {
    explore(|| {
        let own_pool: Arc<shuttle::sync::Mutex<Option<Pool<u32>>>> = Arc::default();
        let (in_callback, outcomes) = (Arc::clone(&own_pool), Counter::default());
        let delivered = outcomes.clone();
        let builder = Pool::builder().workers(2).queue_capacity(1);
        let pool = builder
            .build_with_callback(move |outcome: Outcome<u32>| {
                let left = outcome.result.unwrap();
                let pool = in_callback.lock().unwrap().clone().unwrap();
                for _ in 0..if left > 0 { 2 } else { 0 } {
                    pool.submit(move |_| Ok(left - 1)).unwrap();
                }
                delivered.increment();
            })
            .unwrap();
        *own_pool.lock().unwrap() = Some(pool.clone());
        pool.submit(|_| Ok(2)).unwrap();
        pool.wait_idle();
        assert_eq!(outcomes.count(), 7);
        *own_pool.lock().unwrap() = None;
        pool.join();
    });
}

/// Waiters on a token, on a child and on a grandchild, and a callback that is registered meanwhile.
#[test]
fn cancelled_token_wakes_waiters_and_children() {
    explore(|| {
        let (token, calls) = (CancelToken::new(), Counter::default());
        let waiters: Vec<_> = [token.clone(), token.child(), token.child().child()]
            .into_iter()
            .map(|token| {
                let called = calls.clone();
                thread::spawn(move || {
                    let _registered = token.on_cancel(move || called.increment());
                    token.wait();
                    block_on(token.cancelled());
                    assert!(token.is_cancelled());
                })
            })
            .collect();
        let cancellers = [token.clone(), token.clone()].map(|token| thread::spawn(move || token.cancel()));
        waiters.into_iter().for_each(|waiter| waiter.join().unwrap());
        cancellers.into_iter().for_each(|canceller| canceller.join().unwrap());
        assert_eq!(calls.count(), 3);
    });
}

/// Other threads ask for the token of a run that ends, and of the next run on the same worker. Each token is cancelled
/// when its own run ends, and not before.
#[test]
fn token_of_a_run_is_cancelled_when_the_run_ends() {
    explore(|| {
        let pool = Pool::builder().workers(1).queue_capacity(2).build().unwrap();
        let (waiters, gate) = (Arc::new(shuttle::sync::Mutex::new(Vec::new())), Gate::default());
        for nth in 0..2 {
            let (waiters, gate) = (Arc::clone(&waiters), gate.clone());
            pool.submit(move |context| {
                let (context, own) = (context.clone(), context.cancel_token());
                let waiting = thread::spawn(move || context.cancel_token().wait());
                waiters.lock().unwrap().push(waiting);
                if nth == 1 {
                    gate.wait(1);
                    assert!(!own.is_cancelled(), "cancelled by the end of an earlier run");
                }
                Ok(())
            })
            .unwrap();
        }
        gate.pass();
        assert!(pool.join().is_clean());
        let waiters = std::mem::take(&mut *waiters.lock().unwrap());
        assert_eq!(waiters.len(), 2);
        waiters.into_iter().for_each(|waiter| waiter.join().unwrap());
    });
}

/// Tasks that wait for their token are released by a timeout and by a cancelled pool.
#[test]
fn token_of_a_run_is_cancelled_when_the_run_should_stop() {
    for cancel in [false, true] {
        explore(move || {
            let clock = ManualClock::new();
            let builder = Pool::builder().workers(1).queue_capacity(2).clock(&clock);
            let pool = if cancel { builder } else { builder.timeout(SEC) }.build().unwrap();
            for _ in 0..2 {
                pool.submit(|context| {
                    context.cancel_token().wait();
                    Err(TaskError::cancelled())
                })
                .unwrap();
            }
            if cancel {
                pool.cancel();
            }
            let driver = drive(&pool, &clock);
            let report = pool.join();
            driver.join().unwrap();
            assert_reports_each_task_once(&report);
            assert_eq!(report.stats.timed_out, if cancel { 0 } else { 2 });
        });
    }
}

#[test]
fn async_pool_becomes_idle_with_every_outcome_delivered() {
    explore(|| {
        block_on(async {
            let outcomes = Counter::default();
            let delivered = outcomes.clone();
            let builder = Pool::builder().workers(2).queue_capacity(1);
            let pool: AsyncPool<()> =
                builder.build_async_with_callback(move |_: Outcome<()>| delivered.increment()).unwrap();
            let token = CancelToken::new();
            for round in 1..=2 {
                let body = |context: AsyncContext| async move {
                    context.spawn(|_| async { Ok(yield_now().await) })?;
                    yield_now().await;
                    Ok(())
                };
                pool.submit_until(Task::future(body), &token).await.unwrap();
                pool.wait_idle().await;
                assert_eq!(outcomes.count(), 2 * round);
            }
            assert!(pool.join().await.is_clean());
        });
    });
}
