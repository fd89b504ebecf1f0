//! Long answers, a page at a time.
//!
//! Owns --limit and --page.

use crate::error::Error;
use crate::output::{plural, thousands};

/// As the user gave it.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(super) struct Paging {
    /// At most so many, or `all` [default: 20; all for programs]
    #[arg(long, value_name = "N", value_parser = limit)]
    limit: Option<usize>,

    /// Which page of so many
    #[arg(long, value_name = "N", default_value = "1", value_parser = page, hide_default_value = true)]
    page: usize,
}

/// A page as it is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Page {
    pub(super) number: usize,
    pub(super) limit: usize,
}

/// What fits on a screen or two.
const DEFAULT_LIMIT: usize = 20;

impl Paging {
    /// For people, and for programs that ask again.
    pub(super) fn few(self) -> Page {
        Page { number: self.page, limit: self.limit.unwrap_or(DEFAULT_LIMIT) }
    }

    /// For programs that read to the end.
    pub(super) fn all(self) -> Result<Page, Error> {
        match self.limit {
            None if self.page > 1 => {
                Err(Error::Setting("without --limit all of it is one page; --page goes with --limit".into()))
            }
            limit => Ok(Page { number: self.page, limit: limit.unwrap_or(usize::MAX) }),
        }
    }
}

impl Page {
    /// How many come before it.
    pub(super) fn offset(self) -> usize {
        (self.number - 1).saturating_mul(self.limit)
    }

    /// The page after it, if there is one.
    pub(super) fn next(self, total: u64) -> Option<usize> {
        let end = self.offset().saturating_add(self.limit) as u64;
        (end < total).then_some(self.number + 1)
    }

    /// Which of them it shows, and how to see more. Nothing when it shows all.
    pub(super) fn describe(self, nouns: &str, shown: usize, total: u64) -> Option<String> {
        let first = self.offset();
        if shown as u64 == total {
            return None;
        }
        if shown == 0 {
            let pages = total.div_ceil(self.limit as u64);
            let there_are = if pages == 1 { "is" } else { "are" };
            return Some(format!("no page {}: there {there_are} {}", self.number, plural(pages, "page")));
        }
        let range = format!("{nouns} {} to {} of {}", first + 1, first + shown, thousands(total));
        Some(match self.next(total) {
            Some(next) => format!("{range}; more: --page {next}"),
            None => range,
        })
    }
}

fn limit(text: &str) -> Result<usize, String> {
    let number = || text.parse().ok().filter(|limit| *limit > 0);
    let limit = if text == "all" { Some(usize::MAX) } else { number() };
    limit.ok_or_else(|| "legal: a whole number from 1 on, or all".to_owned())
}

fn page(text: &str) -> Result<usize, String> {
    let page = text.parse().ok().filter(|page| *page > 0);
    page.ok_or_else(|| "legal: a whole number from 1 on".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages() {
        let page = |number, limit| Page { number, limit };
        for (page, shown, total, next, told) in [
            (page(1, 20), 20, 53, Some(2), Some("pairs 1 to 20 of 53; more: --page 2")),
            (page(3, 20), 13, 53, None, Some("pairs 41 to 53 of 53")),
            (page(1, 20), 20, 20, None, None),
            (page(1, 20), 0, 0, None, None),
            (page(4, 20), 0, 53, None, Some("no page 4: there are 3 pages")),
            (page(1, usize::MAX), 53, 53, None, None),
            (page(9, usize::MAX), 0, 53, None, Some("no page 9: there is 1 page")),
        ] {
            assert_eq!(page.next(total), next, "{page:?}");
            assert_eq!(page.describe("pairs", shown, total).as_deref(), told, "{page:?}");
        }
    }
}
