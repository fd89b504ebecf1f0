//! What the tests look at from outside.

use std::path::Path;
use std::time::{Duration, Instant};

/// Waits for something that another process does and that nobody tells us.
#[track_caller]
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let limit = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < limit, "not within a minute: {what}");
        std::thread::park_timeout(Duration::from_millis(10));
    }
}

/// How many processes live in a broker's folder, whoever started them.
pub(crate) fn processes_at_home_in(folder: &Path) -> usize {
    let home = format!("HOME={}", folder.display());
    let lives_there = |entry: std::fs::DirEntry| {
        let environment = std::fs::read(entry.path().join("environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|variable| variable == home.as_bytes())
    };
    std::fs::read_dir("/proc")
        .unwrap()
        .filter_map(Result::ok)
        .filter(|entry| entry.path().is_dir())
        .map(lives_there)
        .filter(|lives| *lives)
        .count()
}
