//! A file of the Python control plane: no CHECKs, no defaults except CURRENT_TIMESTAMP, and its own type names.

use std::path::Path;

use rusqlite::Connection;

/// `NN` marks columns that are NOT NULL without a default; `NND` marks times with the default.
const TABLES: &[(&str, &str)] = &[
    (
        "jobs",
        "id VARCHAR(36) NN, kind VARCHAR(9) NN, status VARCHAR(9) NN, dry_run BOOLEAN NN, worker_id VARCHAR(128),
         worker_heartbeat_at DATETIME, lease_expires_at DATETIME, progress FLOAT NN, total_items INTEGER,
         processed_items INTEGER NN, payload JSON NN, error_code VARCHAR(64), error_message TEXT,
         created_at DATETIME NND, updated_at DATETIME NND, started_at DATETIME, finished_at DATETIME,
         PRIMARY KEY (id)",
    ),
    (
        "job_locks",
        "lock_key VARCHAR(100) NN, owner_job_id VARCHAR(36) NN, acquired_at DATETIME NN, heartbeat_at DATETIME NN,
         expires_at DATETIME NN, PRIMARY KEY (lock_key),
         FOREIGN KEY (owner_job_id) REFERENCES jobs (id) ON DELETE CASCADE",
    ),
    (
        "library_roots",
        "id INTEGER NN, name VARCHAR(255) NN, root_path VARCHAR(2048) NN, created_at DATETIME NND,
         updated_at DATETIME NND, last_scanned_at DATETIME, PRIMARY KEY (id), UNIQUE (name), UNIQUE (root_path)",
    ),
    (
        "scan_sessions",
        "id INTEGER NN, status VARCHAR(9) NN, started_at DATETIME NND, finished_at DATETIME, error_message TEXT,
         files_seen BIGINT NN, directories_seen BIGINT NN, bytes_seen BIGINT NN, error_count INTEGER NN,
         PRIMARY KEY (id)",
    ),
    (
        "library_files",
        "id INTEGER NN, library_id INTEGER NN, relative_path VARCHAR(4096) NN, size_bytes BIGINT NN,
         mtime_ns BIGINT NN, inode BIGINT, device BIGINT, is_missing BOOLEAN NN, needs_hash BOOLEAN NN,
         last_seen_scan_id INTEGER, hash_algorithm VARCHAR(6), content_hash BLOB, hashed_size_bytes BIGINT,
         hashed_mtime_ns BIGINT, hashed_at DATETIME, hash_error_count INTEGER NN, hash_last_error TEXT,
         hash_last_error_at DATETIME, hash_retry_after DATETIME, hash_claim_token VARCHAR(64),
         hash_claimed_at DATETIME, created_at DATETIME NND, updated_at DATETIME NND, PRIMARY KEY (id),
         CONSTRAINT uq_library_files_library_id_relative_path UNIQUE (library_id, relative_path),
         FOREIGN KEY (library_id) REFERENCES library_roots (id) ON DELETE CASCADE,
         FOREIGN KEY (last_seen_scan_id) REFERENCES scan_sessions (id) ON DELETE SET NULL",
    ),
    (
        "thumbnails",
        "id INTEGER NN, thumb_key VARCHAR(128) NN, file_id INTEGER NN, group_key VARCHAR(256), status VARCHAR(7) NN,
         media_type VARCHAR(5) NN, format VARCHAR(4) NN, max_dimension INTEGER NN, version INTEGER NN,
         source_size_bytes BIGINT NN, source_mtime_ns BIGINT NN, output_relpath VARCHAR(1024), width INTEGER,
         height INTEGER, bytes_size BIGINT, error_code VARCHAR(64), error_message TEXT, error_count INTEGER NN,
         retry_after DATETIME, worker_id VARCHAR(128), worker_heartbeat_at DATETIME, lease_expires_at DATETIME,
         created_at DATETIME NND, updated_at DATETIME NND, started_at DATETIME, finished_at DATETIME,
         PRIMARY KEY (id), UNIQUE (thumb_key),
         FOREIGN KEY (file_id) REFERENCES library_files (id) ON DELETE CASCADE",
    ),
    (
        "thumbnail_cleanup_jobs",
        "id INTEGER NN, group_key VARCHAR(256) NN, status VARCHAR(9) NN, execute_after DATETIME NND,
         worker_id VARCHAR(128), worker_heartbeat_at DATETIME, lease_expires_at DATETIME, error_code VARCHAR(64),
         error_message TEXT, created_at DATETIME NND, updated_at DATETIME NND, finished_at DATETIME,
         PRIMARY KEY (id), UNIQUE (group_key)",
    ),
    (
        "wal_maintenance_jobs",
        "id INTEGER NN, requested_mode VARCHAR(8) NN, status VARCHAR(9) NN, requested_by VARCHAR(64), reason TEXT,
         execute_after DATETIME NND, retry_count INTEGER NN, retry_after DATETIME, worker_id VARCHAR(128),
         worker_heartbeat_at DATETIME, lease_expires_at DATETIME, checkpoint_busy INTEGER,
         checkpoint_log_frames INTEGER, checkpointed_frames INTEGER, error_code VARCHAR(64), error_message TEXT,
         created_at DATETIME NND, updated_at DATETIME NND, started_at DATETIME, finished_at DATETIME,
         PRIMARY KEY (id)",
    ),
    (
        "io_rate_limits",
        "bucket_key VARCHAR(64) PRIMARY KEY, next_available_at_ms BIGINT NOT NULL DEFAULT 0, updated_at DATETIME NND",
    ),
    ("schema_migrations", "version INTEGER NN, name VARCHAR(255) NN, applied_at DATETIME NND, PRIMARY KEY (version)"),
];

