//! Tables of message consumers.

/// Ids of processed messages. The table is stored by its primary key; the index orders rows by time, for pruning.
pub(crate) const SEEN_MESSAGES: &str = "
    CREATE TABLE IF NOT EXISTS seen_messages (
        scope TEXT NOT NULL CHECK (scope <> ''),
        message_id TEXT NOT NULL CHECK (message_id <> ''),
        seen_at TEXT NOT NULL,
        PRIMARY KEY (scope, message_id)
    ) WITHOUT ROWID;
    CREATE INDEX IF NOT EXISTS ix_seen_messages_seen ON seen_messages (scope, seen_at);
";

/// Messages that were started and have not ended, for consumers that restart after a crash. Identical messages have the
/// same fingerprint and differ in `copy`. The index orders rows by time, for pruning.
pub(crate) const MESSAGE_RUNS: &str = "
    CREATE TABLE IF NOT EXISTS message_runs (
        scope TEXT NOT NULL CHECK (scope <> ''),
        fingerprint BLOB NOT NULL,
        copy INTEGER NOT NULL CHECK (copy >= 0),
        starts INTEGER NOT NULL CHECK (starts >= 0),
        failed INTEGER NOT NULL CHECK (failed >= 0),
        error TEXT,
        updated_at TEXT NOT NULL,
        PRIMARY KEY (scope, fingerprint, copy)
    ) WITHOUT ROWID;
    CREATE INDEX IF NOT EXISTS ix_message_runs_updated ON message_runs (updated_at);
";

/// Messages that a consumer is handling, so that no other handles them.
pub(crate) const MESSAGE_CLAIMS: &str = "
    CREATE TABLE IF NOT EXISTS message_claims (
        scope TEXT NOT NULL CHECK (scope <> ''),
        message_id TEXT NOT NULL CHECK (message_id <> ''),
        claimed_by TEXT NOT NULL,
        claimed_at TEXT NOT NULL,
        PRIMARY KEY (scope, message_id)
    ) WITHOUT ROWID;
";

/// Offsets at which stream consumers continue.
pub(crate) const STREAM_POSITIONS: &str = "
    CREATE TABLE IF NOT EXISTS stream_positions (
        stream TEXT NOT NULL CHECK (stream <> ''),
        consumer TEXT NOT NULL CHECK (consumer <> ''),
        next_offset INTEGER NOT NULL CHECK (next_offset >= 0),
        updated_at TEXT NOT NULL,
        PRIMARY KEY (stream, consumer)
    ) WITHOUT ROWID;
";
