//! Inserts the rows of new files, several with one statement: most writes of a first scan.

use std::sync::LazyLock;

use super::record::update_changed_file;
use super::{ChangedFile, Digest, Listing, Stat, signed};
use crate::error::Result;
use crate::paths;
use crate::sqlite::{Db, ToSql};

/// Number of files inserted by one statement: starting and ending a statement costs a third of a row.
const ROWS_PER_STATEMENT: usize = 16;

/// Number of parameters that all rows share: root, folder, scan, time. Bound once, because binding takes 0.1 µs each.
const COMMON_PARAMS: usize = 4;

const PARAMS_PER_ROW: usize = 16;

fn insert_files(rows: usize) -> String {
    let mut sql = "INSERT INTO library_files (library_id, folder_id, last_seen_scan_id, created_at, updated_at,
            relative_path, size_bytes, mtime_ns, ctime_ns, inode, device, needs_hash, read_algorithm, read_hash,
            hash_algorithm, content_hash, hashed_size_bytes, hashed_mtime_ns, hashed_at, allocated_bytes, link_kind,
            is_missing, hash_error_count)
        VALUES "
        .to_owned();
    for row in 0..rows {
        let first = COMMON_PARAMS + row * PARAMS_PER_ROW;
        let comma = if row == 0 { "" } else { ", " };
        let numbers = (1..=PARAMS_PER_ROW).map(|value| format!("?{}", first + value));
        // ?4 is the time, used twice.
        sql.push_str(&format!("{comma}(?1, ?2, ?3, ?4, ?4, {}, 0, 0)", numbers.collect::<Vec<_>>().join(", ")));
    }
    sql.push_str(" ON CONFLICT (library_id, relative_path) DO NOTHING");
    sql
}

/// Inserts the new files of a folder, whose path with a slash is `prefix`. Returns ids, and how many had a row already.
pub(super) fn insert_new_files(db: &Db<'_>, listing: &Listing, folder: i64, prefix: &str) -> Result<(Vec<i64>, usize)> {
    static MANY: LazyLock<String> = LazyLock::new(|| insert_files(ROWS_PER_STATEMENT));
    static ONE: LazyLock<String> = LazyLock::new(|| insert_files(1));
    let (root, scan, now) = (listing.folder.root, listing.scan, db.now());
    let mut ids = Vec::with_capacity(listing.new_files.len());
    let mut conflicts = 0;
    let mut digests = listing.contents.iter().peekable();
    let mut position = 0;
    let mut rest = listing.new_files.as_slice();
    while !rest.is_empty() {
        let rows = if rest.len() < ROWS_PER_STATEMENT { 1 } else { ROWS_PER_STATEMENT };
        let (chunk, after) = rest.split_at(rows);
        rest = after;
        let mut new = Vec::with_capacity(rows);
        for (name, stat) in chunk {
            let mut path = String::with_capacity(prefix.len() + name.len());
            path.push_str(prefix);
            paths::push_text(&mut path, name);
            let digest = digests.next_if(|(index, _)| *index == position).map(|(_, digest)| digest);
            new.push(NewFile::new(path, stat, digest, now));
            position += 1;
        }
        let mut values: Vec<&dyn ToSql> = Vec::with_capacity(COMMON_PARAMS + rows * PARAMS_PER_ROW);
        values.extend::<[&dyn ToSql; COMMON_PARAMS]>([&root, &folder, &scan, &now]);
        for file in &new {
            file.bind(&mut values);
        }
        let sql = if rows == 1 { &*ONE } else { &*MANY };
        let written = db.execute(sql, values.as_slice())?;
        conflicts += rows - written;
        if written == rows {
            // A single statement of the only writer inserts consecutive ids.
            let last = db.conn.last_insert_rowid();
            ids.extend(last - crate::sql_limit(rows) + 1..=last);
            continue;
        }
        // Another program recorded some of them without a folder. Their digests are discarded.
        for (file, (_, stat)) in new.iter().zip(chunk) {
            let sql = "SELECT id FROM library_files WHERE library_id = ?1 AND relative_path = ?2";
            let id = db.number(sql, (root, &file.path))?;
            db.execute("UPDATE library_files SET folder_id = ?2 WHERE id = ?1", (id, folder))?;
            update_changed_file(db, &ChangedFile { id, stat: *stat, keeps_hash: true }, Some(scan))?;
            ids.push(id);
        }
    }
    Ok((ids, conflicts))
}

struct NewFile<'a> {
    path: String,
    size: i64,
    times: (i64, i64),
    identity: (i64, i64),
    space: (i64, Option<i64>),
    needs_hash: bool,
    /// Hash, if no other file shares it.
    read: (Option<&'static str>, Option<&'a [u8]>),
    /// Hash, if another file shares it.
    content: (Option<&'static str>, Option<&'a [u8]>),
    hashed: (Option<i64>, Option<i64>, Option<&'a str>),
}

impl<'a> NewFile<'a> {
    fn new(path: String, stat: &Stat, digest: Option<&'a Digest>, now: &'a str) -> Self {
        let parts = |digest: &'a Digest| (digest.algorithm.as_str(), digest.hash.as_slice());
        let size = signed(stat.size);
        let content = digest.filter(|digest| digest.shared).map(parts).unzip();
        NewFile {
            path,
            size,
            times: (stat.mtime_ns, stat.ctime_ns),
            identity: (stat.inode.cast_signed(), stat.device.cast_signed()),
            space: (signed(stat.allocated), stat.links.code()),
            // An empty file needs no hash.
            needs_hash: size > 0 && content.0.is_none(),
            read: digest.filter(|digest| !digest.shared).map(parts).unzip(),
            content,
            hashed: match content {
                (None, _) => (None, None, None),
                _ => (Some(size), Some(stat.mtime_ns), Some(now)),
            },
        }
    }

    /// Appends the parameters in the order of [`insert_files`].
    fn bind<'b>(&'b self, values: &mut Vec<&'b dyn ToSql>) {
        let NewFile { path, size, times, identity, space, needs_hash, read, content, hashed } = self;
        values.extend::<[&'b dyn ToSql; PARAMS_PER_ROW]>([
            path,
            size,
            &times.0,
            &times.1,
            &identity.0,
            &identity.1,
            needs_hash,
            &read.0,
            &read.1,
            &content.0,
            &content.1,
            &hashed.0,
            &hashed.1,
            &hashed.2,
            &space.0,
            &space.1,
        ]);
    }
}
