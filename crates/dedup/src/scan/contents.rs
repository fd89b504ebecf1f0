//! Finds the large files that share their samples, and reads them in full.
//!
//! The largest files come first, each in its own batch, so that no worker is left with the largest at the end.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;

use gristmill_store::Store;

use super::candidates::{Candidate, Plan, PlanRequest};
use super::planned::{self, PlannedReads};
use super::run::ScanRun;
use crate::error::Result;
use crate::progress::ScanPhase;
use crate::read::MAX_SMALL_SIZE;

/// Finds the large files that have equal samples, or all large files if every file is hashed. Reads the catalog once;
/// `proceed` is called for each row and can end the search.
pub(super) fn find(store: &Store, request: &PlanRequest, proceed: impl Fn() -> ControlFlow<()>) -> Result<Plan> {
    let rule = request.rule;
    let mut candidates = Vec::new();
    // Files whose content is known but not their samples.
    let mut without_samples = Vec::new();
    store.catalog().for_each_file(|row| {
        let size = row.stat.size;
        if size > MAX_SMALL_SIZE && request.is_eligible(row) {
            match row.samples.or(rule.every_file.then_some(0)) {
                Some(samples) => candidates.push(request.candidate(row, (size, samples))),
                None if row.algorithm == Some(rule.algorithm) => {
                    without_samples.push(request.candidate(row, (size, 0)));
                }
                None => {}
            }
        }
        proceed()
    })?;
    // Names of one file have the same samples. A file without samples can equal any other file of its size.
    let mut sizes = HashSet::new();
    if !without_samples.is_empty() {
        let known: HashMap<_, _> = candidates.iter().map(|file| (file.inode, file.key)).collect();
        for file in &mut without_samples {
            match known.get(&file.inode).filter(|(size, _)| *size == file.key.0) {
                Some(key) => file.key = *key,
                None => drop(sizes.insert(file.key.0)),
            }
        }
        candidates.append(&mut without_samples);
    }
    for Candidate { key: (size, samples), .. } in &mut candidates {
        if sizes.contains(size) {
            *samples = 0;
        }
    }
    Ok(Plan::select(candidates, rule, |_| Some(rule.full_scope())))
}

/// Reads the files of `plan`, the result of `find`.
pub(super) fn read(run: &mut ScanRun<'_>, plan: Plan) -> Result<()> {
    run.handle.set_phase(ScanPhase::Contents);
    let pages = planned::pages(run.store, plan.ids.clone(), run.open_roots.clone());
    let renewed = pages.inspect(|_| run.renew_heartbeat());
    let mut rows = renewed.collect::<Result<Vec<_>, _>>()?.concat();
    rows.sort_by_key(|row| Reverse(row.stat.size));
    let scope = run.rule().full_scope();
    PlannedReads::run(run, plan, rows.into_iter().map(|row| Ok(vec![row])), move |_| Some(scope))
}
