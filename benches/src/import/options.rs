//! Command-line options of `cargo xtask bench import`.

use std::{path::PathBuf, str::FromStr};

pub(super) const HELP: &str = "\
JSONL into SQLite: gristmill and its peers over the same folders, every database checked.

Usage: cargo xtask bench import [OPTIONS]

Options:
  --scale XS      of the folders, with commas, from 0.001 on: 1 is 1.5 GB; 0.1,0.3,1 without it
  --seed N        of the folders; 1 without it
  --reps N        repetitions, in turns; 5 without it
  --peers NAMES   peers whose name begins so, with commas; all without it, none with `none`. The slow ones are left out
                  of large folders, and repeated less, unless they are named here
  --data DIR      where the folders are made and cache: 2.1 GB, and as much again while a database is written, on the
                  disk to be measured; bench-data in the target folder without it
  --gristmill FILE   a program built already, instead of building it
  --before FILE   an earlier build of gristmill, measured in turns with this one
  --quick         a look whether all works: scale 0.01, once, peers that are there
  -h, --help      this text

Peers that are not there are installed, unless --quick or --peers is given: DuckDB, sqlite-utils and orjson with pip into
the folder for tools, sqlite3 with apt-get.
";

/// Parsed options.
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
        let mut value = || args.next().ok_or_else(|| format!("{arg} wants a value; --help shows which"));
        match arg.as_str() {
            "-h" | "--help" => return Ok(None),
            "--quick" => {}
            "--scale" => {
                let scale = |one| number(arg, one, "from 0.001 on", |scale: &f64| *scale >= 0.001);
                options.scales = value()?.split(',').map(scale).collect::<Result<_, _>>()?;
            }
            "--peers" => options.peers = Some(value()?.split(',').map(str::to_owned).collect()),
            "--seed" => options.seed = number(arg, value()?, "from 0 on", |_| true)?,
            "--reps" => options.reps = number(arg, value()?, "from 1 on", |reps| *reps >= 1)?,
            "--data" => options.data = Some(value()?.into()),
            "--gristmill" => options.gristmill = Some(value()?.into()),
            "--before" => options.before = Some(value()?.into()),
            _ => return Err(format!("`{arg}` is not understood; --help shows what is")),
        }
    }
    Ok(Some(options))
}

fn number<T: FromStr>(flag: &str, arg: &str, expected: &str, fits: impl Fn(&T) -> bool) -> Result<T, String> {
    let number = arg.replace('_', "").parse().ok().filter(fits);
    number.ok_or_else(|| format!("{flag} wants a number {expected}, not `{arg}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Option<Options>, String> {
        parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn lines_that_are_understood() {
        let all = parsed("").unwrap().unwrap();
        assert_eq!((all.scales.as_slice(), all.reps), (&[0.1, 0.3, 1.0][..], 5));
        assert!(all.includes_peer("duckdb") && !all.names_peer("duckdb"));
        let quick = parsed("--reps 2 --quick").unwrap().unwrap();
        assert_eq!((quick.scales.as_slice(), quick.reps), (&[0.01][..], 2));
        let some = parsed("--scale 0.3 --peers duck,sqlite-utils --data /d --seed 7").unwrap().unwrap();
        assert!(some.names_peer("duckdb") && !some.includes_peer("sqlite3"));
        assert_eq!((some.scales, some.data, some.seed), (vec![0.3], Some("/d".into()), 7));
        assert!(!parsed("--peers none").unwrap().unwrap().includes_peer("duckdb"));
        assert_eq!(parsed("--reps 2 --help"), Ok(None));
    }

    #[test]
    fn lines_that_are_not_name_what_is() {
        for (line, told) in [
            ("--reps 0", "from 1 on"),
            ("--scale 1,none", "from 0.001 on"),
            ("--scale", "wants a value"),
            ("--fast", "--help"),
        ] {
            assert!(parsed(line).unwrap_err().contains(told), "{line}");
        }
    }
}
