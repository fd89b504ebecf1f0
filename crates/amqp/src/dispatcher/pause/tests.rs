//! State transitions of a pause, one by one and against a random model.

mod model;

use super::*;

/// A pause whose messages are names and whose runs are numbered as submitted.
struct Fixture {
    pause: Pause<&'static str>,
    runs: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Run {
    number: u64,
    started: u64,
}

impl Fixture {
    fn new() -> Self {
        // Without a delay every probe is due at once.
        Self { pause: Pause::new(Duration::ZERO, Duration::ZERO), runs: 0 }
    }

    fn start(&mut self) -> Run {
        self.runs += 1;
        Run { number: self.runs, started: self.pause.gate.for_probe().start().expect("a probe starts") }
    }

    /// A run that was submitted earlier and starts now.
    fn start_late(&self, run: Run) -> Run {
        Run { started: self.pause.gate.for_probe().start().expect("a probe starts"), ..run }
    }

    fn probe(&mut self, untried: Option<&'static str>) -> Option<(&'static str, Run)> {
        let (message, permit) = self.pause.take_probe(|| untried)?;
        let run = self.start();
        self.pause.probe = Some((run.number, permit));
        Some((message, run))
    }

    fn worked(&mut self, run: Run) -> Change {
        self.pause.worked(run.number, Some(run.started))
    }

    fn fail(&mut self, run: Run, what: Dependency, failures: &mut SinkFailures) -> (Fault, Change) {
        let message = FailedMessage { failures, failed_for: Duration::ZERO, can_move: true };
        let run = (run.number, self.pause.gate.advance());
        self.pause.failed(run, &TaskError::transient("x"), what, message)
    }

