//! Draws the map of folders, the bars and the histogram of file sizes.
//!
//! Owns how numbers become SVG. Colours are classes, so that one style sheet defines them for light and dark mode.

use super::html::{Page, bytes, count, counted, fit, percent};
use super::stats::{Area, SizeStats};
use super::treemap::{Rect, squarify};

const FONT_SIZE: f64 = 12.0;
/// Height of a folder's heading above its subfolders, in pixels.
const HEADING_HEIGHT: f64 = 19.0;

/// Draws the map of folders, once for wide screens and once for phones.
pub(super) fn maps(page: &mut Page, areas: &[Area]) {
    map(page, areas, "broad", Rect { x: 0.0, y: 0.0, width: 1160.0, height: 560.0 });
    map(page, areas, "narrow", Rect { x: 0.0, y: 0.0, width: 350.0, height: 520.0 });
    page.raw("<ul class=\"legend\"><li>Share of duplicates:</li>");
    for (class, text) in
        [("d0", "none"), ("d1", "< 20 %"), ("d2", "< 40 %"), ("d3", "< 60 %"), ("d4", "< 80 %"), ("d5", "more")]
    {
        page.raw("<li><svg width=\"14\" height=\"14\" aria-hidden=\"true\"><rect width=\"14\" height=\"14\" rx=\"3\" class=\"")
            .text(class)
            .raw("\"/></svg>")
            .text(text)
            .raw("</li>");
    }
    page.raw("</ul>");
}

fn map(page: &mut Page, areas: &[Area], class: &'static str, whole: Rect) {
    page.raw("<svg class=\"map ").raw(class).raw("\" viewBox=\"0 0 ").number(whole.width).raw(" ");
    page.number(whole.height).raw("\" role=\"img\" aria-labelledby=\"").raw(class).raw("-t ").raw(class);
    page.raw("-d\"><title id=\"").raw(class).raw("-t\">Space by folder</title><desc id=\"").raw(class);
    page.raw("-d\">Largest: ");
    let largest = areas.iter().take(5).map(|area| {
        format!("{}, {}, {} of it duplicates", area.name, bytes(area.bytes), percent(area.duplicate, area.bytes))
    });
    page.text(&largest.collect::<Vec<_>>().join("; ")).raw(".</desc>");
    let weights: Vec<u64> = areas.iter().map(|area| area.bytes).collect();
    for (area, rect) in areas.iter().zip(squarify(&weights, whole)) {
        outer(page, area, rect.inside(1.5, 1.5));
    }
    page.raw("</svg>\n");
}

/// Draws a folder of the first level: its name and its subfolders.
fn outer(page: &mut Page, area: &Area, rect: Rect) {
    let divided = area.inner.len() > 1 && rect.width > 40.0 && rect.height > HEADING_HEIGHT + 16.0;
    if !divided {
        tile(page, area, rect);
        return;
    }
    page.raw("<g>");
    tooltip(page, area);
    rectangle(page, rect, "outer", "", 4.0);
    let width = rect.width - 12.0;
    let size = bytes(area.bytes);
    let with_size = fit(&format!("{}  {size}", area.name), width / FONT_SIZE).filter(|text| !text.ends_with('…'));
    if let Some(text) = with_size.or_else(|| fit(&area.name, width / FONT_SIZE)) {
        label(page, (rect.x + 6.0, rect.y + 14.0), "name", "", &text);
    }
    page.raw("</g>");
    let weights: Vec<u64> = area.inner.iter().map(|inner| inner.bytes).collect();
    for (inner, rect) in area.inner.iter().zip(squarify(&weights, rect.inside(3.0, HEADING_HEIGHT))) {
        // Areas that are too small to see are not drawn.
        if rect.width >= 1.5 && rect.height >= 1.5 {
            tile(page, inner, rect);
        }
    }
}

fn tile(page: &mut Page, area: &Area, rect: Rect) {
    let class = match area.duplicate as f64 / area.bytes.max(1) as f64 {
        share if share < 0.005 => "d0",
        share if share < 0.2 => "d1",
        share if share < 0.4 => "d2",
        share if share < 0.6 => "d3",
        share if share < 0.8 => "d4",
        _ => "d5",
    };
    page.raw("<g>");
    tooltip(page, area);
    rectangle(page, rect, "inner", class, 3.0);
    let (color, width) = (if class < "d4" { "t0" } else { "t4" }, (rect.width - 8.0) / FONT_SIZE);
    if rect.height >= 17.0
        && let Some(text) = fit(&area.name, width)
    {
        label(page, (rect.x + 4.0, rect.y + 13.0), "label", color, &text);
        let size = fit(&bytes(area.bytes), width).filter(|text| !text.ends_with('…'));
        if let Some(size) = size.filter(|_| rect.height >= 33.0) {
            label(page, (rect.x + 4.0, rect.y + 28.0), "size", color, &size);
        }
    }
    page.raw("</g>");
}

fn rectangle(page: &mut Page, rect: Rect, class: &'static str, color: &'static str, radius: f64) {
    page.raw("<rect class=\"").raw(class).raw(" ").raw(color).raw("\" x=\"").number(rect.x);
    page.raw("\" y=\"").number(rect.y).raw("\" width=\"").number(rect.width).raw("\" height=\"");
    page.number(rect.height).raw("\" rx=\"").number(radius.min(rect.width / 4.0)).raw("\"/>");
}

fn label(page: &mut Page, (x, y): (f64, f64), class: &'static str, color: &'static str, text: &str) {
    page.raw("<text class=\"").raw(class).raw(" ").raw(color).raw("\" x=\"").number(x).raw("\" y=\"");
    page.number(y).raw("\">").text(text).raw("</text>");
}

