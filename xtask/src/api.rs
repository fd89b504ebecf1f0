//! The HTTP API of a real server, compared with its own OpenAPI document by schemathesis.
//!
//! Owns the database that is served, the servers, and what schemathesis checks; what it leaves out is in
//! `xtask/schemathesis.toml`. It generates valid and invalid requests from the document; every response must be one
//! that the document describes, and none may be a 5xx. Whether an answer is correct is tested in
//! `crates/server/tests`.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::args::ApiOptions;
use crate::error::Error;
use crate::step::{Outcome, Step, program, run_all};
use crate::tools;
use crate::workspace::{Workspace, describe_exit, display, run_captured, run_program};

/// Seed of the whole test run, so that a failure can be repeated.
const SEED: u64 = 1;

/// Maximum number of generated requests of one kind to one route. All sessions together then take about a minute.
const EXAMPLES: u32 = 40;

/// Responses are as the document describes them, other methods are refused with 405, and deleted rows are gone.
const CHECKS: &str = "not_a_server_error,response_schema_conformance,status_code_conformance,\
    content_type_conformance,response_headers_conformance,unsupported_method,allow_header_conformance,use_after_free";

pub(crate) fn run(workspace: &Workspace, options: ApiOptions) -> ExitCode {
    let set_up = Step::new("set-up", || tools::set_up_api(workspace));
    run_all(vec![set_up, step(workspace, options)], false)
}

pub(crate) fn step(workspace: &Workspace, options: ApiOptions) -> Step<'_> {
    Step::new("api", move || check(workspace, options))
}

/// A server, and the requests that are sent to it.
struct Session {
    name: &'static str,
    /// Ending of the file with the token that is used.
    token: &'static str,
    serve: &'static [&'static str],
    variables: &'static [(&'static str, &'static str)],
    schemathesis: &'static [&'static str],
}

/// A generated request may register `/` as a root and start its scan, or enqueue a command, so requests that change
/// something are sent to servers without a worker. These allow commands, so that their dead letters can be retried.
const SESSIONS: [Session; 3] = [
    // The counters of a worker are part of the API. Other methods are answered with 403, see
    // `crates/server/tests/api/security.rs`.
    Session {
        name: "reads",
        token: "read-token",
        serve: &[],
        variables: &[],
        schemathesis: &["--include-method", "GET"],
    },
    // Without the requests that delete what the others need; the last session has them.
    Session {
        name: "changes",
        token: "token",
        serve: &["--no-worker"],
        variables: &[("GRISTMILL_SERVE_ALLOW_EXEC", "true")],
        schemathesis: &["--exclude-method", "DELETE", "--exclude-path-regex", "/dead-letters/(retry|discard)$"],
    },
    Session {
        name: "all",
        token: "token",
        serve: &["--no-worker"],
        variables: &[("GRISTMILL_SERVE_ALLOW_EXEC", "true")],
        schemathesis: &[],
    },
];

fn check(workspace: &Workspace, options: ApiOptions) -> Result<Outcome, Error> {
    let Some(schemathesis) = tools::schemathesis(workspace)? else {
        return Ok(Outcome::NotDone("NOT RUN", "schemathesis is missing and could not be installed".to_owned()));
    };
    let built = program(&mut workspace.cargo(["build", "--quiet", "-p", "gristmill"]))?;
    if built != Outcome::Passed {
        return Ok(built);
    }
    let (seed, examples) = (options.seed.unwrap_or(SEED), options.examples.unwrap_or(EXAMPLES));
    let library = Library::create(workspace)?;
    let mut failures = Vec::new();
    for session in &SESSIONS {
        println!("session `{}`", session.name);
        let mut server = Server::start(&library, session)?;
        let mut command = schemathesis_command(workspace, &schemathesis, (&library, &server, session))?;
        command.args(["--seed", &seed.to_string(), "--max-examples", &examples.to_string()]);
        let has_passed = run_program(&mut command)?;
        let status = server.stop()?;
        if !has_passed {
            failures.push(format!("schemathesis has findings in the session `{}`, see above", session.name));
        }
        if !status.success() {
            failures.push(format!(
                "`gristmill serve` (session `{}`) ended with {}",
                session.name,
                describe_exit(status)
            ));
        }
        if !has_passed || !status.success() {
            eprint!("{}", server.log());
        }
    }
    if failures.is_empty() {
        return Ok(Outcome::Passed);
    }
    Ok(Outcome::Failed(format!(
        "{}; repeat it with `cargo xtask api --seed {seed} --examples {examples}`; the files are in {}",
        failures.join("; "),
        library.folder.display()
    )))
}

fn schemathesis_command(
    workspace: &Workspace,
    program: &Path,
    (library, server, session): (&Library, &Server, &Session),
) -> Result<Command, Error> {
    let token = library.read(&format!("api.db.{}", session.token))?;
    let origin = format!("http://{}", server.address);
    let mut command = Command::new(program);
    command.current_dir(&library.folder).arg("--config-file").arg(settings(workspace)).arg("--no-color");
    command.args(["run", &format!("{origin}/api/v1/openapi.json"), "--checks", CHECKS, "--continue-on-failure"]);
    // Examples of earlier runs would make the result depend on them.
    command.args(["--generation-database", "none"]).args(session.schemathesis);
    // As a browser sends it, so that signing in is not refused.
    command.args(["--header", &format!("Origin: {origin}")]);
    println!("{} --header 'Authorization: Bearer …' …", display(&command));
    command.args(["--header", &format!("Authorization: Bearer {}", token.trim())]);
    Ok(command)
}

