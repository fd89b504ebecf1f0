//! A repeatable random number generator.
//!
//! SplitMix64 is implemented here so that a printed seed gives the same choices with every version of every library.

use std::hash::{BuildHasher, RandomState};
use std::ops::Range;
use std::time::Duration;

pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Rng(seed)
    }

    /// Returns a random seed below 1,000,000.
    pub(crate) fn random_seed() -> u64 {
        RandomState::new().hash_one(std::process::id()) % 1_000_000
    }

    pub(crate) fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number of a range, which must not be empty.
    pub(crate) fn in_range(&mut self, range: Range<u64>) -> u64 {
        range.start + self.next_u64() % (range.end - range.start)
    }

    /// Returns true with this probability, in percent.
    pub(crate) fn percent(&mut self, percent: u64) -> bool {
        self.in_range(0..100) < percent
    }

    pub(crate) fn millis(&mut self, range: Range<u64>) -> Duration {
        Duration::from_millis(self.in_range(range))
    }

    /// Returns an index below `len`.
    pub(crate) fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.next_u64() % len as u64).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_seed_gives_same_numbers_in_range() {
        let draw = |seed| {
            let mut rng = Rng::new(seed);
            std::array::from_fn::<u64, 8, _>(|_| rng.in_range(10..20))
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
        assert!(draw(7).iter().all(|number| (10..20).contains(number)));
    }
}
