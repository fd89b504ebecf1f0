PRAGMA foreign_keys=OFF;
BEGIN TRANSACTION;
CREATE TABLE schema_migrations (
    version INTEGER NOT NULL PRIMARY KEY,
    name TEXT NOT NULL,
    applied_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP
);
INSERT INTO schema_migrations VALUES(1,'baseline','2026-11-18 21:43:13.535170');
INSERT INTO schema_migrations VALUES(2,'scan_sessions_error_count','2026-11-18 21:43:13.535170');
INSERT INTO schema_migrations VALUES(3,'hash_retry_and_claim_columns','2026-11-18 21:43:13.535170');
INSERT INTO schema_migrations VALUES(4,'legacy_job_execution_backend_marker','2026-11-18 21:43:13.535170');
INSERT INTO schema_migrations VALUES(5,'remove_job_execution_backend','2026-11-18 21:43:13.535170');
INSERT INTO schema_migrations VALUES(6,'jobs_lease_protocol','2026-11-18 21:43:13.535170');
INSERT INTO schema_migrations VALUES(7,'normalize_enum_storage_for_rust_protocol','2026-11-18 21:43:13.535170');
INSERT INTO schema_migrations VALUES(8,'thumbnail_protocol_tables','2026-11-18 21:43:13.535170');
INSERT INTO schema_migrations VALUES(9,'scan_hash_admission_mutex','2026-11-18 21:43:13.535170');
INSERT INTO schema_migrations VALUES(10,'global_io_rate_limit_table','2026-11-18 21:43:13.535170');
INSERT INTO schema_migrations VALUES(11,'duplicate_group_query_indexes','2026-11-18 21:43:13.535170');
INSERT INTO schema_migrations VALUES(12,'wal_maintenance_jobs','2026-11-18 21:43:13.535170');
INSERT INTO schema_migrations VALUES(1001,'protocol','2026-11-18 21:43:13.535170');
INSERT INTO schema_migrations VALUES(1002,'tasks','2026-11-18 21:43:13.535170');
INSERT INTO schema_migrations VALUES(1003,'catalog','2026-11-18 21:43:13.535170');
INSERT INTO schema_migrations VALUES(1004,'messages','2026-11-18 21:43:13.535170');
INSERT INTO schema_migrations VALUES(1005,'catalog_identity','2026-11-18 21:43:13.535170');
INSERT INTO schema_migrations VALUES(1006,'catalog_exceptions','2026-11-18 21:43:13.535170');
INSERT INTO schema_migrations VALUES(1007,'mount_points','2026-11-18 21:43:13.535170');
INSERT INTO schema_migrations VALUES(1008,'task_starts','2026-11-18 21:43:13.535170');
INSERT INTO schema_migrations VALUES(1009,'task_failures','2026-11-18 21:43:13.535170');
INSERT INTO schema_migrations VALUES(1010,'message_runs','2026-11-18 21:43:13.535170');
INSERT INTO schema_migrations VALUES(1011,'message_claims','2026-11-18 21:43:13.535170');
INSERT INTO schema_migrations VALUES(1012,'stream_positions','2026-11-18 21:43:13.535170');
CREATE TABLE jobs (
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
        );
CREATE TABLE job_locks (
            lock_key TEXT NOT NULL PRIMARY KEY,
            owner_job_id TEXT NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
            acquired_at TEXT NOT NULL,
            heartbeat_at TEXT NOT NULL,
            expires_at TEXT NOT NULL
        );
CREATE TABLE library_roots (
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
        , filesystem TEXT, filters TEXT);
INSERT INTO library_roots VALUES(1,'r','/r','2026-11-18 21:43:13.572873','2026-11-18 21:43:13.628332','2026-11-18 21:43:13.628332',0,3,10,300041,'disk',NULL);
CREATE TABLE scan_sessions (
            id INTEGER NOT NULL PRIMARY KEY,
            status TEXT NOT NULL DEFAULT 'running' CHECK (status = 'running' OR status = 'succeeded' OR status = 'failed'),
            started_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP,
            finished_at TEXT,
            error_message TEXT,
            files_seen INTEGER NOT NULL DEFAULT 0 CHECK (files_seen >= 0),
            directories_seen INTEGER NOT NULL DEFAULT 0 CHECK (directories_seen >= 0),
            bytes_seen INTEGER NOT NULL DEFAULT 0 CHECK (bytes_seen >= 0),
            error_count INTEGER NOT NULL DEFAULT 0 CHECK (error_count >= 0)
        , library_id INTEGER REFERENCES library_roots (id) ON DELETE CASCADE, settings TEXT, holder TEXT, heartbeat_at TEXT, walked_at TEXT, settled TEXT, duplicate_groups INTEGER, duplicate_files INTEGER, reclaimable_bytes INTEGER);
