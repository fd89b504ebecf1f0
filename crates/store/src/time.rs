//! Timestamps as the database stores them.
//!
//! Owns the text form `YYYY-MM-DD HH:MM:SS[.ffffff]` in UTC. Both lengths are read, also with the suffix `+00:00`,
//! which the database driver of the Python control plane adds; the long form is written. In tables that only Gristmill
//! writes, SQL compares such texts only as `column <= long` and `column > long`. For these two a short text, which is a
//! prefix of the long text of the same time, compares as its time does. For other tables see `lease::sortable_time`.

use std::fmt;
use std::time::Duration;

use gristmill_pool::clock::Clock;
use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::Offset;

/// A UTC time in microseconds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UtcTime(i64);

/// Latest time, 9999-12-30 21:59:59.999999: with any offset the year still has four digits.
const MAX_MICROS: i64 = 253_402_207_199_999_999;
/// Earliest time, 0000-01-01 00:00:00.
const MIN_MICROS: i64 = -62_167_219_200_000_000;

impl UtcTime {
    /// Makes a time from microseconds since 1970-01-01 00:00:00 UTC, clamped to the range of the text form.
    pub const fn from_micros(micros: i64) -> Self {
        UtcTime(if micros > MAX_MICROS {
            MAX_MICROS
        } else if micros < MIN_MICROS {
            MIN_MICROS
        } else {
            micros
        })
    }

    /// Returns the wall time of a clock. It may be set back at any time.
    pub fn of(clock: impl Into<Clock>) -> Self {
        UtcTime::from_micros(clock.into().unix_micros())
    }

    /// Returns microseconds since 1970-01-01 00:00:00 UTC.
    pub const fn micros(self) -> i64 {
        self.0
    }

    /// Adds `by`, up to the end of the year 9999.
    #[must_use]
    pub fn plus(self, by: Duration) -> Self {
        UtcTime::from_micros(self.0.saturating_add(i64::try_from(by.as_micros()).unwrap_or(i64::MAX)))
    }

    /// Subtracts `by`, down to the beginning of the year 0.
    #[must_use]
    pub fn minus(self, by: Duration) -> Self {
        UtcTime::from_micros(self.0.saturating_sub(i64::try_from(by.as_micros()).unwrap_or(i64::MAX)))
    }

    /// Returns the time since `earlier`; zero if `earlier` is later, because clocks can be set back.
    pub fn since(self, earlier: UtcTime) -> Duration {
        Duration::from_micros(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }

    /// Formats as RFC 3339 in UTC: `2026-01-19T07:08:09.000001Z`. For JSON and CSV; the database has its own form.
    pub fn rfc3339(self) -> String {
        format!("{}Z", self.to_string().replacen(' ', "T", 1))
    }

    /// Parses `YYYY-MM-DD HH:MM:SS` in UTC, with or without a fraction and the offset `+00:00`.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.strip_suffix("+00:00").unwrap_or(text);
        let (whole, fraction) = text.split_at_checked(19)?;
        let fraction = fraction.strip_prefix('.').or(fraction.is_empty().then_some("0"))?;
        let digits = !fraction.is_empty() && fraction.bytes().all(|byte| byte.is_ascii_digit());
        let civil: DateTime = text.parse().ok().filter(|_| digits && whole.as_bytes()[10] == b' ')?;
        let timestamp = Offset::UTC.to_timestamp(civil).ok()?;
        Some(UtcTime::from_micros(timestamp.as_microsecond()))
    }
}

/// Formats as `YYYY-MM-DD HH:MM:SS.ffffff`.
impl fmt::Display for UtcTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // In range by construction.
        let timestamp = Timestamp::from_microsecond(self.0).unwrap_or(Timestamp::UNIX_EPOCH);
        let civil = Offset::UTC.to_datetime(timestamp);
        let (date, time) = (civil.date(), civil.time());
        let micros = time.subsec_nanosecond() / 1_000;
        write!(
            f,
            "{:04}-{:02}-{:02} {:02}:{:02}:{:02}.{micros:06}",
            date.year(),
            date.month(),
            date.day(),
            time.hour(),
            time.minute(),
            time.second(),
        )
    }
}

impl fmt::Debug for UtcTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl serde::Serialize for UtcTime {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.rfc3339())
    }
}
