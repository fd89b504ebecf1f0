//! The context of a running task: cancellation, remaining time, worker, id and attempt.

#![cfg(not(any(shuttle, loom)))]

#[macro_use]
mod suite;

use gristmill_pool::{ResultOrder, Retry, TaskError, clock::ManualClock};
use std::{
    pin::pin,
    sync::Arc,
    task::{Context as Poller, Poll, Wake, Waker},
    time::Duration,
};
use suite::*;

/// On a thread the future is driven by the suite's `block_on`.
fn task_can_poll_or_await_cancellation<K: WorkerKind>() {
    let (fixture, results) = build_with_results::<bool, K>(pool_builder(2, 4), ResultOrder::AsCompleted);
    let started = Signal::default();
    for awaits in [false, true] {
        let started = started.clone();
        let task = K::once(async move |context: ContextOf<bool, K>| {
            let before = context.is_cancelled();
            started.notify();
            if awaits {
                context.cancelled().await;
            } else {
                std::future::poll_fn(|cx| match context.is_cancelled() {
                    true => Poll::Ready(()),
                    false => {
                        std::thread::yield_now();
                        cx.waker().wake_by_ref();
                        Poll::Pending
                    }
                })
                .await;
            }
            Ok(!before && context.is_cancelled())
        });
        fixture.submit(task).unwrap();
    }
    started.wait_for(2);
    fixture.cancel();
    let reported: Vec<bool> = results.map(|outcome| outcome.result.unwrap()).collect();
    assert_eq!(reported, [true, true]);
}

/// Any number of listeners can wait, and one that starts to wait after the cancel returns at once.
fn cancel_wakes_every_listener<K: WorkerKind>() {
    let (fixture, contexts, gate) =
        (build::<K>(pool_builder(1, 4)), Log::<ContextOf<(), K>>::default(), Gate::default());
    let (kept, passed, started) = (contexts.clone(), gate.passed(), Signal::default());
    let begun = started.clone();
    let task = K::once(async move |context: ContextOf<(), K>| {
        kept.add(context);
        begun.notify();
        passed.await;
        Ok(())
    });
    fixture.submit(task).unwrap();
    started.wait_for(1);
    let context = contexts.all().remove(0);
    let listeners: Vec<_> = (0..4)
        .map(|_| {
            let context = context.clone();
            std::thread::spawn(move || block_on(context.cancelled()))
        })
        .collect();
    fixture.cancel();
    listeners.into_iter().for_each(|listener| listener.join().unwrap());
    block_on(context.cancelled());
    gate.open();
    fixture.join();
}

/// Ends the run of the occupied worker in each way, and checks when its token is cancelled.
fn token_is_cancelled_when_the_task_should_stop_or_has_ended<K: WorkerKind>() {
    type End = fn(&ManualClock, &dyn Fn());
    let ends: [(&str, End); 4] = [
        ("pool cancelled", |_, cancel| cancel()),
        ("timed out", |clock, _| clock.advance(SEC * 20)),
        ("stalled", |clock, _| (0..6).for_each(|_| clock.advance(SEC * 2))),
        ("ended", |_, _| {}),
    ];
    for (name, end) in ends {
        let clock = ManualClock::new();
        let builder = pool_builder(1, 4).clock(&clock);
        let builder = match name {
            "timed out" => builder.timeout(SEC * 20),
            "stalled" => builder.stall_timeout(SEC * 8),
            _ => builder,
        };
        let (fixture, gate) = (build::<K>(builder), Gate::default());
        let context = context_of(&fixture, &gate);
        let (token, early) = (context.cancel_token(), context.cancel_token());
        assert!(!token.is_cancelled() && !context.is_cancelled(), "{name}");
        end(&clock, &|| fixture.cancel());
        if name == "ended" {
            assert!(!token.is_cancelled());
            gate.open();
        }
        early.wait();
        assert!(token.is_cancelled() && context.is_cancelled(), "{name}");
        assert!(context.cancel_token().is_cancelled(), "{name}: a token made afterwards");
        gate.open();
        fixture.join();
    }
}

/// A kept context of an earlier task neither sees nor cancels the token of the next task on its worker.
fn tokens_of_two_runs_are_independent<K: WorkerKind>() {
    let fixture = build::<K>(pool_builder(1, 4));
    let (first_gate, second_gate) = (Gate::default(), Gate::default());
    let first = context_of(&fixture, &first_gate);
    let first_token = first.cancel_token();
    first_gate.open();
    let second = context_of(&fixture, &second_gate);
    let second_token = second.cancel_token();
    assert!(first_token.is_cancelled() && first.cancel_token().is_cancelled());
    assert!(!second_token.is_cancelled() && !second.cancel_token().is_cancelled());
    first.cancel_token().cancel();
    assert!(!second_token.is_cancelled());
    second_gate.open();
    second_token.wait();
    assert!(fixture.join().is_clean());
}

