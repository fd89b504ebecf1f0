//! Columns and indexes of the catalog beyond the shared ones.

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
            // NULL if it is the size in whole blocks of 4 KiB; unknown if `link_kind` is NULL too.
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

/// Filesystems by identity, and an index of the scan that is marked as settled.
pub(crate) const FILESYSTEMS: &str = "
    CREATE TABLE IF NOT EXISTS filesystems (id INTEGER NOT NULL PRIMARY KEY, identity TEXT NOT NULL UNIQUE);
    CREATE INDEX IF NOT EXISTS ix_scan_sessions_settled ON scan_sessions (settled) WHERE settled IS NOT NULL;
";

/// Condition of files with unusual values: the allocated size does not follow from the size, the file has or may have
/// other names, filters exclude it, or it must be read again. As in [`EXCEPTION_INDEXES`].
pub(crate) const UNUSUAL: &str = "(allocated_bytes IS NOT NULL OR link_kind IS NOT 0
    OR excluded_at IS NOT NULL OR hash_racy IS NOT NULL)";

/// Indexes of files with unusual values, and of files that another program recorded: only those have no folder.
pub(crate) const EXCEPTION_INDEXES: &str = "
    CREATE INDEX IF NOT EXISTS ix_library_files_unusual ON library_files (library_id, folder_id)
        WHERE (allocated_bytes IS NOT NULL OR link_kind IS NOT 0
            OR excluded_at IS NOT NULL OR hash_racy IS NOT NULL);
    CREATE UNIQUE INDEX IF NOT EXISTS ix_library_files_unplaced ON library_files (library_id, relative_path)
        WHERE folder_id IS NULL;
";

/// Refuses a second row for a path. Gristmill inserts only files that it did not find among the rows of their folder,
/// so the table needs no unique index of all paths, which would be a third of the database. Other programs do not set
/// `folder_id`. The two `rtrim`s cut off the last name of the path.
pub(crate) const ONE_ROW_PER_PATH: &str = "
    CREATE TRIGGER IF NOT EXISTS library_files_one_row_per_path BEFORE INSERT ON library_files
    WHEN NEW.folder_id IS NULL AND EXISTS (SELECT 1 FROM folders d JOIN library_files f ON f.folder_id = d.id
        WHERE d.library_id = NEW.library_id AND f.relative_path = NEW.relative_path AND d.relative_path =
            rtrim(rtrim(NEW.relative_path, replace(NEW.relative_path, '/', '')), '/'))
    BEGIN
        SELECT RAISE(ABORT, 'UNIQUE constraint failed: library_files.library_id, library_files.relative_path');
    END;
";

/// Index of folders that could not be read.
pub(crate) const UNREADABLE_FOLDERS: &str = "
    CREATE INDEX IF NOT EXISTS ix_folders_unreadable ON folders (library_id) WHERE error_status IS NOT NULL;
";

/// `is_mount_point`: 1 if the folder was on another filesystem than its parent when it was last walked.
pub(crate) const MOUNT_COLUMNS: &[(&str, &str)] = &[("is_mount_point", "INTEGER")];

