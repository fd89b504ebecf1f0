//! Consumers of RabbitMQ killed at random instants, and the broker too: what the broker has confirmed is done or is a dead
//! letter, and nothing else is.
//!
//! Run as `cargo xtask crash consume`. Owns the rounds and what is printed. What happens in one, `game` knows; what must be
//! true in the end, `audit`.

mod audit;
mod books;
mod game;
mod hands;
mod hazards;
mod mail;
mod plan;
mod post;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Instant;

use gristmill_broker::{Broker, Error};

use self::game::Game;
use self::hands::Yard;
use self::hazards::Hazards;
use self::plan::Plan;
use self::post::Post;
use crate::args::ProgramSettings;
use crate::chance::Chance;
use crate::disk::Strace;
use crate::mill::{self, Mill};
use crate::{OrTrouble, Trouble};

/// So many findings of a round are shown, and after so many bad rounds no more are played.
const SHOWN: usize = 12;
const ENOUGH: usize = 3;

/// So many rounds have one broker: the queues of a round stay with it.
const ROUNDS: u32 = 25;

/// From so many rounds on, everything that can happen has.
const TELLING: u32 = 15;

/// Says whether all was well.
pub(crate) fn run(settings: &ProgramSettings) -> Result<bool, Trouble> {
    let began = Instant::now();
    let folder = tempfile::Builder::new().prefix("gristmill-crash-").tempdir();
    let mut folder = folder.or_trouble("cannot make a folder for the run")?;
    let everybody = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(folder.path(), everybody).or_trouble("cannot open the folder of the run")?;
    let seed = settings.seed.unwrap_or_else(Chance::seed);
    println!("crash consume: {} rounds, seed {seed}", settings.rounds);
    let program = settings.program.clone().map_or_else(mill::beside_us, Ok)?;
    let mill = Mill::new(&program, folder.path())?;
    let strace = Strace::find().is_ok();
    if !strace {
        println!("strace cannot be used here: all kills are by the clock");
    }
    let mut rounds =
        Rounds { mill: &mill, folder: folder.path(), seed, strace, tally: Tally::default(), bad: 0 };
    rounds.play(settings)?;
    let well = rounds.verdict(settings.rounds);
    println!("{:.1} s", began.elapsed().as_secs_f64());
    if settings.keep || !well {
        folder.disable_cleanup(true);
        println!("the files of the run are kept in {}", folder.path().display());
    }
    println!("{}", if well { "all is well" } else { "NOT WELL" });
    Ok(well)
}

/// What happened, so that a run in which nothing did does not look like one in which all was well.
#[derive(Debug, Default)]
struct Tally {
    /// Killed before anything was done; when some was; when all was.
    kills: [u32; 3],
    /// Of these, those at a call.
    at_calls: u32,
    brokers: u32,
    /// Told to end, and ended; told before they had begun.
    stopped: u32,
    stopped_early: u32,
    messages: u64,
    unconfirmed: u64,
    /// As consumers say who were not killed.
    redelivered: u64,
    twice: u64,
    /// Of these, those in rounds in which nobody was killed.
    twice_gently: u64,
    dead: u64,
    early_drains: u32,
    /// Connections that were cut, sinks that failed, disks that were full, queues that refused a message.
    hazards: [u32; 4],
}

struct Rounds<'a> {
    mill: &'a Mill,
    folder: &'a Path,
    seed: u64,
    strace: bool,
    tally: Tally,
    /// Rounds in which something was found.
    bad: usize,
}