INSERT INTO scan_sessions VALUES(1,'succeeded','2026-11-18 21:43:13.573877','2026-11-18 21:43:13.628332',NULL,10,3,300041,0,1,'{"mode":"all","follow_links":false,"one_file_system":false,"filter":{"include":[],"exclude":[],"ignore_case":false,"min_size":null,"max_size":null,"newer_than":null,"older_than":null,"skip_hidden":false,"gitignore":false}}',NULL,'2026-11-18 21:43:13.573877','2026-11-18 21:43:13.607916','blake3',3,6,110592);
CREATE TABLE folders (
            id INTEGER NOT NULL PRIMARY KEY,
            library_id INTEGER NOT NULL REFERENCES library_roots (id) ON DELETE CASCADE,
            parent_id INTEGER REFERENCES folders (id) ON DELETE CASCADE,
            relative_path TEXT NOT NULL,
            first_seen_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP,
            last_seen_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP,
            removed_at TEXT,
            error_status TEXT, walked_scan_id INTEGER, filesystem_id INTEGER, excluded_at TEXT, skipped_entries INTEGER, skipped_unknown INTEGER, skipped_digest BLOB, is_mount_point INTEGER,
            UNIQUE (library_id, relative_path)
        );
INSERT INTO folders VALUES(1,1,NULL,'','2026-11-18 21:43:13.601151','2026-11-18 21:43:13.601151',NULL,NULL,1,1,NULL,0,0,NULL,NULL);
INSERT INTO folders VALUES(2,1,1,'sub','2026-11-18 21:43:13.601151','2026-11-18 21:43:13.601151',NULL,NULL,1,1,NULL,0,0,NULL,NULL);
INSERT INTO folders VALUES(3,1,2,'sub/deep','2026-11-18 21:43:13.601151','2026-11-18 21:43:13.601151',NULL,NULL,1,1,NULL,0,0,NULL,NULL);
CREATE TABLE library_files (
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
            folder_id INTEGER REFERENCES folders (id) ON DELETE SET NULL, ctime_ns INTEGER, removed_at TEXT, edges INTEGER, read_algorithm TEXT, read_hash BLOB, allocated_bytes INTEGER, link_kind INTEGER, excluded_at TEXT, hash_racy INTEGER,
            CONSTRAINT uq_library_files_library_id_relative_path UNIQUE (library_id, relative_path)
        );
