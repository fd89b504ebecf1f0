//! A circuit breaker in front of a pool.

#![cfg(not(any(shuttle, loom)))]

#[macro_use]
mod suite;

use gristmill_pool::{
    Breaker, ResultOrder, Results, Retry, TaskError, breaker::BreakerState, clock::ManualClock, error::Cause,
};
use suite::*;

const RESET: std::time::Duration = std::time::Duration::from_secs(30);

/// A pool behind a breaker that opens at `threshold` failures in a row.
fn rig<K: Kind>(workers: usize, threshold: u32) -> (Rig<u32, K>, Results<u32>, ManualClock) {
    let clock = ManualClock::new();
    let breaker = Breaker::new(threshold, RESET).clock(&clock);
    let builder = small(workers, 8).clock(&clock).breaker(breaker);
    let (rig, results) = build_with_results(builder, ResultOrder::AsCompleted);
    (rig, results, clock)
}

fn down<K: Kind>() -> Job<u32, K> {
    K::once(async |_| Err(TaskError::transient("down")))
}

fn state<K: Kind>(rig: &Rig<u32, K>) -> BreakerState {
    rig.stats().breaker.expect("it has one").state
}

/// Submits a task and waits for its end; whether it ran.
fn ran<K: Kind>(rig: &Rig<u32, K>, results: &mut Results<u32>, task: Job<u32, K>) -> bool {
    rig.submit(task).unwrap();
    match results.next().unwrap().result {
        Ok(_) => true,
        Err(failure) => {
            let open = matches!(failure.error.cause(), Cause::BreakerOpen);
            assert_eq!(failure.attempts, u32::from(!open));
            !open
        }
    }
}

fn failures_in_a_row_open_it_and_tasks_fail_fast<K: Kind>() {
    let (rig, mut results, clock) = rig::<K>(1, 3);
    for task in [down::<K>(), down::<K>(), make::<u32, K>(1), down::<K>(), down::<K>()] {
        assert!(ran(&rig, &mut results, task));
    }
    assert_eq!(state(&rig), BreakerState::Closed, "a success in between starts the count anew");
    assert!(ran(&rig, &mut results, down::<K>()));
    assert_eq!(state(&rig), BreakerState::Open);
    for _ in 0..4 {
        assert!(!ran(&rig, &mut results, make::<u32, K>(1)), "it ran");
    }
    clock.advance(RESET);
    assert_eq!(state(&rig), BreakerState::HalfOpen);
    assert!(ran(&rig, &mut results, make::<u32, K>(1)), "the probe");
    let stats = rig.stats().breaker.unwrap();
    assert_eq!((stats.state, stats.failures), (BreakerState::Closed, 0));
    assert_eq!((stats.opened, stats.rejected, stats.probes), (1, 4, 1));
    let report = rig.join();
    assert_partition(&report);
    assert_eq!((report.finished, report.failed), (2, 9));
}

fn panics_and_partial_failures_count_but_permanent_ones_do_not<K: Kind>() {
    let check = |want: BreakerState, task: fn() -> Job<u32, K>| {
        let (rig, mut results, _clock) = rig::<K>(1, 2);
        for _ in 0..2 {
            assert!(ran(&rig, &mut results, task()));
        }
        assert_eq!(state(&rig), want);
    };
    check(BreakerState::Open, down::<K>);
    check(BreakerState::Open, || K::once(async |_| Err(TaskError::partial("upload", "503"))));
    check(BreakerState::Open, || K::once(async |_| panic!("ouch")));
    check(BreakerState::Closed, || fail::<u32, K>("no such file"));
    check(BreakerState::Closed, || make::<u32, K>(1));
}

