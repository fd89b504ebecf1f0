//! Finds the files that share their samples, and reads them in full.
//!
//! The largest files come first, each in its own batch, so that no worker is left with the largest at the end.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;
use std::sync::Arc;

use gristmill_pool::{Context, Task};
use gristmill_store::Store;

use super::candidates::{Candidate, Plan, PlanRequest, State, samples_of};
use super::early::{EarlyStages, NewFile};
use super::planned::{self, PlannedReads};
use super::reader::BusyGuard;
use super::run::ScanRun;
use crate::error::Result;
use crate::progress::ScanPhase;

/// Finds the files that have equal samples, or all files if every file is hashed. The hashes of `remembered`, sorted
/// ids, are known but not stored. Reads the catalog once; `proceed` is called for each row and can end the search.
pub(super) fn find(
    store: &Store,
    request: &PlanRequest,
    remembered: &[i64],
    proceed: impl Fn() -> ControlFlow<()>,
) -> Result<Plan> {
    let rule = request.rule;
    let mut candidates = Vec::new();
    // Files whose content is known but not their samples.
    let mut without_samples = Vec::new();
    store.catalog().for_each_file(|row| {
        let size = row.stat.size;
        if request.is_eligible(row) {
            match samples_of(row).or(rule.every_file.then_some(0)) {
                Some(samples) => {
                    let mut candidate = request.candidate(row, (size, samples));
                    if remembered.binary_search(&row.id).is_ok() {
                        candidate.state = State::Remembered;
                    }
                    candidates.push(candidate);
                }
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

/// Reads large new files, which `early` has left for the end of the walk.
pub(super) fn read_new(run: &mut ScanRun<'_>, early: &Arc<EarlyStages>, files: Vec<NewFile>) -> Result<()> {
    run.handle.set_phase(ScanPhase::Contents);
    let pool = run.pool("read")?;
    for new_file in files {
        let (early, queue, handle) = (early.clone(), run.queue.clone(), run.handle.clone());
        let task = Task::new(move |_: &Context| {
            let _busy = BusyGuard::new(&handle);
            queue.add_hashes(early.hash_whole(new_file).into_iter().collect())
        });
        // Refused only if the scan is cancelled.
        let _ = pool.submit_until(task, run.handle.token());
    }
    run.finish(&pool)?;
    run.queue.flush();
    run.update_totals()
}

/// Reads the files of `plan`, the result of `find`.
pub(super) fn read(run: &mut ScanRun<'_>, plan: Plan) -> Result<()> {
    run.handle.set_phase(ScanPhase::Contents);
    run.queue.keep_hashes(&plan.remembered);
    let pages = planned::pages(run.store, plan.ids.clone(), run.open_roots.clone());
    let renewed = pages.inspect(|_| run.renew_heartbeat());
    let mut rows = renewed.collect::<Result<Vec<_>, _>>()?.concat();
    rows.sort_by_key(|row| Reverse(row.stat.size));
    let scope = run.rule().full_scope();
    PlannedReads::run(run, plan, rows.into_iter().map(|row| Ok(vec![row])), (move |_| Some(scope), true))
}
