//! Command-line options of `cargo xtask bench amqp`.

use clap::{Args, ValueEnum};

use super::environment::QueueKind;
use crate::options::{CompareOptions, at_least, number};

const NOTES: &str = "\
--before takes an earlier build of gristmill-benches. With --quick a run has 2000 messages.

The broker is started for the benchmark and stopped at its end. RabbitMQ is downloaded if it is missing, as for
the tests. Missing peers are installed, unless --quick or --peers is given: pika with pip into the folder for tools.

Examples:
  cargo xtask bench amqp
  cargo xtask bench amqp --peers lapin,amqprs --queues quorum --prefetch 500 --only rate --reps 9
  cargo xtask bench amqp --only recovery";

/// Part of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Part {
    /// Handlers that do nothing
    Rate,
    /// Handlers of 100 ms
    Work,
    /// Time from a restart of the broker to the next handled message
    Recovery,
}

#[derive(Clone, Debug, Args)]
#[command(after_help = NOTES)]
pub(crate) struct Options {
    /// Messages in one run; a tenth of them with prefetch 1, and fewer for slow peers [default: 50000]
    #[arg(long, value_name = "N", value_parser = at_least(100))]
    messages: Option<u64>,
    /// Kinds of queues, separated by commas
    #[arg(long, value_name = "KINDS", value_delimiter = ',', value_enum,
        default_values_t = QueueKind::value_variants().to_vec())]
    pub(super) queues: Vec<QueueKind>,
    /// Prefetch counts from 1 to 1000, separated by commas
    #[arg(long, value_name = "NS", value_delimiter = ',', value_parser = prefetch, default_values_t = [1, 80, 500])]
    prefetch: Vec<u16>,
    /// Also measure how long after a restart of the broker the next message is handled
    #[arg(long)]
    recovery: bool,
    /// Parts, separated by commas
    #[arg(long, value_name = "PARTS", value_delimiter = ',', value_enum, default_values_t = [Part::Rate, Part::Work])]
    only: Vec<Part>,
    #[command(flatten)]
    pub(super) compare: CompareOptions,
}

impl Options {
    pub(super) fn messages(&self) -> u64 {
        self.messages.unwrap_or(if self.compare.quick { 2_000 } else { 50_000 })
    }

    /// Returns the number of messages for each worker with handlers of 100 ms.
    pub(super) fn messages_per_worker(&self) -> u64 {
        if self.compare.quick { 10 } else { 50 }
    }

    pub(super) fn reps(&self) -> usize {
        self.compare.reps(5)
    }

    pub(super) fn measures(&self, part: Part) -> bool {
        self.only.contains(&part) || (part == Part::Recovery && self.recovery)
    }

    /// Returns the prefetch counts from small to large.
    pub(super) fn prefetches(&self) -> Vec<u16> {
        let mut prefetches = self.prefetch.clone();
        prefetches.sort_unstable();
        prefetches
    }
}

fn prefetch(text: &str) -> Result<u16, String> {
    number(text, "from 1 to 1000", |count| (1..=1000).contains(count))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::tests::parse;

    #[test]
    fn defaults_depend_on_quick_and_given_values_win() {
        let all: Options = parse("").unwrap();
        assert_eq!((all.messages(), all.reps(), all.prefetches().as_slice()), (50_000, 5, &[1, 80, 500][..]));
        assert_eq!(all.queues, QueueKind::value_variants());
        assert!(all.measures(Part::Rate) && all.measures(Part::Work) && !all.measures(Part::Recovery));
        let quick: Options = parse("--messages 5_000 --quick --recovery").unwrap();
        assert_eq!((quick.messages(), quick.reps()), (5_000, 1));
        assert!(quick.measures(Part::Rate) && quick.measures(Part::Recovery));
        let some: Options = parse("--queues quorum --prefetch 500,80 --only recovery --recovery").unwrap();
        assert_eq!((some.queues.as_slice(), some.prefetches().as_slice()), (&[QueueKind::Quorum][..], &[80, 500][..]));
        assert!(some.measures(Part::Recovery) && !some.measures(Part::Rate));
    }

    #[test]
    fn errors_name_the_expected_values() {
        for (line, expected) in [
            ("--messages 99", "100 or more"),
            ("--prefetch 80,0", "from 1 to 1000"),
            ("--queues stream", "classic"),
            ("--only speed", "recovery"),
        ] {
            assert!(parse::<Options>(line).unwrap_err().contains(expected), "{line}");
        }
    }
}
