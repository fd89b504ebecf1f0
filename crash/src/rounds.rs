//! The rounds: what is done to the crew, and what must happen next.
//!
//! Owns the choice of victims and moments, and the measuring of recovery. The repository forbids assertions on
//! time in tests; this is not one of them but a command of its own, and "recovery within two lease lengths" is
//! what it was asked to show.

use std::path::Path;
use std::time::{Duration, Instant};

use gristmill_store::Store;

use crate::args::{Fault, Settings};
use crate::chance::Chance;
use crate::crew::{Crew, Quitter, Role, pause};
use crate::customer::new_task;
use crate::disk::{self, SmallDisk};
use crate::errand::{Errand, Order};
use crate::ledger::Log;
use crate::site::Site;
use crate::witness::{self, Recovery, Witness};
use crate::{OrTrouble, Trouble};

/// What a busy machine may need to start a process and give it its turn, on top of two leases.
const ALLOWANCE: Duration = Duration::from_secs(1);

/// Workers at a time.
const WORKERS: usize = 2;

/// Every so many rounds a poison pill.
const POISON_EVERY: u32 = 12;

pub(crate) struct Rounds<'a> {
    settings: &'a Settings,
    site: &'a Site,
    chance: Chance,
    pub(crate) crew: Crew,
    pub(crate) findings: Vec<String>,
    pub(crate) recoveries: Vec<Recovery>,
    pub(crate) planted: u32,
    /// When somebody was stopped, and a lease longer: it may have held what everybody waits for.
    pub(crate) stops: Vec<(f64, f64)>,
}

impl<'a> Rounds<'a> {
    pub(crate) fn new(settings: &'a Settings, site: &'a Site, crew: Crew, seed: u64) -> Self {
        let chance = Chance::new(seed);
        Rounds {
            settings,
            site,
            chance,
            crew,
            findings: Vec::new(),
            recoveries: Vec::new(),
            planted: 0,
            stops: Vec::new(),
        }
    }

    /// All rounds in which processes are killed or stopped.
    pub(crate) fn of_kills(&mut self) -> Result<(), Trouble> {
        let can_stop = self.settings.fault == Fault::None;
        for round in 1..=self.settings.rounds {
            self.crew.fill(Role::Worker, WORKERS)?;
            self.crew.fill(Role::Customer, 1)?;
            if can_stop && round % POISON_EVERY == POISON_EVERY / 2 {
                self.plant_poison(round)?;
            }
            match self.chance.within(0..10) {
                0..5 => self.kill(round, WORKERS)?,
                5..8 => self.kill(round, 1)?,
                _ if can_stop => self.stop_one(round)?,
                _ => self.kill(round, WORKERS)?,
            }
            self.see_who_quit();
        }
        Ok(())
    }

    /// Kills workers, and half of the time the customer with them; then waits until others have their tasks.
    fn kill(&mut self, round: u32, count: usize) -> Result<(), Trouble> {
        // Often while they are starting, opening, claiming; else in the midst of work.
        let delay =
            if self.chance.percent(20) { self.chance.millis(0..30) } else { self.chance.millis(30..400) };
        pause(delay);
        let with_customer = self.chance.percent(50);
        let killed_at = witness::now();
        let dead = self.crew.kill(Role::Worker, count)?;
        if with_customer {
            self.crew.kill(Role::Customer, 1)?;
        }
        let new = self.crew.fill(Role::Worker, WORKERS)?;
        self.crew.wait_for_one(&new, self.settings.lease() * 20)?;
        let recovery = self.recovered(&dead, killed_at)?;
        let what = match count {
            1 => "one worker",
            _ => "all workers",
        };
        let customer = if with_customer { " and the customer" } else { "" };
        let after = match recovery {
            Some(Recovery { orphans, first, last }) => format!(
                "{orphans} orphans; first taken over after {:.2} leases, last free after {:.2}",
                self.in_leases(first),
                self.in_leases(last)
            ),
            None => "no orphans".to_owned(),
        };
        println!("round {round:3}: killed {what}{customer} after {:3} ms: {after}", delay.as_millis());
        Ok(())
    }

