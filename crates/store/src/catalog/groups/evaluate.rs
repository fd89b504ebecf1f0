//! Evaluates groups: from the rows of files with one hash to the numbers of their group.

use std::collections::HashMap;
use std::path::PathBuf;

use super::cursor::GroupKey;
use super::{GroupFile, GroupSummary, Member};
use crate::catalog::hashes::{self, SHARED_HASHES_SQL};
use crate::catalog::links::{self, unstable_filesystems};
use crate::catalog::{Algorithm, LinkKind, Stat};
use crate::paths;
use crate::rows::column;
use crate::sqlite::{Connection, SqlResult};

/// Number of files that are read together, in row order. In hash order, almost every file would need another page.
const FILES_PER_BATCH: usize = 65_536;

/// A file name in a group, with what its group is evaluated from.
pub(super) struct GroupMember {
    pub(super) member: Member,
    /// Lowest row id among the names of the same file.
    pub(super) file: i64,
    /// Absolute path, encoded as in the database.
    pub(super) absolute: String,
}

impl GroupMember {
    pub(super) fn absolute_path(&self) -> PathBuf {
        paths::from_text(&self.absolute).into()
    }
}

/// What the numbers of a group depend on, for one file name.
struct Name {
    id: i64,
    root: i64,
    file: i64,
    size: u64,
    allocated: u64,
    links: LinkKind,
    inode: u64,
}

/// Ids of the rows with one hash.
struct HashRows {
    key: GroupKey,
    ids: Vec<i64>,
}

/// Evaluates groups in one snapshot.
pub(super) struct Evaluator<'a> {
    conn: &'a Connection,
    /// Ids of filesystems with unstable inode numbers.
    unstable: Vec<i64>,
    /// Paths of the roots by id, encoded as in the database.
    roots: HashMap<i64, String>,
}

impl<'a> Evaluator<'a> {
    pub(super) fn new(conn: &'a Connection) -> SqlResult<Self> {
        let mut statement = conn.prepare_cached("SELECT id, root_path FROM library_roots")?;
        let roots = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect::<SqlResult<_>>()?;
        Ok(Evaluator { conn, unstable: unstable_filesystems(conn)?, roots })
    }

    /// Visits every group of at least two file names, in the order of algorithm and hash.
    pub(super) fn all(&self, mut visit: impl FnMut(&GroupSummary) -> SqlResult<()>) -> SqlResult<()> {
        // The index alone shows where groups are; only their rows are read.
        let mut statement = self.conn.prepare_cached(SHARED_HASHES_SQL)?;
        let mut rows = statement.query([])?;
        let mut batch: Vec<HashRows> = Vec::new();
        let mut files = 0;
        while let Some(row) = rows.next()? {
            let (algorithm, hash, id) = (row.get_ref(0)?.as_str()?, row.get_ref(1)?.as_blob()?, row.get(2)?);
            if let Some(last) = batch.last_mut()
                && last.key.hash == hash
                && last.key.algorithm.as_str() == algorithm
            {
                last.ids.push(id);
            } else {
                if files >= FILES_PER_BATCH {
                    self.evaluate(std::mem::take(&mut batch), &mut visit)?;
                    files = 0;
                }
                // A single file is not a group.
                batch.pop_if(|last| last.ids.len() < 2);
                // Other programs may write what this version does not know.
                let Some(algorithm) = Algorithm::parse(algorithm) else { continue };
                batch.push(HashRows { key: GroupKey { algorithm, hash: hash.to_vec() }, ids: vec![id] });
            }
            files += 1;
        }
        self.evaluate(batch, &mut visit)?;
        match self.one(&GroupKey::of_empty_files())? {
            Some(group) => visit(&group),
            None => Ok(()),
        }
    }

    /// Evaluates one group; `None` if it has fewer than two file names.
    pub(super) fn one(&self, key: &GroupKey) -> SqlResult<Option<GroupSummary>> {
        let members = self.members(key)?;
        Ok(summarize(key, &members.iter().collect::<Vec<_>>(), false))
    }

