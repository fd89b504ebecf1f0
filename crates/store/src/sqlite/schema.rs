//! The tables and indexes of a new file.
//!
//! Owns every CREATE TABLE and CREATE INDEX. Names, values and defaults are a contract with other programs on the same
//! file: writers rely on the defaults of time columns, and readers name indexes in their queries. Files of other
//! programs have fewer constraints and defaults, so Gristmill's INSERTs name every column that is NOT NULL.
//!
//! Sets of values are written as `a = 'x' OR a = 'y' …`: for `a IN (…)` with three or more values SQLite builds a
//! temporary b-tree for every written row. A profile showed it as the largest single cost of a task.

/// A table that is shared with the Python control plane.
pub(crate) struct Table {
    pub(crate) name: &'static str,
    pub(crate) create: &'static str,
    /// Columns that an older file may lack, each nullable or with a default.
    pub(crate) added_columns: &'static [(&'static str, &'static str)],
}

/// Tables shared with the Python control plane, in the order of their foreign keys.
pub(crate) const SHARED_TABLES: &[Table] = &[
    Table {
        name: "jobs",
        create: "CREATE TABLE jobs (
            id TEXT NOT NULL PRIMARY KEY CHECK (length(id) = 36),
            kind TEXT NOT NULL CHECK (kind = 'scan' OR kind = 'hash' OR kind = 'delete' OR kind = 'thumbnail'),
            status TEXT NOT NULL DEFAULT 'pending' CHECK (status = 'pending' OR status = 'running' OR status = 'completed' OR status = 'failed' OR status = 'cancelled' OR status = 'retryable'),
            dry_run INTEGER NOT NULL DEFAULT 1 CHECK (dry_run IN (0, 1)),
            worker_id TEXT,
            worker_heartbeat_at TEXT,
            lease_expires_at TEXT,
            progress REAL NOT NULL DEFAULT 0 CHECK (progress >= 0),
            total_items INTEGER CHECK (total_items >= 0),
            processed_items INTEGER NOT NULL DEFAULT 0 CHECK (processed_items >= 0),
            payload TEXT NOT NULL DEFAULT '{}' CHECK (json_valid(payload)),
            error_code TEXT,
            error_message TEXT,
            created_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP,
            updated_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP,
            started_at TEXT,
            finished_at TEXT
        )",
        added_columns: &[
            ("worker_id", "TEXT"),
            ("worker_heartbeat_at", "TEXT"),
            ("lease_expires_at", "TEXT"),
            ("error_code", "TEXT"),
        ],
    },
    Table {
        name: "job_locks",
        create: "CREATE TABLE job_locks (
            lock_key TEXT NOT NULL PRIMARY KEY,
            owner_job_id TEXT NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
            acquired_at TEXT NOT NULL,
            heartbeat_at TEXT NOT NULL,
            expires_at TEXT NOT NULL
        )",
        added_columns: &[],
    },
    Table {
        name: "library_roots",
        create: "CREATE TABLE library_roots (
            id INTEGER NOT NULL PRIMARY KEY,
            name TEXT NOT NULL UNIQUE,
            root_path TEXT NOT NULL UNIQUE,
            created_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP,
            updated_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP,
            last_scanned_at TEXT,
            traverse_links INTEGER NOT NULL DEFAULT 0 CHECK (traverse_links IN (0, 1)),
            folder_count INTEGER CHECK (folder_count >= 0),
            file_count INTEGER CHECK (file_count >= 0),
            total_size INTEGER CHECK (total_size >= 0)
        )",
        added_columns: &[
            ("traverse_links", "INTEGER NOT NULL DEFAULT 0"),
            ("folder_count", "INTEGER"),
            ("file_count", "INTEGER"),
            ("total_size", "INTEGER"),
        ],
    },
    Table {
        name: "scan_sessions",
        create: "CREATE TABLE scan_sessions (
            id INTEGER NOT NULL PRIMARY KEY,
            status TEXT NOT NULL DEFAULT 'running' CHECK (status = 'running' OR status = 'succeeded' OR status = 'failed'),
            started_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP,
            finished_at TEXT,
            error_message TEXT,
            files_seen INTEGER NOT NULL DEFAULT 0 CHECK (files_seen >= 0),
            directories_seen INTEGER NOT NULL DEFAULT 0 CHECK (directories_seen >= 0),
            bytes_seen INTEGER NOT NULL DEFAULT 0 CHECK (bytes_seen >= 0),
            error_count INTEGER NOT NULL DEFAULT 0 CHECK (error_count >= 0)
        )",
        added_columns: &[("error_count", "INTEGER NOT NULL DEFAULT 0")],
    },
    Table {
        name: "folders",
        create: "CREATE TABLE folders (
            id INTEGER NOT NULL PRIMARY KEY,
            library_id INTEGER NOT NULL REFERENCES library_roots (id) ON DELETE CASCADE,
            parent_id INTEGER REFERENCES folders (id) ON DELETE CASCADE,
            relative_path TEXT NOT NULL,
            first_seen_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP,
            last_seen_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP,
            removed_at TEXT,
            error_status TEXT,
            UNIQUE (library_id, relative_path)
        )",
        added_columns: &[],
    },
    Table {
        name: "library_files",
        create: "CREATE TABLE library_files (
            id INTEGER NOT NULL PRIMARY KEY,
            library_id INTEGER NOT NULL REFERENCES library_roots (id) ON DELETE CASCADE,
            relative_path TEXT NOT NULL,
            size_bytes INTEGER NOT NULL CHECK (size_bytes >= 0),
            mtime_ns INTEGER NOT NULL,
            inode INTEGER,
            device INTEGER,
            is_missing INTEGER NOT NULL DEFAULT 0 CHECK (is_missing IN (0, 1)),
            needs_hash INTEGER NOT NULL DEFAULT 1 CHECK (needs_hash IN (0, 1)),
            last_seen_scan_id INTEGER REFERENCES scan_sessions (id) ON DELETE SET NULL,
            hash_algorithm TEXT CHECK (hash_algorithm = 'blake3' OR hash_algorithm = 'sha256' OR hash_algorithm = 'sha512' OR hash_algorithm = 'sha3-256'),
            content_hash BLOB,
            hashed_size_bytes INTEGER CHECK (hashed_size_bytes >= 0),
            hashed_mtime_ns INTEGER,
            hashed_at TEXT,
            hash_error_count INTEGER NOT NULL DEFAULT 0 CHECK (hash_error_count >= 0),
            hash_last_error TEXT,
            hash_last_error_at TEXT,
            hash_retry_after TEXT,
            hash_claim_token TEXT,
            hash_claimed_at TEXT,
            created_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP,
            updated_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP,
            folder_id INTEGER REFERENCES folders (id) ON DELETE SET NULL,
            CONSTRAINT uq_library_files_library_id_relative_path UNIQUE (library_id, relative_path)
        )",
        added_columns: &[
            ("is_missing", "INTEGER NOT NULL DEFAULT 0"),
            ("needs_hash", "INTEGER NOT NULL DEFAULT 1"),
            ("hash_algorithm", "TEXT"),
            ("content_hash", "BLOB"),
            ("hash_error_count", "INTEGER NOT NULL DEFAULT 0"),
            ("hash_last_error", "TEXT"),
            ("hash_last_error_at", "TEXT"),
            ("hash_retry_after", "TEXT"),
            ("hash_claim_token", "TEXT"),
            ("hash_claimed_at", "TEXT"),
            ("folder_id", "INTEGER REFERENCES folders (id) ON DELETE SET NULL"),
        ],
    },
    Table {
        name: "thumbnails",
        create: "CREATE TABLE thumbnails (
            id INTEGER NOT NULL PRIMARY KEY,
            thumb_key TEXT NOT NULL UNIQUE,
            file_id INTEGER NOT NULL REFERENCES library_files (id) ON DELETE CASCADE,
            group_key TEXT,
            status TEXT NOT NULL DEFAULT 'pending' CHECK (status = 'pending' OR status = 'running' OR status = 'ready' OR status = 'failed'),
            media_type TEXT NOT NULL CHECK (media_type IN ('image', 'video')),
            format TEXT NOT NULL DEFAULT 'jpeg' CHECK (format IN ('jpeg', 'webp')),
            max_dimension INTEGER NOT NULL DEFAULT 256 CHECK (max_dimension > 0),
            version INTEGER NOT NULL DEFAULT 1 CHECK (version >= 0),
            source_size_bytes INTEGER NOT NULL CHECK (source_size_bytes >= 0),
            source_mtime_ns INTEGER NOT NULL,
            output_relpath TEXT,
            width INTEGER CHECK (width >= 0),
            height INTEGER CHECK (height >= 0),
            bytes_size INTEGER CHECK (bytes_size >= 0),
            error_code TEXT,
            error_message TEXT,
            error_count INTEGER NOT NULL DEFAULT 0 CHECK (error_count >= 0),
            retry_after TEXT,
            worker_id TEXT,
            worker_heartbeat_at TEXT,
            lease_expires_at TEXT,
            created_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP,
            updated_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP,
            started_at TEXT,
            finished_at TEXT
        )",
        added_columns: &[],
    },
    Table {
        name: "thumbnail_cleanup_jobs",
        create: "CREATE TABLE thumbnail_cleanup_jobs (
            id INTEGER NOT NULL PRIMARY KEY,
            group_key TEXT NOT NULL UNIQUE,
            status TEXT NOT NULL DEFAULT 'pending' CHECK (status = 'pending' OR status = 'running' OR status = 'completed' OR status = 'failed'),
            execute_after TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP,
            worker_id TEXT,
            worker_heartbeat_at TEXT,
            lease_expires_at TEXT,
            error_code TEXT,
            error_message TEXT,
            created_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP,
            updated_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP,
            finished_at TEXT
        )",
        added_columns: &[],
    },
    Table {
        name: "wal_maintenance_jobs",
        create: "CREATE TABLE wal_maintenance_jobs (
            id INTEGER NOT NULL PRIMARY KEY,
            requested_mode TEXT NOT NULL DEFAULT 'passive' CHECK (requested_mode = 'passive' OR requested_mode = 'restart' OR requested_mode = 'truncate'),
            status TEXT NOT NULL DEFAULT 'pending' CHECK (status = 'pending' OR status = 'running' OR status = 'retryable' OR status = 'completed' OR status = 'failed'),
            requested_by TEXT,
            reason TEXT,
            execute_after TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP,
            retry_count INTEGER NOT NULL DEFAULT 0 CHECK (retry_count >= 0),
            retry_after TEXT,
            worker_id TEXT,
            worker_heartbeat_at TEXT,
            lease_expires_at TEXT,
            checkpoint_busy INTEGER,
            checkpoint_log_frames INTEGER,
            checkpointed_frames INTEGER,
            error_code TEXT,
            error_message TEXT,
            created_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP,
            updated_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP,
            started_at TEXT,
            finished_at TEXT
        )",
        added_columns: &[
            ("requested_by", "TEXT"),
            ("reason", "TEXT"),
            ("retry_count", "INTEGER NOT NULL DEFAULT 0"),
            ("retry_after", "TEXT"),
            ("worker_id", "TEXT"),
            ("worker_heartbeat_at", "TEXT"),
            ("lease_expires_at", "TEXT"),
            ("checkpoint_busy", "INTEGER"),
            ("checkpoint_log_frames", "INTEGER"),
            ("checkpointed_frames", "INTEGER"),
            ("error_code", "TEXT"),
            ("error_message", "TEXT"),
            ("started_at", "TEXT"),
            ("finished_at", "TEXT"),
        ],
    },
    Table {
        name: "io_rate_limits",
        create: "CREATE TABLE io_rate_limits (
            bucket_key TEXT NOT NULL PRIMARY KEY,
            next_available_at_ms INTEGER NOT NULL DEFAULT 0 CHECK (next_available_at_ms >= 0),
            updated_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP
        )",
        added_columns: &[],
    },
];

