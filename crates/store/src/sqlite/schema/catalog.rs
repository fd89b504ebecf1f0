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
/// other names, filters exclude it, or it must be read again.
pub(crate) const UNUSUAL: &str = "(allocated_bytes IS NOT (size_bytes + 4095) & -4096 OR link_kind IS NOT 0
    OR excluded_at IS NOT NULL OR hash_racy IS NOT NULL)";

/// `is_mount_point`: 1 if the folder was on another filesystem than its parent when it was last walked.
pub(crate) const MOUNT_COLUMNS: &[(&str, &str)] = &[("is_mount_point", "INTEGER")];
