//! Kills consumers of RabbitMQ, and the broker, at random moments. Every message that the broker has confirmed must be
//! done or be a dead letter, and no other message may be.
//!
//! Run as `cargo xtask crash consume`. Owns the brokers and the counts. `plan` chooses the events of a round, `round`
//! runs it, `audit` checks its results.

mod audit;
mod broker_client;
mod consumers;
mod hazards;
mod messages;
mod plan;
mod results;
mod round;

use std::path::Path;
use std::time::Instant;

use gristmill_broker::{Broker, Error as BrokerError};

use self::broker_client::BrokerClient;
use self::hazards::Hazards;
use self::plan::Plan;
use self::round::ConsumeRound;
use crate::args::ProgramArgs;
use crate::cli::Cli;
use crate::harness::{self, Round, Run, Workload};
use crate::{Error, ErrorContext};

/// Rounds with one broker, which keeps the queues of all of them.
const ROUNDS_PER_BROKER: u32 = 25;

/// A run of at least this many rounds must have had every kind of event.
const MIN_CONCLUSIVE_ROUNDS: u32 = 15;

/// Returns whether no violation was found.
pub(crate) fn run(args: &ProgramArgs) -> Result<bool, Error> {
    harness::run_commands("consume", args, |cli, strace| {
        Ok(Consume { cli, strace, broker: start()?, counters: Counters::default() })
    })
}

/// Counts of what happened, to detect a run that tested nothing.
#[derive(Debug, Default)]
struct Counters {
    /// Kills before the first message was done, between, and after the last.
    kills: [u32; 3],
    /// Kills at a system call, part of `kills`.
    at_calls: u32,
    brokers: u32,
    /// Consumers that stopped after SIGTERM.
    stopped: u32,
    /// Consumers that got SIGTERM before they consumed.
    stopped_early: u32,
    messages: u64,
    unconfirmed: u64,
    /// Redeliveries, as reported by consumers that were not killed.
    redelivered: u64,
    duplicates: u64,
    /// Duplicates in rounds without a kill, part of `duplicates`.
    clean_duplicates: u64,
    dead_letters: u64,
    early_drains: u32,
    /// Connection cuts, failed sinks, full disks, messages refused by a full queue.
    hazards: [u32; 4],
}

struct Consume {
    cli: Cli,
    strace: bool,
    broker: Broker,
    counters: Counters,
}

impl Workload for Consume {
    fn round(&mut self, run: &mut Run, round: &mut Round) -> Result<(), Error> {
        let number = round.number;
        if number > 1 && number % ROUNDS_PER_BROKER == 1 {
            self.broker = start()?;
        }
        let mut rng = run.rng_of(number);
        let plan = Plan::new(number, self.strace, &mut rng);
        round.title = plan.to_string();
        let folder = run.round_folder(number);
        self.cli.create_folder(&folder)?;
        self.cli.create_folder(&results::output_dir(&folder))?;
        let queue = format!("round{number}");
        let broker_client = BrokerClient::open(&self.broker.uri(), &queue, plan.quorum, plan.max_length)?;
        let hazards = Hazards::set_up(&plan, &self.cli, &folder, &self.broker)?;
        let began = Instant::now();
        let mut consuming = ConsumeRound {
            plan,
            cli: &self.cli,
            folder: folder.clone(),
            uri: hazards.uri(&self.broker),
            started: 0,
            broker_client,
            rng,
            counters: &mut self.counters,
            round,
            consumers: Vec::new(),
            ended: Vec::new(),
            cuts: 0,
            clean_stops: 0,
            hazards,
        };
        consuming.run(&mut self.broker)?;
        let ConsumeRound { broker_client, hazards, .. } = consuming;
        hazards.end(&self.broker, &folder, !round.has_violations())?;
        broker_client.close();
        round.event(format!("{:.1} s", began.elapsed().as_secs_f64()));
        if round.has_violations() {
            return self.keep_state(&folder, round);
        }
        match run.keep {
            true => Ok(()),
            false => std::fs::remove_dir_all(folder).context("cannot remove the folder of a round"),
        }
    }

    fn finish(self, run: &Run) -> Result<Vec<String>, Error> {
        let Counters { kills: [early, between, late], at_calls, brokers, stopped, stopped_early, .. } = &self.counters;
        println!(
            "{} kills: {early} before the first message was done, {between} between, {late} after the last; \
             {at_calls} of them at a system call; {brokers} kills of the broker; {stopped} consumers stopped by \
             SIGTERM, {stopped_early} before they consumed",
            early + between + late
        );
        let Counters {
            messages,
            unconfirmed,
            redelivered,
            duplicates,
            clean_duplicates,
            dead_letters,
            early_drains,
            ..
        } = &self.counters;
        println!(
            "{messages} messages, {unconfirmed} not confirmed; {redelivered} redelivered, {duplicates} done twice \
             ({clean_duplicates} in rounds without a kill), {dead_letters} dead letters; {early_drains} early drains"
        );
        let [cuts, sinks, disks, refusals] = self.counters.hazards;
        println!("{cuts} connection cuts, {sinks} failed sinks, {disks} full disks, {refusals} nacks by full queues");
        let event_missing = [*between, *stopped, *brokers].contains(&0) || *redelivered == 0 || *dead_letters == 0;
        let idle = run.rounds >= MIN_CONCLUSIVE_ROUNDS && run.bad_rounds == 0 && event_missing;
        let text = "no consumer was killed while messages were left, or none was stopped, or no message was \
                    redelivered or dead-lettered: the run tested nothing";
        Ok(if idle { vec![text.to_owned()] } else { Vec::new() })
    }
}

impl Consume {
    /// Keeps what the broker knows about a round with violations; it deletes the queues when it ends.
    fn keep_state(&self, folder: &Path, round: &Round) -> Result<(), Error> {
        let query = ["list_queues", "name", "type", "state", "messages", "messages_unacknowledged", "consumers"];
        let queues = self.broker.ctl(query).unwrap_or_else(|error| error.to_string());
        // The log is optional: the run continues without it.
        let _ = std::fs::copy(self.broker.folder().join("log/broker.log"), folder.join("broker.log"));
        let report = format!("{}\n{}\n\n{queues}", round.summary(), round.violations.join("\n"));
        std::fs::write(folder.join("violations"), report).context("cannot write the violations")
    }
}

/// Starts a broker. Without RabbitMQ the run is unsupported.
fn start() -> Result<Broker, Error> {
    Broker::start().map_err(|error| match error {
        BrokerError::Missing | BrokerError::NoToolsFolder | BrokerError::DownloadFailed(_) => {
            Error::Unsupported(error.to_string())
        }
        error => Error::System(error.to_string()),
    })
}
