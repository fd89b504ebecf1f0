//! Writes the listings of a walk.
//!
//! Owns which rows of files and folders a listing inserts, changes, marks as missing or excluded, or deletes.

use std::ffi::OsString;

use super::new_files::FileInserter;
use super::{ChangedFile, FolderRef, Listing, ListingStatus, broken_links, signed, skipped};
use crate::error::Result;
use crate::paths;
use crate::sqlite::{Db, ToSql, params};

#[derive(Default)]
pub(super) struct Recorded {
    pub(super) missing: usize,
    pub(super) excluded: usize,
    pub(super) conflicts: usize,
    pub(super) ids: Vec<i64>,
}

pub(super) fn write_listing(db: &Db<'_>, files: &mut FileInserter<'_>, listing: &Listing) -> Result<Recorded> {
    let Listing { scan, folder: folder_ref, .. } = listing;
    if let (ListingStatus::Unchanged, Some(id)) = (&listing.status, folder_ref.id) {
        let sql = "UPDATE folders SET walked_scan_id = ?2, last_seen_at = ?3 WHERE id = ?1";
        db.execute(sql, (id, scan, db.now_in_seconds()))?;
        return Ok(Recorded::default());
    }
    let mut path = paths::to_text(folder_ref.path.as_os_str());
    let (folder, is_inserted) = find_or_insert_folder(db, listing, &path)?;
    if !path.is_empty() {
        path.push('/');
    }
    let recorded = write_entries(db, files, (listing, folder), &mut path)?;
    match WalkedFolder::of(listing) {
        Some(walked) => {
            if let Some(links) = &listing.broken_links {
                broken_links::replace(db, (folder_ref.root, folder), &mut path, links)?;
            }
            if !is_inserted {
                update_walked_folder(db, folder, listing, walked)?;
            }
        }
        None => {
            match listing.status {
                ListingStatus::Named if listing.new_files.is_empty() && listing.changed_files.is_empty() => {}
                ListingStatus::Named => note_folder_exists(db, folder, listing.filesystem)?,
                _ => skipped::add(db, folder, &listing.skipped)?,
            }
            clear_digest(db, folder)?;
        }
    }
    Ok(recorded)
}

/// Returns the row of a listed folder, and whether it was inserted. The row that the walk has seen may have been purged
/// since, and another scan may have inserted one.
fn find_or_insert_folder(db: &Db<'_>, listing: &Listing, path: &str) -> Result<(i64, bool)> {
    let FolderRef { root, id, .. } = listing.folder;
    let found = find_folder(db, root, path)?;
    match found {
        Some(folder) if id == found => return Ok((folder, false)),
        Some(folder) => {
            let parent = parent_row(db, root, path)?;
            db.execute("UPDATE folders SET parent_id = ?2 WHERE id = ?1 AND parent_id IS NOT ?2", (folder, parent))?;
            clear_digest(db, folder)?;
            return Ok((folder, false));
        }
        None => {}
    }
    Ok((insert_listed_folder(db, listing, path)?, true))
}

/// Writes the rows of a folder's entries. `path` is the path of the folder with a slash.
fn write_entries(
    db: &Db<'_>,
    files: &mut FileInserter<'_>,
    (listing, folder): (&Listing, i64),
    path: &mut String,
) -> Result<Recorded> {
    let root = listing.folder.root;
    let mut child_path = PathBuffer { path };
    let mut missing = mark_files_missing(db, &listing.missing_files)?;
    let mut excluded = 0;
    for id in &listing.excluded_files {
        excluded += db.execute(&format!("UPDATE library_files SET {SET_EXCLUDED} AND id = ?2"), (db.now(), id))?;
    }
    for name in &listing.missing_folders {
        missing += child_path.with(name, |text| remove_folder(db, root, text))?;
    }
    for name in &listing.excluded_folders {
        excluded += child_path.with(name, |text| exclude_folder(db, root, text))?;
    }
    for name in &listing.foreign_folders {
        child_path.with(name, |text| delete_folder(db, root, text))?;
    }
    for id in &listing.returned_folders {
        db.execute("UPDATE folders SET removed_at = NULL, excluded_at = NULL WHERE id = ?1", [id])?;
    }
    let (ids, conflicts) = files.insert(listing, folder, child_path.path)?;
    for changed in &listing.changed_files {
        update_changed_file(db, changed, Some(listing.scan))?;
    }
    Ok(Recorded { missing, excluded, conflicts, ids })
}