    /// Fails with a new message, which then waits.
    fn fail_new(&mut self, message: &'static str, what: Dependency) -> (Fault, Change, SinkFailures) {
        let run = self.start();
        let mut failures = SinkFailures::default();
        let (fault, change) = self.fail(run, what, &mut failures);
        self.pause.waiting.push_back(message);
        (fault, change, failures)
    }
}

#[test]
fn unavailable_sink_pauses_at_once_and_one_probe_at_a_time_runs() {
    let mut fixture = Fixture::new();
    let (fault, change, mut failures) = fixture.fail_new("a", Dependency::Unavailable);
    assert_eq!((fault, change), (Fault::Sink, Change::Paused));
    assert!(fixture.pause.is_paused() && fixture.pause.gate.is_closed());
    for _ in 0..10 {
        let (message, run) = fixture.probe(None).expect("a probe");
        assert_eq!(message, "a");
        assert_eq!(fixture.probe(Some("b")), None, "a second probe");
        let failed = fixture.fail(run, Dependency::Unavailable, &mut failures);
        assert_eq!(failed, (Fault::Sink, Change::None));
        fixture.pause.waiting.push_back("a");
    }
    // A message that has not failed is tried first.
    let (message, run) = fixture.probe(Some("b")).expect("a probe");
    assert_eq!(message, "b");
    assert_eq!(fixture.worked(run), Change::Resumed);
    assert!(!fixture.pause.gate.is_closed());
    assert_eq!(fixture.pause.take_recovered(), ["a"]);
}

#[test]
fn pause_without_a_failed_message_ends_with_a_probe() {
    let mut fixture = Fixture::new();
    let hanging = fixture.start();
    fixture.pause.unavailable(&TaskError::unavailable("x"));
    assert!(fixture.pause.is_paused() && fixture.pause.since.is_some());
    assert_eq!(fixture.probe(None), None, "nothing to probe with");
    // It started before the pause.
    assert_eq!(fixture.worked(hanging), Change::None);
    let (message, run) = fixture.probe(Some("a")).expect("a probe");
    assert_eq!((message, fixture.worked(run)), ("a", Change::Resumed));
}

#[test]
fn skipped_probe_is_replaced_by_another() {
    let mut fixture = Fixture::new();
    fixture.fail_new("a", Dependency::Unavailable);
    let (_, run) = fixture.probe(None).expect("a probe");
    fixture.pause.run_skipped(run.number);
    assert!(fixture.pause.is_paused());
    let (message, run) = fixture.probe(Some("b")).expect("another probe");
    assert_eq!((message, fixture.worked(run)), ("b", Change::Resumed));
}

#[test]
fn consecutive_failures_pause_consuming() {
    let mut fixture = Fixture::new();
    for number in 1..PAUSE_AFTER_FAILURES {
        let (fault, change, _) = fixture.fail_new("a", Dependency::Failed);
        assert_eq!((fault, change), (Fault::Sink, Change::None), "{number}");
    }
    let (fault, change, _) = fixture.fail_new("a", Dependency::Failed);
    assert_eq!((fault, change), (Fault::Sink, Change::Paused));
}

#[test]
fn message_is_at_fault_when_it_fails_again_after_others_were_handled() {
    let mut fixture = Fixture::new();
    let before = fixture.start();
    let (_, _, mut failures) = fixture.fail_new("bad", Dependency::Failed);
    // It was running when the sink failed: no evidence.
    fixture.worked(before);
    assert!(fixture.pause.take_recovered().is_empty());
    let after = fixture.start();
    fixture.worked(after);
    assert_eq!(fixture.pause.take_recovered(), ["bad"]);
    let run = fixture.start();
    assert_eq!(fixture.fail(run, Dependency::Failed, &mut failures), (Fault::Message, Change::None));
    // An unavailable sink is no evidence about a message.
    let failed = fixture.fail(run, Dependency::Unavailable, &mut failures);
    assert_eq!(failed, (Fault::Sink, Change::Paused));
}

#[test]
fn run_submitted_before_a_failure_and_started_after_it_is_evidence() {
    let mut fixture = Fixture::new();
    let (bad, behind) = (fixture.start(), fixture.start());
    let mut failures = SinkFailures::default();
    assert_eq!(fixture.fail(bad, Dependency::Failed, &mut failures), (Fault::Sink, Change::None));
    fixture.pause.waiting.push_back("bad");
    let behind = fixture.start_late(behind);
    fixture.worked(behind);
    assert_eq!(fixture.pause.take_recovered(), ["bad"]);
    let again = fixture.start();
    assert_eq!(fixture.fail(again, Dependency::Failed, &mut failures), (Fault::Message, Change::None));
}

#[test]
fn failures_with_evidence_between_them_are_not_in_a_row() {
    let mut fixture = Fixture::new();
    for _ in 0..2 * PAUSE_AFTER_FAILURES {
        let (bad, behind) = (fixture.start(), fixture.start());
        let ended = fixture.pause.gate.advance();
        let behind = fixture.start_late(behind);
        // Its result is read first.
        fixture.worked(behind);
        let failures = &mut SinkFailures::default();
        let message = FailedMessage { failures, failed_for: Duration::ZERO, can_move: true };
        let bad = (bad.number, ended);
        let failed = fixture.pause.failed(bad, &TaskError::transient("x"), Dependency::Failed, message);
        assert_eq!(failed, (Fault::Sink, Change::None));
        fixture.pause.waiting.push_back("bad");
        assert_eq!(fixture.pause.take_recovered(), ["bad"]);
    }
}

#[test]
fn late_evidence_ends_a_pause_unless_the_sink_was_unavailable() {
    for what in [Dependency::Failed, Dependency::Unavailable] {
        let mut fixture = Fixture::new();
        let early = fixture.start();
        for _ in 0..PAUSE_AFTER_FAILURES {
            fixture.fail_new("bad", what);
        }
        let late = fixture.start();
        let (_, probe) = fixture.probe(None).expect("a probe");
        assert_eq!(fixture.worked(early), Change::None);
        assert!(fixture.pause.is_paused());
        let is_over = what == Dependency::Failed;
        assert_eq!(fixture.worked(late), if is_over { Change::Resumed } else { Change::None });
        assert_eq!(fixture.pause.is_paused(), !is_over);
        // The probe then ends like any other run.
        let failed = fixture.fail(probe, what, &mut SinkFailures::default());
        assert_eq!(failed, (Fault::Sink, Change::None));
        assert_eq!(fixture.pause.is_paused(), !is_over);
    }
}

#[test]
fn run_ended_by_the_pool_is_no_evidence() {
    let mut fixture = Fixture::new();
    fixture.fail_new("bad", Dependency::Failed);
    let run = fixture.start();
    assert_eq!(fixture.pause.worked(run.number, None), Change::None);
    assert!(fixture.pause.take_recovered().is_empty());
}

#[test]
fn message_is_at_fault_when_it_alone_keeps_failing_while_others_are_handled() {
    for others_fail in [false, true] {
        let mut fixture = Fixture::new();
        let mut failures = SinkFailures::default();
        let (slow, quick) = (fixture.start(), fixture.start());
        fixture.worked(quick);
        assert_eq!(fixture.fail(slow, Dependency::Failed, &mut failures).0, Fault::Sink);
        if others_fail {
            fixture.fail_new("other", Dependency::Failed);
        }
        let again = fixture.start();
        assert_eq!(fixture.fail(again, Dependency::Failed, &mut failures).0, Fault::Sink);
        let again = fixture.start();
        let expected = if others_fail { Fault::Sink } else { Fault::Message };
        assert_eq!(fixture.fail(again, Dependency::Failed, &mut failures).0, expected);
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Others {
    Work,
    Fail,
    NoneLeft,
}

/// Result of six failures of one message.
#[derive(Debug, Default, PartialEq, Eq)]
struct Sum {
    attempts: u32,
    postponed: u32,
    is_paused: bool,
}

fn six_failures(what: Dependency, others: Others, can_move: bool, mut failures: SinkFailures) -> Sum {
    let mut fixture = Fixture::new();
    // The message has failed for another reason.
    let run = fixture.start();
    fixture.pause.worked(run.number, None);
    let mut sum = Sum::default();
    for _ in 0..6 {
        let run = match fixture.pause.is_paused() {
            true => fixture.probe(Some("x")).expect("a probe").1,
            false => fixture.start(),
        };
        let message = FailedMessage { failures: &mut failures, failed_for: Duration::ZERO, can_move };
        let ended = (run.number, fixture.pause.gate.advance());
        match fixture.pause.failed(ended, &TaskError::transient("x"), what, message).0 {
            Fault::Sink => {}
            Fault::SinkOrMessage => sum.postponed += 1,
            Fault::Message => sum.attempts += 1,
        }
        match others {
            Others::Work if fixture.pause.is_paused() => {
                let (_, probe) = fixture.probe(Some("good")).expect("a probe");
                assert_eq!(fixture.worked(probe), Change::Resumed);
            }
            Others::Work => {
                let run = fixture.start();
                fixture.worked(run);
            }
            Others::Fail if !fixture.pause.is_paused() => {
                fixture.fail_new("other", what);
            }
            Others::Fail | Others::NoneLeft => {}
        }
    }
    Sum { is_paused: fixture.pause.is_paused(), ..sum }
}

/// Messages that have failed for another reason wait for the sink like others.
#[test]
fn failure_of_the_sink_uses_an_attempt_only_with_evidence() {
    use Dependency::{Failed, Unavailable};
    let waits = |postponed| Sum { postponed, is_paused: true, ..Sum::default() };
    let uses = |attempts| Sum { attempts, ..Sum::default() };
    for can_move in [false, true] {
        let check = |what, others, failed_alone, expected: Sum| {
            let sum = six_failures(what, others, can_move, SinkFailures::new(failed_alone));
            assert_eq!(sum, expected, "{what:?}, {others:?}, {failed_alone}, {can_move}");
        };
        for failed_alone in [false, true] {
            check(Unavailable, Others::Work, failed_alone, uses(0));
            check(Unavailable, Others::Fail, failed_alone, waits(0));
            check(Unavailable, Others::NoneLeft, failed_alone, waits(0));
            // Every second failure: one without evidence, then one after evidence.
            check(Failed, Others::Work, failed_alone, uses(3));
        }
        // The third failure is the fifth in a row: the following ones are probes.
        check(Failed, Others::Fail, false, waits(if can_move { 3 } else { 0 }));
        check(Failed, Others::Fail, true, waits(if can_move { 3 } else { 0 }));
        check(Failed, Others::NoneLeft, false, waits(if can_move { 1 } else { 0 }));
        check(Failed, Others::NoneLeft, true, uses(2));
    }
}

#[test]
fn messages_that_failed_alone_pause_and_are_at_fault_after_their_probes() {
    let mut fixture = Fixture::new();
    let mut failures: [_; PAUSE_AFTER_FAILURES] = std::array::from_fn(|_| SinkFailures::new(true));
    for (number, failures) in failures.iter_mut().enumerate() {
        let run = fixture.start();
        let (fault, change) = fixture.fail(run, Dependency::Failed, failures);
        let expected = if number + 1 == PAUSE_AFTER_FAILURES { Change::Paused } else { Change::None };
        assert_eq!((fault, change), (Fault::Sink, expected));
    }
    for count in 2..=MAX_PROBES {
        for (number, failures) in failures.iter_mut().enumerate() {
            let (_, run) = fixture.probe(Some("x")).expect("a probe");
            // Others wait until the last one is at fault.
            let is_last = number + 1 == PAUSE_AFTER_FAILURES;
            fixture.pause.waiting.clear();
            if !is_last {
                fixture.pause.waiting.push_back("x");
            }
            let expected = match (count == MAX_PROBES, is_last) {
                (false, _) => (Fault::Sink, Change::None),
                (true, false) => (Fault::Message, Change::None),
                (true, true) => (Fault::Message, Change::Resumed),
            };
            assert_eq!(fixture.fail(run, Dependency::Failed, failures), expected);
        }
    }
    assert!(!fixture.pause.is_paused());
}

#[test]
fn probe_that_fails_for_another_reason_ends_the_pause_and_is_no_evidence() {
    let mut fixture = Fixture::new();
    let (_, _, mut failures) = fixture.fail_new("a", Dependency::Failed);
    for _ in 1..PAUSE_AFTER_FAILURES {
        fixture.fail_new("others", Dependency::Failed);
    }
    let (_, probe) = fixture.probe(Some("bad")).expect("a probe");
    assert_eq!(fixture.pause.worked(probe.number, None), Change::Resumed);
    let again = fixture.start();
    assert_eq!(fixture.fail(again, Dependency::Failed, &mut failures), (Fault::Sink, Change::None));
}

#[test]
fn message_that_keeps_failing_as_probe_moves_to_a_retry_queue() {
    let mut fixture = Fixture::new();
    for _ in 0..PAUSE_AFTER_FAILURES {
        fixture.fail_new("others", Dependency::Failed);
    }
    let mut failures = SinkFailures::default();
    for count in 1..=MAX_PROBES {
        let (_, run) = fixture.probe(Some("bad")).expect("a probe");
        let (fault, _) = fixture.fail(run, Dependency::Failed, &mut failures);
        assert_eq!(fault == Fault::SinkOrMessage, count == MAX_PROBES, "{count}");
    }
}

#[test]
fn message_runs_again_when_no_evidence_comes_in_time() {
    let mut fixture = Fixture::new();
    fixture.fail_new("a", Dependency::Failed);
    assert!(fixture.pause.due().is_some());
    assert_eq!(fixture.pause.take_due(), Some("a"));
    assert_eq!((fixture.pause.take_due(), fixture.pause.due()), (None, None));
}

#[tokio::test(start_paused = true)]
async fn message_is_at_fault_after_failing_for_a_day_without_evidence() {
    let mut fixture = Fixture::new();
    let (_, _, mut failures) = fixture.fail_new("a", Dependency::Failed);
    tokio::time::advance(MAX_BLOCKED).await;
    let run = fixture.start();
    assert_eq!(fixture.fail(run, Dependency::Failed, &mut failures).0, Fault::Message);
}
