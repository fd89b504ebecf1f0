//! Command-line options of `cargo xtask bench import`.

use std::{path::PathBuf, str::FromStr};

pub(super) const HELP: &str = "\
Measure imports of JSONL into SQLite: gristmill and its peers over the same folders, every database checked.

Usage: cargo xtask bench import [OPTIONS]

Options:
  --scale XS         Scales of the folders, separated by commas, 0.001 or more: 1 is 1.5 GB [default: 0.1,0.3,1]
  --seed N           Seed of the folders [default: 1]
  --reps N           Repetitions, alternating [default: 5]
  --peers NAMES      Prefixes of peer names, separated by commas; `none` for no peer [default: all]. Slow peers skip
                     large folders and are repeated less, unless they are named here
  --data DIR         Folder for the generated files, on the disk to be measured: 2.1 GB, and as much again while a
                     database is written [default: bench-data in the target folder]
  --gristmill FILE   Measure this program instead of building one
  --before FILE      Also measure an earlier build of gristmill, alternating with this one
  --quick            Check that everything works: scale 0.01, one repetition, only installed peers
  -h, --help         Print help

Missing peers are installed, unless --quick or --peers is given: DuckDB, sqlite-utils and orjson with pip into the
folder for tools, sqlite3 with apt-get.
";

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Options {
    pub(super) scales: Vec<f64>,
    pub(super) seed: u64,
    pub(super) reps: usize,
    /// Prefixes of peer names; None selects all peers.
    pub(super) peers: Option<Vec<String>>,
    pub(super) data: Option<PathBuf>,
    pub(super) gristmill: Option<PathBuf>,
    pub(super) before: Option<PathBuf>,
}

impl Options {
    pub(super) fn includes_peer(&self, peer: &str) -> bool {
        self.peers.is_none() || self.names_peer(peer)
    }

    pub(super) fn names_peer(&self, peer: &str) -> bool {
        self.peers.as_ref().is_some_and(|names| names.iter().any(|name| peer.starts_with(name.as_str())))
    }
}

/// Parses the arguments. Returns None if help is requested.
pub(super) fn parse(args: &[String]) -> Result<Option<Options>, String> {
    let quick = args.iter().any(|arg| arg == "--quick");
    let mut options = Options {
        scales: if quick { vec![0.01] } else { vec![0.1, 0.3, 1.0] },
        seed: 1,
        reps: if quick { 1 } else { 5 },
        peers: None,
        data: None,
        gristmill: None,
        before: None,
    };
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or_else(|| format!("{arg} needs a value; see --help"));
        match arg.as_str() {
            "-h" | "--help" => return Ok(None),
            "--quick" => {}
            "--scale" => {
                let scale = |text| number(arg, text, "0.001 or more", |scale: &f64| *scale >= 0.001);
                options.scales = value()?.split(',').map(scale).collect::<Result<_, _>>()?;
            }
            "--peers" => options.peers = Some(value()?.split(',').map(str::to_owned).collect()),
            "--seed" => options.seed = number(arg, value()?, "0 or more", |_| true)?,
            "--reps" => options.reps = number(arg, value()?, "1 or more", |reps| *reps >= 1)?,
            "--data" => options.data = Some(value()?.into()),
            "--gristmill" => options.gristmill = Some(value()?.into()),
            "--before" => options.before = Some(value()?.into()),
            _ => return Err(format!("unknown option `{arg}`; see --help")),
        }
    }
    Ok(Some(options))
}

fn number<T: FromStr>(flag: &str, arg: &str, expected: &str, fits: impl Fn(&T) -> bool) -> Result<T, String> {
    let number = arg.replace('_', "").parse().ok().filter(fits);
    number.ok_or_else(|| format!("{flag} needs a number, {expected}, not `{arg}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Option<Options>, String> {
        parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn parse_accepts_valid_options_and_applies_defaults() {
        let all = parsed("").unwrap().unwrap();
        assert_eq!((all.scales.as_slice(), all.reps), (&[0.1, 0.3, 1.0][..], 5));
        assert!(all.includes_peer("duckdb") && !all.names_peer("duckdb"));
        let quick = parsed("--reps 2 --quick").unwrap().unwrap();
        assert_eq!((quick.scales.as_slice(), quick.reps), (&[0.01][..], 2));
        let selected = parsed("--scale 0.3 --peers duck,sqlite-utils --data /d --seed 7").unwrap().unwrap();
        assert!(selected.names_peer("duckdb") && !selected.includes_peer("sqlite3"));
        assert_eq!((selected.scales, selected.data, selected.seed), (vec![0.3], Some("/d".into()), 7));
        assert!(!parsed("--peers none").unwrap().unwrap().includes_peer("duckdb"));
        assert_eq!(parsed("--reps 2 --help"), Ok(None));
    }

    #[test]
    fn parse_errors_name_the_expected_values() {
        for (line, expected) in [
            ("--reps 0", "1 or more"),
            ("--scale 1,none", "0.001 or more"),
            ("--scale", "needs a value"),
            ("--fast", "--help"),
        ] {
            assert!(parsed(line).unwrap_err().contains(expected), "{line}");
        }
    }
}