/// A task past its timeout that ignores a cancelled pool is still dropped (async) or told (threads).
fn timeout_expires_after_the_pool_was_cancelled<K: WorkerKind>() {
    let clock = ManualClock::new();
    let (fixture, gate) = (build::<K>(pool_builder(1, 4).clock(&clock).timeout(SEC)), Gate::default());
    let context = context_of(&fixture, &gate);
    fixture.cancel();
    context.cancel_token().wait();
    clock.advance(SEC);
    assert_eq!(fixture.stats().timed_out, 1);
    if std::any::type_name::<K>().contains("OnThreads") {
        gate.open();
    }
    // An async task ends without its gate.
    assert_reports_each_task_once(&fixture.join());
}

#[track_caller]
fn assert_pending(future: impl Future, waker: &Waker) {
    assert!(pin!(future).poll(&mut Poller::from_waker(waker)).is_pending());
}

struct Silent;

impl Wake for Silent {
    fn wake(self: Arc<Self>) {}
}

/// A long-lived worker does not keep the wakers of tasks that awaited cancellation.
fn wakers_of_ended_tasks_are_released<K: WorkerKind>() {
    const TASKS: usize = 1_000;
    let (fixture, wakers) = (build::<K>(pool_builder(1, 4)), Log::default());
    for _ in 0..TASKS {
        let wakers = wakers.clone();
        let task = K::once(async move |context: ContextOf<(), K>| {
            let silent = Arc::new(Silent);
            wakers.add(Arc::downgrade(&silent));
            let waker = Waker::from(silent);
            let mut cancelled = pin!(context.cancelled());
            assert!(cancelled.as_mut().poll(&mut Poller::from_waker(&waker)).is_pending());
            Ok(())
        });
        fixture.submit(task).unwrap();
    }
    wait_until(|| fixture.stats().completed == TASKS as u64 || fixture.stats().failed > 0);
    let kept = wakers.all().iter().filter(|waker| waker.strong_count() > 0).count();
    assert!(kept < 50, "{kept} wakers of {TASKS} ended tasks are kept");
    assert!(fixture.join().is_clean());
}

fn remaining_counts_down_the_timeout<K: WorkerKind>() {
    for (pool, own, want) in [
        (None, None, None),
        (Some(SEC * 9), None, Some(SEC * 9)),
        (None, Some(SEC * 5), Some(SEC * 5)),
        (Some(SEC * 9), Some(SEC * 5), Some(SEC * 5)),
    ] {
        let clock = ManualClock::new();
        let builder = pool_builder(1, 4).clock(&clock);
        let builder = pool.map_or(builder.clone(), |limit| builder.timeout(limit));
        let (fixture, mut results) = build_with_results::<[Option<Duration>; 3], K>(builder, ResultOrder::AsCompleted);
        clock.advance(SEC * 100);
        let task = K::once(async move |context: ContextOf<[Option<Duration>; 3], K>| {
            let whole = context.remaining();
            clock.advance(SEC * 2);
            let rest = context.remaining();
            clock.advance(SEC * 2);
            Ok([whole, rest, context.remaining()])
        });
        fixture.submit(if let Some(own) = own { task.timeout(own) } else { task }).unwrap();
        let reported = results.next().unwrap().result.unwrap();
        assert_eq!(reported, [want, want.map(|limit| limit - SEC * 2), want.map(|limit| limit - SEC * 4)]);
    }
}

fn remaining_is_zero_after_the_timeout<K: WorkerKind>() {
    let clock = ManualClock::new();
    let (fixture, contexts, gate) = (build::<K>(pool_builder(1, 4).clock(&clock)), Log::default(), Gate::default());
    let (kept, passed, started) = (contexts.clone(), gate.passed(), Signal::default());
    let begun = started.clone();
    let task = K::once(async move |context: ContextOf<(), K>| {
        kept.add(context);
        begun.notify();
        passed.await;
        Ok(())
    });
    fixture.submit(task.timeout(SEC)).unwrap();
    started.wait_for(1);
    clock.advance(SEC * 5);
    assert_eq!(contexts.all().remove(0).remaining(), Some(Duration::ZERO));
    gate.open();
    fixture.join();
}

