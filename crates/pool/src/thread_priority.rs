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