/// Settings of schemathesis: what is left out, known ids, and the warnings that are failures.
fn settings(workspace: &Workspace) -> PathBuf {
    workspace.root.join("xtask").join("schemathesis.toml")
}

/// A folder with files, and a database of them with tasks and a dead letter.
struct Library {
    folder: PathBuf,
    gristmill: PathBuf,
}

impl Library {
    fn create(workspace: &Workspace) -> Result<Self, Error> {
        let library =
            Library { folder: workspace.target.join("api"), gristmill: workspace.target.join("debug/gristmill") };
        library.write_files().map_err(|error| library.failed("write", &library.folder, &error))?;
        library.gristmill(&["scan", "--yes", "library", "other"])?;
        // One task of each status that a worker leaves, a dead letter, and tasks that wait.
        library.gristmill(&["enqueue", "exec", "--", "true"])?;
        library.gristmill(&["enqueue", "exec", "--max-attempts", "1", "--document", "d-1", "--", "false"])?;
        library.gristmill(&["enqueue", "exec", "--max-attempts", "1", "--", "sh", "-c", "echo reason >&2; exit 3"])?;
        library.gristmill(&["enqueue", "exec", "--", "false"])?;
        library.gristmill(&["worker", "--once", "--quiet"])?;
        library.gristmill(&["enqueue", "report", "--payload", r#"{"day": 1}"#, "--unique-key", "daily"])?;
        library.gristmill(&["enqueue", "report", "--payload", "[]", "--run-after", "in 2h", "--priority", "5"])?;
        Ok(library)
    }

    fn write_files(&self) -> io::Result<()> {
        match fs::remove_dir_all(&self.folder) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let root = self.folder.join("library");
        fs::create_dir_all(self.folder.join("other"))?;
        for folder in ["a/inner", "b/inner", "empty/inside"] {
            fs::create_dir_all(root.join(folder))?;
        }
        let image: Vec<u8> = (0..20_000_u32).map(|n| (n % 251) as u8).collect();
        for (name, content) in [
            ("a/photo.jpg", &image[..]),
            ("b/photo.jpg", &image),
            ("b/copy.PNG", &image),
            ("a/inner/notes.txt", b"the same text"),
            ("b/inner/notes.txt", b"the same text"),
            ("a/film.mp4", b"not really a film"),
            ("only.txt", b"has no copy"),
            ("zero", b""),
        ] {
            fs::write(root.join(name), content)?;
        }
        fs::write(self.folder.join("other/photo.jpg"), &image)?;
        fs::hard_link(root.join("only.txt"), root.join("second-name.txt"))?;
        symlink("nowhere", root.join("broken"))?;
        // Without the settings of the user.
        fs::write(self.folder.join("config.toml"), "")
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.gristmill);
        command.current_dir(&self.folder).args(["--db", "api.db", "--config", "config.toml"]).args(args);
        command
    }

    fn gristmill(&self, args: &[&str]) -> Result<(), Error> {
        let mut command = self.command(args);
        let output = run_captured(&mut command)?;
        if output.status.success() {
            return Ok(());
        }
        let text = String::from_utf8_lossy(&output.stderr);
        Err(Error::System(format!("`{}`: {}\n{text}", display(&command), describe_exit(output.status))))
    }

    fn read(&self, name: &str) -> Result<String, Error> {
        let file = self.folder.join(name);
        fs::read_to_string(&file).map_err(|error| self.failed("read", &file, &error))
    }

    fn failed(&self, what: &str, file: &Path, error: &io::Error) -> Error {
        Error::System(format!("cannot {what} {}: {error}", file.display()))
    }
}

/// A running server. It does not outlive this value.
struct Server {
    child: Child,
    address: String,
    log: PathBuf,
}

impl Server {
    fn start(library: &Library, session: &Session) -> Result<Self, Error> {
        let log = library.folder.join(format!("server-{}.log", session.name));
        let errors = File::create(&log).map_err(|error| library.failed("write", &log, &error))?;
        let mut command = library.command(&["serve", "--listen", "0", "--json"]);
        command.args(session.serve).envs(session.variables.iter().copied());
        println!("{}", display(&command));
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(errors).spawn();
        let child = child.map_err(|error| Error::System(format!("cannot start `{}`: {error}", display(&command))))?;
        let mut server = Server { child, address: String::new(), log };
        let printed = server.child.stdout.take().map(serde_json::Deserializer::from_reader);
        let started = printed.and_then(|printed| printed.into_iter::<Value>().next());
        match started.and_then(Result::ok).and_then(|started| Some(started.get("address")?.as_str()?.to_owned())) {
            Some(address) => server.address = address,
            None => return Err(Error::System(format!("`{}` printed no address\n{}", display(&command), server.log()))),
        }
        Ok(server)
    }

    fn stop(&mut self) -> Result<ExitStatus, Error> {
        // An error means that it has ended, which its status tells.
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        self.child.wait().map_err(|error| Error::System(format!("cannot wait for `gristmill serve`: {error}")))
    }

    fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Both fail if it has ended and was waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_stream_of_events_is_left_out() {
        let text = fs::read_to_string(settings(&Workspace::find().unwrap())).unwrap();
        let left_out: Vec<&str> = text.split("[[operations]]").filter(|part| part.contains("enabled")).collect();
        let [events] = left_out[..] else { panic!("{left_out:?}") };
        assert!(events.contains("include-path = \"/api/v1/events\"\n"), "{events}");
        assert_eq!(SESSIONS[2].schemathesis, [""; 0]);
    }
}
