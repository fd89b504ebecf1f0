//! Defaults and bounds of the number of workers and the prefetch.

pub(crate) const MAX_WORKERS: usize = 200;
const MAX_DEFAULT_PREFETCH: usize = 500;
pub(crate) const MAX_PREFETCH: usize = 1000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sizing {
    pub(crate) workers: usize,
    /// Maximum number of messages that a worker handles at a time.
    pub(crate) batch: usize,
    /// Upper bound of the prefetch.
    pub(crate) prefetch: u16,
    /// Whether the prefetch was set: then it is also the initial one.
    pub(crate) is_explicit: bool,
    /// Capacity of the pool's queue.
    pub(crate) queue: usize,
}

impl Sizing {
    /// Resolves the sizes; 0 means the default. Calls `clamped` with requested and used values that differ.
    pub(crate) fn of(
        workers: usize,
        batch: usize,
        prefetch: usize,
        cores: usize,
        mut clamped: impl FnMut(&'static str, usize, usize),
    ) -> Self {
        let mut clamp = |what, requested: usize, most: usize| {
            if requested > most {
                clamped(what, requested, most);
            }
            requested.min(most)
        };
        let batch = clamp("batch", batch, MAX_PREFETCH).max(1);
        let requested = match workers {
            0 if batch > 1 => 1,
            0 => cores.saturating_mul(4).max(1),
            requested => requested,
        };
        let workers = clamp("workers", requested, MAX_WORKERS);
        let messages = workers * batch;
        let bound = match prefetch {
            // A batch must fit.
            0 => (messages * 10).min(MAX_DEFAULT_PREFETCH).max(messages.min(MAX_PREFETCH)),
            requested => clamp("prefetch", requested, MAX_PREFETCH),
        };
        Self { workers, batch, prefetch: bound as u16, is_explicit: prefetch != 0, queue: workers * 2 }
    }

    /// Maximum number of messages handled at a time.
    pub(crate) fn messages(&self) -> usize {
        self.workers * self.batch
    }
}

pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(cores: usize, requested: (usize, usize), expected: (usize, u16, usize), clamps: &[(&str, usize, usize)]) {
        let mut clamped = Vec::new();
        let sizing = Sizing::of(requested.0, 1, requested.1, cores, |what, from, to| clamped.push((what, from, to)));
        assert_eq!((sizing.workers, sizing.prefetch, sizing.queue), expected, "{cores} cores, {requested:?}");
        assert_eq!(clamped, clamps, "{cores} cores, {requested:?}");
    }

    #[test]
    fn defaults_follow_the_number_of_cores() {
        check(1, (0, 0), (4, 40, 8), &[]);
        check(2, (0, 0), (8, 80, 16), &[]);
        check(8, (0, 0), (32, 320, 64), &[]);
        check(32, (0, 0), (128, 500, 256), &[]);
        check(128, (0, 0), (200, 500, 400), &[("workers", 512, 200)]);
    }

    #[test]
    fn explicit_sizes_are_used_up_to_the_maximum() {
        for cores in [1, 2, 8, 32, 128] {
            check(cores, (1, 0), (1, 10, 2), &[]);
            check(cores, (1, 1), (1, 1, 2), &[]);
            check(cores, (50, 0), (50, 500, 100), &[]);
            check(cores, (100, 500), (100, 500, 200), &[]);
            check(cores, (200, 1000), (200, 1000, 400), &[]);
            check(cores, (201, 1001), (200, 1000, 400), &[("workers", 201, 200), ("prefetch", 1001, 1000)]);
            let far = usize::MAX;
            check(cores, (far, far), (200, 1000, 400), &[("workers", far, 200), ("prefetch", far, 1000)]);
        }
    }

    #[test]
    fn prefetch_has_room_for_all_batches() {
        // Workers, batch and prefetch as requested, then as used.
        for (requested, expected) in [
            ((0, 200, 0), (1, 200, 500)),
            ((2, 5, 0), (2, 5, 100)),
            ((4, 200, 0), (4, 200, 800)),
            ((4, 400, 0), (4, 400, 1000)),
            ((1, 9, 4), (1, 9, 4)),
            ((0, 2000, 0), (1, 1000, 1000)),
        ] {
            let sizing = Sizing::of(requested.0, requested.1, requested.2, 8, |_, _, _| {});
            assert_eq!((sizing.workers, sizing.batch, sizing.prefetch), expected, "{requested:?}");
        }
    }
}
