//! Checkpoints of tasks.

use gristmill_store::tasks::{Disposition, TaskStatus};

use super::*;

pub(crate) fn checkpoints_are_ordered_by_first_save_and_replaced(fixture: &Fixture) {
    let task = fixture.enqueue_and_claim();
    for (nth, step) in ["z", "a", "m", "a"].iter().enumerate() {
        fixture.save_checkpoint(&task, step, &format!("  [{nth}, \"石\"] ")).unwrap();
        fixture.advance(SEC);
    }
    let saved = fixture.store.checkpoints().list(task.id).unwrap();
    let found: Vec<_> = saved.iter().map(|one| (one.step.as_str(), one.data.as_str(), one.updated_at)).collect();
    // Ordered by when a step was first saved.
    assert_eq!(
        found,
        [
            ("z", "  [0, \"石\"] ", noon()),
            ("a", "  [3, \"石\"] ", after(3 * SEC)),
            ("m", "  [2, \"石\"] ", after(2 * SEC)),
        ]
    );
    let other = fixture.enqueue_and_claim();
    assert_eq!(fixture.checkpoints(other.id), []);
}

pub(crate) fn checkpoint_with_a_wrong_token_is_refused(fixture: &Fixture) {
    let id = fixture.enqueue_plain();
    let save = |id: i64| fixture.store.checkpoints().save(id, &fixture.worker.token(), "a", "1");
    assert_refused(save(id), conflict, &[&id.to_string()]);
    let task = fixture.claim_one();
    assert_refused(save(id), conflict, &[&id.to_string()]);
    assert_refused(save(77), conflict, &["77"]);
    let other = fixture.enqueue_and_claim();
    assert_refused(fixture.store.checkpoints().save(id, &other.token, "a", "1"), conflict, &[]);
    assert_eq!(fixture.checkpoints(id), []);
    fixture.save_checkpoint(&task, "a", "1").unwrap();
    assert_refused(fixture.store.checkpoints().save(id, &other.token, "a", "2"), conflict, &[]);
    assert_eq!(fixture.checkpoints(id), [("a".to_owned(), "1".to_owned())]);
}

pub(crate) fn checkpoint_that_is_not_json_is_refused(fixture: &Fixture) {
    let task = fixture.enqueue_and_claim();
    let deep = "[".repeat(5_000) + &"]".repeat(5_000);
    for data in ["", "{", "{'a': 1}", "\"\u{0}\"", &deep] {
        assert_refused(fixture.save_checkpoint(&task, "upload", data), invalid, &["upload"]);
    }
    assert_eq!(fixture.checkpoints(task.id), []);
}

pub(crate) fn completion_deletes_the_checkpoints(fixture: &Fixture) {
    let (task, other) = (fixture.enqueue_and_claim(), fixture.enqueue_and_claim());
    for task in [&task, &other] {
        fixture.save_checkpoint(task, "a", "1").unwrap();
        fixture.save_checkpoint(task, "b", "1").unwrap();
    }
    fixture.settle(&task, Disposition::Completed(None));
    assert_eq!((fixture.checkpoints(task.id).len(), fixture.checkpoints(other.id).len()), (0, 2));
}

pub(crate) fn checkpoints_survive_every_disposition_except_completion(fixture: &Fixture) {
    let id = fixture.enqueue_plain();
    let saved = [("a".to_owned(), "1".to_owned())];
    let task = fixture.claim_one();
    fixture.save_checkpoint(&task, "a", "1").unwrap();
    fixture.settle(&task, Disposition::Retry(noon(), failure("x")));
    assert_eq!(fixture.checkpoints(id), saved);
    fixture.settle(&fixture.claim_one(), Disposition::Released);
    assert_eq!(fixture.checkpoints(id), saved);
    fixture.settle(&fixture.claim_one(), Disposition::Postponed(noon()));
    assert_eq!(fixture.checkpoints(id), saved);
    let task = fixture.claim_one();
    fixture.advance(LEASE);
    assert_eq!(fixture.heartbeat(&task), HeartbeatResult::Kept);
    assert_eq!(fixture.checkpoints(id), saved);
    fixture.advance(LEASE);
    fixture.store.tasks().recover(NEVER).unwrap();
    assert_eq!(fixture.checkpoints(id), saved);
    // An update that is lost deletes nothing.
    assert_eq!(fixture.settle(&task, Disposition::Completed(None)), UpdateResult::Lost);
    assert_eq!(fixture.checkpoints(id), saved);
}

pub(crate) fn delete_orphans_keeps_recent_checkpoints_and_those_of_unfinished_tasks(fixture: &Fixture) {
    // A worker that does not set `checkpointed` leaves the checkpoints.
    let complete_with_checkpoints = || {
        let task = fixture.enqueue_and_claim();
        fixture.save_checkpoint(&task, "a", "1").unwrap();
        fixture.save_checkpoint(&task, "b", "1").unwrap();
        let update = TaskUpdate { checkpointed: false, ..task_update(&task, Disposition::Completed(None)) };
        assert_eq!(fixture.store.tasks().settle_and_claim(vec![update], vec![]).unwrap().results, [UpdateResult::Done]);
        task.id
    };
    let old = complete_with_checkpoints();
    let with_checkpoint = || {
        let task = fixture.enqueue_and_claim();
        fixture.save_checkpoint(&task, "a", "1").unwrap();
        task
    };
    let (scheduled, running, pending) = (with_checkpoint(), with_checkpoint(), with_checkpoint());
    fixture.settle(&scheduled, Disposition::Retry(after(9 * HOUR), failure("x")));
    fixture.settle(&pending, Disposition::Released);
    let pending_status = fixture.status(pending.id);
    assert_eq!(pending_status, TaskStatus::Pending);
    assert_eq!(fixture.claim_one().id, pending.id);
    fixture.advance(HOUR);
    let young = complete_with_checkpoints();
    let unfinished = [scheduled.id, running.id, pending.id];
    assert_eq!(fixture.store.checkpoints().delete_orphans(after(HOUR / 2)).unwrap(), 2);
    assert_eq!((fixture.checkpoints(old).len(), fixture.checkpoints(young).len()), (0, 2));
    assert_eq!(fixture.store.checkpoints().delete_orphans(after(9 * HOUR)).unwrap(), 2);
    assert_eq!(fixture.checkpoints(young), []);
    assert_eq!(unfinished.map(|id| fixture.checkpoints(id).len()), [1, 1, 1]);
}

pub(crate) fn list_for_claim_is_refused_to_a_previous_owner(fixture: &Fixture) {
    let find = |task: &ClaimedTask| fixture.store.checkpoints().list_for_claim(task.id, &task.token);
    let old = fixture.enqueue_and_claim();
    assert_eq!(find(&old), Ok(vec![]));
    fixture.save_checkpoint(&old, "one", "1").unwrap();
    assert_eq!(find(&old).unwrap()[0].step, "one");
    fixture.advance(LEASE);
    fixture.store.tasks().recover(NEVER).unwrap();
    assert_refused(find(&old), conflict, &[&old.id.to_string()]);
    let new = fixture.claim_one();
    assert_eq!(find(&new).unwrap().len(), 1);
    // After the new owner completed the task, its checkpoints are deleted. The previous owner must not conclude that
    // the task is new.
    fixture.store.tasks().settle_and_claim(vec![task_update(&new, Disposition::Completed(None))], vec![]).unwrap();
    assert_refused(find(&old), conflict, &[&old.id.to_string()]);
}
