//! Command-line options of `cargo xtask bench amqp`.

use std::{path::PathBuf, str::FromStr};

use super::environment::QueueKind;

pub(super) const HELP: &str = "\
Measure consumers of a RabbitMQ queue: gristmill and its peers at one broker, every result checked.

Usage: cargo xtask bench amqp [OPTIONS]

Options:
  --messages N     Messages in one run; a tenth of them with prefetch 1, and fewer for slow peers [default: 50000]
  --reps N         Repetitions, alternating [default: 5]
  --peers NAMES    Prefixes of peer names, separated by commas; `none` for no peer [default: all]
  --queues KINDS   Kinds of queues, separated by commas: classic, quorum [default: both]
  --prefetch NS    Prefetch counts from 1 to 1000, separated by commas [default: 1,80,500]
  --recovery       Also measure how long after a restart of the broker the next message is handled
  --only PARTS     Parts, separated by commas: rate (handlers that do nothing), work (handlers of 100 ms), recovery
                   [default: rate,work]
  --before FILE    Also measure the gristmill of an earlier build of gristmill-benches, alternating with this one
  --quick          Check that everything works: 2000 messages, one repetition, only installed peers
  -h, --help       Print help

The broker is started for the benchmark and stopped at its end. RabbitMQ is downloaded if it is missing, as for
the tests. Missing peers are installed, unless --quick or --peers is given: pika with pip into the folder for tools.

Examples:
  cargo xtask bench amqp
  cargo xtask bench amqp --peers lapin,amqprs --queues quorum --prefetch 500 --only rate --reps 9
  cargo xtask bench amqp --only recovery
";

/// Part of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Rate,
    Work,
    Recovery,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Options {
    pub(super) messages: u64,
    pub(super) reps: usize,
    /// Prefixes of peer names; None selects all peers.
    pub(super) peers: Option<Vec<String>>,
    pub(super) queues: Vec<QueueKind>,
    /// Sorted from small to large.
    pub(super) prefetches: Vec<u16>,
    pub(super) parts: Vec<Part>,
    /// With handlers of 100 ms.
    pub(super) messages_per_worker: u64,
    /// Earlier build of this program.
    pub(super) before: Option<PathBuf>,
}

impl Options {
    pub(super) fn includes_peer(&self, peer: &str) -> bool {
        let names = |names: &Vec<String>| names.iter().any(|name| peer.starts_with(name.as_str()));
        self.peers.as_ref().is_none_or(names)
    }

    pub(super) fn largest_prefetch(&self) -> u16 {
        self.prefetches.last().copied().unwrap_or_default()
    }
}

/// Parses the arguments. Returns None if help is requested.
pub(super) fn parse(args: &[String]) -> Result<Option<Options>, String> {
    let quick = args.iter().any(|arg| arg == "--quick");
    let mut options = Options {
        messages: if quick { 2_000 } else { 50_000 },
        reps: if quick { 1 } else { 5 },
        peers: None,
        queues: QueueKind::ALL.into(),
        prefetches: vec![1, 80, 500],
        parts: vec![Part::Rate, Part::Work],
        messages_per_worker: if quick { 10 } else { 50 },
        before: None,
    };
    let mut recovery = false;
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or_else(|| format!("{arg} needs a value; see --help"));
        match arg.as_str() {
            "-h" | "--help" => return Ok(None),
            "--quick" => {}
            "--recovery" => recovery = true,
            "--before" => options.before = Some(value()?.into()),
            "--messages" => {
                options.messages = number(arg, value()?, "100 or more", |messages| *messages >= 100)?;
            }
            "--reps" => options.reps = number(arg, value()?, "1 or more", |reps| *reps >= 1)?,
            "--peers" => options.peers = Some(value()?.split(',').map(str::to_owned).collect()),
            "--queues" => options.queues = value()?.split(',').map(kind).collect::<Result<_, _>>()?,
            "--only" => options.parts = value()?.split(',').map(part).collect::<Result<_, _>>()?,
            "--prefetch" => {
                let prefetch = |text| number(arg, text, "from 1 to 1000", |count| (1..=1000).contains(count));
                options.prefetches = value()?.split(',').map(prefetch).collect::<Result<_, _>>()?;
                options.prefetches.sort_unstable();
            }
            _ => return Err(format!("unknown option `{arg}`; see --help")),
        }
    }
    if recovery && !options.parts.contains(&Part::Recovery) {
        options.parts.push(Part::Recovery);
    }
    Ok(Some(options))
}

fn kind(arg: &str) -> Result<QueueKind, String> {
    let known = QueueKind::ALL.into_iter().find(|kind| kind.name() == arg);
    known.ok_or_else(|| format!("no kind of queue `{arg}`; expected: classic or quorum"))
}

fn part(arg: &str) -> Result<Part, String> {
    match arg {
        "rate" => Ok(Part::Rate),
        "work" => Ok(Part::Work),
        "recovery" => Ok(Part::Recovery),
        _ => Err(format!("no part `{arg}`; expected: rate, work or recovery")),
    }
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
        assert_eq!((all.messages, all.reps, all.prefetches.as_slice()), (50_000, 5, &[1, 80, 500][..]));
        assert_eq!((all.queues.as_slice(), all.parts.as_slice()), (&QueueKind::ALL[..], &[Part::Rate, Part::Work][..]));
        assert!(all.includes_peer("pika, each"));
        let quick = parsed("--messages 5_000 --quick --recovery").unwrap().unwrap();
        assert_eq!((quick.messages, quick.reps), (5_000, 1));
        assert_eq!(quick.parts, [Part::Rate, Part::Work, Part::Recovery]);
        let selected = parsed("--peers lapin,amqp-c --queues quorum --prefetch 500,80 --only recovery --recovery");
        let selected = selected.unwrap().unwrap();
        assert!(
            selected.includes_peer("lapin, each")
                && selected.includes_peer("amqp-consume")
                && !selected.includes_peer("amqprs, each")
        );
        assert_eq!(
            (selected.queues.as_slice(), selected.parts.as_slice()),
            (&[QueueKind::Quorum][..], &[Part::Recovery][..])
        );
        assert_eq!((selected.prefetches.as_slice(), selected.largest_prefetch()), (&[80, 500][..], 500));
        assert!(!parsed("--peers none").unwrap().unwrap().includes_peer("pika, each"));
        assert_eq!(parsed("--reps 2 --help"), Ok(None));
    }

    #[test]
    fn parse_errors_name_the_expected_values() {
        for (line, expected) in [
            ("--reps 0", "1 or more"),
            ("--messages 99", "100 or more"),
            ("--prefetch 80,0", "from 1 to 1000"),
            ("--queues stream", "classic or quorum"),
            ("--only speed", "rate, work or recovery"),
            ("--prefetch", "needs a value"),
            ("--fast", "--help"),
        ] {
            assert!(parsed(line).unwrap_err().contains(expected), "{line}");
        }
    }
}
