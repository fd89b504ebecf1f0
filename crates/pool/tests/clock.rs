//! The wall time of clocks.

#![cfg(not(any(shuttle, loom)))]

mod suite;

use gristmill_pool::clock::{Clock, ManualClock};
use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering::SeqCst},
    },
    time::Duration,
};
use suite::*;

#[test]
fn manual_wall_time_moves_with_advance_and_can_be_set() {
    let manual = ManualClock::at(-5);
    let clock = Clock::from(&manual);
    let check = |unix| assert_eq!(clock.unix_micros(), unix);
    check(-5);
    manual.advance(NANO * 1_500);
    check(-4);
    manual.advance(NANO * 500);
    check(-3);
    manual.set_unix_micros(100);
    check(100);
    manual.advance(NANO * 1_000);
    check(101);
    manual.set_unix_micros(i64::MAX);
    manual.advance(Duration::MAX);
    check(i64::MAX);
}

/// The callback of a timeout runs while the clock advances past it.
#[test]
fn timer_sees_the_wall_time_it_was_set_for() {
    let manual = ManualClock::at(1_000);
    let fixture = build::<OnThreads>(pool_builder(1, 1).clock(&manual).timeout(Duration::from_micros(7)));
    let (gate, seen) = (Gate::default(), Arc::new(AtomicI64::new(0)));
    let (clock, stored) = (Clock::from(&manual), Arc::clone(&seen));
    let token = context_of(&fixture, &gate).cancel_token();
    let _registered = token.on_cancel(move || stored.store(clock.unix_micros(), SeqCst));
    manual.advance(SEC);
    assert_eq!(seen.load(SeqCst), 1_007);
    gate.open();
    fixture.join();
}

#[test]
fn system_wall_time_is_after_2020() {
    assert!(Clock::system().unix_micros() > 1_577_836_800_000_000);
}
