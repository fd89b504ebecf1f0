//! Runs the binary in an environment that does not depend on the user who runs the tests.

// Each test file is a separate program and uses a part of this module.
#![allow(dead_code)]

#[cfg(target_os = "linux")]
pub(crate) mod terminal;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Output, Stdio};
use std::time::{Duration, Instant};

use gristmill_store::Store;
use serde_json::Value;

/// A temporary home folder, empty at first.
pub(crate) struct Home {
    folder: tempfile::TempDir,
    /// Copy of the program, and the id of the user that runs it.
    unprivileged: Option<(PathBuf, u32)>,
}

/// Exit status and output of a run.
#[derive(Debug)]
pub(crate) struct RunOutput {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Home {
    pub(crate) fn new() -> Self {
        Home { folder: tempfile::tempdir().unwrap(), unprivileged: None }
    }

    /// Creates a home whose commands have no root rights: if the tests run as root, commands run as the user `nobody`.
    #[cfg(unix)]
    pub(crate) fn unprivileged() -> Self {
        use std::os::unix::fs::PermissionsExt;
        let mut home = Home::new();
        if !rustix::process::geteuid().is_root() {
            return home;
        }
        let program = home.path("gristmill");
        // Copied by another process: a file that this process has open for writing is inherited by processes that other
        // tests start meanwhile, and a file that is open for writing cannot be executed.
        let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_gristmill")).arg(&program).status();
        assert!(copied.unwrap().success());
        for path in [home.folder.path(), &program] {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
        }
        home.unprivileged = Some((program, 65_534));
        home
    }

    /// Changes the owner of all files to the user that runs commands.
    #[cfg(unix)]
    fn give_files_to_user(&self) {
        if let Some((_, user)) = &self.unprivileged {
            let mut chown = Command::new("chown");
            let given = chown.args(["-R", &format!("{user}:{user}")]).arg(self.folder.path()).status();
            assert!(given.unwrap().success());
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        path
    }

    /// Writes files whose names may be any bytes, relative to the home.
    #[cfg(unix)]
    pub(crate) fn files(&self, files: &[(&[u8], &[u8])]) {
        use std::os::unix::ffi::OsStrExt;
        for (name, content) in files {
            let path = self.folder.path().join(std::ffi::OsStr::from_bytes(name));
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, content).unwrap();
        }
    }

    /// Returns an absolute path without links, as scans record it.
    pub(crate) fn real(&self, name: &str) -> String {
        let home = std::fs::canonicalize(self.folder.path()).unwrap();
        home.join(name).to_str().unwrap().to_owned()
    }

    /// Returns the allocated size of a file in bytes.
    pub(crate) fn allocated(&self, name: &str) -> u64 {
        std::os::unix::fs::MetadataExt::blocks(&std::fs::metadata(self.path(name)).unwrap()) * 512
    }

    /// Scans quietly and returns the JSON summary.
    #[track_caller]
    pub(crate) fn scan(&self, folders: &[&str]) -> Value {
        self.json(&[&["scan", "--quiet"], folders].concat())
    }

    /// Returns the default path of the database.
    pub(crate) fn database(&self) -> PathBuf {
        self.path(".local/share/gristmill/gristmill.db")
    }

    /// Opens the default database in this process, and creates it if need be.
    pub(crate) fn store(&self) -> Store {
        let mut builder = std::fs::DirBuilder::new();
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        builder.recursive(true).create(self.database().parent().unwrap()).unwrap();
        Store::open(self.database()).unwrap()
    }

    pub(crate) fn command(&self, words: &[&str]) -> Command {
        let mut command = match &self.unprivileged {
            None => Command::new(env!("CARGO_BIN_EXE_gristmill")),
            #[cfg(unix)]
            Some((program, user)) => {
                use std::os::unix::process::CommandExt;
                self.give_files_to_user();
                let mut command = Command::new(program);
                command.uid(*user).gid(*user);
                command
            }
            #[cfg(not(unix))]
            Some(_) => unreachable!(),
        };
        command.args(words).env_clear().env("HOME", self.folder.path()).current_dir(self.folder.path());
        command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.env("NO_COLOR", "1").env("COLUMNS", "100");
        // Help is wrapped to the terminal, which standard input may be.
        command.stdin(Stdio::null());
        command
    }

