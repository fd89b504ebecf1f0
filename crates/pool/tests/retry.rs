//! Retries: number of attempts, delays, and the state of a pool while a task waits for its next attempt.

#![cfg(not(any(shuttle, loom)))]

#[macro_use]
mod suite;

use gristmill_pool::{
    ErrorClass, Failure, PoolBuilder, ResultOrder, Results, Retry, TaskError, clock::ManualClock, error::Cause,
    error::SubmitErrorKind,
};
use std::{thread, time::Duration};
use suite::*;

/// A task that logs each attempt and fails if `error` returns an error for the attempt's number.
fn failing<K: WorkerKind>(policy: Retry, log: &Log<u32>, error: fn(u32) -> Option<TaskError>) -> TaskOf<u32, K> {
    let log = log.clone();
    K::retrying(policy, move |context: ContextOf<u32, K>| {
        log.add(context.attempt());
        let error = error(context.attempt());
        async move { error.map_or(Ok(context.attempt()), Err) }
    })
}

fn fixture<K: WorkerKind>(builder: PoolBuilder) -> (Fixture<u32, K>, Results<u32>, ManualClock) {
    let clock = ManualClock::new();
    let (fixture, results) = build_with_results(builder.clock(&clock), ResultOrder::AsCompleted);
    (fixture, results, clock)
}

fn busy(_: u32) -> Option<TaskError> {
    Some(TaskError::transient("busy"))
}

/// Advances the clock to just before the only timer and then to it, when the task runs again. The next timer, if any,
/// is that of the next delay.
#[track_caller]
fn wait_exactly(clock: &ManualClock, log: &Log<u32>, delay: Duration) {
    clock.wait_for_timers(1);
    let before = log.all().len();
    clock.advance(delay - NANO);
    assert_eq!((pending_timers(clock), log.all().len()), (1, before), "retried before {delay:?}");
    clock.advance(NANO);
    wait_until(|| log.all().len() > before);
}

#[track_caller]
fn check<K: WorkerKind>(policy: Retry, error: fn(u32) -> Option<TaskError>, delays: &[Duration]) -> Option<Failure> {
    let ((fixture, mut results, clock), log) = (fixture::<K>(pool_builder(1, 4)), Log::default());
    fixture.submit(failing::<K>(policy, &log, error)).unwrap();
    for delay in delays {
        wait_exactly(&clock, &log, *delay);
    }
    let outcome = results.next().unwrap();
    let attempts = delays.len() as u32 + 1;
    assert_eq!(log.all(), (1..=attempts).collect::<Vec<_>>());
    let report = fixture.join();
    assert_reports_each_task_once(&report);
    assert_eq!(report.stats.retried, delays.len() as u64);
    assert_eq!((pending_timers(&clock), results.count()), (0, 0));
    match outcome.result {
        Ok(attempt) => assert_eq!((attempt, report.finished), (attempts, 1)),
        Err(ref failure) => assert_eq!((failure.attempts, report.failed), (attempts, 1)),
    }
    outcome.result.err()
}

fn delays_are_exact_without_jitter<K: WorkerKind>() {
    let check = check::<K>;
    let linear = Retry::linear(4, SEC).without_jitter();
    let exponential = Retry::exponential(5, SEC).without_jitter();
    check(linear, busy, &[SEC, SEC * 2, SEC * 3]).unwrap();
    check(exponential, busy, &[SEC, SEC * 2, SEC * 4, SEC * 8]).unwrap();
    check(exponential.max_delay(SEC * 3), busy, &[SEC, SEC * 2, SEC * 3, SEC * 3]).unwrap();
    check(Retry::linear(1, SEC), busy, &[]).unwrap();
    check(Retry::linear(0, SEC), busy, &[]).unwrap();
    let twice = |attempt: u32| (attempt < 3).then(|| TaskError::transient("busy"));
    assert!(check(exponential, twice, &[SEC, SEC * 2]).is_none(), "the third attempt succeeds");
}

