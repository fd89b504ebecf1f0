//! One round: runs consumers, injects faults, and checks the results.

use std::mem;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use gristmill_broker::{Broker, Proxy};
use gristmill_check::Rng;
use rustix::process::Signal;

use super::Counters;
use super::audit::{Audit, audit};
use super::broker_client::{BROKER_TIMEOUT, BrokerClient};
use super::consumers::Consumer;
use super::hazards::{self, Hazards};
use super::messages::{Published, TestMessage, one_of_each, random_messages, slow_messages};
use super::plan::{Event, Plan};
use super::results::{Results, output_dir, progress};
use crate::cli::Cli;
use crate::disk::SmallDisk;
use crate::faults::Fault;
use crate::harness::Round;
use crate::process::{Process, ended_by, pause};
use crate::{Error, ErrorContext};

/// Checks before a missing message is a violation: one that waits for a retry is in no queue for a moment.
const MAX_CHECKS: u32 = 10;

/// Time after which a new queue is on disk.
const QUEUE_SETTLE_TIME: Duration = Duration::from_millis(1_500);

/// Time to wait until a consumer has started.
const START_TIMEOUT: Duration = Duration::from_secs(5);

pub(crate) struct ConsumeRound<'a> {
    pub(crate) plan: Plan,
    pub(crate) cli: &'a Cli,
    pub(crate) folder: PathBuf,
    /// URI that consumers connect to.
    pub(crate) uri: String,
    /// Number of consumers that were started; names the files with their output.
    pub(crate) started: u32,
    pub(crate) broker_client: BrokerClient,
    pub(crate) rng: Rng,
    pub(crate) counters: &'a mut Counters,
    pub(crate) round: &'a mut Round,
    pub(crate) consumers: Vec<Consumer>,
    pub(crate) ended: Vec<Consumer>,
    /// Number of kills and of other events that may have lost acknowledgements.
    pub(crate) cuts: u32,
    /// Number of consumers that stopped after SIGTERM.
    pub(crate) clean_stops: u32,
    pub(crate) hazards: Hazards,
}

