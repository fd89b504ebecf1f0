//! Tokens that ask work to stop: polled, awaited, waited for, with callbacks and children.

#![cfg(not(any(shuttle, loom)))]

use gristmill_pool::CancelToken;
use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::SeqCst},
    },
    task::{Context, Waker},
    time::{Duration, Instant},
};

fn counter() -> (Arc<AtomicU32>, impl FnOnce() + Send + 'static) {
    let count = Arc::new(AtomicU32::new(0));
    let called = Arc::clone(&count);
    (count, move || {
        called.fetch_add(1, SeqCst);
    })
}

#[test]
fn callback_runs_once_on_cancel_and_at_once_when_already_cancelled() {
    let token = CancelToken::new();
    let (count, callback) = counter();
    let registered = token.on_cancel(callback);
    assert_eq!(count.load(SeqCst), 0);
    token.cancel();
    token.cancel();
    drop(registered);
    assert_eq!(count.load(SeqCst), 1);
    let (count, callback) = counter();
    let _registered = token.on_cancel(callback);
    assert_eq!(count.load(SeqCst), 1);
}

#[test]
fn dropped_callback_does_not_run() {
    let token = CancelToken::new();
    let (count, callback) = counter();
    drop(token.on_cancel(callback));
    token.cancel();
    assert_eq!(count.load(SeqCst), 0);
}

#[test]
fn panicking_callback_does_not_keep_later_ones_from_running() {
    let token = CancelToken::new();
    let _first = token.on_cancel(|| panic!("a callback that fails"));
    let (count, callback) = counter();
    let _second = token.on_cancel(callback);
    token.cancel();
    assert_eq!(count.load(SeqCst), 1);
}

#[test]
fn callback_may_use_its_token() {
    let token = CancelToken::new();
    let inner = token.clone();
    let _registered = token.on_cancel(move || {
        inner.cancel();
        assert!(inner.wait_timeout(Duration::ZERO));
        drop(inner.child());
    });
    token.cancel();
}

#[test]
fn child_is_cancelled_with_its_parent_and_not_the_reverse() {
    let parent = CancelToken::new();
    let (first, second) = (parent.child(), parent.child());
    let grandchild = first.child();
    second.cancel();
    assert!(!parent.is_cancelled() && !first.is_cancelled());
    parent.cancel();
    assert!(first.is_cancelled() && grandchild.is_cancelled());
    assert!(parent.child().is_cancelled(), "the child of a cancelled token");
}

#[test]
fn wait_ends_at_the_deadline_or_the_cancellation() {
    let token = CancelToken::new();
    assert!(!token.wait_timeout(Duration::from_millis(1)));
    assert!(!token.wait_deadline(Instant::now()));
    std::thread::scope(|scope| {
        let waits = [Duration::from_secs(3_600), Duration::MAX].map(|limit| {
            let token = &token;
            scope.spawn(move || token.wait_timeout(limit))
        });
        token.cancel();
        assert!(waits.into_iter().all(|wait| wait.join().unwrap()));
    });
    assert!(token.wait_deadline(Instant::now()), "a cancelled token wins over a deadline that has passed");
}

#[test]
fn cancelled_future_wakes_its_last_waker_and_unregisters_on_drop() {
    struct Count(AtomicU32);
    impl std::task::Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, SeqCst);
        }
    }
    let wakes = [0, 1, 2].map(|_| Arc::new(Count(AtomicU32::new(0))));
    let token = CancelToken::new();
    let mut future = token.cancelled();
    for count in &wakes[..2] {
        let waker = Waker::from(Arc::clone(count));
        assert!(Pin::new(&mut future).poll(&mut Context::from_waker(&waker)).is_pending());
    }
    let mut dropped = token.cancelled();
    let waker = Waker::from(Arc::clone(&wakes[2]));
    assert!(Pin::new(&mut dropped).poll(&mut Context::from_waker(&waker)).is_pending());
    drop(dropped);
    token.cancel();
    assert_eq!(wakes.map(|count| count.0.load(SeqCst)), [0, 1, 0]);
    assert!(Pin::new(&mut future).poll(&mut Context::from_waker(Waker::noop())).is_ready());
}
