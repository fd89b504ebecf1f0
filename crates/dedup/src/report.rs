//! Renders the catalog as one HTML page.
//!
//! Owns the content of the page and its order. The page is a single file that runs no script and loads nothing, as its
//! content security policy enforces, so it can be mailed and archived. The same catalog and time give the same bytes.

mod html;
mod stats;
mod svg;
mod treemap;

use std::collections::HashMap;
use std::path::Path;

use gristmill_store::catalog::{Group, GroupQuery, Groups};
use gristmill_store::roots::Root;
use gristmill_store::{Store, UtcTime, display_path};

use self::html::{Page, bytes, count, counted, percent};
use self::stats::Stats;
use crate::Result;
use crate::coverage::{Coverage, coverage};
use crate::folders::{self, FolderGroup};

/// Options of the report.
#[derive(Clone, Debug)]
pub struct ReportOptions {
    /// Time shown as the creation time of the page.
    pub now: UtcTime,
    /// Maximum number of duplicate groups, and twice the maximum number of groups of identical folders.
    pub groups: usize,
    /// Maximum number of further paths per group.
    pub paths: usize,
    /// Maximum number of file types.
    pub types: usize,
}

impl ReportOptions {
    /// Returns the default limits for a page created at `now`.
    pub fn new(now: UtcTime) -> Self {
        ReportOptions { now, groups: 15, paths: 50, types: 15 }
    }
}

/// Renders the page as HTML that is also well-formed XML.
pub fn html(store: &Store, options: &ReportOptions) -> Result<String> {
    let roots = store.roots().list()?;
    let stats = Stats::read(store, &roots)?;
    let groups = store.catalog().groups(&GroupQuery { limit: options.groups, ..GroupQuery::default() })?;
    let folder_groups = folders::find_identical(store, &folders::FolderOptions::default())?;
    let coverage = coverage(store, &[])?;
    let report = Report {
        options,
        roots: &roots,
        stats: &stats,
        groups: &groups,
        folder_groups: &folder_groups,
        coverage: &coverage,
    };
    let mut page = Page::default();
    report.write(&mut page);
    Ok(page.finish())
}

/// A listed file or folder: the row id of its root, its path relative to the root, and the kind of link if it is one.
type ListedPath<'a> = (i64, &'a Path, Option<&'static str>);

struct Report<'a> {
    options: &'a ReportOptions,
    roots: &'a [Root],
    stats: &'a Stats,
    groups: &'a Groups,
    /// Identical folders, followed by folders that are identical except for entries that were not scanned.
    folder_groups: &'a [FolderGroup],
    coverage: &'a Coverage,
}