    /// Returns the command with the default action for SIGHUP, even if the tests were started by `nohup`.
    #[cfg(unix)]
    pub(crate) fn with_default_sighup(&self, plain: &Command) -> Command {
        self.started_by("env", &["--default-signal=HUP"], plain)
    }

    /// Returns the command as started by another program with these arguments.
    #[cfg(unix)]
    pub(crate) fn started_by(&self, program: &str, words: &[&str], plain: &Command) -> Command {
        let mut command = Command::new(program);
        command.args(words).arg(plain.get_program()).args(plain.get_args());
        let variables = plain.get_envs().filter_map(|(name, value)| Some((name, value?)));
        command.env_clear().envs(variables).current_dir(self.folder.path()).stdin(Stdio::null());
        command
    }

    pub(crate) fn run(&self, words: &[&str]) -> RunOutput {
        RunOutput::of(&self.command(words).output().unwrap())
    }

    /// Runs a command with this standard input.
    pub(crate) fn run_with_input(&self, words: &[&str], input: &[u8]) -> RunOutput {
        let file = self.path("input");
        std::fs::write(&file, input).unwrap();
        let mut command = self.command(words);
        RunOutput::of(&command.stdin(std::fs::File::open(file).unwrap()).output().unwrap())
    }

    /// Runs a command with `--json` that must succeed, and parses its output.
    #[track_caller]
    pub(crate) fn json(&self, words: &[&str]) -> Value {
        let output = self.run(&[words, &["--json"]].concat());
        assert_eq!(output.code, Some(0), "{words:?}: {output:?}");
        output.json()
    }

    /// Runs a command and checks its exit status and streams. "" means an empty stream; other text must be contained.
    #[track_caller]
    pub(crate) fn check(&self, words: &[&str], code: i32, out: &str, err: &str) {
        self.run(words).check(&format!("{words:?}"), code, out, err);
    }
}

/// Checks that a passing test has waited for its processes: the folder is deleted now, and a process with an open database
/// in it would report an error.
impl Drop for Home {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let left = with_open_database(self.folder.path());
            assert!(left.is_empty(), "processes {left:?} still use a database of {}", self.folder.path().display());
        }
    }
}

/// Returns other processes with an open database in a folder. Returns none without /proc.
fn with_open_database(folder: &Path) -> Vec<u32> {
    let folder = std::fs::canonicalize(folder).unwrap_or_else(|_| folder.to_owned());
    let entries = |path: PathBuf| std::fs::read_dir(path).into_iter().flatten().flatten();
    let is_database = |file: PathBuf| {
        let file = std::fs::read_link(file).unwrap_or_default();
        file.starts_with(&folder) && file.extension().is_some_and(|extension| extension == "db")
    };
    // A child of this process has its open files, and its program, between fork and exec.
    let own = std::fs::read_link("/proc/self/exe").ok();
    entries("/proc".into())
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|process: &u32| std::fs::read_link(format!("/proc/{process}/exe")).ok() != own)
        .filter(|process| entries(format!("/proc/{process}/fd").into()).any(|entry| is_database(entry.path())))
        .collect()
}

impl RunOutput {
    pub(crate) fn of(output: &Output) -> Self {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        RunOutput { code: output.status.code(), out: text(&output.stdout), err: text(&output.stderr) }
    }

    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    #[track_caller]
    pub(crate) fn check(&self, what: &str, code: i32, out: &str, err: &str) {
        let text = format!("{what}: {:?}\n{}\n{}", self.code, self.out, self.err);
        assert_eq!(self.code, Some(code), "{text}");
        for (stream, expected) in [(&self.out, out), (&self.err, err)] {
            assert_eq!(stream.is_empty(), expected.is_empty(), "{text}");
            assert!(stream.contains(expected), "no {expected:?} in {text}");
        }
    }
}

/// Compares text with a snapshot in `tests`. To update snapshots: `GRISTMILL_BLESS=1 cargo test -p gristmill`.
#[track_caller]
pub(crate) fn assert_snapshot(file: &str, found: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(file);
    if std::env::var_os("GRISTMILL_BLESS").is_some() {
        std::fs::write(&path, found).unwrap();
    }
    let snapshot = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(found, snapshot, "{file} changed; to update it, run with GRISTMILL_BLESS=1");
}

