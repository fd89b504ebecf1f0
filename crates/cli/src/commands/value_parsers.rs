//! Parsers of argument values that several commands accept: sizes and times.

use std::time::Duration;

use jiff::Timestamp;

use crate::error::Error;
use crate::units::{self, DURATIONS, SIZE};

/// Parses a size. A number without a unit is in bytes.
pub(super) fn size(text: &str) -> Result<u64, String> {
    let size = units::size(text).or_else(|| text.parse().ok());
    size.ok_or_else(|| format!("expected: {SIZE}, or a number of bytes"))
}

pub(super) fn duration(text: &str) -> Result<Duration, String> {
    units::duration(text).ok_or_else(|| format!("expected: {DURATIONS}"))
}

pub(super) fn positive_duration(text: &str) -> Result<Duration, String> {
    let found = units::duration(text).filter(|duration| !duration.is_zero());
    found.ok_or_else(|| format!("expected: more than 0s, written as {DURATIONS}"))
}

/// Returns a time in nanoseconds since 1970, as files have it.
pub(super) fn nanoseconds(time: Timestamp) -> Result<i64, Error> {
    let range = |_| Error::Setting("the date is out of the range of file times".to_owned());
    i64::try_from(time.as_nanosecond()).map_err(range)
}

/// Parses a date, a time, or a duration that means that long ago.
pub(super) fn timestamp(text: &str) -> Result<Timestamp, String> {
    let expected = format!(
        "expected: a date such as 2026-01-31 (UTC), a time such as 2026-01-31T12:00:00Z, or a time ago: {DURATIONS}"
    );
    if let Some(ago) = units::duration(text) {
        let ago = jiff::SignedDuration::try_from(ago).map_err(|_| expected.clone())?;
        return Timestamp::now().checked_sub(ago).map_err(|_| expected);
    }
    let day = || {
        let date: jiff::civil::Date = text.parse().ok()?;
        Some(date.to_zoned(jiff::tz::TimeZone::UTC).ok()?.timestamp())
    };
    text.parse().ok().or_else(day).ok_or(expected)
}
