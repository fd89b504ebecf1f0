//! The statements that read the table of groups in each order.
//!
//! Owns the columns and the index of each order. A statement begins at a cursor and follows the index, so a page costs
//! the same at every position. SQL has no comparison of several columns in mixed directions, so the rows after a cursor
//! are read in parts: first those that differ in the last column only, then those that differ in the last two, and so
//! on. Each part is a range of the index.

use super::cursor::{GroupCursor, GroupKey};
use super::{GroupQuery, GroupSummary, Ignored, SortBy};
use crate::rows::column;
use crate::sqlite::{Row, SqlResult, ToSql, ToSqlOutput};

/// A column by which groups are sorted.
pub(super) struct KeyColumn {
    pub(super) name: &'static str,
    descending: bool,
    pub(super) kind: KeyKind,
}

/// Type of a column, and where its value is in a group.
#[derive(Clone, Copy)]
pub(super) enum KeyKind {
    Number(fn(&GroupSummary) -> u64),
    Path,
    Algorithm,
    Hash,
}

/// A value by which a group is sorted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum KeyValue {
    Number(i64),
    Text(String),
    Hash(Vec<u8>),
}

impl KeyColumn {
    const fn largest_first(name: &'static str, number: fn(&GroupSummary) -> u64) -> Self {
        KeyColumn { name, descending: true, kind: KeyKind::Number(number) }
    }

    pub(super) fn value(&self, group: &GroupSummary) -> KeyValue {
        match self.kind {
            KeyKind::Number(number) => KeyValue::Number(i64::try_from(number(group)).unwrap_or(i64::MAX)),
            KeyKind::Path => KeyValue::Text(group.first_path.clone()),
            KeyKind::Algorithm => KeyValue::Text(group.key.algorithm.as_str().to_owned()),
            KeyKind::Hash => KeyValue::Hash(group.key.hash.clone()),
        }
    }
}

impl ToSql for KeyValue {
    fn to_sql(&self) -> SqlResult<ToSqlOutput<'_>> {
        match self {
            KeyValue::Number(number) => number.to_sql(),
            KeyValue::Text(text) => text.to_sql(),
            KeyValue::Hash(hash) => hash.to_sql(),
        }
    }
}

const ALGORITHM: KeyColumn = KeyColumn { name: "hash_algorithm", descending: false, kind: KeyKind::Algorithm };
const HASH: KeyColumn = KeyColumn { name: "content_hash", descending: false, kind: KeyKind::Hash };
const PATH: KeyColumn = KeyColumn { name: "first_path", descending: false, kind: KeyKind::Path };

impl SortBy {
    /// Returns the columns of the order; the last two are the primary key, with which every index ends.
    pub(super) fn columns(self) -> &'static [KeyColumn] {
        const RECLAIMABLE: &[KeyColumn] = &[
            KeyColumn::largest_first("reclaimable_bytes", |group| group.reclaimable),
            KeyColumn::largest_first("redundant_bytes", |group| group.redundant),
            ALGORITHM,
            HASH,
        ];
        const COUNT: &[KeyColumn] = &[
            KeyColumn::largest_first("file_count", |group| group.file_count),
            KeyColumn::largest_first("total_size_bytes", |group| group.total_size),
            ALGORITHM,
            HASH,
        ];
        const SIZE: &[KeyColumn] = &[
            KeyColumn::largest_first("size_bytes", |group| group.size),
            KeyColumn::largest_first("copies", |group| group.copies),
            ALGORITHM,
            HASH,
        ];
        const BY_PATH: &[KeyColumn] = &[PATH, ALGORITHM, HASH];
        match self {
            SortBy::Reclaimable => RECLAIMABLE,
            SortBy::Count => COUNT,
            SortBy::Size => SIZE,
            SortBy::Path => BY_PATH,
        }
    }

    fn index(self) -> &'static str {
        match self {
            SortBy::Reclaimable => "ix_duplicate_groups_reclaimable",
            SortBy::Count => "ix_duplicate_groups_count",
            SortBy::Size => "ix_duplicate_groups_size",
            SortBy::Path => "ix_duplicate_groups_path",
        }
    }
}

const COLUMNS: &str = "g.hash_algorithm, g.content_hash, g.size_bytes, g.file_count, g.total_size_bytes, g.copies,
    g.reclaimable_bytes, g.redundant_bytes, g.root_count, g.sample_file_id, g.first_path,
    EXISTS (SELECT 1 FROM ignored_groups i
        WHERE i.hash_algorithm = g.hash_algorithm AND i.content_hash = g.content_hash) AS ignored";

const IS_IGNORED: &str = "EXISTS (SELECT 1 FROM ignored_groups i
    WHERE i.hash_algorithm = g.hash_algorithm AND i.content_hash = g.content_hash)";

/// A condition of groups, with its parameters.
pub(super) struct Condition {
    pub(super) sql: String,
    pub(super) values: Vec<i64>,
}

