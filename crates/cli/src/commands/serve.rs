//! `gristmill serve`: the HTTP API, and a worker in the same process.
//!
//! Owns the tokens, which are files beside the database, and when the server may listen on other addresses than
//! loopback.

use std::io::{ErrorKind, Write as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use gristmill_jobs::RunnerHandle;
use gristmill_pool::CancelToken;
use gristmill_server::{Server, ServerError, ServerOptions, Setting};
use gristmill_store::sqlite::{Draft, ExistingFile, PublishError, with_suffix};
use gristmill_store::{Store, private, resolve_last_link};
use serde_json::json;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::worker;
use crate::context::{CREATED_BY_ANY, Context, open_or_create, require_database, store_options};
use crate::error::{Error, Outcome};
use crate::output::{note, path};
use crate::settings::{Settings, absolute, keys};
use crate::supervisor::{FORCED_SHUTDOWN_TIMEOUT, Supervisor};

/// Length from which a token counts as one, in characters. New ones have 64.
const MIN_TOKEN_LENGTH: usize = 32;

/// Interval at which the end of the server is noticed by the thread that waits for the end of the worker.
const WORKER_CHECK: Duration = Duration::from_millis(250);

const HELP: &str = "\
Serves the HTTP API on loopback, and runs queued tasks and scans as `gristmill worker` does. API clients send the token \
from a file beside the database, which only its owner can read:
  DATABASE.token       allows everything
  DATABASE.read-token  allows reading

Both tokens stay the same until their files are deleted. The description of the API is at /api/v1/openapi.json, metrics \
for Prometheus are at /metrics. --json also prints a link whose code signs a browser in, once, within 10 minutes.

Requests must name a known host: 127.0.0.1, [::1], localhost, or a name given with --allow-host. With --listen on \
another address than loopback, traffic must be encrypted (serve.tls_certificate and serve.tls_key), or --insecure says \
that it need not be, for example behind a reverse proxy.

Ctrl-C, SIGTERM or SIGHUP stops the server; running tasks are handled as by `gristmill worker`.

Exit status:
  0  stopped by a signal
  1  a wrong argument or setting, or an address that is in use
  2  system failure: a full disk, a damaged file

Examples:
  gristmill serve
  gristmill serve --listen 0.0.0.0:7391 --allow-host nas.local --insecure
  curl -H \"Authorization: Bearer $(cat ~/.local/share/gristmill/gristmill.db.token)\" \\
    http://127.0.0.1:7391/api/v1/overview";

#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub(crate) struct Args {
    /// Address to listen on, or a port for 127.0.0.1 [default: setting serve.listen, 127.0.0.1:7391]
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,

    /// Name that the server answers to, besides those of loopback; repeatable
    #[arg(long, value_name = "NAME[:PORT]")]
    allow_host: Vec<String>,

    /// Path below which everything is served, for a reverse proxy
    #[arg(long, value_name = "PATH")]
    base_path: Option<String>,

    /// Allow other addresses than loopback without TLS
    #[arg(long)]
    insecure: bool,

    /// Change nothing: refuse all requests that would
    #[arg(long)]
    read_only: bool,

    /// Run no tasks and scans
    #[arg(long)]
    no_worker: bool,
}

pub(crate) fn run(args: &Args, context: &mut Context) -> Result<Outcome, Error> {
    context.flags.add(&keys::SERVE_LISTEN, "--listen", args.listen.as_ref());
    let hosts = Some(&args.allow_host).filter(|hosts| !hosts.is_empty());
    context.flags.add(&keys::SERVE_ALLOWED_HOSTS, "--allow-host", hosts);
    context.flags.add(&keys::SERVE_BASE_PATH, "--base-path", args.base_path.as_ref());
    let settings = context.settings()?;
    let tls = tls(&settings)?;
    check_address(settings.serve.listen, tls.is_some() || args.insecure)?;
    let supervisor = Supervisor::with_forced_stop(context.quiet)?;
    let store = match args.read_only {
        false => open_or_create(&settings)?,
        true => {
            require_database(&settings, CREATED_BY_ANY)?;
            store_options(&settings).allow_read_only().open(&settings.database)?
        }
    };
    let outcome = serve(args, context, &settings, tls, &supervisor, &store);
    store.close();
    outcome
}

