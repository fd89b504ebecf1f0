//! Messages that were started and have not ended: counts, ages and pruning.

use super::*;
use gristmill_store::message_runs::RunKey;

fn key(number: u8, copy: u32) -> RunKey {
    RunKey { fingerprint: [number; 16], copy }
}

fn counts(store: &Store, scope: &str) -> Vec<(u8, u32, u32, u32)> {
    let runs = store.message_runs().list(scope, 100).unwrap();
    let mut all: Vec<_> =
        runs.iter().map(|run| (run.key.fingerprint[0], run.key.copy, run.starts, run.failed)).collect();
    all.sort_unstable();
    all
}

pub(crate) fn starts_are_counted_up_to_the_limit_per_scope_and_copy(fixture: &Fixture) {
    let runs = fixture.store.message_runs();
    let counted: Vec<_> = (0..4).map(|_| runs.start("q", key(1, 0), 3).unwrap()).collect();
    assert_eq!(counted, [Some(1), Some(2), Some(3), None]);
    assert_eq!(runs.start("q", key(1, 1), 3).unwrap(), Some(1));
    assert_eq!(runs.start("other", key(1, 0), 3).unwrap(), Some(1));
    let together = runs.start_all("third", vec![key(1, 0), key(2, 0), key(1, 0)], 1).unwrap();
    assert_eq!(together, [Some(1), Some(1), None]);
    assert_eq!(counts(&fixture.store, "q"), [(1, 0, 3, 0), (1, 1, 1, 0)]);
    runs.finish("q", vec![key(1, 0), key(9, 9)]).unwrap();
    assert_eq!(counts(&fixture.store, "q"), [(1, 1, 1, 0)]);
    assert_eq!(counts(&fixture.store, "other"), [(1, 0, 1, 0)]);
    assert!(runs.start("", key(1, 0), 3).is_err());
}

pub(crate) fn failed_attempt_clears_starts_and_undone_start_deletes_the_run(fixture: &Fixture) {
    let runs = fixture.store.message_runs();
    runs.start("q", key(1, 0), 3).unwrap();
    runs.fail("q", key(1, 0), 2, "no".to_owned()).unwrap();
    runs.start("q", key(2, 0), 3).unwrap();
    assert_eq!(counts(&fixture.store, "q"), [(1, 0, 0, 2), (2, 0, 1, 0)]);
    assert_eq!(runs.start("q", key(1, 0), 3).unwrap(), Some(1));
    runs.undo_starts("q", vec![key(1, 0), key(2, 0), key(3, 0)]).unwrap();
    assert_eq!(counts(&fixture.store, "q"), [(1, 0, 0, 2)]);
    assert_eq!(runs.list("q", 1).unwrap()[0].error.as_deref(), Some("no"));
}

pub(crate) fn prune_deletes_old_runs_up_to_the_limit(fixture: &Fixture) {
    let runs = fixture.store.message_runs();
    for number in 0..5 {
        runs.start("q", key(number, 0), 3).unwrap();
    }
    assert_eq!(runs.prune(Duration::from_secs(3600), 10).unwrap(), 0);
    assert_eq!(runs.prune(Duration::ZERO, 3).unwrap(), 3);
    assert_eq!(counts(&fixture.store, "q").len(), 2);
}

pub(crate) fn age_counts_from_the_last_failure(fixture: &Fixture) {
    let (runs, minute) = (fixture.store.message_runs(), Duration::from_secs(60));
    let age = || runs.list("q", 1).unwrap()[0].age;
    runs.start("q", key(1, 0), 3).unwrap();
    fixture.advance(minute);
    assert_eq!(age(), minute);
    runs.fail("q", key(1, 0), 1, "no".to_owned()).unwrap();
    fixture.advance(minute);
    // Neither a start nor its reversal is a failure.
    runs.start("q", key(1, 0), 3).unwrap();
    assert_eq!(age(), minute);
    runs.undo_starts("q", vec![key(1, 0)]).unwrap();
    assert_eq!(age(), minute);
}
