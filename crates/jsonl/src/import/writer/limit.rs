//! A limit on the rows of a table.

use super::super::loading::{Loading, State};
use super::{Next, Writer};
use crate::error::Result;
use crate::rows::Rows;

impl Writer<'_> {
    /// Takes rows of a block up to the limit. Which rows the table takes is known when they are written, so there are never
    /// more of them than are left to take.
    pub(super) fn limited_rows(
        &mut self,
        loading: &mut Loading,
        rows: &mut Rows,
        limit: u64,
    ) -> Result<Next> {
        let mut left = limit.saturating_sub(loading.taken);
        if (rows.rows.len() as u64) < left {
            let before = loading.rows;
            let next = self.all_rows(loading, rows)?;
            loading.taken += loading.rows - before;
            return Ok(next);
        }
        // Rows that follow may change what is found in the first ones.
        loading.table.is_whole = false;
        let mut taken_out = rows.take_out();
        loop {
            rows.put_back(&mut taken_out, usize::try_from(left).unwrap_or(usize::MAX));
            let before = loading.rows;
            if self.all_rows(loading, rows)? == Next::Stop {
                return Ok(Next::Stop);
            }
            loading.taken += loading.rows - before;
            left = limit.saturating_sub(loading.taken);
            if left == 0 {
                loading.fill();
            }
            if left == 0 || loading.state == State::Abandoned || !taken_out.has_more() {
                return Ok(Next::GoOn);
            }
        }
    }
}
