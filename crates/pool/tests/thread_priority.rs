//! The priority of threads, which only Linux has.

#![cfg(all(target_os = "linux", not(any(miri, loom, shuttle))))]

use gristmill_pool::worker::lower_priority;
use rustix::process::{getpriority_process, setpriority_process};

#[test]
fn lower_priority_keeps_a_lower_one() {
    for (before, after) in [(None, 10), (Some(15), 15)] {
        let nice = std::thread::spawn(move || {
            if let Some(before) = before {
                setpriority_process(None, before).unwrap();
            }
            lower_priority();
            getpriority_process(None).unwrap()
        });
        // The process that runs the tests may have a lower priority already.
        assert_eq!(nice.join().unwrap(), after.max(getpriority_process(None).unwrap()));
    }
}
