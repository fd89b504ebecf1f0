//! Applies the limit on the rows of a table.

use super::super::file_load::{FileLoad, LoadState};
use super::Writer;
use crate::error::Result;
use crate::parsed_block::ParsedBlock;

impl Writer<'_> {
    /// Writes rows of a block up to the limit. Rejected rows are known only after the write, so it never writes more
    /// rows at a time than the limit still allows.
    pub(super) fn write_rows_up_to_limit(
        &mut self,
        load: &mut FileLoad,
        block: &mut ParsedBlock,
        limit: u64,
    ) -> Result<()> {
        let mut left = limit.saturating_sub(load.counted);
        if (block.rows.len() as u64) < left {
            let before = load.file.rows;
            self.write_rows(load, block)?;
            load.counted += load.file.rows - before;
            return Ok(());
        }
        // Later rows may change the types inferred from the first ones.
        load.table.is_whole = false;
        let mut detached = block.detach_rows();
        loop {
            block.restore_rows(&mut detached, usize::try_from(left).unwrap_or(usize::MAX));
            let before = load.file.rows;
            self.write_rows(load, block)?;
            if self.stopped_by.is_some() {
                return Ok(());
            }
            load.counted += load.file.rows - before;
            left = limit.saturating_sub(load.counted);
            if left == 0 {
                load.fill();
            }
            if left == 0 || load.state == LoadState::Abandoned || !detached.has_more() {
                return Ok(());
            }
        }
    }
}
