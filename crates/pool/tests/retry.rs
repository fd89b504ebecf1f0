//! Failing and trying again: how often, after how long, and what a task that waits costs in the meantime.

#![cfg(not(any(shuttle, loom)))]

#[macro_use]
mod suite;

use gristmill_pool::{
    ErrorClass, Failure, PoolBuilder, ResultOrder, Results, Retry, TaskError, clock::ManualClock,
    error::Cause, error::SubmitErrorKind,
};
use std::{thread, time::Duration};
use suite::*;

const NANO: Duration = Duration::from_nanos(1);

/// Fails each time with what `error` makes of the attempt's number; logs the attempts.
fn failing<K: Kind>(policy: Retry, log: &Log<u32>, error: fn(u32) -> Option<TaskError>) -> Job<u32, K> {
    let log = log.clone();
    K::retrying(policy, move |context: Ctx<u32, K>| {
        log.add(context.attempt());
        let error = error(context.attempt());
        async move { error.map_or(Ok(context.attempt()), Err) }
    })
}

fn rig<K: Kind>(builder: PoolBuilder) -> (Rig<u32, K>, Results<u32>, ManualClock) {
    let clock = ManualClock::new();
    let (rig, results) = build_with_results(builder.clock(&clock), ResultOrder::AsCompleted);
    (rig, results, clock)
}

fn busy(_: u32) -> Option<TaskError> {
    Some(TaskError::transient("busy"))
}

/// Moves the clock to just before the one timer, and then there. (When it fires the task runs again, and the
/// next timer, if any, is the next delay's.)
#[track_caller]
fn wait_exactly(clock: &ManualClock, log: &Log<u32>, delay: Duration) {
    clock.wait_for_timers(1);
    let before = log.all().len();
    clock.advance(delay - NANO);
    assert_eq!((timers(clock), log.all().len()), (1, before), "came before {delay:?}");
    clock.advance(NANO);
    until(|| log.all().len() > before);
}

#[track_caller]
fn check<K: Kind>(
    policy: Retry,
    error: fn(u32) -> Option<TaskError>,
    delays: &[Duration],
) -> Option<Failure> {
    let ((rig, mut results, clock), log) = (rig::<K>(small(1, 4)), Log::default());
    rig.submit(failing::<K>(policy, &log, error)).unwrap();
    for delay in delays {
        wait_exactly(&clock, &log, *delay);
    }
    let outcome = results.next().unwrap();
    let attempts = delays.len() as u32 + 1;
    assert_eq!(log.all(), (1..=attempts).collect::<Vec<_>>());
    let report = rig.join();
    assert_partition(&report);
    assert_eq!(report.stats.retried, delays.len() as u64);
    assert_eq!((timers(&clock), results.count()), (0, 0));
    match outcome.result {
        Ok(attempt) => assert_eq!((attempt, report.finished), (attempts, 1)),
        Err(ref failure) => assert_eq!((failure.attempts, report.failed), (attempts, 1)),
    }
    outcome.result.err()
}