fn serve(
    args: &Args,
    context: &Context,
    settings: &Settings,
    tls: Option<Arc<ServerConfig>>,
    supervisor: &Supervisor,
    store: &Store,
) -> Result<Outcome, Error> {
    // SQLite keeps the other files of a database beside the file that a symbolic link leads to.
    let database = &resolve_last_link(store.path());
    let files = TokenFiles::beside(database);
    let mut options = ServerOptions::default();
    options.listen = vec![settings.serve.listen];
    options.allowed_hosts = settings.serve.allowed_hosts.clone().unwrap_or_default();
    options.base_path = settings.serve.base_path.clone().unwrap_or_default();
    options.full_token = token(&files.full)?;
    options.read_token = token(&files.read)?;
    options.read_only = args.read_only;
    options.dry_run = settings.serve.dry_run;
    options.allow_exec = settings.serve.allow_exec;
    options.protected_files = protected_files(context, settings, database, &files)?;
    options.settings = shown_settings(settings);
    let scheme = if tls.is_some() { "https" } else { "http" };
    options.tls = tls;
    // Cancelled by a signal, and when the worker has failed.
    let end = supervisor.stop.child();
    let mut server = Server::bind(store, options, &end).map_err(failed)?;
    announce(context, &server, scheme, &files)?;
    // Only now, because a worker claims tasks at once.
    let worker = match args.no_worker || args.read_only {
        true => None,
        false => Some(Arc::new(worker::start(store, settings)?)),
    };
    if let Some(worker) = &worker {
        let worker = worker.clone();
        server.set_worker(Arc::new(move || worker.stats()));
    }
    let served = run_server(server, supervisor, &end, worker.as_deref());
    // Also if the server has failed: running tasks end in order.
    let stopped = worker.map(|worker| {
        let limit = if supervisor.force.is_cancelled() { FORCED_SHUTDOWN_TIMEOUT } else { settings.worker.shutdown };
        supervisor.note_stopping(limit, "tasks");
        worker.stop(limit)
    });
    served?;
    stopped.transpose()?;
    Ok(supervisor.outcome(false))
}

/// Serves until a signal, or until the worker has failed. A second signal ends running tasks at once.
fn run_server(
    server: Server,
    supervisor: &Supervisor,
    end: &CancelToken,
    worker: Option<&RunnerHandle>,
) -> Result<(), Error> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Error::System(format!("cannot start the server: {error}")))?;
    let force = supervisor.force.child();
    let result = std::thread::scope(|scope| {
        scope.spawn(|| {
            force.wait();
            if let Some(worker) = worker.filter(|_| supervisor.force.is_cancelled()) {
                supervisor.note_forced("commands are ended and their tasks");
                drop(worker.stop(FORCED_SHUTDOWN_TIMEOUT));
            }
        });
        if let Some(worker) = worker {
            scope.spawn(|| {
                // The result of stopping it says whether it has failed.
                while !end.is_cancelled() {
                    if worker.wait_ended(WORKER_CHECK).is_some() {
                        end.cancel();
                    }
                }
            });
        }
        let result = runtime.block_on(server.run()).map_err(failed);
        end.cancel();
        force.cancel();
        result
    });
    runtime.shutdown_timeout(Duration::from_secs(1));
    result
}

/// Prints where the server is, and how to sign in.
fn announce(context: &Context, server: &Server, scheme: &str, files: &TokenFiles) -> Result<(), Error> {
    let address = server.addresses().first().map(ToString::to_string).unwrap_or_default();
    let link = format!("{scheme}://{}{}", reachable(&address), server.sign_in_path());
    let value = json!({
        "address": address,
        "sign_in": link,
        "token_file": path(&files.full),
        "read_token_file": path(&files.read),
    });
    context.output.print(&value, |_| {
        format!(
            "listening on {scheme}://{address}\ntoken: {}\nAPI: {scheme}://{}{}/api/v1/openapi.json\n",
            path(&files.full),
            reachable(&address),
            server.base_path()
        )
    })?;
    Ok(())
}

/// Returns an address that a browser on this machine can open.
fn reachable(address: &str) -> String {
    match address.parse::<SocketAddr>() {
        Ok(found) if found.ip().is_unspecified() => format!("localhost:{}", found.port()),
        _ => address.to_owned(),
    }
}

fn failed(error: ServerError) -> Error {
    match error {
        ServerError::Store(error) => error.into(),
        ServerError::Listen(address, error) if error.kind() == ErrorKind::AddrInUse => Error::Setting(format!(
            "another program listens on {address}; stop it, or choose another address with --listen"
        )),
        error => Error::Setting(error.to_string()),
    }
}

