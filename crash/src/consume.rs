//! Kills consumers of RabbitMQ, and the broker, at random moments. Every message that the broker has confirmed must be
//! done or be a dead letter, and no other message may be.
//!
//! Run as `cargo xtask crash consume`. Owns the sequence of rounds and the output. `round` runs one round, `audit`
//! checks its results.

mod audit;
mod broker_client;
mod consumers;
mod hazards;
mod messages;
mod plan;
mod results;
mod round;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Instant;

use gristmill_broker::{Broker, Error as BrokerError};
use gristmill_check::Rng;

use self::broker_client::BrokerClient;
use self::consumers::ConsumerSpawner;
use self::hazards::Hazards;
use self::plan::Plan;
use self::round::ConsumeRound;
use crate::args::ProgramSettings;
use crate::cli_process::{self, Cli};
use crate::disk::Strace;
use crate::{Error, ErrorContext};

const MAX_SHOWN: usize = 12;
/// Rounds with violations after which the run stops.
const MAX_BAD_ROUNDS: usize = 3;

/// Rounds with one broker, which keeps the queues of all of them.
const ROUNDS_PER_BROKER: u32 = 25;

/// A run of at least this many rounds must have had every kind of event.
const MIN_CONCLUSIVE_ROUNDS: u32 = 15;

/// Returns whether no violation was found.
pub(crate) fn run(settings: &ProgramSettings) -> Result<bool, Error> {
    let began = Instant::now();
    let folder = tempfile::Builder::new().prefix("gristmill-crash-").tempdir();
    let mut folder = folder.context("cannot create a folder for the run")?;
    let readable = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(folder.path(), readable).context("cannot make the folder of the run readable")?;
    let seed = settings.seed.unwrap_or_else(gristmill_check::random_seed);
    println!("crash consume: {} rounds, seed {seed}", settings.rounds);
    let program = settings.program.clone().map_or_else(cli_process::default_program, Ok)?;
    let cli = Cli::new(&program, folder.path())?;
    let strace = Strace::detect().is_ok();
    if !strace {
        println!("strace cannot be used here: processes are killed by time only");
    }
    let mut rounds =
        ConsumeRounds { cli: &cli, folder: folder.path(), seed, strace, counters: Counters::default(), bad_rounds: 0 };
    rounds.run_all(settings)?;
    let passed = rounds.summarize(settings.rounds);
    println!("{:.1} s", began.elapsed().as_secs_f64());
    if settings.keep || !passed {
        folder.disable_cleanup(true);
        println!("the files of the run are kept in {}", folder.path().display());
    }
    println!("{}", if passed { "no violations found" } else { "VIOLATIONS FOUND" });
    Ok(passed)
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

struct ConsumeRounds<'a> {
    cli: &'a Cli,
    folder: &'a Path,
    seed: u64,
    strace: bool,
    counters: Counters,
    bad_rounds: usize,
}

impl ConsumeRounds<'_> {
    fn run_all(&mut self, settings: &ProgramSettings) -> Result<(), Error> {
        let mut broker = start()?;
        for number in 1..=settings.rounds {
            if number > 1 && number % ROUNDS_PER_BROKER == 1 {
                drop(broker);
                broker = start()?;
            }
            self.run_round(number, settings.keep, &mut broker)?;
            if self.bad_rounds >= MAX_BAD_ROUNDS {
                println!("{MAX_BAD_ROUNDS} rounds had violations: stopping");
                break;
            }
        }
        Ok(())
    }

    fn run_round(&mut self, number: u32, keep: bool, broker: &mut Broker) -> Result<(), Error> {
        // The choices of a round do not depend on those of other rounds.
        let mut rng = Rng::new(self.seed.wrapping_add(u64::from(number) * 1_000_003));
        let plan = Plan::new(number, self.strace, &mut rng);
        let folder = self.folder.join(format!("round{number}"));
        round::create_folder(self.cli, &folder)?;
        let queue = format!("round{number}");
        let args = plan.args(&queue, &folder);
        let broker_client = BrokerClient::open(&broker.uri(), &queue, plan.quorum, plan.max_length)?;
        let shown = plan.to_string();
        let hazards = Hazards::set_up(&plan, self.cli, &folder, broker)?;
        let uri = hazards.uri(broker);
        let spawner = ConsumerSpawner { cli: self.cli, folder: folder.clone(), uri, args, started: 0 };
        let mut round = ConsumeRound {
            plan,
            spawner,
            broker_client,
            rng,
            counters: &mut self.counters,
            violations: Vec::new(),
            events: Vec::new(),
            consumers: Vec::new(),
            ended: Vec::new(),
            cuts: 0,
            clean_stops: 0,
            hazards,
        };
        let began = Instant::now();
        round.run(broker)?;
        let ConsumeRound { broker_client, violations, events, hazards, .. } = round;
        hazards.end(broker, &folder, violations.is_empty())?;
        broker_client.close();
        let events = if events.is_empty() { "no kill".to_owned() } else { events.join("; ") };
        println!("round {number:3}: {shown}: {events} ({:.1} s)", began.elapsed().as_secs_f64());
        for violation in violations.iter().take(MAX_SHOWN) {
            println!("VIOLATION: seed {}, round {number}: {violation}", self.seed);
        }
        if violations.len() > MAX_SHOWN {
            println!("… and {} more", violations.len() - MAX_SHOWN);
        }
        if violations.is_empty() && !keep {
            return std::fs::remove_dir_all(folder).context("cannot remove the folder of a round");
        }
        if !violations.is_empty() {
            self.bad_rounds += 1;
            // The broker deletes the queues when it ends, so their state is saved now.
            let query = ["list_queues", "name", "type", "state", "messages", "messages_unacknowledged", "consumers"];
            let queues = broker.ctl(query).unwrap_or_else(|error| error.to_string());
            // The log is optional: the run continues without it.
            let _ = std::fs::copy(broker.folder().join("log/broker.log"), folder.join("broker.log"));
            let report = format!("{shown}: {events}\n{}\n\n{queues}", violations.join("\n"));
            std::fs::write(folder.join("violations"), report).context("cannot write the violations")?;
        }
        Ok(())
    }

    fn summarize(&self, rounds: u32) -> bool {
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
        let idle = rounds >= MIN_CONCLUSIVE_ROUNDS && self.bad_rounds == 0 && event_missing;
        if idle {
            println!(
                "VIOLATION: no consumer was killed while messages were left, or none was stopped, or no message was \
                 redelivered or dead-lettered: the run tested nothing"
            );
        }
        self.bad_rounds == 0 && !idle
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
