//! Where RabbitMQ and its Erlang are on this machine, and how a program of theirs is called.
//!
//! Owns the lookup: what is installed goes first, then what we got ourselves (`fetch`). Versions are found by
//! looking. The scripts that Debian ships are not used: they have the places of an installed Erlang written into
//! them, and a shell between us and the broker would be what a signal reaches.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::Error;
use crate::{fetch, tools};

/// A RabbitMQ that can be started, with the Erlang it runs on.
#[derive(Clone, Debug)]
pub struct Installation {
    root: PathBuf,
    /// The folder of RabbitMQ: `plugins`, `escript`.
    rabbitmq: PathBuf,
    /// The folder of Erlang: `lib`, and beside it the runtime.
    erlang: PathBuf,
    /// Where the runtime's own programs are.
    programs: PathBuf,
}

impl Installation {
    /// The RabbitMQ that is installed, else the one that [`Kit::get`] has got.
    pub fn find() -> Result<Installation, Error> {
        let installed = Installation::under(Path::new("/"));
        let ours =
            || fetch::complete(&tools().ok()?.join("rabbitmq")).and_then(|root| Installation::under(&root));
        installed.or_else(ours).ok_or(Error::Missing)
    }

    /// The same, and where there is none, one is downloaded into our folder for tools. That takes apt-get and some
    /// 35 MB, needs no root, and installs and starts nothing.
    pub fn install() -> Result<Installation, Error> {
        if let Ok(kit) = Installation::find() {
            return Ok(kit);
        }
        let root = fetch::fetch(&tools()?.join("rabbitmq"))?;
        Installation::under(&root).ok_or_else(|| {
            Error::NotGot(format!("what was unpacked in {} is no RabbitMQ that we know", root.display()))
        })
    }

    /// The kit of a root folder, as Debian lays it out. Erlang may be installed where RabbitMQ is not: then only
    /// the rest was downloaded.
    fn under(root: &Path) -> Option<Installation> {
        let rabbitmq = last_with_prefix(&root.join("usr/lib/rabbitmq/lib"), "rabbitmq_server-")?;
        let erlangs = [root, Path::new("/")].map(|root| root.join("usr/lib/erlang"));
        erlangs.into_iter().find_map(|erlang| {
            let programs = last_with_prefix(&erlang, "erts-")?.join("bin");
            let whole = programs.join("erlexec").is_file() && rabbitmq.join("plugins").is_dir();
            whole.then(|| Installation {
                root: root.to_owned(),
                rabbitmq: rabbitmq.clone(),
                erlang,
                programs,
            })
        })
    }

