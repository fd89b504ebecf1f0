//! The command lines and the environment of a broker's programs.
//!
//! Owns the calls of the node, epmd and `rabbitmqctl`, in place of RabbitMQ's scripts. It does not wait for a node.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::process::Stdio;

use crate::error::{Error, IoContext};
use crate::files::Files;
use crate::installation::{Installation, joined};
use crate::ports::Ports;
use crate::process::Process;

/// Arguments of the Erlang VM as in RabbitMQ's script, except that its threads are not bound to processors: several
/// brokers and the tests share these, and bound threads would wait for each other.
const MACHINE: &str = "+W w +MBas ageffcbf +MHas ageffcbf +MBlmbcs 512 +MHlmbcs 512 +MMmcs 30 \
     +P 1048576 +t 5000000 +zdbbl 128000 +sbwt none +sbwtdcpu none +sbwtdio none +B i";

const BOOT: &str = "-noinput -boot start_sasl -s rabbit boot -syslog logger [] -syslog syslog_error_logger false \
     -kernel prevent_overlapping_partitions false";

const CTL: &str = "+B -boot start_clean -noinput -noshell -hidden -run escript start -escript main rabbitmqctl_escript";

/// Restricts connections between Erlang nodes to this machine.
const LOCAL: &str = "-kernel inet_dist_use_interface {127,0,0,1}";

#[derive(Debug)]
pub(crate) struct Commands {
    installation: Installation,
    epmd_port: u16,
    environment: Vec<(&'static str, OsString)>,
}

impl Commands {
    pub(crate) fn new(installation: &Installation, files: &Files, ports: &Ports) -> Commands {
        let at = |name: &str| files.at(name).into_os_string();
        let libraries: Vec<PathBuf> =
            std::iter::once(files.applications()).chain(installation.more_libraries()).collect();
        let environment = vec![
            // The folder of the cookie, and the variable by which the reaper recognises the processes.
            ("HOME", files.folder.clone().into()),
            ("ERL_EPMD_ADDRESS", "127.0.0.1".into()),
            ("ERL_EPMD_PORT", ports.epmd.to_string().into()),
            ("ERL_LIBS", joined(&libraries)),
            ("ERL_MAX_ETS_TABLES", "50000".into()),
            ("ERL_MAX_PORTS", "65536".into()),
            // The log has the reason of a crash, and a dump takes seconds to write.
            ("ERL_CRASH_DUMP_SECONDS", "0".into()),
            ("RABBITMQ_NODENAME", format!("gristmill-{}@localhost", ports.amqp).into()),
            ("RABBITMQ_DIST_PORT", ports.node.to_string().into()),
            ("RABBITMQ_MNESIA_BASE", at("data")),
            ("RABBITMQ_LOG_BASE", at("log")),
            ("RABBITMQ_PID_FILE", at("pid")),
            ("RABBITMQ_CONFIG_FILE", at("rabbitmq.conf")),
            ("RABBITMQ_PLUGINS_DIR", files.applications().into()),
            ("RABBITMQ_ENABLED_PLUGINS_FILE", at("plugins")),
            // These need not exist: they are set so that the files of an installed broker are not read.
            ("SYS_PREFIX", files.folder.clone().into()),
            ("RABBITMQ_CONFIG_FILES", at("conf.d")),
            ("RABBITMQ_ADVANCED_CONFIG_FILE", at("advanced.config")),
            ("RABBITMQ_CONF_ENV_FILE", at("rabbitmq-env.conf")),
        ];
        Commands { installation: installation.clone(), epmd_port: ports.epmd, environment }
    }

    /// Starts epmd, by which Erlang nodes find each other. Debian's Erlang does not start it.
    pub(crate) fn epmd(&self) -> Result<Process, Error> {
        let port = self.epmd_port.to_string();
        let args = ["-address", "127.0.0.1", "-port", &port].map(OsString::from);
        Process::start(self.installation.program("epmd"), &self.environment, &args)
    }

    pub(crate) fn node(&self) -> Result<Process, Error> {
        let args: Vec<OsString> =
            [BOOT, MACHINE, LOCAL].iter().flat_map(|line| line.split_whitespace()).map(OsString::from).collect();
        Process::start(self.installation.program("erlexec"), &self.environment, &args)
    }

    pub(crate) fn ctl<W: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = W>) -> Result<String, Error> {
        let args: Vec<OsString> = args.into_iter().map(|arg| arg.as_ref().to_owned()).collect();
        let program = self.installation.program("erlexec");
        let mut command = std::process::Command::new(&program.path);
        command.args(LOCAL.split_whitespace()).args(CTL.split_whitespace());
        command.arg("-extra").arg(self.installation.ctl()).arg("-q").args(&args);
        command.env_clear().envs(program.environment).envs(self.environment.iter().cloned()).current_dir("/");
        let output = command.stdin(Stdio::null()).output().context("start rabbitmqctl")?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if output.status.success() {
            return Ok(text(&output.stdout));
        }
        let args: Vec<String> = args.iter().map(|arg| arg.to_string_lossy().into_owned()).collect();
        Err(Error::Ctl { args: args.join(" "), output: text(&output.stdout) + &text(&output.stderr) })
    }
}
