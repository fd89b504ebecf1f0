//! Command-line options of `cargo xtask bench amqp`.

use std::{path::PathBuf, str::FromStr};

use super::environment::QueueKind;

pub(super) const HELP: &str = "\
Consumers of a RabbitMQ queue: gristmill and its peers at one broker, every answer checked.

Usage: cargo xtask bench amqp [OPTIONS]

Options:
  --messages N     in one run; 50000 without it. A tenth of them with prefetch 1, and fewer for the slow
  --reps N         repetitions, in turns; 5 without it
  --peers NAMES    peers whose name begins so, with commas; all without it, none with `none`
  --queues KINDS   classic, quorum or both with a comma; both without it
  --prefetch NS    how many messages are sent ahead, with commas, from 1 to 1000; 1,80,500 without it
  --recovery       also: how long after a broker's return the next message is handled
  --only PARTS     with commas: rate (handlers that do nothing), work (handlers of 100 ms), recovery;
                   rate,work without it
  --before FILE    an earlier build of gristmill-benches, whose gristmill is measured in turns with this one
  --quick          a look whether all works: 2000 messages, once, peers that are there
  -h, --help       this text

The broker is started for this and ended with it. RabbitMQ is got if it is not there, as for the tests. Peers that are not
there are installed, unless --quick or --peers is given: pika with pip into the folder for tools.

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

/// Parsed options.
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
    /// Number of messages per worker with handlers of 100 ms.
    pub(super) each: u64,
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
        each: if quick { 10 } else { 50 },
        before: None,
    };
    let mut recovery = false;
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or_else(|| format!("{arg} wants a value; --help shows which"));
        match arg.as_str() {
            "-h" | "--help" => return Ok(None),
            "--quick" => {}
            "--recovery" => recovery = true,
            "--before" => options.before = Some(value()?.into()),
            "--messages" => {
                options.messages = number(arg, value()?, "from 100 on", |messages| *messages >= 100)?;
            }
            "--reps" => options.reps = number(arg, value()?, "from 1 on", |reps| *reps >= 1)?,
            "--peers" => options.peers = Some(value()?.split(',').map(str::to_owned).collect()),
            "--queues" => options.queues = value()?.split(',').map(kind).collect::<Result<_, _>>()?,
            "--only" => options.parts = value()?.split(',').map(part).collect::<Result<_, _>>()?,
            "--prefetch" => {
                let one = |one| number(arg, one, "from 1 to 1000", |ahead| (1..=1000).contains(ahead));
                options.prefetches = value()?.split(',').map(one).collect::<Result<_, _>>()?;
                options.prefetches.sort_unstable();
            }
            _ => return Err(format!("`{arg}` is not understood; --help shows what is")),
        }
    }
    if recovery && !options.parts.contains(&Part::Recovery) {
        options.parts.push(Part::Recovery);
    }
    Ok(Some(options))
}

fn kind(arg: &str) -> Result<QueueKind, String> {
    let known = QueueKind::ALL.into_iter().find(|kind| kind.name() == arg);
    known.ok_or_else(|| format!("no kind of queue `{arg}`; there are classic and quorum"))
}

fn part(arg: &str) -> Result<Part, String> {
    match arg {
        "rate" => Ok(Part::Rate),
        "work" => Ok(Part::Work),
        "recovery" => Ok(Part::Recovery),
        _ => Err(format!("no part `{arg}`; there are rate, work and recovery")),
    }
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
        assert_eq!((all.messages, all.reps, all.prefetches.as_slice()), (50_000, 5, &[1, 80, 500][..]));
        assert_eq!(
            (all.queues.as_slice(), all.parts.as_slice()),
            (&QueueKind::ALL[..], &[Part::Rate, Part::Work][..])
        );
        assert!(all.includes_peer("pika, each"));
        let quick = parsed("--messages 5_000 --quick --recovery").unwrap().unwrap();
        assert_eq!((quick.messages, quick.reps), (5_000, 1));
        assert_eq!(quick.parts, [Part::Rate, Part::Work, Part::Recovery]);
        let some =
            parsed("--peers lapin,amqp-c --queues quorum --prefetch 500,80 --only recovery --recovery");
        let some = some.unwrap().unwrap();
        assert!(
            some.includes_peer("lapin, each")
                && some.includes_peer("amqp-consume")
                && !some.includes_peer("amqprs, each")
        );
        assert_eq!(
            (some.queues.as_slice(), some.parts.as_slice()),
            (&[QueueKind::Quorum][..], &[Part::Recovery][..])
        );
        assert_eq!((some.prefetches.as_slice(), some.largest_prefetch()), (&[80, 500][..], 500));
        assert!(!parsed("--peers none").unwrap().unwrap().includes_peer("pika, each"));
        assert_eq!(parsed("--reps 2 --help"), Ok(None));
    }

    #[test]
    fn lines_that_are_not_name_what_is() {
        for (line, told) in [
            ("--reps 0", "from 1 on"),
            ("--messages 99", "from 100 on"),
            ("--prefetch 80,0", "from 1 to 1000"),
            ("--queues stream", "classic and quorum"),
            ("--only speed", "rate, work and recovery"),
            ("--prefetch", "wants a value"),
            ("--fast", "--help"),
        ] {
            assert!(parsed(line).unwrap_err().contains(told), "{line}");
        }
    }
}