impl ConsumeRound<'_> {
    pub(crate) fn run(&mut self, broker: &mut Broker) -> Result<(), Error> {
        let mut sent = random_messages(self.plan.action, self.plan.count, self.plan.bad_percent, &mut self.rng);
        if self.plan.has_slow_handlers() {
            sent.splice(0..0, slow_messages(2, &mut self.rng));
        }
        let warm_up = if self.plan.kills_broker() { self.warm_up()? } else { Vec::new() };
        let all = warm_up.iter().chain(&sent).map(|message| (message.id.clone(), message.clone())).collect();
        let mut rest = sent.split_off(sent.len() * usize::try_from(self.plan.early_percent).unwrap_or(0) / 100);
        let mut confirmed = self.broker_client.publish(&sent);
        if self.plan.max_length.is_some() {
            // Messages that the full queue refused are published later.
            sent.retain(|message| !confirmed.contains(&message.id));
            rest.splice(0..0, sent);
        }
        for _ in 0..self.plan.consumers {
            let consumer = self.start_consumer()?;
            self.consumers.push(consumer);
        }
        let publishing = self.broker_client.publish_in_background(rest, self.plan.publish_time, &mut self.rng);
        for (wait, event) in mem::take(&mut self.plan.events) {
            self.wait(wait)?;
            self.apply_event(event, broker)?;
        }
        while !publishing.is_finished() {
            self.wait(Duration::from_millis(5))?;
        }
        confirmed.extend(self.broker_client.wait_for(publishing)?);
        self.counters.hazards[3] += self.broker_client.nacked();
        confirmed.extend(warm_up.into_iter().map(|message| message.id));
        let wait = self.rng.millis(0..600);
        self.wait(wait)?;
        for mut consumer in mem::take(&mut self.consumers) {
            self.stop(&mut consumer)?;
            self.ended.push(consumer);
        }
        self.check_results(&Published { messages: all, confirmed })?;
        for consumer in &self.ended {
            self.round.violations.extend(consumer.output_violations(broker.password()));
        }
        Ok(())
    }

    /// Makes consumers declare all queues, and waits until these are on disk: a quorum queue that was declared less
    /// than 0.5 s before its broker is killed can stay without a leader forever (RabbitMQ 3.10), and its messages are
    /// stuck.
    fn warm_up(&mut self) -> Result<Vec<TestMessage>, Error> {
        let samples = one_of_each(self.plan.action, &mut self.rng);
        if self.broker_client.publish(&samples).len() < samples.len() {
            return Err(Error::System("the broker did not confirm all messages, without a fault".to_owned()));
        }
        self.drain()?;
        pause(QUEUE_SETTLE_TIME);
        Ok(samples)
    }

    /// Starts a consumer, which may be killed at a system call.
    fn start_consumer(&mut self) -> Result<Consumer, Error> {
        let is_killed = self.plan.kills_at_calls > 0 && self.rng.percent(60);
        self.plan.kills_at_calls -= u32::from(is_killed);
        let fault = is_killed.then(|| self.plan.kill_at_call(&mut self.rng));
        self.spawn(&[], fault)
    }

    fn spawn(&mut self, extra: &[&str], fault: Option<Fault>) -> Result<Consumer, Error> {
        self.started += 1;
        let args = self.plan.args(&self.broker_client.queue, extra, &self.folder);
        let mut command = self.cli.command(&output_dir(&self.folder).join("own.db"), &args, fault);
        command.env("GRISTMILL_AMQP_URI", &self.uri);
        let process = Process::start(command, &self.folder, &format!("consumer{}", self.started))?;
        Ok(Consumer { process, fault })
    }

    /// Waits, and replaces consumers that end meanwhile.
    fn wait(&mut self, time: Duration) -> Result<(), Error> {
        let start = Instant::now();
        loop {
            for index in 0..self.consumers.len() {
                let consumer = &mut self.consumers[index];
                let Some(status) = consumer.process.try_wait()? else { continue };
                match consumer.fault {
                    Some(fault) if ended_by(status, Signal::KILL) => {
                        self.was_killed(&fault.to_string());
                        self.counters.at_calls += 1;
                    }
                    // A consumer that cannot connect at first reports that and exits.
                    _ if self.hazards.unreachable && !consumer.has_started() => {}
                    // So does a consumer that finds a full disk when it creates its database.
                    _ if self.plan.has_full_disk() && consumer.failed_on_full_disk() => {}
                    _ => {
                        let (name, line) = (&consumer.process.name, consumer.process.last_line());
                        self.round.violation(format!("{name} ended unexpectedly: {status}: {line}"));
                    }
                }
                self.replace(index)?;
            }
            if start.elapsed() >= time {
                return Ok(());
            }
            pause(Duration::from_millis(2));
            if self.round.has_violations() {
                return Ok(());
            }
        }
    }

    /// Waits until a consumer has started, and up to 250 ms longer.
    fn wait_until_started(&mut self, index: usize) -> Result<(), Error> {
        let start = Instant::now();
        while !self.consumers[index].has_started() && start.elapsed() < START_TIMEOUT && !self.round.has_violations() {
            self.wait(Duration::from_millis(5))?;
        }
        let wait = self.rng.millis(0..250);
        self.wait(wait)
    }

    fn replace(&mut self, index: usize) -> Result<(), Error> {
        let next = self.start_consumer()?;
        self.ended.push(mem::replace(&mut self.consumers[index], next));
        Ok(())
    }

    fn apply_event(&mut self, event: Event, broker: &mut Broker) -> Result<(), Error> {
        let index = self.rng.usize(..self.consumers.len());
        // Without this, most events would happen before consumers have started.
        if self.rng.percent(60) {
            self.wait_until_started(index)?;
        }
        match event {
            Event::Kill => {
                let process = &mut self.consumers[index].process;
                let fault = Fault::KillAfter(process.started_at.elapsed());
                process.kill()?;
                self.was_killed(&fault.to_string());
            }
            Event::Terminate => {
                // Removed from the list first, so that its exit is not a violation.
                let next = self.start_consumer()?;
                let mut consumer = mem::replace(&mut self.consumers[index], next);
                self.stop(&mut consumer)?;
                self.ended.push(consumer);
                return Ok(());
            }
            Event::KillBroker(down) => {
                broker.kill();
                self.cuts += 1;
                self.counters.brokers += 1;
                self.round.event(format!("broker killed for {} ms", down.as_millis()));
                self.hazards.unreachable = true;
                self.wait(down)?;
                broker.restart().context("cannot restart the broker")?;
                // Replaces consumers that tried to connect meanwhile.
                self.wait(Duration::ZERO)?;
                self.hazards.unreachable = false;
                return Ok(());
            }
            Event::CutConnections(cuts) => {
                self.hazards.unreachable = true;
                for _ in 0..cuts {
                    self.hazards.proxy.iter().for_each(Proxy::cut);
                    let outage = self.rng.millis(0..30);
                    self.wait(outage)?;
                    self.hazards.proxy.iter().for_each(Proxy::restore);
                    let wait = self.rng.millis(0..500);
                    self.wait(wait)?;
                }
                // A consumer may notice the last cut only now.
                self.wait(Duration::from_secs(1))?;
                self.hazards.unreachable = false;
                self.cuts += cuts;
                self.counters.hazards[0] += cuts;
                self.round.event(format!("{cuts} connection cuts"));
                return Ok(());
            }
            Event::FailSink(time) => {
                let Some(failing) = hazards::fail_sink(self.plan.action, &self.folder)? else {
                    return Ok(());
                };
                self.wait(time)?;
                failing.end()?;
                self.counters.hazards[1] += 1;
                self.round.event(format!("the sink failed for {} ms", time.as_millis()));
                return Ok(());
            }
            Event::FillDisk(time) => {
                self.hazards.disk.iter().try_for_each(SmallDisk::fill)?;
                self.wait(time)?;
                self.hazards.disk.iter().try_for_each(SmallDisk::free)?;
                self.counters.hazards[2] += 1;
                self.round.event(format!("the disk was full for {} ms", time.as_millis()));
                return Ok(());
            }
        }
        if self.rng.percent(30) {
            let wait = self.rng.millis(0..300);
            pause(wait);
        }
        self.replace(index)
    }

    fn was_killed(&mut self, fault: &str) {
        self.cuts += 1;
        let scratch = self.folder.join("scratch.db");
        let done = progress(self.plan.action, self.cli, &self.folder, &scratch);
        // Number of good messages. Some bad ones of `exec` run more than once.
        let good = self.plan.count * (100 - self.plan.bad_percent as u64) / 100;
        let stage = match done {
            Some(0) => 0,
            Some(done) if done >= good => 2,
            _ => 1,
        };
        self.counters.kills[stage] += 1;
        let done = done.map_or("some".to_owned(), |done| done.to_string());
        self.round.event(format!("{fault}, {done} done"));
    }

    /// Sends SIGTERM to a consumer and checks its exit.
    fn stop(&mut self, consumer: &mut Consumer) -> Result<(), Error> {
        let process = &mut consumer.process;
        process.terminate()?;
        let Some(status) = process.wait(BROKER_TIMEOUT)? else {
            process.kill()?;
            self.round.violation(format!("{} did not stop after SIGTERM: {}", process.name, process.last_line()));
            return Ok(());
        };
        // The broker requeued running messages, so their outcome could not be acknowledged.
        self.cuts += u32::from(consumer.lost_channel_while_stopping());
        if let Some(fault) = consumer.fault
            && ended_by(status, Signal::KILL)
        {
            self.counters.at_calls += 1;
            self.was_killed(&format!("{fault} while it stopped"));
            return Ok(());
        }
        match (status.code(), consumer.summary()) {
            (Some(0), Some(summary)) => {
                self.clean_stops += 1;
                self.counters.stopped += 1;
                self.counters.redelivered += summary["redelivered"].as_u64().unwrap_or(0);
            }
            // SIGTERM came before it handled signals, or while it connected.
            (Some(130), _) | (None, _)
                if !consumer.has_started() && (status.code().is_some() || ended_by(status, Signal::TERM)) =>
            {
                self.counters.stopped_early += 1;
            }
            _ => {
                let (name, line) = (&consumer.process.name, consumer.process.last_line());
                self.round.violation(format!("{name} failed after SIGTERM: {status}: {line}"));
            }
        }
        Ok(())
    }

    /// Drains the queues without faults and checks all results.
    fn check_results(&mut self, published: &Published) -> Result<(), Error> {
        let (action, folder) = (self.plan.action, self.folder.clone());
        // A quorum queue delays acknowledgements when many come at once, and forgets them when their channel is closed.
        // A consumer that stops cleanly cannot know that, and some of its messages are redelivered.
        let cuts = self.cuts + if self.plan.quorum { self.clean_stops } else { 0 };
        let mut dead_letters = Vec::new();
        let mut found = Audit::default();
        for check in 0..MAX_CHECKS {
            self.drain()?;
            let left = self.broker_client.waiting()?;
            dead_letters.extend(self.broker_client.take_dead_letters()?);
            let results = Results::read(action, &folder, &published.messages)?;
            found = audit(action, published, &results, &dead_letters, cuts);
            if left > 0 {
                found.missing.push(format!("{left} messages are left in the queues"));
            }
            if found.missing.is_empty() || self.round.has_violations() {
                self.counters.early_drains += check;
                break;
            }
            if check == 0 {
                let missing = &found.missing;
                self.round.event(format!("drained too early ({}; {} such messages)", missing[0], missing.len()));
            }
            pause(Duration::from_millis(500));
        }
        self.counters.messages += published.messages.len() as u64;
        self.counters.unconfirmed += (published.messages.len() - published.confirmed.len()) as u64;
        self.counters.duplicates += u64::from(found.duplicates);
        self.counters.clean_duplicates += if self.cuts == 0 { u64::from(found.duplicates) } else { 0 };
        self.counters.dead_letters += dead_letters.len() as u64;
        self.round.violations.extend(found.missing);
        self.round.violations.extend(found.violations);
        Ok(())
    }

    fn drain(&mut self) -> Result<(), Error> {
        let mut consumer = self.spawn(&["--drain", "--for", "80s"], None)?;
        let status = consumer.process.wait(BROKER_TIMEOUT)?;
        match (status.and_then(|status| status.code()), consumer.summary()) {
            (Some(0), Some(summary)) => {
                self.counters.redelivered += summary["redelivered"].as_u64().unwrap_or(0);
            }
            _ => {
                consumer.process.kill()?;
                let line = consumer.process.last_line();
                self.round.violation(format!("--drain failed without a fault: {status:?}: {line}"));
            }
        }
        self.ended.push(consumer);
        Ok(())
    }
}
