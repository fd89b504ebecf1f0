//! The groups that match a query.
//!
//! Owns how the table, the filters by files and the limits work together. Groups of which all files count are read in
//! order and need no sorting. If some files do not count, the numbers of the groups change: all matching groups are
//! collected, and sorted.

use std::cmp::Reverse;
use std::collections::HashSet;
use std::ops::ControlFlow;

use super::cursor::GroupCursor;
use super::evaluate::{Evaluator, GroupMember, summarize};
use super::{Group, GroupQuery, GroupSummary, Groups, Ignored, SortBy, filter, order, table};
use crate::Page;
use crate::sqlite::{Connection, SqlResult, ToSql};

/// Calls `visit` with the groups of the table that match, in order, until it breaks. A group of which no file
/// matches is skipped; files that do not count are not left out.
pub(super) fn for_each(
    conn: &Connection,
    query: &GroupQuery,
    after: Option<&GroupCursor>,
    mut visit: impl FnMut(GroupSummary) -> SqlResult<ControlFlow<()>>,
) -> SqlResult<()> {
    let evaluator = if query.reads_files() { Some(Evaluator::new(conn)?) } else { None };
    let condition = order::condition(query);
    for select in order::selects(query.sort, &condition, after) {
        let mut values: Vec<&dyn ToSql> = condition.values.iter().map(|value| value as &dyn ToSql).collect();
        let keys = after.map(|cursor| cursor.values.as_slice()).unwrap_or_default();
        values.extend(keys.iter().take(select.key_values).map(|value| value as &dyn ToSql));
        let mut statement = conn.prepare_cached(&select.sql)?;
        let mut rows = statement.query(values.as_slice())?;
        while let Some(row) = rows.next()? {
            let group = order::read(row)?;
            if let Some(evaluator) = evaluator.as_ref().filter(|_| !query.changes_groups())
                && filter::copies(query, &evaluator.members(&group.key)?).is_empty()
            {
                continue;
            }
            if visit(group)?.is_break() {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// Returns the page of groups after a cursor.
pub(super) fn page(
    conn: &Connection,
    query: &GroupQuery,
    after: Option<&GroupCursor>,
) -> SqlResult<Page<GroupSummary>> {
    let mut groups = Vec::new();
    for_each(conn, query, after, |group| {
        groups.push(group);
        Ok(if groups.len() <= query.limit { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
    })?;
    Ok(Page::from_rows(groups, query.limit, |group| GroupCursor::after(query.sort, group).encode(query.sort)))
}

/// Returns the groups of the query's page with their files, and the totals of all matching groups.
pub(super) fn whole(conn: &Connection, query: &GroupQuery) -> SqlResult<Groups> {
    if query.changes_groups() {
        return changed(conn, query);
    }
    let mut groups = Groups::default();
    let known = known_totals(conn, query)?;
    let end = query.offset.saturating_add(query.limit);
    let mut page = Vec::new();
    for_each(conn, query, None, |group| {
        add(&mut groups, &group);
        let position = usize::try_from(groups.total).unwrap_or(usize::MAX);
        if position > query.offset && position <= end {
            page.push(group);
        }
        Ok(if known.is_none() || position < end { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
    })?;
    if let Some(known) = known {
        groups = known;
    }
    groups.ignored = hidden(conn, query)?.total;
    let evaluator = Evaluator::new(conn)?;
    for summary in page {
        let members = evaluator.members(&summary.key)?;
        // The table may be older than the files.
        if members.len() > 1 {
            groups.groups.push(with_members(summary, members, Vec::new()));
        }
    }
    Ok(groups)
}

/// Returns the totals, if they are known without visiting all groups.
fn known_totals(conn: &Connection, query: &GroupQuery) -> SqlResult<Option<Groups>> {
    let is_default = query.min_count == 2 && query.min_size == 1 && !query.across_roots && query.in_root.is_none();
    if !is_default || query.reads_files() || query.ignored == Ignored::Only {
        return Ok(None);
    }
    let (all, hidden) = (table::totals(conn)?, hidden(conn, query)?);
    Ok(Some(Groups {
        total: unsigned(all.groups).saturating_sub(hidden.total),
        files: unsigned(all.files).saturating_sub(hidden.files),
        reclaimable: unsigned(all.reclaimable).saturating_sub(hidden.reclaimable),
        redundant: unsigned(all.redundant).saturating_sub(hidden.redundant),
        ..Groups::default()
    }))
}

/// Returns the totals of the groups that the query hides because the user ignores them, as in [`table::totals`].
fn hidden(conn: &Connection, query: &GroupQuery) -> SqlResult<Groups> {
    let sql = "SELECT count(*), coalesce(sum(g.file_count), 0), coalesce(sum(g.reclaimable_bytes), 0),
            coalesce(sum(g.redundant_bytes), 0)
        FROM ignored_groups i CROSS JOIN duplicate_groups g USING (hash_algorithm, content_hash)
        WHERE g.copies > 1 AND g.size_bytes > 0 AND ?1";
    conn.prepare_cached(sql)?.query_row([query.ignored == Ignored::Hidden], |row| {
        let number = |column: usize| row.get(column).map(unsigned);
        let (total, files, reclaimable, redundant) = (number(0)?, number(1)?, number(2)?, number(3)?);
        Ok(Groups { total, files, reclaimable, redundant, ..Groups::default() })
    })
}

fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

/// A group of which only some files count, with the row ids of those and of the files that are kept.
struct ChangedGroup {
    summary: GroupSummary,
    ids: HashSet<i64>,
    kept: HashSet<i64>,
}

fn changed(conn: &Connection, query: &GroupQuery) -> SqlResult<Groups> {
    let evaluator = Evaluator::new(conn)?;
    let mut found = Vec::new();
    for_each(conn, query, None, |group| {
        let members = evaluator.members(&group.key)?;
        for copies in filter::copies(query, &members) {
            let ids = |members: &[&GroupMember]| members.iter().map(|found| found.member.id).collect();
            let kept = copies_of(&copies.kept);
            let summary = summarize(&group.key, &copies.members, kept > 0);
            let matches = |summary: &GroupSummary| {
                summary.copies + kept >= query.min_count && (!query.across_roots || copies.roots > 1)
            };
            if let Some(summary) = summary.filter(matches) {
                let summary = GroupSummary { ignored: group.ignored, ..summary };
                found.push(ChangedGroup { summary, ids: ids(&copies.members), kept: ids(&copies.kept) });
            }
        }
        Ok(ControlFlow::Continue(()))
    })?;
    sort(&mut found, query.sort);
    let mut groups = Groups { ignored: hidden(conn, query)?.total, ..Groups::default() };
    found.iter().for_each(|group| add(&mut groups, &group.summary));
    for ChangedGroup { summary, ids, kept } in found.into_iter().skip(query.offset).take(query.limit) {
        let mut members = evaluator.members(&summary.key)?;
        let kept = members.extract_if(.., |found| kept.contains(&found.member.id)).collect();
        members.retain(|found| ids.contains(&found.member.id));
        groups.groups.push(with_members(summary, members, kept));
    }
    Ok(groups)
}

/// Number of files with these names.
fn copies_of(members: &[&GroupMember]) -> u64 {
    members.iter().map(|found| found.file).collect::<HashSet<i64>>().len() as u64
}

/// Sorts as the indexes do; groups of one content by path.
fn sort(found: &mut [ChangedGroup], by: SortBy) {
    let numbers = |group: &GroupSummary| match by {
        SortBy::Reclaimable => (group.reclaimable, group.redundant),
        SortBy::Count => (group.file_count, group.total_size),
        SortBy::Size => (group.size, group.copies),
        SortBy::Path => (0, 0),
    };
    found.sort_by(|ChangedGroup { summary: a, .. }, ChangedGroup { summary: b, .. }| {
        let by_path = if by == SortBy::Path { a.first_path.cmp(&b.first_path) } else { std::cmp::Ordering::Equal };
        let by_hash = || (a.key.algorithm.as_str(), &a.key.hash).cmp(&(b.key.algorithm.as_str(), &b.key.hash));
        let order = Reverse(numbers(a)).cmp(&Reverse(numbers(b))).then(by_path).then_with(by_hash);
        order.then_with(|| a.first_path.cmp(&b.first_path))
    });
}

fn add(groups: &mut Groups, group: &GroupSummary) {
    groups.total += 1;
    groups.files += group.file_count;
    groups.reclaimable = groups.reclaimable.saturating_add(group.reclaimable);
    groups.redundant = groups.redundant.saturating_add(group.redundant);
}

fn with_members(summary: GroupSummary, members: Vec<GroupMember>, kept: Vec<GroupMember>) -> Group {
    let GroupSummary { key, size, copies, reclaimable, redundant, ignored, .. } = summary;
    // The first listed name of a file may be one that does not count.
    let mut seen = HashSet::new();
    let mut member = |mut found: GroupMember| {
        found.member.linked = !seen.insert(found.file);
        found.member
    };
    let members = members.into_iter().map(&mut member).collect();
    let kept = kept.into_iter().map(&mut member).collect();
    Group { key, size, copies, reclaimable, redundant, ignored, members, kept }
}
