//! The table of groups, and how it follows the files.
//!
//! Owns `duplicate_groups`, its state and the list of changed groups. Triggers note the groups whose files change,
//! whichever program changes them; a refresh evaluates those groups again. In a first scan every file would be noted,
//! so a large batch marks the whole table for a rebuild instead, and runs without triggers from then on.

use super::GroupSummary;
use super::cursor::GroupKey;
use super::evaluate::Evaluator;
use crate::catalog::{Algorithm, signed};
use crate::error::Result;
use crate::rows::column;
use crate::sqlite::schema;
use crate::sqlite::{Connection, Db, Params, SqlResult, params};
use crate::time::UtcTime;

/// New files in a batch from which all groups are evaluated again: noting each changed group would cost more.
const REBUILD_BATCH: usize = 4_096;

/// Rows of a batch from which turning off triggers costs less than running them.
const MIN_DIRECT_ROWS: usize = 64;

/// A refresh evaluates all groups if more than one in this many has changed, and more than `MIN_REBUILD`.
const REBUILD_SHARE: i64 = 4;
const MIN_REBUILD: i64 = 10_000;

/// How the table of groups relates to the files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupState {
    /// Whether no file has changed since the groups were evaluated.
    pub is_current: bool,
    /// Grows when a group changes, or is ignored.
    pub version: i64,
    /// When the groups were evaluated; `None` if never.
    pub refreshed_at: Option<UtcTime>,
}

/// What a refresh did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refreshed {
    /// Number of groups that were evaluated.
    pub evaluated: u64,
    /// Whether these are all groups.
    pub rebuilt: bool,
}

/// Totals of all groups with several copies of non-empty files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Totals {
    pub(super) groups: i64,
    pub(super) files: i64,
    pub(super) reclaimable: i64,
    pub(super) redundant: i64,
}

impl Totals {
    /// Adds the group, or removes it if `sign` is -1.
    fn add(&mut self, group: &GroupNumbers, sign: i64) {
        if group.copies > 1 && group.size > 0 {
            self.groups += sign;
            self.files += sign * group.files;
            self.reclaimable = self.reclaimable.saturating_add(sign * group.reclaimable);
            self.redundant = self.redundant.saturating_add(sign * group.redundant);
        }
    }
}

/// The numbers of a group that count in the totals.
struct GroupNumbers {
    size: i64,
    copies: i64,
    files: i64,
    reclaimable: i64,
    redundant: i64,
}

impl GroupNumbers {
    fn of(group: &GroupSummary) -> Self {
        GroupNumbers {
            size: signed(group.size),
            copies: signed(group.copies),
            files: signed(group.file_count),
            reclaimable: signed(group.reclaimable),
            redundant: signed(group.redundant),
        }
    }
}

pub(super) fn state(conn: &Connection) -> SqlResult<GroupState> {
    let sql = "SELECT needs_rebuild = 0 AND NOT EXISTS (SELECT 1 FROM changed_groups), version, refreshed_at
        FROM duplicate_group_state";
    conn.prepare_cached(sql)?.query_row([], |row| {
        let (is_current, version, refreshed_at) = (row.get(0)?, row.get(1)?, column(row, "refreshed_at")?);
        Ok(GroupState { is_current, version, refreshed_at })
    })
}

pub(super) fn totals(conn: &Connection) -> SqlResult<Totals> {
    let sql = "SELECT groups, files, reclaimable_bytes, redundant_bytes FROM duplicate_group_state";
    conn.prepare_cached(sql)?.query_row([], |row| {
        Ok(Totals { groups: row.get(0)?, files: row.get(1)?, reclaimable: row.get(2)?, redundant: row.get(3)? })
    })
}

/// Evaluates the changed groups, in the transaction of the writer.
pub(in crate::catalog) fn refresh(db: &Db<'_>) -> Result<Refreshed> {
    let needs_rebuild = db.number("SELECT needs_rebuild FROM duplicate_group_state", [])? != 0;
    let changed = db.number("SELECT count(*) FROM changed_groups", [])?;
    if !needs_rebuild && changed == 0 {
        return Ok(Refreshed::default());
    }
    let groups = db.number("SELECT groups FROM duplicate_group_state", [])?;
    let rebuilds = needs_rebuild || changed > MIN_REBUILD.max(groups / REBUILD_SHARE);
    let (evaluated, totals) = if rebuilds { rebuild(db)? } else { evaluate_changed(db)? };
    db.execute("DELETE FROM changed_groups", [])?;
    let sql = "UPDATE duplicate_group_state SET needs_rebuild = 0, version = version + 1, refreshed_at = ?1,
        groups = ?2, files = ?3, reclaimable_bytes = ?4, redundant_bytes = ?5";
    db.execute(sql, params![db.now(), totals.groups, totals.files, totals.reclaimable, totals.redundant])?;
    Ok(Refreshed { evaluated, rebuilt: rebuilds })
}

