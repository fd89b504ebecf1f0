//! What a server is started with.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use gristmill_jobs::RunnerStats;
use serde::Serialize;
use tokio_rustls::rustls::ServerConfig;
use utoipa::ToSchema;

/// Returns the statistics of the worker in this process.
pub type WorkerStats = Arc<dyn Fn() -> RunnerStats + Send + Sync>;

/// A setting with its value and where it comes from, to be shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct Setting {
    /// Name of the setting.
    pub key: String,
    /// Its value as text.
    pub value: String,
    /// Default, file with line, variable or flag.
    pub origin: String,
}

/// Options of a server.
#[derive(Clone)]
#[non_exhaustive]
pub struct ServerOptions {
    /// Addresses to listen on. With port 0, the system chooses one.
    pub listen: Vec<SocketAddr>,
    /// Names that the server answers to, besides those of loopback: `name` or `name:port`.
    pub allowed_hosts: Vec<String>,
    /// Path below which everything is, behind a reverse proxy: `/x`, or empty.
    pub base_path: String,
    /// Token that allows everything. If empty, none does.
    pub full_token: String,
    /// Token that allows reading. If empty, none does.
    pub read_token: String,
    /// Whether nothing can be changed.
    pub read_only: bool,
    /// Whether jobs that change files are refused unless they are dry runs.
    pub dry_run: bool,
    /// Whether tasks of the kind `exec`, which run commands, can be enqueued or retried.
    pub allow_exec: bool,
    /// Certificate and key, to speak TLS.
    pub tls: Option<Arc<ServerConfig>>,
    /// Files that are never sent, even if they are in the catalog: the database, tokens, keys and settings.
    pub protected_files: Vec<PathBuf>,
    /// Settings to show.
    pub settings: Vec<Setting>,
}

impl Default for ServerOptions {
    fn default() -> Self {
        ServerOptions {
            listen: Vec::new(),
            allowed_hosts: Vec::new(),
            base_path: String::new(),
            full_token: String::new(),
            read_token: String::new(),
            read_only: false,
            dry_run: true,
            allow_exec: false,
            tls: None,
            protected_files: Vec::new(),
            settings: Vec::new(),
        }
    }
}

impl fmt::Debug for ServerOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the tokens.
        f.debug_struct("ServerOptions")
            .field("listen", &self.listen)
            .field("allowed_hosts", &self.allowed_hosts)
            .field("base_path", &self.base_path)
            .field("read_only", &self.read_only)
            .finish_non_exhaustive()
    }
}
