//! Numbers, sizes, durations and times as people read and write them.
//!
//! Owns their syntax in settings and arguments, such as `30s` and `64KiB`, and the text of durations and times in
//! output. Each setting checks its own range.

use std::time::Duration;

use gristmill_store::UtcTime;
pub(crate) use gristmill_store::text::{bytes, count_of, plural, thousands};

const TIMES: &[(&str, u64)] = &[("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

const SIZES: &[(&str, u64)] =
    &[("PiB", 1 << 50), ("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

/// Units in powers of 1,000, as disks are sold.
const DECIMAL_SIZES: &[(&str, u64)] = &[
    ("PB", 1_000_000_000_000_000),
    ("TB", 1_000_000_000_000),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("KB", 1_000),
];

pub(crate) const DURATIONS: &str = "a whole number and its unit, such as 500ms, 30s, 5m, 2h or 7d";

pub(crate) const SIZE: &str = "a number and its unit, such as 10MiB, 1.5G or 200kB (K, M, G, T, P and KiB, MiB, … are powers of 1024, kB, MB, … of 1000)";

/// Parses a duration such as `30s`, or several parts of one such as `1h30m`.
pub(crate) fn duration(text: &str) -> Option<Duration> {
    let mut rest = text.trim();
    let mut total = Duration::ZERO;
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let (number, unit) = rest.split_at(digits);
        let letters = unit.bytes().take_while(u8::is_ascii_alphabetic).count();
        let (unit, next) = unit.split_at(letters);
        let (_, millis) = TIMES.iter().find(|(name, _)| *name == unit)?;
        let part = number.parse::<u64>().ok()?.checked_mul(*millis)?;
        total = total.checked_add(Duration::from_millis(part))?;
        rest = next;
    }
    Some(total)
}

/// Formats a duration with the largest unit that divides it.
pub(crate) fn show_duration(duration: Duration) -> String {
    let millis = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    with_unit(millis, TIMES).unwrap_or_else(|| "0s".to_owned())
}

/// Parses a size such as `64KiB`, `64K`, `1.5 GiB` or `10MB`, in upper or lower case. As in the GNU tools, `K` and
/// `KiB` are 1,024 bytes and `kB` is 1,000. A part of a byte is dropped.
pub(crate) fn size(text: &str) -> Option<u64> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let unit = unit_bytes(unit.trim_start())?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    // Both sides of the decimal point have digits, and a number of bytes has no fraction.
    let digits = |part: &str| !part.is_empty() && part.len() <= 18 && part.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || !digits(fraction) || (unit == 1 && number.contains('.')) {
        return None;
    }
    let scale = 10_u128.pow(u32::try_from(fraction.len()).ok()?);
    let scaled = whole.parse::<u128>().ok()? * scale + fraction.parse::<u128>().ok()?;
    u64::try_from(scaled * u128::from(unit) / scale).ok()
}

fn unit_bytes(unit: &str) -> Option<u64> {
    let named = |name: &str| unit.eq_ignore_ascii_case(name);
    // K is short for KiB.
    let short = |name: &str| named(name.strip_suffix("iB").unwrap_or(name));
    let binary = SIZES.iter().find(|(name, _)| named(name) || short(name));
    binary.or_else(|| DECIMAL_SIZES.iter().find(|(name, _)| named(name))).map(|(_, bytes)| *bytes)
}

/// Formats a size with the largest unit that divides it.
pub(crate) fn show_size(bytes: u64) -> String {
    with_unit(bytes, SIZES).unwrap_or_else(|| "0B".to_owned())
}

fn with_unit(value: u64, units: &[(&str, u64)]) -> Option<String> {
    let fits = |(_, unit): &&(&str, u64)| value > 0 && value.is_multiple_of(*unit);
    units.iter().find(fits).map(|(name, unit)| format!("{}{name}", value / unit))
}

/// Formats a time in UTC, without its fraction of a second.
pub(crate) fn time(time: UtcTime) -> String {
    time.to_string().chars().take(19).collect()
}

pub(crate) fn utc(at: UtcTime) -> String {
    format!("{} UTC", time(at))
}

/// Converts the modification time of a file.
pub(crate) fn file_time(nanoseconds: i64) -> UtcTime {
    UtcTime::from_micros(nanoseconds.div_euclid(1_000))
}

/// Formats a duration with tenths of a second below a minute: `3.2 s`, `4:05 min`, `2:10 h`.
pub(crate) fn format_duration(seconds: f64) -> String {
    if seconds < 60.0 { format!("{seconds:.1} s") } else { format_seconds(seconds as u64) }
}

/// Formats how long something took, and its rate: `in 3.2 s (1,234/s)`.
pub(crate) fn in_seconds(count: u64, seconds: f64, show: fn(u64) -> String) -> String {
    let rate = if seconds > 0.0 { (count as f64 / seconds) as u64 } else { 0 };
    format!("in {} ({}/s)", format_duration(seconds), show(rate))
}

/// Formats the time since `then` with its largest unit: `42s`, `5m`, `3h`, `2d`.
pub(crate) fn age(then: UtcTime, now: UtcTime) -> String {
    match now.since(then).as_secs() {
        seconds @ 0..60 => format!("{seconds}s"),
        seconds @ 60..3_600 => format!("{}m", seconds / 60),
        seconds @ 3_600..86_400 => format!("{}h", seconds / 3_600),
        seconds => format!("{}d", seconds / 86_400),
    }
}

/// Formats whole seconds: `42 s`, `4:05 min`, `2:10 h`.
pub(crate) fn format_seconds(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3_600 => format!("{}:{:02} min", seconds / 60, seconds % 60),
        _ => format!("{}:{:02} h", seconds / 3_600, seconds / 60 % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_the_largest_fitting_unit() {
        for (seconds, expected) in
            [(0.04, "0.0 s"), (59.9, "59.9 s"), (60.0, "1:00 min"), (3_599.0, "59:59 min"), (7_260.0, "2:01 h")]
        {
            assert_eq!(format_duration(seconds), expected);
        }
    }

    #[test]
    fn ages_have_their_largest_unit() {
        for (seconds, expected) in
            [(-5, "0s"), (59, "59s"), (60, "1m"), (7_199, "1h"), (86_400, "1d"), (9_000_000, "104d")]
        {
            let now = UtcTime::from_micros(seconds * 1_000_000);
            assert_eq!(age(UtcTime::from_micros(0), now), expected);
        }
    }
}