pub(crate) const CREATE_MIGRATIONS_TABLE: &str = "CREATE TABLE IF NOT EXISTS schema_migrations (
    version INTEGER NOT NULL PRIMARY KEY,
    name TEXT NOT NULL,
    applied_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP
)";

/// Indexes of the shared tables. Other programs name some of them, so none may become partial or lose a column.
pub(crate) const SHARED_INDEXES: &str = "
    CREATE INDEX IF NOT EXISTS ix_jobs_kind_status ON jobs (kind, status);
    CREATE INDEX IF NOT EXISTS ix_jobs_running_lease ON jobs (status, lease_expires_at);
    CREATE INDEX IF NOT EXISTS ix_jobs_created_at ON jobs (created_at);
    CREATE INDEX IF NOT EXISTS ix_jobs_created_id ON jobs (created_at, id);
    CREATE INDEX IF NOT EXISTS ix_jobs_status_updated ON jobs (status, updated_at);
    CREATE INDEX IF NOT EXISTS ix_jobs_created_moment
        ON jobs (substr(replace(created_at, '+00:00', '') || '.000000', 1, 26), id);
    CREATE INDEX IF NOT EXISTS ix_job_locks_owner_job_id ON job_locks (owner_job_id);
    CREATE INDEX IF NOT EXISTS ix_job_locks_expires_at ON job_locks (expires_at);
    CREATE INDEX IF NOT EXISTS ix_library_roots_last_scanned_at ON library_roots (last_scanned_at);
    CREATE INDEX IF NOT EXISTS ix_scan_sessions_status_started ON scan_sessions (status, started_at);
    CREATE INDEX IF NOT EXISTS ix_scan_sessions_finished_at ON scan_sessions (finished_at);
    CREATE INDEX IF NOT EXISTS ix_folders_parent ON folders (parent_id);
    CREATE INDEX IF NOT EXISTS ix_library_files_folder ON library_files (folder_id);
    CREATE INDEX IF NOT EXISTS ix_library_files_dedup_group
        ON library_files (is_missing, needs_hash, hash_algorithm, content_hash, id);
    CREATE INDEX IF NOT EXISTS ix_thumbnails_status_retry ON thumbnails (status, retry_after, id);
    CREATE INDEX IF NOT EXISTS ix_thumbnails_file_variant ON thumbnails (file_id, max_dimension, format);
    CREATE INDEX IF NOT EXISTS ix_thumbnails_group_status ON thumbnails (group_key, status);
    CREATE INDEX IF NOT EXISTS ix_thumbnails_running_lease ON thumbnails (status, lease_expires_at);
    CREATE INDEX IF NOT EXISTS ix_thumbnails_updated ON thumbnails (updated_at);
    CREATE INDEX IF NOT EXISTS ix_thumbnails_pending_moment
        ON thumbnails (media_type, substr(replace(created_at, '+00:00', '') || '.000000', 1, 26), id)
        WHERE status = 'pending';
    CREATE INDEX IF NOT EXISTS ix_thumbnail_cleanup_status_execute
        ON thumbnail_cleanup_jobs (status, execute_after);
    CREATE INDEX IF NOT EXISTS ix_thumbnail_cleanup_running_lease
        ON thumbnail_cleanup_jobs (status, lease_expires_at);
    CREATE INDEX IF NOT EXISTS ix_thumbnail_cleanup_updated ON thumbnail_cleanup_jobs (updated_at);
    CREATE INDEX IF NOT EXISTS ix_wal_jobs_status_execute ON wal_maintenance_jobs (status, execute_after, id);
    CREATE INDEX IF NOT EXISTS ix_wal_jobs_retry_after ON wal_maintenance_jobs (status, retry_after, id);
    CREATE INDEX IF NOT EXISTS ix_wal_jobs_running_lease ON wal_maintenance_jobs (status, lease_expires_at);
    CREATE INDEX IF NOT EXISTS ix_wal_jobs_created_at ON wal_maintenance_jobs (created_at);
