//! What a task knows while it runs.

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

/// Polled, and awaited: on a thread with a hand-made executor, on a tokio task as it is.
fn cancellation_can_be_polled_and_awaited<K: Kind>() {
    let (rig, results) = build_with_results::<bool, K>(small(2, 4), ResultOrder::AsCompleted);
    let started = Signal::default();
    for awaits in [false, true] {
        let started = started.clone();
        let task = K::once(async move |context: Ctx<bool, K>| {
            let before = context.is_cancelled();
            started.give();
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
        rig.submit(task).unwrap();
    }
    started.wait_for(2);
    rig.cancel();
    let told: Vec<bool> = results.map(|outcome| outcome.result.unwrap()).collect();
    assert_eq!(told, [true, true]);
}

/// Any number of places can wait for it, and one that asks afterwards is told at once.
fn every_listener_is_told<K: Kind>() {
    let (rig, contexts, gate) = (build::<K>(small(1, 4)), Log::<Ctx<(), K>>::default(), Gate::default());
    let (kept, passed, started) = (contexts.clone(), gate.passed(), Signal::default());
    let begun = started.clone();
    let task = K::once(async move |context: Ctx<(), K>| {
        kept.add(context);
        begun.give();
        passed.await;
        Ok(())
    });
    rig.submit(task).unwrap();
    started.wait_for(1);
    let context = contexts.all().remove(0);
    let listeners: Vec<_> = (0..4)
        .map(|_| {
            let context = context.clone();
            std::thread::spawn(move || block_on(context.cancelled()))
        })
        .collect();
    rig.cancel();
    listeners.into_iter().for_each(|listener| listener.join().unwrap());
    block_on(context.cancelled());
    gate.open();
    rig.join();
}

struct Silent;

impl Wake for Silent {
    fn wake(self: Arc<Self>) {}
}

/// A worker lives long: it does not keep a waker for every task that ever listened.
fn listeners_are_forgotten<K: Kind>() {
    const TASKS: usize = 1_000;
    let (rig, wakers) = (build::<K>(small(1, 4)), Log::default());
    for _ in 0..TASKS {
        let wakers = wakers.clone();
        let task = K::once(async move |context: Ctx<(), K>| {
            let silent = Arc::new(Silent);
            wakers.add(Arc::downgrade(&silent));
            let waker = Waker::from(silent);
            let mut cancelled = pin!(context.cancelled());
            assert!(cancelled.as_mut().poll(&mut Poller::from_waker(&waker)).is_pending());
            Ok(())
        });
        rig.submit(task).unwrap();
    }
    until(|| rig.stats().completed == TASKS as u64 || rig.stats().failed > 0);
    let kept = wakers.all().iter().filter(|waker| waker.strong_count() > 0).count();
    assert!(kept < 50, "{kept} wakers of {TASKS} tasks that are over");
    assert!(rig.join().is_clean());
}

fn remaining_is_what_is_left_of_the_timeout<K: Kind>() {
    for (pool, own, want) in [
        (None, None, None),
        (Some(SEC * 9), None, Some(SEC * 9)),
        (None, Some(SEC * 5), Some(SEC * 5)),
        (Some(SEC * 9), Some(SEC * 5), Some(SEC * 5)),
    ] {
        let clock = ManualClock::new();
        let builder = small(1, 4).clock(&clock);
        let builder = pool.map_or(builder.clone(), |limit| builder.timeout(limit));
        let (rig, mut results) =
            build_with_results::<[Option<Duration>; 3], K>(builder, ResultOrder::AsCompleted);
        clock.advance(SEC * 100);
        let task = K::once(async move |context: Ctx<[Option<Duration>; 3], K>| {
            let whole = context.remaining();
            clock.advance(SEC * 2);
            let rest = context.remaining();
            clock.advance(SEC * 2);
            Ok([whole, rest, context.remaining()])
        });
        rig.submit(if let Some(own) = own { task.timeout(own) } else { task }).unwrap();
        let told = results.next().unwrap().result.unwrap();
        assert_eq!(told, [want, want.map(|limit| limit - SEC * 2), want.map(|limit| limit - SEC * 4)]);
    }
}

fn remaining_is_nothing_once_it_is_over<K: Kind>() {
    let clock = ManualClock::new();
    let (rig, contexts, gate) = (build::<K>(small(1, 4).clock(&clock)), Log::default(), Gate::default());
    let (kept, passed, started) = (contexts.clone(), gate.passed(), Signal::default());
    let begun = started.clone();
    let task = K::once(async move |context: Ctx<(), K>| {
        kept.add(context);
        begun.give();
        passed.await;
        Ok(())
    });
    rig.submit(task.timeout(SEC)).unwrap();
    started.wait_for(1);
    clock.advance(SEC * 5);
    assert_eq!(contexts.all().remove(0).remaining(), Some(Duration::ZERO));
    gate.open();
    rig.join();
}

fn a_task_knows_who_runs_it_and_which_it_is<K: Kind>() {
    let (rig, results) = build_with_results::<(usize, u64), K>(small(3, 8), ResultOrder::AsSubmitted);
    let meeting = Meeting::of(3);
    let ids: Vec<u64> = (0..3)
        .map(|_| {
            let meeting = meeting.clone();
            let task = K::once(async move |context: Ctx<(usize, u64), K>| {
                meeting.attend().await;
                Ok((context.worker(), context.task_id().get()))
            });
            rig.submit(task).unwrap().get()
        })
        .collect();
    rig.close();
    let told: Vec<(usize, u64)> = results.map(|outcome| outcome.result.unwrap()).collect();
    assert_eq!(told.iter().map(|(_, id)| *id).collect::<Vec<_>>(), ids);
    let mut workers: Vec<usize> = told.into_iter().map(|(worker, _)| worker).collect();
    workers.sort_unstable();
    assert_eq!(workers, [0, 1, 2], "three tasks at once on three workers");
}

fn a_spawned_task_has_the_id_its_parent_was_told<K: Kind>() {
    let (rig, results) = build_with_results::<(u64, Option<u64>), K>(small(1, 4), ResultOrder::AsCompleted);
    let task = K::once(async |context: Ctx<(u64, Option<u64>), K>| {
        let child = K::once(async |context: Ctx<(u64, Option<u64>), K>| Ok((context.task_id().get(), None)));
        let child = context.spawn_task(child)?;
        Ok((context.task_id().get(), Some(child.get())))
    });
    rig.submit(task).unwrap();
    rig.close();
    let told: Vec<_> = results.map(|outcome| (outcome.task.id.get(), outcome.result.unwrap())).collect();
    let [(parent, (_, Some(child))), (named, (own, None))] = told[..] else { panic!("{told:?}") };
    assert_eq!((parent, named, own), (0, child, child));
}

fn attempts_count_from_1<K: Kind>() {
    let (rig, mut results) = build_with_results::<u32, K>(small(1, 4), ResultOrder::AsCompleted);
    let third_time = K::retrying(Retry::linear(5, Duration::ZERO), |context: Ctx<u32, K>| async move {
        if context.attempt() < 3 { Err(TaskError::transient("busy")) } else { Ok(context.attempt()) }
    });
    rig.submit(third_time).unwrap();
    assert_eq!(results.next().unwrap().result.unwrap(), 3);
    rig.submit(K::once(async |context: Ctx<u32, K>| Ok(context.attempt()))).unwrap();
    assert_eq!(results.next().unwrap().result.unwrap(), 1);
}

every_kind!(
    cancellation_can_be_polled_and_awaited,
    every_listener_is_told,
    listeners_are_forgotten,
    remaining_is_what_is_left_of_the_timeout,
    remaining_is_nothing_once_it_is_over,
    a_task_knows_who_runs_it_and_which_it_is,
    a_spawned_task_has_the_id_its_parent_was_told,
    attempts_count_from_1,
);

/// A plain closure on a thread, without any executor.
#[test]
fn a_blocking_loop_stops_when_it_is_told() {
    let pool = small(1, 1).build().unwrap();
    let (started, begun) = (Signal::default(), Signal::default());
    let start = begun.clone();
    pool.submit(move |context| {
        start.give();
        while !context.is_cancelled() {
            context.heartbeat();
            std::thread::yield_now();
        }
        started.give();
        Ok(())
    })
    .unwrap();
    begun.wait_for(1);
    pool.cancel();
    assert_eq!(pool.join().finished, 1);
}
