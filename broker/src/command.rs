//! The command lines of a broker's programs, and the environment that makes them its own.
//!
//! Owns what RabbitMQ's scripts would have put together: the node, its epmd, `rabbitmqctl`. Nothing here waits for
//! a node or judges it.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::process::Stdio;

use crate::error::{Error, OrFault};
use crate::files::Files;
use crate::installation::{Installation, joined};
use crate::node::Process;
use crate::ports::Ports;

/// Erlang's machine as RabbitMQ's script starts it, but for one thing: its threads are not bound to processors.
/// Several brokers and what is tested share them, and bound threads would wait for each other.
const MACHINE: &str = "+W w +MBas ageffcbf +MHas ageffcbf +MBlmbcs 512 +MHlmbcs 512 +MMmcs 30 \
     +P 1048576 +t 5000000 +zdbbl 128000 +sbwt none +sbwtdcpu none +sbwtdio none +B i";

const BOOT: &str = "-noinput -boot start_sasl -s rabbit boot -syslog logger [] -syslog syslog_error_logger false \
     -kernel prevent_overlapping_partitions false";

const CTL: &str =
    "+B -boot start_clean -noinput -noshell -hidden -run escript start -escript main rabbitmqctl_escript";

/// Nodes speak to each other on this machine only.
const LOCAL: &str = "-kernel inet_dist_use_interface {127,0,0,1}";

/// How the programs of one broker are called.
#[derive(Debug)]
pub(crate) struct Commands {
    kit: Installation,
    epmd_port: u16,
    environment: Vec<(&'static str, OsString)>,
}

impl Commands {
    pub(crate) fn new(kit: &Installation, files: &Files, ports: &Ports) -> Commands {
        let at = |name: &str| files.at(name).into_os_string();
        let libraries: Vec<PathBuf> =
            std::iter::once(files.applications()).chain(kit.more_libraries()).collect();
        let environment = vec![
            // Where the cookie is, and by which the watcher knows the processes.
            ("HOME", files.folder().into()),
            ("ERL_EPMD_ADDRESS", "127.0.0.1".into()),
            ("ERL_EPMD_PORT", ports.epmd.to_string().into()),
            ("ERL_LIBS", joined(&libraries)),
            ("ERL_MAX_ETS_TABLES", "50000".into()),
            ("ERL_MAX_PORTS", "65536".into()),
            // A crash leaves its reason in the log; the dump takes seconds to write.
            ("ERL_CRASH_DUMP_SECONDS", "0".into()),
            ("RABBITMQ_NODENAME", format!("gristmill-{}@localhost", ports.amqp).into()),
            ("RABBITMQ_DIST_PORT", ports.node.to_string().into()),
            ("RABBITMQ_MNESIA_BASE", at("data")),
            ("RABBITMQ_LOG_BASE", at("log")),
            ("RABBITMQ_PID_FILE", at("pid")),
            ("RABBITMQ_CONFIG_FILE", at("rabbitmq.conf")),
            ("RABBITMQ_PLUGINS_DIR", files.applications().into()),
            ("RABBITMQ_ENABLED_PLUGINS_FILE", at("plugins")),
            // These need not exist: they are named so that those of an installed broker are not read.
            ("SYS_PREFIX", files.folder().into()),
            ("RABBITMQ_CONFIG_FILES", at("conf.d")),
            ("RABBITMQ_ADVANCED_CONFIG_FILE", at("advanced.config")),
            ("RABBITMQ_CONF_ENV_FILE", at("rabbitmq-env.conf")),
        ];
        Commands { kit: kit.clone(), epmd_port: ports.epmd, environment }
    }

    /// By which nodes find each other. Debian's Erlang does not start it by itself.
    pub(crate) fn epmd(&self) -> Result<Process, Error> {
        let port = self.epmd_port.to_string();
        let words = ["-address", "127.0.0.1", "-port", &port].map(OsString::from);
        Process::start(self.kit.epmd(), &self.environment, &words)
    }

    /// RabbitMQ itself.
    pub(crate) fn node(&self) -> Result<Process, Error> {
        let words: Vec<OsString> = [BOOT, MACHINE, LOCAL]
            .iter()
            .flat_map(|line| line.split_whitespace())
            .map(OsString::from)
            .collect();
        Process::start(self.kit.erlang(), &self.environment, &words)
    }

    /// `rabbitmqctl`, run to its end.
    pub(crate) fn ctl<W: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = W>) -> Result<String, Error> {
        let words: Vec<OsString> = words.into_iter().map(|word| word.as_ref().to_owned()).collect();
        let program = self.kit.erlang();
        let mut command = std::process::Command::new(&program.path);
        command.args(LOCAL.split_whitespace()).args(CTL.split_whitespace());
        command.arg("-extra").arg(self.kit.ctl()).arg("-q").args(&words);
        command.env_clear().envs(program.environment).envs(self.environment.iter().cloned()).current_dir("/");
        let output = command.stdin(Stdio::null()).output().or_fault("start rabbitmqctl")?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if output.status.success() {
            return Ok(text(&output.stdout));
        }
        let asked: Vec<String> = words.iter().map(|word| word.to_string_lossy().into_owned()).collect();
        Err(Error::Ctl { asked: asked.join(" "), said: text(&output.stdout) + &text(&output.stderr) })
    }
}
