//! Reads the files that share their size: small ones in full, samples of large ones.
//!
//! One batch has files of one folder, which is opened once, in the order of the walk.

use gristmill_store::catalog::FileRow;

use super::candidates::Plan;
use super::planned::{self, PlannedReads};
use super::run::ScanRun;
use crate::error::Result;
use crate::progress::ScanPhase;

/// Maximum number of files in one batch.
const MAX_BATCH_FILES: usize = 32;

/// Reads the files of `plan`, the result of `by_size`.
pub(super) fn read(run: &mut ScanRun<'_>, plan: Plan) -> Result<()> {
    run.handle.set_phase(ScanPhase::Samples);
    let rule = run.rule();
    let pages = planned::pages(run.store, plan.ids.clone(), run.open_roots.clone());
    let batches = pages.flat_map(|page| match page {
        Ok(rows) => batches(&rows).into_iter().map(Ok).collect(),
        Err(error) => vec![Err(error)],
    });
    PlannedReads::run(run, plan, batches, (move |size| rule.first_scope(size), false))
}

/// Groups rows of one folder into batches of limited size.
fn batches(rows: &[FileRow]) -> Vec<Vec<FileRow>> {
    let is_same_folder = |a: &FileRow, b: &FileRow| a.root == b.root && a.path.parent() == b.path.parent();
    let batches = rows.chunk_by(is_same_folder).flat_map(|rows| rows.chunks(MAX_BATCH_FILES));
    batches.map(<[FileRow]>::to_vec).collect()
}
