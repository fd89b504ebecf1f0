//! Ids of processed messages: window, scopes, claims and pruning.

use super::*;
use gristmill_store::processed::ClaimResult;

const QUEUE: &str = "orders";
const TICK: Duration = Duration::from_micros(1);

fn ids(ids: &[&str]) -> Vec<String> {
    ids.iter().map(|id| (*id).to_owned()).collect()
}

fn record(fixture: &Fixture, scope: &str, messages: &[&str]) {
    fixture.store.processed_ids().record(scope, ids(messages)).unwrap();
}

#[track_caller]
fn check(store: &Store, scope: &str, messages: &[&str], window: Duration, expected: &[bool]) {
    let found = store.processed_ids().contains(scope, &ids(messages), window).unwrap();
    assert_eq!(found, expected, "{scope}: {messages:?}");
}

pub(crate) fn id_is_contained_until_its_window_ends(fixture: &Fixture) {
    record(fixture, QUEUE, &["a", "b"]);
    fixture.advance(HOUR - TICK);
    check(&fixture.store, QUEUE, &["b", "c", "a", "a"], HOUR, &[true, false, true, true]);
    check(&fixture.store, QUEUE, &[], HOUR, &[]);
    fixture.advance(TICK);
    check(&fixture.store, QUEUE, &["a", "b"], HOUR, &[false, false]);
    // Each query has its own window.
    check(&fixture.store, QUEUE, &["a", "b"], HOUR + TICK, &[true, true]);
    check(&fixture.store, QUEUE, &["a"], Duration::MAX, &[true]);
    record(fixture, QUEUE, &["now"]);
    check(&fixture.store, QUEUE, &["now"], Duration::ZERO, &[false]);
    check(&fixture.store, QUEUE, &["now"], TICK, &[true]);
}

pub(crate) fn recording_an_id_again_restarts_its_window(fixture: &Fixture) {
    record(fixture, QUEUE, &["a", "b"]);
    fixture.advance(HOUR);
    record(fixture, QUEUE, &["a", "c", "a"]);
    record(fixture, QUEUE, &[]);
    fixture.advance(HOUR - TICK);
    check(&fixture.store, QUEUE, &["a", "b", "c"], HOUR, &[true, false, true]);
    assert_eq!(fixture.store.processed_ids().prune(QUEUE, HOUR, 10).unwrap(), 1, "each id has one row");
}

pub(crate) fn scopes_are_independent(fixture: &Fixture) {
    record(fixture, "a", &["b c", "x"]);
    record(fixture, "a b", &["c"]);
    for (scope, known) in [("a", [true, false, true]), ("a b", [false, true, false]), ("A", [false; 3])] {
        check(&fixture.store, scope, &["b c", "c", "x"], HOUR, &known);
    }
    fixture.advance(HOUR);
    assert_eq!(fixture.store.processed_ids().prune("A", HOUR, 10).unwrap(), 0);
    assert_eq!(fixture.store.processed_ids().prune("a", HOUR, 10).unwrap(), 2);
    check(&fixture.store, "a b", &["c"], 2 * HOUR, &[true]);
}

pub(crate) fn ids_are_compared_byte_for_byte(fixture: &Fixture) {
    let odd = ["a\0b", "1", "é", "'; --", "null", " a"];
    record(fixture, QUEUE, &odd);
    check(&fixture.store, QUEUE, &odd, HOUR, &[true; 6]);
    check(&fixture.store, QUEUE, &["a", "a\0c", "1.0", "01", "e\u{301}", "É", "NULL", "a "], HOUR, &[false; 8]);
}

pub(crate) fn prune_deletes_only_ids_outside_the_window(fixture: &Fixture) {
    let all: Vec<String> = (0..10).map(|n| n.to_string()).collect();
    for id in &all {
        fixture.store.processed_ids().record(QUEUE, vec![id.clone()]).unwrap();
        fixture.advance(SEC);
    }
    // The last was recorded a second ago, the first ten seconds ago.
    let window = 4 * SEC;
    let processed = |window| fixture.store.processed_ids().contains(QUEUE, &all, window).unwrap();
    let known = processed(window);
    assert_eq!(known.iter().filter(|known| **known).count(), 3);
    assert_eq!(fixture.store.processed_ids().prune(QUEUE, window, 0).unwrap(), 0);
    assert_eq!(fixture.store.processed_ids().prune(QUEUE, window, 4).unwrap(), 4, "at most the limit");
    assert_eq!(processed(Duration::MAX)[..6], [false, false, false, false, true, true], "oldest first");
    assert_eq!(fixture.store.processed_ids().prune(QUEUE, window, usize::MAX).unwrap(), 3);
    assert_eq!(fixture.store.processed_ids().prune(QUEUE, window, usize::MAX).unwrap(), 0);
    assert_eq!((processed(window), processed(Duration::MAX)), (known.clone(), known));
}

