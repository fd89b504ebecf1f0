use std::time::Duration;

use gristmill_store::rate_limits::THUMBNAIL_IO;

use crate::{Bench, seconds};

const MIB: u64 = 1 << 20;

impl Bench {
    /// Milliseconds to wait for so many MiB at 1 MiB a second.
    fn reserve(&self, mib: u64) -> u128 {
        self.store.rate_limits().reserve(THUMBNAIL_IO, mib * MIB, MIB).unwrap().as_millis()
    }
}

#[test]
fn each_waits_for_what_was_reserved_before() {
    let bench = Bench::new();
    assert_eq!((bench.reserve(3), bench.reserve(2), bench.reserve(1)), (0, 3_000, 5_000));
    assert_eq!(bench.second().rate_limits().reserve(THUMBNAIL_IO, 1, MIB).unwrap(), seconds(6));
    // The smallest reservation takes a millisecond.
    assert_eq!(bench.reserve(1), 6_001);
    // Other buckets are other buckets.
    assert_eq!(bench.store.rate_limits().reserve("other", MIB, MIB).unwrap(), Duration::ZERO);
    bench.pass(seconds(6));
    assert_eq!(bench.reserve(1), 1_001);
    // What was not used is not saved up.
    bench.pass(seconds(1_000));
    assert_eq!((bench.reserve(1), bench.reserve(1)), (0, 1_000));
}

#[test]
fn no_rate_is_no_limit() {
    let bench = Bench::new();
    bench.reserve(5);
    assert_eq!(bench.store.rate_limits().reserve(THUMBNAIL_IO, MIB, 0).unwrap(), Duration::ZERO);
    assert_eq!(bench.store.rate_limits().reserve(THUMBNAIL_IO, 0, MIB).unwrap(), Duration::ZERO);
    assert_eq!(bench.reserve(1), 5_000);
}

#[test]
fn a_clock_set_back_makes_nobody_wait_longer() {
    for back in [1, 30, 86_400] {
        let bench = Bench::new();
        bench.reserve(4);
        bench.turn_back(seconds(back));
        // Four seconds were ahead, and still are.
        assert_eq!((bench.reserve(1), bench.reserve(1)), (4_000, 5_000), "{back}");
    }
}

#[test]
fn an_absurd_row_is_started_anew() {
    let bench = Bench::new();
    bench.reserve(1);
    for next in ["9223372036854775807", "99999999999999"] {
        bench.sql(&format!("UPDATE io_rate_limits SET next_available_at_ms = {next}"));
        assert_eq!((bench.reserve(1), bench.reserve(1)), (0, 1_000), "{next}");
    }
    bench.sql("UPDATE io_rate_limits SET updated_at = 'long ago'");
    assert_eq!(bench.reserve(1), 2_000);
    // So is a row after a reservation beyond all measure.
    assert_eq!(bench.store.rate_limits().reserve("huge", u64::MAX, 1).unwrap(), Duration::ZERO);
    assert_eq!(bench.store.rate_limits().reserve("huge", u64::MAX, 1).unwrap(), Duration::ZERO);
}
