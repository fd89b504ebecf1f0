//! Command-line options of `cargo xtask bench catalog`.

use clap::Args;

use crate::options::{DataOptions, at_least};

const NOTES: &str = "\
The catalogs have 10^4, 10^5 and 10^6 files (0.2 GB), and with --quick only 10^4. Each is copied for its
measurement. A page that takes long is measured less often: a position takes at most 20 seconds.

Examples:
  cargo xtask bench catalog
  cargo xtask bench catalog --files 1000000 --reps 1000";

#[derive(Clone, Debug, Args)]
#[command(after_help = NOTES)]
pub(crate) struct Options {
    /// Numbers of files, separated by commas, 1000 or more [default: 10000,100000,1000000]
    #[arg(long, value_name = "NS", value_delimiter = ',', value_parser = at_least(1_000))]
    files: Option<Vec<u64>>,
    /// Repetitions of each page [default: 300, or 20 with --quick]
    #[arg(long, value_name = "N", value_parser = at_least(1))]
    reps: Option<u64>,
    /// Check that everything works: a small catalog, few repetitions
    #[arg(long)]
    quick: bool,
    #[command(flatten)]
    pub(super) data: DataOptions,
}

impl Options {
    pub(super) fn files(&self) -> Vec<u64> {
        let default = || if self.quick { vec![10_000] } else { vec![10_000, 100_000, 1_000_000] };
        self.files.clone().unwrap_or_else(default)
    }

    pub(super) fn reps(&self) -> usize {
        self.reps.map_or(if self.quick { 20 } else { 300 }, |reps| reps as usize)
    }

    /// Returns how often each command runs.
    pub(super) fn command_reps(&self) -> usize {
        if self.quick { 1 } else { 5 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::tests::parse;

    #[test]
    fn defaults_depend_on_quick_and_given_values_win() {
        let values = |line: &str| parse::<Options>(line).map(|options| (options.files(), options.reps()));
        assert_eq!(values("").unwrap(), (vec![10_000, 100_000, 1_000_000], 300));
        assert_eq!(values("--quick").unwrap(), (vec![10_000], 20));
        assert_eq!(values("--quick --reps 7 --files 2_000,5000").unwrap(), (vec![2_000, 5_000], 7));
        assert!(values("--files 9").unwrap_err().contains("1000 or more"));
    }
}