/// Whoever comes while the probe is under way is refused.
fn half_open_lets_one_probe_through<K: Kind>() {
    for succeeds in [false, true] {
        let (rig, mut results, clock) = rig::<K>(3, 1);
        ran(&rig, &mut results, down::<K>());
        clock.advance(RESET);
        let (gate, started, probes) = (Gate::default(), Signal::default(), Signal::default());
        let (passed, begun) = (gate.passed(), started.clone());
        let probe = K::once(async move |_| {
            begun.give();
            passed.await;
            if succeeds { Ok(1) } else { Err(TaskError::transient("still down")) }
        });
        rig.submit(probe).unwrap();
        started.wait_for(1);
        for _ in 0..5 {
            let probes = probes.clone();
            let second = K::once(async move |_| {
                probes.give();
                Ok(2)
            });
            assert!(!ran(&rig, &mut results, second));
        }
        assert_eq!((probes.count(), state(&rig)), (0, BreakerState::HalfOpen));
        gate.open();
        assert_eq!(results.next().unwrap().result.is_ok(), succeeds);
        assert_eq!(state(&rig), if succeeds { BreakerState::Closed } else { BreakerState::Open });
        assert_eq!(rig.stats().breaker.unwrap().probes, 1);
        assert_eq!(ran(&rig, &mut results, make::<u32, K>(3)), succeeds);
    }
}

/// A task that logs its attempts, and can wait.
fn patient<K: Kind>(attempts: &Log<u32>) -> Job<u32, K> {
    let log = attempts.clone();
    K::retrying(Retry::linear(2, SEC).without_jitter(), move |context: Ctx<u32, K>| {
        log.add(context.attempt());
        async move { Ok(context.attempt()) }
    })
}

fn a_task_that_can_wait_comes_back_when_a_probe_may_pass<K: Kind>() {
    let ((rig, mut results, clock), attempts) = (rig::<K>(1, 1), Log::default());
    ran(&rig, &mut results, down::<K>());
    rig.submit(patient::<K>(&attempts)).unwrap();
    clock.wait_for_timers(1);
    assert_eq!((rig.stats().waiting_retry, rig.stats().failed), (1, 1));
    clock.advance(RESET - std::time::Duration::from_nanos(1));
    assert_eq!((timers(&clock), attempts.all().len()), (1, 0), "it came while the breaker was open");
    clock.advance(std::time::Duration::from_nanos(1));
    assert_eq!(results.next().unwrap().result.unwrap(), 1);
    assert_eq!((attempts.all(), state(&rig)), (vec![1], BreakerState::Closed));
}

/// As often as it takes, and all its attempts are left.
fn being_put_off_uses_no_attempts<K: Kind>() {
    let ((rig, mut results, clock), attempts) = (rig::<K>(2, 1), Log::default());
    ran(&rig, &mut results, down::<K>());
    clock.advance(RESET);
    let probe = Gate::default();
    occupy(&rig, &probe);
    rig.submit(patient::<K>(&attempts)).unwrap();
    for _ in 0..5 {
        clock.wait_for_timers(1);
        clock.advance(SEC);
    }
    clock.wait_for_timers(1);
    assert_eq!((attempts.all().len(), rig.stats().waiting_retry), (0, 1));
    probe.open();
    results.next().unwrap().result.unwrap();
    clock.advance(SEC);
    assert_eq!(results.next().unwrap().result.unwrap(), 1);
    assert_eq!(attempts.all(), [1]);
}

fn a_pool_without_a_breaker_says_so<K: Kind>() {
    assert!(build::<K>(small(1, 1)).stats().breaker.is_none());
}

/// One breaker, two pools that call the same server.
fn pools_can_share_a_breaker<K: Kind>() {
    let clock = ManualClock::new();
    let breaker = Breaker::new(1, RESET).clock(&clock);
    let builder = small(1, 4).clock(&clock).breaker(breaker);
    let (one, mut of_one) = build_with_results::<u32, K>(builder.clone(), ResultOrder::AsCompleted);
    let (two, mut of_two) = build_with_results::<u32, K>(builder, ResultOrder::AsCompleted);
    assert!(ran(&one, &mut of_one, down::<K>()));
    assert!(!ran(&two, &mut of_two, make::<u32, K>(1)));
}

every_kind!(
    failures_in_a_row_open_it_and_tasks_fail_fast,
    panics_and_partial_failures_count_but_permanent_ones_do_not,
    half_open_lets_one_probe_through,
    a_task_that_can_wait_comes_back_when_a_probe_may_pass,
    being_put_off_uses_no_attempts,
    a_pool_without_a_breaker_says_so,
    pools_can_share_a_breaker,
);
