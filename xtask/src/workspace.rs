//! The workspace: its root, its target folder, and how cargo and other programs are run in it.
//!
//! Owns the paths and the environment of these programs. It does not read cargo's configuration files: every step
//! builds under `CARGO_TARGET_DIR`, or under `target/` of the root if that is not set.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Output, Stdio};

use crate::error::Error;

/// The checkout that `cargo xtask` was called in.
#[derive(Debug)]
pub(crate) struct Workspace {
    pub(crate) root: PathBuf,
    pub(crate) target: PathBuf,
}

impl Workspace {
    pub(crate) fn find() -> Result<Self, Error> {
        // Cargo sets the manifest's folder when it starts xtask. The folder at build time is only a fallback: checkouts
        // that share a target folder share this program, too.
        let manifest_dir = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
        let manifest_dir = PathBuf::from(manifest_dir);
        let root = manifest_dir.parent().filter(|root| root.join("Cargo.toml").is_file()).ok_or_else(|| {
            Error::User(format!("no Cargo.toml above {}; run `cargo xtask` in the checkout", manifest_dir.display()))
        })?;
        let target = std::env::var_os("CARGO_TARGET_DIR").filter(|path| !path.is_empty());
        let target = target.map_or_else(|| root.join("target"), PathBuf::from);
        // Steps run at the root, so a relative folder is resolved against the current one.
        let target = std::path::absolute(&target)
            .map_err(|error| Error::System(format!("cannot resolve CARGO_TARGET_DIR {}: {error}", target.display())))?;
        Ok(Workspace { root: root.to_path_buf(), target })
    }

    /// Cargo of the toolchain that built xtask.
    pub(crate) fn cargo<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Command {
        self.program(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()), arguments)
    }

    /// A program that runs at the root of the workspace.
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

/// The caller's `RUSTFLAGS` followed by more flags, so that settings such as the linker are kept.
pub(crate) fn rustflags_with(more: &str) -> String {
    append_flags(std::env::var("RUSTFLAGS").ok().as_deref(), more)
}

fn append_flags(flags: Option<&str>, more: &str) -> String {
    match flags {
        Some(flags) if !flags.is_empty() => format!("{flags} {more}"),
        _ => more.to_owned(),
    }
}

/// The command as it is typed.
pub(crate) fn display(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name().unwrap_or(command.get_program());
    let args = std::iter::once(program).chain(command.get_args());
    args.map(|arg| arg.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

/// Runs a program with inherited output. Returns whether it succeeded.
pub(crate) fn run_program(command: &mut Command) -> Result<bool, Error> {
    Ok(command.status().map_err(|error| start_error(command, &error))?.success())
}

pub(crate) fn run_captured(command: &mut Command) -> Result<Output, Error> {
    command.stdin(Stdio::null()).output().map_err(|error| start_error(command, &error))
}

/// Whether a program can be started and succeeds.
pub(crate) fn runs(command: &mut Command) -> bool {
    run_captured(command).is_ok_and(|output| output.status.success())
}

/// Runs a program, prints its standard output, and passes each line to `on_line`.
pub(crate) fn watch_stdout(command: &mut Command, mut on_line: impl FnMut(&str)) -> Result<ExitStatus, Error> {
    let mut child = command.stdout(Stdio::piped()).spawn().map_err(|error| start_error(command, &error))?;
    let output = child.stdout.take();
    for_each_line(command, output, |line| {
        println!("{line}");
        on_line(line);
    })?;
    child.wait().map_err(|error| read_error(command, &error))
}

/// Runs a program and passes each line of its standard error to `on_line`, without printing it.
pub(crate) fn watch_stderr(command: &mut Command, on_line: impl FnMut(&str)) -> Result<ExitStatus, Error> {
    let mut child = command.stderr(Stdio::piped()).spawn().map_err(|error| start_error(command, &error))?;
    let errors = child.stderr.take();
    for_each_line(command, errors, on_line)?;
    child.wait().map_err(|error| read_error(command, &error))
}

fn for_each_line(command: &Command, from: Option<impl Read>, mut on_line: impl FnMut(&str)) -> Result<(), Error> {
    let from = from.ok_or_else(|| Error::System("no output to read".to_owned()))?;
    for line in BufReader::new(from).split(b'\n') {
        let line = line.map_err(|error| read_error(command, &error))?;
        on_line(&String::from_utf8_lossy(&line));
    }
    Ok(())
}

pub(crate) fn describe_exit(status: ExitStatus) -> String {
    status.code().map_or_else(|| status.to_string(), |code| format!("exit code {code}"))
}

fn start_error(command: &Command, error: &std::io::Error) -> Error {
    Error::System(format!("cannot start `{}`: {error}", display(command)))
}

fn read_error(command: &Command, error: &std::io::Error) -> Error {
    Error::System(format!("cannot read the output of `{}`: {error}", display(command)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_of_the_caller_come_first() {
        assert_eq!(append_flags(None, "--cfg loom"), "--cfg loom");
        assert_eq!(append_flags(Some(""), "--cfg loom"), "--cfg loom");
        assert_eq!(append_flags(Some("-Clinker=x"), "--cfg loom"), "-Clinker=x --cfg loom");
    }

    #[test]
    fn command_is_displayed_as_typed() {
        let mut command = Command::new("/somewhere/bin/cargo");
        command.args(["test", "--doc"]);
        assert_eq!(display(&command), "cargo test --doc");
    }

    #[test]
    fn missing_program_is_a_system_error() {
        let error = run_program(&mut Command::new("no-such-program-anywhere")).unwrap_err();
        assert_eq!(error.exit_code(), 2);
        assert!(error.to_string().contains("no-such-program-anywhere"), "{error}");
    }
}
