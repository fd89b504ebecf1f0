//! A broker's folder and the files it starts with.
//!
//! Owns the layout and the configuration. The folder is the user's alone: a password and a cookie lie in it. Who
//! deletes it is `watcher`.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};

use crate::error::{Error, OrFault};
use crate::ports::Ports;
use crate::settings::Settings;

/// Who may speak to a broker.
#[derive(Clone, Debug)]
pub(crate) struct Login {
    pub(crate) user: String,
    pub(crate) password: String,
}

impl Login {
    pub(crate) fn new() -> Result<Login, Error> {
        Ok(Login { user: format!("miller-{}", &random_word()?[..8]), password: random_word()? })
    }
}

/// Has quorum queues report their counts every 200 ms, and the management API take them over every second, which is the least.
/// The default of both is 5 s. No lines of rabbitmq.conf set these.
const QUICK_STATISTICS: &str = "[
  {rabbit, [{quorum_tick_interval, 200}]},
  {rabbitmq_management, [{sample_retention_policies,
    [{global, [{600, 1}]}, {basic, [{600, 1}]}, {detailed, [{600, 1}]}]}]}
].
";

/// Where the pieces of a broker lie.
#[derive(Clone, Debug)]
pub(crate) struct Files {
    folder: PathBuf,
}

impl Files {
    /// Makes a new folder that only its owner can read.
    pub(crate) fn new() -> Result<Files, Error> {
        let folder = std::env::temp_dir().join(format!("gristmill-broker-{}", random_word()?));
        let folder = std::path::absolute(&folder).or_fault_at("find", &folder)?;
        DirBuilder::new().mode(0o700).create(&folder).or_fault_at("make", &folder)?;
        Ok(Files { folder })
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    pub(crate) fn at(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Writes what a node reads as it starts.
    pub(crate) fn write(&self, settings: &Settings, login: &Login, ports: &Ports) -> Result<(), Error> {
        self.put("rabbitmq.conf", &configuration(settings, login, ports, &self.folder))?;
        let plugins = if settings.management { "rabbitmq_management" } else { "" };
        self.put("plugins", &format!("[{plugins}].\n"))?;
        if settings.management {
            self.put("advanced.config", QUICK_STATISTICS)?;
        }
        self.put(".erlang.cookie", &random_word()?)
    }

    /// Where the node finds its own code: links to the applications of the kit.
    pub(crate) fn applications(&self) -> PathBuf {
        self.at("applications")
    }

    /// Makes those links.
    pub(crate) fn link(&self, applications: &[PathBuf]) -> Result<(), Error> {
        let folder = self.applications();
        std::fs::create_dir(&folder).or_fault_at("make", &folder)?;
        for application in applications {
            let link = folder.join(application.file_name().unwrap_or_default());
            symlink(application, &link).or_fault_at("make", &link)?;
        }
        Ok(())
    }

    pub(crate) fn put(&self, name: &str, text: &str) -> Result<(), Error> {
        let path = self.at(name);
        let mut options = OpenOptions::new();
        // Erlang refuses a cookie that others can read.
        let file = options.write(true).create(true).truncate(true).mode(0o600).open(&path);
        file.and_then(|mut file| file.write_all(text.as_bytes())).or_fault_at("write", &path)
    }

    /// The end of a file of the broker, for a person to read. Empty where there is none.
    pub(crate) fn tail(&self, name: &str, lines: usize) -> String {
        let text = std::fs::read(self.at(name)).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let all: Vec<&str> = text.lines().collect();
        all[all.len().saturating_sub(lines)..].join("\n")
    }
}

fn configuration(settings: &Settings, login: &Login, ports: &Ports, folder: &Path) -> String {
    let mut lines = vec![
        format!("listeners.tcp.1 = 127.0.0.1:{}", ports.amqp),
        format!("default_user = {}", login.user),
        format!("default_pass = {}", login.password),
        // The default is a share of the machine's memory, which blocks every publisher on a disk that is nearly full.
        "disk_free_limit.absolute = 50MB".to_owned(),
        "log.file = broker.log".to_owned(),
        "log.console = false".to_owned(),
    ];
    if let Some(port) = ports.tls {
        let file = |name: &str| folder.join(name).display().to_string();
        lines.extend([
            format!("listeners.ssl.1 = 127.0.0.1:{port}"),
            format!("ssl_options.cacertfile = {}", file("ca.pem")),
            format!("ssl_options.certfile = {}", file("server.pem")),
            format!("ssl_options.keyfile = {}", file("server.key")),
            "ssl_options.verify = verify_none".to_owned(),
            "ssl_options.fail_if_no_peer_cert = false".to_owned(),
        ]);
    }
    if let Some(port) = ports.management {
        lines.extend([
            "management.tcp.ip = 127.0.0.1".to_owned(),
            format!("management.tcp.port = {port}"),
            // Classic queues.
            "collect_statistics_interval = 200".to_owned(),
        ]);
    }
    // Of two lines for one setting the later counts, so the caller's go last.
    lines.extend(settings.lines.iter().cloned());
    lines.join("\n") + "\n"
}

/// Thirty-two random letters and digits.
pub(crate) fn random_word() -> Result<String, Error> {
    let mut bytes = [0; 16];
    File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut bytes))
        .or_fault("read /dev/urandom")?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
