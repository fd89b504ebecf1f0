//! Escapes texts and formats numbers for the page.
//!
//! Owns the escaping: a file name can add only text to the page. Markup is escaped; invisible characters and those that
//! reverse the text direction are written as escapes.

use std::fmt::{self, Display, Write};

use gristmill_store::is_invisible;

/// Escapes every value that a template writes, as text or as an attribute value.
#[derive(Clone, Copy, Default)]
pub(crate) struct Escape;

impl askama::filters::Escaper for Escape {
    fn write_escaped_str<W: Write>(&self, mut page: W, text: &str) -> fmt::Result {
        text.chars().try_for_each(|c| match c {
            '&' => page.write_str("&amp;"),
            '<' => page.write_str("&lt;"),
            '>' => page.write_str("&gt;"),
            '"' => page.write_str("&quot;"),
            '\'' => page.write_str("&#39;"),
            c if is_invisible(c) => write!(page, "{}", c.escape_unicode()),
            c => page.write_char(c),
        })
    }
}

/// A coordinate or length for SVG.
#[derive(Clone, Copy)]
pub(super) struct Length(pub(super) f64);

impl Display for Length {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Tenths are finer than any screen shows.
        let text = format!("{:.1}", self.0);
        f.write_str(text.strip_suffix(".0").unwrap_or(&text))
    }
}

/// Formats a percentage. "0 %" and "100 %" are exact.
pub(super) fn percent(part: u64, whole: u64) -> String {
    match part as f64 * 100.0 / whole.max(1) as f64 {
        _ if part == 0 => "0 %".to_owned(),
        _ if part >= whole => "100 %".to_owned(),
        share if share < 1.0 => "< 1 %".to_owned(),
        share if share > 99.0 => "> 99 %".to_owned(),
        share => format!("{share:.0} %"),
    }
}

/// Truncates a text to a width in units of the font size. Returns `None` if fewer than three characters would be left.
/// Widths are estimates, too large rather than too small.
pub(super) fn fit(text: &str, width: f64) -> Option<String> {
    let width_of = |c: char| match c {
        'i' | 'j' | 'l' | '.' | ',' | ' ' | '\'' | '|' | '(' | ')' | 't' | 'f' | 'r' | '/' => 0.42,
        'm' | 'w' | 'M' | 'W' | '@' | '%' => 0.95,
        c if c.is_ascii_uppercase() => 0.74,
        c if c.is_ascii() => 0.6,
        '\u{300}'..='\u{36f}' => 0.0,
        '\u{a0}'..='\u{10ff}' => 0.74,
        _ => 1.1,
    };
    let mut used = 0.0;
    let mut end = text.len();
    // The last position that leaves room for the ellipsis if the rest does not fit.
    let mut cut = 0;
    for (at, c) in text.char_indices() {
        if used + 1.0 <= width {
            cut = at;
        }
        used += width_of(c);
        if used > width {
            end = cut;
            break;
        }
    }
    match text.get(..end) {
        Some(all) if end == text.len() => Some(all.to_owned()),
        Some(start) if start.chars().count() >= 3 => Some(format!("{}…", start.trim_end())),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use askama::filters::Escaper;

    #[test]
    fn percentages_are_exact_at_both_ends() {
        assert_eq!(
            [(0, 0), (1, 999), (1, 3), (999, 1_000), (5, 5)].map(|(a, b)| percent(a, b)),
            ["0 %", "< 1 %", "33 %", "> 99 %", "100 %"]
        );
    }

    #[test]
    fn text_is_cut_to_the_width_unless_nothing_readable_is_left() {
        assert_eq!(fit("photos", 6.0).as_deref(), Some("photos"));
        assert_eq!(fit("photographs", 5.0).as_deref(), Some("photogr…"));
        assert_eq!(fit("photographs", 1.0), None);
        assert_eq!(fit("日本語の写真", 5.0).as_deref(), Some("日本語…"));
    }

    #[test]
    fn text_is_escaped_and_invisible_characters_are_written_out() {
        let mut page = String::new();
        Escape.write_escaped_str(&mut page, "<b a='1' b=\"2\">&\u{202e}\n\u{0}").unwrap();
        assert_eq!(page, "&lt;b a=&#39;1&#39; b=&quot;2&quot;&gt;&amp;\\u{202e}\\u{a}\\u{0}");
    }
}
