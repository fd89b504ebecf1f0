//! Computes the shapes of the map of folders, the bars and the histogram of file sizes.
//!
//! Owns how numbers become lengths; the template `svg.html` draws them.

use gristmill_store::text::bytes;

use super::html::{Length, fit, percent};
use super::stats::{Area, SizeStats};
use super::treemap::{Rect, squarify};

const FONT_SIZE: f64 = 12.0;
/// Height of a folder's heading above its subfolders, in pixels.
const HEADING_HEIGHT: f64 = 19.0;

/// A text and its position.
pub(super) struct Label {
    pub(super) x: Length,
    pub(super) y: Length,
    pub(super) text: String,
}

impl Label {
    fn new(x: f64, y: f64, text: String) -> Self {
        Label { x: Length(x), y: Length(y), text }
    }
}

/// The map of folders in one size.
pub(super) struct FolderMap<'a> {
    pub(super) class: &'static str,
    pub(super) width: Length,
    pub(super) height: Length,
    pub(super) largest: String,
    pub(super) areas: Vec<OuterArea<'a>>,
}

/// A folder of the first level, and its parts if it is divided.
pub(super) struct OuterArea<'a> {
    pub(super) area: &'a Area,
    pub(super) rect: Rect,
    pub(super) is_divided: bool,
    pub(super) heading: Option<Label>,
    pub(super) tiles: Vec<Tile<'a>>,
}

pub(super) struct Tile<'a> {
    pub(super) area: &'a Area,
    pub(super) rect: Rect,
    pub(super) class: &'static str,
    pub(super) colour: &'static str,
    pub(super) name: Option<Label>,
    pub(super) size: Option<Label>,
}

/// Returns the map of folders for wide screens and for phones.
pub(super) fn maps(areas: &[Area]) -> [FolderMap<'_>; 2] {
    [("broad", 1160.0, 560.0), ("narrow", 350.0, 520.0)].map(|(class, width, height)| {
        let largest = areas.iter().take(5).map(|area| {
            format!("{}, {}, {} of it duplicates", area.name, bytes(area.bytes), percent(area.duplicate, area.bytes))
        });
        let rects = divide(areas, Rect { x: 0.0, y: 0.0, width, height });
        FolderMap {
            class,
            width: Length(width),
            height: Length(height),
            largest: largest.collect::<Vec<_>>().join("; "),
            areas: rects.map(|(area, rect)| outer_area(area, rect.inside(1.5, 1.5))).collect(),
        }
    })
}

fn divide(areas: &[Area], whole: Rect) -> impl Iterator<Item = (&Area, Rect)> {
    let weights: Vec<u64> = areas.iter().map(|area| area.bytes).collect();
    areas.iter().zip(squarify(&weights, whole))
}

fn outer_area(area: &Area, rect: Rect) -> OuterArea<'_> {
    let is_divided = area.inner.len() > 1 && rect.width > 40.0 && rect.height > HEADING_HEIGHT + 16.0;
    if !is_divided {
        return OuterArea { area, rect, is_divided, heading: None, tiles: vec![tile(area, rect)] };
    }
    let width = (rect.width - 12.0) / FONT_SIZE;
    let with_size = fit(&format!("{}  {}", area.name, bytes(area.bytes)), width).filter(|text| !text.ends_with('…'));
    let heading = with_size.or_else(|| fit(&area.name, width));
    // Areas that are too small to see are not drawn.
    let is_visible = |(_, rect): &(&Area, Rect)| rect.width >= 1.5 && rect.height >= 1.5;
    let inner = divide(&area.inner, rect.inside(3.0, HEADING_HEIGHT)).filter(is_visible);
    OuterArea {
        area,
        rect,
        is_divided,
        heading: heading.map(|text| Label::new(rect.x + 6.0, rect.y + 14.0, text)),
        tiles: inner.map(|(inner, rect)| tile(inner, rect)).collect(),
    }
}

