//! Renders the catalog as one HTML page.
//!
//! Owns the content of the page; the templates have its order and markup. The page is a single file that runs no script
//! and loads nothing, as its content security policy enforces, so it can be mailed and archived. The same catalog and
//! time give the same bytes.

mod html;
mod stats;
mod svg;
mod treemap;

use std::path::Path;

use askama::Template;
use gristmill_store::catalog::{GroupQuery, Groups};
use gristmill_store::roots::Root;
use gristmill_store::text::{bytes, count_of, thousands};
use gristmill_store::{Store, UtcTime, display_path};

use self::html::{Length, percent};
use self::stats::{Stats, TypeStats};
use self::svg::{FolderMap, SizeColumn, UsagePart, radius};
use crate::coverage::coverage;
use crate::folders::{self, FolderGroup};
use crate::{Error, Result};

/// Options of the report.
#[derive(Clone, Debug)]
#[non_exhaustive]
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
    let groups = store.catalog().groups(&GroupQuery::default().limit(options.groups))?;
    let folder_groups = folders::find_identical(store, &folders::FolderOptions::default())?;
    let coverage = coverage(store, &[])?;
    let most = stats.types.iter().map(|kind| kind.reclaimable).max().unwrap_or(0);
    let listed_types = stats.types.iter().take(options.types);
    let page = Page {
        now: minute(options.now),
        is_complete: coverage.complete,
        reasons: coverage.reasons(),
        tiles: tiles(&roots, &stats, &groups),
        usage: svg::usage(groups.reclaimable, stats.kept, stats.allocated),
        maps: svg::maps(&stats.space),
        group_lists: Lists { options, roots: &roots }.all(&groups, &folder_groups),
        types_showing: showing(stats.types.len().min(options.types), stats.types.len()),
        types: listed_types.map(|kind| (kind, svg::bar(kind.reclaimable, most))).collect(),
        sizes: svg::sizes(&stats.sizes),
        roots: roots.iter().map(root_row).collect(),
        stats: &stats,
    };
    page.render().map_err(|error| Error::System(format!("cannot render the report: {error}")))
}

