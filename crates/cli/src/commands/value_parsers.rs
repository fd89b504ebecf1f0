//! Values that several commands take: sizes, moments.
//!
//! Owns how they are read from the command line, and what is said of wrong ones.

use jiff::Timestamp;

use crate::settings::value::{self, DURATIONS, SIZE};

/// A size; a bare number is bytes.
pub(super) fn size(text: &str) -> Result<u64, String> {
    let size = value::size(text).or_else(|| text.parse().ok());
    size.ok_or_else(|| format!("legal: {SIZE}, or a number of bytes"))
}

/// A date, a moment, or how long ago.
pub(super) fn timestamp(text: &str) -> Result<Timestamp, String> {
    let legal = format!(
        "legal: a date such as 2026-01-31 (UTC), a moment such as 2026-01-31T12:00:00Z, or {DURATIONS}, for so long ago"
    );
    if let Some(ago) = value::duration(text) {
        let ago = jiff::SignedDuration::try_from(ago).map_err(|_| legal.clone())?;
        return Timestamp::now().checked_sub(ago).map_err(|_| legal);
    }
    let day = || {
        let date: jiff::civil::Date = text.parse().ok()?;
        Some(date.to_zoned(jiff::tz::TimeZone::UTC).ok()?.timestamp())
    };
    text.parse().ok().or_else(day).ok_or(legal)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        for (text, expected) in
            [("10", Some(10)), ("2KiB", Some(2_048)), ("10k", Some(10_240)), ("1TiB", Some(1 << 40))]
        {
            assert_eq!(size(text).ok(), expected, "{text}");
        }
        for text in ["", "10x", "1.5", "-1", "K"] {
            assert!(size(text).unwrap_err().contains("such as 10MiB, 1.5G or 200kB"), "{text}");
        }
    }

    #[test]
    fn moments() {
        for (text, expected) in [
            ("2026-01-31", "2026-01-31T00:00:00Z"),
            ("2026-01-31T12:00:00Z", "2026-01-31T12:00:00Z"),
            ("2026-01-31T12:00:00+02:00", "2026-01-31T10:00:00Z"),
        ] {
            assert_eq!(timestamp(text).unwrap().to_string(), expected);
        }
        assert!(timestamp("30d").unwrap() < Timestamp::now());
        for text in ["", "yesterday", "2026-02-30", "30", "99999999999d"] {
            assert!(timestamp(text).unwrap_err().contains("legal: a date such as"), "{text}");
        }
    }
}
