//! The options of a consumer as flags of the command line.

use clap::{Arg, ArgAction, ArgMatches, Command};

use super::super::{Origin, Raw};
use super::Declared;
use super::options::{ALL, ConsumerOption, Takes};

/// Position of the first option in the help.
const FIRST_POSITION: usize = 100;

/// The options of a consumer that were given on the command line.
#[derive(Debug)]
pub(crate) struct ConsumerFlags(pub(crate) Declared);

impl ConsumerOption {
    fn as_argument(&self) -> Arg {
        let arg = Arg::new(self.name).help(self.help).help_heading(self.heading);
        let arg = match self.flag.strip_prefix("--") {
            Some(flag) => arg.long(flag).aliases(self.former),
            None => arg,
        };
        match self.takes {
            Takes::Nothing => arg.action(ArgAction::SetTrue),
            Takes::Value(name) => arg.value_name(name),
            Takes::Number(name) => arg.value_name(name).allow_hyphen_values(true),
            Takes::Repeated(name) => arg.value_name(name).action(ArgAction::Append),
            Takes::Rest(name) => arg.value_name(name).action(ArgAction::Append).num_args(1..).allow_hyphen_values(true),
        }
    }

    fn given(&self, matches: &ArgMatches) -> Option<Raw> {
        match self.takes {
            Takes::Nothing => matches.get_flag(self.name).then(|| Raw::Bare("true".to_owned())),
            Takes::Value(_) | Takes::Number(_) => matches.get_one::<String>(self.name).map(Raw::from),
            Takes::Repeated(_) | Takes::Rest(_) => {
                matches.get_many::<String>(self.name).map(|items| Raw::Many(items.cloned().collect()))
            }
        }
    }
}

impl clap::FromArgMatches for ConsumerFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let given =
            |option: &&'static ConsumerOption| Some((option.name, (option.given(matches)?, Origin::Flag(option.flag))));
        Ok(ConsumerFlags(ALL.iter().filter_map(given).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl clap::Args for ConsumerFlags {
    fn augment_args(command: Command) -> Command {
        let (late, early): (Vec<&ConsumerOption>, Vec<_>) = ALL.iter().copied().partition(|option| option.is_late);
        // Other arguments of the command come first under the headings that they share.
        let ordered = (FIRST_POSITION..).zip(early.into_iter().chain(late));
        command.args(ordered.map(|(position, option)| option.as_argument().display_order(position)))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}
