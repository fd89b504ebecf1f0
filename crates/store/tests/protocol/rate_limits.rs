use std::time::Duration;

use gristmill_pool::CancelToken;
use gristmill_store::rate_limits::{RateLimiter, THUMBNAIL_IO};

use crate::{Fixture, seconds};

const MIB: u64 = 1 << 20;

impl Fixture {
    /// Reserves `mib` MiB at 1 MiB/s and returns the wait in milliseconds.
    fn reserve(&self, mib: u64) -> u128 {
        self.store.rate_limits().reserve(THUMBNAIL_IO, mib * MIB, MIB).unwrap().as_millis()
    }
}

#[test]
fn reservation_waits_for_earlier_reservations() {
    let fixture = Fixture::new();
    assert_eq!((fixture.reserve(3), fixture.reserve(2), fixture.reserve(1)), (0, 3_000, 5_000));
    assert_eq!(fixture.second().rate_limits().reserve(THUMBNAIL_IO, 1, MIB).unwrap(), seconds(6));
    // The smallest reservation takes a millisecond.
    assert_eq!(fixture.reserve(1), 6_001);
    // Buckets are independent.
    assert_eq!(fixture.store.rate_limits().reserve("other", MIB, MIB).unwrap(), Duration::ZERO);
    fixture.advance(seconds(6));
    assert_eq!(fixture.reserve(1), 1_001);
    // Unused capacity is not saved.
    fixture.advance(seconds(1_000));
    assert_eq!((fixture.reserve(1), fixture.reserve(1)), (0, 1_000));
}

#[test]
fn rate_of_zero_is_unlimited() {
    let fixture = Fixture::new();
    fixture.reserve(5);
    assert_eq!(fixture.store.rate_limits().reserve(THUMBNAIL_IO, MIB, 0).unwrap(), Duration::ZERO);
    assert_eq!(fixture.store.rate_limits().reserve(THUMBNAIL_IO, 0, MIB).unwrap(), Duration::ZERO);
    assert_eq!(fixture.reserve(1), 5_000);
}

#[test]
fn clock_set_back_does_not_extend_the_wait() {
    for back in [1, 30, 86_400] {
        let fixture = Fixture::new();
        fixture.reserve(4);
        fixture.set_back(seconds(back));
        // Four seconds were reserved before and after.
        assert_eq!((fixture.reserve(1), fixture.reserve(1)), (4_000, 5_000), "{back}");
    }
}

#[test]
fn row_with_an_impossible_backlog_is_reset() {
    let fixture = Fixture::new();
    fixture.reserve(1);
    for next in ["9223372036854775807", "99999999999999"] {
        fixture.sql(&format!("UPDATE io_rate_limits SET next_available_at_ms = {next}"));
        assert_eq!((fixture.reserve(1), fixture.reserve(1)), (0, 1_000), "{next}");
    }
    fixture.sql("UPDATE io_rate_limits SET updated_at = 'long ago'");
    assert_eq!(fixture.reserve(1), 2_000);
    // A row after an excessive reservation is reset, too.
    assert_eq!(fixture.store.rate_limits().reserve("huge", u64::MAX, 1).unwrap(), Duration::ZERO);
    assert_eq!(fixture.store.rate_limits().reserve("huge", u64::MAX, 1).unwrap(), Duration::ZERO);
}

#[test]
fn reader_waits_for_the_bytes_before_its_own_or_for_the_cancellation() {
    let (open, cancelled) = (CancelToken::new(), CancelToken::new());
    cancelled.cancel();
    let unlimited = RateLimiter::new(0);
    assert!(!unlimited.is_limited() && unlimited.acquire(u64::MAX, &open));
    assert!(!unlimited.acquire(1, &cancelled));
    let limited = RateLimiter::new(1);
    assert!(limited.is_limited() && limited.acquire(3_600, &open), "nothing was read before");
    assert!(!limited.acquire(0, &cancelled));
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| limited.acquire(1, &open));
        open.cancel();
        assert!(!waits.join().unwrap(), "an hour is left");
    });
}
