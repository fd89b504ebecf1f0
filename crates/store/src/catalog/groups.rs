//! Groups of files with the same content.
//!
//! Owns the definition of a group: present files with the same hash of the same algorithm; and empty files. Several
//! names of one file are one copy. Reclaimable is the allocated size of all copies except one.
//!
//! | module | owns |
//! |---|---|
//! | `evaluate` | the numbers of a group, from the rows of its files |
//! | `table` | the table `duplicate_groups`, which has one row for each group |
//! | `order` | the statements that read the table in each order, from a cursor on |
//! | `cursor` | keys of groups, and cursors as text |
//! | `filter` | filters by the files of a group |
//! | `select` | the groups that match a query, whole or by page |
//! | `marks` | cursors at regular distances |
//! | `ignored` | groups that the user does not want to see |

mod cursor;
mod evaluate;
mod filter;
mod ignored;
mod marks;
mod order;
mod select;
mod table;

use std::path::{Path, PathBuf};

pub(super) use self::cursor::BASE64;
pub use self::cursor::GroupKey;
pub use self::filter::{FileFilter, FileType, PathTest};
pub use self::ignored::Ignored;
pub use self::marks::{GroupMarks, MarksCache};
pub(super) use self::table::{DirectWrites, count_wrong, mark_all_changed, refresh};
pub use self::table::{GroupState, Refreshed};
use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};

use super::{Catalog, LinkKind, Stat};
use crate::Page;
use crate::error::{Error, Result};
use crate::options::options;
use crate::paths;
use crate::sqlite::WriteKind;
use crate::time::UtcTime;

options! {
    /// Filter and order of groups.
    #[derive(Clone, Debug)]
    pub struct GroupQuery {
        /// Order of the groups.
        pub sort: SortBy = SortBy::Reclaimable,
        /// Minimum number of copies. With 1, several names of one file are a group, too.
        pub min_count: u64 = 2,
        /// Minimum file size in bytes. With 0, empty files are a group, too.
        pub min_size: u64 = 1,
        /// Only files of these roots, and those in reference folders; all files if empty. Others do not count as copies.
        pub roots: Vec<i64> = Vec::new(),
        /// Only groups with a file in this root. Files of other roots count as copies.
        pub in_root: Option<i64> = None,
        /// Only groups with files in several roots.
        pub across_roots: bool = false,
        /// Only groups with a file that matches.
        pub files: FileFilter = FileFilter::default(),
        /// Absolute paths of folders: only files that have a copy below one of them, and are below none.
        pub reference: Vec<PathBuf> = Vec::new(),
        /// Whether only files with the same name count as copies.
        pub match_names: bool = false,
        /// Whether groups that the user ignores are listed.
        pub ignored: Ignored = Ignored::Hidden,
        /// Maximum number of groups.
        pub limit: usize = usize::MAX,
        /// Number of groups to skip.
        pub offset: usize = 0,
    }
}

impl GroupQuery {
    /// Whether some files of a group do not count, so that its numbers are not those of the table.
    fn changes_groups(&self) -> bool {
        !self.roots.is_empty() || !self.reference.is_empty() || self.match_names
    }

    /// Whether the files of each group have to be read.
    fn reads_files(&self) -> bool {
        self.changes_groups() || !self.files.is_empty()
    }
}

/// Sort order of groups. Groups that are equal in it are sorted by algorithm and hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SortBy {
    /// By reclaimable bytes, then by the size of all copies except one; largest first.
    Reclaimable,
    /// By number of files, then by their total size; largest first. The order of the protocol.
    Count,
    /// By file size, then by number of copies; largest first.
    Size,
    /// By the path of the first file.
    Path,
}

impl SortBy {
    /// All orders.
    pub const ALL: [SortBy; 4] = [SortBy::Reclaimable, SortBy::Count, SortBy::Size, SortBy::Path];
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
    /// Number of groups that are hidden because the user ignores them, whether or not they match.
    pub ignored: u64,
    /// Whether the groups are up to date. They are not if files have changed and the groups could not be evaluated
    /// again: the database is read-only, another process writes it, or the disk is full.
    pub state: GroupState,
}