const INDEXES: &str = "
    CREATE INDEX ix_jobs_kind_status ON jobs (kind, status);
    CREATE INDEX ix_jobs_running_lease ON jobs (status, lease_expires_at);
    CREATE INDEX ix_jobs_created_at ON jobs (created_at);
    CREATE INDEX ix_jobs_created_id ON jobs (created_at, id);
    CREATE INDEX ix_jobs_status_updated ON jobs (status, updated_at);
    CREATE UNIQUE INDEX ix_jobs_single_active_scan_hash ON jobs ((1))
        WHERE lower(status) IN ('pending', 'running') AND lower(kind) IN ('scan', 'hash');
    CREATE INDEX ix_library_files_dedup_group
        ON library_files (is_missing, needs_hash, hash_algorithm, content_hash, id);
    CREATE INDEX ix_library_files_library_path ON library_files (library_id, relative_path);
    CREATE INDEX ix_thumbnails_status_retry ON thumbnails (status, retry_after, id);
    CREATE INDEX ix_wal_jobs_status_execute ON wal_maintenance_jobs (status, execute_after, id);
";

const CONTROL_PLANE_MIGRATIONS: [&str; 12] = [
    "baseline",
    "scan_sessions_error_count",
    "hash_retry_and_claim_columns",
    "job_execution_backend",
    "remove_job_execution_backend",
    "jobs_lease_protocol",
    "normalize_enum_storage_for_rust_protocol",
    "thumbnail_protocol_tables",
    "scan_hash_admission_mutex",
    "global_io_rate_limit_table",
    "duplicate_group_query_indexes",
    "wal_maintenance_jobs",
];

/// Creates a file as the control plane does.
pub(crate) fn create(path: &Path) -> Connection {
    let conn = Connection::open(path).unwrap();
    conn.pragma_update(None, "journal_mode", "WAL").unwrap();
    conn.pragma_update(None, "foreign_keys", true).unwrap();
    for (name, columns) in TABLES {
        let columns = columns.replace("NND", "DEFAULT CURRENT_TIMESTAMP NOT NULL").replace(" NN", " NOT NULL");
        conn.execute_batch(&format!("CREATE TABLE {name} ({columns})")).unwrap();
    }
    conn.execute_batch(INDEXES).unwrap();
    for (version, name) in (1..).zip(CONTROL_PLANE_MIGRATIONS) {
        conn.execute("INSERT INTO schema_migrations (version, name) VALUES (?1, ?2)", (version, name)).unwrap();
    }
    conn
}

/// Statements of the control plane, which leave out columns that it does not know.
pub(crate) const CONTROL_PLANE_STATEMENTS: &[&str] = &[
    "INSERT INTO jobs (id, kind, status, dry_run, progress, processed_items, payload)
     VALUES ('11111111-1111-4111-8111-111111111111', 'delete', 'pending', 1, 0.0, 0, '{}')",
    "INSERT INTO job_locks (lock_key, owner_job_id, acquired_at, heartbeat_at, expires_at)
     VALUES ('k', '11111111-1111-4111-8111-111111111111', '2026-01-19 07:08:09.000000',
        '2026-01-19 07:08:09.000000', '2026-01-19 07:08:09.000000')",
    "INSERT INTO library_roots (name, root_path) VALUES ('py', '/libraries/py')",
    "INSERT INTO scan_sessions (status, files_seen, directories_seen, bytes_seen, error_count)
     VALUES ('running', 0, 0, 0, 0)",
    "INSERT INTO library_files (library_id, relative_path, size_bytes, mtime_ns, is_missing, needs_hash,
        hash_error_count) VALUES ((SELECT max(id) FROM library_roots), 'p.jpg', 1, 2, 0, 1, 0)",
    "INSERT INTO thumbnails (thumb_key, file_id, group_key, status, media_type, format, max_dimension, version,
        source_size_bytes, source_mtime_ns, output_relpath, error_count)
     SELECT 'py', (SELECT max(id) FROM library_files), NULL, 'pending', 'image', 'jpeg', 256, 2, 1, 2,
        'a/b/py.jpg', 0
     WHERE (SELECT count(1) FROM thumbnails WHERE status IN ('pending', 'running')) < 50000",
    "INSERT INTO thumbnail_cleanup_jobs (group_key, status, execute_after)
     VALUES ('py', 'pending', '2026-01-19 07:08:09.123456')",
    "INSERT INTO wal_maintenance_jobs (requested_mode, status, requested_by, execute_after, retry_count, retry_after,
        created_at, updated_at) VALUES ('passive', 'completed', 'api', '2026-01-19 07:08:09.000001', 0,
        '2026-01-19 07:08:09.000001', '2026-01-19 07:08:09.000001', '2026-01-19 07:08:09.000001')",
    "INSERT INTO io_rate_limits (bucket_key) VALUES ('py')",
    "UPDATE jobs SET status = 'running', worker_id = 'py', started_at = '2026-01-19 07:08:09+00:00',
        worker_heartbeat_at = '2026-01-19 07:08:09.5+00:00', lease_expires_at = '2026-01-19 07:08:09.5+00:00'
     WHERE id = '11111111-1111-4111-8111-111111111111'",
    "SELECT hash_algorithm, content_hash, count(*), sum(size_bytes)
     FROM library_files INDEXED BY ix_library_files_dedup_group
     WHERE is_missing = 0 AND needs_hash = 0 AND hash_algorithm IS NOT NULL AND content_hash IS NOT NULL
     GROUP BY hash_algorithm, content_hash HAVING count(*) > 1",
    "SELECT id FROM library_files INDEXED BY ix_library_files_dedup_group
     WHERE is_missing = 0 AND needs_hash = 0 AND hash_algorithm = 'sha256' AND content_hash = x'00' AND id > 0
     ORDER BY id LIMIT 10",
];
