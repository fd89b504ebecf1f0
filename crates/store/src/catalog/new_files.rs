//! Inserts the rows of new files, several with one statement: most writes of a first scan.

use std::ffi::OsString;
use std::sync::LazyLock;

use super::record::update_changed_file;
use super::{ChangedFile, Digest, HashUse, Listing, Stat, signed};
use crate::error::Result;
use crate::paths;
use crate::sqlite::{CachedStatement, Db, ErrorCode, ToSql};

/// Number of files inserted by one statement: starting and ending a statement costs a third of a row.
const ROWS_PER_STATEMENT: usize = 16;

/// Columns that all rows of a statement share. Bound once, because binding takes 0.1 µs each.
const COMMON_COLUMNS: &str = "library_id, folder_id, last_seen_scan_id, created_at, updated_at";
const COMMON_PARAMS: usize = 5;

const COLUMNS: &str = "relative_path, size_bytes, mtime_ns, ctime_ns, inode, device, allocated_bytes, link_kind, edges";
const PARAMS_PER_ROW: usize = 9;

/// Further columns of a file that is empty, or whose hash is written.
const HASH_COLUMNS: &str = "hash_algorithm, content_hash, read_algorithm, read_hash,
    hashed_size_bytes, hashed_mtime_ns, hashed_at, needs_hash";
const HASH_PARAMS: usize = 8;

/// Inserts the files of a transaction. The statements are prepared once: finding them in the cache of the connection
/// reads their whole text.
pub(super) struct FileInserter<'a> {
    db: &'a Db<'a>,
    /// Whether another program has recorded files, which have no folder.
    has_unplaced: bool,
    /// Whether `updated_at` is NOT NULL, as in files of the Python control plane. Otherwise it is NULL until a change.
    needs_updated_at: bool,
    many: CachedStatement<'a>,
    one: CachedStatement<'a>,
    hashed: CachedStatement<'a>,
}

impl<'a> FileInserter<'a> {
    pub(super) fn new(db: &'a Db<'a>) -> Result<Self> {
        static MANY: LazyLock<String> = LazyLock::new(|| insert_plain(ROWS_PER_STATEMENT));
        static ONE: LazyLock<String> = LazyLock::new(|| insert_plain(1));
        static HASHED: LazyLock<String> = LazyLock::new(insert_hashed);
        let unplaced = "SELECT EXISTS (SELECT 1 FROM library_files WHERE folder_id IS NULL)";
        let not_null = "SELECT \"notnull\" FROM pragma_table_info('library_files') WHERE name = 'updated_at'";
        let prepare = |sql: &'static str| db.with_conn(|conn| conn.prepare_cached(sql));
        Ok(FileInserter {
            db,
            has_unplaced: db.number(unplaced, [])? > 0,
            needs_updated_at: db.number(not_null, [])? > 0,
            many: prepare(&MANY)?,
            one: prepare(&ONE)?,
            hashed: prepare(&HASHED)?,
        })
    }
}

/// An INSERT of files that need a hash. FAIL instead of ABORT, for which SQLite would copy each page that the statement
/// changes: an error ends the whole write anyway.
fn insert_plain(rows: usize) -> String {
    let mut sql = format!(
        "INSERT OR FAIL INTO library_files ({COMMON_COLUMNS}, {COLUMNS}, needs_hash, is_missing, hash_error_count)
        VALUES "
    );
    for row in 0..rows {
        let first = COMMON_PARAMS + row * PARAMS_PER_ROW;
        let comma = if row == 0 { "" } else { ", " };
        let numbers = (1..=PARAMS_PER_ROW).map(|value| format!("?{}", first + value));
        sql.push_str(&format!("{comma}(?1, ?2, ?3, ?4, ?5, {}, 1, 0, 0)", numbers.collect::<Vec<_>>().join(", ")));
    }
    sql
}

/// An INSERT of a file that is empty, or whose hash is written.
fn insert_hashed() -> String {
    let params = COMMON_PARAMS + PARAMS_PER_ROW + HASH_PARAMS;
    let numbers = (1..=params).map(|number| format!("?{number}")).collect::<Vec<_>>().join(", ");
    format!(
        "INSERT OR FAIL INTO library_files ({COMMON_COLUMNS}, {COLUMNS}, {HASH_COLUMNS}, is_missing, hash_error_count)
        VALUES ({numbers}, 0, 0)"
    )
}