fn error_class_and_retry_after_decide_the_retry<K: WorkerKind>() {
    let policy = Retry::linear(3, SEC).without_jitter().max_delay(SEC);
    let long_delay = |_| Some(TaskError::transient("429").with_retry_after(SEC * 60));
    assert_eq!(check::<K>(policy, long_delay, &[SEC * 60; 2]).unwrap().error.to_string(), "429");
    let short_delay = |_| Some(TaskError::transient("429").with_retry_after(SEC / 2));
    check::<K>(policy, short_delay, &[SEC; 2]).unwrap();
    let permanent = |_| Some(TaskError::permanent("404").with_retry_after(SEC));
    assert_eq!(check::<K>(policy, permanent, &[]).unwrap().error.class(), ErrorClass::Permanent);
    let then_permanent = |attempt| match attempt {
        1 => Some(TaskError::transient("busy")),
        _ => Some(TaskError::permanent("gone")),
    };
    assert_eq!(check::<K>(policy, then_permanent, &[SEC]).unwrap().to_string(), "task #0: gone (after 2 attempts)");
}

fn panic_is_not_retried<K: WorkerKind>() {
    let ((fixture, mut results, _clock), log) = (fixture::<K>(pool_builder(1, 4)), Log::default());
    fixture.submit(failing::<K>(Retry::linear(5, SEC), &log, |_| panic!("ouch"))).unwrap();
    let failure = results.next().unwrap().result.unwrap_err();
    assert!(matches!(failure.error.cause(), Cause::Panic { .. }));
    assert_eq!((failure.attempts, log.all().len()), (1, 1));
}

/// Runs a task that fails with each of `errors` in turn and then succeeds. Returns the failed step seen by each
/// attempt.
fn steps<K: WorkerKind>(errors: fn(u32) -> Option<TaskError>) -> Vec<Option<String>> {
    let ((fixture, mut results, clock), steps) = (fixture::<K>(pool_builder(1, 4)), Log::default());
    let log = steps.clone();
    let policy = Retry::linear(9, SEC).without_jitter();
    let task = K::retrying(policy, move |context: ContextOf<u32, K>| {
        log.add(context.failed_step().map(str::to_owned));
        let error = errors(context.attempt());
        async move { error.map_or(Ok(0), Err) }
    });
    fixture.submit(task).unwrap();
    for attempt in (1..).take_while(|attempt| errors(*attempt).is_some()) {
        clock.wait_for_timers(1);
        clock.advance(SEC * attempt);
    }
    results.next().unwrap().result.unwrap();
    // The next task on the same worker has no failed step.
    let log = steps.clone();
    let fresh = K::once(async move |context: ContextOf<u32, K>| {
        log.add(context.failed_step().map(str::to_owned));
        Ok(0)
    });
    fixture.submit(fresh).unwrap();
    results.next().unwrap();
    assert_eq!(steps.all().last(), Some(&None), "a step of another task");
    let mut steps = steps.all();
    steps.pop();
    steps
}

fn partial_failure_resumes_at_its_step<K: WorkerKind>() {
    let errors = |attempt| match attempt {
        1 => Some(TaskError::partial("upload", "503")),
        2 => Some(TaskError::partial("notify", "503")),
        _ => None,
    };
    assert_eq!(steps::<K>(errors), [None, Some("upload".into()), Some("notify".into())]);
}

/// Steps that are done must not be repeated after a later failure.
fn failed_step_is_kept_when_a_later_failure_names_none<K: WorkerKind>() {
    let errors = |attempt| match attempt {
        1 => Some(TaskError::partial("upload", "503")),
        2 => Some(TaskError::transient("connection reset")),
        _ => None,
    };
    assert_eq!(steps::<K>(errors), [None, Some("upload".into()), Some("upload".into())]);
}

fn task_waiting_for_retry_occupies_no_worker<K: WorkerKind>() {
    let ((fixture, mut results, clock), log) = (fixture::<K>(pool_builder(1, 4)), Log::default());
    let policy = Retry::linear(2, SEC).without_jitter();
    fixture.submit(failing::<K>(policy, &log, busy)).unwrap();
    clock.wait_for_timers(1);
    assert_eq!(fixture.stats().waiting_retry, 1);
    fixture.submit(returning::<u32, K>(7)).unwrap();
    assert_eq!(results.next().unwrap().result.unwrap(), 7);
    assert_eq!((fixture.stats().waiting_retry, fixture.stats().active), (1, 0));
    clock.advance(SEC);
    assert_eq!(results.next().unwrap().result.unwrap_err().attempts, 2);
}

