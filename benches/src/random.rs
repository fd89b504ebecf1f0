//! Reproducible random data: [`fastrand`] with a seed and a stream number. Not for cryptography.
//!
//! Generated trees and folders are kept between runs. Their versions must change with the generator; a test here fails
//! when a new version of `fastrand` gives other numbers.

use fastrand::Rng;

/// Creates the generator of this seed and stream number. With the same seed, no two streams start in the same state.
pub(crate) fn stream(seed: u64, stream: u64) -> Rng {
    Rng::with_seed(mix(mix(seed) ^ stream))
}

/// Returns a normally distributed number with mean 0 and standard deviation 1.
pub(crate) fn normal(random: &mut Rng) -> f64 {
    let (radius, angle) = (1.0 - random.f64(), random.f64());
    (-2.0 * radius.ln()).sqrt() * (std::f64::consts::TAU * angle).cos()
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
        let bytes = |seed, number| {
            let mut bytes = [0; 37];
            stream(seed, number).fill(&mut bytes);
            bytes
        };
        assert_eq!(bytes(1, 2), bytes(1, 2));
        assert_ne!(bytes(1, 2), bytes(1, 3));
        assert_ne!(bytes(1, 2), bytes(2, 2));
    }

    #[test]
    fn generator_is_the_one_of_the_kept_data() {
        let mut random = stream(1, 2);
        let numbers = (random.u64(..), random.usize(10..1_000_000), random.f64());
        let expected = (1660326017785971199, 573197, 0.7457640451067116);
        assert_eq!(numbers, expected, "the numbers changed: change VERSION in dedup/tree.rs and import/folder.rs");
    }

    #[test]
    fn normal_numbers_have_mean_0() {
        let mut random = stream(7, 0);
        let mean = (0..10_000).map(|_| normal(&mut random)).sum::<f64>() / 1e4;
        assert!(mean.abs() < 0.1, "{mean}");
    }
}