    /// A command-line client of the kit, or of the system: `amqp-consume` and its like.
    pub fn tool(&self, name: &str) -> Option<Command> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let mut folders = std::iter::once(self.root.join("usr/bin")).chain(std::env::split_paths(&path));
        let program = folders.find_map(|folder| Some(folder.join(name)).filter(|path| path.is_file()))?;
        let mut command = Command::new(program);
        self.with_libraries(&mut command);
        Some(command)
    }

    /// Libraries of Erlang that were unpacked while Erlang itself is installed.
    pub(crate) fn more_libraries(&self) -> Option<PathBuf> {
        let unpacked = self.root.join("usr/lib/erlang/lib");
        (unpacked.is_dir() && !unpacked.starts_with(&self.erlang)).then_some(unpacked)
    }

    /// The program that becomes Erlang's machine: the same process, no shell between.
    pub(crate) fn erlang(&self) -> Program {
        Program { path: self.programs.join("erlexec"), environment: self.environment() }
    }

    /// The program by which the nodes of a machine find each other.
    pub(crate) fn epmd(&self) -> Program {
        Program { path: self.programs.join("epmd"), environment: self.environment() }
    }

    /// The file of `rabbitmqctl`, which Erlang runs.
    pub(crate) fn ctl(&self) -> PathBuf {
        self.rabbitmq.join("escript/rabbitmqctl")
    }

    /// The applications that RabbitMQ is made of, without its plugins, which lie in the same folder. Erlang looks
    /// for each module in one folder after another, and most of them are plugins': with those left out, a broker
    /// starts in half the time.
    pub(crate) fn applications(&self) -> Vec<PathBuf> {
        let is_plugin =
            |path: &PathBuf| has_prefix(path, "rabbitmq_") && !has_prefix(path, "rabbitmq_prelaunch");
        entries_of(&self.rabbitmq.join("plugins")).filter(|path| !is_plugin(path)).collect()
    }

    /// The plugin rabbitmq_management and the plugins that it needs. Debian's package has them all.
    pub(crate) fn management_plugins(&self) -> Result<Vec<PathBuf>, Error> {
        let folder = self.rabbitmq.join("plugins");
        let found = |name: &&str| {
            let prefix = format!("{name}-");
            entries_of(&folder)
                .find(|path| has_prefix(path, &prefix))
                .ok_or_else(|| Error::NoPlugin { name: (*name).to_owned(), folder: folder.clone() })
        };
        ["rabbitmq_management", "rabbitmq_management_agent", "rabbitmq_web_dispatch"]
            .iter()
            .map(found)
            .collect()
    }

    /// Everything that a program of the kit finds in its environment; nothing of ours gets there by itself, since
    /// a stray `RABBITMQ_…` or `ERL_…` of the caller's shell would change the broker.
    fn environment(&self) -> Vec<(&'static str, OsString)> {
        let mut environment = vec![
            ("ROOTDIR", self.erlang.clone().into()),
            ("BINDIR", self.programs.clone().into()),
            ("EMU", "beam".into()),
            ("PROGNAME", "erl".into()),
            ("LANG", "C.UTF-8".into()),
            ("PATH", std::env::var_os("PATH").unwrap_or_default()),
        ];
        environment.extend(self.library_path().map(|path| ("LD_LIBRARY_PATH", path)));
        environment
    }

    fn with_libraries(&self, command: &mut Command) {
        if let Some(path) = self.library_path() {
            command.env("LD_LIBRARY_PATH", path);
        }
    }

    /// Where the shared libraries are that came with the kit. The system's own need no telling.
    fn library_path(&self) -> Option<OsString> {
        if self.root == Path::new("/") {
            return None;
        }
        let folders = ["usr/lib", "lib"].iter().flat_map(|folder| folders_in(&self.root.join(folder)));
        let of_a_machine = |path: &PathBuf| path.file_name().is_some_and(|name| contains(name, "-linux-"));
        let folders: Vec<PathBuf> = folders.filter(of_a_machine).collect();
        (!folders.is_empty()).then(|| joined(&folders))
    }
}

/// A program of the kit and the whole of its environment.
pub(crate) struct Program {
    pub(crate) path: PathBuf,
    pub(crate) environment: Vec<(&'static str, OsString)>,
}

fn last_with_prefix(folder: &Path, prefix: &str) -> Option<PathBuf> {
    folders_in(folder).filter(|path| has_prefix(path, prefix)).max()
}

fn has_prefix(path: &Path, prefix: &str) -> bool {
    path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(prefix.as_bytes()))
}

fn folders_in(folder: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    entries_of(folder).filter(|path| path.is_dir())
}

fn entries_of(folder: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    let entries = std::fs::read_dir(folder).into_iter().flatten();
    entries.filter_map(|entry| Some(entry.ok()?.path()))
}

fn contains(name: &OsStr, part: &str) -> bool {
    name.to_str().is_some_and(|name| name.contains(part))
}

pub(crate) fn joined(folders: &[PathBuf]) -> OsString {
    // A folder with a colon in its name cannot be passed to Erlang, which then fails with its own error.
    std::env::join_paths(folders).unwrap_or_default()
}