INSERT INTO library_files VALUES(1,1,'a',12,1795038193511274118,944335,65024,0,0,1,'blake3',X'2b80d6e264690d8a19de16ffa3c3271cd778c96a1bf300c3231cc692786fed50',12,1795038193511274118,'2026-11-18 21:43:13.601151',0,NULL,NULL,NULL,NULL,NULL,'2026-11-18 21:43:13.601151','2026-11-18 21:43:13.601151',1,1795038193511274118,NULL,NULL,NULL,NULL,4096,0,NULL,NULL);
INSERT INTO library_files VALUES(2,1,'alone',7,1795038193511965931,944340,65024,0,1,1,NULL,NULL,NULL,NULL,NULL,0,NULL,NULL,NULL,NULL,NULL,'2026-11-18 21:43:13.601151','2026-11-18 21:43:13.601151',1,1795038193511965931,NULL,NULL,NULL,NULL,4096,0,NULL,NULL);
INSERT INTO library_files VALUES(3,1,'big1',100000,1795038193511446055,944336,65024,0,0,1,'blake3',X'93c9cbad5f20030da777768b85452873d5a5aa409b96a226874593d5dc240b46',100000,1795038193511446055,'2026-11-18 21:43:13.601151',0,NULL,NULL,NULL,NULL,NULL,'2026-11-18 21:43:13.601151','2026-11-18 21:43:13.601151',1,1795038193511446055,NULL,4337158103557707512,NULL,NULL,102400,0,NULL,NULL);
INSERT INTO library_files VALUES(4,1,'big2',100000,1795038193511556139,944337,65024,0,0,1,'blake3',X'93c9cbad5f20030da777768b85452873d5a5aa409b96a226874593d5dc240b46',100000,1795038193511556139,'2026-11-18 21:43:13.609573',0,NULL,NULL,NULL,NULL,NULL,'2026-11-18 21:43:13.601151','2026-11-18 21:43:13.609573',1,1795038193511556139,NULL,4337158103557707512,NULL,NULL,102400,0,NULL,NULL);
INSERT INTO library_files VALUES(5,1,'big3',100000,1795038193511828265,944338,65024,0,1,1,NULL,NULL,NULL,NULL,NULL,0,NULL,NULL,NULL,NULL,NULL,'2026-11-18 21:43:13.601151','2026-11-18 21:43:13.601151',1,1795038193511828265,NULL,-2199999771077529567,NULL,NULL,102400,0,NULL,NULL);
INSERT INTO library_files VALUES(6,1,'empty',0,1795038193511828265,944339,65024,0,0,1,NULL,NULL,NULL,NULL,NULL,0,NULL,NULL,NULL,NULL,NULL,'2026-11-18 21:43:13.601151','2026-11-18 21:43:13.601151',1,1795038193511828265,NULL,NULL,NULL,NULL,0,0,NULL,NULL);
INSERT INTO library_files VALUES(7,1,'sub/b',12,1795038193511336652,1632781,65024,0,0,1,'blake3',X'2b80d6e264690d8a19de16ffa3c3271cd778c96a1bf300c3231cc692786fed50',12,1795038193511336652,'2026-11-18 21:43:13.609573',0,NULL,NULL,NULL,NULL,NULL,'2026-11-18 21:43:13.601151','2026-11-18 21:43:13.609573',2,1795038193511336652,NULL,NULL,NULL,NULL,4096,0,NULL,NULL);
INSERT INTO library_files VALUES(8,1,'sub/empty',0,1795038193511828265,1632784,65024,0,0,1,NULL,NULL,NULL,NULL,NULL,0,NULL,NULL,NULL,NULL,NULL,'2026-11-18 21:43:13.601151','2026-11-18 21:43:13.601151',2,1795038193511828265,NULL,NULL,NULL,NULL,0,0,NULL,NULL);
INSERT INTO library_files VALUES(9,1,'sub/deep/c',5,1795038193511369020,1632782,65024,0,0,1,'blake3',X'3f796163ebf94718de1cd7582655c012f995c06f1e6970ea2bdc15bcd88a324a',5,1795038193511369020,'2026-11-18 21:43:13.609573',0,NULL,NULL,NULL,NULL,NULL,'2026-11-18 21:43:13.601151','2026-11-18 21:43:13.609573',3,1795038193511369020,NULL,NULL,NULL,NULL,4096,0,NULL,NULL);
INSERT INTO library_files VALUES(10,1,'sub/deep/d',5,1795038193511421999,1632783,65024,0,0,1,'blake3',X'3f796163ebf94718de1cd7582655c012f995c06f1e6970ea2bdc15bcd88a324a',5,1795038193511421999,'2026-11-18 21:43:13.601151',0,NULL,NULL,NULL,NULL,NULL,'2026-11-18 21:43:13.601151','2026-11-18 21:43:13.601151',3,1795038193511421999,NULL,NULL,NULL,NULL,4096,0,NULL,NULL);
CREATE TABLE thumbnails (
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
        );
CREATE TABLE thumbnail_cleanup_jobs (
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
        );
CREATE TABLE wal_maintenance_jobs (
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
        );
CREATE TABLE io_rate_limits (
            bucket_key TEXT NOT NULL PRIMARY KEY,
            next_available_at_ms INTEGER NOT NULL DEFAULT 0 CHECK (next_available_at_ms >= 0),
            updated_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP
        );
