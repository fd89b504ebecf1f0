//! Who takes part, and how each is called.
//!
//! Owns the command lines. Everybody gets the same queue with the same messages, and the same prefetch.

use std::{
    ffi::{OsStr, OsString},
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use gristmill_broker::Installation;

use super::options::Options;
use crate::{
    process::Call,
    program::{self, found},
};

/// One way of consuming.
pub(super) struct Contender {
    pub(super) name: &'static str,
    pub(super) acks: Acks,
    program: Program,
    /// What its program is told to be.
    role: &'static str,
    /// It gets one in so many of the messages: rates are compared, and it is slow.
    pub(super) one_in: u64,
}

/// How messages are acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Acks {
    /// As it sees fit: when a handler is done.
    ByItself,
    Each,
    /// Fifty at a time.
    Batch,
    /// Not at all: the broker forgets what it sends. For information.
    Never,
}

/// What is started for a contender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Program {
    Ours,
    /// `peers/amqp`
    Rust,
    Python,
    /// `amqp-consume`, which starts a program for each message.
    Tool,
}

/// What is to be consumed.
pub(super) struct Task<'a> {
    pub(super) uri: &'a str,
    pub(super) queue: &'a str,
    /// A number, or `watch`.
    pub(super) messages: String,
    pub(super) prefetch: u16,
    /// What a handler waits, in milliseconds.
    pub(super) work: u64,
    /// 0 is as it comes.
    pub(super) workers: usize,
}

/// A contender whose program is there.
pub(super) struct Participant {
    pub(super) contender: &'static Contender,
    program: PathBuf,
    /// What it needs in its environment.
    environment: Vec<(OsString, OsString)>,
}

pub(super) static OURS: Contender =
    Contender { name: "gristmill", acks: Acks::ByItself, program: Program::Ours, role: "tasks", one_in: 1 };

pub(super) static BLOCKING: Contender = Contender { name: "gristmill, blocking", role: "threads", ..OURS };

/// Each of ours, and the same of an earlier build.
pub(super) static BEFORE: [(&Contender, Contender); 2] = [
    (&OURS, Contender { name: "gristmill, before", ..OURS }),
    (&BLOCKING, Contender { name: "gristmill, blocking, before", role: "threads", ..OURS }),
];

pub(super) static PEERS: [Contender; 10] = [
    rust("lapin, each", "lapin", Acks::Each),
    rust("amqprs, each", "amqprs", Acks::Each),
    rust("lapin, by fifties", "lapin", Acks::Batch),
    rust("amqprs, by fifties", "amqprs", Acks::Batch),
    rust("lapin, never", "lapin", Acks::Never),
    rust("amqprs, never", "amqprs", Acks::Never),
    python("pika, each", Acks::Each),
    python("pika, by fifties", Acks::Batch),
    python("pika, never", Acks::Never),
    Contender { name: "amqp-consume cat", acks: Acks::Each, program: Program::Tool, role: "cat", one_in: 50 },
];

/// For `recovery` alone: lapin with its own.
pub(super) static RECOVERING: Contender = rust("lapin, enable_auto_recover", "lapin-recovering", Acks::Each);

const fn rust(name: &'static str, role: &'static str, acks: Acks) -> Contender {
    Contender { name, acks, program: Program::Rust, role, one_in: 1 }
}

const fn python(name: &'static str, acks: Acks) -> Contender {
    Contender { name, acks, program: Program::Python, role: "", one_in: 4 }
}

impl Contender {
    /// Whether it is measured with handlers that do nothing and this prefetch. Without acknowledgements there is none, so
    /// it is measured once.
    pub(super) fn plays_rate(&self, prefetch: u16, largest: u16) -> bool {
        match self.acks {
            Acks::Batch => prefetch >= 50,
            Acks::Never => prefetch == largest,
            Acks::ByItself | Acks::Each => true,
        }
    }

    /// Whether it is measured with handlers that take their time.
    pub(super) fn plays_work(&self, workers: usize) -> bool {
        match self.program {
            Program::Ours => true,
            Program::Rust => self.acks == Acks::Each,
            // One handler at a time is what it has.
            Program::Python => self.acks == Acks::Each && workers == 1,
            Program::Tool => false,
        }
    }

    /// Whether it is looked at when the broker goes and comes back.
    pub(super) fn plays_recovery(&self) -> bool {
        self.name == OURS.name || (self.program == Program::Rust && self.acks == Acks::Each)
    }

    /// Whether its output is what it was sent, instead of a report.
    pub(super) fn echoes(&self) -> bool {
        self.program == Program::Tool
    }
}

impl Program {
    /// Where it is, and its environment. Says what is missing, where it cannot take part.
    fn found(self) -> Result<(PathBuf, Vec<(OsString, OsString)>), String> {
        match self {
            Program::Ours => Ok((std::env::current_exe().map_err(|error| error.to_string())?, Vec::new())),
            Program::Rust => Ok((program::peer("amqp")?, Vec::new())),
            Program::Python => {
                let python = found("python3").ok_or("python3 is not there")?;
                let import = Command::new(&python).args(["-c", "import pika"]).stderr(Stdio::null()).status();
                match import {
                    Ok(status) if status.success() => Ok((python, Vec::new())),
                    _ => Err(format!("{} has no pika", python.display())),
                }
            }
            Program::Tool => {
                let kit = Installation::find().map_err(|fault| fault.to_string())?;
                let tool = kit.tool("amqp-consume").ok_or("amqp-consume is not there")?;
                let set =
                    |(name, value): (&OsStr, Option<&OsStr>)| Some((name.to_owned(), value?.to_owned()));
                Ok((tool.get_program().into(), tool.get_envs().filter_map(set).collect()))
            }
        }
    }
}

