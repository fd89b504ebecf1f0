//! Groups of files with the same content.
//!
//! Owns the definition of a group: present files with the same hash of the same algorithm; and empty files, if
//! requested. Several names of one file are one copy. Reclaimable is the allocated size of all copies except one.

use std::collections::HashMap;
use std::path::PathBuf;

use super::hashes::SHARED_HASHES_SQL;
use super::links::{SharedNameFinder, unstable_filesystems};
use super::{Algorithm, Catalog, LinkKind, Stat, hashes};
use crate::error::Result;
use crate::options::options;
use crate::paths;
use crate::rows::column;
use crate::sqlite::{Connection, SqlResult};

options! {
    /// Filter and order of groups.
    #[derive(Clone, Debug)]
    pub struct GroupQuery {
        /// Order of the groups.
        pub sort: SortBy = SortBy::Reclaimable,
        /// Minimum number of copies, at least 2.
        pub min_count: u64 = 2,
        /// Minimum file size in bytes. With 0, empty files are a group, too.
        pub min_size: u64 = 1,
        /// Only files of these roots; all roots if empty.
        pub roots: Vec<i64> = Vec::new(),
        /// Only groups with files in several roots.
        pub across_roots: bool = false,
        /// Maximum number of groups.
        pub limit: usize = usize::MAX,
        /// Number of groups to skip.
        pub offset: usize = 0,
    }
}

/// Sort order of groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SortBy {
    /// By reclaimable bytes, largest first.
    Reclaimable,
    /// By number of copies, then by total size, algorithm and hash.
    Count,
    /// By file size, largest first.
    Size,
    /// By the path of the first file.
    Path,
}

/// A page of groups, and totals of all matching groups.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Groups {
    /// Groups of this page.
    pub groups: Vec<Group>,
    /// Number of matching groups.
    pub total: u64,
    /// Number of file names in all groups.
    pub files: u64,
    /// Reclaimable allocated bytes of all groups.
    pub reclaimable: u64,
    /// Total size of all copies except one of each group.
    pub redundant: u64,
}

/// Files with the same content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Algorithm of the hash.
    pub algorithm: Algorithm,
    /// Hash of the content.
    pub hash: Vec<u8>,
    /// Size of each file in bytes.
    pub size: u64,
    /// Number of copies; several names of one file are one copy.
    pub copies: u64,
    /// Allocated bytes freed if only the copy with the largest allocation is kept. A symlink's target is kept, too.
    pub reclaimable: u64,
    /// Total size of all copies except one.
    pub redundant: u64,
    /// Names by root and path; names of one file are adjacent.
    pub members: Vec<Member>,
}

/// A file name in a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Id of the file's row.
    pub id: i64,
    /// Id of its root.
    pub root: i64,
    /// Path relative to the root.
    pub path: PathBuf,
    /// Metadata when it was last seen.
    pub stat: Stat,
    /// Whether it is another name of the previous member.
    pub linked: bool,
}

impl Member {
    /// Returns how its path leads to the file, for people; `None` for a separate file.
    pub fn link(&self) -> Option<&'static str> {
        match (self.linked, self.stat.links) {
            (_, LinkKind::ViaSymlink) => Some("symbolic link"),
            // Reached through a bind mount or a symbolic link in a root's path.
            (true, LinkKind::Single) => Some("same file"),
            (true, _) => Some("hard link"),
            (false, _) => None,
        }
    }
}

/// A group without its names.
struct GroupSummary {
    algorithm: Algorithm,
    hash: Vec<u8>,
    ids: Vec<i64>,
    size: u64,
    copies: u64,
    reclaimable: u64,
    /// First path, if groups are sorted by path.
    first: String,
}

impl GroupSummary {
    fn redundant(&self) -> u64 {
        self.size.saturating_mul(self.copies.saturating_sub(1))
    }
}

impl Catalog<'_> {
    /// Returns groups of files with the same content.
    pub fn groups(self, query: &GroupQuery) -> Result<Groups> {
        // In one transaction, for one snapshot and because SQLite would otherwise lock the file for each row.
        self.0.read(|db| db.with_conn(|conn| groups(&*conn.unchecked_transaction()?, query)))
    }
}

