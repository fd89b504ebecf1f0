//! Command-line options of `cargo xtask bench dedup`.

use std::{path::PathBuf, str::FromStr};

use super::profile::Profile;

pub(super) const HELP: &str = "\
Measure duplicate finders: gristmill and its peers over the same trees, every result checked.

Usage: cargo xtask bench dedup [OPTIONS]

Options:
  --only NAMES       Profiles, separated by commas: small, big, photos, million [default: all]
  --scale X          Scale of the trees, 0.001 or more [default: 1]
  --seed N           Seed of the trees [default: 1]
  --reps N           Repetitions, alternating [default: 3]
  --peers NAMES      Prefixes of peer names, separated by commas; `none` for no peer [default: all]
  --cold             Measure only with cold file caches (needs root)
  --warm             Measure only with warm file caches
  --data DIR         Folder for the generated trees, on the disk to be measured: 14 GB and a million files at
                     scale 1 [default: bench-data in the target folder]
  --gristmill FILE   Measure this program instead of building one
  --before FILE      Also measure an earlier build of gristmill, alternating with this one
  --quick            Check that everything works: scale 0.02, one repetition, warm, only installed peers
  -h, --help         Print help

Missing peers are installed, unless --quick or --peers is given: fclones, yadf, czkawka_cli and b3sum with cargo
into the folder for tools, jdupes, rmlint and rdfind with apt-get.
";

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
        let mut value = || args.next().ok_or_else(|| format!("{arg} needs a value; see --help"));
        match arg.as_str() {
            "-h" | "--help" => return Ok(None),
            "--quick" => {}
            "--cold" => (options.warm, options.cold) = (false, true),
            "--warm" => (options.warm, options.cold) = (true, false),
            "--only" => options.profiles = value()?.split(',').map(profile).collect::<Result<_, _>>()?,
            "--peers" => options.peers = Some(value()?.split(',').map(str::to_owned).collect()),
            "--scale" => options.scale = number(arg, value()?, "0.001 or more", |scale| *scale >= 0.001)?,
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

fn profile(name: &str) -> Result<Profile, String> {
    let known = Profile::ALL.into_iter().find(|profile| profile.name() == name);
    known.ok_or_else(|| format!("no profile `{name}`; expected: small, big, photos or million"))
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
        assert_eq!((all.profiles.len(), all.scale, all.reps, all.warm, all.cold), (4, 1.0, 3, true, true));
        let quick = parsed("--reps 2 --quick --cold").unwrap().unwrap();
        assert_eq!((quick.scale, quick.reps, quick.warm, quick.cold), (0.02, 2, false, true));
        let selected = parsed("--only big,small --peers fclones,yadf --data /d --seed 7").unwrap().unwrap();
        assert_eq!(selected.profiles, [Profile::Big, Profile::Small]);
        assert_eq!(selected.peers.unwrap(), ["fclones", "yadf"]);
        assert_eq!((selected.data, selected.seed), (Some("/d".into()), 7));
        assert_eq!(parsed("--reps 2 --help"), Ok(None));
    }

    #[test]
    fn parse_errors_name_the_expected_values() {
        for (line, expected) in [
            ("--only large", "small, big"),
            ("--reps 0", "1 or more"),
            ("--scale none", "0.001 or more"),
            ("--scale", "needs a value"),
            ("--fast", "--help"),
        ] {
            assert!(parsed(line).unwrap_err().contains(expected), "{line}");
        }
    }
}
