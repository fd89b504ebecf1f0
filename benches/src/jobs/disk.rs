//! The measured disk: the duration of a sync.

use std::{
    fs::File,
    io::{self, Write},
    path::Path,
    time::{Duration, Instant},
};

use crate::scratch::Scratch;

/// Returns the median time of 200 appends of 4 KiB with a sync. It describes the kind of disk and its load. It is not a
/// lower bound: commits with FULL were measured below it.
pub(super) fn median_sync_time(parent: &Path) -> Result<Duration, String> {
    let folder = Scratch::new(parent)?;
    let path = folder.path().join("synced");
    let times = || -> io::Result<Vec<Duration>> {
        let mut file = File::create(&path)?;
        let mut timed = || {
            let start = Instant::now();
            file.write_all(&[7; 4_096])?;
            file.sync_data()?;
            Ok(start.elapsed())
        };
        (0..200).map(|_| timed()).collect()
    };
    let mut times = times().map_err(|error| format!("{}: {error}", path.display()))?;
    times.sort();
    Ok(times[times.len() / 2])
}
