//! Promises that a review found broken. Each was mended, and is kept here.

#![cfg(not(any(shuttle, loom)))]

#[macro_use]
mod suite;

use gristmill_pool::{Breaker, ErrorClass, ResultOrder, Retry, TaskError, clock::ManualClock, error::Cause};
use std::{
    fmt,
    panic::panic_any,
    pin::pin,
    sync::Arc,
    task::{self, Wake, Waker},
    thread,
    time::Duration,
};
use suite::*;

const NANO: Duration = Duration::from_nanos(1);

/// An error or a value that runs this when it is dropped.
struct Dropping<F: Fn()>(F);

impl<F: Fn()> Drop for Dropping<F> {
    fn drop(&mut self) {
        // A second panic would end the process.
        if !thread::panicking() {
            (self.0)();
        }
    }
}

impl<F: Fn()> fmt::Debug for Dropping<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("dropping")
    }
}

impl<F: Fn()> fmt::Display for Dropping<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("dropping")
    }
}

impl<F: Fn()> std::error::Error for Dropping<F> {}

fn bang() {
    panic_any("bang");
}

/// A waker that runs this.
struct Waking<F>(F);

impl<F: Fn() + Send + Sync + 'static> Wake for Waking<F> {
    fn wake(self: Arc<Self>) {
        (self.0)();
    }
}

fn waker(wake: impl Fn() + Send + Sync + 'static) -> Waker {
    Waker::from(Arc::new(Waking(wake)))
}

#[track_caller]
fn assert_pending(future: impl Future, waker: &Waker) {
    assert!(pin!(future).poll(&mut task::Context::from_waker(waker)).is_pending());
}

/// Occupies a worker until the gate opens; returns its context.
fn context_of<T: Default + Send + 'static, K: Kind>(pool: &Handle<T, K>, gate: &Gate) -> Ctx<T, K> {
    let (contexts, started) = (Log::<Ctx<T, K>>::default(), Signal::default());
    let (kept, begun, passed) = (contexts.clone(), started.clone(), gate.passed());
    let task = K::once(async move |context: Ctx<T, K>| {
        kept.add(context);
        begun.give();
        passed.await;
        Ok(T::default())
    });
    pool.submit(task).unwrap();
    started.wait_for(1);
    contexts.all().remove(0)
}

/// Lets the watch see every worker as it is, and then again when the limit of a second is over.
fn stall(clock: &ManualClock) {
    (0..6).for_each(|_| clock.advance(SEC / 4));
}

/// A task that was numbered and then refused leaves a gap in submit order, for which nobody waits: neither the
/// reader nor a worker that is held back until there is room for results.
#[test]
fn a_refused_task_leaves_no_gap_in_submit_order() {
    type K = OnThreads;
    let clock = ManualClock::new();
    let builder = small(2, 8).result_capacity(1).stall_timeout(SEC).clock(&clock);
    let (rig, mut results) = build_with_results::<u32, K>(builder, ResultOrder::AsSubmitted);
    let (go, started, refused) = (Gate::default(), Signal::default(), Signal::default());
    let (passed, begun, told) = (go.passed(), started.clone(), refused.clone());
    let stuck = K::once(async move |context: Ctx<u32, K>| {
        begun.give();
        passed.await;
        assert!(context.spawn_task(make::<u32, K>(2)).is_err());
        told.give();
        Ok(0)
    });
    rig.submit(stuck).unwrap();
    started.wait_for(1);
    stall(&clock);
    results.next().unwrap().result.unwrap_err();
    let first = Gate::default();
    rig.submit(hold::<u32, K>(&started, &first, 1)).unwrap();
    started.wait_for(2);
    // This one is refused, with a number between its neighbours'.
    go.open();
    refused.wait_for(1);
    let again = K::retrying(Retry::linear(2, SEC / 100).without_jitter(), async |context: Ctx<u32, K>| {
        if context.attempt() == 1 { Err(TaskError::transient("not yet")) } else { Ok(3) }
    });
    rig.submit(again).unwrap();
    until(|| rig.stats().waiting_retry == 1);
    rig.submit(make::<u32, K>(4)).unwrap();
    until(|| rig.stats().completed == 1);
    first.open();
    until(|| rig.stats().completed == 2);
    // Two results wait for the reader, so the worker that takes this one is held back.
    clock.advance(SEC / 50);
    until(|| rig.stats().queued == 0 && rig.stats().waiting_retry == 0);
    rig.close();
    let made: Vec<u32> = results.map(|outcome| outcome.result.unwrap()).collect();
    assert_eq!(made, [1, 3, 4]);
}

