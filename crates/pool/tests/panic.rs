//! Panics of tasks: reported in full, and without effect on other tasks and workers.

#![cfg(not(any(shuttle, loom)))]

#[macro_use]
mod suite;

use gristmill_pool::{Failure, ResultOrder, Retry, error::Cause, error::catch_panic};
use std::{
    panic::{panic_any, resume_unwind},
    time::Duration,
};
use suite::*;

/// A way for a task to panic.
type PanicFn = fn();

fn message_of(failure: &Failure) -> String {
    match failure.error.cause() {
        Cause::Panic { message, .. } => message.clone(),
        other => panic!("{other:?}"),
    }
}

fn panic_is_reported_with_message_location_and_backtrace<K: WorkerKind>() {
    let panics: [(PanicFn, &str); 4] = [
        (|| panic!("plain"), "plain, at crates/pool/tests/panic.rs:"),
        (|| panic!("{} of {}", 3, 4), "3 of 4, at crates/pool/tests/panic.rs:"),
        (|| panic_any(42), "(not a string), at crates/pool/tests/panic.rs:"),
        (|| drop(Vec::<String>::new().pop().unwrap()), "called `Option::unwrap()` on a `None` value, at "),
    ];
    let (fixture, mut results) = build_with_results::<(), K>(pool_builder(1, 8), ResultOrder::AsCompleted);
    for (panic_fn, want) in panics {
        let task = K::once(async move |_| {
            panic_fn();
            Ok(())
        });
        fixture.submit(task.label("p")).unwrap();
        let failure = results.next().unwrap().result.unwrap_err();
        let message = message_of(&failure);
        // Paths are relative to the workspace or to the crate.
        let want = want.replace("crates/pool/", "");
        assert!(message.replace("crates/pool/", "").starts_with(&want), "{message}");
        let full = format!("{:?}", failure.error);
        assert!(full.starts_with("Permanent: panicked: "), "{full}");
        assert!(full.contains("panic.rs"), "no backtrace in {full}");
        assert!(full.lines().count() > 5, "no backtrace in {full}");
    }
    let report = fixture.join();
    assert_reports_each_task_once(&report);
    assert_eq!((report.stats.panicked, report.stats.failed), (4, 4));
}

fn panic_caught_with_catch_panic_counts_as_panic<K: WorkerKind>() {
    let (fixture, mut results) = build_with_results::<(), K>(pool_builder(1, 8), ResultOrder::AsCompleted);
    fixture.submit(K::once(async |_| catch_panic(|| panic!("caught")))).unwrap();
    let failure = results.next().unwrap().result.unwrap_err();
    assert!(message_of(&failure).starts_with("caught, at "), "{failure}");
    assert!(format!("{:?}", failure.error).lines().count() > 5, "no backtrace in {:?}", failure.error);
    assert_eq!((fixture.join().stats.panicked, fixture.stats().failed), (1, 1));
}

fn worker_survives_a_panic<K: WorkerKind>() {
    for workers in [1, 2] {
        let fixture = build::<K>(pool_builder(workers, 16));
        for _ in 0..1_000 {
            fixture.submit(K::once(async |_| panic!("ouch"))).unwrap();
        }
        // All workers still run tasks at the same time.
        let barrier = Barrier::new(workers);
        for _ in 0..workers {
            let barrier = barrier.clone();
            let task = K::once(async move |_| {
                barrier.wait().await;
                Ok(())
            });
            fixture.submit(task).unwrap();
        }
        wait_until(|| fixture.stats().completed == workers as u64);
        assert_eq!(fixture.stats().workers, workers);
        let report = fixture.join();
        assert_reports_each_task_once(&report);
        assert_eq!((report.stats.panicked, report.failed), (1_000, 1_000));
        assert_eq!(report.finished, workers as u64);
    }
}

/// A value whose drop panics.
struct PanicOnDrop(&'static str);

impl Drop for PanicOnDrop {
    fn drop(&mut self) {
        panic!("{}", self.0);
    }
}

/// The pool drops values of the user in closures, results, panic payloads and tasks that never started.
fn worker_survives_a_panic_on_drop<K: WorkerKind>() {
    let (fixture, results) = build_with_results::<Option<PanicOnDrop>, K>(pool_builder(1, 8), ResultOrder::AsCompleted);
    let panic_on_drop = PanicOnDrop("in the closure");
    let task = K::once(async move |_| {
        let _guard = panic_on_drop;
        Ok(None)
    });
    fixture.submit(task).unwrap();
    let panic_on_drop = PanicOnDrop("in the closure that is kept");
    let task = K::retrying(Retry::linear(1, Duration::ZERO), move |_| {
        let _ = &panic_on_drop;
        async { Ok(None) }
    });
    fixture.submit(task).unwrap();
    fixture.submit(K::once(async |_| panic_any(PanicOnDrop("in the payload")))).unwrap();
    let mut results = results;
    for _ in 0..3 {
        drop(results.next().unwrap());
    }
    drop(results);
    fixture.submit(returning::<Option<PanicOnDrop>, K>(Some(PanicOnDrop("in an unread result")))).unwrap();
    wait_until(|| fixture.stats().completed + fixture.stats().failed == 4);
    let started = Signal::default();
    fixture.submit(run_until_cancelled::<Option<PanicOnDrop>, K>(&started)).unwrap();
    started.wait_for(1);
    let panic_on_drop = PanicOnDrop("in a task that never starts");
    let task = K::once(async move |_| {
        drop(panic_on_drop);
        Ok(None)
    });
    fixture.submit(task).unwrap();
    fixture.cancel();
    let report = fixture.join();
    assert_reports_each_task_once(&report);
    assert_eq!((report.never_started.len(), report.stats.submitted), (1, 6));
}

/// `resume_unwind` bypasses the hook, which still holds the message of an earlier panic.
fn panic_keeps_its_own_message_after_an_earlier_one<K: WorkerKind>() {
    let (fixture, mut results) = build_with_results::<(), K>(pool_builder(1, 8), ResultOrder::AsCompleted);
    let panic_on_drop = PanicOnDrop("earlier");
    let task = K::retrying(Retry::linear(1, Duration::ZERO), move |_| {
        let _ = &panic_on_drop;
        async { Ok(()) }
    });
    fixture.submit(task).unwrap();
    results.next().unwrap().result.unwrap();
    fixture.submit(K::once(async |_| resume_unwind(Box::new("later")))).unwrap();
    assert_eq!(message_of(&results.next().unwrap().result.unwrap_err()), "later");
}

fn panic_caught_with_catch_unwind_is_not_counted<K: WorkerKind>() {
    let (fixture, mut results) = build_with_results::<bool, K>(pool_builder(1, 8), ResultOrder::AsCompleted);
    fixture.submit(K::once(async |_| Ok(std::panic::catch_unwind(|| panic!("inner")).is_err()))).unwrap();
    assert!(results.next().unwrap().result.unwrap());
    fixture.submit(K::once(async |_| resume_unwind(Box::new("later")))).unwrap();
    assert_eq!(message_of(&results.next().unwrap().result.unwrap_err()), "later");
    assert_eq!(fixture.join().stats.panicked, 1);
}

for_each_worker_kind!(
    panic_caught_with_catch_panic_counts_as_panic,
    panic_is_reported_with_message_location_and_backtrace,
    worker_survives_a_panic,
    worker_survives_a_panic_on_drop,
    panic_keeps_its_own_message_after_an_earlier_one,
    panic_caught_with_catch_unwind_is_not_counted,
);
