//! Numbers and sizes as people read them, in output and reports.

/// Formats a number with its noun: `1 file`, `2 files`.
pub fn plural(count: u64, noun: &str) -> String {
    format!("{count} {}", noun_for(count, noun))
}

/// Formats a number that may be large with its noun: `1,234 files`.
pub fn count_of(count: u64, noun: &str) -> String {
    format!("{} {}", thousands(count), noun_for(count, noun))
}

fn noun_for(count: u64, noun: &str) -> String {
    match noun.strip_suffix('y') {
        _ if count == 1 => noun.to_owned(),
        Some(stem) if !stem.ends_with(['a', 'e', 'o']) => format!("{stem}ies"),
        _ => format!("{noun}s"),
    }
}

/// Formats a number of bytes with one decimal: `8.3 MiB`.
pub fn bytes(number: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if number < 1_024 {
        return format!("{number} B");
    }
    let mut value = number as f64 / 1_024.0;
    let mut unit = 0;
    // 1,023.95 and more would be rounded to 1024.0.
    while value >= 1_023.95 && unit + 1 < UNITS.len() {
        value /= 1_024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS.get(unit).unwrap_or(&"EiB"))
}

/// Formats a number with commas between thousands: `1,234,567`.
pub fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nouns_follow_their_number() {
        for (count, noun, expected) in
            [(0, "copy", "0 copies"), (1, "copy", "1 copy"), (2, "day", "2 days"), (1_234, "file", "1,234 files")]
        {
            assert_eq!(count_of(count, noun), expected);
        }
    }

    #[test]
    fn sizes_have_one_decimal_and_the_largest_fitting_unit() {
        for (size, text) in [
            (0, "0 B"),
            (1_023, "1023 B"),
            (10_240, "10.0 KiB"),
            (1_048_575, "1.0 MiB"),
            (1_288_490_189, "1.2 GiB"),
            (u64::MAX, "16.0 EiB"),
        ] {
            assert_eq!(bytes(size), text);
        }
    }
}