/// Number of files that are read together, in row order. In hash order, almost every file would need another page.
const FILES_PER_BATCH: usize = 65_536;

/// Ids of files with the same hash.
struct HashGroup {
    algorithm: Algorithm,
    hash: Vec<u8>,
    ids: Vec<i64>,
}

struct GroupSearch<'a> {
    conn: &'a Connection,
    query: &'a GroupQuery,
    /// Ids of filesystems with unstable inode numbers.
    unstable: &'a [i64],
}

struct GroupFile {
    id: i64,
    root: i64,
    size: u64,
    allocated: u64,
    links: LinkKind,
    inode: u64,
    /// Lowest row id among the names of the same file.
    file: i64,
    /// Absolute path, if groups are sorted by path.
    path: String,
}

fn groups(conn: &Connection, query: &GroupQuery) -> SqlResult<Groups> {
    let mut found = Vec::new();
    let unstable = unstable_filesystems(conn)?;
    let search = GroupSearch { conn, query, unstable: &unstable };
    // The index alone shows where groups are; only their rows are read.
    let mut statement = conn.prepare_cached(SHARED_HASHES_SQL)?;
    let mut rows = statement.query([])?;
    let mut batch: Vec<HashGroup> = Vec::new();
    let mut files = 0;
    while let Some(row) = rows.next()? {
        let (algorithm, hash, id) = (row.get_ref(0)?.as_str()?, row.get_ref(1)?.as_blob()?, row.get(2)?);
        if let Some(last) = batch.last_mut()
            && last.hash == hash
            && last.algorithm.as_str() == algorithm
        {
            last.ids.push(id);
        } else {
            if files >= FILES_PER_BATCH {
                evaluate(&search, std::mem::take(&mut batch), &mut found)?;
                files = 0;
            }
            // A single file is not a group.
            batch.pop_if(|last| last.ids.len() < 2);
            let algorithm = column(row, "hash_algorithm")?;
            batch.push(HashGroup { algorithm, hash: hash.to_vec(), ids: vec![id] });
        }
        files += 1;
    }
    evaluate(&search, batch, &mut found)?;
    if query.min_size == 0 {
        evaluate(&search, vec![empty_files(conn)?], &mut found)?;
    }
    sort(&mut found, query.sort);
    let mut groups = Groups { total: found.len() as u64, ..Groups::default() };
    for group in &found {
        groups.files += group.ids.len() as u64;
        groups.reclaimable = groups.reclaimable.saturating_add(group.reclaimable);
        groups.redundant = groups.redundant.saturating_add(group.redundant());
    }
    for group in found.into_iter().skip(query.offset).take(query.limit) {
        groups.groups.push(with_members(&search, group)?);
    }
    Ok(groups)
}

/// BLAKE3 hash of empty input. Empty files are not read, so their rows have no hash.
const EMPTY_HASH: [u8; 32] = [
    0xaf, 0x13, 0x49, 0xb9, 0xf5, 0xf9, 0xa1, 0xa6, 0xa0, 0x40, 0x4d, 0xea, 0x36, 0xdc, 0xc9, 0x49, 0x9b, 0xcb, 0x25,
    0xc9, 0xad, 0xc1, 0x12, 0xb7, 0xcc, 0x9a, 0x93, 0xca, 0xe4, 0x1f, 0x32, 0x62,
];

fn empty_files(conn: &Connection) -> SqlResult<HashGroup> {
    let sql = "SELECT id FROM library_files NOT INDEXED
        WHERE is_missing = 0 AND excluded_at IS NULL AND size_bytes = 0 ORDER BY id";
    let ids = conn.prepare_cached(sql)?.query_map([], |row| row.get(0))?.collect::<SqlResult<_>>()?;
    Ok(HashGroup { algorithm: Algorithm::Blake3, hash: EMPTY_HASH.to_vec(), ids })
}

