//! Model of a consumer: messages, a pool and results in any order, with a sink that works or is down.

use super::super::*;
use proptest::prelude::*;
use std::collections::HashMap;

const WORKERS: usize = 3;
const POOL_CAPACITY: usize = 2 * WORKERS;
const ATTEMPTS: u32 = 2;

#[derive(Default)]
struct Message {
    is_poison: bool,
    /// Its first attempt fails independently of the sink.
    fails_first: bool,
    attempts: u32,
    failures: SinkFailures,
    is_settled: bool,
}

/// A run in the pool, and whether it is a probe.
#[derive(Clone, Copy)]
struct Run {
    number: u64,
    message: usize,
    is_probe: bool,
    started: u64,
}

enum Ending {
    Skipped,
    Done,
    Failed { ended: u64 },
    FailedOtherwise,
}

struct Model {
    pause: Pause<usize>,
    messages: Vec<Message>,
    ready: VecDeque<usize>,
    last_run: u64,
    queued: VecDeque<Run>,
    running: Vec<Run>,
    results: Vec<(Run, Ending)>,
    sink_is_down: bool,
    /// End of the latest failure, and latest start of a run that the sink worked for.
    last_failed: u64,
    last_worked: u64,
    at_fault: u32,
}

impl Model {
    fn new(poison: &[bool], sink_is_down: bool) -> Self {
        let mut model = Self {
            pause: Pause::new(Duration::ZERO, Duration::ZERO),
            messages: Vec::new(),
            ready: VecDeque::new(),
            last_run: 0,
            queued: VecDeque::new(),
            running: Vec::new(),
            results: Vec::new(),
            sink_is_down,
            last_failed: 0,
            last_worked: 0,
            at_fault: 0,
        };
        poison.iter().for_each(|is_poison| model.publish(*is_poison));
        model
    }

    fn publish(&mut self, is_poison: bool) {
        self.ready.push_back(self.messages.len());
        self.messages.push(Message { is_poison, ..Message::default() });
    }

    fn submit(&mut self, message: usize, is_probe: bool) -> u64 {
        self.last_run += 1;
        self.queued.push_back(Run { number: self.last_run, message, is_probe, started: 0 });
        self.last_run
    }

    /// Does the same as the dispatcher after each event.
    fn dispatch(&mut self) {
        let has_room = self.queued.len() < POOL_CAPACITY;
        if self.pause.is_paused() {
            let ready = &mut self.ready;
            let Some((message, permit)) = self.pause.take_probe(|| ready.pop_front()) else { return };
            match has_room {
                true => {
                    let number = self.submit(message, true);
                    self.pause.probe = Some((number, permit));
                }
                false => {
                    permit.withdraw();
                    self.ready.push_front(message);
                }
            }
            return;
        }
        for message in self.pause.take_recovered().into_iter().rev() {
            self.ready.push_front(message);
        }
        if let Some(message) = self.pause.take_due() {
            self.ready.push_front(message);
        }
        while self.queued.len() < POOL_CAPACITY
            && let Some(message) = self.ready.pop_front()
        {
            self.submit(message, false);
        }
    }

    fn start(&mut self) {
        if self.running.len() == WORKERS {
            return;
        }
        let Some(mut run) = self.queued.pop_front() else { return };
        let gate = if run.is_probe { self.pause.gate.for_probe() } else { self.pause.gate.clone() };
        match gate.start() {
            None => self.results.push((run, Ending::Skipped)),
            Some(started) => {
                run.started = started;
                self.running.push(run);
            }
        }
    }

    fn end(&mut self, which: usize) {
        if self.running.is_empty() {
            return;
        }
        let run = self.running.swap_remove(which % self.running.len());
        let message = &self.messages[run.message];
        let ending = match self.sink_is_down || message.is_poison {
            _ if message.fails_first && message.attempts == 0 => Ending::FailedOtherwise,
            true => {
                self.last_failed = self.pause.gate.advance();
                Ending::Failed { ended: self.last_failed }
            }
            false => {
                self.last_worked = self.last_worked.max(run.started);
                Ending::Done
            }
        };
        self.results.push((run, ending));
    }

