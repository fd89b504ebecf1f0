//! Cursors at regular distances, by which a client reaches any group of a list with one page.
//!
//! Owns the cache of marks: computing them reads the whole index once.

use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, PoisonError};

use super::cursor::GroupCursor;
use super::{GroupQuery, GroupState, select, table};
use crate::sqlite::{Connection, SqlResult};

/// Number of queries whose marks are kept.
const CAPACITY: usize = 32;

/// The number of groups that match a query, and cursors into their list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupMarks {
    /// Number of matching groups.
    pub total: u64,
    /// The cursor after each complete distance: the page after `cursors[n]` begins with group `(n + 1) * every`.
    pub cursors: Arc<Vec<String>>,
    /// Whether files have changed since the groups were evaluated.
    pub state: GroupState,
}

/// Marks of recent queries.
#[derive(Debug, Default)]
pub struct MarksCache(Mutex<Vec<(String, GroupMarks)>>);

impl MarksCache {
    pub(super) fn get(&self, conn: &Connection, query: &GroupQuery, every: usize) -> SqlResult<GroupMarks> {
        let state = table::state(conn)?;
        let unlimited = GroupQuery { limit: usize::MAX, offset: 0, ..query.clone() };
        let key = format!("{every} {unlimited:?}");
        let entries = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_same = |(known, marks): &&(String, GroupMarks)| *known == key && marks.state.version == state.version;
        // A filter by files sees changes of files before they are evaluated.
        let may_keep = state.is_current || !(query.reads_files() || query.in_root.is_some());
        if let Some((_, marks)) = entries().iter().find(is_same).filter(|_| may_keep) {
            return Ok(GroupMarks { state, ..marks.clone() });
        }
        let (mut total, mut cursors) = (0_u64, Vec::new());
        select::for_each(conn, &unlimited, None, |group| {
            total += 1;
            if total.is_multiple_of(every as u64) {
                cursors.push(GroupCursor::after(query.sort, &group).encode(query.sort));
            }
            Ok(ControlFlow::Continue(()))
        })?;
        let marks = GroupMarks { total, cursors: Arc::new(cursors), state };
        if may_keep {
            let mut entries = entries();
            entries.retain(|(known, _)| *known != key);
            if entries.len() >= CAPACITY {
                entries.remove(0);
            }
            entries.push((key, marks.clone()));
        }
        Ok(marks)
    }
}