#[derive(Template)]
#[template(path = "report.html")]
struct Page<'a> {
    now: String,
    is_complete: bool,
    /// Why the page is incomplete, so that it is not mistaken for complete.
    reasons: Vec<String>,
    tiles: [Tile; 6],
    usage: [UsagePart; 3],
    maps: [FolderMap<'a>; 2],
    group_lists: Vec<GroupList>,
    types_showing: String,
    /// The listed file types, each with the width of its bar.
    types: Vec<(&'a TypeStats, Length)>,
    sizes: Vec<SizeColumn<'a>>,
    roots: Vec<[String; 4]>,
    stats: &'a Stats,
}

/// A number of the headline: class, name, value and a remark.
type Tile = (&'static str, &'static str, String, String);

fn tiles(roots: &[Root], stats: &Stats, groups: &Groups) -> [Tile; 6] {
    let last = roots.iter().filter_map(|root| root.last_scanned_at).max();
    let last = last.map(minute).unwrap_or_default();
    let (day, hour) = last.split_once(' ').unwrap_or(("never", ""));
    let hour = if hour.is_empty() { String::new() } else { format!("{hour} UTC") };
    let unreadable = match stats.unreadable {
        0 => format!("in {}", count_of(stats.folders, "folder")),
        number => format!("{} unreadable", thousands(number)),
    };
    let share = format!("{} of {} on disk", percent(groups.reclaimable, stats.allocated), bytes(stats.allocated));
    [
        ("main", "Reclaimable", bytes(groups.reclaimable), share),
        ("", "Duplicate groups", thousands(groups.total), count_of(groups.files, "file")),
        ("", "Files", thousands(stats.files), unreadable),
        ("", "Size", bytes(stats.bytes), format!("{} bytes", thousands(stats.bytes))),
        ("", "Roots", thousands(roots.len() as u64), String::new()),
        ("", "Last scan", day.to_owned(), hour),
    ]
}

/// Groups of files or folders.
struct GroupList {
    title: &'static str,
    intro: &'static str,
    groups: Vec<GroupItem>,
    /// How many groups are listed, unless all are.
    showing: String,
}

struct GroupItem {
    /// "VALUE of COPIES".
    value: String,
    of: &'static str,
    copies: String,
    bar: Option<Length>,
    /// The listed paths, with the kind of link if it is one. The first one is the title, the others are in a collapsed
    /// list.
    paths: Vec<(String, Option<&'static str>)>,
    others: String,
    /// Number of paths that are not listed.
    more: Option<String>,
}

struct Lists<'a> {
    options: &'a ReportOptions,
    roots: &'a [Root],
}

impl Lists<'_> {
    fn all(&self, groups: &Groups, folder_groups: &[FolderGroup]) -> Vec<GroupList> {
        let most = groups.groups.first().map_or(0, |group| group.reclaimable);
        let files = groups.groups.iter().map(|group| {
            let copies = format!("{} × {}", thousands(group.copies), bytes(group.size));
            let members = group.members.iter().map(|file| (file.root, file.path.as_path(), file.link()));
            let bar = Some(svg::bar(group.reclaimable, most));
            self.item(members, (bytes(group.reclaimable), "of", copies), bar)
        });
        let files = GroupList {
            title: "Largest duplicate groups",
            intro: "Files with the same content.",
            groups: files.collect(),
            showing: showing(groups.groups.len(), groups.total as usize),
        };
        let (identical, others) = folder_groups.split_at(folder_groups.partition_point(|group| group.identical));
        let intro = "Folders with the same contents and layout. Names are ignored.";
        let identical = self.folders("Identical folders", intro, identical);
        let intro = "Folders whose scanned files are the same. They may differ in entries that were not scanned: \
            excluded files, symbolic links and special files. Compare them before you delete one.";
        let others = self.folders("Folders identical apart from entries not scanned", intro, others);
        [files].into_iter().chain([identical, others].into_iter().filter(|list| !list.groups.is_empty())).collect()
    }

    fn folders(&self, title: &'static str, intro: &'static str, groups: &[FolderGroup]) -> GroupList {
        let most = groups.first().map_or(0, |group| group.reclaimable);
        let listed = &groups[..groups.len().min(self.options.groups.div_ceil(2))];
        let showing = showing(listed.len(), groups.len());
        let listed = listed.iter().map(|group| {
            let files = count_of(group.files, "file");
            let copies = format!("{} × {} ({files})", thousands(group.folders.len() as u64), bytes(group.bytes));
            let folders = group.folders.iter().map(|folder| (folder.root, folder.path.as_path(), None));
            match group.identical {
                true => {
                    let bar = Some(svg::bar(group.reclaimable, most));
                    self.item(folders, (bytes(group.reclaimable), "of", copies), bar)
                }
                false => self.item(folders, (unscanned(group), "in", copies), None),
            }
        });
        GroupList { title, intro, showing, groups: listed.collect() }
    }

    /// Describes a group by the root, path and kind of link of each member.
    fn item<'a>(
        &self,
        members: impl ExactSizeIterator<Item = (i64, &'a Path, Option<&'static str>)>,
        (value, of, copies): (String, &'static str, String),
        bar: Option<Length>,
    ) -> GroupItem {
        let others = members.len().saturating_sub(1);
        let more = others.saturating_sub(self.options.paths) as u64;
        let location = |(root, path, link): (i64, &Path, _)| {
            let root = self.roots.iter().find(|other| other.id == root).map_or(Path::new(""), |root| &root.path);
            let path = if path.as_os_str().is_empty() { root.to_path_buf() } else { root.join(path) };
            (display_path(&path), link)
        };
        let paths = members.take(1 + self.options.paths).map(location).collect();
        let others = count_of(others as u64, "other location");
        GroupItem { value, of, copies, bar, paths, others, more: (more > 0).then(|| thousands(more)) }
    }
}

/// Returns the path, files, size and last scan of a root.
fn root_row(root: &Root) -> [String; 4] {
    let text = |number: Option<i64>, format: fn(u64) -> String| {
        number.and_then(|number| u64::try_from(number).ok()).map(format).unwrap_or_default()
    };
    let last_scan = root.last_scanned_at.map_or("never".to_owned(), minute);
    [display_path(&root.path), text(root.files, thousands), text(root.bytes, bytes), last_scan]
}

/// Describes how many entries of a group's folders were not scanned.
fn unscanned(group: &FolderGroup) -> String {
    match group.unscanned() {
        Some(entries) => format!("{} not scanned", count_of(entries, "entry")),
        None => "Scan again to compare the entries not scanned".to_owned(),
    }
}

/// Says how many items of a list are shown.
fn showing(listed: usize, total: usize) -> String {
    match total {
        0 => " None found.".to_owned(),
        _ if listed < total => format!(" Showing {} of {}.", thousands(listed as u64), thousands(total as u64)),
        _ => String::new(),
    }
}

fn minute(time: UtcTime) -> String {
    let text = time.to_string();
    text.get(..16).unwrap_or(&text).to_owned()
}
