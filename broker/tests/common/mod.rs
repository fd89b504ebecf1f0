//! Helpers that observe other processes.

use std::path::Path;
use std::time::{Duration, Instant};

/// Waits up to a minute for a condition that depends on another process.
#[track_caller]
pub(crate) fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let limit = Instant::now() + Duration::from_secs(60);
    while !condition() {
        assert!(Instant::now() < limit, "not within a minute: {what}");
        std::thread::park_timeout(Duration::from_millis(10));
    }
}

/// Number of processes whose `HOME` is a broker's folder.
pub(crate) fn processes_of(folder: &Path) -> usize {
    let home = format!("HOME={}", folder.display());
    let has_home = |entry: std::fs::DirEntry| {
        let environment = std::fs::read(entry.path().join("environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|variable| variable == home.as_bytes())
    };
    std::fs::read_dir("/proc")
        .unwrap()
        .filter_map(Result::ok)
        .filter(|entry| entry.path().is_dir())
        .map(has_home)
        .filter(|has_home| *has_home)
        .count()
}
