//! A circuit breaker: alone, and as the guard of the tasks of a pool.

#![cfg(not(any(shuttle, loom)))]

#[macro_use]
mod suite;

use gristmill_pool::{
    Breaker, ResultOrder, Results, Retry, TaskError,
    breaker::{BreakerState, Open},
    clock::ManualClock,
    error::Cause,
};
use std::time::Duration;
use suite::*;

const RESET: Duration = Duration::from_secs(30);

/// A pool with a breaker that opens after `threshold` failures in a row.
fn fixture<K: WorkerKind>(workers: usize, threshold: u32) -> (Fixture<u32, K>, Results<u32>, ManualClock) {
    let clock = ManualClock::new();
    let breaker = Breaker::new(threshold, RESET).clock(&clock);
    let builder = pool_builder(workers, 8).clock(&clock).breaker(breaker);
    let (fixture, results) = build_with_results(builder, ResultOrder::AsCompleted);
    (fixture, results, clock)
}

fn down<K: WorkerKind>() -> TaskOf<u32, K> {
    K::once(async |_| Err(TaskError::transient("down")))
}

fn state<K: WorkerKind>(fixture: &Fixture<u32, K>) -> BreakerState {
    fixture.stats().breaker.expect("the pool has a breaker").state
}

/// Submits a task, waits for its outcome and returns whether it ran.
fn ran<K: WorkerKind>(fixture: &Fixture<u32, K>, results: &mut Results<u32>, task: TaskOf<u32, K>) -> bool {
    fixture.submit(task).unwrap();
    match results.next().unwrap().result {
        Ok(_) => true,
        Err(failure) => {
            let open = matches!(failure.error.cause(), Cause::BreakerOpen);
            assert_eq!(failure.attempts, u32::from(!open));
            !open
        }
    }
}

fn failures_in_a_row_open_breaker_and_tasks_fail_fast<K: WorkerKind>() {
    let (fixture, mut results, clock) = fixture::<K>(1, 3);
    for task in [down::<K>(), down::<K>(), returning::<u32, K>(1), down::<K>(), down::<K>()] {
        assert!(ran(&fixture, &mut results, task));
    }
    assert_eq!(state(&fixture), BreakerState::Closed, "a success resets the count");
    assert!(ran(&fixture, &mut results, down::<K>()));
    assert_eq!(state(&fixture), BreakerState::Open);
    for _ in 0..4 {
        assert!(!ran(&fixture, &mut results, returning::<u32, K>(1)), "the task ran");
    }
    clock.advance(RESET);
    assert_eq!(state(&fixture), BreakerState::HalfOpen);
    assert!(ran(&fixture, &mut results, returning::<u32, K>(1)), "the probe");
    let stats = fixture.stats().breaker.unwrap();
    assert_eq!((stats.state, stats.failures), (BreakerState::Closed, 0));
    assert_eq!((stats.opened, stats.rejected, stats.probes), (1, 4, 1));
    let report = fixture.join();
    assert_reports_each_task_once(&report);
    assert_eq!((report.finished, report.failed), (2, 9));
}

fn breaker_counts_panics_and_partial_but_not_permanent_failures<K: WorkerKind>() {
    let check = |want: BreakerState, task: fn() -> TaskOf<u32, K>| {
        let (fixture, mut results, _clock) = fixture::<K>(1, 2);
        for _ in 0..2 {
            assert!(ran(&fixture, &mut results, task()));
        }
        assert_eq!(state(&fixture), want);
    };
    check(BreakerState::Open, down::<K>);
    check(BreakerState::Open, || K::once(async |_| Err(TaskError::partial("upload", "503"))));
    check(BreakerState::Open, || K::once(async |_| panic!("ouch")));
    check(BreakerState::Closed, || fail::<u32, K>("no such file"));
    check(BreakerState::Closed, || {
        K::once(async |context: ContextOf<u32, K>| {
            context.withdraw_from_breaker();
            Err(TaskError::transient("the service was not called"))
        })
    });
    check(BreakerState::Closed, || returning::<u32, K>(1));
}

/// Tasks that would start while the probe runs are rejected.
fn half_open_breaker_permits_one_task<K: WorkerKind>() {
    for succeeds in [false, true] {
        let (fixture, mut results, clock) = fixture::<K>(3, 1);
        ran(&fixture, &mut results, down::<K>());
        clock.advance(RESET);
        let (gate, started, probes) = (Gate::default(), Signal::default(), Signal::default());
        let (passed, begun) = (gate.passed(), started.clone());
        let probe = K::once(async move |_| {
            begun.notify();
            passed.await;
            if succeeds { Ok(1) } else { Err(TaskError::transient("still down")) }
        });
        fixture.submit(probe).unwrap();
        started.wait_for(1);
        for _ in 0..5 {
            let probes = probes.clone();
            let second = K::once(async move |_| {
                probes.notify();
                Ok(2)
            });
            assert!(!ran(&fixture, &mut results, second));
        }
        assert_eq!((probes.count(), state(&fixture)), (0, BreakerState::HalfOpen));
        gate.open();
        assert_eq!(results.next().unwrap().result.is_ok(), succeeds);
        assert_eq!(state(&fixture), if succeeds { BreakerState::Closed } else { BreakerState::Open });
        assert_eq!(fixture.stats().breaker.unwrap().probes, 1);
        assert_eq!(ran(&fixture, &mut results, returning::<u32, K>(3)), succeeds);
    }
}

