//! A customer: enqueues tasks of all kinds, and writes down what was acknowledged.
//!
//! Owns the mix. An acknowledged task is one whose call returned; it is in the log before anything else happens.

use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};

use gristmill_store::Store;
use gristmill_store::tasks::{Enqueued, NewTask};

use crate::args::Member;
use crate::chance::Chance;
use crate::errand::{Errand, Order};
use crate::ledger::Log;
use crate::site::Site;
use crate::worker::{die_with_the_referee, end_of_input, log_to_stderr, raise_flag};
use crate::{OrTrouble, Trouble};

/// Several callers at once: their writes are committed in groups.
const CALLERS: u64 = 4;

/// In a hundred tasks, so many of each kind. Slow ones are few: they take a lease each.
const MIX: [(u64, Errand); 7] = [
    (58, Errand::Swift),
    (12, Errand::Flaky),
    (4, Errand::Doomed),
    (12, Errand::Steps),
    (10, Errand::Parent),
    (2, Errand::Slow),
    (2, Errand::Stubborn),
];

/// Enqueues until standard input ends.
pub(crate) fn run(member: &Member) -> Result<(), Trouble> {
    log_to_stderr();
    die_with_the_referee();
    let site = Site::new(&member.site);
    let store = Store::open(site.database()).or_trouble("cannot open the store")?;
    raise_flag(&site, &member.name)?;
    let input = end_of_input();
    std::thread::scope(|scope| {
        let mut callers = Vec::new();
        let mut ends = Vec::new();
        for number in 0..CALLERS {
            let (end, enough) = channel();
            ends.push(end);
            let mut caller = Caller::new(member, number, &store, &site)?;
            callers.push(scope.spawn(move || caller.call_until(&enough)));
        }
        // Comes back when the sender is dropped, that is, at the end of the input.
        let _ = input.recv();
        drop(ends);
        callers.into_iter().try_for_each(|caller| {
            caller.join().unwrap_or_else(|_| Err(Trouble::System("a caller panicked".to_owned())))
        })
    })
}

struct Caller<'a> {
    chance: Chance,
    /// What its keys begin with: nobody else's do.
    prefix: String,
    lease_ms: u64,
    made: u64,
    store: &'a Store,
    acks: Log,
    refusals: Log,
}

impl<'a> Caller<'a> {
    fn new(member: &Member, number: u64, store: &'a Store, site: &Site) -> Result<Self, Trouble> {
        Ok(Caller {
            chance: Chance::new(member.seed ^ (number << 32)),
            prefix: format!("{}-{number}", member.name),
            lease_ms: member.lease_ms,
            made: 0,
            store,
            acks: Log::open(&site.acks()).or_trouble("cannot open a log")?,
            refusals: Log::open(&site.refusals()).or_trouble("cannot open a log")?,
        })
    }

    fn call_until(&mut self, enough: &Receiver<()>) -> Result<(), Trouble> {
        loop {
            self.call()?;
            if enough.recv_timeout(self.chance.millis(0..100)) != Err(RecvTimeoutError::Timeout) {
                return Ok(());
            }
        }
    }

    /// One task, or several together, or the same one twice.
    fn call(&mut self) -> Result<(), Trouble> {
        match self.chance.within(0..10) {
            0..6 => {
                let (errand, task, key) = self.task();
                self.enqueue(errand, task, &key)
            }
            6..9 => self.enqueue_many(),
            _ => {
                let (errand, mut task, key) = self.task();
                task.unique_key = Some(key.clone());
                self.enqueue(errand, task.clone(), &key)?;
                self.enqueue(errand, task, &key)
            }
        }
    }

    fn enqueue(&self, errand: Errand, task: NewTask, key: &str) -> Result<(), Trouble> {
        match self.store.tasks().enqueue(task) {
            Ok(enqueued) => self.acknowledged(errand, enqueued, key),
            Err(error) => self.refused(&error),
        }
    }

    fn enqueue_many(&mut self) -> Result<(), Trouble> {
        let count = self.chance.within(2..20);
        let many: Vec<(Errand, NewTask, String)> = (0..count).map(|_| self.task()).collect();
        let tasks = many.iter().map(|(_, task, _)| task.clone()).collect();
        match self.store.tasks().enqueue_many(tasks) {
            Ok(enqueued) => many
                .iter()
                .zip(enqueued)
                .try_for_each(|((errand, _, key), enqueued)| self.acknowledged(*errand, enqueued, key)),
            Err(error) => self.refused(&error),
        }
    }

    fn acknowledged(&self, errand: Errand, enqueued: Enqueued, key: &str) -> Result<(), Trouble> {
        let line = format!("{} {} {key}", enqueued.id, errand.name());
        self.acks.line(&line).or_trouble("cannot write down what was acknowledged")
    }

    fn refused(&self, error: &gristmill_store::Error) -> Result<(), Trouble> {
        let line = format!("{} {error}", self.prefix);
        self.refusals.line(&line).or_trouble("cannot write down a refusal")
    }

    fn task(&mut self) -> (Errand, NewTask, String) {
        self.made += 1;
        let errand = self.errand();
        let key = format!("{}-{}", self.prefix, self.made);
        let padding = "x".repeat(self.chance.index(1_500));
        let millis = self.chance.within(self.lease_ms / 2..self.lease_ms * 3 / 2);
        let mut task = new_task(errand, &Order { key: key.clone(), millis, padding });
        task.priority = i32::try_from(self.chance.within(0..3)).unwrap_or(0);
        if self.chance.percent(10) {
            task.run_after = Some(self.store.now().plus(self.chance.millis(0..300)));
        }
        if self.chance.percent(30) {
            task.unique_key = Some(key.clone());
        }
        (errand, task, key)
    }

    fn errand(&mut self) -> Errand {
        let mut drawn = self.chance.within(0..100);
        for (share, errand) in MIX {
            if drawn < share {
                return errand;
            }
            drawn -= share;
        }
        Errand::Swift
    }
}

/// A task of this kind for this order.
pub(crate) fn new_task(errand: Errand, order: &Order) -> NewTask {
    let payload = serde_json::json!(order).to_string();
    NewTask::new(errand.name(), payload)
}
