//! Messages that were seen before: for how long, by whom, and what is forgotten.

use super::*;
use gristmill_store::processed::ClaimResult;

const QUEUE: &str = "orders";
const TICK: Duration = Duration::from_micros(1);

fn ids(ids: &[&str]) -> Vec<String> {
    ids.iter().map(|id| (*id).to_owned()).collect()
}

fn record(mill: &Mill, scope: &str, of: &[&str]) {
    mill.store.processed_ids().record(scope, ids(of)).unwrap();
}

#[track_caller]
fn check(store: &Store, scope: &str, of: &[&str], window: Duration, known: &[bool]) {
    assert_eq!(store.processed_ids().contains(scope, &ids(of), window).unwrap(), known, "{scope}: {of:?}");
}

pub(crate) fn a_message_is_known_until_its_window_is_over(mill: &Mill) {
    record(mill, QUEUE, &["a", "b"]);
    mill.advance(HOUR - TICK);
    check(&mill.store, QUEUE, &["b", "c", "a", "a"], HOUR, &[true, false, true, true]);
    check(&mill.store, QUEUE, &[], HOUR, &[]);
    mill.advance(TICK);
    check(&mill.store, QUEUE, &["a", "b"], HOUR, &[false, false]);
    // How long it was to be remembered is asked, not written.
    check(&mill.store, QUEUE, &["a", "b"], HOUR + TICK, &[true, true]);
    check(&mill.store, QUEUE, &["a"], Duration::MAX, &[true]);
    record(mill, QUEUE, &["now"]);
    check(&mill.store, QUEUE, &["now"], Duration::ZERO, &[false]);
    check(&mill.store, QUEUE, &["now"], TICK, &[true]);
}

pub(crate) fn what_is_recorded_again_counts_from_then_on(mill: &Mill) {
    record(mill, QUEUE, &["a", "b"]);
    mill.advance(HOUR);
    record(mill, QUEUE, &["a", "c", "a"]);
    record(mill, QUEUE, &[]);
    mill.advance(HOUR - TICK);
    check(&mill.store, QUEUE, &["a", "b", "c"], HOUR, &[true, false, true]);
    assert_eq!(mill.store.processed_ids().prune(QUEUE, HOUR, 10).unwrap(), 1, "each is there once");
}

pub(crate) fn scopes_do_not_see_each_other(mill: &Mill) {
    record(mill, "a", &["b c", "x"]);
    record(mill, "a b", &["c"]);
    for (scope, known) in [("a", [true, false, true]), ("a b", [false, true, false]), ("A", [false; 3])] {
        check(&mill.store, scope, &["b c", "c", "x"], HOUR, &known);
    }
    mill.advance(HOUR);
    assert_eq!(mill.store.processed_ids().prune("A", HOUR, 10).unwrap(), 0);
    assert_eq!(mill.store.processed_ids().prune("a", HOUR, 10).unwrap(), 2);
    check(&mill.store, "a b", &["c"], 2 * HOUR, &[true]);
}

pub(crate) fn ids_are_told_apart_to_the_byte(mill: &Mill) {
    let odd = ["a\0b", "1", "é", "'; --", "null", " a"];
    record(mill, QUEUE, &odd);
    check(&mill.store, QUEUE, &odd, HOUR, &[true; 6]);
    check(&mill.store, QUEUE, &["a", "a\0c", "1.0", "01", "e\u{301}", "É", "NULL", "a "], HOUR, &[false; 8]);
}