fn rebuild(db: &Db<'_>) -> Result<(u64, Totals)> {
    db.execute("DELETE FROM duplicate_groups", [])?;
    db.batch(schema::DROP_GROUP_INDEXES)?;
    let (mut evaluated, mut totals) = (0, Totals::default());
    db.with_conn(|conn| {
        Evaluator::new(conn)?.all(|group| {
            evaluated += 1;
            insert(conn, group, &mut totals)
        })
    })?;
    db.batch(schema::GROUP_INDEXES)?;
    Ok((evaluated, totals))
}

fn evaluate_changed(db: &Db<'_>) -> Result<(u64, Totals)> {
    // Other programs may write algorithms that this version does not know.
    let keys: Vec<Option<GroupKey>> =
        db.rows("SELECT hash_algorithm, content_hash FROM changed_groups", [], |row| {
            let (algorithm, hash) = (Algorithm::parse(row.get_ref(0)?.as_str()?), row.get(1)?);
            Ok(algorithm.map(|algorithm| GroupKey { algorithm, hash }))
        })?;
    let keys: Vec<GroupKey> = keys.into_iter().flatten().collect();
    db.with_conn(|conn| {
        let mut totals = totals(conn)?;
        let evaluator = Evaluator::new(conn)?;
        let sql = "DELETE FROM duplicate_groups WHERE hash_algorithm = ?1 AND content_hash = ?2
            RETURNING size_bytes, copies, file_count, reclaimable_bytes, redundant_bytes";
        let mut delete = conn.prepare_cached(sql)?;
        for key in &keys {
            let before = delete.query_map((key.algorithm.as_str(), &key.hash), |row| {
                let (size, copies, files) = (row.get(0)?, row.get(1)?, row.get(2)?);
                Ok(GroupNumbers { size, copies, files, reclaimable: row.get(3)?, redundant: row.get(4)? })
            })?;
            for before in before.collect::<SqlResult<Vec<_>>>()? {
                totals.add(&before, -1);
            }
            if let Some(group) = evaluator.one(key)? {
                insert(conn, &group, &mut totals)?;
            }
        }
        Ok((keys.len() as u64, totals))
    })
}

fn insert(conn: &Connection, group: &GroupSummary, totals: &mut Totals) -> SqlResult<()> {
    let numbers = GroupNumbers::of(group);
    totals.add(&numbers, 1);
    let sql = "INSERT INTO duplicate_groups (hash_algorithm, content_hash, size_bytes, file_count, total_size_bytes,
            copies, reclaimable_bytes, redundant_bytes, root_count, sample_file_id, first_path)
        VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)";
    conn.prepare_cached(sql)?.execute(values(group, &numbers))?;
    Ok(())
}

/// Returns the values of a row, in the order of its columns.
fn values<'a>(group: &'a GroupSummary, numbers: &GroupNumbers) -> impl Params + use<'a> {
    let GroupNumbers { size, copies, files, reclaimable, redundant } = *numbers;
    (
        group.key.algorithm.as_str(),
        &group.key.hash,
        size,
        files,
        signed(group.total_size),
        copies,
        reclaimable,
        redundant,
        signed(group.roots),
        group.sample_file_id,
        &group.first_path,
    )
}

/// Returns the number of groups whose row is missing, wrong or superfluous. Changed groups are not wrong: the next list
/// evaluates them.
pub(in crate::catalog) fn count_wrong(db: &Db<'_>) -> Result<i64> {
    db.with_conn(|conn| {
        if !state(conn)?.is_current {
            return Ok(0);
        }
        let sql = "SELECT count(*) FROM duplicate_groups WHERE hash_algorithm = ?1 AND content_hash = ?2
            AND (size_bytes, file_count, total_size_bytes, copies, reclaimable_bytes, redundant_bytes, root_count,
                sample_file_id, first_path) = (?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)";
        let mut statement = conn.prepare_cached(sql)?;
        let (mut right, mut wrong, mut sums) = (0, 0, Totals::default());
        Evaluator::new(conn)?.all(|group| {
            let numbers = GroupNumbers::of(group);
            sums.add(&numbers, 1);
            let is_right: i64 = statement.query_row(values(group, &numbers), |row| row.get(0))?;
            right += is_right;
            wrong += 1 - is_right;
            Ok(())
        })?;
        let rows: i64 = conn.query_row("SELECT count(*) FROM duplicate_groups", [], |row| row.get(0))?;
        Ok((rows - right).max(wrong) + i64::from(sums != totals(conn)?))
    })
}

