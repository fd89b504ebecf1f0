//! Where the house stands: its root, its target folder, and how cargo is called in it.
//!
//! Owns the paths and the environment of the programs we start. It does not read cargo's configuration
//! files: every step builds under `CARGO_TARGET_DIR`, else under `target/` of the root, and nowhere else.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Output, Stdio};

use crate::fault::Fault;

/// The checkout that `cargo xtask` was called in.
#[derive(Debug)]
pub(crate) struct Workspace {
    root: PathBuf,
    target: PathBuf,
}

impl Workspace {
    pub(crate) fn find() -> Result<Self, Fault> {
        // Cargo tells where our manifest is as it starts us. The path we were built with is second best:
        // checkouts that share a target folder share this program too.
        let here =
            std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
        let here = PathBuf::from(here);
        let root = here.parent().filter(|root| root.join("Cargo.toml").is_file()).ok_or_else(|| {
            Fault::User(format!("no Cargo.toml above {}; run `cargo xtask` in the checkout", here.display()))
        })?;
        let target = std::env::var_os("CARGO_TARGET_DIR").filter(|path| !path.is_empty());
        let target = target.map_or_else(|| root.join("target"), PathBuf::from);
        // Steps run at the root, so a relative folder must be pinned to where the user stands now.
        let target = std::path::absolute(&target).map_err(|error| {
            Fault::System(format!("cannot make CARGO_TARGET_DIR {} absolute: {error}", target.display()))
        })?;
        Ok(Workspace { root: root.to_path_buf(), target })
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn target(&self) -> &Path {
        &self.target
    }

    /// A cargo of the same toolchain that built us.
    pub(crate) fn cargo<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Command {
        self.program(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()), arguments)
    }

    /// Any program, at the root of the workspace.
    pub(crate) fn program<S: AsRef<OsStr>>(
        &self,
        program: impl AsRef<OsStr>,
        arguments: impl IntoIterator<Item = S>,
    ) -> Command {
        let mut command = Command::new(program);
        command.args(arguments).current_dir(&self.root).env("CARGO_TARGET_DIR", &self.target);
        command
    }
}

/// `RUSTFLAGS` of the caller with more behind it: proofs must not lose somebody's linker.
pub(crate) fn rustflags_with(more: &str) -> String {
    joined(std::env::var("RUSTFLAGS").ok().as_deref(), more)
}

fn joined(given: Option<&str>, more: &str) -> String {
    match given {
        Some(given) if !given.is_empty() => format!("{given} {more}"),
        _ => more.to_owned(),
    }
}

/// The command as somebody would type it.
pub(crate) fn shown(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name().unwrap_or(command.get_program());
    let words = std::iter::once(program).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

/// Runs a program to its end, its output going where ours goes.
pub(crate) fn succeeds(command: &mut Command) -> Result<bool, Fault> {
    Ok(command.status().map_err(|error| not_started(command, &error))?.success())
}

/// Runs a program silently and keeps what it said.
pub(crate) fn captured(command: &mut Command) -> Result<Output, Fault> {
    command.stdin(Stdio::null()).output().map_err(|error| not_started(command, &error))
}

/// Whether a program is there at all and answers.
pub(crate) fn answers(command: &mut Command) -> bool {
    captured(command).is_ok_and(|output| output.status.success())
}

/// Runs a program, passing its standard output on line by line and showing each line to `see`.
pub(crate) fn watched(command: &mut Command, mut see: impl FnMut(&str)) -> Result<ExitStatus, Fault> {
    let mut child = command.stdout(Stdio::piped()).spawn().map_err(|error| not_started(command, &error))?;
    let output = child.stdout.take();
    each_line(command, output, |line| {
        println!("{line}");
        see(line);
    })?;
    child.wait().map_err(|error| lost(command, &error))
}

/// Runs a program, showing each line of its standard error to `see` alone.
pub(crate) fn watched_errors(command: &mut Command, see: impl FnMut(&str)) -> Result<ExitStatus, Fault> {
    let mut child = command.stderr(Stdio::piped()).spawn().map_err(|error| not_started(command, &error))?;
    let errors = child.stderr.take();
    each_line(command, errors, see)?;
    child.wait().map_err(|error| lost(command, &error))
}

fn each_line(command: &Command, from: Option<impl Read>, mut see: impl FnMut(&str)) -> Result<(), Fault> {
    let from = from.ok_or_else(|| Fault::System("no output to read".to_owned()))?;
    for line in BufReader::new(from).split(b'\n') {
        let line = line.map_err(|error| lost(command, &error))?;
        see(&String::from_utf8_lossy(&line));
    }
    Ok(())
}

/// How a program ended, in words.
pub(crate) fn ending(status: ExitStatus) -> String {
    status.code().map_or_else(|| status.to_string(), |code| format!("exit code {code}"))
}

fn not_started(command: &Command, error: &std::io::Error) -> Fault {
    Fault::System(format!("cannot start `{}`: {error}", shown(command)))
}

fn lost(command: &Command, error: &std::io::Error) -> Fault {
    Fault::System(format!("lost contact with `{}`: {error}", shown(command)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_of_the_caller_stay_in_front() {
        assert_eq!(joined(None, "--cfg loom"), "--cfg loom");
        assert_eq!(joined(Some(""), "--cfg loom"), "--cfg loom");
        assert_eq!(joined(Some("-Clinker=x"), "--cfg loom"), "-Clinker=x --cfg loom");
    }

    #[test]
    fn a_command_is_shown_as_typed() {
        let mut command = Command::new("/somewhere/bin/cargo");
        command.args(["test", "--doc"]);
        assert_eq!(shown(&command), "cargo test --doc");
    }

    #[test]
    fn a_program_that_is_missing_is_a_fault_of_the_system() {
        let fault = succeeds(&mut Command::new("no-such-program-anywhere")).unwrap_err();
        assert_eq!(fault.exit_code(), 2);
        assert!(fault.to_string().contains("no-such-program-anywhere"), "{fault}");
    }
}