impl Report<'_> {
    fn write(&self, page: &mut Page) {
        page.raw("<!DOCTYPE html>\n<html lang=\"en\" xmlns=\"http://www.w3.org/1999/xhtml\">\n<head>\n");
        page.raw("<meta charset=\"utf-8\"/>\n<meta http-equiv=\"Content-Security-Policy\" ");
        page.raw("content=\"default-src 'none'; style-src 'unsafe-inline'\"/>\n");
        page.raw("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n");
        page.raw("<meta name=\"referrer\" content=\"no-referrer\"/>\n<title>Duplicates</title>\n<style>\n");
        page.raw(include_str!("report/page.css")).raw("</style>\n</head>\n<body>\n<header><h1>Duplicates</h1>");
        page.raw("<p class=\"soft\">Catalog as of ").text(&minute(self.options.now));
        page.raw(" UTC</p></header>\n<main>\n");
        self.completeness(page);
        self.headline(page);
        if self.stats.files == 0 {
            page.raw("<section><p>The catalog has no files. Scan a folder with <code>gristmill scan FOLDER</code>.");
            page.raw("</p></section>\n");
        } else {
            self.space(page);
            self.biggest(page);
            self.folders(page);
            page.raw("<div class=\"two\">");
            self.types(page);
            self.sizes(page);
            page.raw("</div>\n");
        }
        self.scanned(page);
        page.raw("</main>\n<footer>Made by Gristmill. Hard links to one file count as one copy. Bytes that are ");
        page.raw("not valid text and invisible characters are shown as escapes.</footer>\n</body>\n</html>\n");
    }

    /// Writes first why the page is incomplete, so that it is not mistaken for complete.
    fn completeness(&self, page: &mut Page) {
        let reasons = self.coverage.reasons();
        if reasons.is_empty() {
            return;
        }
        let title = if self.coverage.complete { "Note" } else { "Not complete" };
        page.raw("<section class=\"coverage\"><h2>").raw(title).raw("</h2><ul>");
        for reason in reasons {
            page.raw("<li>").text(&reason).raw("</li>");
        }
        page.raw("</ul></section>\n");
    }

    fn headline(&self, page: &mut Page) {
        let (stats, groups) = (self.stats, self.groups);
        let last = self.roots.iter().filter_map(|root| root.last_scanned_at).max();
        let last = last.map(minute).unwrap_or_default();
        let (day, hour) = last.split_once(' ').unwrap_or(("never", ""));
        let hour = if hour.is_empty() { String::new() } else { format!("{hour} UTC") };
        page.raw("<dl class=\"tiles\">");
        let mut tile = |class: &'static str, name: &'static str, value: &str, more: &str| {
            page.raw("<div class=\"").raw(class).raw("\"><dt>").raw(name).raw("</dt><dd>").text(value);
            page.raw(" <small>").text(more).raw("</small></dd></div>");
        };
        let unreadable = match stats.unreadable {
            0 => format!("in {}", counted(stats.folders, "folder", "folders")),
            number => format!("{} unreadable", count(number)),
        };
        let share = format!("{} of {} on disk", percent(groups.reclaimable, stats.allocated), bytes(stats.allocated));
        tile("main", "Reclaimable", &bytes(groups.reclaimable), &share);
        tile("", "Duplicate groups", &count(groups.total), &counted(groups.files, "file", "files"));
        tile("", "Files", &count(stats.files), &unreadable);
        tile("", "Size", &bytes(stats.bytes), &format!("{} bytes", count(stats.bytes)));
        tile("", "Roots", &count(self.roots.len() as u64), "");
        tile("", "Last scan", day, &hour);
        page.raw("</dl>\n");
        if stats.allocated > 0 {
            page.raw("<section><h2>Space usage</h2>");
            svg::total(page, groups.reclaimable, stats.kept, stats.allocated);
            page.raw("</section>\n");
        }
    }

    fn space(&self, page: &mut Page) {
        let stats = self.stats;
        page.raw(
            "<section><h2>Space by folder</h2><p class=\"soft\">Areas are proportional to size. The stronger the ",
        );
        page.raw("colour, the larger the share of duplicates.</p>");
        svg::maps(page, &stats.space);
        page.raw("</section>\n");
    }

    fn biggest(&self, page: &mut Page) {
        let groups = &self.groups.groups;
        page.raw("<section><h2>Largest duplicate groups</h2>");
        self.list_intro(page, groups.len() as u64, self.groups.total, "Files with the same content.");
        let max = groups.first().map_or(0, |group| group.reclaimable);
        page.raw("<ol class=\"groups\">");
        for group in groups {
            let Group { size, copies, reclaimable, members, .. } = group;
            let copies = format!("{} × {}", count(*copies), bytes(*size));
            let paths: Vec<ListedPath<'_>> =
                members.iter().map(|file| (file.root, file.path.as_path(), file.link())).collect();
            self.group_item(page, &paths, (&bytes(*reclaimable), "of", &copies), Some((*reclaimable, max)));
        }
        page.raw("</ol></section>\n");
    }

    fn folders(&self, page: &mut Page) {
        let (identical, others) =
            self.folder_groups.split_at(self.folder_groups.partition_point(|group| group.identical));
        let intro = "Folders with the same contents and layout. Names are ignored.";
        self.folder_groups(page, "Identical folders", intro, identical);
        let intro = "Folders whose scanned files are the same. They may differ in entries that were not scanned: \
            excluded files, symbolic links and special files. Compare them before you delete one.";
        self.folder_groups(page, "Folders identical apart from entries not scanned", intro, others);
    }

    fn folder_groups(&self, page: &mut Page, title: &'static str, intro: &'static str, groups: &[FolderGroup]) {
        if groups.is_empty() {
            return;
        }
        let listed = &groups[..groups.len().min(self.options.groups.div_ceil(2))];
        page.raw("<section><h2>").raw(title).raw("</h2>");
        self.list_intro(page, listed.len() as u64, groups.len() as u64, intro);
        let max = listed.first().map_or(0, |group| group.reclaimable);
        page.raw("<ol class=\"groups\">");
        for group in listed {
            let files = counted(group.files, "file", "files");
            let copies = format!("{} × {} ({files})", count(group.folders.len() as u64), bytes(group.bytes));
            let paths: Vec<ListedPath<'_>> =
                group.folders.iter().map(|folder| (folder.root, folder.path.as_path(), None)).collect();
            if group.identical {
                self.group_item(
                    page,
                    &paths,
                    (&bytes(group.reclaimable), "of", &copies),
                    Some((group.reclaimable, max)),
                );
            } else {
                self.group_item(page, &paths, (&unscanned(group), "in", &copies), None);
            }
        }
        page.raw("</ol></section>\n");
    }

    /// Writes the description of a list, and how many items it omits.
    fn list_intro(&self, page: &mut Page, listed: u64, total: u64, intro: &'static str) {
        page.raw("<p class=\"soft\">").raw(intro);
        match total {
            0 => page.raw(" None found."),
            _ if listed < total => page.raw(" Showing ").text(&count(listed)).raw(" of ").text(&count(total)).raw("."),
            _ => page,
        };
        page.raw("</p>");
    }

    /// Writes a group: the first path, a bar of `part` relative to `max`, and the other paths in a collapsed list.
    fn group_item(
        &self,
        page: &mut Page,
        paths: &[ListedPath<'_>],
        (value, of, copies): (&str, &'static str, &str),
        bar: Option<(u64, u64)>,
    ) {
        let roots: HashMap<i64, &Path> = self.roots.iter().map(|root| (root.id, root.path.as_path())).collect();
        let write = |page: &mut Page, (root, path, link): &ListedPath<'_>| {
            let root = roots.get(root).copied().unwrap_or(Path::new(""));
            let path = if path.as_os_str().is_empty() { root.to_path_buf() } else { root.join(path) };
            page.raw("<bdi>").text(&display_path(&path)).raw("</bdi>");
            if let Some(link) = link {
                page.raw(" <span class=\"soft\">(").text(link).raw(")</span>");
            }
        };
        page.raw("<li><div class=\"line\"><span>");
        if let Some(first) = paths.first() {
            write(page, first);
        }
        page.raw("</span><span><b>");
        page.text(value).raw("</b> <span class=\"soft\">").raw(of).raw(" ").text(copies);
        page.raw("</span></span></div>");
        if let Some((part, max)) = bar {
            svg::bar(page, part, max);
        }
        let others = &paths[1.min(paths.len())..];
        page.raw("<details><summary>").text(&counted(others.len() as u64, "other location", "other locations"));
        page.raw("</summary><ul>");
        for other in others.iter().take(self.options.paths) {
            page.raw("<li>");
            write(page, other);
            page.raw("</li>");
        }
        if others.len() > self.options.paths {
            page.raw("<li>and ").text(&count((others.len() - self.options.paths) as u64)).raw(" more</li>");
        }
        page.raw("</ul></details></li>");
    }

    fn types(&self, page: &mut Page) {
        let types = &self.stats.types;
        let listed = &types[..types.len().min(self.options.types)];
        page.raw("<section><h2>Duplicates by type</h2>");
        self.list_intro(page, listed.len() as u64, types.len() as u64, "By file name extension.");
        page.raw("<div class=\"wide\"><table><thead><tr><th>Type</th><th class=\"n\">Files</th>");
        page.raw("<th class=\"n less\">Size</th><th class=\"n less\">Duplicates</th>");
        page.raw("<th class=\"n\">Reclaimable</th><th><span class=\"less\">Share</span></th></tr></thead><tbody>");
        let max = types.iter().map(|kind| kind.reclaimable).max().unwrap_or(0);
        for kind in listed {
            let name = if kind.name.is_empty() { "(none)" } else { &kind.name };
            page.raw("<tr><td>").text(name).raw("</td><td class=\"n\">").text(&count(kind.files));
            page.raw("</td><td class=\"n less\">").text(&bytes(kind.bytes)).raw("</td><td class=\"n less\">");
            page.text(&count(kind.duplicates)).raw("</td><td class=\"n\">").text(&bytes(kind.reclaimable));
            page.raw("</td><td class=\"draw\">");
            svg::bar(page, kind.reclaimable, max);
            page.raw("</td></tr>");
        }
        page.raw("</tbody></table></div></section>\n");
    }

    fn sizes(&self, page: &mut Page) {
        page.raw(
            "<section><h2>Files by size</h2><p class=\"soft\">Each column counts files from its size up to the next. ",
        );
        page.raw("Duplicates are in colour.</p>");
        svg::sizes(page, &self.stats.sizes);
        page.raw("</section>\n");
    }

    fn scanned(&self, page: &mut Page) {
        page.raw("<section><h2>Roots</h2>");
        self.list_intro(page, self.roots.len() as u64, self.roots.len() as u64, "Folders you have scanned.");
        page.raw("<div class=\"wide\"><table><thead><tr><th>Folder</th><th class=\"n\">Files</th>");
        page.raw("<th class=\"n\">Size</th><th class=\"n less\">Last scan (UTC)</th></tr></thead><tbody>");
        for root in self.roots {
            let number = |number: Option<i64>| number.and_then(|number| u64::try_from(number).ok());
            page.raw("<tr><td><bdi>").text(&display_path(&root.path)).raw("</bdi></td><td class=\"n\">");
            page.text(&number(root.files).map(count).unwrap_or_default()).raw("</td><td class=\"n\">");
            page.text(&number(root.bytes).map(bytes).unwrap_or_default()).raw("</td><td class=\"n less\">");
            page.text(&root.last_scanned_at.map_or("never".to_owned(), minute)).raw("</td></tr>");
        }
        page.raw("</tbody></table></div></section>\n");
    }
}

/// Describes how many entries of a group's folders were not scanned.
fn unscanned(group: &FolderGroup) -> String {
    match group.unscanned() {
        Some(entries) => format!("{} not scanned", counted(entries, "entry", "entries")),
        None => "Scan again to compare the entries not scanned".to_owned(),
    }
}

fn minute(time: UtcTime) -> String {
    let text = time.to_string();
    text.get(..16).unwrap_or(&text).to_owned()
}
