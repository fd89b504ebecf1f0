//! Support for randomised checkers: tests that compare random operations with a model in memory.
//!
//! Owns the loop over seeds, the random choices and the reduction of a failing case, but no checks. A checker is an
//! integration test that calls [`run`]. `cargo test` runs a few rounds with fixed seeds; `cargo xtask check NAME` sets
//! the number of rounds and the first seed through the environment.

use std::ops::{Deref, DerefMut, Range};
use std::time::Duration;

/// Environment variable with the number of rounds, which `cargo xtask check` sets.
pub const ROUNDS_VARIABLE: &str = "GRISTMILL_CHECK_ROUNDS";
/// Environment variable with the seed of the first round; each later round has the next one.
pub const SEED_VARIABLE: &str = "GRISTMILL_CHECK_SEED";

/// Runs `round` with one seed after the other, and panics at the first error.
///
/// `name` is the checker's name in `cargo xtask check`; `rounds` is the number of rounds if the environment sets none.
/// The error of a round describes its operations and the difference; the seed and the command that repeats it are added
/// here.
///
/// # Panics
///
/// When a round returns an error, or an environment variable is not a whole number.
pub fn run(name: &str, rounds: u64, mut round: impl FnMut(u64) -> Result<(), String>) {
    let (rounds, first) = (variable(ROUNDS_VARIABLE).unwrap_or(rounds), variable(SEED_VARIABLE).unwrap_or(1));
    for index in 0..rounds {
        let seed = first.wrapping_add(index);
        if let Err(error) = round(seed) {
            panic!(
                "round with seed {seed} failed (repeat it: cargo xtask check {name} --rounds 1 --seed {seed})\n{error}"
            );
        }
        if (index + 1) % 1_000 == 0 {
            println!("{} of {rounds} rounds", index + 1);
        }
    }
    println!("{rounds} rounds, first seed {first}: no difference");
}

fn variable(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    match text.parse() {
        Ok(number) => Some(number),
        Err(_) => panic!("{name} is {text:?}; expected: a whole number from 0 on"),
    }
}

/// A random number generator with a seed: [`fastrand::Rng`] with a few more methods.
#[derive(Clone, Debug)]
pub struct Rng(fastrand::Rng);

impl Rng {
    /// Creates a generator whose numbers follow from `seed`.
    pub fn new(seed: u64) -> Self {
        Rng(fastrand::Rng::with_seed(seed))
    }

    /// Returns a number in `range`, which must not be empty.
    pub fn within(&mut self, range: Range<usize>) -> usize {
        self.0.usize(range)
    }

    /// Returns a time of this many milliseconds.
    pub fn millis(&mut self, range: Range<u64>) -> Duration {
        Duration::from_millis(self.0.u64(range))
    }

    /// Returns true with a probability of `percent` out of 100.
    pub fn percent(&mut self, percent: usize) -> bool {
        self.within(0..100) < percent
    }

    /// Returns one of the items.
    ///
    /// # Panics
    ///
    /// When there are no items.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.within(0..items.len())]
    }
}

impl Deref for Rng {
    type Target = fastrand::Rng;

    fn deref(&self) -> &fastrand::Rng {
        &self.0
    }
}

impl DerefMut for Rng {
    fn deref_mut(&mut self) -> &mut fastrand::Rng {
        &mut self.0
    }
}

/// Returns a random seed that is short enough to be typed.
pub fn random_seed() -> u64 {
    fastrand::u64(..1_000_000_000)
}

/// Removes items while `fails` is true of the rest, and returns those that cannot be reduced further.
///
/// Removes runs of items, from half of them down to single ones. `fails` must be true of all items together.
pub fn reduce<T: Clone>(items: &[T], mut fails: impl FnMut(&[T]) -> bool) -> Vec<T> {
    let mut kept = items.to_vec();
    let mut length = kept.len().div_ceil(2);
    while length > 0 {
        let mut start = 0;
        while start < kept.len() {
            let mut rest = kept.clone();
            rest.drain(start..(start + length).min(kept.len()));
            if fails(&rest) {
                kept = rest;
            } else {
                start += length;
            }
        }
        length /= 2;
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_seed_gives_the_same_numbers() {
        let draw = |seed| {
            let mut rng = Rng::new(seed);
            std::array::from_fn::<usize, 8, _>(|_| rng.within(10..20))
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
        assert!(draw(7).iter().all(|number| (10..20).contains(number)));
    }

    #[test]
    fn reduce_keeps_only_items_that_the_failure_needs() {
        let all: Vec<u32> = (0..50).collect();
        let reduced = reduce(&all, |items| items.contains(&3) && items.contains(&41));
        assert_eq!(reduced, [3, 41]);
        assert_eq!(reduce(&all, |_| true), []);
    }

    #[test]
    #[should_panic(expected = "cargo xtask check example --rounds 1 --seed 3")]
    fn failing_round_names_its_seed() {
        run("example", 10, |seed| if seed == 3 { Err("difference".to_owned()) } else { Ok(()) });
    }
}