/// Finds the rows that are names of one file. Returns them with the lowest row id among the names, ordered by row. Few
/// files have several names: only rows whose inode number occurs twice are examined.
fn shared_names(search: &GroupSearch<'_>, rows: impl Iterator<Item = (u64, i64)>) -> SqlResult<Vec<(i64, i64)>> {
    let mut inodes: Vec<(u64, i64)> = rows.filter(|(inode, _)| *inode != 0).collect();
    inodes.sort_unstable();
    let mut names = SharedNameFinder::new(search.unstable);
    for (_, id) in inodes.chunk_by(|a, b| a.0 == b.0).filter(|rows| rows.len() > 1).flatten() {
        let sql = "SELECT f.size_bytes, f.mtime_ns, f.ctime_ns, f.inode, f.device, f.allocated_bytes, f.link_kind,
                d.filesystem_id
            FROM library_files f LEFT JOIN folders d ON d.id = f.folder_id WHERE f.id = ?1";
        let mut statement = search.conn.prepare_cached(sql)?;
        let mut rows = statement.query([id])?;
        if let Some(row) = rows.next()? {
            names.add(*id, &hashes::stat(row, 0)?, row.get(7)?);
        }
    }
    Ok(names.shared().into_iter().map(|name| (name.row, name.file)).collect())
}

/// Returns the lowest row id among the names of a row's file.
fn file_of(names: &[(i64, i64)], row: i64) -> i64 {
    names.binary_search_by_key(&row, |(row, _)| *row).ok().and_then(|at| names.get(at)).map_or(row, |name| name.1)
}

/// Adds the hash groups that match the query to `found`.
fn evaluate(search: &GroupSearch<'_>, batch: Vec<HashGroup>, found: &mut Vec<GroupSummary>) -> SqlResult<()> {
    let GroupSearch { conn, query, .. } = *search;
    let mut positions: Vec<(i64, usize)> = Vec::new();
    for (position, hash_group) in batch.iter().enumerate().filter(|(_, hash_group)| hash_group.ids.len() > 1) {
        positions.extend(hash_group.ids.iter().map(|id| (*id, position)));
    }
    positions.sort_unstable();
    let mut files: Vec<Vec<GroupFile>> =
        batch.iter().map(|hash_group| Vec::with_capacity(hash_group.ids.len())).collect();
    let mut statement = conn.prepare_cached(match query.sort {
        SortBy::Path => {
            "SELECT f.library_id, f.size_bytes, f.allocated_bytes, f.link_kind, f.inode, r.root_path,
                    f.relative_path
                FROM library_files f JOIN library_roots r ON r.id = f.library_id WHERE f.id = ?1"
        }
        _ => "SELECT library_id, size_bytes, allocated_bytes, link_kind, inode FROM library_files WHERE id = ?1",
    })?;
    for (id, position) in positions {
        let mut rows = statement.query([id])?;
        let (Some(row), Some(files)) = (rows.next()?, files.get_mut(position)) else { continue };
        let bytes = |value: i64| u64::try_from(value).unwrap_or(0);
        let size = bytes(row.get(1)?);
        files.push(GroupFile {
            id,
            root: row.get(0)?,
            size,
            allocated: row.get::<_, Option<i64>>(2)?.map_or(size, bytes),
            links: LinkKind::from_code(row.get(3)?),
            inode: row.get::<_, Option<i64>>(4)?.unwrap_or(0).cast_unsigned(),
            file: id,
            path: match query.sort {
                SortBy::Path => format!("{}/{}", row.get_ref(5)?.as_str()?, row.get_ref(6)?.as_str()?),
                _ => String::new(),
            },
        });
    }
    for (hash_group, mut files) in batch.into_iter().zip(files) {
        let names = shared_names(search, files.iter().map(|file| (file.inode, file.id)))?;
        if !names.is_empty() {
            files.iter_mut().for_each(|file| file.file = file_of(&names, file.id));
        }
        found.extend(summarize(query, hash_group, files));
    }
    Ok(())
}

