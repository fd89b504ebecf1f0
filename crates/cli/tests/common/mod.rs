//! The binary in surroundings that do not depend on who runs the test.

// Each test file is a program of its own and uses a part of this.
#![allow(dead_code)]

#[cfg(target_os = "linux")]
pub(crate) mod terminal;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Output, Stdio};

use gristmill_store::Store;
use serde_json::Value;

/// A home of its own, with nothing in it.
pub(crate) struct Home {
    folder: tempfile::TempDir,
    /// The program, and the user whom it runs as.
    unprivileged: Option<(PathBuf, u32)>,
}

/// What a run output, and how it ended.
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

    /// One whose commands may not read and write everything: run by root, they run as nobody.
    #[cfg(unix)]
    pub(crate) fn unprivileged() -> Self {
        use std::os::unix::fs::PermissionsExt;
        let mut home = Home::new();
        if !rustix::process::geteuid().is_root() {
            return home;
        }
        let program = home.path("gristmill");
        // By another process: while another test starts one, a file that is open for writing here is open there, too, and
        // what is open for writing cannot be run.
        let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_gristmill")).arg(&program).status();
        assert!(copied.unwrap().success());
        for path in [home.folder.path(), &program] {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
        }
        home.unprivileged = Some((program, 65_534));
        home
    }

    /// Gives all files to the user whom commands run as.
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

    /// Writes files whose names may be any bytes. Names are paths from the home on.
    #[cfg(unix)]
    pub(crate) fn files(&self, files: &[(&[u8], &[u8])]) {
        use std::os::unix::ffi::OsStrExt;
        for (name, content) in files {
            let path = self.folder.path().join(std::ffi::OsStr::from_bytes(name));
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, content).unwrap();
        }
    }

    /// The path as scans have it, without links.
    pub(crate) fn real(&self, name: &str) -> String {
        let home = std::fs::canonicalize(self.folder.path()).unwrap();
        home.join(name).to_str().unwrap().to_owned()
    }

    /// What a file takes on its disk, in bytes.
    pub(crate) fn allocated(&self, name: &str) -> u64 {
        std::os::unix::fs::MetadataExt::blocks(&std::fs::metadata(self.path(name)).unwrap()) * 512
    }

    /// Scans, and tells nobody.
    #[track_caller]
    pub(crate) fn scan(&self, folders: &[&str]) -> Value {
        self.json(&[&["scan", "--quiet"], folders].concat())
    }

    /// The database that commands use without a word about it.
    pub(crate) fn database(&self) -> PathBuf {
        self.path(".local/share/gristmill/gristmill.db")
    }

    /// The same, made if need be and opened from here.
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
        // The help is as wide as the terminal, and standard input may be one.
        command.stdin(Stdio::null());
        command
    }

    /// A command that can be sent SIGHUP, also where the tests were started by `nohup`.
    #[cfg(unix)]
    pub(crate) fn with_default_sighup(&self, plain: &Command) -> Command {
        self.started_by("env", &["--default-signal=HUP"], plain)
    }

    /// The command as another program starts it, which is named with its own words.
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

    /// Runs with something on standard input.
    pub(crate) fn run_with_input(&self, words: &[&str], input: &[u8]) -> RunOutput {
        let file = self.path("input");
        std::fs::write(&file, input).unwrap();
        let mut command = self.command(words);
        RunOutput::of(&command.stdin(std::fs::File::open(file).unwrap()).output().unwrap())
    }

    /// Runs what must succeed, and reads its JSON.
    #[track_caller]
    pub(crate) fn json(&self, words: &[&str]) -> Value {
        let output = self.run(&[words, &["--json"]].concat());
        assert_eq!(output.code, Some(0), "{words:?}: {output:?}");
        output.json()
    }

    /// Runs and compares. A stream that should hold nothing is given as "", any other as a part of it.
    #[track_caller]
    pub(crate) fn check(&self, words: &[&str], code: i32, out: &str, err: &str) {
        self.run(words).check(&format!("{words:?}"), code, out, err);
    }
}

/// Checks that a test which passes has waited for its processes: the folder is deleted now, and a process that still has a
/// database in it open would report that as an error.
impl Drop for Home {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let left = with_open_database(self.folder.path());
            assert!(
                left.is_empty(),
                "processes {left:?} still use a database of {}",
                self.folder.path().display()
            );
        }
    }
}