";

/// Unique index that allows one pending or running scan or hash job. Older files have an index of this name with
/// another condition, so it is always created again.
pub(crate) const SINGLE_ACTIVE_INDEX: &str = "
    DROP INDEX IF EXISTS ix_jobs_single_active_scan_hash;
    CREATE UNIQUE INDEX ix_jobs_single_active_scan_hash ON jobs ((1))
        WHERE lower(status) IN ('pending', 'running') AND lower(kind) IN ('scan', 'hash');
";

/// Columns with enum values, which are lower-case.
pub(crate) const ENUM_COLUMNS: &[(&str, &str)] = &[
    ("jobs", "kind"),
    ("jobs", "status"),
    ("scan_sessions", "status"),
    ("library_files", "hash_algorithm"),
    ("thumbnails", "status"),
    ("thumbnails", "media_type"),
    ("thumbnails", "format"),
    ("thumbnail_cleanup_jobs", "status"),
    ("wal_maintenance_jobs", "requested_mode"),
    ("wal_maintenance_jobs", "status"),
];

/// Durable tasks, their checkpoints, and dead letters. The indexes of `tasks` are partial and contain only unfinished
/// rows, so finding work takes the same time with a million finished rows as with none. Exception:
/// `ix_tasks_suspicious` ([`SUSPICIOUS_INDEX`]) keeps finished tasks whose worker died. There is no AUTOINCREMENT,
/// which would add a second write for every task: ids are not reused because `prune` keeps the last row. Texts are
/// checked to be JSON before they are inserted.
pub(crate) const TASKS: &str = "
    CREATE TABLE IF NOT EXISTS tasks (
        id INTEGER NOT NULL PRIMARY KEY,
        queue TEXT NOT NULL DEFAULT 'default' CHECK (queue <> ''),
        kind TEXT NOT NULL CHECK (kind <> ''),
        status TEXT NOT NULL DEFAULT 'pending' CHECK (status = 'pending' OR status = 'scheduled' OR status = 'running' OR status = 'completed' OR status = 'failed' OR status = 'cancelled'),
        priority INTEGER NOT NULL DEFAULT 0,
        attempts INTEGER NOT NULL DEFAULT 0 CHECK (attempts >= 0),
        max_attempts INTEGER CHECK (max_attempts > 0),
        crashes INTEGER NOT NULL DEFAULT 0 CHECK (crashes >= 0),
        run_after TEXT,
        worker_id TEXT,
        worker_heartbeat_at TEXT,
        lease_expires_at TEXT,
        created_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP,
        started_at TEXT,
        finished_at TEXT,
        first_failed_at TEXT,
        last_failed_at TEXT,
        failed_step TEXT,
        error_message TEXT,
        unique_key TEXT,
        document_id TEXT,
        result TEXT CHECK (json_valid(result)),
        payload TEXT NOT NULL DEFAULT '{}'
    );
    CREATE INDEX IF NOT EXISTS ix_tasks_pending ON tasks (queue, kind, priority DESC) WHERE status = 'pending';
    CREATE INDEX IF NOT EXISTS ix_tasks_scheduled ON tasks (run_after) WHERE status = 'scheduled';
    CREATE INDEX IF NOT EXISTS ix_tasks_running ON tasks (id) WHERE status = 'running';
    CREATE UNIQUE INDEX IF NOT EXISTS ix_tasks_unique ON tasks (kind, unique_key)
        WHERE unique_key IS NOT NULL AND status <> 'completed' AND status <> 'failed' AND status <> 'cancelled';

    CREATE TABLE IF NOT EXISTS task_checkpoints (
        task_id INTEGER NOT NULL REFERENCES tasks (id) ON DELETE CASCADE,
        step TEXT NOT NULL,
        data TEXT NOT NULL CHECK (json_valid(data)),
        created_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP,
        updated_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP,
        PRIMARY KEY (task_id, step)
    ) WITHOUT ROWID;
    CREATE INDEX IF NOT EXISTS ix_task_checkpoints_updated ON task_checkpoints (updated_at);

    CREATE TABLE IF NOT EXISTS dead_letter_queue (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        task_id TEXT NOT NULL,
        task_type TEXT NOT NULL,
        document_id TEXT NOT NULL,
        failure_reason TEXT NOT NULL,
        attempt_count INTEGER NOT NULL CHECK (attempt_count >= 0),
        first_failure TEXT NOT NULL,
        last_failure TEXT NOT NULL,
        error_details TEXT,
        checkpoint TEXT,
        created_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP
    );
    CREATE INDEX IF NOT EXISTS idx_dlq_task_id ON dead_letter_queue (task_id);
    CREATE INDEX IF NOT EXISTS idx_dlq_document_id ON dead_letter_queue (document_id);
    CREATE INDEX IF NOT EXISTS idx_dlq_last_failure ON dead_letter_queue (last_failure);
