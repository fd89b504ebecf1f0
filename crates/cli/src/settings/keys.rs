//! Every setting there is: its name, its variable, its default, what it is for and what is legal.
//!
//! Owns the list, from which come the commented file, `config show` and the messages about wrong values. It
//! reads nothing.

/// A setting.
#[derive(Debug)]
pub(crate) struct Key {
    /// As in the file, with its section before the dot.
    pub(crate) name: &'static str,
    pub(crate) variable: &'static str,
    /// As one would write it; none for what depends on the machine.
    pub(crate) default: Option<&'static str>,
    pub(crate) description: &'static str,
    pub(crate) expected: &'static str,
}

macro_rules! keys {
    ($($id:ident = $name:literal, $variable:literal, $default:expr, $description:literal, $expected:literal;)*) => {
        $(pub(crate) static $id: Key =
            Key { name: $name, variable: $variable, default: $default, description: $description, expected: $expected };)*
        /// All of them, in the order of the file.
        pub(crate) static ALL: &[&Key] = &[$(&$id),*];
    };
}

keys! {
    DATABASE = "database", "GRISTMILL_DB", None,
        "The file that holds all work. A relative path in this file is relative to this file's folder.",
        "a path; ~/ at its beginning is your home folder";
    SYNCHRONOUS = "synchronous", "GRISTMILL_SYNCHRONOUS", Some("full"),
        "How safe a commit is when the power goes: full loses nothing that was acknowledged; normal may lose the last moments and is faster.",
        "full or normal";
    BUSY_TIMEOUT = "busy_timeout", "GRISTMILL_BUSY_TIMEOUT", Some("10s"),
        "How long to wait for another process that writes.",
        "a duration from 0s to 1h, such as 500ms or 10s";
    SCAN_HASH = "scan.hash", "GRISTMILL_SCAN_HASH", Some("blake3"),
        "How contents are hashed. After a change the next scan hashes again what it needs. Programs that share the database may know only the first two.",
        "blake3, sha256, sha512 or sha3-256";
    SCAN_WORKERS = "scan.workers", "GRISTMILL_SCAN_WORKERS", Some("auto"),
        "How many workers walk and read. auto is four for each core, at least 16: most of them wait for the disk.",
        "a whole number from 1 to 1024, or auto";
    SCAN_IO_LIMIT = "scan.io_limit", "GRISTMILL_SCAN_IO_LIMIT", Some("none"),
        "How much a scan may read in a second.",
        "a size such as 200MiB, 200M or 200MB/s, or none";
    SCAN_LIBRARIES = "scan.libraries", "GRISTMILL_SCAN_LIBRARIES", Some("none"),
        "A folder whose folders become roots when a job asks for a scan of everything. For control planes that share the database.",
        "an absolute path, or none";
    IMPORT_WORKERS = "import.workers", "GRISTMILL_IMPORT_WORKERS", Some("4"),
        "How many workers parse while an import writes. 0 or cores is one for each core.",
        "a whole number from 0 to 32, or cores";
    IMPORT_EXACT_NUMBERS = "import.exact_numbers", "GRISTMILL_IMPORT_EXACT_NUMBERS", Some("false"),
        "Whether decimals that a double would round are kept as text, digit by digit. Otherwise they are rounded, as other readers of JSON do it.",
        "true or false";
    QUEUES = "worker.queues", "GRISTMILL_WORKER_QUEUES", Some("default"),
        "The queues a worker takes tasks from.",
        "a list of names; in the variable separated by commas";
    LEASE = "worker.lease", "GRISTMILL_WORKER_LEASE", Some("5m"),
        "For how long a task is a worker's without a word from it; then others may have it.",
        "a duration from 100ms to 1d, such as 30s or 5m";
    SHUTDOWN = "worker.shutdown", "GRISTMILL_WORKER_SHUTDOWN", Some("30s"),
        "How long running tasks may go on after a worker was told to stop.",
        "a duration from 0s to 1d, such as 30s or 5m";
    MAX_CRASHES = "worker.max_crashes", "GRISTMILL_WORKER_MAX_CRASHES", Some("3"),
        "A task whose worker has died so often is given up.",
        "a whole number from 1 to 1000";
    KEEP_FINISHED = "worker.keep_finished", "GRISTMILL_WORKER_KEEP_FINISHED", Some("7d"),
        "How long finished tasks are kept to be looked at.",
        "a duration such as 12h or 7d, or forever";
    EXEC_WORKERS = "exec.workers", "GRISTMILL_EXEC_WORKERS", Some("cores"),
        "How many commands run at the same time.",
        "a whole number from 1 to 1024, or cores";
    EXEC_TIMEOUT = "exec.timeout", "GRISTMILL_EXEC_TIMEOUT", Some("1h"),
        "How long a command may run, unless its task says otherwise.",
        "a duration of at least 1ms, such as 30s or 2h, or none";
    EXEC_MAX_OUTPUT = "exec.max_output", "GRISTMILL_EXEC_MAX_OUTPUT", Some("64KiB"),
        "How much of each of a command's two output streams is kept.",
        "a size from 0B to 4MiB, such as 64KiB";
    EXEC_ATTEMPTS = "exec.attempts", "GRISTMILL_EXEC_ATTEMPTS", Some("5"),
        "How many attempts a command has, unless its task says otherwise.",
        "a whole number from 1 to 1000";
    EXEC_BACKOFF_BASE = "exec.backoff_base", "GRISTMILL_EXEC_BACKOFF_BASE", Some("1s"),
        "The longest wait after the first failed attempt; it doubles with each further one.",
        "a duration from 1ms to 1d, such as 500ms or 1s";
    EXEC_BACKOFF_CAP = "exec.backoff_cap", "GRISTMILL_EXEC_BACKOFF_CAP", Some("10m"),
        "No wait between two attempts is longer than this.",
        "a duration from 1ms to 30d that is not below exec.backoff_base";
    AMQP_URI = "amqp.uri", "GRISTMILL_AMQP_URI", Some("amqp://localhost"),
        "Where RabbitMQ is; several nodes of a cluster as a list. A password in it is never shown; keep this file readable by its owner alone then (chmod 600).",
        "amqp://user:password@host:port/vhost, or amqps:// for TLS, or a list of such; in the variable separated by spaces";
    AMQP_CONNECT_WITHIN = "amqp.connect_within", "GRISTMILL_AMQP_CONNECT_WITHIN", Some("10s"),
        "How long to wait for the first connection. One that is lost later is waited for as long as it takes.",
        "a duration from 100ms to 1d, such as 10s or 5m";
    AMQP_SHUTDOWN = "amqp.shutdown", "GRISTMILL_AMQP_SHUTDOWN", Some("30s"),
        "How long messages that are being handled may go on after a consumer was told to stop.",
        "a duration from 0s to 1d, such as 30s or 5m";
    AMQP_METRICS = "amqp.metrics", "GRISTMILL_AMQP_METRICS", Some("none"),
        "Where consumers tell Prometheus how they go: http://ADDRESS/metrics. Everybody who can reach the address can read it.",
        "an address such as 127.0.0.1:9419 or [::1]:9419, a port for 127.0.0.1, or none";
    AMQP_MANAGEMENT = "amqp.management", "GRISTMILL_AMQP_MANAGEMENT", Some("none"),
        "RabbitMQ's management API, which `gristmill queues` and `consume --drain` ask for messages that the broker is returning to their queue. A password in it is never shown.",
        "a URL such as http://user:password@localhost:15672, or none";
}

/// Variables that are not settings of this list.
pub(crate) const OTHER_VARIABLES: &[&str] = &["GRISTMILL_LOG", "GRISTMILL_CONFIG"];

pub(crate) fn find(name: &str) -> Option<&'static Key> {
    ALL.iter().copied().find(|key| key.name == name)
}

/// What was probably meant, among words that are known.
pub(crate) fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    known
        .map(|candidate| (strsim::jaro_winkler(word, candidate), candidate))
        .filter(|(likeness, _)| *likeness > 0.85)
        .max_by(|(a, _), (b, _)| a.total_cmp(b))
        .map(|(_, candidate)| candidate)
}
