//! Scenarios: situations that random operations seldom reach.
//!
//! Runs wait at gates, so that the checks do not depend on time: a task with the payload `gate N` runs until the test
//! opens gate N.

use std::fs;
use std::time::Duration;

use gristmill_pool::clock::{Clock, ManualClock};
use gristmill_store::UtcTime;
use gristmill_store::tasks::{CancelOutcome, Enqueued, NewTask, TaskStatus};
use rustix::process::{Pid, Signal, kill_process};

use crate::log::Event;
use crate::round::{Process, Round};
use crate::rules::MAX_CRASHES;
use crate::{Scenario, worker};

/// Priority of the scenarios' tasks, above that of random ones.
const PRIORITY: i32 = 5;
const URGENT: i32 = 9;

/// A process is killed when it holds this many tasks that it has not started.
const MIN_HELD: usize = 10;

impl Round<'_> {
    pub(crate) fn scenario(&mut self, scenario: &Scenario) -> Result<(), String> {
        match *scenario {
            Scenario::KillHolding => self.kill_holding(),
            Scenario::KillRunning => self.kill_running(),
            Scenario::StopBusy { nth } => self.stop_busy(nth),
            Scenario::Urgent { late } => self.urgent(late),
            Scenario::Overtake => self.overtake(),
            Scenario::Share { workers } => self.share(workers),
            Scenario::CancelRunning { kind } => self.cancel_running(kind),
            Scenario::ClockAhead => self.clock_ahead(),
        }
    }

    /// Kills a process when it holds many tasks that it has not started. It is suspended during each check, so that it
    /// still holds them when it is killed.
    fn kill_holding(&mut self) -> Result<(), String> {
        self.ensure_process();
        let task = task("quick", "ok");
        let mut caught = None;
        self.wait_for("no process holds many tasks", |round| {
            let waiting = round.store.tasks().count_due().unwrap();
            if round.claimed("quick").is_empty() && !waiting.iter().any(|(_, kind, _)| kind == "quick") {
                round.enqueue(400, &task);
            }
            for nth in 0..round.processes.len() {
                signal(&round.processes[nth], Signal::STOP);
                if round.not_started(nth) >= MIN_HELD {
                    caught = Some(nth);
                    return Ok(true);
                }
                signal(&round.processes[nth], Signal::CONT);
            }
            Ok(false)
        })?;
        if let Some(process) = caught.and_then(|nth| self.pick(nth)) {
            self.kill(process);
        }
        Ok(())
    }

    /// Number of quick tasks that a process holds and has not started.
    fn not_started(&mut self, nth: usize) -> usize {
        let (claimed, process) = (self.claimed("quick"), self.processes[nth].id());
        let events = self.reader.events();
        let was_started = |id: i64| {
            events
                .iter()
                .any(|event| matches!(event, Event::Start { task, process: by, .. } if (*task, *by) == (id, process)))
        };
        let process = &self.processes[nth];
        claimed.iter().filter(|task| process.holds(task) && !was_started(task.id)).count()
    }

    /// Kills a process when the start of a task that it runs is recorded, and checks that the task is run again.
    fn kill_running(&mut self) -> Result<(), String> {
        self.ensure_process();
        let gate = self.new_gate();
        let id = self.enqueue(1, &gated("slow", gate))[0];
        self.wait_for("the start of a task is not recorded", |round| {
            Ok(round.store.tasks().get(id).unwrap().started_at.is_some())
        })?;
        let process = self.started_by(id);
        if let Some(nth) = self.processes.iter().position(|other| Some(other.id()) == process)
            && let Some(process) = self.pick(nth)
        {
            self.kill(process);
        }
        self.open(gate);
        self.ensure_process();
        self.wait_for("the task of a killed process is not run again", |round| {
            Ok(round.store.tasks().get(id).unwrap().status.is_terminal())
        })
    }

    /// Stops a process while it runs tasks. The rules check in the log that these have ended when it has stopped.
    fn stop_busy(&mut self, nth: usize) -> Result<(), String> {
        self.ensure_process();
        let process = self.processes[nth % self.processes.len()].id();
        let tasks = self.enqueue(12, &task("slow", "long"));
        self.wait_for("none of the long tasks is started", |round| {
            let done = |id: &i64| round.store.tasks().get(*id).unwrap().status.is_terminal();
            let all_done = tasks.iter().all(done);
            Ok(all_done || tasks.iter().any(|id| round.started_by(*id) == Some(process)))
        })?;
        self.pick(nth).map_or(Ok(()), |process| self.stop(process))
    }

    /// Checks that the urgent task is started next. There is one worker, because one of several could take the task
    /// first and log it after others.
    fn urgent(&mut self, late: bool) -> Result<(), String> {
        while let Some(process) = self.pick(0) {
            self.stop(process)?;
        }
        self.start(1);
        let gate = self.new_gate();
        self.enqueue(100, &task("quick", "ok"));
        let held = self.enqueue(1, &gated("quick", gate));
        self.enqueue(100, &task("quick", "ok"));
        self.wait_for("the worker is not busy", |round| Ok(round.started_by(held[0]).is_some()))?;
        if late {
            self.wait_for("tasks that wait for busy workers are not released", |round| {
                Ok(round.claimed("quick").iter().all(|task| held.contains(&task.id)))
            })?;
        }
        let urgent = NewTask { priority: URGENT, ..NewTask::new("quick", "\"ok\"") };
        let urgent = self.enqueue(1, &urgent)[0];
        // Either all others are released, or the urgent task is claimed. Workers know a claim before their process
        // writes anything else.
        let mut seen = None;
        self.wait_for("the urgent task is not claimed", |round| {
            let claimed = round.claimed("quick");
            let claims: Vec<_> = claimed.iter().map(|task| (task.id, task.started_at)).collect();
            if claims.iter().all(|(id, _)| held.contains(id)) {
                return Ok(true);
            }
            let is_claimed = claims.iter().any(|(id, _)| *id == urgent);
            Ok(is_claimed && *seen.get_or_insert_with(|| claims.clone()) != claims)
        })?;
        self.open(gate);
        self.wait_for("the urgent task is not started", |round| Ok(round.started_by(urgent).is_some()))?;
        let events = self.reader.events();
        let opened = events.iter().position(|event| *event == Event::Gate { number: gate });
        let started = events[opened.unwrap_or(0)..].iter().filter_map(|event| match event {
            Event::Start { task, .. } => Some(*task),
            _ => None,
        });
        let before: Vec<i64> = started.take_while(|id| *id != urgent).collect();
        let before: Vec<i64> = before.into_iter().filter(|id| self.kind(*id) == "quick").collect();
        match before.first() {
            Some(other) => Err(format!("task {other} was started before the urgent task {urgent}")),
            None => Ok(()),
        }
    }

    /// Checks that more urgent tasks replace waiting ones: `wait_for` fails if a process claims too many.
    fn overtake(&mut self) -> Result<(), String> {
        while let Some(process) = self.pick(0) {
            self.stop(process)?;
        }
        self.start(3);
        let mut tasks = self.enqueue(12, &task("slow", "ok"));
        // Afterwards the duration of handlers is known, and some tasks are claimed ahead.
        self.wait_for("slow tasks do not end", |round| {
            Ok(tasks.iter().any(|id| round.store.tasks().get(*id).unwrap().status.is_terminal()))
        })?;
        for priority in [PRIORITY + 1, PRIORITY + 1, PRIORITY + 2, PRIORITY + 2, URGENT, URGENT] {
            tasks = self.enqueue(4, &NewTask { priority, ..task("slow", "ok") });
            self.wait_for("the more urgent tasks are not claimed", |round| {
                Ok(tasks.iter().any(|id| round.store.tasks().get(*id).unwrap().status != TaskStatus::Pending))
            })?;
        }
        Ok(())
    }

    /// Checks that a second process runs the tasks that the first one has no worker for.
    fn share(&mut self, workers: usize) -> Result<(), String> {
        self.ensure_one_process()?;
        let (first, gate) = (self.processes[0].workers, self.new_gate());
        let tasks = self.enqueue(first + workers, &gated("slow", gate));
        self.wait_for("the first process is not busy", |round| Ok(round.running(&tasks) >= first))?;
        self.start(workers);
        self.wait_for("the second process gets no work", |round| Ok(round.running(&tasks) == tasks.len()))?;
        self.open(gate);
        Ok(())
    }

    /// Checks that the unique key of a cancelled task is free when its run has ended, and not before.
    fn cancel_running(&mut self, kind: &'static str) -> Result<(), String> {
        self.ensure_process();
        let gate = self.new_gate();
        let task = NewTask { unique_key: Some(format!("key {gate}")), ..gated(kind, gate) };
        let enqueue = |round: &Self| round.store.tasks().enqueue(task.clone()).unwrap();
        let id = enqueue(self).id;
        self.wait_for("the task with a key is not started", |round| Ok(round.started_by(id).is_some()))?;
        let outcome = self.store.tasks().cancel(id).unwrap();
        self.log_cancel(id, outcome);
        let again = enqueue(self);
        if (outcome, again) != (CancelOutcome::Requested, Enqueued { id, created: false }) {
            return Err(format!("task {id} runs and is cancelled ({outcome:?}), and its key is free: {again:?}"));
        }
        self.open(gate);
        self.wait_for("the cancelled task has not ended", |round| {
            Ok(round.store.tasks().get(id).unwrap().status.is_terminal())
        })?;
        if enqueue(self).created { Ok(()) } else { Err(format!("task {id} has ended, and keeps its key")) }
    }

    /// Checks that a living process keeps its task when the clock of another process is ahead.
    fn clock_ahead(&mut self) -> Result<(), String> {
        self.ensure_process();
        let gate = self.new_gate();
        let id = self.enqueue(1, &gated("slow", gate))[0];
        self.wait_for("the task is not started", |round| Ok(round.started_by(id).is_some()))?;
        let before = self.store.tasks().get(id).unwrap();
        let ahead = ManualClock::at(UtcTime::of(Clock::system()).plus(Duration::from_secs(3 * 3_600)).micros());
        worker::open(self.folder, ahead).tasks().recover(MAX_CRASHES).unwrap();
        let after = self.store.tasks().get(id).unwrap();
        self.open(gate);
        if (after.status, &after.worker_id) != (TaskStatus::Running, &before.worker_id) {
            return Err(format!("a task was taken from a living process: {after:?}"));
        }
        Ok(())
    }

    fn ensure_process(&mut self) {
        if self.processes.is_empty() {
            self.start(2);
        }
    }

    fn ensure_one_process(&mut self) -> Result<(), String> {
        self.ensure_process();
        while self.processes.len() > 1
            && let Some(process) = self.pick(1)
        {
            self.stop(process)?;
        }
        Ok(())
    }

    fn new_gate(&mut self) -> i64 {
        self.gates += 1;
        self.gates
    }

    fn open(&mut self, gate: i64) {
        self.log.line(&format!("gate {gate}"));
        fs::write(worker::gate(self.folder, gate), "").unwrap();
    }

    /// The process that started a task last.
    fn started_by(&mut self, id: i64) -> Option<u32> {
        self.reader.events().iter().rev().find_map(|event| match event {
            Event::Start { task, process, .. } if *task == id => Some(*process),
            _ => None,
        })
    }

    /// Number of these tasks that were started.
    fn running(&mut self, tasks: &[i64]) -> usize {
        tasks.iter().filter(|id| self.started_by(**id).is_some()).count()
    }

    fn kind(&self, id: i64) -> String {
        self.store.tasks().get(id).unwrap().kind
    }
}

fn task(kind: &str, payload: &str) -> NewTask {
    NewTask { priority: PRIORITY, ..NewTask::new(kind, format!("\"{payload}\"")) }
}

fn gated(kind: &str, gate: i64) -> NewTask {
    task(kind, &format!("gate {gate}"))
}

fn signal(process: &Process, signal: Signal) {
    kill_process(Pid::from_child(&process.child), signal).unwrap();
}