/// Refuses to send tokens over a network in clear text, unless the user has said so.
fn check_address(address: SocketAddr, is_allowed: bool) -> Result<(), Error> {
    if address.ip().is_loopback() || is_allowed {
        return Ok(());
    }
    Err(Error::Setting(format!(
        "{address} can be reached from other machines, and the traffic would not be encrypted; set serve.tls_certificate \
         and serve.tls_key, or add --insecure if a reverse proxy or a VPN encrypts it"
    )))
}

/// Reads the certificate and the key, if TLS is used.
fn tls(settings: &Settings) -> Result<Option<Arc<ServerConfig>>, Error> {
    let (certificate, key) = match (&settings.serve.tls_certificate, &settings.serve.tls_key) {
        (None, None) => return Ok(None),
        (Some(certificate), Some(key)) => (certificate, key),
        _ => {
            return Err(Error::Setting(
                "serve.tls_certificate and serve.tls_key belong together; set both, or none".to_owned(),
            ));
        }
    };
    let invalid = |file: &Path, error: &dyn std::fmt::Display| {
        Error::Setting(format!("cannot use {}: {error}; expected a PEM file", path(file)))
    };
    let chain = CertificateDer::pem_file_iter(certificate).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let chain = chain.map_err(|error| invalid(certificate, &error))?;
    let private_key = PrivateKeyDer::from_pem_file(key).map_err(|error| invalid(key, &error))?;
    let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions();
    let builder = builder.map_err(|error| Error::System(format!("cannot use TLS: {error}")))?;
    let config = builder.with_no_client_auth().with_single_cert(chain, private_key);
    let mut config = config.map_err(|error| invalid(certificate, &error))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Some(Arc::new(config)))
}

/// Files with the tokens of a database.
struct TokenFiles {
    full: PathBuf,
    read: PathBuf,
}

impl TokenFiles {
    fn beside(database: &Path) -> Self {
        TokenFiles { full: with_suffix(database, ".token"), read: with_suffix(database, ".read-token") }
    }
}

/// Returns the token of a file, which is created if it does not exist.
fn token(file: &Path) -> Result<String, Error> {
    let failed =
        |error: &dyn std::fmt::Display| Error::System(format!("cannot write the token {}: {error}", path(file)));
    if !file.try_exists().unwrap_or(true) {
        let draft = Draft::beside(file);
        let text = format!("{}\n", gristmill_server::new_secret());
        let written = private::create_new(draft.path()).and_then(|mut created| created.write_all(text.as_bytes()));
        written.map_err(|error| failed(&error))?;
        match draft.publish(ExistingFile::Keep) {
            // Another process has created it.
            Ok(()) | Err(PublishError::Exists) => {}
            Err(PublishError::Io(error)) => return Err(failed(&error)),
        }
    }
    let text = std::fs::read_to_string(file);
    let text = text.map_err(|error| Error::Setting(format!("cannot read the token {}: {error}", path(file))))?;
    if private::is_open_to_others(file) {
        note(&format!("other users can read {}; run: chmod 600 {}", path(file), path(file)));
    }
    match text.trim() {
        token if token.len() >= MIN_TOKEN_LENGTH && token.bytes().all(|byte| byte.is_ascii_graphic()) => {
            Ok(token.to_owned())
        }
        _ => Err(Error::Setting(format!(
            "{} has no token of at least {MIN_TOKEN_LENGTH} characters; delete it, and a new one is made",
            path(file)
        ))),
    }
}

/// Lists the files that the server never sends.
fn protected_files(
    context: &Context,
    settings: &Settings,
    database: &Path,
    files: &TokenFiles,
) -> Result<Vec<PathBuf>, Error> {
    let mut protected = vec![files.full.clone(), files.read.clone(), context.config_path()?];
    protected.extend(["", "-wal", "-shm", "-journal"].map(|ending| with_suffix(database, ending)));
    protected.extend(settings.serve.tls_key.clone());
    protected.iter().map(|file| absolute(file)).collect()
}

fn shown_settings(settings: &Settings) -> Vec<Setting> {
    let shown = settings.resolved.iter().map(|setting| Setting {
        key: setting.key.name.to_owned(),
        value: setting.value.clone(),
        origin: setting.origin.to_string(),
    });
    shown.collect()
}