    fn evaluate(&self, batch: Vec<HashRows>, visit: &mut impl FnMut(&GroupSummary) -> SqlResult<()>) -> SqlResult<()> {
        let mut positions: Vec<(i64, usize)> = Vec::new();
        for (position, rows) in batch.iter().enumerate().filter(|(_, rows)| rows.ids.len() > 1) {
            positions.extend(rows.ids.iter().map(|id| (*id, position)));
        }
        positions.sort_unstable();
        let mut groups: Vec<(Vec<Name>, Option<String>)> = Vec::new();
        groups.resize_with(batch.len(), Default::default);
        let mut statement = self.conn.prepare_cached(
            "SELECT library_id, size_bytes, allocated_bytes, link_kind, inode, relative_path FROM library_files
                WHERE id = ?1",
        )?;
        let mut path = String::new();
        for (id, position) in positions {
            let mut rows = statement.query([id])?;
            let (Some(row), Some((names, first))) = (rows.next()?, groups.get_mut(position)) else { continue };
            let (size, links) = (number(row.get(1)?), LinkKind::from_code(row.get(3)?));
            // Empty files are a group of their own, whatever hash another program has given them.
            if size == 0 {
                continue;
            }
            let root = row.get(0)?;
            path.clear();
            path.push_str(self.root_path(root));
            path.push('/');
            path.push_str(row.get_ref(5)?.as_str()?);
            match first {
                Some(first) if first.as_str() <= path.as_str() => {}
                Some(first) => first.clone_from(&path),
                None => *first = Some(path.clone()),
            }
            let allocated = hashes::allocated(size, row.get(2)?, links);
            let inode = row.get::<_, Option<i64>>(4)?.unwrap_or(0).cast_unsigned();
            names.push(Name { id, root, file: id, size, allocated, links, inode });
        }
        for (rows, (mut names, first)) in batch.into_iter().zip(groups).filter(|(_, (names, _))| names.len() > 1) {
            let shared = self.shared_names(names.iter().map(|name| (name.inode, name.id)))?;
            if !shared.is_empty() {
                names.iter_mut().for_each(|name| name.file = file_of(&shared, name.id));
            }
            visit(&numbers(&rows.key, &names, first.unwrap_or_default(), false))?;
        }
        Ok(())
    }

    fn root_path(&self, root: i64) -> &str {
        self.roots.get(&root).map_or("", String::as_str)
    }

    /// Returns the files of a group, by absolute path; names of one file are adjacent.
    pub(super) fn members(&self, key: &GroupKey) -> SqlResult<Vec<GroupMember>> {
        let columns = "f.id, f.library_id, f.relative_path, f.size_bytes, f.mtime_ns, f.ctime_ns, f.inode, f.device,
            f.allocated_bytes, f.link_kind";
        let sql = format!("SELECT {columns} FROM {} ORDER BY f.id", files_of(key));
        let mut statement = self.conn.prepare_cached(&sql)?;
        let mut rows = statement.query((key.algorithm.as_str(), &key.hash))?;
        let mut members = Vec::new();
        while let Some(row) = rows.next()? {
            let (id, root, path) = (row.get(0)?, row.get(1)?, row.get_ref(2)?.as_str()?);
            let absolute = format!("{}/{path}", self.root_path(root));
            let path = paths::from_text(path).into();
            let member = Member { id, root, path, stat: hashes::stat(row, 3)?, linked: false };
            members.push(GroupMember { member, file: id, absolute });
        }
        members.sort_unstable_by(|a, b| a.absolute.cmp(&b.absolute).then(a.member.id.cmp(&b.member.id)));
        let shared = self.shared_names(members.iter().map(|found| (found.member.stat.inode, found.member.id)))?;
        if shared.is_empty() {
            return Ok(members);
        }
        // Other names of a file follow its first name.
        let mut first = HashMap::new();
        for (position, found) in members.iter_mut().enumerate() {
            found.file = file_of(&shared, found.member.id);
            let at = *first.entry(found.file).or_insert(position);
            found.member.linked = at != position;
        }
        members.sort_by_key(|found| first.get(&found.file).copied());
        Ok(members)
    }

