//! Finds the files of the catalog that share their size with another one.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::ControlFlow;

use gristmill_store::Store;
use gristmill_store::catalog::{Algorithm, LinkKind, Stat};

use super::candidates::{Plan, PlanRequest, State, samples_of};
use crate::error::Result;

/// Files that share their size and were not compared yet, and totals of the whole catalog.
#[derive(Default)]
pub(super) struct SameSize {
    pub(crate) plan: Plan,
    /// Number of files in the catalog that may be read.
    pub(crate) files: u64,
    pub(crate) roots: HashMap<i64, RootTotals>,
    /// Row ids of files that could not be read before the scan was resumed, and are not tried again.
    pub(crate) tried: Vec<i64>,
    /// Algorithms that files of the catalog were hashed with.
    pub(crate) algorithms: BTreeSet<Algorithm>,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RootTotals {
    pub(crate) files: u64,
    pub(crate) bytes: u64,
}

/// Reads the catalog once. `proceed` is called for each row and can end the search.
pub(super) fn find(store: &Store, request: &PlanRequest, proceed: impl Fn() -> ControlFlow<()>) -> Result<SameSize> {
    let mut found = SameSize::default();
    let mut candidates = Vec::new();
    // Inodes with several names, whose bytes count once per root.
    let mut counted = HashSet::new();
    store.catalog().for_each_file(|row| {
        found.algorithms.extend(row.algorithm);
        let root = found.roots.entry(row.root).or_default();
        root.files += 1;
        let Stat { links, device, inode, size, .. } = row.stat;
        let has_one_name = matches!(links, LinkKind::Single | LinkKind::Unknown);
        if has_one_name || counted.insert((row.root, device, inode)) {
            root.bytes += size;
        }
        if request.was_tried(row) {
            found.tried.push(row.id);
        }
        if request.is_eligible(row) {
            found.files += 1;
            if request.rule.first_scope(size).is_some() {
                let mut candidate = request.candidate(row, (size, 0));
                if !request.rule.every_file && request.open_roots.contains_key(&row.root) {
                    // Samples are needed even of a file that is hashed, because others are compared with them.
                    let is_sampled = samples_of(row).is_some();
                    candidate.state = if is_sampled { State::Hashed } else { State::Unread };
                }
                candidates.push(candidate);
            }
        }
        proceed()
    })?;
    found.plan = Plan::select(candidates, request.rule, |size| request.rule.first_scope(size));
    Ok(found)
}