/// Writes what the walk found out about a folder itself. Its digest is written only if no row has changed since the
/// walk read the folder's own one. A folder that could not be read was still seen.
fn update_walked_folder(db: &Db<'_>, folder: i64, listing: &Listing, walked: WalkedFolder<'_>) -> Result<()> {
    let sql = "UPDATE folders SET walked_scan_id = ?2, last_seen_at = ?3, removed_at = NULL,
            error_status = coalesce(?4, CASE WHEN ?10 THEN error_status END), excluded_at = NULL,
            filesystem_id = coalesce(?5, filesystem_id),
            listing_digest = CASE WHEN listing_digest IS ?13 AND ?12 IS NOT NULL THEN ?12 ELSE randomblob(16) END,
            via_link = ?11, skipped_entries = ?6, skipped_unknown = ?7, skipped_digest = ?8,
            is_mount_point = CASE WHEN ?4 IS NULL THEN ?9 ELSE is_mount_point END
        WHERE id = ?1";
    let WalkedFolder { error, mount_point, skipped: (entries, unknown, skipped_digest) } = walked;
    let (now, known) = (db.now_in_seconds(), listing.status == ListingStatus::Known);
    let Listing { scan, filesystem, via_link, digest, known_digest, .. } = listing;
    let values = params![
        folder,
        scan,
        now,
        error,
        filesystem,
        entries,
        unknown,
        skipped_digest,
        mount_point,
        known,
        via_link,
        digest,
        known_digest
    ];
    db.execute(sql, values).map(drop)
}

/// Records that a folder with a named file exists, and the folders above it. One that was removed or excluded has not
/// been listed since, so its skipped entries are unknown.
fn note_folder_exists(db: &Db<'_>, folder: i64, filesystem: Option<i64>) -> Result<()> {
    let sql = "WITH RECURSIVE above (id) AS (
            VALUES (?1) UNION SELECT f.parent_id FROM folders f JOIN above ON f.id = above.id
                WHERE f.parent_id IS NOT NULL)
        UPDATE folders SET removed_at = NULL, excluded_at = NULL, listing_digest = randomblob(16),
            skipped_entries = CASE WHEN removed_at IS NULL AND excluded_at IS NULL THEN skipped_entries END,
            skipped_unknown = CASE WHEN removed_at IS NULL AND excluded_at IS NULL THEN skipped_unknown END,
            skipped_digest = CASE WHEN removed_at IS NULL AND excluded_at IS NULL THEN skipped_digest END
        WHERE id IN (SELECT id FROM above)";
    db.execute(sql, [folder])?;
    let sql = "UPDATE folders SET filesystem_id = ?2 WHERE id = ?1 AND filesystem_id IS NULL AND ?2 IS NOT NULL";
    db.execute(sql, (folder, filesystem)).map(drop)
}

/// What the row of a folder says about its walk.
struct WalkedFolder<'a> {
    error: Option<&'a String>,
    mount_point: Option<i64>,
    skipped: (i64, i64, Option<Vec<u8>>),
}

impl<'a> WalkedFolder<'a> {
    /// `None` if more entries of the folder follow, or only named files were examined.
    fn of(listing: &'a Listing) -> Option<Self> {
        let error = match &listing.status {
            ListingStatus::Part | ListingStatus::Named => return None,
            ListingStatus::Whole | ListingStatus::Unchanged | ListingStatus::Known => None,
            ListingStatus::Failed(error) => Some(error),
        };
        let mount_point = listing.mount_point.then_some(1);
        Some(WalkedFolder { error, mount_point, skipped: listing.skipped.columns() })
    }
}