    /// Waits until nobody dead holds a task any more, and measures how long that took.
    fn recovered(&mut self, dead: &[String], killed_at: f64) -> Result<Option<Recovery>, Trouble> {
        let start = Instant::now();
        let witness = Witness::open(&self.site.database())?;
        while witness.held_by(dead)? > 0 {
            if start.elapsed() > self.settings.lease() * 20 {
                self.findings
                    .push(format!("tasks of {dead:?} are still theirs, 20 leases after their death"));
                return Ok(None);
            }
            pause(Duration::from_millis(5));
            // Who took a poison pill has to be replaced meanwhile.
            self.crew.fill(Role::Worker, WORKERS)?;
        }
        let recovery = witness.recovery(dead, killed_at)?;
        if let Some(recovery) = recovery {
            self.recoveries.push(recovery);
            let limit = self.settings.lease() * 2 + ALLOWANCE;
            // With calls that fail, workers wait now and then before they try again.
            if self.settings.fault == Fault::None && recovery.first.max(recovery.last) > limit {
                self.findings.push(format!("recovery from the death of {dead:?} took {:?}", recovery.last));
            }
        }
        Ok(recovery)
    }

    /// Stops a worker until its leases have run out, so that others have its tasks when it goes on.
    fn stop_one(&mut self, round: u32) -> Result<(), Trouble> {
        pause(self.chance.millis(50..400));
        let lease = self.settings.lease_ms;
        let time = self.chance.millis(lease * 13 / 10..lease * 2);
        let Some(name) = self.crew.stop_one(Role::Worker)? else { return Ok(()) };
        let from = witness::now();
        pause(time);
        self.crew.wake(&name)?;
        self.stops.push((from, witness::now() + self.settings.lease().as_secs_f64()));
        println!("round {round:3}: stopped a worker for {:.2} leases", self.in_leases(time));
        // Long enough for what it held to be told, and refused.
        pause(self.settings.lease() / 2);
        Ok(())
    }

    /// A task that kills whoever runs it. The referee is a customer too: this one must be there in the end.
    fn plant_poison(&mut self, round: u32) -> Result<(), Trouble> {
        let key = format!("poison-{round}");
        let order = Order { key: key.clone(), millis: 0, padding: String::new() };
        let store = Store::open(self.site.database()).or_trouble("cannot enqueue a poison pill")?;
        let id = store
            .tasks()
            .enqueue(new_task(Errand::Poison, &order))
            .or_trouble("cannot enqueue a poison pill")?
            .id;
        let line = format!("{id} {} {key}", Errand::Poison.name());
        let noted = Log::open(&self.site.acks()).and_then(|log| log.line(&line));
        noted.or_trouble("cannot write down a poison pill")?;
        self.planted += 1;
        Ok(())
    }

    /// All rounds in which the disk is full for a while.
    pub(crate) fn of_full_disks(&mut self, disk: &SmallDisk) -> Result<(), Trouble> {
        for round in 1..=self.settings.rounds {
            self.crew.fill(Role::Worker, WORKERS)?;
            self.crew.fill(Role::Customer, 1)?;
            pause(self.chance.millis(100..500));
            self.full_disk(round, disk)?;
            self.see_who_quit();
        }
        Ok(())
    }

