//! Pages of long lists.
//!
//! Owns `--limit` and `--after`, which all lists share, and how the store's pages are joined. The cursor of a list that
//! is computed as a whole, such as duplicate groups, is the number of entries already shown; each list of the database
//! has its own type of cursor.

use gristmill_store::Page;
use gristmill_store::jobs::MAX_PAGE;
use serde::Serialize;
use serde_json::{Value, json};

use crate::error::{Error, Outcome};
use crate::output::Output;
use crate::units::thousands;

/// A position in a list, as `next_cursor` of a page states it.
pub(crate) trait Cursor: Clone + Send + Sync + 'static {
    /// Help text of `--limit`, with its default.
    const LIMIT_HELP: &'static str = "Show at most N entries, or `all` [default: 50]";

    fn parse(text: &str) -> Option<Self>;
}

/// Number of the last entry of a page.
impl Cursor for i64 {
    fn parse(text: &str) -> Option<Self> {
        text.parse().ok()
    }
}

fn cursor<C: Cursor>(text: &str) -> Result<C, String> {
    C::parse(text).ok_or_else(|| "expected: next_cursor of the previous page, unchanged".to_owned())
}

/// Entries that a list of the database shows by default.
const DEFAULT_LIMIT: usize = 50;

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Paging<C: Cursor> {
    #[arg(long, value_name = "N", value_parser = limit, help = C::LIMIT_HELP)]
    limit: Option<usize>,

    /// Resume after this cursor (next_cursor of the previous page)
    #[arg(long, value_name = "CURSOR", value_parser = cursor::<C>, allow_hyphen_values = true)]
    after: Option<C>,
}

impl<C: Cursor> Paging<C> {
    /// Returns true if the list does not begin with its first entry.
    pub(super) fn is_continued(&self) -> bool {
        self.after.is_some()
    }

    /// Reads pages of the store until the limit is reached. `fetch` gets the cursor and the size of a page, which is at
    /// most [`MAX_PAGE`].
    pub(super) fn collect<T>(
        &self,
        mut fetch: impl FnMut(Option<&C>, usize) -> Result<Page<T>, Error>,
    ) -> Result<Page<T>, Error> {
        let limit = self.limit.unwrap_or(DEFAULT_LIMIT);
        let (mut items, mut after) = (Vec::new(), self.after.clone());
        loop {
            let page = fetch(after.as_ref(), (limit - items.len()).min(MAX_PAGE))?;
            items.extend(page.items);
            match page.next_cursor {
                Some(cursor) if items.len() < limit => after = Some(self::cursor(&cursor).map_err(Error::System)?),
                next_cursor => return Ok(Page { items, next_cursor }),
            }
        }
    }
}

/// Reads all pages of the store.
pub(super) fn all<C: Cursor, T>(
    fetch: impl FnMut(Option<&C>, usize) -> Result<Page<T>, Error>,
) -> Result<Vec<T>, Error> {
    Ok(Paging { limit: Some(usize::MAX), after: None }.collect(fetch)?.items)
}

/// Returns the JSON of a list that is never split into pages.
pub(super) fn whole(items: &[impl Serialize]) -> Value {
    json!({"items": items, "next_cursor": null})
}

/// Prints a page as JSON, or as a table that names the next page; `empty` is printed instead of an empty table.
pub(super) fn print<T>(
    output: &Output,
    page: &Page<T>,
    item: impl Fn(&T) -> Result<Value, Error>,
    (headers, row): (&[&str], impl Fn(&T) -> Vec<String>),
    empty: impl FnOnce() -> String,
) -> Result<Outcome, Error> {
    let items: Vec<Value> = page.items.iter().map(item).collect::<Result<_, _>>()?;
    output.print(&json!({"items": items, "next_cursor": page.next_cursor}), |output| {
        if page.items.is_empty() {
            return empty();
        }
        let next = page.next_cursor.as_ref().map(|cursor| format!("\nnext: --after {cursor}\n"));
        output.table(headers, page.items.iter().map(row)) + &next.unwrap_or_default()
    })
}

/// Number of entries already shown: the cursor of a computed list.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Offset(usize);

impl Cursor for Offset {
    const LIMIT_HELP: &'static str = "Show at most N entries, or `all` [default: 20 as text, all in other formats]";

    fn parse(text: &str) -> Option<Self> {
        text.parse().map(Offset).ok()
    }
}

/// Entries of a computed list that a person sees by default: one or two screens.
const DEFAULT_TEXT_LIMIT: usize = 20;

impl Paging<Offset> {
    /// Returns the part of the list to show: by default [`DEFAULT_TEXT_LIMIT`] entries as text, all for programs.
    pub(super) fn slice(&self, for_programs: bool) -> Slice {
        let default = if for_programs { usize::MAX } else { DEFAULT_TEXT_LIMIT };
        let Offset(offset) = self.after.unwrap_or_default();
        Slice { offset, limit: self.limit.unwrap_or(default) }
    }
}

/// A part of a computed list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slice {
    pub(super) offset: usize,
    pub(super) limit: usize,
}

impl Slice {
    /// Returns the cursor of the next page, or none if this is the last one.
    pub(super) fn next_cursor(self, total: u64) -> Option<String> {
        let end = self.offset.saturating_add(self.limit);
        ((end as u64) < total).then(|| end.to_string())
    }

    /// Describes which entries are shown and how to see the next ones. Returns none if all are shown.
    pub(super) fn describe(self, nouns: &str, shown: usize, total: u64) -> Option<String> {
        let offset = self.offset;
        if shown as u64 == total {
            return None;
        }
        if shown == 0 {
            return Some(format!("no {nouns} after {offset}: there are {}", thousands(total)));
        }
        let range = format!("{nouns} {} to {} of {}", offset + 1, offset + shown, thousands(total));
        Some(match self.next_cursor(total) {
            Some(cursor) => format!("{range}; next: --after {cursor}"),
            None => range,
        })
    }
}

fn limit(text: &str) -> Result<usize, String> {
    let number = || text.parse().ok().filter(|limit| *limit > 0);
    let limit = if text == "all" { Some(usize::MAX) } else { number() };
    limit.ok_or_else(|| "expected: a whole number of at least 1, or all".to_owned())
}