fn tile(area: &Area, rect: Rect) -> Tile<'_> {
    let class = match area.duplicate as f64 / area.bytes.max(1) as f64 {
        share if share < 0.005 => "d0",
        share if share < 0.2 => "d1",
        share if share < 0.4 => "d2",
        share if share < 0.6 => "d3",
        share if share < 0.8 => "d4",
        _ => "d5",
    };
    let width = (rect.width - 8.0) / FONT_SIZE;
    let label = |y: f64, text: String| Label::new(rect.x + 4.0, rect.y + y, text);
    let name = fit(&area.name, width).filter(|_| rect.height >= 17.0).map(|text| label(13.0, text));
    let size = fit(&bytes(area.bytes), width).filter(|text| !text.ends_with('…'));
    let size = size.filter(|_| name.is_some() && rect.height >= 33.0).map(|text| label(28.0, text));
    Tile { area, rect, class, colour: if class < "d4" { "t0" } else { "t4" }, name, size }
}

/// Radius of the corners of a rectangle, at most `radius`.
pub(super) fn radius(rect: &Rect, radius: f64) -> Length {
    Length(radius.min(rect.width / 4.0))
}

/// Width of a bar in percent. A part above zero is always visible.
pub(super) fn bar(part: u64, largest: u64) -> Length {
    let share = part as f64 * 100.0 / largest.max(1) as f64;
    Length(if part > 0 { share.max(1.0) } else { 0.0 })
}

/// A part of the bar for all space.
pub(super) struct UsagePart {
    pub(super) class: &'static str,
    pub(super) text: String,
    pub(super) percent: String,
    /// Start and width in percent.
    pub(super) start: Length,
    pub(super) share: Length,
}

/// Divides all space: reclaimable, copies to keep, and everything else.
pub(super) fn usage(reclaimable: u64, kept: u64, all: u64) -> [UsagePart; 3] {
    let rest = all.saturating_sub(reclaimable).saturating_sub(kept);
    let parts = [
        ("reclaimable", reclaimable, "reclaimable"),
        ("kept", kept, "copies to keep"),
        ("rest", rest, "everything else"),
    ];
    let mut start = 0.0;
    let part = |(class, part, label): (&'static str, u64, &str)| {
        let share = part as f64 * 100.0 / all.max(1) as f64;
        let text = format!("{} {label}", bytes(part));
        let part = UsagePart { class, text, percent: percent(part, all), start: Length(start), share: Length(share) };
        start += share;
        part
    };
    parts.map(part)
}

/// A column of the histogram: files of one size class.
pub(super) struct SizeColumn<'a> {
    pub(super) stats: &'a SizeStats,
    pub(super) tick: &'static str,
    pub(super) all: Rect,
    pub(super) copies: Rect,
    pub(super) labels: Vec<Label>,
}

pub(super) fn sizes(sizes: &[SizeStats]) -> Vec<SizeColumn<'_>> {
    const TICKS: [&str; 17] = [
        "0", "1 B", "16 B", "256 B", "4 KiB", "64 KiB", "1 MiB", "16 MiB", "256 MiB", "4 GiB", "64 GiB", "1 TiB",
        "16 TiB", "256 TiB", "4 PiB", "64 PiB", "1 EiB",
    ];
    const WIDTH: f64 = 380.0;
    const FLOOR: f64 = 170.0;
    let largest = sizes.iter().map(|sizes| sizes.files).max().unwrap_or(0).max(1);
    let width = WIDTH / sizes.len().max(6) as f64;
    let columns = sizes.iter().zip(TICKS).enumerate().map(|(at, (stats, tick))| {
        let x = at as f64 * width;
        let height = |files: u64| if files == 0 { 0.0 } else { (files as f64 / largest as f64 * 145.0).max(1.5) };
        let all = height(stats.files);
        let rect = |height: f64| Rect { x: x + 3.0, y: FLOOR - height, width: width - 6.0, height };
        // The label of a column has two lines, so that it fits the width.
        let (number, unit) = tick.split_once(' ').unwrap_or((tick, ""));
        let label = |y: f64, text: &str| Label::new(x + width / 2.0, y, text.to_owned());
        let files = (stats.files > 0).then(|| label(FLOOR - all - 4.0, &short(stats.files)));
        let below = [label(FLOOR + 14.0, number), label(FLOOR + 27.0, unit)];
        let labels = files.into_iter().chain(below).collect();
        SizeColumn { stats, tick, all: rect(all), copies: rect(height(stats.duplicates).min(all)), labels }
    });
    columns.collect()
}

fn short(files: u64) -> String {
    match files {
        0..10_000 => files.to_string(),
        10_000..1_000_000 => format!("{}k", files / 1_000),
        _ => format!("{:.1}M", files as f64 / 1e6),
    }
}