/// Replaces the values of JSON by their types.
pub(crate) fn shape(value: &Value) -> Value {
    match value {
        Value::Null => "null".into(),
        Value::Bool(_) => "bool".into(),
        Value::Number(_) => "number".into(),
        Value::String(_) => "string".into(),
        Value::Array(items) => Value::Array(items.iter().map(shape).collect()),
        Value::Object(fields) => {
            Value::Object(fields.iter().map(|(name, value)| (name.clone(), shape(value))).collect())
        }
    }
}

/// Sends a signal to a process.
pub(crate) fn signal(process: &Child, name: &str) {
    let id = process.id().to_string();
    assert!(Command::new("kill").args(["-s", name, &id]).status().unwrap().success());
}

/// Waits until the condition is true, and returns false if it is not within a minute.
#[must_use]
pub(crate) fn becomes_true(mut condition: impl FnMut() -> bool) -> bool {
    let started = Instant::now();
    while !condition() {
        if started.elapsed() > Duration::from_secs(60) {
            return false;
        }
        std::thread::park_timeout(Duration::from_millis(10));
    }
    true
}

/// Returns the output of a process that has to end by itself. Kills it if it does not.
#[track_caller]
pub(crate) fn end_of(mut process: Child) -> RunOutput {
    let has_ended = becomes_true(|| process.try_wait().unwrap().is_some());
    process.kill().unwrap();
    let output = RunOutput::of(&process.wait_with_output().unwrap());
    assert!(has_ended, "the process does not end: {output:?}");
    output
}

/// A running scan that reads too slowly to finish.
pub(crate) struct SlowScan {
    pub(crate) process: Child,
    stderr: BufReader<ChildStderr>,
}

impl SlowScan {
    pub(crate) fn start(home: &Home, words: &[&str]) -> Self {
        let slow = ["scan", "-v", "--io-limit", "1B/s"];
        let mut command = home.command(&[&slow, words].concat());
        let mut process = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut stderr = BufReader::new(process.stderr.take().unwrap());
        let mut line = String::new();
        // The root is locked from the first phase on.
        while !line.contains("gristmill::commands::scan::progress: ") {
            line.clear();
            assert!(stderr.read_line(&mut line).unwrap() > 0, "the scan did not start");
        }
        SlowScan { process, stderr }
    }

    /// Interrupts the scan and returns its output.
    pub(crate) fn interrupt(mut self) -> RunOutput {
        signal(&self.process, "INT");
        // Reads standard error, so that a full pipe does not block the scan.
        std::io::copy(&mut self.stderr, &mut std::io::sink()).unwrap();
        RunOutput::of(&self.process.wait_with_output().unwrap())
    }
}

#[track_caller]
pub(crate) fn assert_shape(name: &str, value: &Value) {
    let text = serde_json::to_string_pretty(&shape(value)).unwrap();
    assert_snapshot(&format!("shapes/{name}.json"), &format!("{text}\n"));
}

/// Runs a test in a mount namespace, by starting this test program again. Skips it if mounting is not permitted.
#[track_caller]
pub(crate) fn with_mounts(name: &str, body: impl FnOnce()) {
    const INSIDE: &str = "GRISTMILL_TEST_MOUNTS";
    if std::env::var_os(INSIDE).is_some() {
        return body();
    }
    // As root of a user namespace, or as real root.
    let options: [&[&str]; 2] = [&["--map-root-user", "--mount"], &["--mount"]];
    let works = |option: &&[&str]| {
        let script = ["sh", "-c", "mount -t tmpfs -o size=1m none /tmp"];
        Command::new("unshare").args(*option).args(script).output().is_ok_and(|output| output.status.success())
    };
    let Some(option) = options.into_iter().find(|option| works(option)) else {
        eprintln!("SKIPPED {name}: `unshare --mount` may not mount a tmpfs here");
        return;
    };
    let this = std::env::current_exe().unwrap();
    let mut command = Command::new("unshare");
    let output = command.args(option).arg(this).args(["--exact", name]).env(INSIDE, "1").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

/// Mounts a tmpfs, or remounts it with other options; only inside [`with_mounts`].
pub(crate) fn mount(options: &str, folder: &Path) {
    let mut mount = Command::new("mount");
    let status = mount.args(["-t", "tmpfs", "-o", options, "none"]).arg(folder).status();
    assert!(status.unwrap().success());
}
