//! A broker's folder and the files that the node reads when it starts.
//!
//! Owns the layout and the configuration. Only the user can read the folder, because it has a password and a cookie. It
//! is deleted by `reaper`.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};

use crate::error::{Error, IoContext};
use crate::ports::Ports;
use crate::settings::Settings;

#[derive(Clone, Debug)]
pub(crate) struct Login {
    pub(crate) user: String,
    pub(crate) password: String,
}

impl Login {
    pub(crate) fn new() -> Result<Login, Error> {
        Ok(Login { user: format!("test-{}", &random_word()?[..8]), password: random_word()? })
    }
}

/// Makes quorum queues report their counts every 200 ms, and the management API collect them every second, which is the
/// minimum. Both defaults are 5 s. rabbitmq.conf cannot set these.
const FAST_STATISTICS: &str = "[
  {rabbit, [{quorum_tick_interval, 200}]},
  {rabbitmq_management, [{sample_retention_policies,
    [{global, [{600, 1}]}, {basic, [{600, 1}]}, {detailed, [{600, 1}]}]}]}
].
";

#[derive(Clone, Debug)]
pub(crate) struct Files {
    pub(crate) folder: PathBuf,
}

impl Files {
    pub(crate) fn new() -> Result<Files, Error> {
        let folder = std::env::temp_dir().join(format!("gristmill-broker-{}", random_word()?));
        let folder = std::path::absolute(&folder).context_at("resolve", &folder)?;
        DirBuilder::new().mode(0o700).create(&folder).context_at("create", &folder)?;
        Ok(Files { folder })
    }

    pub(crate) fn at(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Writes the files that a node reads when it starts.
    pub(crate) fn write(&self, settings: &Settings, login: &Login, ports: &Ports) -> Result<(), Error> {
        self.put("rabbitmq.conf", &configuration(settings, login, ports, &self.folder))?;
        let plugins = if settings.management { "rabbitmq_management" } else { "" };
        self.put("plugins", &format!("[{plugins}].\n"))?;
        if settings.management {
            self.put("advanced.config", FAST_STATISTICS)?;
        }
        self.put(".erlang.cookie", &random_word()?)
    }

    /// Folder with links to the applications of the installation, where the node finds its code.
    pub(crate) fn applications(&self) -> PathBuf {
        self.at("applications")
    }

    pub(crate) fn link(&self, applications: &[PathBuf]) -> Result<(), Error> {
        let folder = self.applications();
        std::fs::create_dir(&folder).context_at("create", &folder)?;
        for application in applications {
            let link = folder.join(application.file_name().unwrap_or_default());
            symlink(application, &link).context_at("create", &link)?;
        }
        Ok(())
    }

    pub(crate) fn put(&self, name: &str, text: &str) -> Result<(), Error> {
        let path = self.at(name);
        let mut options = OpenOptions::new();
        // Erlang refuses a cookie that others can read.
        let file = options.write(true).create(true).truncate(true).mode(0o600).open(&path);
        file.and_then(|mut file| file.write_all(text.as_bytes())).context_at("write", &path)
    }

    /// The last lines of a file of the broker; empty if there is none.
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
        // The default is a share of the memory, which would block publishers if the disk is nearly full.
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
            // For classic queues.
            "collect_statistics_interval = 200".to_owned(),
        ]);
    }
    // Of two lines for one setting the last one applies, so the caller's lines follow.
    lines.extend(settings.lines.iter().cloned());
    lines.join("\n") + "\n"
}

/// Returns 32 random hexadecimal digits.
pub(crate) fn random_word() -> Result<String, Error> {
    let mut bytes = [0; 16];
    File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes)).context("read /dev/urandom")?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