impl FileInserter<'_> {
    /// Inserts the new files of a folder, whose path with a slash is `prefix`. Returns ids, and how many had a row
    /// already.
    pub(super) fn insert(&mut self, listing: &Listing, folder: i64, prefix: &str) -> Result<(Vec<i64>, usize)> {
        let db = self.db;
        let (root, scan) = (listing.folder.root, listing.scan);
        let now = db.now_in_seconds();
        let updated_at = self.needs_updated_at.then_some(now);
        let common: [&dyn ToSql; COMMON_PARAMS] = [&root, &folder, &scan, &now, &updated_at];
        let paths = Paths::of(prefix, &listing.new_files);
        let mut digests = listing.contents.iter().peekable();
        let mut files = Vec::with_capacity(listing.new_files.len());
        for ((position, (_, stat)), path) in (0..).zip(&listing.new_files).zip(paths.iter()) {
            let digest = digests.next_if(|(index, _)| *index == position).map(|(_, digest)| digest);
            files.push(NewFile::new(path, stat, digest, now));
        }
        let (mut ids, mut conflicts) = (Vec::with_capacity(files.len()), 0);
        let mut values: Vec<&dyn ToSql> = Vec::with_capacity(COMMON_PARAMS + ROWS_PER_STATEMENT * PARAMS_PER_ROW);
        let mut rest = files.as_slice();
        while let Some(first) = rest.first() {
            if self.has_unplaced
                && let Some(id) = unplaced_row(db, root, first.path)?
            {
                let stat = listing.new_files.get(ids.len()).map_or_else(Stat::default, |(_, stat)| *stat);
                take_over(db, (id, folder), stat, scan)?;
                ids.push(id);
                conflicts += 1;
                rest = rest.get(1..).unwrap_or_default();
                continue;
            }
            let plain = rest.iter().take(ROWS_PER_STATEMENT).take_while(|file| file.is_plain()).count();
            let (statement, rows) = match plain {
                0 => (&mut self.hashed, 1),
                ROWS_PER_STATEMENT if !self.has_unplaced => (&mut self.many, ROWS_PER_STATEMENT),
                _ => (&mut self.one, 1),
            };
            let (chunk, after) = rest.split_at(rows);
            rest = after;
            values.clear();
            values.extend(common);
            for file in chunk {
                file.bind(&mut values);
            }
            let inserted = db.with_conn(|_| match statement.execute(values.as_slice()) {
                Err(error) if error.sqlite_error_code() == Some(ErrorCode::ConstraintViolation) => Ok(None),
                inserted => inserted.map(Some),
            })?;
            if inserted.is_none() {
                // The table has a unique index of all paths, and another program has moved a row to one of these.
                for file in chunk {
                    let stat = listing.new_files.get(ids.len()).map_or_else(Stat::default, |(_, stat)| *stat);
                    match row_at(db, root, file.path)? {
                        // Inserted before the row that failed.
                        Some((id, Some(of))) if of == folder => ids.push(id),
                        Some((id, _)) => {
                            take_over(db, (id, folder), stat, scan)?;
                            ids.push(id);
                            conflicts += 1;
                        }
                        None => {
                            values.clear();
                            values.extend(common);
                            file.bind(&mut values);
                            let statement = if file.is_plain() { &mut self.one } else { &mut self.hashed };
                            db.with_conn(|_| statement.execute(values.as_slice()))?;
                            ids.push(db.conn.last_insert_rowid());
                        }
                    }
                }
                continue;
            }
            // A single statement of the only writer inserts consecutive ids.
            let last = db.conn.last_insert_rowid();
            ids.extend(last - crate::sql_limit(rows) + 1..=last);
        }
        Ok((ids, conflicts))
    }
}

/// Paths of a folder's files in one buffer.
struct Paths {
    text: String,
    ends: Vec<usize>,
}

impl Paths {
    fn of(prefix: &str, files: &[(OsString, Stat)]) -> Self {
        let length = files.iter().map(|(name, _)| prefix.len() + name.len()).sum();
        let mut paths = Paths { text: String::with_capacity(length), ends: Vec::with_capacity(files.len()) };
        for (name, _) in files {
            paths.text.push_str(prefix);
            paths::push_text(&mut paths.text, name);
            paths.ends.push(paths.text.len());
        }
        paths
    }

