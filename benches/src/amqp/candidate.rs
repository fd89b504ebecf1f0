//! The candidates of `amqp` and their command lines. All get the same queue, the same messages and the same prefetch.

use std::{
    ffi::{OsStr, OsString},
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use gristmill_broker::Installation;

use crate::{
    options::CompareOptions,
    process::CommandLine,
    program::{self, find_program},
};

/// One client with one way of acknowledging.
pub(super) struct Candidate {
    pub(super) name: &'static str,
    pub(super) acks: Acks,
    program: Program,
    /// Role that its program takes as an argument.
    role: &'static str,
    /// Divides the number of messages for a slow candidate; rates are compared.
    pub(super) divisor: u64,
}

/// How messages are acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Acks {
    /// By the library, when a handler is done.
    Automatic,
    Each,
    /// Acknowledges fifty messages at a time.
    Batch,
    /// `no_ack`: the broker deletes a message when it sends it. For information.
    Never,
}

/// Program that runs a candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Program {
    Gristmill,
    /// The program in `peers/amqp`.
    Rust,
    Python,
    /// `amqp-consume`, which starts a program for each message.
    Tool,
}

/// Describes one run of a consumer.
pub(super) struct ConsumeTask<'a> {
    pub(super) uri: &'a str,
    pub(super) queue: &'a str,
    /// Number of messages, or `watch`.
    pub(super) messages: String,
    pub(super) prefetch: u16,
    /// Time that a handler sleeps, in milliseconds.
    pub(super) work: u64,
    /// Number of parallel handlers; 0 is the candidate's default.
    pub(super) workers: usize,
}

/// A candidate whose program was found.
pub(super) struct Participant {
    pub(super) candidate: &'static Candidate,
    program: PathBuf,
    /// Environment variables for the program.
    env_vars: Vec<(OsString, OsString)>,
}

pub(super) static GRISTMILL: Candidate =
    Candidate { name: "gristmill", acks: Acks::Automatic, program: Program::Gristmill, role: "tasks", divisor: 1 };

pub(super) static BLOCKING: Candidate = Candidate { name: "gristmill, blocking", role: "threads", ..GRISTMILL };

/// Gristmill's candidates of an earlier build.
pub(super) static BEFORE: [Candidate; 2] = [
    Candidate { name: "gristmill, before", ..GRISTMILL },
    Candidate { name: "gristmill, blocking, before", role: "threads", ..GRISTMILL },
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
    Candidate { name: "amqp-consume cat", acks: Acks::Each, program: Program::Tool, role: "cat", divisor: 50 },
];

/// Used only in `recovery`: lapin with its automatic recovery.
pub(super) static RECOVERING: Candidate = rust("lapin, enable_auto_recover", "lapin-recovering", Acks::Each);

const fn rust(name: &'static str, role: &'static str, acks: Acks) -> Candidate {
    Candidate { name, acks, program: Program::Rust, role, divisor: 1 }
}

const fn python(name: &'static str, acks: Acks) -> Candidate {
    Candidate { name, acks, program: Program::Python, role: "", divisor: 4 }
}

impl Candidate {
    /// Returns whether it is measured with handlers that do nothing and this prefetch. Without acknowledgements the
    /// prefetch has no effect, so it is measured once.
    pub(super) fn in_rate(&self, prefetch: u16, largest: u16) -> bool {
        match self.acks {
            Acks::Batch => prefetch >= 50,
            Acks::Never => prefetch == largest,
            Acks::Automatic | Acks::Each => true,
        }
    }

    /// Returns whether it is measured with handlers of 100 ms.
    pub(super) fn in_work(&self, workers: usize) -> bool {
        match self.program {
            Program::Gristmill => true,
            Program::Rust => self.acks == Acks::Each,
            // pika runs one handler at a time.
            Program::Python => self.acks == Acks::Each && workers == 1,
            Program::Tool => false,
        }
    }

    /// Returns whether it is measured when the broker is killed and restarted.
    pub(super) fn in_recovery(&self) -> bool {
        self.name == GRISTMILL.name || (self.program == Program::Rust && self.acks == Acks::Each)
    }

    /// Returns whether it prints the message bodies instead of a report.
    pub(super) fn prints_bodies(&self) -> bool {
        self.program == Program::Tool
    }
}