    /// Finds the rows that are names of one file. Returns them with the lowest row id among the names, ordered by row.
    /// Few files have several names: only rows whose inode number occurs twice are examined.
    fn shared_names(&self, rows: impl Iterator<Item = (u64, i64)>) -> SqlResult<Vec<(i64, i64)>> {
        let mut inodes: Vec<(u64, i64)> = rows.filter(|(inode, _)| *inode != 0).collect();
        inodes.sort_unstable();
        let twice = inodes.chunk_by(|a, b| a.0 == b.0).filter(|rows| rows.len() > 1).flatten();
        let rows: Vec<i64> = twice.map(|(_, id)| *id).collect();
        if rows.is_empty() {
            return Ok(Vec::new());
        }
        let names = links::shared_names(self.conn, &self.unstable, &rows)?;
        Ok(names.into_iter().map(|name| (name.row, name.file)).collect())
    }
}

/// Returns the files of a group as the source of a query, with its condition. ?1 and ?2 are the algorithm and the hash.
/// The index has the files in row order.
fn files_of(key: &GroupKey) -> &'static str {
    match *key == GroupKey::of_empty_files() {
        true => {
            "library_files f INDEXED BY ix_library_files_empty
            WHERE f.size_bytes = 0 AND f.is_missing = 0 AND f.excluded_at IS NULL AND ?1 IS NOT NULL AND ?2 IS NOT NULL"
        }
        false => {
            "library_files f INDEXED BY ix_library_files_dedup_group
            WHERE f.is_missing = 0 AND f.needs_hash = 0 AND f.hash_algorithm = ?1 AND f.content_hash = ?2
                AND f.size_bytes > 0"
        }
    }
}

/// Returns the query for the files of a group after the row id ?3.
fn page_of_files(key: &GroupKey) -> String {
    format!(
        "SELECT f.id, f.library_id, f.relative_path, f.size_bytes, f.mtime_ns, f.ctime_ns, f.inode, f.device,
            f.allocated_bytes, f.link_kind, f.hashed_at, (SELECT name FROM library_roots WHERE id = f.library_id)
        FROM {} AND f.id > ?3 ORDER BY f.id LIMIT ?4",
        files_of(key)
    )
}

/// Returns up to `limit` + 1 files of a group after a row id.
pub(super) fn files_after(conn: &Connection, key: &GroupKey, after: i64, limit: usize) -> SqlResult<Vec<GroupFile>> {
    let mut statement = conn.prepare_cached(&page_of_files(key))?;
    let values = (key.algorithm.as_str(), &key.hash, after, crate::limit_plus_one(limit));
    let files = statement.query_map(values, |row| {
        Ok(GroupFile {
            id: row.get(0)?,
            root: row.get(1)?,
            path: paths::from_text(row.get_ref(2)?.as_str()?).into(),
            stat: hashes::stat(row, 3)?,
            hashed_at: column(row, "hashed_at")?,
            root_name: row.get(11)?,
        })
    })?;
    files.collect()
}

/// Evaluates the numbers of a group from some of its files. `kept_elsewhere`: another copy is kept in any case, so all
/// of these are reclaimable. Returns `None` for fewer than two file names, or none if a copy is kept elsewhere.
pub(super) fn summarize(key: &GroupKey, members: &[&GroupMember], kept_elsewhere: bool) -> Option<GroupSummary> {
    if members.len() < if kept_elsewhere { 1 } else { 2 } {
        return None;
    }
    let first = members.iter().map(|found| &found.absolute).min()?;
    let name = |found: &&GroupMember| {
        let Member { id, root, stat: Stat { size, allocated, links, inode, .. }, .. } = found.member;
        Name { id, root, file: found.file, size, allocated, links, inode }
    };
    let names: Vec<Name> = members.iter().map(name).collect();
    Some(numbers(key, &names, first.clone(), kept_elsewhere))
}

