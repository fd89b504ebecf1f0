//! Options that several benchmarks have, and how their values are parsed.

use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, ValueEnum};

/// Options of the benchmarks that compare programs.
#[derive(Clone, Debug, Args)]
pub(crate) struct CompareOptions {
    /// Repetitions, alternating
    #[arg(long, value_name = "N", value_parser = at_least(1))]
    reps: Option<u64>,
    /// Prefixes of peer names, separated by commas; `none` for no peer [default: all]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    peers: Option<Vec<String>>,
    /// Also measure an earlier build, alternating with this one
    #[arg(long, value_name = "FILE")]
    pub(crate) before: Option<PathBuf>,
    /// Check that everything works: little data, one repetition, only installed peers
    #[arg(long)]
    pub(crate) quick: bool,
}

impl CompareOptions {
    /// Returns the number of repetitions: the given one, or 1 with `--quick`, or the default.
    pub(crate) fn reps(&self, default: usize) -> usize {
        self.reps.map_or(if self.quick { 1 } else { default }, |reps| reps as usize)
    }

    pub(crate) fn includes_peer(&self, peer: &str) -> bool {
        self.peers.is_none() || self.names_peer(peer)
    }

    pub(crate) fn names_peer(&self, peer: &str) -> bool {
        self.peers.as_ref().is_some_and(|names| names.iter().any(|name| peer.starts_with(name.as_str())))
    }
}

/// Options of the pool and jobs benchmarks.
#[derive(Clone, Debug, Args)]
pub(crate) struct TaskOptions {
    /// Repetitions of each candidate [default: 9 for pools, 3 for jobs]
    #[arg(long, value_name = "N", value_parser = at_least(1))]
    reps: Option<u64>,
    /// Tasks in one measurement, 4 or more [default: 500000 for pools, 10000 for jobs]
    #[arg(long, value_name = "N", value_parser = at_least(4))]
    tasks: Option<u64>,
    /// Measure only candidates whose name contains this text, for example under a profiler
    #[arg(long, value_name = "PART-OF-A-NAME", default_value = "", hide_default_value = true)]
    pub(crate) only: String,
    /// Number of producers in a single measurement
    #[arg(long, value_name = "N", default_value = "1", value_parser = at_least(1))]
    pub(crate) producers: u64,
    /// Folder for temporary databases, on the disk to be measured
    #[arg(long, value_name = "FOLDER", default_value_os_t = std::env::temp_dir())]
    pub(crate) dir: PathBuf,
    /// Finished tasks in the table before a single measurement
    #[arg(long, value_name = "N", default_value = "0", value_parser = at_least(0))]
    pub(crate) finished: u64,
}

impl TaskOptions {
    pub(crate) fn reps(&self, default: usize) -> usize {
        self.reps.map_or(default, |reps| reps as usize)
    }

    pub(crate) fn tasks(&self, default: u64) -> u64 {
        self.tasks.unwrap_or(default)
    }
}

/// Options of the pool and jobs benchmarks that compare candidates.
#[derive(Clone, Debug, Args)]
pub(crate) struct CompareTaskOptions {
    #[command(flatten)]
    pub(crate) common: TaskOptions,
    /// Also measure the gristmill of an earlier build of gristmill-benches, alternating with this one
    #[arg(long, value_name = "FILE")]
    pub(crate) before: Option<PathBuf>,
}

/// Options for generated data.
#[derive(Clone, Debug, Args)]
pub(crate) struct DataOptions {
    /// Seed of the data
    #[arg(long, value_name = "N", default_value = "1", value_parser = at_least(0))]
    pub(crate) seed: u64,
    /// Folder for the generated data, on the disk to be measured [default: bench-data in the target folder]
    #[arg(long, value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,
    /// Measure this program instead of building one
    #[arg(long, value_name = "FILE")]
    pub(crate) gristmill: Option<PathBuf>,
}

/// Returns the name of a value on the command line, which tables also show.
pub(crate) fn value_name(value: &impl ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

/// Returns a parser of whole numbers from `min` on, with underscores between digits.
pub(crate) fn at_least(min: u64) -> impl Fn(&str) -> Result<u64, String> + Clone {
    move |text| number(text, &format!("{min} or more"), |number| *number >= min)
}

/// Parses a number that `fits`; `expected` describes such numbers.
pub(crate) fn number<T: FromStr>(text: &str, expected: &str, fits: impl Fn(&T) -> bool) -> Result<T, String> {
    text.replace('_', "").parse().ok().filter(fits).ok_or_else(|| format!("expected a number, {expected}"))
}

/// Parses a scale of generated data.
pub(crate) fn scale(text: &str) -> Result<f64, String> {
    number(text, "0.001 or more", |scale| *scale >= 0.001)
}

#[cfg(test)]
pub(crate) mod tests {
    use clap::Parser;

    use super::*;

    /// Parses the options of a benchmark.
    pub(crate) fn parse<O: Args>(line: &str) -> Result<O, String> {
        #[derive(Parser)]
        struct Line<O: Args> {
            #[command(flatten)]
            options: O,
        }
        let args = std::iter::once("bench").chain(line.split_whitespace());
        Line::try_parse_from(args).map(|line| line.options).map_err(|error| error.to_string())
    }

    #[test]
    fn defaults_depend_on_quick_and_given_values_win() {
        let reps = |line| parse::<CompareOptions>(line).unwrap().reps(5);
        assert_eq!((reps(""), reps("--quick"), reps("--quick --reps 1_000")), (5, 1, 1_000));
        let all = parse::<CompareOptions>("").unwrap();
        assert!(all.includes_peer("duckdb") && !all.names_peer("duckdb"));
        let some = parse::<CompareOptions>("--peers duck,sqlite-utils").unwrap();
        assert!(some.names_peer("duckdb") && some.includes_peer("sqlite-utils") && !some.includes_peer("sqlite3"));
        assert!(!parse::<CompareOptions>("--peers none").unwrap().includes_peer("duckdb"));
        let data = parse::<DataOptions>("--data /d --seed 7").unwrap();
        assert_eq!((data.data, data.seed), (Some("/d".into()), 7));
    }

    #[test]
    fn errors_name_the_expected_values() {
        for (line, expected) in [("--reps 0", "1 or more"), ("--reps", "required"), ("--fast", "--fast")] {
            assert!(parse::<CompareOptions>(line).unwrap_err().contains(expected), "{line}");
        }
        assert_eq!(scale("none"), Err("expected a number, 0.001 or more".to_owned()));
    }
}
