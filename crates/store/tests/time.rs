//! Timestamps: text forms, range and order.

use std::time::Duration;

use gristmill_store::UtcTime;
use proptest::prelude::*;

/// Microseconds of the earliest and the latest time.
const MIN_MICROS: i64 = -62_167_219_200_000_000;
const MAX_MICROS: i64 = 253_402_207_199_999_999;

#[track_caller]
fn check(text: &str, long: Option<&str>) {
    assert_eq!(UtcTime::parse(text).map(|time| time.to_string()).as_deref(), long, "{text:?}");
}

#[test]
fn parse_accepts_both_lengths_and_a_utc_offset() {
    check("2026-01-19 07:08:09", Some("2026-01-19 07:08:09.000000"));
    check("2026-01-19 07:08:09.000001", Some("2026-01-19 07:08:09.000001"));
    check("1969-12-31 23:59:59.5", Some("1969-12-31 23:59:59.500000"));
    check("2026-01-19 07:08:09.25+00:00", Some("2026-01-19 07:08:09.250000"));
    check("2026-01-19 07:08:09+00:00", Some("2026-01-19 07:08:09.000000"));
    check("0000-01-01 00:00:00", Some("0000-01-01 00:00:00.000000"));
    check("9999-12-30 21:59:59.999999", Some("9999-12-30 21:59:59.999999"));
}

#[test]
fn parse_rejects_other_texts() {
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
fn json_form_is_rfc_3339() {
    let time = UtcTime::parse("2026-01-19 07:08:09.000001").unwrap();
    assert_eq!(serde_json::to_string(&time).unwrap(), "\"2026-01-19T07:08:09.000001Z\"");
}

#[test]
fn arithmetic_is_clamped_to_the_valid_range() {
    let far = Duration::MAX;
    assert_eq!(UtcTime::from_micros(0).plus(far).to_string(), "9999-12-30 21:59:59.999999");
    assert_eq!(UtcTime::from_micros(0).minus(far).to_string(), "0000-01-01 00:00:00.000000");
    assert_eq!(UtcTime::from_micros(5).since(UtcTime::from_micros(9)), Duration::ZERO);
}

proptest! {
    #[test]
    fn formatted_time_parses_to_the_same_value(micros in MIN_MICROS..=MAX_MICROS) {
        let time = UtcTime::from_micros(micros);
        prop_assert_eq!(UtcTime::parse(&time.to_string()), Some(time));
    }

    #[test]
    fn short_text_orders_as_its_time_against_a_long_one(a in MIN_MICROS..=MAX_MICROS, b in MIN_MICROS..=MAX_MICROS) {
        let (whole, b) = (UtcTime::from_micros(a - a.rem_euclid(1_000_000)), UtcTime::from_micros(b));
        let short = &whole.to_string()[..19];
        prop_assert_eq!(short <= b.to_string().as_str(), whole <= b);
        prop_assert_eq!(short > b.to_string().as_str(), whole > b);
    }
}