fn numbers(key: &GroupKey, names: &[Name], first_path: String, kept_elsewhere: bool) -> GroupSummary {
    let size = names.iter().map(|name| name.size).max().unwrap_or(0);
    // For each copy: its allocation, and whether it may be removed. The target of a symbolic link is outside the roots.
    let mut files: Vec<_> =
        names.iter().map(|name| (name.file, name.allocated, name.links != LinkKind::ViaSymlink)).collect();
    files.sort_unstable();
    let (mut copies, mut is_kept, mut largest, mut reclaimable) = (0_u64, kept_elsewhere, 0_u64, 0_u64);
    for names in files.chunk_by(|(a, ..), (b, ..)| a == b) {
        copies += 1;
        if names.iter().all(|(.., removable)| *removable) {
            let allocated = names.first().map_or(0, |(_, allocated, _)| *allocated);
            largest = largest.max(allocated);
            reclaimable = reclaimable.saturating_add(allocated);
        } else {
            is_kept = true;
        }
    }
    if !is_kept {
        reclaimable = reclaimable.saturating_sub(largest);
    }
    let mut roots: Vec<i64> = names.iter().map(|name| name.root).collect();
    roots.sort_unstable();
    roots.dedup();
    GroupSummary {
        key: key.clone(),
        size,
        file_count: names.len() as u64,
        total_size: names.iter().fold(0, |total, name| total.saturating_add(name.size)),
        copies,
        reclaimable,
        redundant: size.saturating_mul(if kept_elsewhere { copies } else { copies.saturating_sub(1) }),
        roots: roots.len() as u64,
        sample_file_id: names.iter().map(|name| name.id).min().unwrap_or(0),
        first_path,
        ignored: false,
    }
}

/// Returns the lowest row id among the names of a row's file.
fn file_of(names: &[(i64, i64)], row: i64) -> i64 {
    names.binary_search_by_key(&row, |(row, _)| *row).ok().and_then(|at| names.get(at)).map_or(row, |name| name.1)
}

fn number(value: i64) -> u64 {
    u64::try_from(value).unwrap_or(0)
}

/// Returns the group of the file in a folder of a root, by path.
pub(super) fn key_of(conn: &Connection, root: i64, folder: &str, path: &str) -> SqlResult<Option<GroupKey>> {
    let columns = "size_bytes, hash_algorithm, content_hash";
    let state =
        "is_missing = 0 AND excluded_at IS NULL AND (size_bytes = 0 OR (needs_hash = 0 AND content_hash IS NOT NULL))";
    let sql = format!(
        "SELECT {columns} FROM library_files WHERE relative_path = ?3 AND {state}
            AND folder_id = (SELECT id FROM folders WHERE library_id = ?1 AND relative_path = ?2)
        UNION ALL SELECT {columns} FROM library_files INDEXED BY ix_library_files_unplaced
            WHERE folder_id IS NULL AND library_id = ?1 AND relative_path = ?3 AND {state}"
    );
    let mut statement = conn.prepare_cached(&sql)?;
    let mut rows = statement.query((root, folder, path))?;
    Ok(match rows.next()? {
        None => None,
        Some(row) if row.get::<_, i64>(0)? == 0 => Some(GroupKey::of_empty_files()),
        Some(row) => Some(GroupKey { algorithm: column(row, "hash_algorithm")?, hash: row.get(2)? }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Store;

    #[test]
    fn page_of_files_follows_an_index_in_row_order() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path().join("t.db")).unwrap();
        let hashed = GroupKey { algorithm: Algorithm::Sha256, hash: vec![1; 32] };
        for (key, index) in
            [(hashed, "ix_library_files_dedup_group"), (GroupKey::of_empty_files(), "ix_library_files_empty")]
        {
            let sql = format!("EXPLAIN QUERY PLAN {}", page_of_files(&key));
            let plan = store.read(|db| {
                db.with_conn(|conn| {
                    let mut statement = conn.prepare(&sql)?;
                    let rows = statement.raw_query().mapped(|row| row.get::<_, String>(3));
                    Ok(rows.collect::<SqlResult<Vec<_>>>()?.join("; "))
                })
            });
            let plan = plan.unwrap();
            // The column `id` is the row id.
            let begins_at_row = ["id>?)", "rowid>?)"].iter().any(|range| plan.contains(range));
            let follows_index = plan.contains(&format!("SEARCH f USING INDEX {index}")) && begins_at_row;
            assert!(follows_index && !plan.contains("TEMP B-TREE"), "{plan}");
        }
    }
}