/// The error of an attempt is the user's, and its drop may ask the pool.
fn an_error_may_use_the_pool_as_it_is_dropped<K: Kind>() {
    let clock = ManualClock::new();
    let rig = build::<K>(small(1, 4).clock(&clock));
    let (pool, dropped) = (rig.pool.clone(), Signal::default());
    let count = dropped.clone();
    let task = K::retrying(Retry::linear(3, SEC).without_jitter(), move |_| {
        let (pool, dropped) = (pool.clone(), count.clone());
        let error = Dropping(move || {
            pool.stats();
            dropped.give();
        });
        async { Err(TaskError::transient(error)) }
    });
    rig.submit(task).unwrap();
    for attempt in 1..3 {
        clock.wait_for_timers(1);
        clock.advance(SEC * attempt);
        dropped.wait_for(attempt as usize - 1);
    }
    assert_eq!(rig.join().failed, 1);
    dropped.wait_for(2);
}

fn an_error_that_panics_as_it_is_dropped_costs_no_worker<K: Kind>() {
    let rig = build::<K>(small(1, 4).keep_failures(0));
    for _ in 0..3 {
        rig.submit(K::once(async |_| Err(TaskError::transient(Dropping(bang))))).unwrap();
    }
    until(|| rig.stats().failed == 3);
    rig.submit(make::<(), K>(())).unwrap();
    let report = rig.join();
    assert_eq!((report.finished, report.failed), (1, 3));
}

/// A waker is foreign code, and may ask the pool that wakes it.
fn whoever_awaits_a_stop_may_use_the_pool_when_woken<K: Kind>() {
    let clock = ManualClock::new();
    let rig = build::<K>(small(1, 4).stall_timeout(SEC).clock(&clock));
    let gate = Gate::default();
    let context = context_of(&rig, &gate);
    let (pool, woken) = (rig.pool.clone(), Signal::default());
    let told = woken.clone();
    let waker = waker(move || {
        pool.stats();
        told.give();
    });
    let mut stopped = pin!(context.cancelled());
    assert!(stopped.as_mut().poll(&mut task::Context::from_waker(&waker)).is_pending());
    stall(&clock);
    woken.wait_for(1);
    assert_eq!(rig.stats().stalled, 1);
    gate.open();
}

/// However often a task asks for a stop and goes on with something else.
fn a_dropped_wait_for_a_stop_is_forgotten<K: Kind>() {
    let rig = build::<K>(small(1, 4));
    let gate = Gate::default();
    let context = context_of(&rig, &gate);
    let token = Arc::new(());
    for _ in 0..100 {
        let held = Arc::clone(&token);
        assert_pending(context.cancelled(), &waker(move || drop(Arc::clone(&held))));
    }
    assert_eq!(Arc::strong_count(&token), 1, "wakers of dropped futures are kept");
    gate.open();
}

/// Nobody reads any more, so workers that wait for room go on, whatever the results do as they are dropped.
fn results_that_panic_as_they_are_dropped_strand_nobody<K: Kind>() {
    for delivery in DELIVERIES {
        let (rig, results) =
            build_with_results::<Option<Dropping<fn()>>, K>(small(1, 8).result_capacity(1), delivery);
        rig.submit(K::once(async |_| Ok(Some(Dropping(bang as fn()))))).unwrap();
        rig.submit(make::<_, K>(None)).unwrap();
        until(|| rig.stats().completed == 1 && rig.stats().queued == 0);
        drop(results);
        assert_eq!(rig.join().finished, 2);
    }
}

fn a_queue_without_end_delivers_in_submit_order<K: Kind>() {
    let (rig, mut results) = build_with_results::<u32, K>(small(2, usize::MAX), ResultOrder::AsSubmitted);
    for n in 0..10 {
        rig.submit(make::<u32, K>(n)).unwrap();
        assert_eq!(results.next().unwrap().result.unwrap(), n);
    }
}

/// A system's thread may not have such a name; a pool may.
fn a_name_may_have_a_nul_in_it<K: Kind>() {
    let rig = build::<K>(small(1, 4).name("a\0b"));
    rig.submit(make::<(), K>(())).unwrap();
    assert!(rig.join().is_clean());
}