/// Files with the same content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Identity of the content.
    pub key: GroupKey,
    /// Size of each file in bytes.
    pub size: u64,
    /// Number of copies; several names of one file are one copy.
    pub copies: u64,
    /// Allocated bytes freed if only the copy with the largest allocation is kept. A symlink's target is kept, too.
    pub reclaimable: u64,
    /// Total size of all copies except one.
    pub redundant: u64,
    /// Whether the user ignores it.
    pub ignored: bool,
    /// Names by root and path; names of one file are adjacent.
    pub members: Vec<Member>,
    /// Names in reference folders, whose files are kept.
    pub kept: Vec<Member>,
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

/// A group without its files, as the table has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupSummary {
    /// Identity of the content.
    pub key: GroupKey,
    /// Size of each file in bytes.
    pub size: u64,
    /// Number of file names.
    pub file_count: u64,
    /// Sum of the sizes of all file names.
    pub total_size: u64,
    /// Number of copies; several names of one file are one copy.
    pub copies: u64,
    /// Allocated bytes freed if only one copy is kept.
    pub reclaimable: u64,
    /// Total size of all copies except one.
    pub redundant: u64,
    /// Number of roots with a file of the group.
    pub roots: u64,
    /// Lowest row id among the files.
    pub sample_file_id: i64,
    /// First absolute path, encoded as in the database.
    first_path: String,
    /// Whether the user ignores it.
    pub ignored: bool,
}

/// As the protocol's answers have it, with additions at the end.
impl Serialize for GroupSummary {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_struct("GroupSummary", 11)?;
        fields.serialize_field("group_key", &self.key.to_string())?;
        fields.serialize_field("hash_algorithm", &self.key.algorithm)?;
        fields.serialize_field("content_hash_hex", &self.key.hash_hex())?;
        fields.serialize_field("file_count", &self.file_count)?;
        fields.serialize_field("total_size_bytes", &self.total_size)?;
        fields.serialize_field("duplicate_waste_bytes", &self.total_size.saturating_sub(self.size))?;
        fields.serialize_field("sample_file_id", &self.sample_file_id)?;
        fields.serialize_field("size_bytes", &self.size)?;
        fields.serialize_field("copies", &self.copies)?;
        fields.serialize_field("reclaimable_bytes", &self.reclaimable)?;
        fields.serialize_field("ignored", &self.ignored)?;
        fields.end()
    }
}

/// As the protocol's answers have it, with additions at the end. JavaScript cannot represent `mtime_ns` exactly, so
/// `modified_at` has the time as text.
impl Serialize for GroupFile {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_struct("GroupFile", 8)?;
        fields.serialize_field("file_id", &self.id)?;
        fields.serialize_field("library_id", &self.root)?;
        fields.serialize_field("library_name", &self.root_name)?;
        fields.serialize_field("relative_path", &paths::to_text(self.path.as_os_str()))?;
        fields.serialize_field("size_bytes", &self.stat.size)?;
        fields.serialize_field("mtime_ns", &self.stat.mtime_ns)?;
        fields.serialize_field("hashed_at", &self.hashed_at)?;
        fields.serialize_field("modified_at", &UtcTime::from_micros(self.stat.mtime_ns.div_euclid(1_000)))?;
        fields.end()
    }
}

/// A page of groups without their files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupPage {
    /// Groups, and the cursor of the next page.
    pub page: Page<GroupSummary>,
    /// Whether the groups are up to date.
    pub state: GroupState,
}

/// Totals of all groups with several copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupTotals {
    /// Number of groups.
    pub groups: u64,
    /// Number of file names in all groups.
    pub files: u64,
    /// Reclaimable allocated bytes of all groups.
    pub reclaimable: u64,
    /// Whether the groups are up to date.
    pub state: GroupState,
}

/// A file of a group, as the protocol lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupFile {
    /// Id of the file's row.
    pub id: i64,
    /// Id of its root.
    pub root: i64,
    /// Name of its root.
    pub root_name: String,
    /// Path relative to the root.
    pub path: PathBuf,
    /// Metadata when it was last seen.
    pub stat: Stat,
    /// When its hash was stored; `None` for an empty file, which has none.
    pub hashed_at: Option<UtcTime>,
}

