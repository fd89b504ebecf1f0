//! Tasks that panic: one task's affair, told in full.

#![cfg(not(any(shuttle, loom)))]

#[macro_use]
mod suite;

use gristmill_pool::{Failure, ResultOrder, Retry, error::Cause, error::catch_panic};
use std::{
    panic::{panic_any, resume_unwind},
    time::Duration,
};
use suite::*;

/// How a task panics.
type Act = fn();

fn message_of(failure: &Failure) -> String {
    match failure.error.cause() {
        Cause::Panic { message, .. } => message.clone(),
        other => panic!("{other:?}"),
    }
}

fn a_panic_is_told_with_message_place_and_backtrace<K: Kind>() {
    let acts: [(Act, &str); 4] = [
        (|| panic!("plain"), "plain, at crates/pool/tests/panic.rs:"),
        (|| panic!("{} of {}", 3, 4), "3 of 4, at crates/pool/tests/panic.rs:"),
        (|| panic_any(42), "(not a text), at crates/pool/tests/panic.rs:"),
        (|| drop(Vec::<String>::new().pop().unwrap()), "called `Option::unwrap()` on a `None` value, at "),
    ];
    let (rig, mut results) = build_with_results::<(), K>(small(1, 8), ResultOrder::AsCompleted);
    for (act, want) in acts {
        let task = K::once(async move |_| {
            act();
            Ok(())
        });
        rig.submit(task.label("p")).unwrap();
        let failure = results.next().unwrap().result.unwrap_err();
        let message = message_of(&failure);
        // From the workspace's root or from the crate's own, as cargo likes.
        let want = want.replace("crates/pool/", "");
        assert!(message.replace("crates/pool/", "").starts_with(&want), "{message}");
        let full = format!("{:?}", failure.error);
        assert!(full.starts_with("Permanent: panicked: "), "{full}");
        assert!(full.contains("panic.rs"), "no backtrace in {full}");
        assert!(full.lines().count() > 5, "no backtrace in {full}");
    }
    let report = rig.join();
    assert_partition(&report);
    assert_eq!((report.stats.panicked, report.stats.failed), (4, 4));
}

/// A task that catches its own panic and returns it is a task that panicked.
fn a_panic_that_the_task_caught_counts_as_one<K: Kind>() {
    let (rig, mut results) = build_with_results::<(), K>(small(1, 8), ResultOrder::AsCompleted);
    rig.submit(K::once(async |_| catch_panic(|| panic!("caught")))).unwrap();
    let failure = results.next().unwrap().result.unwrap_err();
    assert!(message_of(&failure).starts_with("caught, at "), "{failure}");
    assert!(format!("{:?}", failure.error).lines().count() > 5, "no backtrace in {:?}", failure.error);
    assert_eq!((rig.join().stats.panicked, rig.stats().failed), (1, 1));
}

fn a_panic_costs_no_worker<K: Kind>() {
    for workers in [1, 2] {
        let rig = build::<K>(small(workers, 16));
        for _ in 0..1_000 {
            rig.submit(K::once(async |_| panic!("ouch"))).unwrap();
        }
        // All of them, at the same time.
        let meeting = Meeting::of(workers);
        for _ in 0..workers {
            let meeting = meeting.clone();
            let task = K::once(async move |_| {
                meeting.attend().await;
                Ok(())
            });
            rig.submit(task).unwrap();
        }
        until(|| rig.stats().completed == workers as u64);
        assert_eq!(rig.stats().workers, workers);
        let report = rig.join();
        assert_partition(&report);
        assert_eq!((report.stats.panicked, report.failed), (1_000, 1_000));
        assert_eq!(report.finished, workers as u64);
    }
}

/// Panics when it is dropped.
struct Bomb(&'static str);

impl Drop for Bomb {
    fn drop(&mut self) {
        panic!("{}", self.0);
    }
}

/// Wherever what is the user's is dropped: with the closure, with what it made, with what it panicked with,
/// with what is never started.
fn a_drop_that_panics_costs_no_worker<K: Kind>() {
    let (rig, results) = build_with_results::<Option<Bomb>, K>(small(1, 8), ResultOrder::AsCompleted);
    let bomb = Bomb("in the closure");
    let task = K::once(async move |_| {
        let _bomb = bomb;
        Ok(None)
    });
    rig.submit(task).unwrap();
    let bomb = Bomb("in the closure that is kept");
    let task = K::retrying(Retry::linear(1, Duration::ZERO), move |_| {
        let _ = &bomb;
        async { Ok(None) }
    });
    rig.submit(task).unwrap();
    rig.submit(K::once(async |_| panic_any(Bomb("in the payload")))).unwrap();
    let mut results = results;
    for _ in 0..3 {
        drop(results.next().unwrap());
    }
    drop(results);
    rig.submit(make::<Option<Bomb>, K>(Some(Bomb("in what nobody reads")))).unwrap();
    until(|| rig.stats().completed + rig.stats().failed == 4);
    let started = Signal::default();
    rig.submit(listen::<Option<Bomb>, K>(&started)).unwrap();
    started.wait_for(1);
    let bomb = Bomb("in what is never started");
    let task = K::once(async move |_| {
        drop(bomb);
        Ok(None)
    });
    rig.submit(task).unwrap();
    rig.cancel();
    let report = rig.join();
    assert_partition(&report);
    assert_eq!((report.never_started.len(), report.stats.submitted), (1, 6));
}

/// A payload that went past the hook is told by its own words, not by those of an earlier panic.
fn a_panic_is_not_mistaken_for_an_earlier_one<K: Kind>() {
    let (rig, mut results) = build_with_results::<(), K>(small(1, 8), ResultOrder::AsCompleted);
    let bomb = Bomb("earlier");
    let task = K::retrying(Retry::linear(1, Duration::ZERO), move |_| {
        let _ = &bomb;
        async { Ok(()) }
    });
    rig.submit(task).unwrap();
    results.next().unwrap().result.unwrap();
    rig.submit(K::once(async |_| resume_unwind(Box::new("later")))).unwrap();
    assert_eq!(message_of(&results.next().unwrap().result.unwrap_err()), "later");
}

/// A task that catches its own panic has not panicked.
fn a_panic_caught_inside_is_nobodys_business<K: Kind>() {
    let (rig, mut results) = build_with_results::<bool, K>(small(1, 8), ResultOrder::AsCompleted);
    rig.submit(K::once(async |_| Ok(std::panic::catch_unwind(|| panic!("inner")).is_err()))).unwrap();
    assert!(results.next().unwrap().result.unwrap());
    rig.submit(K::once(async |_| resume_unwind(Box::new("later")))).unwrap();
    assert_eq!(message_of(&results.next().unwrap().result.unwrap_err()), "later");
    assert_eq!(rig.join().stats.panicked, 1);
}

every_kind!(
    a_panic_that_the_task_caught_counts_as_one,
    a_panic_is_told_with_message_place_and_backtrace,
    a_panic_costs_no_worker,
    a_drop_that_panics_costs_no_worker,
    a_panic_is_not_mistaken_for_an_earlier_one,
    a_panic_caught_inside_is_nobodys_business,
);