/// Returns the condition of the query on the rows of the table. A query that changes groups tests their numbers itself,
/// because they become smaller, never larger.
pub(super) fn condition(query: &GroupQuery) -> Condition {
    let signed = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let mut sql = "g.copies >= ?1 AND g.size_bytes >= ?2".to_owned();
    let mut values = vec![signed(query.min_count), signed(query.min_size)];
    if query.across_roots {
        sql.push_str(" AND g.root_count > 1");
    }
    match query.ignored {
        Ignored::Hidden => sql.push_str(&format!(" AND NOT {IS_IGNORED}")),
        Ignored::Only => sql.push_str(&format!(" AND {IS_IGNORED}")),
        Ignored::Included => {}
    }
    if let Some(root) = query.in_root {
        values.push(root);
        let number = values.len();
        sql.push_str(&format!(
            " AND EXISTS (SELECT 1 FROM library_files f INDEXED BY ix_library_files_dedup_group
                WHERE f.is_missing = 0 AND f.needs_hash = 0 AND f.hash_algorithm = g.hash_algorithm
                    AND f.content_hash = g.content_hash AND f.library_id = ?{number}
                UNION ALL SELECT 1 FROM library_files f INDEXED BY ix_library_files_empty
                WHERE g.size_bytes = 0 AND f.size_bytes = 0 AND f.library_id = ?{number}
                    AND f.is_missing = 0 AND f.excluded_at IS NULL)"
        ));
    }
    Condition { sql, values }
}

/// A statement that reads groups in order.
pub(super) struct Select {
    pub(super) sql: String,
    /// Number of values of the cursor that it takes after those of the condition.
    pub(super) key_values: usize,
}

/// Returns the statements that together read the groups after a cursor in order, or all groups.
pub(super) fn selects(sort: SortBy, condition: &Condition, after: Option<&GroupCursor>) -> Vec<Select> {
    let columns = sort.columns();
    let order: Vec<String> = columns
        .iter()
        .map(|column| format!("g.{}{}", column.name, if column.descending { " DESC" } else { "" }))
        .collect();
    let (index, order) = (sort.index(), order.join(", "));
    let select = |range: &str, key_values: usize| Select {
        sql: format!(
            "SELECT {COLUMNS} FROM duplicate_groups g INDEXED BY {index} WHERE {}{range} ORDER BY {order}",
            condition.sql
        ),
        key_values,
    };
    if after.is_none() {
        return vec![select("", 0)];
    }
    let first = condition.values.len() + 1;
    let part = |(last, column): (usize, &KeyColumn)| {
        let equal = columns.iter().take(last).enumerate();
        let mut range: String =
            equal.map(|(number, column)| format!(" AND g.{} = ?{}", column.name, first + number)).collect();
        let sign = if column.descending { '<' } else { '>' };
        range.push_str(&format!(" AND g.{} {sign} ?{}", column.name, first + last));
        select(&range, last + 1)
    };
    columns.iter().enumerate().rev().map(part).collect()
}

/// Reads a row of [`COLUMNS`].
pub(super) fn read(row: &Row<'_>) -> SqlResult<GroupSummary> {
    let number = |index: usize| row.get::<_, i64>(index).map(|number| u64::try_from(number).unwrap_or(0));
    Ok(GroupSummary {
        key: GroupKey { algorithm: column(row, "hash_algorithm")?, hash: row.get(1)? },
        size: number(2)?,
        file_count: number(3)?,
        total_size: number(4)?,
        copies: number(5)?,
        reclaimable: number(6)?,
        redundant: number(7)?,
        roots: number(8)?,
        sample_file_id: row.get(9)?,
        first_path: row.get(10)?,
        ignored: row.get(11)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Store;
    use crate::catalog::Algorithm;

    /// Returns the plan of each statement for a query.
    fn plans(store: &Store, query: &GroupQuery, after: Option<&GroupCursor>) -> Vec<String> {
        let condition = condition(query);
        let explain = |select: &Select| {
            let plan = store.read(|db| {
                db.with_conn(|conn| {
                    let mut statement = conn.prepare(&format!("EXPLAIN QUERY PLAN {}", select.sql))?;
                    let rows = statement.raw_query().mapped(|row| row.get::<_, String>(3));
                    Ok(rows.collect::<SqlResult<Vec<_>>>()?.join("; "))
                })
            });
            plan.unwrap()
        };
        selects(query.sort, &condition, after).iter().map(explain).collect()
    }

    #[test]
    fn no_page_sorts_or_groups_rows() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path().join("t.db")).unwrap();
        let group = GroupSummary {
            key: GroupKey { algorithm: Algorithm::Blake3, hash: vec![1; 32] },
            size: 1,
            file_count: 2,
            total_size: 2,
            copies: 2,
            reclaimable: 1,
            redundant: 1,
            roots: 1,
            sample_file_id: 1,
            first_path: "/a".to_owned(),
            ignored: false,
        };
        for sort in SortBy::ALL {
            let order = GroupQuery::default().sort(sort);
            let queries = [
                order.clone(),
                order.clone().min_size(0).min_count(1),
                order.clone().across_roots(true),
                order.clone().in_root(Some(1)),
                order.clone().ignored(Ignored::Only),
                order.clone().ignored(Ignored::Included).in_root(Some(2)).across_roots(true).min_size(5),
            ];
            let after = GroupCursor::after(sort, &group);
            for (query, after) in queries.iter().flat_map(|query| [(query, None), (query, Some(&after))]) {
                for plan in plans(&store, query, after) {
                    // Without a cursor the index is read from its start, otherwise from the cursor on.
                    let step = if after.is_some() { "SEARCH g" } else { "g" };
                    let follows_index = plan.contains(&format!("{step} USING INDEX {}", sort.index()));
                    let other_scans = ["TEMP B-TREE", "SCAN f", "SCAN i"].iter().any(|step| plan.contains(step));
                    assert!(follows_index && !other_scans, "{query:?}: {plan}");
                }
            }
        }
    }
}
