//! Moments, as the database writes them, and the clock that tells them.
//!
//! Owns the text form `YYYY-MM-DD HH:MM:SS[.ffffff]` in UTC. Both lengths are read, and with `+00:00` behind them,
//! which the other side's database driver adds; the long one is written. In the tables that only we write, SQL
//! compares such texts only as `column <= long` and `column > long`: for these two a short text, which is a
//! prefix of the long text of the same moment, compares as its moment does. Elsewhere see `lease::moment`.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::Offset;

/// A moment, exact to the microsecond.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UtcTime(i64);

/// The last moment there is, 9999-12-30 21:59:59.999999: a day with any offset still has a year of four digits.
const MAX_MICROS: i64 = 253_402_207_199_999_999;
/// The first one, 0000-01-01 00:00:00.
const MIN_MICROS: i64 = -62_167_219_200_000_000;

impl UtcTime {
    /// From microseconds since 1970-01-01 00:00:00 UTC; what no text can hold becomes the nearest it can.
    pub const fn from_micros(micros: i64) -> Self {
        UtcTime(if micros > MAX_MICROS {
            MAX_MICROS
        } else if micros < MIN_MICROS {
            MIN_MICROS
        } else {
            micros
        })
    }

    /// Microseconds since 1970-01-01 00:00:00 UTC.
    pub const fn micros(self) -> i64 {
        self.0
    }

    /// Later by `by`, at most the end of the year 9999.
    #[must_use]
    pub fn plus(self, by: Duration) -> Self {
        UtcTime::from_micros(self.0.saturating_add(i64::try_from(by.as_micros()).unwrap_or(i64::MAX)))
    }

    /// Earlier by `by`, at least the beginning of the year 0.
    #[must_use]
    pub fn minus(self, by: Duration) -> Self {
        UtcTime::from_micros(self.0.saturating_sub(i64::try_from(by.as_micros()).unwrap_or(i64::MAX)))
    }

    /// How long after `earlier` this is; nothing when it is not after it (clocks can be set back).
    pub fn since(self, earlier: UtcTime) -> Duration {
        Duration::from_micros(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }

    /// As RFC 3339 has it, in UTC: `2026-01-19T07:08:09.000001Z`. For JSON and CSV; the database has its own form.
    pub fn rfc3339(self) -> String {
        format!("{}Z", self.to_string().replacen(' ', "T", 1))
    }

    /// Reads `YYYY-MM-DD HH:MM:SS`, with or without a fraction, in UTC. An offset of `+00:00` may follow.
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

/// The long text form.
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

/// What time it is: the system's, or a test's.
#[derive(Clone, Debug, Default)]
pub struct WallClock(Option<Arc<AtomicI64>>);

impl WallClock {
    /// The system's clock. It may be set back at any time; nothing here relies on it going forward.
    pub fn system() -> Self {
        WallClock(None)
    }

    /// A clock that stands at `at` until it is [`set`](WallClock::set). Its clones are the same clock.
    pub fn manual(at: UtcTime) -> Self {
        WallClock(Some(Arc::new(AtomicI64::new(at.micros()))))
    }

    /// The time now.
    pub fn now(&self) -> UtcTime {
        match &self.0 {
            None => UtcTime::from_micros(Timestamp::now().as_microsecond()),
            Some(micros) => UtcTime::from_micros(micros.load(Ordering::SeqCst)),
        }
    }

    /// Moves a manual clock, forward or back. The system's clock is not ours to move.
    pub fn set(&self, at: UtcTime) {
        if let Some(micros) = &self.0 {
            micros.store(at.micros(), Ordering::SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[track_caller]
    fn check(text: &str, long: Option<&str>) {
        assert_eq!(UtcTime::parse(text).map(|time| time.to_string()).as_deref(), long, "{text:?}");
    }

    #[test]
    fn both_lengths_are_read() {
        check("2026-01-19 07:08:09", Some("2026-01-19 07:08:09.000000"));
        check("2026-01-19 07:08:09.000001", Some("2026-01-19 07:08:09.000001"));
        check("1969-12-31 23:59:59.5", Some("1969-12-31 23:59:59.500000"));
        check("2026-01-19 07:08:09.25+00:00", Some("2026-01-19 07:08:09.250000"));
        check("2026-01-19 07:08:09+00:00", Some("2026-01-19 07:08:09.000000"));
        check("0000-01-01 00:00:00", Some("0000-01-01 00:00:00.000000"));
        check("9999-12-30 21:59:59.999999", Some("9999-12-30 21:59:59.999999"));
    }

    #[test]
    fn other_texts_are_not() {
        for text in [
            "",
            "now",
            "2026-01-19",
            "2026-01-19T07:08:09",
            "2026-13-01 00:00:00",
            "2026-01-19 07:08:09.",
            "2026-01-19 07:08:09+01:00",
        ] {
            check(text, None);
        }
    }

    #[test]
    fn json_has_the_zone() {
        let time = UtcTime::parse("2026-01-19 07:08:09.000001").unwrap();
        assert_eq!(serde_json::to_string(&time).unwrap(), "\"2026-01-19T07:08:09.000001Z\"");
    }

    #[test]
    fn time_stops_at_its_ends() {
        let far = Duration::MAX;
        assert_eq!(UtcTime::from_micros(0).plus(far).to_string(), "9999-12-30 21:59:59.999999");
        assert_eq!(UtcTime::from_micros(0).minus(far).to_string(), "0000-01-01 00:00:00.000000");
        assert_eq!(UtcTime::from_micros(5).since(UtcTime::from_micros(9)), Duration::ZERO);
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(micros in MIN_MICROS..=MAX_MICROS) {
            let time = UtcTime::from_micros(micros);
            prop_assert_eq!(UtcTime::parse(&time.to_string()), Some(time));
        }

        #[test]
        fn texts_order_as_times_against_a_long_one(a in MIN_MICROS..=MAX_MICROS, b in MIN_MICROS..=MAX_MICROS) {
            let (whole, b) = (UtcTime::from_micros(a - a.rem_euclid(1_000_000)), UtcTime::from_micros(b));
            let short = &whole.to_string()[..19];
            prop_assert_eq!(short <= b.to_string().as_str(), whole <= b);
            prop_assert_eq!(short > b.to_string().as_str(), whole > b);
        }
    }
}