    fn settle(&mut self, which: usize) {
        if self.results.is_empty() {
            return;
        }
        let (run, ending) = self.results.remove(which % self.results.len());
        match ending {
            Ending::Skipped => {
                self.pause.run_skipped(run.number);
                self.ready.push_front(run.message);
            }
            Ending::Done => {
                self.pause.worked(run.number, Some(run.started));
                assert!(!self.messages[run.message].is_settled, "handled twice");
                self.messages[run.message].is_settled = true;
            }
            Ending::Failed { ended } => self.fail(run, ended),
            Ending::FailedOtherwise => {
                self.pause.worked(run.number, None);
                let message = &mut self.messages[run.message];
                message.attempts += 1;
                message.failures = SinkFailures::default();
                self.ready.push_back(run.message);
            }
        }
    }

    fn fail(&mut self, run: Run, ended: u64) {
        let message = &mut self.messages[run.message];
        let failed_message =
            FailedMessage { failures: &mut message.failures, failed_for: Duration::ZERO, can_move: true };
        let error = TaskError::dependency_failed("500");
        match self.pause.failed((run.number, ended), &error, Dependency::Failed, failed_message).0 {
            Fault::Sink => self.pause.waiting.push_back(run.message),
            // It returns from a retry queue as a new delivery.
            Fault::SinkOrMessage => {
                message.failures = SinkFailures::new(message.failures.failed_alone);
                self.ready.push_back(run.message);
            }
            Fault::Message => {
                self.at_fault += 1;
                message.attempts += 1;
                message.failures = SinkFailures::new(message.failures.failed_alone);
                match message.is_poison && message.attempts >= ATTEMPTS {
                    true => message.is_settled = true,
                    false => self.ready.push_back(run.message),
                }
            }
        }
    }

    fn step(&mut self, (event, which): (u8, usize)) {
        match event {
            0 | 1 => self.start(),
            2 => self.end(which),
            // Results are mostly read in order.
            3 => self.settle(0),
            _ => self.settle(which),
        }
        if event % 2 == 0 {
            self.dispatch();
        }
    }

    /// Finishes all running messages and starts none.
    fn finish_running(&mut self) {
        while !self.running.is_empty() {
            self.end(0);
        }
        while !self.results.is_empty() {
            self.settle(0);
        }
    }

    /// Gives every event the same chance.
    fn run_fairly(&mut self, rounds: usize) {
        for _ in 0..rounds {
            self.dispatch();
            self.start();
            self.end(0);
            self.settle(0);
        }
    }

    fn unsettled(&self) -> HashMap<usize, bool> {
        let open = self.messages.iter().enumerate().filter(|(_, message)| !message.is_settled);
        open.map(|(number, message)| (number, message.is_poison)).collect()
    }
}

fn steps() -> impl Strategy<Value = Vec<(u8, usize)>> {
    prop::collection::vec((0_u8..5, 0_usize..8), 0..400)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// The sink works and some messages fail each time: those become dead letters, and all others are handled. Nothing
    /// is paused after a message was handled that started after the last failure.
    #[test]
    fn messages_that_fail_a_sink_that_works_become_dead_letters(
        poison in prop::collection::vec(prop::bool::weighted(0.7), 1..40),
        steps in steps(),
    ) {
        let mut model = Model::new(&poison, false);
        steps.into_iter().for_each(|step| model.step(step));
        model.finish_running();
        let is_known_to_work = model.last_worked >= model.last_failed;
        prop_assert!(!is_known_to_work || !model.pause.is_paused());
        // One more message at a time shows that the sink works.
        for _ in 0..50 {
            model.publish(false);
            model.run_fairly(100);
        }
        model.run_fairly(500);
        prop_assert!(model.unsettled().is_empty(), "{:?}", model.unsettled());
    }

    /// No message is at fault while the sink is down, also if it failed otherwise, and all are handled once it works.
    #[test]
    fn messages_keep_their_attempts_while_the_sink_is_down(
        fails_first in prop::collection::vec(prop::bool::ANY, 1..40),
        down in steps(),
        up in steps(),
    ) {
        let mut model = Model::new(&vec![false; fails_first.len()], true);
        for (message, fails_first) in model.messages.iter_mut().zip(fails_first) {
            message.fails_first = fails_first;
        }
        down.into_iter().for_each(|step| model.step(step));
        prop_assert_eq!(model.at_fault, 0);
        model.sink_is_down = false;
        up.into_iter().for_each(|step| model.step(step));
        model.run_fairly(5000);
        prop_assert!(model.unsettled().is_empty(), "{:?}", model.unsettled());
    }
}
