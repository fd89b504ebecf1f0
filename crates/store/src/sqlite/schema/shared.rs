//! Tables shared with the Python control plane, their indexes, and the columns that older files lack.

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
            hash_error_count INTEGER NOT NULL DEFAULT 0 CHECK (hash_error_count >= 0),
            created_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP,
            updated_at TEXT DEFAULT CURRENT_TIMESTAMP,
            folder_id INTEGER,
            ctime_ns INTEGER,
            link_kind INTEGER,
            edges INTEGER,
            hash_algorithm TEXT CHECK (hash_algorithm = 'blake3' OR hash_algorithm = 'sha256' OR hash_algorithm = 'sha512' OR hash_algorithm = 'sha3-256'),
            content_hash BLOB,
            hashed_size_bytes INTEGER CHECK (hashed_size_bytes >= 0),
            hashed_mtime_ns INTEGER,
            hashed_at TEXT,
            allocated_bytes INTEGER,
            removed_at TEXT,
            excluded_at TEXT,
            hash_racy INTEGER,
            read_algorithm TEXT,
            read_hash BLOB,
            hash_last_error TEXT,
            hash_last_error_at TEXT,
            hash_retry_after TEXT,
            hash_claim_token TEXT,
            hash_claimed_at TEXT
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
            ("folder_id", "INTEGER"),
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

/// Indexes of the shared tables. Other programs name some of them, so none may lose a column, and a condition must
/// follow from every query that uses it. Queries of groups require a hash, and most files have none.
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
        ON library_files (is_missing, needs_hash, hash_algorithm, content_hash, id) WHERE content_hash IS NOT NULL;
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