impl Catalog<'_> {
    /// Returns groups with their files, and totals of all matching groups. Evaluates changed groups first.
    pub fn groups(self, query: &GroupQuery) -> Result<Groups> {
        self.refresh_if_possible()?;
        // In one transaction, for one snapshot and because SQLite would otherwise lock the file for each row.
        self.0.read(|db| {
            db.with_conn(|conn| {
                let transaction = conn.unchecked_transaction()?;
                Ok(Groups { state: table::state(&transaction)?, ..select::whole(&transaction, query)? })
            })
        })
    }

    /// Returns the groups after a cursor, without their files. Reads the table as it is: [`Catalog::refresh_groups`]
    /// brings it up to date. The limit is that of the query, its offset is not used.
    pub fn group_page(self, query: &GroupQuery, after: Option<&str>) -> Result<GroupPage> {
        if query.changes_groups() {
            return Err(Error::Invalid("a page cannot leave out some files of a group".to_owned()));
        }
        let after = after.map(|text| cursor::GroupCursor::parse(query.sort, text)).transpose()?;
        self.0.read(|db| {
            db.with_conn(|conn| {
                let transaction = conn.unchecked_transaction()?;
                let page = select::page(&transaction, query, after.as_ref())?;
                Ok(GroupPage { page, state: table::state(&transaction)? })
            })
        })
    }

    /// Returns the files of a group by row id, after the id `after`; an unknown group has none.
    pub fn group_files(self, key: &GroupKey, after: Option<&str>, limit: usize) -> Result<Page<GroupFile>> {
        let after = match after {
            None => 0,
            Some(text) => cursor::file_id(text)?,
        };
        let files = self.0.read(|db| db.with_conn(|conn| evaluate::files_after(conn, key, after, limit)))?;
        Ok(Page::from_rows(files, limit, |file| file.id.to_string()))
    }

    /// Returns the number of matching groups, and the cursor after every `every`th of them. The answer is kept until
    /// groups change.
    pub fn group_marks(self, query: &GroupQuery, every: usize) -> Result<GroupMarks> {
        if query.changes_groups() {
            return Err(Error::Invalid("marks cannot leave out some files of a group".to_owned()));
        }
        self.0.read(|db| db.with_conn(|conn| self.0.marks().get(&*conn.unchecked_transaction()?, query, every.max(1))))
    }

    /// Returns the totals of all groups with several copies, of the last evaluation. Ignored groups count.
    pub fn group_totals(self) -> Result<GroupTotals> {
        self.0.read(|db| {
            db.with_conn(|conn| {
                let transaction = conn.unchecked_transaction()?;
                let totals = table::totals(&transaction)?;
                Ok(GroupTotals {
                    groups: totals.groups.unsigned_abs(),
                    files: totals.files.unsigned_abs(),
                    reclaimable: totals.reclaimable.unsigned_abs(),
                    state: table::state(&transaction)?,
                })
            })
        })
    }

    /// Evaluates the groups whose files have changed since the last refresh.
    pub fn refresh_groups(self) -> Result<Refreshed> {
        self.0.write(WriteKind::Compound, refresh)
    }

    /// Brings the groups up to date if possible.
    fn refresh_if_possible(self) -> Result<()> {
        let state = self.0.read(|db| db.with_conn(table::state))?;
        if state.is_current || self.0.is_read_only() {
            return Ok(());
        }
        match self.refresh_groups() {
            // Another process is writing, or the disk is full: the list may help to free space.
            Err(error) if error.is_transient() => Ok(()),
            result => result.map(drop),
        }
    }

    /// Returns the group of a file, by its path relative to the root. `None` if the catalog does not have the file, or
    /// no other file was ever known to have its content.
    pub fn group_of(self, root: i64, path: &Path) -> Result<Option<GroupKey>> {
        let folder = paths::to_text(path.parent().unwrap_or(Path::new("")).as_os_str());
        let path = paths::to_text(path.as_os_str());
        self.0.read(|db| db.with_conn(|conn| evaluate::key_of(conn, root, &folder, &path)))
    }

    /// Hides a group in later lists, or shows it again. Returns whether that changed anything. The group needs no files
    /// now: the content is ignored whenever it has copies.
    pub fn ignore_group(self, key: GroupKey, ignored: bool) -> Result<bool> {
        self.0.write(WriteKind::Compound, move |db| ignored::set(db, &key, ignored))
    }
}