/// Builds paths of a folder's entries in one buffer.
struct PathBuffer<'a> {
    path: &'a mut String,
}

impl PathBuffer<'_> {
    fn with<T>(&mut self, name: &OsString, body: impl FnOnce(&str) -> Result<T>) -> Result<T> {
        let length = self.path.len();
        paths::push_text(self.path, name);
        let result = body(self.path);
        self.path.truncate(length);
        result
    }
}

fn find_folder(db: &Db<'_>, root: i64, path: &str) -> Result<Option<i64>> {
    let sql = "SELECT id FROM folders WHERE library_id = ?1 AND relative_path = ?2";
    db.first(sql, (root, path), |row| row.get(0))
}

/// Inserts the row of a listed folder, complete if the listing is, and the rows of its parents if they are missing.
fn insert_listed_folder(db: &Db<'_>, listing: &Listing, path: &str) -> Result<i64> {
    let root = listing.folder.root;
    let parent = parent_row(db, root, path)?;
    let Some(walked) = WalkedFolder::of(listing) else {
        return insert_folder(db, (root, parent), path, listing.filesystem);
    };
    let sql = "INSERT INTO folders (library_id, parent_id, relative_path, first_seen_at, last_seen_at, walked_scan_id,
            error_status, filesystem_id, skipped_entries, skipped_unknown, skipped_digest, is_mount_point, via_link,
            listing_digest)
        VALUES (?1, ?2, ?3, ?4, ?4, ?5, ?6, ?7, ?8, ?9, ?10, CASE WHEN ?6 IS NULL THEN ?11 END, ?12, ?13)";
    let WalkedFolder { error, mount_point, skipped: (entries, unknown, skipped_digest) } = walked;
    let (now, Listing { scan, filesystem, via_link, digest, .. }) = (db.now_in_seconds(), listing);
    // A purge has deleted the row that the walk has seen, and perhaps rows of entries.
    let digest = digest.filter(|_| listing.folder.id.is_none());
    let values = params![
        root,
        parent,
        path,
        now,
        scan,
        error,
        filesystem,
        entries,
        unknown,
        skipped_digest,
        mount_point,
        via_link,
        digest
    ];
    db.execute(sql, values)?;
    Ok(db.conn.last_insert_rowid())
}

/// Returns the row of a folder's parent. Inserts it, and the rows of its parents, if they are missing.
fn parent_row(db: &Db<'_>, root: i64, path: &str) -> Result<Option<i64>> {
    let parent = match path.rsplit_once('/') {
        _ if path.is_empty() => return Ok(None),
        Some((parent, _)) => parent,
        None => "",
    };
    if let Some(id) = find_folder(db, root, parent)? {
        return Ok(Some(id));
    }
    let above = parent_row(db, root, parent)?;
    insert_folder(db, (root, above), parent, None).map(Some)
}

/// Value of `error_status` for a folder that was a root and has not been walked since that root was removed. Rows of
/// existing files are compared with it, so the text must not change.
pub(super) const UNSCANNED: &str = "it was a root of its own, and was not scanned since that was removed";

/// Records that a folder of a root must be walked. Does nothing if the root has no row for the parent folder.
pub(crate) fn mark_folder_unscanned(db: &Db<'_>, root: i64, path: &str) -> Result<()> {
    let (parent, _) = path.rsplit_once('/').unwrap_or_default();
    let sql = "SELECT id FROM folders WHERE library_id = ?1 AND relative_path = ?2
        AND removed_at IS NULL AND excluded_at IS NULL";
    let Some(parent) = db.first(sql, (root, parent), |row| row.get(0))? else { return Ok(()) };
    let folder = insert_folder(db, (root, Some(parent)), path, None)?;
    let sql = "UPDATE folders SET error_status = ?2, listing_digest = randomblob(16) WHERE id = ?1";
    db.execute(sql, (folder, UNSCANNED)).map(drop)
}

