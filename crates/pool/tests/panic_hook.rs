//! The panic hook is shared by the process: a pool installs its own in front of the existing one, keeps the panics of
//! its tasks and passes all others on. Needs its own process, because a hook is set once.

#![cfg(not(any(shuttle, loom)))]

#[macro_use]
mod suite;

use gristmill_pool::error::Cause;
use std::{
    panic::{set_hook, take_hook},
    sync::{Arc, Mutex},
    thread,
};
use suite::*;

#[test]
fn panics_outside_tasks_reach_the_previous_hook() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&seen);
    let _default = take_hook();
    set_hook(Box::new(move |info| {
        log.lock().unwrap().push(info.payload_as_str().unwrap_or("?").to_owned());
    }));
    let fixture = build::<OnThreads>(pool_builder(1, 4));
    fixture.submit(OnThreads::once(async |_| panic!("in a task"))).unwrap();
    wait_until(|| fixture.stats().failed == 1);
    assert!(thread::spawn(|| panic!("elsewhere")).join().is_err());
    let report = fixture.join();
    assert!(
        matches!(report.failures[0].error.cause(), Cause::Panic { message, .. } if message.starts_with("in a task"))
    );
    // A thread that a task starts is not part of the task.
    let fixture = build::<OnThreads>(pool_builder(1, 4));
    let task = OnThreads::once(async |_| {
        assert!(thread::spawn(|| panic!("beside a task")).join().is_err());
        Ok(())
    });
    fixture.submit(task).unwrap();
    assert!(fixture.join().is_clean());
    let seen = std::mem::take(&mut *seen.lock().unwrap());
    let _ours = take_hook();
    assert_eq!(seen, ["elsewhere", "beside a task"]);
}