CREATE TABLE tasks (
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
    , starts INTEGER NOT NULL DEFAULT 0, abandoned INTEGER NOT NULL DEFAULT 0, cancel_requested_at TEXT);
CREATE TABLE task_checkpoints (
        task_id INTEGER NOT NULL REFERENCES tasks (id) ON DELETE CASCADE,
        step TEXT NOT NULL,
        data TEXT NOT NULL CHECK (json_valid(data)),
        created_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP,
        updated_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP,
        PRIMARY KEY (task_id, step)
    ) WITHOUT ROWID;
CREATE TABLE dead_letter_queue (
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
    , queue TEXT, payload TEXT, priority INTEGER, max_attempts INTEGER, unique_key TEXT, cleaned_at TEXT);
CREATE TABLE seen_messages (
        scope TEXT NOT NULL CHECK (scope <> ''),
        message_id TEXT NOT NULL CHECK (message_id <> ''),
        seen_at TEXT NOT NULL,
        PRIMARY KEY (scope, message_id)
    ) WITHOUT ROWID;
CREATE TABLE filesystems (id INTEGER NOT NULL PRIMARY KEY, identity TEXT NOT NULL UNIQUE);
INSERT INTO filesystems VALUES(1,'disk');
CREATE TABLE workers (
        name TEXT NOT NULL PRIMARY KEY CHECK (name <> ''),
        process TEXT NOT NULL,
        lease_ms INTEGER NOT NULL,
        beat_ms INTEGER NOT NULL,
        state TEXT CHECK (state = 'alive' OR state = 'silent' OR state = 'dead'),
        updated_at TEXT NOT NULL
    ) WITHOUT ROWID;
CREATE TABLE task_failures (
        task_id INTEGER NOT NULL REFERENCES tasks (id) ON DELETE CASCADE,
        attempt INTEGER NOT NULL CHECK (attempt > 0),
        failed_at TEXT NOT NULL,
        reason TEXT NOT NULL,
        step TEXT,
        output TEXT,
        PRIMARY KEY (task_id, attempt)
    ) WITHOUT ROWID;
CREATE TABLE message_runs (
        scope TEXT NOT NULL CHECK (scope <> ''),
        fingerprint BLOB NOT NULL,
        copy INTEGER NOT NULL CHECK (copy >= 0),
        starts INTEGER NOT NULL CHECK (starts >= 0),
        failed INTEGER NOT NULL CHECK (failed >= 0),
        error TEXT,
        updated_at TEXT NOT NULL,
        PRIMARY KEY (scope, fingerprint, copy)
    ) WITHOUT ROWID;
CREATE TABLE message_claims (
        scope TEXT NOT NULL CHECK (scope <> ''),
        message_id TEXT NOT NULL CHECK (message_id <> ''),
        claimed_by TEXT NOT NULL,
        claimed_at TEXT NOT NULL,
        PRIMARY KEY (scope, message_id)
    ) WITHOUT ROWID;
CREATE TABLE stream_positions (
        stream TEXT NOT NULL CHECK (stream <> ''),
        consumer TEXT NOT NULL CHECK (consumer <> ''),
        next_offset INTEGER NOT NULL CHECK (next_offset >= 0),
        updated_at TEXT NOT NULL,
        PRIMARY KEY (stream, consumer)
    ) WITHOUT ROWID;
DELETE FROM sqlite_sequence;
CREATE INDEX ix_jobs_kind_status ON jobs (kind, status);
CREATE INDEX ix_jobs_running_lease ON jobs (status, lease_expires_at);
CREATE INDEX ix_jobs_created_at ON jobs (created_at);
CREATE INDEX ix_jobs_created_id ON jobs (created_at, id);
CREATE INDEX ix_jobs_status_updated ON jobs (status, updated_at);
CREATE INDEX ix_jobs_created_moment
        ON jobs (substr(replace(created_at, '+00:00', '') || '.000000', 1, 26), id);
