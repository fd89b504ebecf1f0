//! One round: consumers at work, what happens to them, and the look at what is left.

use std::mem;
use std::path::Path;
use std::time::{Duration, Instant};

use gristmill_broker::Broker;
use rustix::process::Signal;

use super::Tally;
use super::audit::{Audit, audit};
use super::books::{Books, disk, progress};
use super::hands::{Hand, Yard, ended_by};
use super::hazards;
use super::hazards::Hazards;
use super::mail::{Mail, Parcel, parcels, samples, slow_ones};
use super::plan::{Event, Plan};
use super::post::{PATIENCE, Post};
use crate::chance::Chance;
use crate::crew::pause;
use crate::{OrTrouble, Trouble};

/// How often is looked again for what is missing: what waits for another attempt is, for a moment, in no queue.
const LOOKS: u32 = 10;

/// After which time a queue is on disk.
const SETTLED: Duration = Duration::from_millis(1_500);

/// How long is waited for somebody to be at work.
const BEGIN: Duration = Duration::from_secs(5);

pub(crate) struct Game<'a> {
    pub(crate) plan: Plan,
    pub(crate) yard: Yard<'a>,
    pub(crate) post: Post,
    pub(crate) chance: Chance,
    pub(crate) tally: &'a mut Tally,
    pub(crate) findings: Vec<String>,
    /// What happened, in words.
    pub(crate) told: Vec<String>,
    pub(crate) hands: Vec<Hand>,
    pub(crate) gone: Vec<Hand>,
    /// How often something was killed, or acknowledgements were lost in another way.
    pub(crate) cuts: u32,
    /// How often a consumer ended as it was told to.
    pub(crate) stops: u32,
    pub(crate) hazards: Hazards,
}

