//! Stream positions of consumers.

use super::*;

pub(crate) fn position_is_stored_per_stream_and_consumer(fixture: &Fixture) {
    let positions = fixture.store.positions();
    assert_eq!(positions.get("events", "a").unwrap(), None);
    positions.record("events", "a", 7).unwrap();
    positions.record("events", "b", 0).unwrap();
    positions.record("events", "a", 5).unwrap();
    assert_eq!(positions.get("events", "a").unwrap(), Some(5));
    assert_eq!(positions.get("events", "b").unwrap(), Some(0));
    assert_eq!(positions.get("others", "a").unwrap(), None);
    assert!(positions.record("", "a", 1).is_err() && positions.record("events", "a", u64::MAX).is_err());
}