CREATE INDEX ix_job_locks_owner_job_id ON job_locks (owner_job_id);
CREATE INDEX ix_job_locks_expires_at ON job_locks (expires_at);
CREATE INDEX ix_library_roots_last_scanned_at ON library_roots (last_scanned_at);
CREATE INDEX ix_scan_sessions_status_started ON scan_sessions (status, started_at);
CREATE INDEX ix_scan_sessions_finished_at ON scan_sessions (finished_at);
CREATE INDEX ix_folders_parent ON folders (parent_id);
CREATE INDEX ix_library_files_folder ON library_files (folder_id);
CREATE INDEX ix_library_files_dedup_group
        ON library_files (is_missing, needs_hash, hash_algorithm, content_hash, id);
CREATE INDEX ix_thumbnails_status_retry ON thumbnails (status, retry_after, id);
CREATE INDEX ix_thumbnails_file_variant ON thumbnails (file_id, max_dimension, format);
CREATE INDEX ix_thumbnails_group_status ON thumbnails (group_key, status);
CREATE INDEX ix_thumbnails_running_lease ON thumbnails (status, lease_expires_at);
CREATE INDEX ix_thumbnails_updated ON thumbnails (updated_at);
CREATE INDEX ix_thumbnails_pending_moment
        ON thumbnails (media_type, substr(replace(created_at, '+00:00', '') || '.000000', 1, 26), id)
        WHERE status = 'pending';
CREATE INDEX ix_thumbnail_cleanup_status_execute
        ON thumbnail_cleanup_jobs (status, execute_after);
CREATE INDEX ix_thumbnail_cleanup_running_lease
        ON thumbnail_cleanup_jobs (status, lease_expires_at);
CREATE INDEX ix_thumbnail_cleanup_updated ON thumbnail_cleanup_jobs (updated_at);
CREATE INDEX ix_wal_jobs_status_execute ON wal_maintenance_jobs (status, execute_after, id);
CREATE INDEX ix_wal_jobs_retry_after ON wal_maintenance_jobs (status, retry_after, id);
CREATE INDEX ix_wal_jobs_running_lease ON wal_maintenance_jobs (status, lease_expires_at);
CREATE INDEX ix_wal_jobs_created_at ON wal_maintenance_jobs (created_at);
CREATE UNIQUE INDEX ix_jobs_single_active_scan_hash ON jobs ((1))
        WHERE lower(status) IN ('pending', 'running') AND lower(kind) IN ('scan', 'hash');
CREATE INDEX ix_tasks_pending ON tasks (queue, kind, priority DESC) WHERE status = 'pending';
CREATE INDEX ix_tasks_scheduled ON tasks (run_after) WHERE status = 'scheduled';
CREATE INDEX ix_tasks_running ON tasks (id) WHERE status = 'running';
CREATE UNIQUE INDEX ix_tasks_unique ON tasks (kind, unique_key)
        WHERE unique_key IS NOT NULL AND status <> 'completed' AND status <> 'failed' AND status <> 'cancelled';
CREATE INDEX ix_task_checkpoints_updated ON task_checkpoints (updated_at);
CREATE INDEX idx_dlq_task_id ON dead_letter_queue (task_id);
CREATE INDEX idx_dlq_document_id ON dead_letter_queue (document_id);
CREATE INDEX idx_dlq_last_failure ON dead_letter_queue (last_failure);
CREATE INDEX ix_library_files_failed ON library_files (library_id) WHERE hash_error_count > 0;
CREATE INDEX ix_seen_messages_seen ON seen_messages (scope, seen_at);
CREATE INDEX ix_scan_sessions_settled ON scan_sessions (settled) WHERE settled IS NOT NULL;
CREATE INDEX ix_library_files_unusual ON library_files (library_id, folder_id) WHERE (allocated_bytes IS NOT (size_bytes + 4095) & -4096 OR link_kind IS NOT 0
    OR excluded_at IS NOT NULL OR hash_racy IS NOT NULL);
CREATE INDEX ix_folders_unreadable ON folders (library_id) WHERE error_status IS NOT NULL;
CREATE INDEX ix_tasks_suspicious ON tasks (status, queue, kind, priority DESC)
        WHERE crashes > 0 OR abandoned > 0;
CREATE INDEX ix_tasks_cancelling ON tasks (id)
        WHERE status = 'running' AND cancel_requested_at IS NOT NULL;
CREATE INDEX ix_message_runs_updated ON message_runs (updated_at);
COMMIT;
