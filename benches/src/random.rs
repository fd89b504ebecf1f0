//! Reproducible pseudorandom numbers: xoshiro256++, its state filled by splitmix64.
//!
//! Implemented here because generated trees and folders must stay the same when a library changes its generator. Not
//! for cryptography.

/// A stream of pseudorandom numbers.
pub(crate) struct Random([u64; 4]);

impl Random {
    /// Creates the stream of this seed and stream number. With the same seed, no two streams start in the same state.
    pub(crate) fn new(seed: u64, stream: u64) -> Self {
        let mut state = mix(seed) ^ stream;
        Random(std::array::from_fn(|_| {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            mix(state)
        }))
    }

    fn next(&mut self) -> u64 {
        let [a, b, c, d] = &mut self.0;
        let number = a.wrapping_add(*d).rotate_left(23).wrapping_add(*a);
        let shifted = *b << 17;
        *c ^= *a;
        *d ^= *b;
        *b ^= *c;
        *a ^= *d;
        *c ^= shifted;
        *d = d.rotate_left(45);
        number
    }

    /// Returns a number from 0 to below `end`, which must not be 0. The bias is one part in 2^64 / `end`.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        ((u128::from(self.next()) * end as u128) >> 64) as usize
    }

    /// Returns a number from `start` to below `end`.
    pub(crate) fn between(&mut self, start: usize, end: usize) -> usize {
        start + self.below(end - start)
    }

    /// Returns a number from 0 to below 1.
    pub(crate) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Returns a normally distributed number with mean 0 and standard deviation 1.
    pub(crate) fn normal(&mut self) -> f64 {
        let (radius, angle) = (1.0 - self.unit(), self.unit());
        (-2.0 * radius.ln()).sqrt() * (std::f64::consts::TAU * angle).cos()
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    pub(crate) fn fill(&mut self, bytes: &mut [u8]) {
        let mut words = bytes.chunks_exact_mut(8);
        for word in &mut words {
            word.copy_from_slice(&self.next().to_le_bytes());
        }
        let rest = words.into_remainder();
        rest.copy_from_slice(&self.next().to_le_bytes()[..rest.len()]);
    }
}

/// Applies the last step of splitmix64, a bijection: different numbers stay different.
pub(crate) fn mix(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_reproducible_and_differ_from_each_other() {
        let bytes = |seed, stream| {
            let mut bytes = [0; 37];
            Random::new(seed, stream).fill(&mut bytes);
            bytes
        };
        assert_eq!(bytes(1, 2), bytes(1, 2));
        assert_ne!(bytes(1, 2), bytes(1, 3));
        assert_ne!(bytes(1, 2), bytes(2, 2));
        assert_ne!(bytes(1, 2)[32..], [0; 5], "the bytes after the last complete word are filled as well");
    }

    #[test]
    fn numbers_stay_within_their_bounds_and_reach_them() {
        let mut random = Random::new(7, 0);
        let mut seen = [false; 5];
        for _ in 0..1_000 {
            seen[random.between(10, 15) - 10] = true;
            assert!((0.0..1.0).contains(&random.unit()));
        }
        assert_eq!(seen, [true; 5]);
        let mean = (0..10_000).map(|_| random.normal()).sum::<f64>() / 1e4;
        assert!(mean.abs() < 0.1, "{mean}");
    }
}