/// Other processes that have a database in a folder open. None where there is no /proc.
fn with_open_database(folder: &Path) -> Vec<u32> {
    let folder = std::fs::canonicalize(folder).unwrap_or_else(|_| folder.to_owned());
    let entries = |path: PathBuf| std::fs::read_dir(path).into_iter().flatten().flatten();
    let is_database = |file: PathBuf| {
        let file = std::fs::read_link(file).unwrap_or_default();
        file.starts_with(&folder) && file.extension().is_some_and(|extension| extension == "db")
    };
    entries("/proc".into())
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|process| *process != std::process::id())
        .filter(|process| {
            entries(format!("/proc/{process}/fd").into()).any(|entry| is_database(entry.path()))
        })
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
        let told = format!("{what}: {:?}\n{}\n{}", self.code, self.out, self.err);
        assert_eq!(self.code, Some(code), "{told}");
        for (stream, expected) in [(&self.out, out), (&self.err, err)] {
            assert_eq!(stream.is_empty(), expected.is_empty(), "{told}");
            assert!(stream.contains(expected), "no {expected:?} in {told}");
        }
    }
}

/// Compares with a file of `tests`. After a wanted change: `GRISTMILL_BLESS=1 cargo test -p gristmill`.
#[track_caller]
pub(crate) fn assert_snapshot(file: &str, found: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(file);
    if std::env::var_os("GRISTMILL_BLESS").is_some() {
        std::fs::write(&path, found).unwrap();
    }
    let held = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(found, held, "{file} changed; if it was meant to, run with GRISTMILL_BLESS=1");
}

/// The names and types in a JSON text; which values they have is another matter.
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

/// A scan that has begun, and reads so slowly that it never comes to its end.
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
        // From its first phase on the root is held.
        while !line.contains("gristmill::commands::scan::progress: ") {
            line.clear();
            assert!(stderr.read_line(&mut line).unwrap() > 0, "it never began");
        }
        SlowScan { process, stderr }
    }

    /// Interrupts it, and says how it ended.
    pub(crate) fn interrupt(mut self) -> RunOutput {
        signal(&self.process, "INT");
        // It must not be held up by a full pipe.
        std::io::copy(&mut self.stderr, &mut std::io::sink()).unwrap();
        RunOutput::of(&self.process.wait_with_output().unwrap())
    }
}

#[track_caller]
pub(crate) fn assert_shape(name: &str, value: &Value) {
    let text = serde_json::to_string_pretty(&shape(value)).unwrap();
    assert_snapshot(&format!("shapes/{name}.json"), &format!("{text}\n"));
}

/// Runs a test where it may mount, by running itself once more. Skipped where nobody may.
#[track_caller]
pub(crate) fn with_mounts(name: &str, body: impl FnOnce()) {
    const INSIDE: &str = "GRISTMILL_TEST_MOUNTS";
    if std::env::var_os(INSIDE).is_some() {
        return body();
    }
    // As root of a user namespace, or as root.
    let ways: [&[&str]; 2] = [&["--map-root-user", "--mount"], &["--mount"]];
    let probe = |way: &&[&str]| {
        let script = ["sh", "-c", "mount -t tmpfs -o size=1m none /tmp"];
        Command::new("unshare").args(*way).args(script).output().is_ok_and(|output| output.status.success())
    };
    let Some(way) = ways.into_iter().find(|way| probe(way)) else {
        eprintln!("SKIPPED {name}: `unshare --mount` may not mount a tmpfs here");
        return;
    };
    let this = std::env::current_exe().unwrap();
    let mut command = Command::new("unshare");
    let output = command.args(way).arg(this).args(["--exact", name]).env(INSIDE, "1").output().unwrap();
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

/// Mounts a tmpfs, or changes how it is mounted; only inside [`with_mounts`].
pub(crate) fn mount(options: &str, folder: &Path) {
    let mut mount = Command::new("mount");
    let status = mount.args(["-t", "tmpfs", "-o", options, "none"]).arg(folder).status();
    assert!(status.unwrap().success());
}
