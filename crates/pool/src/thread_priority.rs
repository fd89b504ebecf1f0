//! Workers that let others go first.

/// Lets other threads go before the calling one, from now on; on Linux, elsewhere nothing. For workers of a pool whose
/// results one thread takes: many of them and that one share few cores, and all wait for that one in the end. Where it
/// stood in line with them, a first scan of small files took a sixth longer, and an import an eighth.
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
        // Of this thread alone: what Linux calls a process here is one. Nothing depends on it.
        if getpriority_process(None).is_ok_and(|nice| nice < NICE) {
            let _ = setpriority_process(None, NICE);
        }
    }
}

#[cfg(all(test, target_os = "linux", not(any(miri, loom, shuttle))))]
mod tests {
    use rustix::process::{getpriority_process, setpriority_process};

    #[test]
    fn who_has_stepped_further_back_stays_there() {
        for (before, after) in [(None, 10), (Some(15), 15)] {
            let nice = std::thread::spawn(move || {
                if let Some(before) = before {
                    setpriority_process(None, before).unwrap();
                }
                super::lower_priority();
                getpriority_process(None).unwrap()
            });
            // Whoever runs the tests may have stepped back already.
            assert_eq!(nice.join().unwrap(), after.max(getpriority_process(None).unwrap()));
        }
    }
}