/// Inserts a folder that was not listed completely, or marks an existing one as present. The last listing of its parent
/// may not have found it. Returns its id.
fn insert_folder(db: &Db<'_>, (root, parent): (i64, Option<i64>), path: &str, filesystem: Option<i64>) -> Result<i64> {
    let sql = "INSERT INTO folders (library_id, parent_id, relative_path, first_seen_at, last_seen_at, filesystem_id)
        VALUES (?1, ?2, ?3, ?4, ?4, ?5)
        ON CONFLICT (library_id, relative_path) DO UPDATE SET parent_id = excluded.parent_id, removed_at = NULL,
            excluded_at = NULL RETURNING id";
    let id = db.number(sql, (root, parent, path, db.now_in_seconds(), filesystem))?;
    parent.map_or(Ok(()), |parent| clear_digest(db, parent))?;
    Ok(id)
}

/// Replaces the digest of a folder by a random value, which no listing has, because rows of its entries change in
/// another way than by its listing. A walk that has read the folder's row before does not write its digest.
pub(super) fn clear_digest(db: &Db<'_>, folder: i64) -> Result<()> {
    db.execute("UPDATE folders SET listing_digest = randomblob(16) WHERE id = ?1", [folder]).map(drop)
}

/// Updates a file's row. Clears the hash unless the file reappeared unchanged or only its change time was unknown.
pub(super) fn update_changed_file(db: &Db<'_>, changed: &ChangedFile, scan: Option<i64>) -> Result<()> {
    let ChangedFile { id, stat, keeps_hash } = changed;
    let now = db.now();
    let values: &[&dyn ToSql] = params![
        id,
        signed(stat.size),
        stat.mtime_ns,
        stat.ctime_ns,
        stat.inode.cast_signed(),
        stat.device.cast_signed(),
        scan,
        now,
        stat.unusual_allocation(),
        stat.links.code()
    ];
    let sql = "UPDATE library_files SET ctime_ns = ?4, device = ?6, last_seen_scan_id = ?7, updated_at = ?8,
            allocated_bytes = ?9, link_kind = ?10, is_missing = 0, removed_at = NULL, excluded_at = NULL,
            needs_hash = (content_hash IS NULL AND size_bytes > 0)
        WHERE id = ?1 AND size_bytes = ?2 AND mtime_ns = ?3 AND inode = ?5
            AND (ctime_ns IS NULL OR ctime_ns = ?4) AND hash_racy IS NULL";
    if *keeps_hash && db.execute(sql, values)? == 1 {
        return Ok(());
    }
    let sql = "UPDATE library_files SET size_bytes = ?2, mtime_ns = ?3, ctime_ns = ?4, inode = ?5, device = ?6,
            last_seen_scan_id = ?7, updated_at = ?8, allocated_bytes = ?9, link_kind = ?10, is_missing = 0,
            removed_at = NULL, excluded_at = NULL, hash_racy = NULL, needs_hash = (?2 > 0),
            hash_algorithm = NULL, content_hash = NULL, hashed_size_bytes = NULL, hashed_mtime_ns = NULL,
            hashed_at = NULL, edges = NULL, read_algorithm = NULL, read_hash = NULL, hash_error_count = 0,
            hash_last_error = NULL, hash_last_error_at = NULL, hash_retry_after = NULL, hash_claim_token = NULL,
            hash_claimed_at = NULL
        WHERE id = ?1";
    db.execute(sql, values).map(drop)
}

