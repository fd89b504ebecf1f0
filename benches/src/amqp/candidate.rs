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
    process::CommandLine,
    program::{self, find_program},
};

/// One way of consuming.
pub(super) struct Candidate {
    pub(super) name: &'static str,
    pub(super) acks: Acks,
    program: Program,
    /// What its program is told to be.
    role: &'static str,
    /// It gets one in so many of the messages: rates are compared, and it is slow.
    pub(super) message_divisor: u64,
}

/// How messages are acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Acks {
    /// As it sees fit: when a handler is done.
    Automatic,
    Each,
    /// Fifty at a time.
    Batch,
    /// Not at all: the broker forgets what it sends. For information.
    Never,
}

/// What is started for a candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Program {
    Gristmill,
    /// `peers/amqp`
    Rust,
    Python,
    /// `amqp-consume`, which starts a program for each message.
    Tool,
}

/// What is to be consumed.
pub(super) struct ConsumeTask<'a> {
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

/// A candidate whose program is there.
pub(super) struct Participant {
    pub(super) candidate: &'static Candidate,
    program: PathBuf,
    /// What it needs in its env_vars.
    env_vars: Vec<(OsString, OsString)>,
}

pub(super) static GRISTMILL: Candidate = Candidate {
    name: "gristmill",
    acks: Acks::Automatic,
    program: Program::Gristmill,
    role: "tasks",
    message_divisor: 1,
};

pub(super) static GRISTMILL_BLOCKING: Candidate =
    Candidate { name: "gristmill, blocking", role: "threads", ..GRISTMILL };

/// Each of gristmill, and the same of an earlier build.
pub(super) static BEFORE: [(&Candidate, Candidate); 2] = [
    (&GRISTMILL, Candidate { name: "gristmill, before", ..GRISTMILL }),
    (&GRISTMILL_BLOCKING, Candidate { name: "gristmill, blocking, before", role: "threads", ..GRISTMILL }),
];

pub(super) static PEERS: [Candidate; 10] = [
    rust("lapin, each", "lapin", Acks::Each),
    rust("amqprs, each", "amqprs", Acks::Each),
    rust("lapin, by fifties", "lapin", Acks::Batch),
    rust("amqprs, by fifties", "amqprs", Acks::Batch),
    rust("lapin, never", "lapin", Acks::Never),
    rust("amqprs, never", "amqprs", Acks::Never),
    python("pika, each", Acks::Each),
    python("pika, by fifties", Acks::Batch),
    python("pika, never", Acks::Never),
    Candidate {
        name: "amqp-consume cat",
        acks: Acks::Each,
        program: Program::Tool,
        role: "cat",
        message_divisor: 50,
    },
];

/// For `recovery` alone: lapin with its own.
pub(super) static LAPIN_RECOVERING: Candidate =
    rust("lapin, enable_auto_recover", "lapin-recovering", Acks::Each);

const fn rust(name: &'static str, role: &'static str, acks: Acks) -> Candidate {
    Candidate { name, acks, program: Program::Rust, role, message_divisor: 1 }
}

const fn python(name: &'static str, acks: Acks) -> Candidate {
    Candidate { name, acks, program: Program::Python, role: "", message_divisor: 4 }
}

impl Candidate {
    /// Whether it is measured with handlers that do nothing and this prefetch. Without acknowledgements there is none, so
    /// it is measured once.
    pub(super) fn takes_part_in_rate(&self, prefetch: u16, largest: u16) -> bool {
        match self.acks {
            Acks::Batch => prefetch >= 50,
            Acks::Never => prefetch == largest,
            Acks::Automatic | Acks::Each => true,
        }
    }

    /// Whether it is measured with handlers that take their time.
    pub(super) fn takes_part_in_work(&self, workers: usize) -> bool {
        match self.program {
            Program::Gristmill => true,
            Program::Rust => self.acks == Acks::Each,
            // One handler at a time is what it has.
            Program::Python => self.acks == Acks::Each && workers == 1,
            Program::Tool => false,
        }
    }

    /// Whether it is looked at when the broker goes and comes back.
    pub(super) fn takes_part_in_recovery(&self) -> bool {
        self.name == GRISTMILL.name || (self.program == Program::Rust && self.acks == Acks::Each)
    }

    /// Whether its output is what it was sent, instead of a report.
    pub(super) fn prints_bodies(&self) -> bool {
        self.program == Program::Tool
    }
}

impl Program {
    /// Where it is, and its env_vars. Says what is missing, where it cannot take part.
    fn locate(self) -> Result<(PathBuf, Vec<(OsString, OsString)>), String> {
        match self {
            Program::Gristmill => {
                Ok((std::env::current_exe().map_err(|error| error.to_string())?, Vec::new()))
            }
            Program::Rust => Ok((program::build_peer("amqp")?, Vec::new())),
            Program::Python => {
                let python = find_program("python3").ok_or("python3 is not there")?;
                let import = Command::new(&python).args(["-c", "import pika"]).stderr(Stdio::null()).status();
                match import {
                    Ok(status) if status.success() => Ok((python, Vec::new())),
                    _ => Err(format!("{} has no pika", python.display())),
                }
            }
            Program::Tool => {
                let installation = Installation::find().map_err(|fault| fault.to_string())?;
                let tool = installation.tool("amqp-consume").ok_or("amqp-consume is not there")?;
                let set =
                    |(name, value): (&OsStr, Option<&OsStr>)| Some((name.to_owned(), value?.to_owned()));
                Ok((tool.get_program().into(), tool.get_envs().filter_map(set).collect()))
            }
        }
    }
}