/// A task that failed, and was then refused by the breaker until the pool was cancelled, has failed as it did.
fn an_open_breaker_does_not_hide_why_a_task_failed<K: Kind>() {
    let clock = ManualClock::new();
    let breaker = Breaker::new(1, SEC * 100).clock(&clock);
    let rig = build::<K>(small(1, 4).breaker(breaker.clone()).clock(&clock));
    let policy = Retry::linear(5, SEC).without_jitter();
    rig.submit(K::retrying(policy, async |_| Err(TaskError::transient("503")))).unwrap();
    until(|| rig.stats().waiting_retry == 1);
    clock.advance(SEC);
    until(|| breaker.stats().rejected == 1 && rig.stats().waiting_retry == 1);
    rig.cancel();
    let report = rig.join();
    assert_partition(&report);
    assert_eq!(report.failures[0].to_string(), "task #0: 503");
}

/// A task that stops because it was told to says nothing about what it calls.
fn a_cancelled_task_does_not_open_the_breaker<K: Kind>() {
    let breaker = Breaker::new(1, SEC * 100);
    let rig = build::<K>(small(1, 4).breaker(breaker.clone()));
    let started = Signal::default();
    rig.submit(listen::<(), K>(&started)).unwrap();
    started.wait_for(1);
    rig.cancel();
    assert_eq!(rig.join().failed, 1);
    assert_eq!(breaker.stats().opened, 0);
}

/// The watch looks several times within its limit, but always some time later.
fn the_shortest_stall_limit_is_no_endless_loop<K: Kind>() {
    for limit in [NANO, NANO * 3] {
        let clock = ManualClock::new();
        let rig = build::<K>(small(1, 4).stall_timeout(limit).clock(&clock));
        clock.advance(NANO * 1000);
        assert_eq!(rig.stats().stalled, 0);
    }
}

fn heartbeats_of_a_task_that_is_over_keep_no_other<K: Kind>() {
    let clock = ManualClock::new();
    let rig = build::<K>(small(1, 4).stall_timeout(SEC).clock(&clock));
    let (open, gate) = (Gate::default(), Gate::default());
    open.open();
    let over = context_of(&rig, &open);
    occupy(&rig, &gate);
    for _ in 0..8 {
        clock.advance(SEC / 4);
        over.heartbeat();
    }
    assert_eq!(rig.stats().stalled, 1);
    gate.open();
}

/// Neither those who are told to stop, nor the pool that tells them.
fn a_waker_that_panics_stops_no_cancel<K: Kind>() {
    let rig = build::<K>(small(1, 4));
    let gate = Gate::default();
    let context = context_of(&rig, &gate);
    let (bell, heard) = (Arc::new(Bell::default()), waker(bang));
    let (mut first, mut second) = (pin!(context.cancelled()), pin!(context.cancelled()));
    assert!(first.as_mut().poll(&mut task::Context::from_waker(&heard)).is_pending());
    let heard = Waker::from(Arc::clone(&bell));
    assert!(second.as_mut().poll(&mut task::Context::from_waker(&heard)).is_pending());
    rig.cancel();
    assert!(bell.has_rung());
    gate.open();
    assert_partition(&rig.join());
}

every_kind!(
    an_error_may_use_the_pool_as_it_is_dropped,
    an_error_that_panics_as_it_is_dropped_costs_no_worker,
    whoever_awaits_a_stop_may_use_the_pool_when_woken,
    a_dropped_wait_for_a_stop_is_forgotten,
    results_that_panic_as_they_are_dropped_strand_nobody,
    a_queue_without_end_delivers_in_submit_order,
    a_name_may_have_a_nul_in_it,
    an_open_breaker_does_not_hide_why_a_task_failed,
    a_cancelled_task_does_not_open_the_breaker,
    the_shortest_stall_limit_is_no_endless_loop,
    heartbeats_of_a_task_that_is_over_keep_no_other,
    a_waker_that_panics_stops_no_cancel,
);

/// Runs a thread out of its time, with this error. (An async task is dropped instead, and has none.)
fn late(error: fn() -> TaskError) -> gristmill_pool::Report {
    let clock = ManualClock::new();
    let rig = build::<OnThreads>(small(1, 4).timeout(SEC).clock(&clock));
    let started = Signal::default();
    let begun = started.clone();
    let task = OnThreads::once(async move |context: Ctx<(), OnThreads>| {
        begun.give();
        context.cancelled().await;
        Err(error())
    });
    rig.submit(task).unwrap();
    started.wait_for(1);
    clock.advance(SEC);
    let report = rig.join();
    assert_partition(&report);
    assert!(matches!(report.failures[0].error.cause(), Cause::TimedOut(after) if *after == SEC));
    report
}