/// Groups of files with the same content: one row for each, with what its orders need, and an index for each order. The
/// rows follow from `library_files`, which other programs write too: triggers note the groups whose files change in
/// `changed_groups`, and a refresh evaluates those again. `needs_rebuild`: all of them are evaluated again, and nothing
/// is noted until then. `version` grows with every change that a reader can see; the totals are those of all groups
/// with several copies that are not empty. Groups that the user ignores are listed apart, so that they stay ignored
/// while their rows come and go.
pub(crate) const DUPLICATE_GROUPS: &str = "
    CREATE TABLE IF NOT EXISTS duplicate_groups (
        hash_algorithm TEXT NOT NULL,
        content_hash BLOB NOT NULL,
        size_bytes INTEGER NOT NULL,
        file_count INTEGER NOT NULL,
        total_size_bytes INTEGER NOT NULL,
        copies INTEGER NOT NULL,
        reclaimable_bytes INTEGER NOT NULL,
        redundant_bytes INTEGER NOT NULL,
        root_count INTEGER NOT NULL,
        sample_file_id INTEGER NOT NULL,
        first_path TEXT NOT NULL,
        PRIMARY KEY (hash_algorithm, content_hash)
    ) WITHOUT ROWID;
    CREATE TABLE IF NOT EXISTS duplicate_group_state (
        id INTEGER NOT NULL PRIMARY KEY CHECK (id = 1),
        needs_rebuild INTEGER NOT NULL DEFAULT 1 CHECK (needs_rebuild IN (0, 1)),
        version INTEGER NOT NULL DEFAULT 0,
        refreshed_at TEXT,
        groups INTEGER NOT NULL DEFAULT 0,
        files INTEGER NOT NULL DEFAULT 0,
        reclaimable_bytes INTEGER NOT NULL DEFAULT 0,
        redundant_bytes INTEGER NOT NULL DEFAULT 0
    );
    INSERT INTO duplicate_group_state (id) SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM duplicate_group_state);
    CREATE TABLE IF NOT EXISTS changed_groups (
        hash_algorithm TEXT NOT NULL,
        content_hash BLOB NOT NULL,
        PRIMARY KEY (hash_algorithm, content_hash)
    ) WITHOUT ROWID;
    CREATE TABLE IF NOT EXISTS ignored_groups (
        hash_algorithm TEXT NOT NULL,
        content_hash BLOB NOT NULL,
        ignored_at TEXT NOT NULL,
        PRIMARY KEY (hash_algorithm, content_hash)
    ) WITHOUT ROWID;
";

/// An index for each order of the groups. SQLite appends the primary key, which decides between groups that are equal.
pub(crate) const GROUP_INDEXES: &str = "
    CREATE INDEX IF NOT EXISTS ix_duplicate_groups_reclaimable
        ON duplicate_groups (reclaimable_bytes DESC, redundant_bytes DESC);
    CREATE INDEX IF NOT EXISTS ix_duplicate_groups_count ON duplicate_groups (file_count DESC, total_size_bytes DESC);
    CREATE INDEX IF NOT EXISTS ix_duplicate_groups_size ON duplicate_groups (size_bytes DESC, copies DESC);
    CREATE INDEX IF NOT EXISTS ix_duplicate_groups_path ON duplicate_groups (first_path);
";

/// Drops the indexes, because creating them after all rows takes a fraction of the time.
pub(crate) const DROP_GROUP_INDEXES: &str = "
    DROP INDEX IF EXISTS ix_duplicate_groups_reclaimable;
    DROP INDEX IF EXISTS ix_duplicate_groups_count;
    DROP INDEX IF EXISTS ix_duplicate_groups_size;
    DROP INDEX IF EXISTS ix_duplicate_groups_path;
";

/// Index of empty files, which are one group without a hash, in row order.
pub(crate) const EMPTY_FILES: &str = "
    CREATE INDEX IF NOT EXISTS ix_library_files_empty ON library_files (is_missing) WHERE size_bytes = 0;
";

/// BLAKE3 hash of empty input, as an SQL literal. Empty files are not read, so their rows have no hash.
pub(crate) const EMPTY_HASH: &str = "x'af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262'";

/// Names of all triggers, as a list for SQL.
pub(crate) const TRIGGER_NAMES: &str = "'library_files_one_row_per_path', 'library_files_group_inserted',
    'library_files_group_deleted', 'library_files_group_updated', 'library_roots_moved', 'folders_filesystem_changed',
    'library_files_listing_changed', 'library_files_listing_deleted', 'tasks_count_inserted', 'tasks_count_deleted',
    'tasks_count_updated'";

/// Returns a query for whether there are triggers that Gristmill has not created.
pub(crate) fn has_foreign_triggers() -> String {
    format!("SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE type = 'trigger' AND name NOT IN ({TRIGGER_NAMES}))")
}