";

/// `cancel_requested_at`: when the cancellation of a running task was requested, which is cancelled when its run ends.
pub(crate) const CANCEL_COLUMNS: &[(&str, &str)] = &[("cancel_requested_at", "TEXT")];

/// Failed attempts of tasks, and an index of the running tasks whose cancellation was requested.
pub(crate) const TASK_FAILURES: &str = "
    CREATE TABLE IF NOT EXISTS task_failures (
        task_id INTEGER NOT NULL REFERENCES tasks (id) ON DELETE CASCADE,
        attempt INTEGER NOT NULL CHECK (attempt > 0),
        failed_at TEXT NOT NULL,
        reason TEXT NOT NULL,
        step TEXT,
        output TEXT,
        PRIMARY KEY (task_id, attempt)
    ) WITHOUT ROWID;
    CREATE INDEX IF NOT EXISTS ix_tasks_cancelling ON tasks (id)
        WHERE status = 'running' AND cancel_requested_at IS NOT NULL;
";

/// Columns of Gristmill's dead letters beyond the shared ones: what a retry needs, and when the handler cleaned up.
pub(crate) const DEAD_LETTER_COLUMNS: &[(&str, &str)] = &[
    ("queue", "TEXT"),
    ("payload", "TEXT"),
    ("priority", "INTEGER"),
    ("max_attempts", "INTEGER"),
    ("unique_key", "TEXT"),
    ("cleaned_at", "TEXT"),
];

