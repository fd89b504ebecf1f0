//! All settings: name, environment variable, default, description and expected values.
//!
//! Owns the list from which the commented settings file, `config show` and the errors about wrong values are made.

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

macro_rules! keys {
    ($($id:ident = $name:literal, $variable:literal, $default:expr, $description:literal, $expected:literal;)*) => {
        $(pub(crate) static $id: Key =
            Key { name: $name, variable: $variable, default: $default, description: $description, expected: $expected };)*
        /// All settings, in the order of the file.
        pub(crate) static ALL: &[&Key] = &[$(&$id),*];
    };
}

keys! {
    DATABASE = "database", "GRISTMILL_DB", None,
        "Database file with the catalog, tasks and dead letters. A relative path is relative to the folder of the settings file.",
        "a path; ~/ at the start is your home folder";
    SYNCHRONOUS = "synchronous", "GRISTMILL_SYNCHRONOUS", Some("full"),
        "Durability of a commit after a power failure: full loses no acknowledged commit; normal may lose the latest commits and is faster.",
        "full or normal";
    BUSY_TIMEOUT = "busy_timeout", "GRISTMILL_BUSY_TIMEOUT", Some("10s"),
        "How long to wait for another process that writes to the database.",
        "a duration from 0s to 1h, such as 500ms or 10s";
    SCAN_HASH = "scan.hash", "GRISTMILL_SCAN_HASH", Some("blake3"),
        "Hash algorithm. After a change, the next scan hashes files again where needed. Other programs that use the database may support only the first two.",
        "blake3, sha256, sha512 or sha3-256";
    SCAN_WORKERS = "scan.workers", "GRISTMILL_SCAN_WORKERS", Some("auto"),
        "Number of workers that walk and read. auto is four for each core, at least 16, because most of them wait for the disk.",
        "a whole number from 1 to 1024, or auto";
    SCAN_IO_LIMIT = "scan.io_limit", "GRISTMILL_SCAN_IO_LIMIT", Some("none"),
        "Maximum read rate of a scan, per second.",
        "a size such as 200MiB, 200M or 200MB/s, or none";
    SCAN_LIBRARIES = "scan.libraries", "GRISTMILL_SCAN_LIBRARIES", Some("none"),
        "Only for programs that create scan jobs in the database: a folder whose subfolders are registered as roots when a job asks for a scan of everything. `gristmill scan` does not use it.",
        "an absolute path, or none";
    IMPORT_WORKERS = "import.workers", "GRISTMILL_IMPORT_WORKERS", Some("4"),
        "Number of workers that parse during an import. 0 or cores is one for each core.",
        "a whole number from 0 to 32, or cores";
    IMPORT_EXACT_NUMBERS = "import.exact_numbers", "GRISTMILL_IMPORT_EXACT_NUMBERS", Some("false"),
        "Whether decimals that a double would round are stored as text with all digits. Otherwise they are rounded, as by other JSON parsers.",
        "true or false";
    QUEUES = "worker.queues", "GRISTMILL_WORKER_QUEUES", Some("default"),
        "Queues that a worker takes tasks from, the most important first.",
        "a list of names, separated by commas in the variable";
    LEASE = "worker.lease", "GRISTMILL_WORKER_LEASE", Some("5m"),
        "How long a worker may hold a task without a heartbeat. After that, other workers may claim the task.",
        "a duration from 100ms to 1d, such as 30s or 5m";
    SHUTDOWN = "worker.shutdown", "GRISTMILL_WORKER_SHUTDOWN", Some("30s"),
        "How long running tasks may continue after a worker was asked to stop.",
        "a duration from 0s to 1d, such as 30s or 5m";
    MAX_CRASHES = "worker.max_crashes", "GRISTMILL_WORKER_MAX_CRASHES", Some("3"),
        "Number of worker crashes after which a task becomes a dead letter.",
        "a whole number from 1 to 1000";
    KEEP_FINISHED = "worker.keep_finished", "GRISTMILL_WORKER_KEEP_FINISHED", Some("7d"),
        "How long finished tasks are kept.",
        "a duration such as 12h or 7d, or forever";
    EXEC_WORKERS = "exec.workers", "GRISTMILL_EXEC_WORKERS", Some("cores"),
        "Number of commands that run at the same time.",
        "a whole number from 1 to 1024, or cores";
    EXEC_TIMEOUT = "exec.timeout", "GRISTMILL_EXEC_TIMEOUT", Some("1h"),
        "How long a command may run, unless its task sets a timeout.",
        "a duration of at least 1ms, such as 30s or 2h, or none";
    EXEC_MAX_OUTPUT = "exec.max_output", "GRISTMILL_EXEC_MAX_OUTPUT", Some("64KiB"),
        "How much of a command's standard output and standard error is kept, each.",
        "a size from 0B to 4MiB, such as 64KiB";
    EXEC_ATTEMPTS = "exec.attempts", "GRISTMILL_EXEC_ATTEMPTS", Some("5"),
        "Number of attempts of a command, unless its task sets it.",
        "a whole number from 1 to 1000";
    EXEC_BACKOFF_BASE = "exec.backoff_base", "GRISTMILL_EXEC_BACKOFF_BASE", Some("1s"),
        "Maximum delay after the first failed attempt. It doubles with each further attempt.",
        "a duration from 1ms to 1d, such as 500ms or 1s";
    EXEC_BACKOFF_CAP = "exec.backoff_cap", "GRISTMILL_EXEC_BACKOFF_CAP", Some("10m"),
        "Maximum delay between two attempts.",
        "a duration from 1ms to 30d that is not below exec.backoff_base";
    AMQP_URI = "amqp.uri", "GRISTMILL_AMQP_URI", Some("amqp://localhost"),
        "URI of RabbitMQ, or a list for the nodes of a cluster. A password in it is never shown; make a file with a password readable only by its owner (chmod 600).",
        "amqp://user:password@host:port/vhost, or amqps:// for TLS, or a list of these, separated by spaces in the variable";
    AMQP_CONNECT_WITHIN = "amqp.connect_within", "GRISTMILL_AMQP_CONNECT_WITHIN", Some("10s"),
        "How long to wait for the first connection. After a lost connection, reconnecting is tried without a limit.",
        "a duration from 100ms to 1d, such as 10s or 5m";
    AMQP_SHUTDOWN = "amqp.shutdown", "GRISTMILL_AMQP_SHUTDOWN", Some("30s"),
        "How long handlers of messages may continue after a consumer was asked to stop.",
        "a duration from 0s to 1d, such as 30s or 5m";
    AMQP_METRICS = "amqp.metrics", "GRISTMILL_AMQP_METRICS", Some("none"),
        "Address at which consumers serve metrics for Prometheus: http://ADDRESS/metrics. Everyone who can reach the address can read them.",
        "an address such as 127.0.0.1:9419 or [::1]:9419, a port for 127.0.0.1, or none";
    AMQP_MANAGEMENT = "amqp.management", "GRISTMILL_AMQP_MANAGEMENT", Some("none"),
        "URL of RabbitMQ's management API, which `gristmill queues` and `consume --drain` query for messages that the broker is returning to their queue. A password in it is never shown.",
        "a URL such as http://user:password@localhost:15672, or none";
}

/// Environment variables of the program that are not settings.
pub(crate) const OTHER_VARIABLES: &[&str] = &["GRISTMILL_LOG", "GRISTMILL_CONFIG"];

pub(crate) fn find(name: &str) -> Option<&'static Key> {
    ALL.iter().copied().find(|key| key.name == name)
}

/// Returns the known word that is most similar to a misspelled one.
pub(crate) fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    known
        .map(|candidate| (strsim::jaro_winkler(word, candidate), candidate))
        .filter(|(likeness, _)| *likeness > 0.85)
        .max_by(|(a, _), (b, _)| a.total_cmp(b))
        .map(|(_, candidate)| candidate)
}