fn tooltip(page: &mut Page, area: &Area) {
    let path = if area.path.is_empty() { &area.name } else { &area.path };
    let (size, files) = (bytes(area.bytes), counted(area.files, "file", "files"));
    let share = percent(area.duplicate, area.bytes);
    page.raw("<title>").text(path).raw(" · ").text(&size).raw(" · ").text(&files);
    page.raw(" · duplicates: ").text(&share).raw("</title>");
}

pub(super) fn bar(page: &mut Page, part: u64, largest: u64) {
    let share = part as f64 * 100.0 / largest.max(1) as f64;
    page.raw("<svg class=\"bar\" aria-hidden=\"true\"><rect class=\"reclaimable\" height=\"100%\" rx=\"5\" width=\"");
    // A part above zero is always visible.
    page.number(if part > 0 { share.max(1.0) } else { 0.0 }).raw("%\"/></svg>");
}

/// Draws one bar for all space: reclaimable, copies to keep, and everything else.
pub(super) fn total(page: &mut Page, reclaimable: u64, kept: u64, all: u64) {
    let rest = all.saturating_sub(reclaimable).saturating_sub(kept);
    let parts = [
        ("reclaimable", reclaimable, "reclaimable"),
        ("kept", kept, "copies to keep"),
        ("rest", rest, "everything else"),
    ];
    let share = |part: u64| part as f64 * 100.0 / all.max(1) as f64;
    page.raw("<svg class=\"bar total\" role=\"img\" aria-labelledby=\"total-t\"><title id=\"total-t\">");
    let texts: Vec<String> = parts.iter().map(|(_, part, label)| format!("{} {label}", bytes(*part))).collect();
    page.text(&texts.join(", ")).raw("</title>");
    let mut at = 0.0;
    for (class, part, _) in parts {
        page.raw("<rect class=\"").raw(class).raw("\" x=\"").number(at).raw("%\" width=\"");
        page.number(share(part)).raw("%\" height=\"100%\"/>");
        at += share(part);
    }
    page.raw("</svg><ul class=\"legend\">");
    for ((class, part, _), text) in parts.iter().zip(&texts) {
        page.raw("<li><svg width=\"14\" height=\"14\" aria-hidden=\"true\"><rect width=\"14\" height=\"14\" rx=\"3\" class=\"");
        page.raw(class).raw("\"/></svg>").text(text).raw(" (").text(&percent(*part, all)).raw(")</li>");
    }
    page.raw("</ul>");
}

/// Draws the number of files per size class, with duplicates at the bottom of each column.
pub(super) fn sizes(page: &mut Page, sizes: &[SizeStats]) {
    const TICKS: [&str; 17] = [
        "0", "1 B", "16 B", "256 B", "4 KiB", "64 KiB", "1 MiB", "16 MiB", "256 MiB", "4 GiB", "64 GiB", "1 TiB",
        "16 TiB", "256 TiB", "4 PiB", "64 PiB", "1 EiB",
    ];
    let largest = sizes.iter().map(|sizes| sizes.files).max().unwrap_or(0).max(1);
    let (width, floor) = (380.0, 170.0);
    let column = width / sizes.len().max(6) as f64;
    page.raw("<svg class=\"map\" viewBox=\"0 0 380 205\" role=\"img\" aria-labelledby=\"sizes-t sizes-d\">");
    page.raw("<title id=\"sizes-t\">Files by size</title><desc id=\"sizes-d\">");
    let texts = sizes.iter().zip(TICKS).map(|(sizes, tick)| format!("from {tick}: {}", count(sizes.files)));
    page.text(&texts.collect::<Vec<_>>().join("; ")).raw(".</desc>");
    for (at, (sizes, tick)) in sizes.iter().zip(TICKS).enumerate() {
        let x = at as f64 * column;
        let height = |files: u64| if files == 0 { 0.0 } else { (files as f64 / largest as f64 * 145.0).max(1.5) };
        let all = height(sizes.files);
        let copies = height(sizes.duplicates).min(all);
        let rect = |height: f64| Rect { x: x + 3.0, y: floor - height, width: column - 6.0, height };
        page.raw("<g><title>").text(if at == 0 { "empty" } else { "from " });
        page.text(if at == 0 { "" } else { tick }).raw(" · ").text(&counted(sizes.files, "file", "files"));
        page.raw(" · ").text(&bytes(sizes.bytes)).raw(" · duplicates: ").text(&count(sizes.duplicates));
        page.raw("</title>");
        rectangle(page, rect(all), "rest", "", 2.0);
        rectangle(page, rect(copies), "reclaimable", "", 2.0);
        if sizes.files > 0 {
            centred(page, x + column / 2.0, floor - all - 4.0, &short(sizes.files));
        }
        // The label of a column has two lines, so that it fits the width.
        let (number, unit) = tick.split_once(' ').unwrap_or((tick, ""));
        centred(page, x + column / 2.0, floor + 14.0, number);
        centred(page, x + column / 2.0, floor + 27.0, unit);
        page.raw("</g>");
    }
    page.raw("<line class=\"axis\" x1=\"0\" x2=\"380\" y1=\"170\" y2=\"170\"/></svg>\n");
}

fn centred(page: &mut Page, x: f64, y: f64, text: &str) {
    page.raw("<text class=\"soft\" text-anchor=\"middle\" x=\"").number(x).raw("\" y=\"").number(y);
    page.raw("\">").text(text).raw("</text>");
}

fn short(files: u64) -> String {
    match files {
        0..10_000 => files.to_string(),
        10_000..1_000_000 => format!("{}k", files / 1_000),
        _ => format!("{:.1}M", files as f64 / 1e6),
    }
}