#[test]
fn a_late_error_that_panics_as_it_is_dropped_loses_no_task() {
    assert_eq!(late(|| TaskError::transient(Dropping(bang))).failed, 1);
}

/// It is a timeout, with what a retry or a person needs of the error.
#[test]
fn a_late_error_keeps_step_hint_and_retry_after() {
    let check = |error, class| {
        let report = late(error);
        let error = &report.failures[0].error;
        assert_eq!(error.class(), class);
        assert_eq!(error.step(), Some("upload"));
        assert_eq!(error.hint(), Some("log in"));
        assert_eq!(error.retry_after(), Some(SEC * 7));
    };
    check(
        || TaskError::permanent("404").with_step("upload").with_hint("log in").with_retry_after(SEC * 7),
        ErrorClass::Transient,
    );
    check(
        || TaskError::transient("503").with_step("upload").with_hint("log in").with_retry_after(SEC * 7),
        ErrorClass::Transient,
    );
    check(
        || TaskError::partial("upload", "403").with_hint("log in").with_retry_after(SEC * 7),
        ErrorClass::Partial,
    );
}

#[cfg(feature = "tokio")]
mod on_tokio {
    use super::*;

    /// The reader's time is not the task's. (On one thread, whoever runs after the worker finds it held back.)
    #[test]
    fn a_task_that_is_held_back_for_its_reader_has_its_full_time() {
        type K = OnOneThread;
        let clock = ManualClock::new();
        let builder = small(1, 8).result_capacity(1).timeout(SEC).clock(&clock);
        let (rig, mut results) = build_with_results::<Option<Duration>, K>(builder, ResultOrder::AsCompleted);
        for _ in 0..2 {
            let task = K::once(async |context: Ctx<Option<Duration>, K>| Ok(context.remaining()));
            rig.submit(task).unwrap();
        }
        until(|| rig.stats().completed == 1 && rig.stats().queued == 0);
        let after = Handle::<(), K>(K::build(&rig.runtime, small(1, 4)));
        after.submit(make::<(), K>(())).unwrap();
        assert!(after.join().is_clean());
        clock.advance(SEC * 60);
        for _ in 0..2 {
            assert_eq!(results.next().unwrap().result.unwrap(), Some(SEC));
        }
        assert_eq!(rig.join().stats.kinds[0].max_ns, 0);
    }

    fn a_submitter_whose_waker_panics_costs_no_task_on<K: Kind>() {
        let rig = build::<K>(small(1, 1));
        let gate = Gate::default();
        occupy(&rig, &gate);
        rig.submit(make::<(), K>(())).unwrap();
        let (panicking, mut waiting) = (waker(bang), K::submit(&rig.0, make::<(), K>(()), None));
        assert!(waiting.as_mut().poll(&mut task::Context::from_waker(&panicking)).is_pending());
        gate.open();
        let report = rig.join();
        assert_partition(&report);
        assert!(report.finished >= 2, "{report}");
    }

    #[test]
    fn a_submitter_whose_waker_panics_costs_no_task() {
        a_submitter_whose_waker_panics_costs_no_task_on::<OnTasks>();
        a_submitter_whose_waker_panics_costs_no_task_on::<OnOneThread>();
    }

    fn a_runtime_that_ends_leaves_no_timer_on<K: Kind>() {
        let clock = ManualClock::new();
        let rig = build::<K>(small(1, 4).timeout(SEC * 3600).clock(&clock));
        occupy(&rig, &Gate::default());
        let Rig { pool, runtime } = rig;
        assert_eq!(timers(&clock), 1);
        drop(runtime);
        until(|| pool.is_finished());
        drop(pool);
        assert_eq!(timers(&clock), 0);
    }

    /// The timeout of a task that was lost with its runtime is forgotten.
    #[test]
    fn a_runtime_that_ends_leaves_no_timer() {
        a_runtime_that_ends_leaves_no_timer_on::<OnTasks>();
        a_runtime_that_ends_leaves_no_timer_on::<OnOneThread>();
    }
}
