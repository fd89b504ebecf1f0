//! Chance that can be repeated: numbers that follow from a seed.
//!
//! Three lines of arithmetic (SplitMix64), so that a printed seed means the same choices with every version of
//! every library.

use std::hash::{BuildHasher, RandomState};
use std::ops::Range;
use std::time::Duration;

pub(crate) struct Chance(u64);

impl Chance {
    pub(crate) fn new(seed: u64) -> Self {
        Chance(seed)
    }

    /// A seed that nobody chose.
    pub(crate) fn seed() -> u64 {
        RandomState::new().hash_one(std::process::id()) % 1_000_000
    }

    pub(crate) fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number in a range that is not empty.
    pub(crate) fn within(&mut self, range: Range<u64>) -> u64 {
        range.start + self.number() % (range.end - range.start)
    }

    /// True so many times in a hundred.
    pub(crate) fn percent(&mut self, percent: u64) -> bool {
        self.within(0..100) < percent
    }

    pub(crate) fn millis(&mut self, range: Range<u64>) -> Duration {
        Duration::from_millis(self.within(range))
    }

    /// An index into something that has `len` items.
    pub(crate) fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.number() % len as u64).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_makes_the_same_choices() {
        let draw = |seed| {
            let mut chance = Chance::new(seed);
            std::array::from_fn::<u64, 8, _>(|_| chance.within(10..20))
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
        assert!(draw(7).iter().all(|number| (10..20).contains(number)));
    }
}