impl Game<'_> {
    pub(crate) fn play(&mut self, broker: &mut Broker) -> Result<(), Trouble> {
        let mut sent = parcels(self.plan.action, self.plan.count, self.plan.bad, &mut self.chance);
        if self.plan.is_slow() {
            sent.splice(0..0, slow_ones(2, &mut self.chance));
        }
        let warm_up = if self.plan.has_broker() { self.warm_up()? } else { Vec::new() };
        let all = warm_up.iter().chain(&sent).map(|parcel| (parcel.id.clone(), parcel.clone())).collect();
        let mut rest = sent.split_off(sent.len() * usize::try_from(self.plan.before).unwrap_or(0) / 100);
        let mut confirmed = self.post.publish(&sent);
        if self.plan.bound.is_some() {
            // The others come when there is room.
            sent.retain(|parcel| !confirmed.contains(&parcel.id));
            rest.splice(0..0, sent);
        }
        for _ in 0..self.plan.hands {
            let hand = self.hire()?;
            self.hands.push(hand);
        }
        let publishing = self.post.publish_meanwhile(rest, self.plan.spread, &mut self.chance);
        for (wait, event) in mem::take(&mut self.plan.events) {
            self.pass(wait)?;
            self.happen(event, broker)?;
        }
        while !publishing.is_finished() {
            self.pass(Duration::from_millis(5))?;
        }
        confirmed.extend(self.post.wait_for(publishing)?);
        self.tally.hazards[3] += self.post.refused();
        confirmed.extend(warm_up.into_iter().map(|parcel| parcel.id));
        let wait = self.chance.millis(0..600);
        self.pass(wait)?;
        for mut hand in mem::take(&mut self.hands) {
            self.stop(&mut hand)?;
            self.gone.push(hand);
        }
        self.close(&Mail { parcels: all, confirmed })?;
        for hand in &self.gone {
            self.findings.extend(hand.blunders(broker.password()));
        }
        Ok(())
    }

    /// Has all queues made, and on disk: a quorum queue that was made less than half a second before its broker is killed
    /// can stay without a leader for ever (RabbitMQ 3.10), and then nobody can help its messages.
    fn warm_up(&mut self) -> Result<Vec<Parcel>, Trouble> {
        let samples = samples(self.plan.action, &mut self.chance);
        if self.post.publish(&samples).len() < samples.len() {
            return Err(Trouble::System("undisturbed, the broker confirms nothing".to_owned()));
        }
        self.drain()?;
        pause(SETTLED);
        Ok(samples)
    }

    /// Starts a consumer, perhaps one that is killed at a call.
    fn hire(&mut self) -> Result<Hand, Trouble> {
        let at = match self.plan.calls > 0 && self.chance.percent(60) {
            true => {
                self.plan.calls -= 1;
                Some(self.plan.call(&mut self.chance))
            }
            false => None,
        };
        self.yard.start(&[], at)
    }

    /// Lets time pass, and sees who ends meanwhile.
    fn pass(&mut self, time: Duration) -> Result<(), Trouble> {
        let start = Instant::now();
        loop {
            for at in 0..self.hands.len() {
                let Some(status) = self.hands[at].ended()? else { continue };
                match self.hands[at].at {
                    Some((name, number)) if ended_by(status, Signal::KILL) => {
                        self.was_killed(&format!("at {name} {number}"));
                        self.tally.at_calls += 1;
                    }
                    // One that cannot connect in the first place says so, and ends.
                    _ if self.hazards.storming && !self.hands[at].has_begun() => {}
                    // So does one that finds a full disk when it creates its database.
                    _ if self.plan.has_full_disk() && self.hands[at].found_full_disk() => {}
                    _ => {
                        let (number, word) = (self.hands[at].number, self.hands[at].last_word());
                        self.findings.push(format!("consumer {number} ended by itself: {status}: {word}"));
                    }
                }
                self.replace(at)?;
            }
            if start.elapsed() >= time {
                return Ok(());
            }
            pause(Duration::from_millis(2));
            if !self.findings.is_empty() {
                return Ok(());
            }
        }
    }

    /// Waits until a consumer is at work, and a little longer.
    fn let_begin(&mut self, at: usize) -> Result<(), Trouble> {
        let start = Instant::now();
        while !self.hands[at].has_begun() && start.elapsed() < BEGIN && self.findings.is_empty() {
            self.pass(Duration::from_millis(5))?;
        }
        let wait = self.chance.millis(0..250);
        self.pass(wait)
    }

    fn replace(&mut self, at: usize) -> Result<(), Trouble> {
        let next = self.hire()?;
        self.gone.push(mem::replace(&mut self.hands[at], next));
        Ok(())
    }

    fn happen(&mut self, event: Event, broker: &mut Broker) -> Result<(), Trouble> {
        let at = self.chance.index(self.hands.len());
        // Most of a moment's chances lie before there is anything to disturb.
        if self.chance.percent(60) {
            self.let_begin(at)?;
        }
        match event {
            Event::Kill => {
                let since = self.hands[at].since.elapsed().as_millis();
                self.hands[at].kill()?;
                self.was_killed(&format!("after {since} ms"));
            }
            Event::Term => {
                // Out of the line: it is no surprise that it ends.
                let next = self.hire()?;
                let mut hand = mem::replace(&mut self.hands[at], next);
                self.stop(&mut hand)?;
                self.gone.push(hand);
                return Ok(());
            }
            Event::Broker(down) => {
                broker.kill();
                self.cuts += 1;
                self.tally.brokers += 1;
                self.told.push(format!("the broker killed for {} ms", down.as_millis()));
                self.pass(down)?;
                return broker.restart().or_trouble("the broker does not come back");
            }
            Event::Storm(cuts) => {
                self.hazards.storming = true;
                for _ in 0..cuts {
                    self.hazards.cut();
                    let gone = self.chance.millis(0..30);
                    self.pass(gone)?;
                    self.hazards.mend();
                    let wait = self.chance.millis(0..500);
                    self.pass(wait)?;
                }
                // A connection that was cut a moment ago may be noticed only now.
                self.pass(Duration::from_secs(1))?;
                self.hazards.storming = false;
                self.cuts += cuts;
                self.tally.hazards[0] += cuts;
                self.told.push(format!("{cuts} cuts"));
                return Ok(());
            }
            Event::Sink(time) => {
                let Some(failing) = hazards::fail_sink(self.plan.action, &self.yard.folder)? else {
                    return Ok(());
                };
                self.pass(time)?;
                failing.end()?;
                self.tally.hazards[1] += 1;
                self.told.push(format!("the sink failed for {} ms", time.as_millis()));
                return Ok(());
            }
            Event::FullDisk(time) => {
                self.hazards.fill()?;
                self.pass(time)?;
                self.hazards.free()?;
                self.tally.hazards[2] += 1;
                self.told.push(format!("the disk was full for {} ms", time.as_millis()));
                return Ok(());
            }
        }
        if self.chance.percent(30) {
            let wait = self.chance.millis(0..300);
            pause(wait);
        }
        self.replace(at)
    }

    fn was_killed(&mut self, when: &str) {
        self.cuts += 1;
        let scratch = self.yard.folder.join("scratch.db");
        let done = progress(self.plan.action, self.yard.mill, &self.yard.folder, &scratch);
        // All that can be done; some of the bad ones of `exec` run more than once.
        let good = self.plan.count * (100 - self.plan.bad) / 100;
        let far = match done {
            Some(0) => 0,
            Some(done) if done >= good => 2,
            _ => 1,
        };
        self.tally.kills[far] += 1;
        let done = done.map_or("some".to_owned(), |done| done.to_string());
        self.told.push(format!("killed {when}, {done} done"));
    }

    /// Tells a consumer to end, and looks how it does.
    fn stop(&mut self, hand: &mut Hand) -> Result<(), Trouble> {
        hand.tell()?;
        let Some(status) = hand.wait(PATIENCE)? else {
            hand.kill()?;
            let text = format!("consumer {} was told to end and did not: {}", hand.number, hand.last_word());
            self.findings.push(text);
            return Ok(());
        };
        // The broker took back what ran: the outcome could not be acknowledged any more.
        self.cuts += u32::from(hand.lost_channel_while_stopping());
        if let Some((name, number)) = hand.at
            && ended_by(status, Signal::KILL)
        {
            self.tally.at_calls += 1;
            self.was_killed(&format!("at {name} {number} while it stopped"));
            return Ok(());
        }
        match (status.code(), hand.summary()) {
            (Some(0), Some(summary)) => {
                self.stops += 1;
                self.tally.stopped += 1;
                self.tally.redelivered += summary["redelivered"].as_u64().unwrap_or(0);
            }
            // Before it could know of signals, or while it connected.
            (Some(130), _) | (None, _)
                if !hand.has_begun() && (status.code().is_some() || ended_by(status, Signal::TERM)) =>
            {
                self.tally.stopped_early += 1;
            }
            _ => {
                let word = hand.last_word();
                self.findings.push(format!("consumer {} was told to end: {status}: {word}", hand.number));
            }
        }
        Ok(())
    }

    /// Has everything done that is left to do, undisturbed, and looks at all of it.
    fn close(&mut self, mail: &Mail) -> Result<(), Trouble> {
        let (action, folder) = (self.plan.action, self.yard.folder.clone());
        // A quorum queue keeps back acknowledgements when many come at once, and forgets them when their channel is
        // closed: who ends gently cannot know, and some of its messages come again.
        let cuts = self.cuts + if self.plan.quorum { self.stops } else { 0 };
        let mut dead = Vec::new();
        let mut found = Audit::default();
        for look in 0..LOOKS {
            self.drain()?;
            let left = self.post.waiting()?;
            dead.extend(self.post.take_dead()?);
            let books = Books::read(action, &folder, &mail.parcels)?;
            found = audit(action, mail, &books, &dead, cuts);
            if left > 0 {
                found.missing.push(format!("{left} messages are left in the queues"));
            }
            if found.missing.is_empty() || !self.findings.is_empty() {
                self.tally.early_drains += look;
                break;
            }
            if look == 0 {
                let missing = &found.missing;
                self.told.push(format!("drained too early ({}, {} such)", missing[0], missing.len()));
            }
            pause(Duration::from_millis(500));
        }
        self.tally.messages += mail.parcels.len() as u64;
        self.tally.unconfirmed += (mail.parcels.len() - mail.confirmed.len()) as u64;
        self.tally.twice += u64::from(found.twice);
        self.tally.twice_gently += if self.cuts == 0 { u64::from(found.twice) } else { 0 };
        self.tally.dead += dead.len() as u64;
        self.findings.extend(found.missing);
        self.findings.extend(found.wrong);
        Ok(())
    }

    fn drain(&mut self) -> Result<(), Trouble> {
        let mut hand = self.yard.start(&["--drain", "--for", "80s"], None)?;
        let status = hand.wait(PATIENCE)?;
        match (status.and_then(|status| status.code()), hand.summary()) {
            (Some(0), Some(summary)) => {
                self.tally.redelivered += summary["redelivered"].as_u64().unwrap_or(0);
            }
            _ => {
                hand.kill()?;
                let word = hand.last_word();
                self.findings.push(format!("undisturbed, --drain ended so: {status:?}: {word}"));
            }
        }
        self.gone.push(hand);
        Ok(())
    }
}

/// The folder of a round, which its consumers can write.
pub(crate) fn folder(mill: &crate::mill::Mill, path: &Path) -> Result<(), Trouble> {
    for path in [path.to_owned(), disk(path)] {
        std::fs::create_dir(&path).or_trouble("cannot make a folder")?;
        mill.give(&path)?;
    }
    Ok(())
}
