//! What a task notes on its way.

use gristmill_store::tasks::{Disposition, TaskStatus};

use super::*;

pub(crate) fn steps_are_kept_in_order_and_replaced(mill: &Mill) {
    let task = mill.put_and_claim();
    for (nth, step) in ["z", "a", "m", "a"].iter().enumerate() {
        mill.note(&task, step, &format!("  [{nth}, \"石\"] ")).unwrap();
        mill.advance(SEC);
    }
    let kept = mill.store.checkpoints().list(task.id).unwrap();
    let found: Vec<_> =
        kept.iter().map(|one| (one.step.as_str(), one.data.as_str(), one.updated_at)).collect();
    // The oldest first, by when a step was first noted.
    assert_eq!(
        found,
        [
            ("z", "  [0, \"石\"] ", noon()),
            ("a", "  [3, \"石\"] ", after(3 * SEC)),
            ("m", "  [2, \"石\"] ", after(2 * SEC)),
        ]
    );
    let other = mill.put_and_claim();
    assert_eq!(mill.notes(other.id), []);
}

pub(crate) fn only_the_owner_may_note_a_step(mill: &Mill) {
    let id = mill.put();
    let stranger = |id: i64| mill.store.checkpoints().save(id, &mill.worker.token(), "a", "1");
    refused(stranger(id), conflict, &[&id.to_string()]);
    let task = mill.claim_one();
    refused(stranger(id), conflict, &[&id.to_string()]);
    refused(stranger(77), conflict, &["77"]);
    let other = mill.put_and_claim();
    refused(mill.store.checkpoints().save(id, &other.token, "a", "1"), conflict, &[]);
    assert_eq!(mill.notes(id), []);
    mill.note(&task, "a", "1").unwrap();
    refused(mill.store.checkpoints().save(id, &other.token, "a", "2"), conflict, &[]);
    assert_eq!(mill.notes(id), [("a".to_owned(), "1".to_owned())]);
}

pub(crate) fn what_is_not_json_is_refused(mill: &Mill) {
    let task = mill.put_and_claim();
    let deep = "[".repeat(5_000) + &"]".repeat(5_000);
    for data in ["", "{", "{'a': 1}", "\"\u{0}\"", &deep] {
        refused(mill.note(&task, "sieve", data), invalid, &["sieve"]);
    }
    assert_eq!(mill.notes(task.id), []);
}

pub(crate) fn completion_forgets_them(mill: &Mill) {
    let (task, other) = (mill.put_and_claim(), mill.put_and_claim());
    for task in [&task, &other] {
        mill.note(task, "a", "1").unwrap();
        mill.note(task, "b", "1").unwrap();
    }
    mill.settle(&task, Disposition::Completed(None));
    assert_eq!((mill.notes(task.id).len(), mill.notes(other.id).len()), (0, 2));
}

pub(crate) fn they_outlive_every_other_verdict(mill: &Mill) {
    let id = mill.put();
    let kept = [("a".to_owned(), "1".to_owned())];
    let task = mill.claim_one();
    mill.note(&task, "a", "1").unwrap();
    mill.settle(&task, Disposition::Retry(noon(), failure("x")));
    assert_eq!(mill.notes(id), kept);
    mill.settle(&mill.claim_one(), Disposition::Released);
    assert_eq!(mill.notes(id), kept);
    mill.settle(&mill.claim_one(), Disposition::Postponed(noon()));
    assert_eq!(mill.notes(id), kept);
    let task = mill.claim_one();
    mill.advance(LEASE);
    assert_eq!(mill.beat(&task), HeartbeatResult::Kept);
    assert_eq!(mill.notes(id), kept);
    mill.advance(LEASE);
    mill.store.tasks().recover(NEVER).unwrap();
    assert_eq!(mill.notes(id), kept);
    // A verdict that is lost forgets nothing.
    assert_eq!(mill.settle(&task, Disposition::Completed(None)), UpdateResult::Lost);
    assert_eq!(mill.notes(id), kept);
}

pub(crate) fn cleaning_spares_unfinished_tasks_and_young_checkpoints(mill: &Mill) {
    // A worker that does not say that there may be checkpoints leaves them behind.
    let leave_behind = || {
        let task = mill.put_and_claim();
        mill.note(&task, "a", "1").unwrap();
        mill.note(&task, "b", "1").unwrap();
        let forgetful = TaskUpdate { checkpointed: false, ..settlement(&task, Disposition::Completed(None)) };
        assert_eq!(
            mill.store.tasks().settle_and_claim(vec![forgetful], vec![]).unwrap().results,
            [UpdateResult::Done]
        );
        task.id
    };
    let old = leave_behind();
    let noted = || {
        let task = mill.put_and_claim();
        mill.note(&task, "a", "1").unwrap();
        task
    };
    let (scheduled, running, pending) = (noted(), noted(), noted());
    mill.settle(&scheduled, Disposition::Retry(after(9 * HOUR), failure("x")));
    mill.settle(&pending, Disposition::Released);
    let pending_status = mill.status(pending.id);
    assert_eq!(pending_status, TaskStatus::Pending);
    assert_eq!(mill.claim_one().id, pending.id);
    mill.advance(HOUR);
    let young = leave_behind();
    let unfinished = [scheduled.id, running.id, pending.id];
    assert_eq!(mill.store.checkpoints().delete_orphans(after(HOUR / 2)).unwrap(), 2);
    assert_eq!((mill.notes(old).len(), mill.notes(young).len()), (0, 2));
    assert_eq!(mill.store.checkpoints().delete_orphans(after(9 * HOUR)).unwrap(), 2);
    assert_eq!(mill.notes(young), []);
    assert_eq!(unfinished.map(|id| mill.notes(id).len()), [1, 1, 1]);
}

pub(crate) fn only_the_owner_finds_the_steps_of_its_claim(mill: &Mill) {
    let find = |task: &ClaimedTask| mill.store.checkpoints().list_for_claim(task.id, &task.token);
    let old = mill.put_and_claim();
    assert_eq!(find(&old), Ok(vec![]));
    mill.note(&old, "one", "1").unwrap();
    assert_eq!(find(&old).unwrap()[0].step, "one");
    mill.advance(LEASE);
    mill.store.tasks().recover(NEVER).unwrap();
    refused(find(&old), conflict, &[&old.id.to_string()]);
    let new = mill.claim_one();
    assert_eq!(find(&new).unwrap().len(), 1);
    // When the new owner has completed it the steps are gone. The old one must not take that for a beginning.
    mill.store
        .tasks()
        .settle_and_claim(vec![settlement(&new, Disposition::Completed(None))], vec![])
        .unwrap();
    refused(find(&old), conflict, &[&old.id.to_string()]);
}