fn context_has_worker_and_task_id<K: WorkerKind>() {
    let (fixture, results) = build_with_results::<(usize, u64), K>(pool_builder(3, 8), ResultOrder::AsSubmitted);
    let barrier = Barrier::new(3);
    let ids: Vec<u64> = (0..3)
        .map(|_| {
            let barrier = barrier.clone();
            let task = K::once(async move |context: ContextOf<(usize, u64), K>| {
                barrier.wait().await;
                Ok((context.worker(), context.task_id().get()))
            });
            fixture.submit(task).unwrap().get()
        })
        .collect();
    fixture.close();
    let reported: Vec<(usize, u64)> = results.map(|outcome| outcome.result.unwrap()).collect();
    assert_eq!(reported.iter().map(|(_, id)| *id).collect::<Vec<_>>(), ids);
    let mut workers: Vec<usize> = reported.into_iter().map(|(worker, _)| worker).collect();
    workers.sort_unstable();
    assert_eq!(workers, [0, 1, 2], "three tasks at once on three workers");
}

fn spawned_task_has_the_id_returned_to_its_parent<K: WorkerKind>() {
    let (fixture, results) = build_with_results::<(u64, Option<u64>), K>(pool_builder(1, 4), ResultOrder::AsCompleted);
    let task = K::once(async |context: ContextOf<(u64, Option<u64>), K>| {
        let child = K::once(async |context: ContextOf<(u64, Option<u64>), K>| Ok((context.task_id().get(), None)));
        let child = context.spawn_task(child)?;
        Ok((context.task_id().get(), Some(child.get())))
    });
    fixture.submit(task).unwrap();
    fixture.close();
    let reported: Vec<_> = results.map(|outcome| (outcome.task.id.get(), outcome.result.unwrap())).collect();
    let [(parent, (_, Some(child))), (named, (own, None))] = reported[..] else { panic!("{reported:?}") };
    assert_eq!((parent, named, own), (0, child, child));
}

fn attempts_are_numbered_from_1<K: WorkerKind>() {
    let (fixture, mut results) = build_with_results::<u32, K>(pool_builder(1, 4), ResultOrder::AsCompleted);
    let third_time = K::retrying(Retry::linear(5, Duration::ZERO), |context: ContextOf<u32, K>| async move {
        if context.attempt() < 3 { Err(TaskError::transient("busy")) } else { Ok(context.attempt()) }
    });
    fixture.submit(third_time).unwrap();
    assert_eq!(results.next().unwrap().result.unwrap(), 3);
    fixture.submit(K::once(async |context: ContextOf<u32, K>| Ok(context.attempt()))).unwrap();
    assert_eq!(results.next().unwrap().result.unwrap(), 1);
}

/// A task may await cancellation again and again, and continue with other work.
fn waker_is_released_when_cancelled_future_is_dropped<K: WorkerKind>() {
    let fixture = build::<K>(pool_builder(1, 4));
    let gate = Gate::default();
    let context = context_of(&fixture, &gate);
    let token = Arc::new(());
    for _ in 0..100 {
        let held = Arc::clone(&token);
        assert_pending(context.cancelled(), &waker(move || drop(Arc::clone(&held))));
    }
    assert_eq!(Arc::strong_count(&token), 1, "wakers of dropped futures are kept");
    gate.open();
}

for_each_worker_kind!(
    task_can_poll_or_await_cancellation,
    cancel_wakes_every_listener,
    token_is_cancelled_when_the_task_should_stop_or_has_ended,
    tokens_of_two_runs_are_independent,
    timeout_expires_after_the_pool_was_cancelled,
    wakers_of_ended_tasks_are_released,
    remaining_counts_down_the_timeout,
    remaining_is_zero_after_the_timeout,
    context_has_worker_and_task_id,
    spawned_task_has_the_id_returned_to_its_parent,
    attempts_are_numbered_from_1,
    waker_is_released_when_cancelled_future_is_dropped,
);

/// A plain closure on a thread polls its context.
#[test]
fn blocking_loop_stops_when_cancelled() {
    let pool = pool_builder(1, 1).build().unwrap();
    let started = Signal::default();
    let begun = started.clone();
    pool.submit(move |context| {
        begun.notify();
        while !context.is_cancelled() {
            context.heartbeat();
            std::thread::yield_now();
        }
        Ok(())
    })
    .unwrap();
    started.wait_for(1);
    pool.cancel();
    assert_eq!(pool.join().finished, 1);
}