/// Columns of the catalog beyond the shared ones.
pub(crate) const CATALOG_COLUMNS: &[(&str, &[(&str, &str)])] = &[
    (
        "scan_sessions",
        &[
            ("library_id", "INTEGER REFERENCES library_roots (id) ON DELETE CASCADE"),
            // The requested settings; only a request with the same settings resumes the scan.
            ("settings", "TEXT"),
            ("holder", "TEXT"),
            ("heartbeat_at", "TEXT"),
            // When the walk was completed.
            ("walked_at", "TEXT"),
            // The comparison method, if the scan compared every possible duplicate; and the duplicates at that time.
            ("settled", "TEXT"),
            ("duplicate_groups", "INTEGER"),
            ("duplicate_files", "INTEGER"),
            ("reclaimable_bytes", "INTEGER"),
        ],
    ),
    // The scan that last listed the folder. A resumed scan skips folders that it has listed.
    ("folders", &[("walked_scan_id", "INTEGER")]),
    (
        "library_files",
        &[
            ("ctime_ns", "INTEGER"),
            ("removed_at", "TEXT"),
            // 64 bits of a hash over a few blocks. Files with different values differ; equal values prove nothing.
            ("edges", "INTEGER"),
            // Hash of a file without a known duplicate, as most files are. It is not in `content_hash`, because a first
            // scan would fill that column's index with hashes that no query needs.
            ("read_algorithm", "TEXT"),
            ("read_hash", "BLOB"),
        ],
    ),
];