/// Returns the totals of a group, if it matches the query.
fn summarize(query: &GroupQuery, hash_group: HashGroup, mut files: Vec<GroupFile>) -> Option<GroupSummary> {
    files.retain(|file| query.roots.is_empty() || query.roots.contains(&file.root));
    let size = files.last().map(|last| last.size).filter(|size| *size >= query.min_size)?;
    // For each copy: its allocation, and whether it may be removed. The target of a symbolic link is outside the roots.
    let mut names: Vec<_> =
        files.iter().map(|file| (file.file, file.allocated, file.links != LinkKind::ViaSymlink)).collect();
    names.sort_unstable();
    let (mut copies, mut kept_elsewhere, mut largest, mut reclaimable) = (0_u64, false, 0_u64, 0_u64);
    for names in names.chunk_by(|(a, ..), (b, ..)| a == b) {
        copies += 1;
        if names.iter().all(|(.., removable)| *removable) {
            let allocated = names.first().map_or(0, |(_, allocated, _)| *allocated);
            largest = largest.max(allocated);
            reclaimable = reclaimable.saturating_add(allocated);
        } else {
            kept_elsewhere = true;
        }
    }
    if !kept_elsewhere {
        reclaimable = reclaimable.saturating_sub(largest);
    }
    let spans = files.iter().any(|file| Some(file.root) != files.first().map(|first| first.root));
    let matches_query = copies >= query.min_count.max(2) && (!query.across_roots || spans);
    let ids = files.iter().map(|file| file.id).collect();
    let first = files.into_iter().map(|file| file.path).min().unwrap_or_default();
    let HashGroup { algorithm, hash, .. } = hash_group;
    matches_query.then_some(GroupSummary { algorithm, hash, ids, size, copies, reclaimable, first })
}

fn sort(found: &mut [GroupSummary], by: SortBy) {
    // Largest first. Small files often have equal allocations, so sizes decide; then hashes, for stable pages.
    let number = |group: &GroupSummary| match by {
        SortBy::Reclaimable => (group.reclaimable, group.redundant()),
        SortBy::Count => (group.copies, group.size.saturating_mul(group.copies)),
        SortBy::Size => (group.size, group.copies),
        SortBy::Path => (0, 0),
    };
    found.sort_by(|a, b| {
        let order = number(b).cmp(&number(a)).then_with(|| a.first.cmp(&b.first));
        order.then_with(|| a.algorithm.as_str().cmp(b.algorithm.as_str())).then_with(|| a.hash.cmp(&b.hash))
    });
}

fn with_members(search: &GroupSearch<'_>, group: GroupSummary) -> SqlResult<Group> {
    let mut statement = search.conn.prepare_cached(
        "SELECT f.library_id, f.relative_path, f.size_bytes, f.mtime_ns, f.ctime_ns, f.inode, f.device,
                f.allocated_bytes, f.link_kind, r.root_path
            FROM library_files f JOIN library_roots r ON r.id = f.library_id WHERE f.id = ?1",
    )?;
    let mut named = Vec::with_capacity(group.ids.len());
    for &id in &group.ids {
        let mut rows = statement.query([id])?;
        let Some(row) = rows.next()? else { continue };
        let text: String = row.get(1)?;
        let order = format!("{}/{text}", row.get_ref(9)?.as_str()?);
        let member = Member {
            id,
            root: row.get(0)?,
            path: paths::from_text(&text).into(),
            stat: hashes::stat(row, 2)?,
            linked: false,
        };
        named.push((order, member));
    }
    named.sort_by(|(a, _), (b, _)| a.cmp(b));
    let names = shared_names(search, named.iter().map(|(_, member)| (member.stat.inode, member.id)))?;
    // Other names of a file follow its first name.
    let mut first = HashMap::new();
    let mut placed: Vec<(usize, Member)> = Vec::with_capacity(named.len());
    for (position, (_, mut member)) in named.into_iter().enumerate() {
        let at = *first.entry(file_of(&names, member.id)).or_insert(position);
        member.linked = at != position;
        placed.push((at, member));
    }
    placed.sort_by_key(|(at, _)| *at);
    let members = placed.into_iter().map(|(_, member)| member).collect();
    let redundant = group.redundant();
    let GroupSummary { algorithm, hash, size, copies, reclaimable, .. } = group;
    Ok(Group { algorithm, hash, size, copies, reclaimable, redundant, members })
}