impl Program {
    /// Returns the path of the program and its environment variables, or an error that names what is missing.
    fn locate(self) -> Result<(PathBuf, Vec<(OsString, OsString)>), String> {
        match self {
            Program::Gristmill => Ok((std::env::current_exe().map_err(|error| error.to_string())?, Vec::new())),
            Program::Rust => Ok((program::build_peer("amqp")?, Vec::new())),
            Program::Python => {
                let python = find_program("python3").ok_or("python3 is not installed")?;
                let import = Command::new(&python).args(["-c", "import pika"]).stderr(Stdio::null()).status();
                match import {
                    Ok(status) if status.success() => Ok((python, Vec::new())),
                    _ => Err(format!("{} has no module pika", python.display())),
                }
            }
            Program::Tool => {
                let installation = Installation::find().map_err(|fault| fault.to_string())?;
                let tool = installation.tool("amqp-consume").ok_or("amqp-consume is not installed")?;
                let set = |(name, value): (&OsStr, Option<&OsStr>)| Some((name.to_owned(), value?.to_owned()));
                Ok((tool.get_program().into(), tool.get_envs().filter_map(set).collect()))
            }
        }
    }
}

impl Participant {
    /// Returns Gristmill's participants, then the selected peers that are installed. Prints the names of the others.
    pub(super) fn all(options: &CompareOptions) -> Result<Vec<Self>, String> {
        let (program, env_vars) = Program::Gristmill.locate()?;
        let gristmill = Participant { candidate: &GRISTMILL, program, env_vars };
        let blocking = gristmill.with_candidate(&BLOCKING);
        let mut all = vec![gristmill, blocking];
        if let Some(program) = &options.before {
            let before = |candidate| Participant { candidate, program: program.clone(), env_vars: Vec::new() };
            all.extend(BEFORE.iter().map(before));
        }
        for program in [Program::Rust, Program::Python, Program::Tool] {
            let chosen = PEERS.iter().filter(|peer| peer.program == program && options.includes_peer(peer.name));
            let chosen: Vec<_> = chosen.collect();
            let Some(first) = chosen.first() else { continue };
            match program.locate() {
                Ok((program, env_vars)) => {
                    let first = Participant { candidate: first, program, env_vars };
                    all.extend(chosen.into_iter().map(|peer| first.with_candidate(peer)));
                }
                Err(reason) => {
                    chosen.iter().for_each(|peer| println!("{}: not measured, {reason}", peer.name));
                }
            }
        }
        Ok(all)
    }

    /// Returns a participant that runs another candidate with the same program.
    pub(super) fn with_candidate(&self, candidate: &'static Candidate) -> Self {
        Participant { candidate, program: self.program.clone(), env_vars: self.env_vars.clone() }
    }

    /// Returns the command line. A script that it needs is written to `folder`.
    pub(super) fn command_line(&self, task: &ConsumeTask<'_>, folder: &Path) -> Result<CommandLine, String> {
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
                // It never ends if a message is missing, so `timeout` limits it. `env` and `timeout` come from the
                // system.
                program = "env".into();
                args.extend(self.env_vars.iter().map(|(name, value)| {
                    let mut arg = name.clone();
                    arg.push("=");
                    arg.push(value);
                    arg
                }));
                args.extend(["timeout", "600"].map(OsString::from));
                args.push(self.program.clone().into());
                let tool_args = ["-u", task.uri, "-q", task.queue, "-p", &prefetch, "-c", &task.messages];
                args.extend(tool_args.map(OsString::from));
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
        let task = ConsumeTask { uri: "amqp://", queue: "q", messages: "9".into(), prefetch: 80, work: 0, workers: 0 };
        let command_line = participant.command_line(&task, &std::env::temp_dir()).unwrap();
        let args = command_line.args.iter().map(|arg| arg.to_string_lossy().into_owned());
        format!("{} {}", command_line.program.display(), args.collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn command_lines_match_each_program() {
        assert_eq!(line(&GRISTMILL), "program amqp-one amqp:// q 9 80 tasks 0 0");
        assert_eq!(line(&BLOCKING), "program amqp-one amqp:// q 9 80 threads 0 0");
        assert_eq!(line(&PEERS[2]), "program lapin amqp:// q 9 80 batch 0 1");
        assert_eq!(line(&RECOVERING), "program lapin-recovering amqp:// q 9 80 each 0 1");
        let tool = "env LD_LIBRARY_PATH=/lib timeout 600 program -u amqp:// -q q -p 80 -c 9 cat";
        assert_eq!(line(&PEERS[9]), tool);
    }

    #[test]
    fn candidates_are_selected_by_ack_mode_and_workers() {
        let rate = |prefetch| PEERS.iter().filter(move |peer| peer.in_rate(prefetch, 500)).count();
        assert_eq!((rate(1), rate(80), rate(500)), (4, 7, 10));
        let work = |workers| PEERS.iter().filter(move |peer| peer.in_work(workers)).count();
        assert_eq!((work(1), work(8)), (3, 2));
        assert!(GRISTMILL.in_work(8) && GRISTMILL.in_recovery() && !BLOCKING.in_recovery());
    }
}