/// A pool whose tasks all fail fills up instead of growing without bound.
fn tasks_waiting_for_retry_count_against_capacity<K: WorkerKind>() {
    let ((fixture, mut results, clock), log) = (fixture::<K>(pool_builder(1, 2)), Log::default());
    let once_more = |attempt: u32| (attempt == 1).then(|| TaskError::transient("busy"));
    let policy = Retry::linear(2, SEC).without_jitter();
    for _ in 0..2 {
        fixture.submit(failing::<K>(policy, &log, once_more)).unwrap();
    }
    clock.wait_for_timers(2);
    assert_eq!(fixture.try_submit(returning::<u32, K>(0)).unwrap_err().kind, SubmitErrorKind::Full);
    let pool = fixture.pool.clone();
    let waiting = thread::spawn(move || pool.submit_timeout(returning::<u32, K>(9), SEC * 9));
    clock.wait_for_timers(3);
    clock.advance(SEC);
    waiting.join().unwrap().expect("room after the retries");
    let mut values: Vec<u32> = (0..3).map(|_| results.next().unwrap().result.unwrap()).collect();
    values.sort_unstable();
    assert_eq!(values, [2, 2, 9]);
    assert!(fixture.join().is_clean());
}

fn closed_pool_waits_for_retries<K: WorkerKind>() {
    for result_order in RESULT_ORDERS {
        let clock = ManualClock::new();
        let (fixture, results) = build_with_results::<u32, K>(pool_builder(2, 4).clock(&clock), result_order);
        let log = Log::default();
        let once_more = |attempt: u32| (attempt == 1).then(|| TaskError::transient("busy"));
        fixture.submit(failing::<K>(Retry::linear(2, SEC).without_jitter(), &log, once_more)).unwrap();
        fixture.submit(returning::<u32, K>(7)).unwrap();
        clock.wait_for_timers(1);
        fixture.close();
        wait_until(|| fixture.stats().completed == 1);
        assert!(!fixture.is_finished(), "ended before the retry");
        clock.advance(SEC);
        assert_eq!(fixture.join().finished, 2);
        let values: Vec<u32> = results.map(|outcome| outcome.result.unwrap()).collect();
        let want = if result_order == ResultOrder::AsSubmitted { [2, 7] } else { [7, 2] };
        assert_eq!(values, want);
    }
}

#[track_caller]
fn assert_failed_with_its_last_error<K: WorkerKind>(fixture: &Fixture<u32, K>, results: Results<u32>, label: &str) {
    let report = fixture.join();
    assert_reports_each_task_once(&report);
    assert_eq!(labels(&report.never_started), Vec::<String>::new(), "it was started, so it failed");
    let reported: Vec<String> = report.failures.iter().map(ToString::to_string).collect();
    assert!(reported.contains(&format!("task #0 ({label}): busy")), "{reported:?}");
    let outcomes: Vec<_> = results.filter_map(|outcome| outcome.result.err()).collect();
    assert!(outcomes.iter().any(|failure| failure.attempts == 1 && failure.task.id.get() == 0));
}

fn cancel_fails_task_waiting_for_retry_with_its_last_error<K: WorkerKind>() {
    for result_order in RESULT_ORDERS {
        let clock = ManualClock::new();
        let (fixture, results) = build_with_results::<u32, K>(pool_builder(1, 4).clock(&clock), result_order);
        fixture.submit(failing::<K>(Retry::linear(3, SEC), &Log::default(), busy).label("waits")).unwrap();
        clock.wait_for_timers(1);
        fixture.cancel();
        assert_failed_with_its_last_error(&fixture, results, "waits");
        clock.advance(SEC * 9);
        assert_eq!(fixture.stats().failed, 1, "it was retried after the cancel");
    }
}

/// The retry was due, but no worker was free before the cancel.
fn cancel_fails_task_queued_for_retry_with_its_last_error<K: WorkerKind>() {
    for result_order in RESULT_ORDERS {
        let clock = ManualClock::new();
        let (fixture, results) = build_with_results::<u32, K>(pool_builder(1, 4).clock(&clock), result_order);
        let gate = Gate::default();
        fixture.submit(failing::<K>(Retry::linear(3, SEC), &Log::default(), busy).label("queued")).unwrap();
        clock.wait_for_timers(1);
        occupy(&fixture, &gate);
        clock.advance(SEC * 9);
        wait_until(|| fixture.stats().queued == 1);
        fixture.cancel();
        gate.open();
        assert_failed_with_its_last_error(&fixture, results, "queued");
    }
}