    fn full_disk(&mut self, round: u32, disk: &SmallDisk) -> Result<(), Trouble> {
        let refused = lines(&self.site.refusals());
        disk.fill()?;
        let full =
            self.within("the disk never was full", |rounds| Ok(lines(&rounds.site.refusals()) > refused))?;
        let time = self.chance.millis(0..self.settings.lease_ms * 3);
        pause(time);
        let killed = if self.chance.percent(50) { self.crew.kill(Role::Worker, 1)? } else { Vec::new() };
        let survivors = self.crew.names(Role::Worker);
        // Its successor meets a disk that is full when it opens the database.
        self.crew.fill(Role::Worker, WORKERS)?;
        pause(self.chance.millis(0..100));
        let refusals = lines(&self.site.refusals()) - refused;
        disk.free()?;
        if !full {
            return Ok(());
        }
        // Without a new process: those that met the full disk must go on.
        let (acks, done) = (lines(&self.site.acks()), self.finished()?);
        let start = Instant::now();
        let goes_on = self.within("nobody went on when the disk had room again", |rounds| {
            Ok(lines(&rounds.site.acks()) > acks && rounds.finished()? > done)
        })?;
        let left = self.crew.names(Role::Worker);
        if survivors.iter().any(|name| !left.contains(name)) {
            self.findings.push(format!("of the workers {survivors:?} only {left:?} outlived a full disk"));
        }
        println!(
            "round {round:3}: full for {} ms, {refusals} writes refused{}; {} after {} ms",
            time.as_millis(),
            if killed.is_empty() { "" } else { ", a worker killed meanwhile" },
            if goes_on { "work went on" } else { "STUCK" },
            start.elapsed().as_millis(),
        );
        Ok(())
    }

    fn finished(&self) -> Result<u64, Trouble> {
        Witness::open(&self.site.database())?.count(&["completed", "failed"])
    }

    /// Waits for something that must happen; a finding when it does not.
    fn within(
        &mut self,
        otherwise: &str,
        happened: impl Fn(&Self) -> Result<bool, Trouble>,
    ) -> Result<bool, Trouble> {
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(20) {
            if happened(self)? {
                return Ok(true);
            }
            pause(Duration::from_millis(10));
        }
        self.findings.push(otherwise.to_owned());
        Ok(false)
    }

    /// Lets clean workers finish all there is.
    pub(crate) fn drain(&mut self) -> Result<(), Trouble> {
        self.crew.mend_disk();
        self.crew.dismiss(Role::Customer)?;
        if self.settings.fault == Fault::Eio {
            self.crew.dismiss(Role::Worker)?;
        }
        self.see_who_quit();
        let mut left = u64::MAX;
        let mut progress = Instant::now();
        loop {
            let new = self.crew.fill(Role::Worker, WORKERS)?;
            self.crew.wait_for_one(&new, Duration::from_secs(10))?;
            let now = Witness::open(&self.site.database())?.count(&["pending", "scheduled", "running"])?;
            if now == 0 {
                break;
            }
            if now < left {
                (left, progress) = (now, Instant::now());
            }
            // Three lives of a poison pill take some four leases, without visible progress.
            if progress.elapsed() > self.settings.lease() * 20 {
                self.findings.push(format!("{now} tasks are left, and nothing happens any more"));
                break;
            }
            pause(Duration::from_millis(20));
        }
        self.crew.dismiss(Role::Worker)?;
        self.see_who_quit();
        Ok(())
    }

    /// A worker whose store fails for a while goes on.
    fn see_who_quit(&mut self) {
        for quitter in self.crew.take_quitters() {
            if !self.is_excused(&quitter) {
                self.findings.push(format!("{} ended by itself: {}", quitter.name, quitter.last_words));
            }
        }
    }

    /// It may give up on opening a bad disk; and when a read failed, which SQLite takes for damage
    /// (SQLITE_IOERR_CORRUPTFS becomes SQLITE_CORRUPT): who comes next must find the file sound.
    fn is_excused(&self, quitter: &Quitter) -> bool {
        match self.settings.fault {
            Fault::None => false,
            _ if quitter.last_words.contains("cannot open the store") => true,
            Fault::Enospc => false,
            Fault::Eio => {
                quitter.last_words.contains("is damaged") && disk::a_read_failed(self.site, &quitter.name)
            }
        }
    }

    pub(crate) fn in_leases(&self, time: Duration) -> f64 {
        time.as_secs_f64() / self.settings.lease().as_secs_f64()
    }
}

/// How many lines a log has; none when it is not there yet.
fn lines(path: &Path) -> usize {
    std::fs::read(path).map_or(0, |bytes| bytes.iter().filter(|byte| **byte == b'\n').count())
}
