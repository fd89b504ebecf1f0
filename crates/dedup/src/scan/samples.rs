//! Reads the files that share their size: small ones in full, samples of large ones.
//!
//! One batch has files of one folder, which is opened once, in the order of the walk.

use gristmill_store::catalog::FileRow;

use super::candidates::Plan;
use super::planned::{self, PlannedReads};
use super::run::ScanRun;
use crate::error::Result;
use crate::progress::ScanPhase;
use crate::read::MAX_SMALL_SIZE;

/// Upper bounds for one batch: files, and bytes of small files.
const MAX_BATCH_FILES: usize = 32;
const MAX_BATCH_BYTES: u64 = 4 << 20;

/// Reads the files of `plan`, the result of `by_size`.
pub(super) fn read(run: &mut ScanRun<'_>, plan: Plan) -> Result<()> {
    run.handle.set_phase(ScanPhase::Samples);
    let rule = run.rule();
    let pages = planned::pages(run.store, plan.ids.clone(), run.open_roots.ids());
    let batches = pages.flat_map(|page| match page {
        Ok(rows) => batches(rows).into_iter().map(Ok).collect(),
        Err(error) => vec![Err(error)],
    });
    PlannedReads::run(run, plan, batches, move |size| rule.first_scope(size))
}

/// Groups rows of one folder into batches of limited size.
fn batches(rows: Vec<FileRow>) -> Vec<Vec<FileRow>> {
    let mut batches: Vec<Vec<FileRow>> = Vec::new();
    let mut bytes = 0;
    for row in rows {
        let fits = batches.last().is_some_and(|batch: &Vec<FileRow>| {
            batch.len() < MAX_BATCH_FILES
                && bytes < MAX_BATCH_BYTES
                && batch.first().is_some_and(|first| first.root == row.root && first.path.parent() == row.path.parent())
        });
        if !fits {
            batches.push(Vec::new());
            bytes = 0;
        }
        bytes += row.stat.size.min(MAX_SMALL_SIZE);
        if let Some(batch) = batches.last_mut() {
            batch.push(row);
        }
    }
    batches
}
