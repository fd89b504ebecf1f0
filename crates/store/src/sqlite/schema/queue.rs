//! Tables of tasks, checkpoints, dead letters and workers.

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

/// Number of tasks by queue, kind and status, which triggers keep right for every program; see `tasks::counts`. An
/// upsert replaces the conflict clause of the statement that fires a trigger.
pub(crate) const TASK_COUNTS: &str = "
    CREATE TABLE IF NOT EXISTS task_counts (
        queue TEXT NOT NULL,
        kind TEXT NOT NULL,
        status TEXT NOT NULL,
        count INTEGER NOT NULL,
        PRIMARY KEY (queue, kind, status)
    ) WITHOUT ROWID;
    DELETE FROM task_counts;
    INSERT INTO task_counts (queue, kind, status, count) SELECT queue, kind, status, count(*) FROM tasks GROUP BY 1, 2, 3;
    CREATE TRIGGER IF NOT EXISTS tasks_count_inserted AFTER INSERT ON tasks
    BEGIN
        INSERT INTO task_counts (queue, kind, status, count) VALUES (NEW.queue, NEW.kind, NEW.status, 1)
            ON CONFLICT DO UPDATE SET count = count + 1;
    END;
    CREATE TRIGGER IF NOT EXISTS tasks_count_deleted AFTER DELETE ON tasks
    BEGIN
        INSERT INTO task_counts (queue, kind, status, count) VALUES (OLD.queue, OLD.kind, OLD.status, -1)
            ON CONFLICT DO UPDATE SET count = count - 1;
    END;
    CREATE TRIGGER IF NOT EXISTS tasks_count_updated AFTER UPDATE OF queue, kind, status ON tasks
    BEGIN
        INSERT INTO task_counts (queue, kind, status, count) VALUES (OLD.queue, OLD.kind, OLD.status, -1)
            ON CONFLICT DO UPDATE SET count = count - 1;
        INSERT INTO task_counts (queue, kind, status, count) VALUES (NEW.queue, NEW.kind, NEW.status, 1)
            ON CONFLICT DO UPDATE SET count = count + 1;
    END;
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