/// Marks all groups as changed.
pub(in crate::catalog) fn mark_all_changed(db: &Db<'_>) -> Result<()> {
    db.execute("UPDATE duplicate_group_state SET needs_rebuild = 1", [])?;
    db.execute("DELETE FROM changed_groups", []).map(drop)
}

/// Turns off triggers for a batch, if all groups are going to be evaluated again. No batch relies on the other triggers
/// of Gristmill. If another program has added one, all stay on. Without any, SQLite inserts several rows with one
/// statement in half of the time.
pub(in crate::catalog) struct DirectWrites<'a>(Option<&'a Db<'a>>);

impl<'a> DirectWrites<'a> {
    /// `new_files`: number of files that the batch inserts; `rows`: number of rows of files that it writes.
    pub(in crate::catalog) fn begin(db: &'a Db<'a>, (new_files, rows): (usize, usize)) -> Result<Self> {
        if new_files > REBUILD_BATCH {
            mark_all_changed(db)?;
        }
        let sql =
            format!("SELECT needs_rebuild AND NOT ({}) FROM duplicate_group_state", schema::has_foreign_triggers());
        let is_direct = rows > MIN_DIRECT_ROWS && db.number(&sql, [])? > 0;
        if is_direct {
            db.with_conn(|conn| crate::sqlite::enable_triggers(conn, false))?;
        }
        Ok(DirectWrites(is_direct.then_some(db)))
    }
}

impl Drop for DirectWrites<'_> {
    fn drop(&mut self) {
        if let Some(db) = self.0
            && let Err(error) = db.with_conn(|conn| crate::sqlite::enable_triggers(conn, true))
        {
            tracing::error!(%error, "cannot turn on triggers again");
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::Store;
    use crate::catalog::{GroupQuery, Groups};
    use crate::sqlite::WriteKind;

    fn sql(store: &Store, sql: impl Into<String>) {
        let sql = sql.into();
        store.write(WriteKind::Compound, move |db| db.batch(&sql)).unwrap();
    }

    fn number(store: &Store, sql: &'static str) -> i64 {
        store.read(|db| db.number(sql, [])).unwrap()
    }

    fn groups(store: &Store) -> Groups {
        store.catalog().groups(&GroupQuery::default()).unwrap()
    }

    /// Inserts two files for each number, with the number as content and a path of 1,000 characters.
    fn insert_pairs(store: &Store, from: u32, to: u32) {
        sql(
            store,
            format!(
                "WITH RECURSIVE n(i) AS (VALUES ({from} * 2) UNION ALL SELECT i + 1 FROM n WHERE i < {to} * 2 - 1)
                INSERT INTO library_files (library_id, folder_id, relative_path, size_bytes, mtime_ns, inode, device,
                    is_missing, needs_hash, hash_algorithm, content_hash)
                SELECT 1, 1, printf('%01000d', i), 10, i, i + 1, 7, 0, 0, 'blake3', CAST(printf('%032d', i / 2) AS BLOB) FROM n"
            ),
        );
    }

    #[test]
    fn full_disk_leaves_the_earlier_groups_until_there_is_space() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path().join("t.db")).unwrap();
        sql(
            &store,
            "INSERT INTO library_roots (id, name, root_path) VALUES (1, 'r', '/r');
            INSERT INTO folders (id, library_id, relative_path) VALUES (1, 1, '');",
        );
        insert_pairs(&store, 0, 10);
        assert_eq!(groups(&store).total, 10);
        let indexes = "SELECT count(*) FROM sqlite_schema WHERE tbl_name = 'duplicate_groups'";
        let indexes_before = number(&store, indexes);
        for rebuild in [0, 1] {
            let before = groups(&store).total;
            insert_pairs(&store, 100 * rebuild + 100, 100 * rebuild + 150);
            sql(&store, format!("UPDATE duplicate_group_state SET needs_rebuild = {rebuild}"));
            sql(&store, "PRAGMA max_page_count = 1");
            for _ in 0..2 {
                let found = groups(&store);
                assert_eq!((found.total, found.state.is_current), (before, false), "rebuild {rebuild}");
                assert_eq!(number(&store, indexes), indexes_before);
            }
            sql(&store, "PRAGMA max_page_count = 1000000");
            let found = groups(&store);
            assert_eq!((found.total, found.state.is_current), (before + 50, true), "rebuild {rebuild}");
        }
    }
}
