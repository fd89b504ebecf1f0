//! Runs one program and measures its duration, CPU time and peak memory.
//!
//! Owns the measurement and the state of the system's file caches before it. The program is started by a small
//! intermediate process (`run-one`): Linux counts the parent's memory at the time of the start into the peak of the
//! child, and the benchmark process holds the expected results of whole trees.

use std::{
    ffi::OsString,
    fs::{self, File, OpenOptions},
    io::{self, ErrorKind, Read, Write},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Instant,
};

use wait4::Wait4;

const DROP_CACHES: &str = "/proc/sys/vm/drop_caches";

/// Program to start, its arguments and its expected exit codes.
pub(crate) struct CommandLine {
    pub(crate) program: PathBuf,
    pub(crate) args: Vec<OsString>,
    /// Exit statuses that count as success.
    pub(crate) success_codes: &'static [i32],
}

/// Measurements of one run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    pub(crate) seconds: f64,
    pub(crate) peak_mib: f64,
    /// CPU time in seconds, including that of child processes it waited for.
    pub(crate) cpu: f64,
}

/// Runs the program with its home folder in `scratch` and its standard output in the file `stdout` there.
pub(crate) fn run(command_line: &CommandLine, scratch: &Path) -> Result<Run, String> {
    let context = |error: io::Error| format!("{}: {error}", command_line.program.display());
    let stdout = File::create(scratch.join("stdout")).map_err(context)?;
    let report = scratch.join("report");
    let mut command = Command::new(std::env::current_exe().map_err(context)?);
    command.arg("run-one").arg(&report).arg(&command_line.program).args(&command_line.args);
    isolate(&mut command, scratch).map_err(context)?;
    let output = command.stdin(Stdio::null()).stdout(stdout).stderr(Stdio::piped());
    let output = output.spawn().and_then(std::process::Child::wait_with_output).map_err(context)?;
    let stderr = || String::from_utf8_lossy(&output.stderr).trim().to_owned();
    let report = fs::read_to_string(&report).map_err(|error| format!("{} {}", context(error), stderr()))?;
    let (run, code) = read(&report).ok_or_else(|| format!("invalid report `{report}`: {}", stderr()))?;
    if !command_line.success_codes.contains(&code) {
        return Err(format!("{} exited with status {code}: {}", command_line.program.display(), stderr()));
    }
    Ok(run)
}

/// Sets the folder and the environment of a command: the user's settings and caches must not influence the result.
/// Caches of earlier runs in `scratch` are kept on purpose.
pub(crate) fn isolate(command: &mut Command, scratch: &Path) -> io::Result<()> {
    for (variable, folder) in [
        ("HOME", "home"),
        ("XDG_CACHE_HOME", "home/cache"),
        ("XDG_CONFIG_HOME", "home/config"),
        ("XDG_DATA_HOME", "home/data"),
    ] {
        fs::create_dir_all(scratch.join(folder))?;
        command.env(variable, scratch.join(folder));
    }
    let variables = std::env::vars_os().map(|(name, _)| name);
    variables.filter(|name| name.to_string_lossy().starts_with("GRISTMILL_")).for_each(|name| {
        command.env_remove(name);
    });
    command.current_dir(scratch);
    Ok(())
}

fn read(report: &str) -> Option<(Run, i32)> {
    let mut words = report.split_whitespace();
    let mut number = || words.next()?.parse().ok();
    let (seconds, peak_mib, cpu) = (number()?, number()?, number()?);
    Some((Run { seconds, peak_mib, cpu }, words.next()?.parse().ok()?))
}

/// Runs as the intermediate process: starts the program and writes the measurements to the report file.
pub(crate) fn run_one(args: &[OsString]) -> Result<(), String> {
    let [report, program, args @ ..] = args else {
        return Err("usage: run-one REPORT PROGRAM [ARGS]".into());
    };
    let context = |error: io::Error| format!("{}: {error}", program.display());
    let start = Instant::now();
    let mut child = Command::new(program).args(args).spawn().map_err(context)?;
    let usage = child.wait4().map_err(context)?;
    let seconds = start.elapsed().as_secs_f64();
    let peak_mib = usage.rusage.maxrss as f64 / f64::from(1 << 20);
    let cpu = (usage.rusage.utime + usage.rusage.stime).as_secs_f64();
    let code = usage.status.code().unwrap_or(-1);
    fs::write(report, format!("{seconds} {peak_mib} {cpu} {code}")).map_err(context)
}

/// Runs a program that prints exactly `N` numbers.
pub(crate) fn numbers<const N: usize>(command: &mut Command) -> Result<[f64; N], String> {
    let program = command.get_program().to_owned();
    let context = |error: &dyn std::fmt::Display| format!("{}: {error}", program.display());
    let output = command.output().map_err(|error| context(&error))?;
    if !output.status.success() {
        return Err(context(&String::from_utf8_lossy(&output.stderr)));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    parse_numbers(&text).ok_or_else(|| context(&format!("printed {text:?} instead of {N} numbers")))
}

/// Returns a command that runs a benchmark of this program, or of an earlier build of it.
pub(crate) fn benchmark_command(before: Option<&Path>, name: &str) -> Result<Command, String> {
    let program = before.map_or_else(std::env::current_exe, |program| Ok(program.to_owned()));
    let mut command = Command::new(program.map_err(|error| error.to_string())?);
    command.arg(name);
    Ok(command)
}

fn parse_numbers<const N: usize>(line: &str) -> Option<[f64; N]> {
    let words = line.split_whitespace().map(|word| word.parse().ok());
    words.collect::<Option<Vec<f64>>>()?.try_into().ok()
}

/// Returns whether this process has permission to empty the system's file caches.
pub(crate) fn can_drop_caches() -> bool {
    OpenOptions::new().write(true).open(DROP_CACHES).is_ok()
}

/// Empties the system's caches of files, folders and inodes.
pub(crate) fn drop_caches() -> Result<(), String> {
    sync_disks()?;
    let drop = || OpenOptions::new().write(true).open(DROP_CACHES)?.write_all(b"3");
    drop().map_err(|error| format!("{DROP_CACHES}: {error}"))
}

/// Waits until all written data is on disk, so that one run does not slow down the next.
pub(crate) fn sync_disks() -> Result<(), String> {
    Command::new("sync").status().map(drop).map_err(|error| format!("sync: {error}"))
}

/// Reads every regular file of a tree, so that the system's cache holds as much of it as fits. Files and folders that
/// this user cannot read are skipped.
pub(crate) fn warm_caches(root: &Path) -> io::Result<()> {
    let mut buffer = vec![0; 1 << 20];
    let mut folders = vec![root.to_path_buf()];
    while let Some(folder) = folders.pop() {
        let entries = match fs::read_dir(folder) {
            Err(error) if error.kind() == ErrorKind::PermissionDenied => continue,
            entries => entries?,
        };
        for entry in entries {
            let entry = entry?;
            let kind = entry.file_type()?;
            if kind.is_dir() {
                folders.push(entry.path());
            } else if kind.is_file() {
                match File::open(entry.path()) {
                    Ok(mut file) => while file.read(&mut buffer)? > 0 {},
                    Err(error) if error.kind() == ErrorKind::PermissionDenied => {}
                    Err(error) => return Err(error),
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_with_another_count_or_text_are_rejected() {
        assert_eq!(parse_numbers("1 2.5\n"), Some([1.0, 2.5]));
        assert_eq!(parse_numbers::<2>("1"), None);
        assert_eq!(parse_numbers::<2>("1 2 3"), None);
        assert_eq!(parse_numbers::<2>("1 two"), None);
    }
}
