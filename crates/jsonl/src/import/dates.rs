//! Recognises dates and times in the format of ISO 8601.

use serde::Serialize;

/// Kind of a date or time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum DateKind {
    /// `2024-02-29`
    Date,
    /// `2024-02-29T23:59:59.5Z`: seconds, their fraction and the zone are optional, and `T` may be a space. In a column
    /// of this kind some texts may be dates without a time.
    DateTime,
    /// `23:59:59`
    Time,
}

impl DateKind {
    /// Returns the kind of a text. Only the extended format counts, with hyphens and colons, because digits alone are
    /// more often a number than a date.
    pub(crate) fn of(text: &[u8]) -> Option<DateKind> {
        let Some((date, rest)) = text.split_at_checked(10) else {
            return time(text).then_some(DateKind::Time);
        };
        if !is_date(date) {
            return time(text).then_some(DateKind::Time);
        }
        match rest {
            [] => Some(DateKind::Date),
            [b'T' | b't' | b' ', rest @ ..] => {
                let zone = rest.iter().position(|byte| matches!(byte, b'Z' | b'z' | b'+' | b'-'));
                let (clock, zone) = rest.split_at(zone.unwrap_or(rest.len()));
                (time(clock) && is_zone(zone)).then_some(DateKind::DateTime)
            }
            _ => None,
        }
    }

    /// Kind of a column that has both kinds of text.
    pub(crate) fn and(self, other: DateKind) -> Option<DateKind> {
        match (self, other) {
            (one, other) if one == other => Some(one),
            (DateKind::Time, _) | (_, DateKind::Time) => None,
            _ => Some(DateKind::DateTime),
        }
    }
}

fn two(digits: &[u8]) -> Option<u8> {
    match digits {
        [tens @ b'0'..=b'9', ones @ b'0'..=b'9'] => Some((tens - b'0') * 10 + ones - b'0'),
        _ => None,
    }
}

fn is_date(text: &[u8]) -> bool {
    let [y1, y2, y3, y4, b'-', m1, m2, b'-', d1, d2] = text else { return false };
    let (Some(century), Some(year)) = (two(&[*y1, *y2]), two(&[*y3, *y4])) else { return false };
    let (Some(month), Some(day)) = (two(&[*m1, *m2]), two(&[*d1, *d2])) else { return false };
    let year = i16::from(century) * 100 + i16::from(year);
    jiff::civil::Date::new(year, month.cast_signed(), day.cast_signed()).is_ok()
}

/// Whether a text is hours and minutes, with optional seconds and fraction.
fn time(text: &[u8]) -> bool {
    let within = |digits: &[u8], max: u8| two(digits).is_some_and(|number| number <= max);
    let minutes = |text: &[u8]| within(&text[..2], 23) && text[2] == b':' && within(&text[3..5], 59);
    let (seconds, fraction) = match text.len() {
        5 => return minutes(text),
        8.. => text.split_at(8),
        _ => return false,
    };
    let is_fraction = match fraction {
        [] => true,
        [b'.' | b',', digits @ ..] => !digits.is_empty() && digits.iter().all(u8::is_ascii_digit),
        _ => false,
    };
    // A leap second has the number 60.
    minutes(&seconds[..5]) && seconds[5] == b':' && within(&seconds[6..], 60) && is_fraction
}

fn is_zone(text: &[u8]) -> bool {
    let within = |digits: &[u8], max: u8| two(digits).is_some_and(|number| number <= max);
    match text {
        [] | [b'Z' | b'z'] => true,
        [b'+' | b'-', hours @ ..] => match hours.len() {
            2 => within(hours, 23),
            4 => within(&hours[..2], 23) && within(&hours[2..], 59),
            5 => within(&hours[..2], 23) && hours[2] == b':' && within(&hours[3..], 59),
            _ => false,
        },
        _ => false,
    }
}
