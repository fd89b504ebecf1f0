//! Command-line options of `cargo xtask bench dedup`.

use std::{path::PathBuf, str::FromStr};

use super::profile::Profile;

pub(super) const HELP: &str = "\
Finding duplicates: gristmill and its peers over the same trees, every answer checked.

Usage: cargo xtask bench dedup [OPTIONS]

Options:
  --only NAMES    profiles, with commas: small, big, photos, million; all without it
  --scale X       of the trees, from 0.001 on; 1 without it
  --seed N        of the trees; 1 without it
  --reps N        repetitions, in turns; 3 without it
  --peers NAMES   peers whose name begins so, with commas; all without it, none with `none`
  --cold          only with empty caches of the system (needs root)
  --warm          only with full ones
  --data DIR      where the trees are made and cache: 14 GB and a million files at scale 1, on the disk to be
                  measured; bench-data in the target folder without it
  --gristmill FILE   a program built already, instead of building it
  --before FILE   an earlier build of gristmill, measured in turns with this one
  --quick         a look whether all works: scale 0.02, once, warm, peers that are there
  -h, --help      this text

Peers that are not there are installed, unless --quick or --peers is given: fclones, yadf, czkawka_cli and b3sum
with cargo into the folder for tools, jdupes, rmlint and rdfind with apt-get.
";

/// Parsed options.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Options {
    pub(super) profiles: Vec<Profile>,
    pub(super) scale: f64,
    pub(super) seed: u64,
    pub(super) reps: usize,
    /// Prefixes of peer names; None selects all peers.
    pub(super) peers: Option<Vec<String>>,
    pub(super) warm: bool,
    pub(super) cold: bool,
    pub(super) data: Option<PathBuf>,
    pub(super) gristmill: Option<PathBuf>,
    pub(super) before: Option<PathBuf>,
}

/// Parses the arguments. Returns None if help is requested.
pub(super) fn parse(args: &[String]) -> Result<Option<Options>, String> {
    let quick = args.iter().any(|arg| arg == "--quick");
    let mut options = Options {
        profiles: Profile::ALL.to_vec(),
        scale: if quick { 0.02 } else { 1.0 },
        seed: 1,
        reps: if quick { 1 } else { 3 },
        peers: None,
        warm: true,
        cold: !quick,
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
            "--cold" => (options.warm, options.cold) = (false, true),
            "--warm" => (options.warm, options.cold) = (true, false),
            "--only" => options.profiles = value()?.split(',').map(profile).collect::<Result<_, _>>()?,
            "--peers" => options.peers = Some(value()?.split(',').map(str::to_owned).collect()),
            "--scale" => options.scale = number(arg, value()?, "from 0.001 on", |scale| *scale >= 0.001)?,
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

fn profile(name: &str) -> Result<Profile, String> {
    let known = Profile::ALL.into_iter().find(|profile| profile.name() == name);
    known.ok_or_else(|| format!("no profile `{name}`; there are small, big, photos and million"))
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
        assert_eq!((all.profiles.len(), all.scale, all.reps, all.warm, all.cold), (4, 1.0, 3, true, true));
        let quick = parsed("--reps 2 --quick --cold").unwrap().unwrap();
        assert_eq!((quick.scale, quick.reps, quick.warm, quick.cold), (0.02, 2, false, true));
        let some = parsed("--only big,small --peers fclones,yadf --data /d --seed 7").unwrap().unwrap();
        assert_eq!(some.profiles, [Profile::Big, Profile::Small]);
        assert_eq!(some.peers.unwrap(), ["fclones", "yadf"]);
        assert_eq!((some.data, some.seed), (Some("/d".into()), 7));
        assert_eq!(parsed("--reps 2 --help"), Ok(None));
    }

    #[test]
    fn lines_that_are_not_name_what_is() {
        for (line, told) in [
            ("--only large", "small, big"),
            ("--reps 0", "from 1 on"),
            ("--scale none", "from 0.001 on"),
            ("--scale", "wants a value"),
            ("--fast", "--help"),
        ] {
            assert!(parsed(line).unwrap_err().contains(told), "{line}");
        }
    }
}
