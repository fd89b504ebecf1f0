//! Lowers the scheduling priority of worker threads.

/// Lowers the scheduling priority of the calling thread to nice 10, on Linux; elsewhere does nothing. For workers of a
/// pool whose results one thread reads: they share few cores with that thread, and all of them wait for it. At equal
/// priority a first scan of small files took a sixth longer, and an import an eighth.
pub fn lower_priority() {
    #[cfg(target_os = "linux")]
    linux();
}

#[cfg(target_os = "linux")]
fn linux() {
    use rustix::process::{getpriority_process, setpriority_process};
    use std::cell::Cell;

    const NICE: i32 = 10;
    thread_local! {
        static DONE: Cell<bool> = const { Cell::new(false) };
    }
    if !DONE.replace(true) {
        // Linux applies this to the calling thread alone. Errors are ignored: nothing depends on it.
        if getpriority_process(None).is_ok_and(|nice| nice < NICE) {
            let _ = setpriority_process(None, NICE);
        }
    }
}

#[cfg(all(test, target_os = "linux", not(any(miri, loom, shuttle))))]
mod tests {
    use rustix::process::{getpriority_process, setpriority_process};

    #[test]
    fn lower_priority_keeps_a_lower_one() {
        for (before, after) in [(None, 10), (Some(15), 15)] {
            let nice = std::thread::spawn(move || {
                if let Some(before) = before {
                    setpriority_process(None, before).unwrap();
                }
                super::lower_priority();
                getpriority_process(None).unwrap()
            });
            // The process that runs the tests may have a lower priority already.
            assert_eq!(nice.join().unwrap(), after.max(getpriority_process(None).unwrap()));
        }
    }
}