    fn iter(&self) -> impl Iterator<Item = &str> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, end)| self.text.get(start..*end).unwrap_or_default())
    }
}

/// Returns the row of a file that another program recorded.
fn unplaced_row(db: &Db<'_>, root: i64, path: &str) -> Result<Option<i64>> {
    let sql = "SELECT id FROM library_files WHERE folder_id IS NULL AND library_id = ?1 AND relative_path = ?2";
    db.first(sql, (root, path), |row| row.get(0))
}

/// Returns the row of a path, and its folder. Only a table of another program has an index for this.
fn row_at(db: &Db<'_>, root: i64, path: &str) -> Result<Option<(i64, Option<i64>)>> {
    let sql = "SELECT id, folder_id FROM library_files WHERE library_id = ?1 AND relative_path = ?2";
    db.first(sql, (root, path), |row| Ok((row.get(0)?, row.get(1)?)))
}

/// Assigns a row that another program recorded to a folder. The digest of the file is discarded.
fn take_over(db: &Db<'_>, (id, folder): (i64, i64), stat: Stat, scan: i64) -> Result<()> {
    db.execute("UPDATE library_files SET folder_id = ?2 WHERE id = ?1", (id, folder))?;
    update_changed_file(db, &ChangedFile { id, stat, keeps_hash: true }, Some(scan))
}

struct NewFile<'a> {
    path: &'a str,
    size: i64,
    times: (i64, i64),
    identity: (i64, i64),
    /// Allocated bytes, if they do not follow from the size; and the kind of link.
    space: (Option<i64>, Option<i64>),
    samples: Option<i64>,
    hash: Option<NewHash<'a>>,
}

/// Columns of a file that is empty, or whose hash is written.
struct NewHash<'a> {
    /// Hash, if another file shares it.
    content: (Option<&'static str>, Option<&'a [u8]>),
    /// Hash, if no other file shares it.
    read: (Option<&'static str>, Option<&'a [u8]>),
    hashed: (Option<i64>, Option<i64>, Option<&'a str>),
    needs_hash: bool,
}

impl<'a> NewFile<'a> {
    fn new(path: &'a str, stat: &Stat, digest: Option<&'a Digest>, now: &'a str) -> Self {
        let size = signed(stat.size);
        let parts = |digest: &'a Digest| (digest.algorithm.as_str(), digest.hash.as_slice());
        let of_use = |used| digest.filter(|digest| digest.used == used).map(parts).unzip();
        let (content, read) = (of_use(HashUse::Group), of_use(HashUse::Kept));
        let hashed = match content {
            (None, _) => (None, None, None),
            _ => (Some(size), Some(stat.mtime_ns), Some(now)),
        };
        // An empty file needs no hash.
        let needs_hash = size > 0 && content.0.is_none();
        NewFile {
            path,
            size,
            times: (stat.mtime_ns, stat.ctime_ns),
            identity: (stat.inode.cast_signed(), stat.device.cast_signed()),
            space: (stat.unusual_allocation(), stat.links.code()),
            samples: digest.and_then(|digest| digest.samples),
            hash: (!needs_hash || read.0.is_some()).then_some(NewHash { content, read, hashed, needs_hash }),
        }
    }

    /// Whether it needs a hash and none is written.
    fn is_plain(&self) -> bool {
        self.hash.is_none()
    }

    /// Appends the parameters in the order of [`COLUMNS`] and [`HASH_COLUMNS`].
    fn bind<'b>(&'b self, values: &mut Vec<&'b dyn ToSql>) {
        let NewFile { path, size, times, identity, space, samples, hash } = self;
        values.extend::<[&'b dyn ToSql; PARAMS_PER_ROW]>([
            path,
            size,
            &times.0,
            &times.1,
            &identity.0,
            &identity.1,
            &space.0,
            &space.1,
            samples,
        ]);
        if let Some(NewHash { content, read, hashed, needs_hash }) = hash {
            values.extend::<[&'b dyn ToSql; HASH_PARAMS]>([
                &content.0, &content.1, &read.0, &read.1, &hashed.0, &hashed.1, &hashed.2, needs_hash,
            ]);
        }
    }
}