/// Returns the triggers that note changed groups. A conflict clause in a trigger is replaced by that of the statement
/// that fires it, so an existing row is tested for. A changed path of a root changes the first path of groups. The
/// filesystem of a folder decides which names are one file.
pub(crate) fn group_triggers() -> String {
    let is_in_group = |row: &str| format!("({row}.content_hash IS NOT NULL OR {row}.size_bytes = 0)");
    let is_built = "EXISTS (SELECT 1 FROM duplicate_group_state WHERE needs_rebuild = 0)";
    let note = |row: &str| {
        let algorithm = format!("CASE WHEN {row}.size_bytes = 0 THEN 'blake3' ELSE {row}.hash_algorithm END");
        let hash = format!("CASE WHEN {row}.size_bytes = 0 THEN {EMPTY_HASH} ELSE {row}.content_hash END");
        format!(
            "INSERT INTO changed_groups (hash_algorithm, content_hash) SELECT {algorithm}, {hash}
            WHERE {in_group} AND {algorithm} IS NOT NULL AND NOT EXISTS (SELECT 1 FROM changed_groups
                WHERE hash_algorithm = {algorithm} AND content_hash = {hash});",
            in_group = is_in_group(row)
        )
    };
    let trigger = |name: &str, event: &str, condition: &str, rows: &[&str]| {
        let body: String = rows.iter().map(|row| note(row)).collect();
        format!(
            "CREATE TRIGGER IF NOT EXISTS library_files_group_{name} AFTER {event} ON library_files
            WHEN {condition} AND {is_built} BEGIN {body} END;"
        )
    };
    let columns = "library_id, relative_path, size_bytes, inode, device, is_missing, needs_hash, folder_id, ctime_ns,
        link_kind, hash_algorithm, content_hash, allocated_bytes, excluded_at";
    [
        trigger("inserted", "INSERT", &is_in_group("NEW"), &["NEW"]),
        trigger("deleted", "DELETE", &is_in_group("OLD"), &["OLD"]),
        trigger(
            "updated",
            &format!("UPDATE OF {columns}"),
            &format!("({} OR {})", is_in_group("OLD"), is_in_group("NEW")),
            &["OLD", "NEW"],
        ),
        "CREATE TRIGGER IF NOT EXISTS library_roots_moved AFTER UPDATE OF root_path ON library_roots
            BEGIN UPDATE duplicate_group_state SET needs_rebuild = 1; END;
        CREATE TRIGGER IF NOT EXISTS folders_filesystem_changed AFTER UPDATE OF filesystem_id ON folders
            WHEN OLD.filesystem_id IS NOT NEW.filesystem_id
            BEGIN UPDATE duplicate_group_state SET needs_rebuild = 1; END;"
            .to_owned(),
    ]
    .concat()
}

/// Replaces the digest of a folder by a random value, which no listing has, when a row of a file in it changes or is
/// deleted, whichever program does that.
pub(crate) const LISTING_TRIGGERS: &str = "
    CREATE TRIGGER IF NOT EXISTS library_files_listing_changed AFTER UPDATE OF library_id, relative_path, size_bytes,
        mtime_ns, inode, device, is_missing, folder_id, ctime_ns, link_kind, allocated_bytes, excluded_at, hash_racy
    ON library_files
    BEGIN
        UPDATE folders SET listing_digest = randomblob(16) WHERE id IN (OLD.folder_id, NEW.folder_id);
    END;
    CREATE TRIGGER IF NOT EXISTS library_files_listing_deleted AFTER DELETE ON library_files
    BEGIN
        UPDATE folders SET listing_digest = randomblob(16) WHERE id = OLD.folder_id;
    END;
";

/// Symbolic links whose target does not exist. The index is for the cascade.
pub(crate) const BROKEN_LINKS: &str = "
    CREATE TABLE IF NOT EXISTS broken_links (
        id INTEGER NOT NULL PRIMARY KEY,
        library_id INTEGER NOT NULL REFERENCES library_roots (id) ON DELETE CASCADE,
        folder_id INTEGER NOT NULL REFERENCES folders (id) ON DELETE CASCADE,
        relative_path TEXT NOT NULL,
        target TEXT NOT NULL,
        UNIQUE (library_id, relative_path)
    );
    CREATE INDEX IF NOT EXISTS ix_broken_links_folder ON broken_links (folder_id);
";

/// Columns for lists of folders and links, and for scans that cover a part of a root.
pub(crate) const LIST_COLUMNS: &[(&str, &[(&str, &str)])] = &[
    // 1: reached through a symbolic link; 0: not; NULL: walked by a version that did not look for broken links.
    // listing_digest: digest of everything that the last listing found; a random value if rows have changed since.
    ("folders", &[("via_link", "INTEGER"), ("listing_digest", "BLOB")]),
    // 1: only known files; 2: only named files; NULL: the whole root.
    ("scan_sessions", &[("scope", "INTEGER")]),
];