/// Columns for file identity, allocated size, filters and folders.
pub(crate) const IDENTITY_COLUMNS: &[(&str, &[(&str, &str)])] = &[
    (
        "library_roots",
        &[
            // Identity of the filesystem of the root's folder at its last scan.
            ("filesystem", "TEXT"),
            // Filters of the last scan that walked the root, as JSON; NULL for none.
            ("filters", "TEXT"),
        ],
    ),
    (
        "folders",
        &[
            // Id in `filesystems`, whose rows are never deleted. No REFERENCES, which would cost a lookup for each
            // folder.
            ("filesystem_id", "INTEGER"),
            // Since when filters exclude the folder.
            ("excluded_at", "TEXT"),
            // Entries that the last walk skipped (links, special files, excluded entries): their number, the number of
            // those with unknown content, and a digest of all.
            ("skipped_entries", "INTEGER"),
            ("skipped_unknown", "INTEGER"),
            ("skipped_digest", "BLOB"),
        ],
    ),
    (
        "library_files",
        &[
            ("allocated_bytes", "INTEGER"),
            // 0: one name; 1: several hard links; 2: reached through a symbolic link; NULL: unknown.
            ("link_kind", "INTEGER"),
            // Since when filters exclude the file. Its hash is kept in `read_hash`.
            ("excluded_at", "TEXT"),
            // 1: the file changed so shortly before it was read that a later change may have left the same mtime.
            ("hash_racy", "INTEGER"),
        ],
    ),
];