pub(crate) fn pruning_forgets_what_is_not_known_any_more_and_nothing_else(mill: &Mill) {
    let all: Vec<String> = (0..10).map(|n| n.to_string()).collect();
    for id in &all {
        mill.store.processed_ids().record(QUEUE, vec![id.clone()]).unwrap();
        mill.advance(SEC);
    }
    // The last was recorded a second ago, the first ten seconds ago.
    let window = 4 * SEC;
    let seen = |window| mill.store.processed_ids().contains(QUEUE, &all, window).unwrap();
    let known = seen(window);
    assert_eq!(known.iter().filter(|known| **known).count(), 3);
    assert_eq!(mill.store.processed_ids().prune(QUEUE, window, 0).unwrap(), 0);
    assert_eq!(mill.store.processed_ids().prune(QUEUE, window, 4).unwrap(), 4, "no more than the limit");
    assert_eq!(seen(Duration::MAX)[..6], [false, false, false, false, true, true], "the oldest first");
    assert_eq!(mill.store.processed_ids().prune(QUEUE, window, usize::MAX).unwrap(), 3);
    assert_eq!(mill.store.processed_ids().prune(QUEUE, window, usize::MAX).unwrap(), 0);
    assert_eq!((seen(window), seen(Duration::MAX)), (known.clone(), known));
}

pub(crate) fn a_clock_set_back_forgets_nothing(mill: &Mill) {
    record(mill, QUEUE, &["a"]);
    mill.set_back(HOUR);
    record(mill, QUEUE, &["a", "b"]);
    check(&mill.store, QUEUE, &["a", "b"], SEC, &[true, true]);
    assert_eq!(mill.store.processed_ids().prune(QUEUE, SEC, 10).unwrap(), 0);
    mill.advance(HOUR);
    check(&mill.store, QUEUE, &["a", "b"], SEC, &[true, false]);
}

pub(crate) fn what_cannot_be_known_again_is_refused(mill: &Mill) {
    refused(mill.store.processed_ids().record(QUEUE, ids(&["a", ""])), invalid, &["without an id"]);
    refused(mill.store.processed_ids().record("", ids(&["a"])), invalid, &["scope"]);
    check(&mill.store, QUEUE, &["a", ""], HOUR, &[false, false]);
    check(&mill.store, "", &["a"], HOUR, &[false]);
}

pub(crate) fn claimed_message_is_in_progress_until_it_is_recorded_or_released(mill: &Mill) {
    let other = mill.again();
    let claim = |store: &Store, scope, id| store.processed_ids().claim(scope, id, HOUR).unwrap();
    assert_eq!(claim(&mill.store, QUEUE, "a"), ClaimResult::Claimed);
    assert_eq!(claim(&other, QUEUE, "a"), ClaimResult::InProgress);
    assert_eq!(claim(&other, "another queue", "a"), ClaimResult::Claimed);
    // However long it takes: its process is running.
    mill.advance(100 * HOUR);
    assert_eq!(claim(&other, QUEUE, "a"), ClaimResult::InProgress);
    mill.store.processed_ids().release(QUEUE, "a").unwrap();
    assert_eq!(claim(&other, QUEUE, "a"), ClaimResult::Claimed);
    other.processed_ids().record(QUEUE, ids(&["a"])).unwrap();
    assert_eq!(claim(&mill.store, QUEUE, "a"), ClaimResult::AlreadyProcessed);
    mill.advance(HOUR);
    assert_eq!(claim(&mill.store, QUEUE, "a"), ClaimResult::Claimed);
}

pub(crate) fn what_was_seen_outlives_the_store(mill: &Mill) {
    record(mill, QUEUE, &["a", "b"]);
    let other = mill.again();
    check(&other, QUEUE, &["a", "c"], HOUR, &[true, false]);
    other.processed_ids().record(QUEUE, ids(&["c"])).unwrap();
    drop(other);
    check(&mill.store, QUEUE, &["c"], HOUR, &[true]);
    mill.store.close();
    refused(mill.store.processed_ids().record(QUEUE, ids(&["d"])), |error| *error == Error::Closed, &[]);
    refused(mill.store.processed_ids().prune(QUEUE, HOUR, 1), |error| *error == Error::Closed, &[]);
    check(&mill.again(), QUEUE, &["a", "b", "c", "d"], HOUR, &[true, true, true, false]);
}
