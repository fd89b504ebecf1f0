//! One page of duplicate groups, as a list that is scrolled asks for it.
//!
//! Owns the calls of the store.

use gristmill_store::{
    Store,
    catalog::{GroupQuery, SortBy},
};

/// Groups in a page.
const PAGE: u64 = 200;

pub(crate) fn name(order: SortBy) -> &'static str {
    match order {
        SortBy::Reclaimable => "reclaimable",
        SortBy::Count => "count",
        SortBy::Size => "size",
        SortBy::Path => "path",
    }
}

/// A page, by the cursor before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Position {
    pub(crate) after: Option<String>,
    /// Number of its groups.
    pub(crate) groups: usize,
}

impl Position {
    pub(crate) const NAMES: [&'static str; 3] = ["first", "middle", "last"];

    /// Returns the first, the middle and the last page of `groups` groups.
    pub(crate) fn all(store: &Store, order: SortBy, groups: u64) -> Result<[Position; 3], String> {
        let [first, middle, last] = starts(groups).map(|start| {
            let after = match usize::try_from(start).unwrap_or(usize::MAX) {
                0 => None,
                start => {
                    let marks = store.catalog().group_marks(&query(order), start).map_err(|error| error.to_string())?;
                    Some(marks.cursors.first().ok_or("there are fewer groups than expected")?.clone())
                }
            };
            Ok::<_, String>(Position { after, groups: PAGE.min(groups - start) as usize })
        });
        Ok([first?, middle?, last?])
    }
}

/// Returns the number of groups before the first, the middle and the last page.
fn starts(groups: u64) -> [u64; 3] {
    let last = groups.saturating_sub(PAGE);
    [0, last / 2, last]
}

fn query(order: SortBy) -> GroupQuery {
    GroupQuery::default().sort(order).limit(PAGE as usize)
}

/// Reads the page at a position. Returns the number of groups in it.
pub(crate) fn page(store: &Store, order: SortBy, position: &Position) -> Result<usize, String> {
    let page = store.catalog().group_page(&query(order), position.after.as_deref());
    Ok(page.map_err(|error| error.to_string())?.page.items.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_page_ends_with_the_last_group() {
        assert_eq!(starts(1_000), [0, 400, 800]);
        assert_eq!(starts(30), [0; 3]);
    }
}