fn delays_are_exact_without_jitter<K: Kind>() {
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

fn the_error_decides_whether_and_when<K: Kind>() {
    let policy = Retry::linear(3, SEC).without_jitter().max_delay(SEC);
    let patient = |_| Some(TaskError::transient("429").with_retry_after(SEC * 60));
    assert_eq!(check::<K>(policy, patient, &[SEC * 60; 2]).unwrap().error.to_string(), "429");
    let hasty = |_| Some(TaskError::transient("429").with_retry_after(SEC / 2));
    check::<K>(policy, hasty, &[SEC; 2]).unwrap();
    let hopeless = |_| Some(TaskError::permanent("404").with_retry_after(SEC));
    assert_eq!(check::<K>(policy, hopeless, &[]).unwrap().error.class(), ErrorClass::Permanent);
    let turns = |attempt| match attempt {
        1 => Some(TaskError::transient("busy")),
        _ => Some(TaskError::permanent("gone")),
    };
    assert_eq!(check::<K>(policy, turns, &[SEC]).unwrap().to_string(), "task #0: gone (after 2 attempts)");
}

fn a_panic_is_not_tried_again<K: Kind>() {
    let ((rig, mut results, _clock), log) = (rig::<K>(small(1, 4)), Log::default());
    rig.submit(failing::<K>(Retry::linear(5, SEC), &log, |_| panic!("ouch"))).unwrap();
    let failure = results.next().unwrap().result.unwrap_err();
    assert!(matches!(failure.error.cause(), Cause::Panic { .. }));
    assert_eq!((failure.attempts, log.all().len()), (1, 1));
}

/// Runs a task that fails with each of these in turn, then succeeds; answers at which step each attempt began.
fn steps<K: Kind>(errors: fn(u32) -> Option<TaskError>) -> Vec<Option<String>> {
    let ((rig, mut results, clock), steps) = (rig::<K>(small(1, 4)), Log::default());
    let log = steps.clone();
    let policy = Retry::linear(9, SEC).without_jitter();
    let task = K::retrying(policy, move |context: Ctx<u32, K>| {
        log.add(context.failed_step().map(str::to_owned));
        let error = errors(context.attempt());
        async move { error.map_or(Ok(0), Err) }
    });
    rig.submit(task).unwrap();
    for attempt in (1..).take_while(|attempt| errors(*attempt).is_some()) {
        clock.wait_for_timers(1);
        clock.advance(SEC * attempt);
    }
    results.next().unwrap().result.unwrap();
    // The next task of the same worker starts from nothing.
    let log = steps.clone();
    let fresh = K::once(async move |context: Ctx<u32, K>| {
        log.add(context.failed_step().map(str::to_owned));
        Ok(0)
    });
    rig.submit(fresh).unwrap();
    results.next().unwrap();
    assert_eq!(steps.all().last(), Some(&None), "a step of another task");
    let mut steps = steps.all();
    steps.pop();
    steps
}

fn a_partial_failure_resumes_at_its_step<K: Kind>() {
    let errors = |attempt| match attempt {
        1 => Some(TaskError::partial("upload", "503")),
        2 => Some(TaskError::partial("notify", "503")),
        _ => None,
    };
    assert_eq!(steps::<K>(errors), [None, Some("upload".into()), Some("notify".into())]);
}

/// What is done must not be done again, whatever goes wrong after it.
fn a_checkpoint_outlives_a_later_failure_that_names_none<K: Kind>() {
    let errors = |attempt| match attempt {
        1 => Some(TaskError::partial("upload", "503")),
        2 => Some(TaskError::transient("connection reset")),
        _ => None,
    };
    assert_eq!(steps::<K>(errors), [None, Some("upload".into()), Some("upload".into())]);
}

fn a_waiting_task_holds_no_worker<K: Kind>() {
    let ((rig, mut results, clock), log) = (rig::<K>(small(1, 4)), Log::default());
    let policy = Retry::linear(2, SEC).without_jitter();
    rig.submit(failing::<K>(policy, &log, busy)).unwrap();
    clock.wait_for_timers(1);
    assert_eq!(rig.stats().waiting_retry, 1);
    rig.submit(make::<u32, K>(7)).unwrap();
    assert_eq!(results.next().unwrap().result.unwrap(), 7);
    assert_eq!((rig.stats().waiting_retry, rig.stats().active), (1, 0));
    clock.advance(SEC);
    assert_eq!(results.next().unwrap().result.unwrap_err().attempts, 2);
}

/// A pool whose tasks all fail fills up, instead of collecting them without end.
fn waiting_tasks_count_against_the_capacity<K: Kind>() {
    let ((rig, mut results, clock), log) = (rig::<K>(small(1, 2)), Log::default());
    let once_more = |attempt: u32| (attempt == 1).then(|| TaskError::transient("busy"));
    let policy = Retry::linear(2, SEC).without_jitter();
    for _ in 0..2 {
        rig.submit(failing::<K>(policy, &log, once_more)).unwrap();
    }
    clock.wait_for_timers(2);
    assert_eq!(rig.try_submit(make::<u32, K>(0)).unwrap_err().kind, SubmitErrorKind::Full);
    let pool = rig.pool.clone();
    let waiting = thread::spawn(move || pool.submit_timeout(make::<u32, K>(9), SEC * 9));
    clock.wait_for_timers(3);
    clock.advance(SEC);
    waiting.join().unwrap().expect("room once they have run");
    let mut made: Vec<u32> = (0..3).map(|_| results.next().unwrap().result.unwrap()).collect();
    made.sort_unstable();
    assert_eq!(made, [2, 2, 9]);
    assert!(rig.join().is_clean());
}

fn a_closed_pool_waits_for_retries<K: Kind>() {
    for delivery in DELIVERIES {
        let clock = ManualClock::new();
        let (rig, results) = build_with_results::<u32, K>(small(2, 4).clock(&clock), delivery);
        let log = Log::default();
        let once_more = |attempt: u32| (attempt == 1).then(|| TaskError::transient("busy"));
        rig.submit(failing::<K>(Retry::linear(2, SEC).without_jitter(), &log, once_more)).unwrap();
        rig.submit(make::<u32, K>(7)).unwrap();
        clock.wait_for_timers(1);
        rig.close();
        until(|| rig.stats().completed == 1);
        assert!(!rig.is_finished(), "ended with a task that waits");
        clock.advance(SEC);
        assert_eq!(rig.join().finished, 2);
        let made: Vec<u32> = results.map(|outcome| outcome.result.unwrap()).collect();
        let want = if delivery == ResultOrder::AsSubmitted { [2, 7] } else { [7, 2] };
        assert_eq!(made, want);
    }
}

#[track_caller]
fn assert_failed_with_its_last_error<K: Kind>(rig: &Rig<u32, K>, results: Results<u32>, label: &str) {
    let report = rig.join();
    assert_partition(&report);
    assert_eq!(labels(&report.never_started), Vec::<String>::new(), "it was started once");
    let told: Vec<String> = report.failures.iter().map(ToString::to_string).collect();
    assert!(told.contains(&format!("task #0 ({label}): busy")), "{told:?}");
    let outcomes: Vec<_> = results.filter_map(|outcome| outcome.result.err()).collect();
    assert!(outcomes.iter().any(|failure| failure.attempts == 1 && failure.task.id.get() == 0));
}

fn cancel_fails_a_waiting_task_with_its_last_error<K: Kind>() {
    for delivery in DELIVERIES {
        let clock = ManualClock::new();
        let (rig, results) = build_with_results::<u32, K>(small(1, 4).clock(&clock), delivery);
        rig.submit(failing::<K>(Retry::linear(3, SEC), &Log::default(), busy).label("waits")).unwrap();
        clock.wait_for_timers(1);
        rig.cancel();
        assert_failed_with_its_last_error(&rig, results, "waits");
        clock.advance(SEC * 9);
        assert_eq!(rig.stats().failed, 1, "it came back from the dead");
    }
}

/// Its time has come, but no worker was free before the cancel: it was started once all the same.
fn cancel_fails_a_task_that_is_queued_again_with_its_last_error<K: Kind>() {
    for delivery in DELIVERIES {
        let clock = ManualClock::new();
        let (rig, results) = build_with_results::<u32, K>(small(1, 4).clock(&clock), delivery);
        let gate = Gate::default();
        rig.submit(failing::<K>(Retry::linear(3, SEC), &Log::default(), busy).label("queued")).unwrap();
        clock.wait_for_timers(1);
        occupy(&rig, &gate);
        clock.advance(SEC * 9);
        until(|| rig.stats().queued == 1);
        rig.cancel();
        gate.open();
        assert_failed_with_its_last_error(&rig, results, "queued");
    }
}

/// The last worker leaves while the cancel is still at it: the end comes after all that it has to tell.
fn the_end_waits_for_what_a_cancel_has_to_tell<K: Kind>() {
    const WAITING: usize = 50;
    for delivery in DELIVERIES {
        for _ in 0..50 {
            let clock = ManualClock::new();
            let builder = small(1, WAITING + 1).clock(&clock).result_capacity(WAITING + 1);
            let (rig, results) = build_with_results::<u32, K>(builder, delivery);
            for _ in 0..WAITING {
                rig.submit(failing::<K>(Retry::linear(2, SEC), &Log::default(), busy)).unwrap();
            }
            clock.wait_for_timers(WAITING);
            let gate = Gate::default();
            occupy(&rig, &gate);
            let pool = rig.pool.clone();
            let cancelling = thread::spawn(move || pool.cancel());
            until(|| rig.stats().failed > 0);
            gate.open();
            let report = rig.join();
            assert_partition(&report);
            assert_eq!((report.failed, results.count()), (WAITING as u64, WAITING + 1));
            cancelling.join().unwrap();
        }
    }
}

/// An attempt that ends after the cancel is the last one.
fn cancel_ends_retries_of_what_runs<K: Kind>() {
    let (rig, results, clock) = rig::<K>(small(1, 4));
    let started = Signal::default();
    let begun = started.clone();
    let task = K::retrying(Retry::linear(9, SEC), move |context: Ctx<u32, K>| {
        begun.give();
        async move {
            context.cancelled().await;
            Err(TaskError::transient("busy"))
        }
    });
    rig.submit(task.label("ran")).unwrap();
    started.wait_for(1);
    rig.cancel();
    assert_failed_with_its_last_error(&rig, results, "ran");
    assert_eq!(timers(&clock), 0);
}

/// With the system's clock and no delay at all.
fn retries_without_delay_need_no_clock<K: Kind>() {
    for delivery in DELIVERIES {
        let (rig, results) = build_with_results::<u32, K>(small(2, 8), delivery);
        for _ in 0..8 {
            rig.submit(failing::<K>(Retry::linear(5, Duration::ZERO), &Log::default(), busy)).unwrap();
        }
        rig.close();
        let attempts: Vec<u32> = results.map(|outcome| outcome.result.unwrap_err().attempts).collect();
        assert_eq!(attempts, [5; 8]);
        assert_eq!(rig.join().stats.retried, 8 * 4);
    }
}

every_kind!(
    delays_are_exact_without_jitter,
    the_error_decides_whether_and_when,
    a_panic_is_not_tried_again,
    a_partial_failure_resumes_at_its_step,
    a_checkpoint_outlives_a_later_failure_that_names_none,
    a_waiting_task_holds_no_worker,
    waiting_tasks_count_against_the_capacity,
    a_closed_pool_waits_for_retries,
    cancel_fails_a_waiting_task_with_its_last_error,
    cancel_fails_a_task_that_is_queued_again_with_its_last_error,
    the_end_waits_for_what_a_cancel_has_to_tell,
    cancel_ends_retries_of_what_runs,
    retries_without_delay_need_no_clock,
);
