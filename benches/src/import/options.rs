//! Command-line options of `cargo xtask bench import`.

use clap::Args;

use crate::options::{CompareOptions, DataOptions, scale};

const NOTES: &str = "\
The files have 1.5 GB at scale 1, and as much again is needed while a database is written. With --quick the scale
is 0.01. Slow peers skip large folders and are repeated less, unless they are named with --peers.

Missing peers are installed, unless --quick or --peers is given: DuckDB, sqlite-utils and orjson with pip into the
folder for tools, sqlite3 with apt-get.

Examples:
  cargo xtask bench import
  cargo xtask bench import --scale 0.3 --peers duckdb --reps 9";

#[derive(Clone, Debug, Args)]
#[command(after_help = NOTES)]
pub(crate) struct Options {
    /// Scales of the folders, separated by commas, 0.001 or more [default: 0.1,0.3,1]
    #[arg(long, value_name = "XS", value_delimiter = ',', value_parser = scale)]
    scale: Option<Vec<f64>>,
    #[command(flatten)]
    pub(super) data: DataOptions,
    #[command(flatten)]
    pub(super) compare: CompareOptions,
}

impl Options {
    pub(super) fn scales(&self) -> Vec<f64> {
        let default = || if self.compare.quick { vec![0.01] } else { vec![0.1, 0.3, 1.0] };
        self.scale.clone().unwrap_or_else(default)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::tests::parse;

    #[test]
    fn scales_depend_on_quick_and_given_ones_win() {
        let scales = |line: &str| parse::<Options>(line).map(|options| options.scales());
        assert_eq!(scales("").unwrap(), [0.1, 0.3, 1.0]);
        assert_eq!(scales("--quick").unwrap(), [0.01]);
        assert_eq!(scales("--quick --scale 0.3,2").unwrap(), [0.3, 2.0]);
        assert!(scales("--scale 1,none").unwrap_err().contains("0.001 or more"));
    }
}