/// Assignments for an excluded file: it is in no group, and its hash is kept.
const SET_EXCLUDED: &str = "excluded_at = ?1, updated_at = ?1, needs_hash = (is_missing = 0 AND size_bytes > 0),
    read_algorithm = coalesce(hash_algorithm, read_algorithm), read_hash = coalesce(content_hash, read_hash),
    hash_algorithm = NULL, content_hash = NULL, hashed_size_bytes = NULL, hashed_mtime_ns = NULL, hashed_at = NULL
    WHERE excluded_at IS NULL";

/// Assignments for a missing file; its hash is kept in case it reappears.
pub(super) const SET_MISSING: &str =
    "is_missing = 1, needs_hash = 0, removed_at = ?1, updated_at = ?1, last_seen_scan_id =
    coalesce((SELECT s.id FROM folders f JOIN scan_sessions s ON s.id = f.walked_scan_id WHERE f.id = folder_id),
        last_seen_scan_id)";

pub(super) fn mark_files_missing(db: &Db<'_>, ids: &[i64]) -> Result<usize> {
    let sql = format!("UPDATE library_files SET {SET_MISSING} WHERE id = ?2 AND is_missing = 0");
    ids.iter().map(|id| db.execute(&sql, (db.now(), id))).sum()
}

/// Marks a folder as removed, with everything in it. Returns the number of files.
fn remove_folder(db: &Db<'_>, root: i64, path: &str) -> Result<usize> {
    mark_folder(db, (root, path), &format!("{SET_MISSING} WHERE is_missing = 0"), "removed_at")
}

/// Marks a folder as excluded by filters, with everything in it. Returns the number of files.
fn exclude_folder(db: &Db<'_>, root: i64, path: &str) -> Result<usize> {
    mark_folder(db, (root, path), &format!("{SET_EXCLUDED} AND is_missing = 0"), "excluded_at")
}

/// Updates the files below a folder, and sets the time of it and its subfolders where NULL. Returns the file count.
fn mark_folder(db: &Db<'_>, (root, path): (i64, &str), files: &str, time: &str) -> Result<usize> {
    let (low, high) = paths::descendant_range(path);
    let mut count = 0;
    for below in [PLACED_BELOW, UNPLACED_BELOW] {
        let sql = format!("UPDATE library_files SET {files} AND {below}");
        count += db.execute(&sql, (db.now(), root, &low, &high, path))?;
    }
    let sql = format!(
        "UPDATE folders SET {time} = ?1, listing_digest = randomblob(16) WHERE {time} IS NULL AND library_id = ?2
            AND (relative_path = ?5 OR (relative_path > ?3 AND relative_path < ?4))"
    );
    db.execute(&sql, (db.now(), root, &low, &high, path))?;
    Ok(count)
}

/// Condition of the files in a folder and below it: of the root ?2, with the path ?5, and paths between ?3 and ?4.
pub(crate) const PLACED_BELOW: &str = "folder_id IN (SELECT d.id FROM folders d WHERE d.library_id = ?2
    AND (d.relative_path = ?5 OR (d.relative_path > ?3 AND d.relative_path < ?4)))";

/// The same for files that another program recorded. The last parameter is not used, but must be bound.
pub(crate) const UNPLACED_BELOW: &str = "folder_id IS NULL AND library_id = ?2
    AND relative_path > ?3 AND relative_path < ?4 AND ?5 IS NOT NULL";

/// Deletes the rows of a folder and of everything in it.
fn delete_folder(db: &Db<'_>, root: i64, path: &str) -> Result<()> {
    let (low, high) = paths::descendant_range(path);
    for below in [PLACED_BELOW, UNPLACED_BELOW] {
        let sql = format!("DELETE FROM library_files WHERE ?1 IS NOT NULL AND {below}");
        db.execute(&sql, (db.now(), root, &low, &high, path))?;
    }
    let below = "library_id = ?1 AND relative_path > ?2 AND relative_path < ?3";
    db.execute(&format!("DELETE FROM folders WHERE {below}"), (root, &low, &high))?;
    db.execute("DELETE FROM folders WHERE library_id = ?1 AND relative_path = ?2", (root, path)).map(drop)
}