impl Participant {
    /// Ours, then those that are asked for and there. Who is not is named.
    pub(super) fn all(options: &Options) -> Result<Vec<Self>, String> {
        let (program, environment) = Program::Ours.found()?;
        let ours = Participant { contender: &OURS, program, environment };
        let blocking = ours.like(&BLOCKING);
        let mut all = vec![ours, blocking];
        if let Some(program) = &options.before {
            all.extend(BEFORE.iter().map(|(_, contender)| Participant {
                contender,
                program: program.clone(),
                environment: Vec::new(),
            }));
        }
        for program in [Program::Rust, Program::Python, Program::Tool] {
            let asked = PEERS.iter().filter(|peer| peer.program == program && options.asks_for(peer.name));
            let asked: Vec<_> = asked.collect();
            let Some(first) = asked.first() else { continue };
            match program.found() {
                Ok((program, environment)) => {
                    let first = Participant { contender: first, program, environment };
                    all.extend(asked.into_iter().map(|peer| first.like(peer)));
                }
                Err(why) => asked.iter().for_each(|peer| println!("{}: not measured, {why}", peer.name)),
            }
        }
        Ok(all)
    }

    /// The same program as somebody else.
    pub(super) fn like(&self, contender: &'static Contender) -> Self {
        Participant { contender, program: self.program.clone(), environment: self.environment.clone() }
    }

    /// What is to be started. What it needs to have lies in the folder.
    pub(super) fn call(&self, task: &Task<'_>, folder: &Path) -> Result<Call, String> {
        let mode = match self.contender.acks {
            Acks::ByItself => self.contender.role,
            Acks::Each => "each",
            Acks::Batch => "batch",
            Acks::Never => "none",
        };
        let (prefetch, work) = (task.prefetch.to_string(), task.work.to_string());
        let common = [task.uri, task.queue, &task.messages, &prefetch, mode, &work].map(OsString::from);
        let (mut program, mut words) = (self.program.clone(), Vec::new());
        match self.contender.program {
            Program::Ours => {
                words.push("amqp-one".into());
                words.extend(common);
                words.push(task.workers.to_string().into());
            }
            Program::Rust => {
                words.push(self.contender.role.into());
                words.extend(common);
                words.push(task.workers.max(1).to_string().into());
            }
            Program::Python => {
                let script = folder.join("consume.py");
                fs::write(&script, include_str!("consume.py"))
                    .map_err(|error| format!("{}: {error}", script.display()))?;
                words.push(script.into());
                words.extend(common);
            }
            Program::Tool => {
                // It waits for ever if a message is missing; `env` and `timeout` are the system's.
                program = "env".into();
                words.extend(self.environment.iter().map(|(name, value)| {
                    let mut word = name.clone();
                    word.push("=");
                    word.push(value);
                    word
                }));
                words.extend(["timeout", "600"].map(OsString::from));
                words.push(self.program.clone().into());
                let told = ["-u", task.uri, "-q", task.queue, "-p", &prefetch, "-c", &task.messages];
                words.extend(told.map(OsString::from));
                words.push(self.contender.role.into());
            }
        }
        Ok(Call { program, words, well: &[0] })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(contender: &'static Contender) -> String {
        let environment = vec![("LD_LIBRARY_PATH".into(), "/lib".into())];
        let participant = Participant { contender, program: "program".into(), environment };
        let task =
            Task { uri: "amqp://", queue: "q", messages: "9".into(), prefetch: 80, work: 0, workers: 0 };
        let call = participant.call(&task, &std::env::temp_dir()).unwrap();
        let words = call.words.iter().map(|word| word.to_string_lossy().into_owned());
        format!("{} {}", call.program.display(), words.collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn who_is_called_how() {
        assert_eq!(line(&OURS), "program amqp-one amqp:// q 9 80 tasks 0 0");
        assert_eq!(line(&BLOCKING), "program amqp-one amqp:// q 9 80 threads 0 0");
        assert_eq!(line(&PEERS[2]), "program lapin amqp:// q 9 80 batch 0 1");
        assert_eq!(line(&RECOVERING), "program lapin-recovering amqp:// q 9 80 each 0 1");
        let tool = "env LD_LIBRARY_PATH=/lib timeout 600 program -u amqp:// -q q -p 80 -c 9 cat";
        assert_eq!(line(&PEERS[9]), tool);
    }

    #[test]
    fn who_is_measured_where() {
        let rate = |prefetch| PEERS.iter().filter(move |peer| peer.plays_rate(prefetch, 500)).count();
        assert_eq!((rate(1), rate(80), rate(500)), (4, 7, 10));
        let work = |workers| PEERS.iter().filter(move |peer| peer.plays_work(workers)).count();
        assert_eq!((work(1), work(8)), (3, 2));
        assert!(OURS.plays_work(8) && OURS.plays_recovery() && !BLOCKING.plays_recovery());
    }
}