impl Rounds<'_> {
    fn play(&mut self, settings: &ProgramSettings) -> Result<(), Trouble> {
        let mut broker = start()?;
        for round in 1..=settings.rounds {
            if round > 1 && round % ROUNDS == 1 {
                drop(broker);
                broker = start()?;
            }
            self.round(round, settings.keep, &mut broker)?;
            if self.bad >= ENOUGH {
                println!("enough was found: no more rounds");
                break;
            }
        }
        Ok(())
    }

    fn round(&mut self, round: u32, keep: bool, broker: &mut Broker) -> Result<(), Trouble> {
        // A round's choices are its own, whatever was drawn in others.
        let mut chance = Chance::new(self.seed.wrapping_add(u64::from(round) * 1_000_003));
        let plan = Plan::new(round, self.strace, &mut chance);
        let folder = self.folder.join(format!("round{round}"));
        game::folder(self.mill, &folder)?;
        let queue = format!("round{round}");
        let words = plan.words(&queue, &folder);
        let post = Post::open(&broker.uri(), &queue, plan.quorum, plan.bound)?;
        let shown = plan.to_string();
        let hazards = Hazards::set_up(&plan, self.mill, &folder, broker)?;
        let uri = hazards.uri(broker);
        let yard = Yard { mill: self.mill, folder: folder.clone(), uri, words, started: 0 };
        let mut game = Game {
            plan,
            yard,
            post,
            chance,
            tally: &mut self.tally,
            findings: Vec::new(),
            told: Vec::new(),
            hands: Vec::new(),
            gone: Vec::new(),
            cuts: 0,
            stops: 0,
            hazards,
        };
        let began = Instant::now();
        game.play(broker)?;
        let Game { post, findings, told, hazards, .. } = game;
        hazards.end(broker, &folder, findings.is_empty())?;
        post.close();
        let told = if told.is_empty() { "nobody killed".to_owned() } else { told.join("; ") };
        println!("round {round:3}: {shown}: {told} ({:.1} s)", began.elapsed().as_secs_f64());
        for finding in findings.iter().take(SHOWN) {
            println!("FOUND: seed {}, round {round}: {finding}", self.seed);
        }
        if findings.len() > SHOWN {
            println!("… and {} more", findings.len() - SHOWN);
        }
        if findings.is_empty() && !keep {
            return std::fs::remove_dir_all(folder).or_trouble("cannot remove a folder");
        }
        if !findings.is_empty() {
            self.bad += 1;
            // What the broker has to say of it; it takes the queues along when it ends.
            let asked =
                ["list_queues", "name", "type", "state", "messages", "messages_unacknowledged", "consumers"];
            let queues = broker.ctl(asked).unwrap_or_else(|fault| fault.to_string());
            // Without it, there is only less to read.
            let _ = std::fs::copy(broker.folder().join("log/broker.log"), folder.join("broker.log"));
            let told = format!("{shown}: {told}\n{}\n\n{queues}", findings.join("\n"));
            std::fs::write(folder.join("findings"), told).or_trouble("cannot write what was found")?;
        }
        Ok(())
    }

    fn verdict(&self, rounds: u32) -> bool {
        let Tally { kills: [early, between, late], at_calls, brokers, stopped, stopped_early, .. } =
            &self.tally;
        println!(
            "{} kills: {early} before anything was done, {between} when some was, {late} when all was; \
             {at_calls} of them at a call; {brokers} of the broker; {stopped} told to end, {stopped_early} before \
             they had begun",
            early + between + late
        );
        let Tally { messages, unconfirmed, redelivered, twice, twice_gently, dead, early_drains, .. } =
            &self.tally;
        println!(
            "{messages} messages, {unconfirmed} not confirmed; {redelivered} delivered again, {twice} done twice \
             ({twice_gently} where nobody was killed), {dead} dead letters; {early_drains} drains that ended too early"
        );
        let [cuts, sinks, disks, refusals] = self.tally.hazards;
        println!(
            "{cuts} cuts of connections, {sinks} sinks that failed for a time, {disks} full disks; full queues refused \
             messages {refusals} times"
        );
        let nothing = [*between, *stopped, *brokers].contains(&0) || *redelivered == 0 || *dead == 0;
        let idle = rounds >= TELLING && self.bad == 0 && nothing;
        if idle {
            println!(
                "FOUND: nobody was killed in between, or told to end, or no message came again or was given up: \
                 the run proves nothing"
            );
        }
        self.bad == 0 && !idle
    }
}

/// Where there is no RabbitMQ, nothing can be said.
fn start() -> Result<Broker, Trouble> {
    Broker::start().map_err(|fault| match fault {
        Error::Missing | Error::NoToolsFolder | Error::DownloadFailed(_) => {
            Trouble::NotHere(fault.to_string())
        }
        fault => Trouble::System(fault.to_string()),
    })
}
