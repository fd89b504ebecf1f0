//! Measures how long after a broker was killed and restarted the next message is handled.
//!
//! For information. The time starts when the broker answers the AMQP protocol header again; all prefetched messages
//! were handled long before that.

use std::{
    fs::{self, File},
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
    thread,
    time::{Duration, Instant},
};

use gristmill_broker::speaks_amqp;

use super::{
    candidate::{ConsumeTask, GRISTMILL, Participant, RECOVERING},
    environment::{Environment, QueueKind},
};

/// Maximum wait for the next message.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Number of messages for all candidates together; each handles fewer than a thousand per second, for a few seconds.
const MESSAGES: u64 = 30_000;

/// Number of messages handled before the broker is killed.
const HANDLED_BEFORE_KILL: usize = 200;

const WORKERS: usize = 4;
const WORK_MS: u64 = 5;

/// Name of a candidate and its result.
pub(super) type Outcome = (&'static str, String);

/// Measures Gristmill and the Rust peers that acknowledge each message; lapin a second time with its automatic
/// recovery.
pub(super) fn measure(env: &mut Environment, participants: &[Participant]) -> Result<Vec<Outcome>, String> {
    let queue = env.fill(QueueKind::Quorum, MESSAGES)?;
    // Other runs must not use this queue.
    env.discard_queues();
    let mut outcomes = Vec::new();
    let selected = participants.iter().filter(|participant| participant.candidate.in_recovery());
    for participant in selected {
        outcomes.push(measure_one(env, participant, &queue)?);
        if participant.candidate.name.starts_with("lapin") {
            outcomes.push(measure_one(env, &participant.with_candidate(&RECOVERING), &queue)?);
        }
    }
    debug_assert_eq!(outcomes[0].0, GRISTMILL.name);
    Ok(outcomes)
}

fn measure_one(env: &mut Environment, participant: &Participant, queue: &str) -> Result<Outcome, String> {
    let uri = env.broker.uri();
    let messages = "watch".to_owned();
    let task = ConsumeTask { uri: &uri, queue, messages, prefetch: 40, work: WORK_MS, workers: WORKERS };
    let folder = env.folder();
    let command_line = participant.command_line(&task, &folder)?;
    let errors = folder.join("errors");
    let file = File::create(&errors).map_err(|error| format!("{}: {error}", errors.display()))?;
    let mut command = Command::new(&command_line.program);
    command.args(&command_line.args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(file);
    let child = command.spawn().map_err(|error| format!("{}: {error}", command_line.program.display()))?;
    let mut consumer = Consumer::new(child)?;
    let recovery_time = time_to_recover(env, &consumer)?;
    let ended = consumer.child.try_wait().ok().flatten();
    drop(consumer);
    let last_error = fs::read_to_string(&errors).unwrap_or_default();
    let last_error = last_error.lines().last().unwrap_or_default();
    let result = match (recovery_time, ended) {
        (Some(elapsed), _) => format!("{:.2} s", elapsed.as_secs_f64()),
        (None, Some(status)) => format!("never: consumer exited ({status}) {last_error}"),
        (None, None) => format!("not within {} s; consumer still runs {last_error}", TIMEOUT.as_secs()),
    };
    Ok((participant.candidate.name, result))
}

/// Kills and restarts the broker. Returns the time from its return to the next handled message.
fn time_to_recover(env: &mut Environment, consumer: &Consumer) -> Result<Option<Duration>, String> {
    for _ in 0..HANDLED_BEFORE_KILL {
        let handled = consumer.handled.recv_timeout(TIMEOUT);
        handled.map_err(|error| format!("no message was handled before the broker was killed: {error}"))?;
    }
    env.broker.kill();
    let address = env.broker.address();
    let broker = &mut env.broker;
    let (returned, restarted) = thread::scope(|scope| {
        let restarting = scope.spawn(|| broker.restart());
        while speaks_amqp(address, Duration::from_secs(1)).is_err() && !restarting.is_finished() {
            thread::park_timeout(Duration::from_millis(5));
        }
        (Instant::now(), restarting.join())
    });
    restarted.map_err(|_| "the restart of the broker panicked")?.map_err(|fault| fault.to_string())?;
    let end = returned + TIMEOUT;
    loop {
        match consumer.handled.recv_timeout(end.saturating_duration_since(Instant::now())) {
            Ok(at) if at < returned => {}
            Ok(at) => return Ok(Some(at - returned)),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return Ok(None),
        }
    }
}

/// A process that prints a line for every handled message. It is killed on drop.
struct Consumer {
    child: Child,
    handled: Receiver<Instant>,
}

impl Consumer {
    fn new(mut child: Child) -> Result<Self, String> {
        let lines = BufReader::new(child.stdout.take().ok_or("the consumer has no standard output")?);
        let (sender, handled) = channel();
        thread::spawn(move || {
            // Ends when the receiver is dropped.
            lines.lines().map_while(Result::ok).try_for_each(|_| sender.send(Instant::now()))
        });
        Ok(Consumer { child, handled })
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        // Fails if the process has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