/// A task with a retry policy that logs its attempts.
fn retrying_task<K: WorkerKind>(attempts: &Log<u32>) -> TaskOf<u32, K> {
    let log = attempts.clone();
    K::retrying(Retry::linear(2, SEC).without_jitter(), move |context: ContextOf<u32, K>| {
        log.add(context.attempt());
        async move { Ok(context.attempt()) }
    })
}

fn task_with_retry_runs_when_breaker_permits_a_probe<K: WorkerKind>() {
    let ((fixture, mut results, clock), attempts) = (fixture::<K>(1, 1), Log::default());
    ran(&fixture, &mut results, down::<K>());
    fixture.submit(retrying_task::<K>(&attempts)).unwrap();
    clock.wait_for_timers(1);
    assert_eq!((fixture.stats().waiting_retry, fixture.stats().failed), (1, 1));
    clock.advance(RESET - std::time::Duration::from_nanos(1));
    assert_eq!((pending_timers(&clock), attempts.all().len()), (1, 0), "ran while the breaker was open");
    clock.advance(std::time::Duration::from_nanos(1));
    assert_eq!(results.next().unwrap().result.unwrap(), 1);
    assert_eq!((attempts.all(), state(&fixture)), (vec![1], BreakerState::Closed));
}

fn open_breaker_uses_up_no_attempts<K: WorkerKind>() {
    let ((fixture, mut results, clock), attempts) = (fixture::<K>(2, 1), Log::default());
    ran(&fixture, &mut results, down::<K>());
    clock.advance(RESET);
    let probe = Gate::default();
    occupy(&fixture, &probe);
    fixture.submit(retrying_task::<K>(&attempts)).unwrap();
    for _ in 0..5 {
        clock.wait_for_timers(1);
        clock.advance(SEC);
    }
    clock.wait_for_timers(1);
    assert_eq!((attempts.all().len(), fixture.stats().waiting_retry), (0, 1));
    probe.open();
    results.next().unwrap().result.unwrap();
    clock.advance(SEC);
    assert_eq!(results.next().unwrap().result.unwrap(), 1);
    assert_eq!(attempts.all(), [1]);
}

fn stats_have_no_breaker_without_one<K: WorkerKind>() {
    assert!(build::<K>(pool_builder(1, 1)).stats().breaker.is_none());
}

fn pools_can_share_a_breaker<K: WorkerKind>() {
    let clock = ManualClock::new();
    let breaker = Breaker::new(1, RESET).clock(&clock);
    let builder = pool_builder(1, 4).clock(&clock).breaker(breaker);
    let (one, mut of_one) = build_with_results::<u32, K>(builder.clone(), ResultOrder::AsCompleted);
    let (two, mut of_two) = build_with_results::<u32, K>(builder, ResultOrder::AsCompleted);
    assert!(ran(&one, &mut of_one, down::<K>()));
    assert!(!ran(&two, &mut of_two, returning::<u32, K>(1)));
}

/// A task that failed, and whose retry the breaker rejected until the pool was cancelled, fails with its own error.
fn task_keeps_its_error_when_breaker_rejects_the_retry<K: WorkerKind>() {
    let clock = ManualClock::new();
    let breaker = Breaker::new(1, SEC * 100).clock(&clock);
    let fixture = build::<K>(pool_builder(1, 4).breaker(breaker.clone()).clock(&clock));
    let policy = Retry::linear(5, SEC).without_jitter();
    fixture.submit(K::retrying(policy, async |_| Err(TaskError::transient("503")))).unwrap();
    wait_until(|| fixture.stats().waiting_retry == 1);
    clock.advance(SEC);
    wait_until(|| breaker.stats().rejected == 1 && fixture.stats().waiting_retry == 1);
    fixture.cancel();
    let report = fixture.join();
    assert_reports_each_task_once(&report);
    assert_eq!(report.failures[0].to_string(), "task #0: 503");
}

/// A cancellation does not concern the service that the task calls.
fn cancelled_task_does_not_open_breaker<K: WorkerKind>() {
    let breaker = Breaker::new(1, SEC * 100);
    let fixture = build::<K>(pool_builder(1, 4).breaker(breaker.clone()));
    let started = Signal::default();
    fixture.submit(run_until_cancelled::<(), K>(&started)).unwrap();
    started.wait_for(1);
    fixture.cancel();
    assert_eq!(fixture.join().failed, 1);
    assert_eq!(breaker.stats().opened, 0);
}

