//! All settings, each declared once: field, name, environment variable, default, format, description, expected values.
//!
//! The types of the sections, their resolution, the commented settings file, `config show` and the errors about wrong
//! values are made from this list.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use gristmill_amqp::Endpoint;
use gristmill_store::Durability;
use gristmill_store::catalog::Algorithm;

use super::format::{Format, Invalid, choice, duration, number, parsed, size, text};
use super::resolver::Resolver;
use super::{DAY, HOUR, MILLISECOND, Raw, consumers};
use crate::error::Error;
use crate::units;

#[derive(Debug)]
pub(crate) struct Key {
    /// Name as in the file, with its section before the dot.
    pub(crate) name: &'static str,
    pub(crate) variable: &'static str,
    /// Default as written in the file; none if it depends on the environment.
    pub(crate) default: Option<&'static str>,
    pub(crate) description: &'static str,
    pub(crate) expected: &'static str,
}

/// Declares a key for each setting, and for each section a type that resolves its settings.
macro_rules! settings {
    ($($(#[$about:meta])* struct $section:ident { $(
        $(#[$doc:meta])*
        $id:ident $field:ident: $type:ty = $name:literal, $variable:literal, $default:literal, $format:expr,
        $description:literal, $expected:literal;
    )* })*) => {
        $(
            $(pub(crate) static $id: Key = Key {
                name: $name,
                variable: $variable,
                default: Some($default),
                description: $description,
                expected: $expected,
            };)*

            $(#[$about])*
            #[derive(Clone)]
            pub(crate) struct $section { $($(#[$doc])* pub(crate) $field: $type),* }

            impl $section {
                pub(super) fn resolve(resolver: &mut Resolver<'_>) -> Result<Self, Error> {
                    Ok($section { $($field: resolver.resolve(&$id, &$format)?),* })
                }
            }
        )*

        /// All settings, in the order of the file.
        pub(crate) static ALL: &[&Key] = &[&DATABASE, $($(&$id),*),*];
    };
}

pub(crate) static DATABASE: Key = Key {
    name: "database",
    variable: "GRISTMILL_DB",
    default: None,
    description: "Database file with the catalog, tasks and dead letters. A relative path is relative to the folder of the \
                  settings file.",
    expected: "a path; ~/ at the start is your home folder",
};

settings! {
    /// How the database is opened.
    struct Database {
        SYNCHRONOUS durability: Durability = "synchronous", "GRISTMILL_SYNCHRONOUS", "full",
            choice(&[("full", Durability::Full), ("normal", Durability::Normal)]),
            "Durability of a commit after a power failure: full loses no acknowledged commit; normal may lose the latest commits and is faster.",
            "full or normal";
        BUSY_TIMEOUT busy_timeout: Duration = "busy_timeout", "GRISTMILL_BUSY_TIMEOUT", "10s",
            duration(Duration::ZERO..=HOUR),
            "How long to wait for another process that writes to the database.",
            "a duration from 0s to 1h, such as 500ms or 10s";
    }

    struct Scan {
        SCAN_HASH algorithm: Algorithm = "scan.hash", "GRISTMILL_SCAN_HASH", "blake3",
            text(Algorithm::parse, |algorithm| algorithm.as_str().to_owned()),
            "Hash algorithm. After a change, the next scan hashes files again where needed. Other programs that use the database may support only the first two.",
            "blake3, sha256, sha512 or sha3-256";
        /// None lets the scanner choose.
        SCAN_WORKERS workers: Option<usize> = "scan.workers", "GRISTMILL_SCAN_WORKERS", "auto",
            number(1..=1_024).or("auto"),
            "Number of workers that walk and read. auto is four for each core, at least 16, because most of them wait for the disk.",
            "a whole number from 1 to 1024, or auto";
        /// Maximum read rate in bytes per second.
        SCAN_IO_LIMIT io_limit: Option<u64> = "scan.io_limit", "GRISTMILL_SCAN_IO_LIMIT", "none",
            rate().or("none"),
            "Maximum read rate of a scan, per second.",
            "a size such as 200MiB, 200M or 200MB/s, or none";
        /// Folder whose subfolders become roots when a job asks for a scan of everything.
        SCAN_LIBRARIES libraries: Option<PathBuf> = "scan.libraries", "GRISTMILL_SCAN_LIBRARIES", "none",
            absolute_path().or("none"),
            "Only for programs that create scan jobs in the database: a folder whose subfolders are registered as roots when a job asks for a scan of everything. `gristmill scan` does not use it.",
            "an absolute path, or none";
    }

    struct Import {
        /// None or 0 means one for each core.
        IMPORT_WORKERS workers: Option<usize> = "import.workers", "GRISTMILL_IMPORT_WORKERS", "4",
            number(0..=32).or("cores"),
            "Number of workers that parse during an import. 0 or cores is one for each core.",
            "a whole number from 0 to 32, or cores";
        IMPORT_EXACT_NUMBERS exact_numbers: bool = "import.exact_numbers", "GRISTMILL_IMPORT_EXACT_NUMBERS", "false",
            parsed(),
            "Whether decimals that a double would round are stored as text with all digits. Otherwise they are rounded, as by other JSON parsers.",
            "true or false";
    }

    struct Worker {
        QUEUES queues: Vec<String> = "worker.queues", "GRISTMILL_WORKER_QUEUES", "default",
            names(),
            "Queues that a worker takes tasks from, the most important first.",
            "a list of names, separated by commas in the variable";
        LEASE lease: Duration = "worker.lease", "GRISTMILL_WORKER_LEASE", "5m",
            duration(100 * MILLISECOND..=DAY),
            "How long a worker may hold a task without a heartbeat. After that, other workers may claim the task.",
            "a duration from 100ms to 1d, such as 30s or 5m";
        SHUTDOWN shutdown: Duration = "worker.shutdown", "GRISTMILL_WORKER_SHUTDOWN", "30s",
            duration(Duration::ZERO..=DAY),
            "How long running tasks may continue after a worker was asked to stop.",
            "a duration from 0s to 1d, such as 30s or 5m";
        MAX_CRASHES max_crashes: u32 = "worker.max_crashes", "GRISTMILL_WORKER_MAX_CRASHES", "3",
            number(1..=1_000),
            "Number of worker crashes after which a task becomes a dead letter.",
            "a whole number from 1 to 1000";
        WORKER_METRICS metrics: Option<SocketAddr> = "worker.metrics", "GRISTMILL_WORKER_METRICS", "none",
            address().or("none"),
            "Address at which a worker serves metrics for Prometheus: http://ADDRESS/metrics. Everyone who can reach the address can read them. `gristmill serve` has its own /metrics, which need a token.",
            "an address such as 127.0.0.1:9418 or [::1]:9418, a port for 127.0.0.1, or none";
        KEEP_FINISHED keep_finished: Option<Duration> = "worker.keep_finished", "GRISTMILL_WORKER_KEEP_FINISHED", "7d",
            duration(Duration::ZERO..=Duration::MAX).or("forever"),
            "How long finished tasks are kept.",
            "a duration such as 12h or 7d, or forever";
    }

    struct Exec {
        EXEC_WORKERS workers: usize = "exec.workers", "GRISTMILL_EXEC_WORKERS", "cores",
            cores_or(1..=1_024),
            "Number of commands that run at the same time.",
            "a whole number from 1 to 1024, or cores";
        EXEC_TIMEOUT timeout: Option<Duration> = "exec.timeout", "GRISTMILL_EXEC_TIMEOUT", "1h",
            duration(MILLISECOND..=Duration::MAX).or("none"),
            "How long a command may run, unless its task sets a timeout.",
            "a duration of at least 1ms, such as 30s or 2h, or none";
        EXEC_MAX_OUTPUT max_output: u64 = "exec.max_output", "GRISTMILL_EXEC_MAX_OUTPUT", "64KiB",
            size(0..=4 << 20),
            "How much of a command's standard output and standard error is kept, each.",
            "a size from 0B to 4MiB, such as 64KiB";
        EXEC_ATTEMPTS attempts: u32 = "exec.attempts", "GRISTMILL_EXEC_ATTEMPTS", "5",
            number(1..=1_000),
            "Number of attempts of a command, unless its task sets it.",
            "a whole number from 1 to 1000";
        EXEC_BACKOFF_BASE backoff_base: Duration = "exec.backoff_base", "GRISTMILL_EXEC_BACKOFF_BASE", "1s",
            duration(MILLISECOND..=DAY),
            "Maximum delay after the first failed attempt. It doubles with each further attempt.",
            "a duration from 1ms to 1d, such as 500ms or 1s";
        EXEC_BACKOFF_CAP backoff_cap: Duration = "exec.backoff_cap", "GRISTMILL_EXEC_BACKOFF_CAP", "10m",
            duration(MILLISECOND..=30 * DAY),
            "Maximum delay between two attempts.",
            "a duration from 1ms to 30d that is not below exec.backoff_base";
    }

    struct Serve {
        SERVE_LISTEN listen: SocketAddr = "serve.listen", "GRISTMILL_SERVE_LISTEN", "127.0.0.1:7391",
            address(),
            "Address that the server listens on. Other than loopback ones need TLS, or --insecure.",
            "an address such as 127.0.0.1:7391 or 0.0.0.0:7391, or a port for 127.0.0.1";
        SERVE_ALLOWED_HOSTS allowed_hosts: Option<Vec<String>> = "serve.allowed_hosts", "GRISTMILL_SERVE_ALLOWED_HOSTS", "none",
            names().or("none"),
            "Names that the server answers to, besides 127.0.0.1, [::1] and localhost, such as the name of a reverse proxy.",
            "a list of names such as nas.local or nas.local:8443, separated by commas in the variable, or none";
        SERVE_BASE_PATH base_path: Option<String> = "serve.base_path", "GRISTMILL_SERVE_BASE_PATH", "none",
            text(base_path, String::clone).or("none"),
            "Path below which everything is served, for a reverse proxy.",
            "a path such as /gristmill without a slash at its end, or none";
        SERVE_TLS_CERTIFICATE tls_certificate: Option<PathBuf> = "serve.tls_certificate", "GRISTMILL_SERVE_TLS_CERTIFICATE", "none",
            absolute_path().or("none"),
            "PEM file with the certificate chain of the server. With serve.tls_key, the server speaks only TLS.",
            "an absolute path, or none";
        SERVE_TLS_KEY tls_key: Option<PathBuf> = "serve.tls_key", "GRISTMILL_SERVE_TLS_KEY", "none",
            absolute_path().or("none"),
            "PEM file with the private key of the certificate.",
            "an absolute path, or none";
        SERVE_DRY_RUN dry_run: bool = "serve.dry_run", "GRISTMILL_SERVE_DRY_RUN", "true",
            parsed(),
            "Whether the server refuses jobs that are not dry runs.",
            "true or false";
        SERVE_ALLOW_EXEC allow_exec: bool = "serve.allow_exec", "GRISTMILL_SERVE_ALLOW_EXEC", "false",
            parsed(),
            "Whether tasks that run commands can be enqueued and retried over HTTP. Who has the full token can then run any command as the user of the server.",
            "true or false";
    }

    struct Amqp {
        /// Contain passwords: never print them.
        AMQP_URI uris: Vec<String> = "amqp.uri", "GRISTMILL_AMQP_URI", "amqp://localhost",
            uris(),
            "URI of RabbitMQ, or a list for the nodes of a cluster. A password in it is never shown; make a file with a password readable only by its owner (chmod 600).",
            "amqp://user:password@host:port/vhost, or amqps:// for TLS, or a list of these, separated by spaces in the variable";
        AMQP_CONNECT_WITHIN connect_within: Duration = "amqp.connect_within", "GRISTMILL_AMQP_CONNECT_WITHIN", "10s",
            duration(100 * MILLISECOND..=DAY),
            "How long to wait for the first connection. After a lost connection, reconnecting is tried without a limit.",
            "a duration from 100ms to 1d, such as 10s or 5m";
        AMQP_SHUTDOWN shutdown: Duration = "amqp.shutdown", "GRISTMILL_AMQP_SHUTDOWN", "30s",
            duration(Duration::ZERO..=DAY),
            "How long handlers of messages may continue after a consumer was asked to stop.",
            "a duration from 0s to 1d, such as 30s or 5m";
        AMQP_METRICS metrics: Option<SocketAddr> = "amqp.metrics", "GRISTMILL_AMQP_METRICS", "none",
            address().or("none"),
            "Address at which consumers serve metrics for Prometheus: http://ADDRESS/metrics. Everyone who can reach the address can read them.",
            "an address such as 127.0.0.1:9419 or [::1]:9419, a port for 127.0.0.1, or none";
        /// May contain a password: never print it.
        AMQP_MANAGEMENT management: Option<String> = "amqp.management", "GRISTMILL_AMQP_MANAGEMENT", "none",
            text(consumers::url, |_| "set".to_owned()).or("none"),
            "URL of RabbitMQ's management API, which `gristmill queues` and `consume --drain` query for messages that the broker is returning to their queue. A password in it is never shown.",
            "a URL such as http://user:password@localhost:15672, or none";
    }
}

/// Environment variables of the program that are not settings.
pub(crate) const OTHER_VARIABLES: &[&str] = &["GRISTMILL_LOG", "GRISTMILL_CONFIG"];

/// Bytes per second.
fn rate() -> Format<u64> {
    let read = |text: &str| units::size(text.strip_suffix("/s").unwrap_or(text)).filter(|rate| *rate > 0);
    text(read, |rate| format!("{}/s", units::show_size(*rate)))
}

fn absolute_path() -> Format<PathBuf> {
    text(|text| Some(PathBuf::from(text)).filter(|path| path.is_absolute()), |path| path.display().to_string())
}

/// A path below which a server is reached.
fn base_path(text: &str) -> Option<String> {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"/-_.~".contains(&byte);
    let is_path = text.starts_with('/') && !text.ends_with('/') && !text.contains("//") && text.bytes().all(is_allowed);
    is_path.then(|| text.to_owned())
}

/// Number of cores that this process may use.
pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn cores_or(range: std::ops::RangeInclusive<usize>) -> Format<usize> {
    let read = move |text: &str| match text {
        "cores" => Some(cores()),
        text => text.parse().ok().filter(|count| range.contains(count)),
    };
    text(read, usize::to_string)
}

/// A list of names, or one text with commas between them.
fn names() -> Format<Vec<String>> {
    let read = |raw: &Raw| match raw {
        Raw::Many(names) => Some(names.clone()),
        Raw::One(text) => Some(text.to_str()?.split(',').map(|name| name.trim().to_owned()).collect()),
        Raw::Bare(_) => None,
    };
    let is_allowed = |names: &Vec<String>| !names.is_empty() && names.iter().all(|name| !name.is_empty());
    Format::new(move |raw| read(raw).filter(is_allowed).ok_or(Invalid::Value), |names| names.join(", "))
}

/// URIs of the broker. Neither the shown value nor an error contains a password.
fn uris() -> Format<Vec<String>> {
    let because = |why: &str| Invalid::Because(why.to_owned());
    let read = move |raw: &Raw| {
        let uris: Vec<String> = match raw {
            Raw::Many(uris) => uris.clone(),
            Raw::One(text) => {
                let text = text.to_str().ok_or_else(|| because("it is not UTF-8"))?;
                text.split_whitespace().map(str::to_owned).collect()
            }
            Raw::Bare(_) => return Err(because("it is neither a string nor a list of strings")),
        };
        if uris.is_empty() {
            return Err(because("it is empty"));
        }
        match uris.iter().find_map(|uri| uri.parse::<Endpoint>().err()) {
            Some(error) => Err(because(&error.to_string())),
            None => Ok(uris),
        }
    };
    let shown = |uri: &String| uri.parse::<Endpoint>().map(|uri| uri.to_string()).unwrap_or_default();
    Format::new(read, move |uris| uris.iter().map(shown).collect::<Vec<_>>().join(", "))
}

/// An address to listen on. A port alone means 127.0.0.1.
fn address() -> Format<SocketAddr> {
    let port = |text: &str| text.parse().map(|port: u16| SocketAddr::from(([127, 0, 0, 1], port)));
    text(move |text| text.parse().or_else(|_| port(text)).ok(), SocketAddr::to_string)
}

/// Returns the known word that is most similar to a misspelled one.
pub(crate) fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    known
        .map(|candidate| (strsim::jaro_winkler(word, candidate), candidate))
        .filter(|(likeness, _)| *likeness > 0.85)
        .max_by(|(a, _), (b, _)| a.total_cmp(b))
        .map(|(_, candidate)| candidate)
}