impl Participant {
    /// Gristmill, then those that are chosen for and there. Who is not is named.
    pub(super) fn all(options: &Options) -> Result<Vec<Self>, String> {
        let (program, env_vars) = Program::Gristmill.locate()?;
        let gristmill = Participant { candidate: &GRISTMILL, program, env_vars };
        let blocking = gristmill.like(&GRISTMILL_BLOCKING);
        let mut all = vec![gristmill, blocking];
        if let Some(program) = &options.before {
            all.extend(BEFORE.iter().map(|(_, candidate)| Participant {
                candidate,
                program: program.clone(),
                env_vars: Vec::new(),
            }));
        }
        for program in [Program::Rust, Program::Python, Program::Tool] {
            let chosen =
                PEERS.iter().filter(|peer| peer.program == program && options.includes_peer(peer.name));
            let chosen: Vec<_> = chosen.collect();
            let Some(first) = chosen.first() else { continue };
            match program.locate() {
                Ok((program, env_vars)) => {
                    let first = Participant { candidate: first, program, env_vars };
                    all.extend(chosen.into_iter().map(|peer| first.like(peer)));
                }
                Err(why) => chosen.iter().for_each(|peer| println!("{}: not measured, {why}", peer.name)),
            }
        }
        Ok(all)
    }

    /// The same program as somebody else.
    pub(super) fn like(&self, candidate: &'static Candidate) -> Self {
        Participant { candidate, program: self.program.clone(), env_vars: self.env_vars.clone() }
    }

    /// What is to be started. What it needs to have lies in the folder.
    pub(super) fn call(&self, task: &ConsumeTask<'_>, folder: &Path) -> Result<CommandLine, String> {
        let mode = match self.candidate.acks {
            Acks::Automatic => self.candidate.role,
            Acks::Each => "each",
            Acks::Batch => "batch",
            Acks::Never => "none",
        };
        let (prefetch, work) = (task.prefetch.to_string(), task.work.to_string());
        let common = [task.uri, task.queue, &task.messages, &prefetch, mode, &work].map(OsString::from);
        let (mut program, mut args) = (self.program.clone(), Vec::new());
        match self.candidate.program {
            Program::Gristmill => {
                args.push("amqp-one".into());
                args.extend(common);
                args.push(task.workers.to_string().into());
            }
            Program::Rust => {
                args.push(self.candidate.role.into());
                args.extend(common);
                args.push(task.workers.max(1).to_string().into());
            }
            Program::Python => {
                let script = folder.join("pika_consumer.py");
                fs::write(&script, include_str!("pika_consumer.py"))
                    .map_err(|error| format!("{}: {error}", script.display()))?;
                args.push(script.into());
                args.extend(common);
            }
            Program::Tool => {
                // It waits for ever if a message is missing; `env` and `timeout` are the system's.
                program = "env".into();
                args.extend(self.env_vars.iter().map(|(name, value)| {
                    let mut arg = name.clone();
                    arg.push("=");
                    arg.push(value);
                    arg
                }));
                args.extend(["timeout", "600"].map(OsString::from));
                args.push(self.program.clone().into());
                let told = ["-u", task.uri, "-q", task.queue, "-p", &prefetch, "-c", &task.messages];
                args.extend(told.map(OsString::from));
                args.push(self.candidate.role.into());
            }
        }
        Ok(CommandLine { program, args, success_codes: &[0] })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(candidate: &'static Candidate) -> String {
        let env_vars = vec![("LD_LIBRARY_PATH".into(), "/lib".into())];
        let participant = Participant { candidate, program: "program".into(), env_vars };
        let task = ConsumeTask {
            uri: "amqp://",
            queue: "q",
            messages: "9".into(),
            prefetch: 80,
            work: 0,
            workers: 0,
        };
        let call = participant.call(&task, &std::env::temp_dir()).unwrap();
        let args = call.args.iter().map(|arg| arg.to_string_lossy().into_owned());
        format!("{} {}", call.program.display(), args.collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn who_is_called_how() {
        assert_eq!(line(&GRISTMILL), "program amqp-one amqp:// q 9 80 tasks 0 0");
        assert_eq!(line(&GRISTMILL_BLOCKING), "program amqp-one amqp:// q 9 80 threads 0 0");
        assert_eq!(line(&PEERS[2]), "program lapin amqp:// q 9 80 batch 0 1");
        assert_eq!(line(&LAPIN_RECOVERING), "program lapin-recovering amqp:// q 9 80 each 0 1");
        let tool = "env LD_LIBRARY_PATH=/lib timeout 600 program -u amqp:// -q q -p 80 -c 9 cat";
        assert_eq!(line(&PEERS[9]), tool);
    }

    #[test]
    fn who_is_measured_where() {
        let rate = |prefetch| PEERS.iter().filter(move |peer| peer.takes_part_in_rate(prefetch, 500)).count();
        assert_eq!((rate(1), rate(80), rate(500)), (4, 7, 10));
        let work = |workers| PEERS.iter().filter(move |peer| peer.takes_part_in_work(workers)).count();
        assert_eq!((work(1), work(8)), (3, 2));
        assert!(
            GRISTMILL.takes_part_in_work(8)
                && GRISTMILL.takes_part_in_recovery()
                && !GRISTMILL_BLOCKING.takes_part_in_recovery()
        );
    }
}