for_each_worker_kind!(
    failures_in_a_row_open_breaker_and_tasks_fail_fast,
    breaker_counts_panics_and_partial_but_not_permanent_failures,
    half_open_breaker_permits_one_task,
    task_with_retry_runs_when_breaker_permits_a_probe,
    open_breaker_uses_up_no_attempts,
    stats_have_no_breaker_without_one,
    pools_can_share_a_breaker,
    task_keeps_its_error_when_breaker_rejects_the_retry,
    cancelled_task_does_not_open_breaker,
);

// ---- a breaker without a pool ----

fn unpooled(threshold: u32) -> (Breaker, ManualClock) {
    let clock = ManualClock::new();
    (Breaker::new(threshold, RESET).clock(&clock), clock)
}

fn fail_once(breaker: &Breaker) {
    breaker.acquire().expect("closed").failure();
}

#[test]
fn opens_after_threshold_failures_in_a_row() {
    let (breaker, _clock) = unpooled(3);
    fail_once(&breaker);
    fail_once(&breaker);
    breaker.acquire().unwrap().success();
    fail_once(&breaker);
    fail_once(&breaker);
    assert_eq!(breaker.stats().state, BreakerState::Closed);
    fail_once(&breaker);
    assert_eq!(breaker.acquire().unwrap_err(), Open { retry_in: RESET });
    let stats = breaker.stats();
    assert_eq!((stats.state, stats.opened, stats.rejected), (BreakerState::Open, 1, 1));
}

#[test]
fn half_open_permits_exactly_one_probe() {
    let (breaker, clock) = unpooled(1);
    fail_once(&breaker);
    clock.advance(RESET - Duration::from_nanos(1));
    assert!(breaker.acquire().is_err());
    clock.advance(Duration::from_nanos(1));
    assert_eq!(breaker.stats().state, BreakerState::HalfOpen);
    assert!(breaker.would_permit());
    let probe = breaker.acquire().expect("the probe");
    assert!(!breaker.would_permit() && breaker.acquire().is_err(), "a second probe");
    probe.success();
    assert!(breaker.would_permit());
    assert_eq!(breaker.stats().state, BreakerState::Closed);
    assert!(breaker.acquire().is_ok());
    assert_eq!(breaker.stats().probes, 1);
}

#[test]
fn failed_probe_opens_for_another_reset_time() {
    let (breaker, clock) = unpooled(5);
    (0..5).for_each(|_| fail_once(&breaker));
    clock.advance(RESET);
    breaker.acquire().unwrap().failure();
    assert_eq!(breaker.acquire().unwrap_err(), Open { retry_in: RESET });
    assert_eq!(breaker.stats().opened, 2);
}

#[test]
fn reset_time_doubles_with_each_failed_probe_with_backoff() {
    let clock = ManualClock::new();
    let second = Duration::from_secs(1);
    let breaker = Breaker::with_backoff(second, second * 5).clock(&clock);
    for round in 0..2 {
        fail_once(&breaker);
        for seconds in [1, 2, 4, 5, 5] {
            let retry_in = second * seconds;
            assert_eq!(breaker.acquire().unwrap_err(), Open { retry_in }, "round {round}");
            clock.advance(retry_in);
            breaker.acquire().expect("the probe").failure();
        }
        clock.advance(second * 5);
        breaker.acquire().expect("the probe").success();
    }
    breaker.acquire().unwrap().failure_with_delay(second * 30);
    assert_eq!(breaker.acquire().unwrap_err(), Open { retry_in: second * 30 });
}

#[test]
fn late_result_of_a_call_made_before_opening_is_ignored() {
    let (breaker, clock) = unpooled(1);
    let (slow_success, slow_failure) = (breaker.acquire().unwrap(), breaker.acquire().unwrap());
    fail_once(&breaker);
    slow_success.success();
    assert_eq!(breaker.stats().state, BreakerState::Open, "closed by a call made before it opened");
    clock.advance(RESET);
    let probe = breaker.acquire().expect("the probe");
    slow_failure.failure();
    probe.success();
    assert_eq!(breaker.stats().state, BreakerState::Closed);
}

#[test]
fn withdrawn_probe_permits_another_probe() {
    let (breaker, clock) = unpooled(1);
    fail_once(&breaker);
    clock.advance(RESET);
    breaker.acquire().expect("the probe").withdraw();
    assert_eq!(breaker.stats().state, BreakerState::HalfOpen);
    breaker.acquire().expect("another probe").success();
    breaker.acquire().expect("closed").withdraw();
    assert_eq!(breaker.stats().state, BreakerState::Closed);
}

#[test]
fn panic_in_a_call_counts_as_failure() {
    let (breaker, _clock) = unpooled(1);
    let call = || {
        let _permit = breaker.acquire().unwrap();
        std::panic::resume_unwind(Box::new("boom"))
    };
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(call)).is_err());
    assert_eq!(breaker.stats().state, BreakerState::Open);
}