pub(crate) fn clock_set_back_keeps_recorded_ids(fixture: &Fixture) {
    record(fixture, QUEUE, &["a"]);
    fixture.set_back(HOUR);
    record(fixture, QUEUE, &["a", "b"]);
    check(&fixture.store, QUEUE, &["a", "b"], SEC, &[true, true]);
    assert_eq!(fixture.store.processed_ids().prune(QUEUE, SEC, 10).unwrap(), 0);
    fixture.advance(HOUR);
    check(&fixture.store, QUEUE, &["a", "b"], SEC, &[true, false]);
}

pub(crate) fn empty_id_or_scope_is_refused(fixture: &Fixture) {
    assert_refused(fixture.store.processed_ids().record(QUEUE, ids(&["a", ""])), invalid, &["without an id"]);
    assert_refused(fixture.store.processed_ids().record("", ids(&["a"])), invalid, &["scope"]);
    check(&fixture.store, QUEUE, &["a", ""], HOUR, &[false, false]);
    check(&fixture.store, "", &["a"], HOUR, &[false]);
}

pub(crate) fn claimed_message_is_in_progress_until_it_is_recorded_or_released(fixture: &Fixture) {
    let other = fixture.open_again();
    let claim = |store: &Store, scope, id| store.processed_ids().claim(scope, id, HOUR).unwrap();
    assert_eq!(claim(&fixture.store, QUEUE, "a"), ClaimResult::Claimed);
    assert_eq!(claim(&other, QUEUE, "a"), ClaimResult::InProgress);
    assert_eq!(claim(&other, "another queue", "a"), ClaimResult::Claimed);
    // The claim does not expire while its process runs.
    fixture.advance(100 * HOUR);
    assert_eq!(claim(&other, QUEUE, "a"), ClaimResult::InProgress);
    fixture.store.processed_ids().release(QUEUE, "a").unwrap();
    assert_eq!(claim(&other, QUEUE, "a"), ClaimResult::Claimed);
    other.processed_ids().record(QUEUE, ids(&["a"])).unwrap();
    assert_eq!(claim(&fixture.store, QUEUE, "a"), ClaimResult::AlreadyProcessed);
    fixture.advance(HOUR);
    assert_eq!(claim(&fixture.store, QUEUE, "a"), ClaimResult::Claimed);
}

pub(crate) fn recorded_ids_survive_closing_the_store(fixture: &Fixture) {
    record(fixture, QUEUE, &["a", "b"]);
    let other = fixture.open_again();
    check(&other, QUEUE, &["a", "c"], HOUR, &[true, false]);
    other.processed_ids().record(QUEUE, ids(&["c"])).unwrap();
    drop(other);
    check(&fixture.store, QUEUE, &["c"], HOUR, &[true]);
    fixture.store.close();
    assert_refused(fixture.store.processed_ids().record(QUEUE, ids(&["d"])), |error| *error == Error::Closed, &[]);
    assert_refused(fixture.store.processed_ids().prune(QUEUE, HOUR, 1), |error| *error == Error::Closed, &[]);
    check(&fixture.open_again(), QUEUE, &["a", "b", "c", "d"], HOUR, &[true, true, true, false]);
}

pub(crate) fn ids_are_claimed_and_released_together(fixture: &Fixture) {
    use ClaimResult::{AlreadyProcessed, Claimed, InProgress};
    let processed = fixture.store.processed_ids();
    let claim = |wanted| processed.claim_all(QUEUE, ids(wanted), HOUR).unwrap();
    record(fixture, QUEUE, &["done"]);
    assert_eq!(claim(&["a", "done", "b", "a"]), [Claimed, AlreadyProcessed, Claimed, InProgress]);
    processed.release_all(QUEUE, ids(&["a", "done"])).unwrap();
    assert_eq!(claim(&["a", "done", "b"]), [Claimed, AlreadyProcessed, InProgress]);
    assert_eq!(claim(&[]), []);
}