/// The last worker exits while `cancel` still delivers failures: the pool ends after the last of them.
fn pool_ends_after_cancel_has_delivered_all_failures<K: WorkerKind>() {
    const WAITING: usize = 50;
    for result_order in RESULT_ORDERS {
        for _ in 0..50 {
            let clock = ManualClock::new();
            let builder = pool_builder(1, WAITING + 1).clock(&clock).result_capacity(WAITING + 1);
            let (fixture, results) = build_with_results::<u32, K>(builder, result_order);
            for _ in 0..WAITING {
                fixture.submit(failing::<K>(Retry::linear(2, SEC), &Log::default(), busy)).unwrap();
            }
            clock.wait_for_timers(WAITING);
            let gate = Gate::default();
            occupy(&fixture, &gate);
            let pool = fixture.pool.clone();
            let cancelling = thread::spawn(move || pool.cancel());
            wait_until(|| fixture.stats().failed > 0);
            gate.open();
            let report = fixture.join();
            assert_reports_each_task_once(&report);
            assert_eq!((report.failed, results.count()), (WAITING as u64, WAITING + 1));
            cancelling.join().unwrap();
        }
    }
}

/// An attempt that ends after the cancel is not retried.
fn cancel_ends_retries_of_running_task<K: WorkerKind>() {
    let (fixture, results, clock) = fixture::<K>(pool_builder(1, 4));
    let started = Signal::default();
    let begun = started.clone();
    let task = K::retrying(Retry::linear(9, SEC), move |context: ContextOf<u32, K>| {
        begun.notify();
        async move {
            context.cancelled().await;
            Err(TaskError::transient("busy"))
        }
    });
    fixture.submit(task.label("ran")).unwrap();
    started.wait_for(1);
    fixture.cancel();
    assert_failed_with_its_last_error(&fixture, results, "ran");
    assert_eq!(pending_timers(&clock), 0);
}

/// With the system clock and a delay of zero.
fn retries_without_delay_run_at_once<K: WorkerKind>() {
    for result_order in RESULT_ORDERS {
        let (fixture, results) = build_with_results::<u32, K>(pool_builder(2, 8), result_order);
        for _ in 0..8 {
            fixture.submit(failing::<K>(Retry::linear(5, Duration::ZERO), &Log::default(), busy)).unwrap();
        }
        fixture.close();
        let attempts: Vec<u32> = results.map(|outcome| outcome.result.unwrap_err().attempts).collect();
        assert_eq!(attempts, [5; 8]);
        assert_eq!(fixture.join().stats.retried, 8 * 4);
    }
}

for_each_worker_kind!(
    delays_are_exact_without_jitter,
    error_class_and_retry_after_decide_the_retry,
    panic_is_not_retried,
    partial_failure_resumes_at_its_step,
    failed_step_is_kept_when_a_later_failure_names_none,
    task_waiting_for_retry_occupies_no_worker,
    tasks_waiting_for_retry_count_against_capacity,
    closed_pool_waits_for_retries,
    cancel_fails_task_waiting_for_retry_with_its_last_error,
    cancel_fails_task_queued_for_retry_with_its_last_error,
    pool_ends_after_cancel_has_delivered_all_failures,
    cancel_ends_retries_of_running_task,
    retries_without_delay_run_at_once,
);

// ---- delays ----

#[test]
fn delays_grow_up_to_the_maximum() {
    let check = |policy: Retry, seconds: &[u64]| {
        let got: Vec<u64> = (1..=seconds.len() as u32).map(|n| policy.without_jitter().delay(n).as_secs()).collect();
        assert_eq!(got, seconds, "{policy:?}");
    };
    check(Retry::linear(9, SEC), &[1, 2, 3, 4, 5]);
    check(Retry::exponential(9, SEC), &[1, 2, 4, 8, 16]);
    check(Retry::exponential(9, SEC).max_delay(SEC * 5), &[1, 2, 4, 5, 5]);
    check(Retry::linear(9, SEC).max_delay(SEC * 2), &[1, 2, 2]);
}

#[test]
fn huge_delays_saturate() {
    let policy = Retry::exponential(u32::MAX, Duration::MAX / 2).without_jitter();
    assert_eq!(policy.delay(u32::MAX), Duration::MAX);
}

#[test]
fn jitter_covers_the_whole_delay() {
    let policy = Retry::linear(2, SEC);
    let delays: Vec<f64> = (0..2_000).map(|_| policy.delay(1).as_secs_f64()).collect();
    assert!(delays.iter().all(|d| (0.0..=1.0).contains(d)));
    // The chance that 2,000 uniform draws miss a tenth of the range is below 10^-91.
    assert!(delays.iter().any(|d| *d < 0.1) && delays.iter().any(|d| *d > 0.9));
}