/// `is_mount_point`: 1 if the folder was on another filesystem than its parent when it was last walked.
pub(crate) const MOUNT_COLUMNS: &[(&str, &str)] = &[("is_mount_point", "INTEGER")];

/// Filesystems by identity, and an index of the scan that is marked as settled.
pub(crate) const FILESYSTEMS: &str = "
    CREATE TABLE IF NOT EXISTS filesystems (id INTEGER NOT NULL PRIMARY KEY, identity TEXT NOT NULL UNIQUE);
    CREATE INDEX IF NOT EXISTS ix_scan_sessions_settled ON scan_sessions (settled) WHERE settled IS NOT NULL;
";

/// Condition of files with unusual values: the allocated size does not follow from the size, the file has or may have
/// other names, filters exclude it, or it must be read again.
pub(crate) const UNUSUAL: &str = "(allocated_bytes IS NOT (size_bytes + 4095) & -4096 OR link_kind IS NOT 0
    OR excluded_at IS NOT NULL OR hash_racy IS NOT NULL)";

/// Index of the few files that could not be read.
pub(crate) const CATALOG_INDEXES: &str = "
    CREATE INDEX IF NOT EXISTS ix_library_files_failed ON library_files (library_id) WHERE hash_error_count > 0;
";

/// Indexes that an earlier migration created and no query needs: a scan stores its position in `folders` and reads
/// `library_files` in row order. Each cost a first scan more than the row itself. Files of other programs keep theirs.
pub(crate) const UNUSED_INDEXES: &str = "
    DROP INDEX IF EXISTS ix_library_files_library_seen;
    DROP INDEX IF EXISTS ix_library_files_seen;
    DROP INDEX IF EXISTS ix_library_files_needs_hash;
    DROP INDEX IF EXISTS ix_library_files_hash_lookup;
    DROP INDEX IF EXISTS ix_library_files_library_mtime_size;
    DROP INDEX IF EXISTS ix_library_files_hash_retry;
    DROP INDEX IF EXISTS ix_library_files_hash_claimed;
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

/// `starts`: number of recorded starts. `abandoned`: number of workers that died with a claim but no recorded start.
pub(crate) const START_COLUMNS: &[(&str, &str)] =
    &[("starts", "INTEGER NOT NULL DEFAULT 0"), ("abandoned", "INTEGER NOT NULL DEFAULT 0")];

/// Index of the few tasks whose worker died, which are claimed under stricter limits. It contains every status,
/// finished tasks included: with the status as a column instead of a condition, changing the status costs less.
pub(crate) const SUSPICIOUS_INDEX: &str = "
    CREATE INDEX IF NOT EXISTS ix_tasks_suspicious ON tasks (status, queue, kind, priority DESC)
        WHERE crashes > 0 OR abandoned > 0;
";

/// Workers that may hold leases. `beat_ms`: time of the last heartbeat on the monotonic clock of the worker's boot.
pub(crate) const WORKERS: &str = "
    CREATE TABLE IF NOT EXISTS workers (
        name TEXT NOT NULL PRIMARY KEY CHECK (name <> ''),
        process TEXT NOT NULL,
        lease_ms INTEGER NOT NULL,
        beat_ms INTEGER NOT NULL,
        state TEXT CHECK (state = 'alive' OR state = 'silent' OR state = 'dead'),
        updated_at TEXT NOT NULL
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
