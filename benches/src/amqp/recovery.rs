//! A broker that is killed in mid-flow and comes back: how long until the next message is handled.
//!
//! For information. The clock starts when the broker answers the first bytes of AMQP again; what had been sent ahead was
//! handled long before that.

use std::{
    fs::{self, File},
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    process::{Child, Command, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
    thread,
    time::{Duration, Instant},
};

use super::{
    contender::{OURS, Participant, RECOVERING, Task},
    stage::{Kind, Stage},
};

/// How long the next message is waited for.
const LIMIT: Duration = Duration::from_secs(60);

/// For all of them together; each handles less than a thousand a second, for some seconds.
const MESSAGES: u64 = 30_000;

/// So many are handled before the broker is killed.
const FLOWING: usize = 200;

const WORKERS: usize = 4;
const WORK: u64 = 5;

/// What became of one.
pub(super) struct Outcome {
    pub(super) name: &'static str,
    pub(super) told: String,
}

/// Ours, and those in Rust that acknowledge each message; lapin a second time with its own recovery.
pub(super) fn play(stage: &mut Stage, participants: &[Participant]) -> Result<Vec<Outcome>, String> {
    let queue = stage.fill(Kind::Quorum, MESSAGES)?;
    // What lies in it is nobody else's.
    stage.spoil();
    let mut outcomes = Vec::new();
    let players = participants.iter().filter(|one| one.contender.plays_recovery());
    for participant in players {
        outcomes.push(outcome(stage, participant, &queue)?);
        if participant.contender.name.starts_with("lapin") {
            outcomes.push(outcome(stage, &participant.like(&RECOVERING), &queue)?);
        }
    }
    debug_assert_eq!(outcomes[0].name, OURS.name);
    Ok(outcomes)
}

fn outcome(stage: &mut Stage, participant: &Participant, queue: &str) -> Result<Outcome, String> {
    let uri = stage.broker.uri();
    let messages = "watch".to_owned();
    let task = Task { uri: &uri, queue, messages, prefetch: 40, work: WORK, workers: WORKERS };
    let folder = stage.folder();
    let call = participant.call(&task, &folder)?;
    let errors = folder.join("errors");
    let file = File::create(&errors).map_err(|error| format!("{}: {error}", errors.display()))?;
    let mut command = Command::new(&call.program);
    command.args(&call.words).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(file);
    let child = command.spawn().map_err(|error| format!("{}: {error}", call.program.display()))?;
    let mut consumer = Consumer::of(child)?;
    let told = after_a_kill(stage, &consumer)?;
    let ended = consumer.child.try_wait().ok().flatten();
    drop(consumer);
    let last_words = fs::read_to_string(&errors).unwrap_or_default();
    let last_words = last_words.lines().last().unwrap_or_default();
    let told = match (told, ended) {
        (Some(took), _) => format!("{:.2} s", took.as_secs_f64()),
        (None, Some(status)) => format!("never: it ended ({status}) {last_words}"),
        (None, None) => format!("not within {} s; it still runs {last_words}", LIMIT.as_secs()),
    };
    Ok(Outcome { name: participant.contender.name, told })
}

/// How long after the broker's return something was handled.
fn after_a_kill(stage: &mut Stage, consumer: &Consumer) -> Result<Option<Duration>, String> {
    for _ in 0..FLOWING {
        let handled = consumer.handled.recv_timeout(LIMIT);
        handled.map_err(|error| format!("nothing is handled, before anything happened: {error}"))?;
    }
    stage.broker.kill();
    let address = stage.broker.address();
    let broker = &mut stage.broker;
    let (returned, restarted) = thread::scope(|scope| {
        let restarting = scope.spawn(|| broker.restart());
        while !answers(address) && !restarting.is_finished() {
            thread::park_timeout(Duration::from_millis(5));
        }
        (Instant::now(), restarting.join())
    });
    restarted.map_err(|_| "a panic")?.map_err(|fault| fault.to_string())?;
    let end = returned + LIMIT;
    loop {
        match consumer.handled.recv_timeout(end.saturating_duration_since(Instant::now())) {
            Ok(at) if at < returned => {}
            Ok(at) => return Ok(Some(at - returned)),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return Ok(None),
        }
    }
}

/// Whether somebody there speaks AMQP: it answers the client's first bytes with the start of a frame.
fn answers(address: SocketAddr) -> bool {
    let ask = || {
        let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(1))?;
        stream.set_read_timeout(Some(Duration::from_secs(1)))?;
        stream.write_all(b"AMQP\x00\x00\x09\x01")?;
        stream.read_exact(&mut [0])
    };
    ask().is_ok()
}

/// A process that says a line for every message it handled. Ended when this is dropped.
struct Consumer {
    child: Child,
    handled: Receiver<Instant>,
}

impl Consumer {
    fn of(mut child: Child) -> Result<Self, String> {
        let lines = BufReader::new(child.stdout.take().ok_or("no output to read")?);
        let (tell, handled) = channel();
        thread::spawn(move || {
            // Nobody listens any more when it is over.
            lines.lines().map_while(Result::ok).try_for_each(|_| tell.send(Instant::now()))
        });
        Ok(Consumer { child, handled })
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
