//! Finds RabbitMQ and Erlang on this machine, and defines how their programs are called.
//!
//! Owns the lookup: an installed RabbitMQ first, then a downloaded one (`fetch`). Debian's scripts are not used,
//! because they contain the paths of an installed Erlang, and signals would reach their shell instead of the broker.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::Error;
use crate::{fetch, tools};

/// A RabbitMQ that can be started, with the Erlang it runs on.
#[derive(Clone, Debug)]
pub struct Installation {
    root: PathBuf,
    /// Folder of RabbitMQ, with `plugins` and `escript`.
    rabbitmq: PathBuf,
    /// Folder of Erlang, with `lib` and the runtime.
    erlang: PathBuf,
    /// Folder of the runtime's programs.
    programs: PathBuf,
}

impl Installation {
    /// Finds the installed RabbitMQ, or the one that [`Installation::install`] has downloaded.
    pub fn find() -> Result<Installation, Error> {
        let installed = Installation::under(Path::new("/"));
        let downloaded =
            || fetch::complete(&tools().ok()?.join("rabbitmq")).and_then(|root| Installation::under(&root));
        installed.or_else(downloaded).ok_or(Error::Missing)
    }

    /// Finds RabbitMQ, or downloads it into the folder for tools. A download needs apt-get and about 35 MB, but no
    /// root; nothing is installed or started.
    pub fn install() -> Result<Installation, Error> {
        if let Ok(installation) = Installation::find() {
            return Ok(installation);
        }
        let root = fetch::fetch(&tools()?.join("rabbitmq"))?;
        Installation::under(&root)
            .ok_or_else(|| Error::DownloadFailed(format!("{} has no RabbitMQ in Debian's layout", root.display())))
    }

    /// The installation under a root folder with Debian's layout. If Erlang is installed and RabbitMQ is not, only the
    /// rest was downloaded.
    fn under(root: &Path) -> Option<Installation> {
        let rabbitmq = last_with_prefix(&root.join("usr/lib/rabbitmq/lib"), "rabbitmq_server-")?;
        let erlangs = [root, Path::new("/")].map(|root| root.join("usr/lib/erlang"));
        erlangs.into_iter().find_map(|erlang| {
            let programs = last_with_prefix(&erlang, "erts-")?.join("bin");
            let is_complete = programs.join("erlexec").is_file() && rabbitmq.join("plugins").is_dir();
            is_complete.then(|| Installation { root: root.to_owned(), rabbitmq: rabbitmq.clone(), erlang, programs })
        })
    }

    /// A command-line client such as `amqp-consume`, of the installation or of the system.
    pub fn tool(&self, name: &str) -> Option<Command> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let mut folders = std::iter::once(self.root.join("usr/bin")).chain(std::env::split_paths(&path));
        let program = folders.find_map(|folder| Some(folder.join(name)).filter(|path| path.is_file()))?;
        let mut command = Command::new(program);
        command.envs(self.library_path().map(|path| ("LD_LIBRARY_PATH", path)));
        Some(command)
    }

    /// Libraries of Erlang that were downloaded while Erlang itself is installed.
    pub(crate) fn more_libraries(&self) -> Option<PathBuf> {
        let unpacked = self.root.join("usr/lib/erlang/lib");
        (unpacked.is_dir() && !unpacked.starts_with(&self.erlang)).then_some(unpacked)
    }

    /// A program of the runtime: `erlexec`, which becomes the Erlang VM in the same process, without a shell, or `epmd`,
    /// by which the Erlang nodes of a machine find each other.
    pub(crate) fn program(&self, name: &str) -> Program {
        Program { path: self.programs.join(name), environment: self.environment() }
    }

    pub(crate) fn ctl(&self) -> PathBuf {
        self.rabbitmq.join("escript/rabbitmqctl")
    }

    /// Applications of RabbitMQ without its plugins, which are in the same folder. Erlang searches the folders for each
    /// module; without the plugins, a broker starts in half the time.
    pub(crate) fn applications(&self) -> Vec<PathBuf> {
        let is_plugin = |path: &PathBuf| has_prefix(path, "rabbitmq_") && !has_prefix(path, "rabbitmq_prelaunch");
        entries_of(&self.rabbitmq.join("plugins")).filter(|path| !is_plugin(path)).collect()
    }

    /// The plugin rabbitmq_management and the plugins that it needs, all of which are in Debian's package.
    pub(crate) fn management_plugins(&self) -> Result<Vec<PathBuf>, Error> {
        let folder = self.rabbitmq.join("plugins");
        let find_plugin = |name: &&str| {
            let prefix = format!("{name}-");
            entries_of(&folder)
                .find(|path| has_prefix(path, &prefix))
                .ok_or_else(|| Error::NoPlugin { name: (*name).to_owned(), folder: folder.clone() })
        };
        ["rabbitmq_management", "rabbitmq_management_agent", "rabbitmq_web_dispatch"].iter().map(find_plugin).collect()
    }

    /// The whole environment of a program. Nothing is inherited, because a `RABBITMQ_…` or `ERL_…` variable of the
    /// caller's shell would change the broker.
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

    /// Folders of the downloaded shared libraries; `None` for those of the system.
    fn library_path(&self) -> Option<OsString> {
        if self.root == Path::new("/") {
            return None;
        }
        let folders = ["usr/lib", "lib"].iter().flat_map(|folder| folders_in(&self.root.join(folder)));
        let is_multiarch =
            |path: &PathBuf| path.file_name().and_then(OsStr::to_str).is_some_and(|name| name.contains("-linux-"));
        let folders: Vec<PathBuf> = folders.filter(is_multiarch).collect();
        (!folders.is_empty()).then(|| joined(&folders))
    }
}

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

pub(crate) fn joined(folders: &[PathBuf]) -> OsString {
    // If a folder has a colon in its name, Erlang gets none and fails with its own error.
    std::env::join_paths(folders).unwrap_or_default()
}
