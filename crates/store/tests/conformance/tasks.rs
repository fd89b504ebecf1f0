//! Tasks: enqueue, claim order, schedules and cancellation.

use gristmill_store::UtcTime;
use gristmill_store::lease::Token;
use gristmill_store::tasks::{
    CancelOutcome, ClaimRequest, Disposition, Enqueued, MAX_PAYLOAD, NewTask, TaskRow, TaskStatus,
};

use super::*;
use gristmill_store::tasks::check_json;

pub(crate) fn task_ids_increase_in_enqueue_order(fixture: &Fixture) {
    let mut ids: Vec<i64> = (0..20).map(|_| fixture.enqueue_plain()).collect();
    let many = fixture.store.tasks().enqueue_many(vec![plain_task(); 20]).unwrap();
    ids.extend(many.iter().map(|enqueued| enqueued.id));
    ids.push(fixture.enqueue_plain());
    assert!(ids.is_sorted_by(|a, b| a < b), "{ids:?}");
    assert!(ids[0] > 0);
}

pub(crate) fn payload_is_stored_byte_for_byte(fixture: &Fixture) {
    for payload in [
        "null",
        "  { \"a\" :\t[1,\n2 ] }\r\n",
        r#"{"b": 1, "a": 2, "b": 3}"#,
        r#""\u00e9 \ud83c\udf3e é 🌾 größe 石臼""#,
        r#"{"quote": "'\"", "percent": "%s", "nul": "\u0000"}"#,
        "[1.0, 1e3, 123456789012345678901234567890, -0.0, 0.1000]",
    ] {
        let id = fixture.enqueue(NewTask::new(KIND, payload));
        assert_eq!(fixture.row(id).payload, payload);
        assert_eq!(fixture.claim_one().payload, payload);
    }
    let long = format!("\"{}\"", "石".repeat(200_000));
    let id = fixture.enqueue(NewTask::new(KIND, long.clone()));
    assert!(fixture.row(id).payload == long);
}

pub(crate) fn task_row_has_every_field_of_the_new_task(fixture: &Fixture) {
    let task = NewTask {
        kind: KIND.to_owned(),
        queue: "night".to_owned(),
        payload: "[1]".to_owned(),
        priority: -7,
        run_after: Some(after(HOUR)),
        max_attempts: Some(4),
        unique_key: Some("k".to_owned()),
        document_id: Some("doc 石".to_owned()),
    };
    let id = fixture.enqueue(task);
    let row = fixture.row(id);
    let expected = TaskRow {
        id,
        queue: "night".to_owned(),
        kind: KIND.to_owned(),
        status: TaskStatus::Scheduled,
        priority: -7,
        attempts: 0,
        max_attempts: Some(4),
        starts: 0,
        crashes: 0,
        abandoned: 0,
        run_after: Some(after(HOUR)),
        worker_id: None,
        worker_heartbeat_at: None,
        lease_expires_at: None,
        created_at: noon(),
        started_at: None,
        finished_at: None,
        first_failed_at: None,
        last_failed_at: None,
        cancel_requested_at: None,
        failed_step: None,
        error_message: None,
        unique_key: Some("k".to_owned()),
        document_id: Some("doc 石".to_owned()),
        result: None,
        payload: "[1]".to_owned(),
    };
    assert_eq!(row, expected);
    fixture.advance(HOUR);
    let request = ClaimRequest { queue: "night".to_owned(), ..fixture.claim_request(1) };
    let claimed = fixture.store.tasks().settle_and_claim(vec![], vec![request.clone()]).unwrap().claimed;
    let expected = ClaimedTask {
        id,
        kind: KIND.into(),
        queue: "night".into(),
        payload: "[1]".to_owned(),
        priority: -7,
        attempts: 0,
        max_attempts: Some(4),
        starts: 0,
        crashes: 0,
        abandoned: 0,
        failed_step: None,
        document_id: Some("doc 石".to_owned()),
        token: request.token,
    };
    assert_eq!(claimed, [expected]);
}

pub(crate) fn invalid_task_is_refused_with_the_expected_values(fixture: &Fixture) {
    let long = "k".repeat(201);
    let large = format!("\"{}\"", "x".repeat(MAX_PAYLOAD));
    let deep = "[".repeat(5_000) + &"]".repeat(5_000);
    let check = |task: NewTask, parts: &[&str]| {
        assert_refused(fixture.store.tasks().enqueue(task.clone()), invalid, parts);
        assert_refused(fixture.store.tasks().enqueue_many(vec![plain_task(), task]), invalid, parts);
        assert_eq!(fixture.rows(), []);
    };
    check(NewTask::new("", "{}"), &["kind", "1 to 200"]);
    check(NewTask::new(long.clone(), "{}"), &["kind", "1 to 200"]);
    check(NewTask::new("a\nb", "{}"), &["kind", "control"]);
    check(NewTask { queue: String::new(), ..plain_task() }, &["queue", "1 to 200"]);
    check(NewTask { queue: long, ..plain_task() }, &["queue", "1 to 200"]);
    check(NewTask { max_attempts: Some(0), ..plain_task() }, &["max_attempts", "1 or more"]);
    check(NewTask::new(KIND, ""), &["payload", "JSON"]);
    check(NewTask::new(KIND, "{'a': 1}"), &["payload", "JSON", "line 1"]);
    check(NewTask::new(KIND, "{} {}"), &["payload", "JSON"]);
    check(NewTask::new(KIND, "\"\u{0}\""), &["payload", "JSON"]);
    check(NewTask::new(KIND, large), &["payload", &MAX_PAYLOAD.to_string()]);
    check(NewTask::new(KIND, deep), &["payload"]);
}

pub(crate) fn task_at_every_limit_is_accepted(fixture: &Fixture) {
    let longest = "k".repeat(200);
    let largest = format!("\"{}\"", "x".repeat(MAX_PAYLOAD - 2));
    for task in [
        NewTask::new(longest.clone(), "{}"),
        NewTask { queue: longest, ..plain_task() },
        NewTask { max_attempts: Some(1), ..plain_task() },
        NewTask { max_attempts: Some(u32::MAX), ..plain_task() },
        NewTask { priority: i32::MAX, ..plain_task() },
        NewTask { priority: i32::MIN, ..plain_task() },
        NewTask::new(KIND, "[".repeat(100) + &"]".repeat(100)),
        NewTask::new(KIND, largest),
    ] {
        let id = fixture.enqueue(task.clone());
        let row = fixture.row(id);
        assert!(row.payload == task.payload);
        assert_eq!((row.priority, row.max_attempts), (task.priority, task.max_attempts));
        assert_eq!((row.kind, row.queue), (task.kind, task.queue));
    }
}

pub(crate) fn enqueue_many_inserts_all_tasks_or_none(fixture: &Fixture) {
    let tasks: Vec<NewTask> = (0..50).map(|n| NewTask::new(KIND, n.to_string())).collect();
    let enqueued = fixture.store.tasks().enqueue_many(tasks.clone()).unwrap();
    assert_eq!(enqueued.len(), 50);
    for (task, enqueued) in tasks.iter().zip(&enqueued) {
        assert!(enqueued.created);
        assert_eq!(fixture.row(enqueued.id).payload, task.payload);
    }
    let mut bad = tasks;
    bad[49].payload = "{".to_owned();
    assert_refused(fixture.store.tasks().enqueue_many(bad), invalid, &["JSON"]);
    assert_eq!(fixture.rows().len(), 50);
    assert_eq!(fixture.store.tasks().enqueue_many(vec![]).unwrap(), []);
    // An existing key is not an error.
    let twice = fixture.store.tasks().enqueue_many(vec![task_with_key("k"), task_with_key("k"), plain_task()]).unwrap();
    assert_eq!(twice.iter().map(|one| one.created).collect::<Vec<_>>(), [true, false, true]);
    assert_eq!(twice[0].id, twice[1].id);
}

pub(crate) fn enqueue_returns_the_unfinished_task_with_the_same_unique_key(fixture: &Fixture) {
    let first = fixture.enqueue(NewTask { payload: "1".to_owned(), ..task_with_key("k") });
    let other = fixture.enqueue(task_with_key("other"));
    let check = || {
        let task = NewTask { payload: "2".to_owned(), queue: "elsewhere".to_owned(), ..task_with_key("k") };
        let again = fixture.store.tasks().enqueue(task).unwrap();
        assert_eq!(again, Enqueued { id: first, created: false });
        assert_eq!(fixture.row(first).payload, "1");
        assert_eq!(fixture.rows().len(), 2);
    };
    check();
    let claimed = fixture.claim();
    assert_eq!(claimed.len(), 2);
    check();
    fixture.settle(&claimed[0], Disposition::Retry(after(HOUR), failure("x")));
    assert_eq!(fixture.status(first), TaskStatus::Scheduled);
    check();
    fixture.cancel(other);
    check();
}

pub(crate) fn unique_key_is_free_after_its_task_finished(fixture: &Fixture) {
    type Finish<'a> = &'a dyn Fn(&ClaimedTask);
    let finish: [(Finish<'_>, TaskStatus); 3] = [
        (
            &|task| assert_eq!(fixture.settle(task, Disposition::Completed(None)), UpdateResult::Done),
            TaskStatus::Completed,
        ),
        (&|task| assert!(fixture.dead_letter(task, "x") > 0), TaskStatus::Failed),
        (&|task| fixture.cancel(task.id), TaskStatus::Cancelled),
    ];
    for (finish, status) in finish {
        let id = fixture.enqueue(task_with_key("k"));
        finish(&fixture.claim_one());
        assert_eq!(fixture.status(id), status);
        let next = fixture.enqueue(task_with_key("k"));
        assert!(next > id);
        fixture.cancel(next);
    }
}

pub(crate) fn unique_key_is_scoped_to_one_kind(fixture: &Fixture) {
    let one = fixture.enqueue(task_with_key("k"));
    let two = fixture.enqueue(NewTask { kind: "upload".to_owned(), ..task_with_key("k") });
    assert_ne!(one, two);
    // Tasks without a key do not conflict.
    assert_ne!(fixture.enqueue_plain(), fixture.enqueue_plain());
}

pub(crate) fn claims_are_ordered_by_priority_then_id(fixture: &Fixture) {
    let priorities = [0, 5, -1, 5, 0, i32::MAX, i32::MIN, 5, -1];
    let ids: Vec<i64> =
        priorities.iter().map(|priority| fixture.enqueue(NewTask { priority: *priority, ..plain_task() })).collect();
    let mut expected: Vec<usize> = (0..priorities.len()).collect();
    expected.sort_by_key(|nth| -i64::from(priorities[*nth]));
    let expected: Vec<i64> = expected.into_iter().map(|nth| ids[nth]).collect();
    // One at a time, then a few, then the rest: the same order.
    let mut claimed_ids: Vec<i64> = Vec::new();
    for limit in [1, 1, 3, 100] {
        claimed_ids.extend(fixture.claim_batch(limit).claimed.iter().map(|task| task.id));
    }
    assert_eq!(claimed_ids, expected);
}

pub(crate) fn claim_returns_only_its_queue_and_kind(fixture: &Fixture) {
    let enqueue = |queue: &str, kind: &str| {
        let task = NewTask { queue: queue.to_owned(), ..NewTask::new(kind, "{}") };
        fixture.enqueue(task)
    };
    let request = |queue: &str, kind: &str| ClaimRequest {
        queue: queue.to_owned(),
        kind: kind.to_owned(),
        ..fixture.claim_request(10)
    };
    let ids = [enqueue("day", "a"), enqueue("day", "b"), enqueue("night", "a"), enqueue("Day", "a")];
    let check = |requests: Vec<ClaimRequest>, expected: &[(i64, &str)]| {
        let claimed = fixture.store.tasks().settle_and_claim(vec![], requests).unwrap().claimed;
        let claimed_ids: Vec<_> = claimed.iter().map(|task| (task.id, &*task.kind)).collect();
        assert_eq!(claimed_ids, expected);
    };
    check(vec![request("day", "c"), request("dusk", "a"), request("a", "day")], &[]);
    check(vec![request("day", "b"), request("day", "a")], &[(ids[1], "b"), (ids[0], "a")]);
    check(vec![request("night", "a")], &[(ids[2], "a")]);
    check(vec![request("Day", "a")], &[(ids[3], "a")]);
}

pub(crate) fn claim_returns_at_most_its_limit(fixture: &Fixture) {
    fixture.store.tasks().enqueue_many(vec![plain_task(); 10]).unwrap();
    for (limit, expected) in [(0, 0), (1, 1), (4, 4), (usize::MAX, 5), (1, 0)] {
        assert_eq!(fixture.claim_batch(limit).claimed.len(), expected, "limit {limit}");
    }
}

pub(crate) fn claim_respects_max_running_across_queues(fixture: &Fixture) {
    let elsewhere = ClaimRequest { queue: "elsewhere".to_owned(), ..fixture.claim_request(2) };
    fixture.store.tasks().enqueue_many(vec![NewTask { queue: "elsewhere".to_owned(), ..plain_task() }; 2]).unwrap();
    fixture.store.tasks().enqueue_many(vec![plain_task(); 10]).unwrap();
    fixture.store.tasks().enqueue_many(vec![NewTask::new("upload", "{}"); 10]).unwrap();
    // Running tasks of another kind do not count; those of another queue do.
    let upload = ClaimRequest { kind: "upload".to_owned(), ..fixture.claim_request(5) };
    assert_eq!(fixture.store.tasks().settle_and_claim(vec![], vec![upload, elsewhere]).unwrap().claimed.len(), 7);
    let mut held = Vec::new();
    for (limit, max_running, expected) in [(9, 0, 0), (9, 2, 0), (1, 5, 1), (9, 5, 2), (9, 5, 0), (9, 6, 1), (9, 3, 0)]
    {
        let request = ClaimRequest { max_running: Some(max_running), ..fixture.claim_request(limit) };
        let claimed = fixture.store.tasks().settle_and_claim(vec![], vec![request]).unwrap().claimed;
        assert_eq!(claimed.len(), expected, "limit {limit}, at most {max_running}");
        held.extend(claimed);
    }
    // Updates of the same transaction free capacity.
    let request = ClaimRequest { max_running: Some(6), ..fixture.claim_request(9) };
    let done = vec![task_update(&held[0], Disposition::Completed(None)), task_update(&held[1], Disposition::Released)];
    assert_eq!(fixture.store.tasks().settle_and_claim(done, vec![request]).unwrap().claimed.len(), 2);
}

pub(crate) fn claim_requests_with_one_token_share_their_limit(fixture: &Fixture) {
    let enqueue = |kind: &str, count: usize| {
        fixture.store.tasks().enqueue_many(vec![NewTask::new(kind, "{}"); count]).unwrap();
    };
    let request = |kind: &str, limit: usize, token: &Token| ClaimRequest {
        kind: kind.to_owned(),
        token: token.clone(),
        ..fixture.claim_request(limit)
    };
    let check = |requests: Vec<ClaimRequest>, expected: &[(&str, usize)]| {
        let claimed = fixture.store.tasks().settle_and_claim(vec![], requests).unwrap().claimed;
        let kinds: Vec<&str> = claimed.iter().map(|task| &*task.kind).collect();
        let expected: Vec<&str> = expected.iter().flat_map(|(kind, count)| vec![*kind; *count]).collect();
        assert_eq!(kinds, expected);
    };
    let [one, two, three] = [fixture.worker.token(), fixture.worker.token(), fixture.worker.token()];
    enqueue("a", 3);
    enqueue("b", 10);
    check(vec![request("a", 5, &one), request("b", 5, &one)], &[("a", 3), ("b", 2)]);
    enqueue("a", 3);
    check(vec![request("a", 2, &two), request("b", 2, &two), request("b", 2, &three)], &[("a", 2), ("b", 2)]);
}

pub(crate) fn scheduled_task_is_not_claimed_before_run_after(fixture: &Fixture) {
    let id = fixture.enqueue(NewTask { run_after: Some(after(HOUR)), priority: 9, ..plain_task() });
    let check = |at: UtcTime, claimed: &[i64]| {
        fixture.clock.set_unix_micros(at.micros());
        assert_eq!(fixture.claim_ids(), claimed, "{at}");
    };
    assert_eq!(fixture.status(id), TaskStatus::Scheduled);
    check(noon(), &[]);
    check(UtcTime::from_micros(after(HOUR).micros() - 1), &[]);
    assert_eq!(fixture.status(id), TaskStatus::Scheduled);
    check(after(HOUR), &[id]);
    assert_eq!(fixture.status(id), TaskStatus::Running);
}

pub(crate) fn task_with_a_past_run_after_is_pending_at_once(fixture: &Fixture) {
    for run_after in [noon(), noon().minus(HOUR), UtcTime::from_micros(i64::MIN)] {
        let id = fixture.enqueue(NewTask { run_after: Some(run_after), ..plain_task() });
        assert_eq!((fixture.row(id).status, fixture.row(id).run_after), (TaskStatus::Pending, None));
        assert_eq!(fixture.claim_ids(), [id]);
    }
    let never = fixture.enqueue(NewTask { run_after: Some(UtcTime::from_micros(i64::MAX)), ..plain_task() });
    assert_eq!(fixture.claim_ids(), [0; 0]);
    assert_eq!(fixture.status(never), TaskStatus::Scheduled);
}

pub(crate) fn next_due_is_returned_when_fewer_tasks_than_the_limit_are_due(fixture: &Fixture) {
    assert_eq!(fixture.claim_batch(1).next_due, None);
    let late = fixture.enqueue(NewTask { run_after: Some(after(2 * HOUR)), ..plain_task() });
    fixture.enqueue(NewTask { run_after: Some(after(HOUR)), ..plain_task() });
    assert_eq!(fixture.claim_batch(1).next_due, Some(after(HOUR)));
    let ready = fixture.enqueue_plain();
    let batch = fixture.claim_batch(1);
    assert_eq!((batch.claimed[0].id, batch.next_due), (ready, None), "as many tasks as requested were due");
    fixture.advance(HOUR);
    let batch = fixture.claim_batch(2);
    assert_eq!((batch.claimed.len(), batch.next_due), (1, Some(after(2 * HOUR))));
    fixture.cancel(late);
    assert_eq!(fixture.claim_batch(1).next_due, None);
    // A task of the same transaction counts.
    let disposition = Disposition::Postponed(after(3 * HOUR));
    let updates = vec![task_update(&batch.claimed[0], disposition)];
    let batch = fixture.store.tasks().settle_and_claim(updates, vec![fixture.claim_request(1)]).unwrap();
    assert_eq!(batch.next_due, Some(after(3 * HOUR)));
}

pub(crate) fn run_now_makes_a_scheduled_task_pending(fixture: &Fixture) {
    let delayed = fixture.enqueue(NewTask { run_after: Some(after(HOUR)), ..plain_task() });
    let failed = fixture.enqueue_and_claim();
    fixture.settle(&failed, Disposition::Retry(after(HOUR), failure("x")));
    for id in [delayed, failed.id] {
        fixture.store.tasks().run_now(id).unwrap();
        assert_eq!((fixture.row(id).status, fixture.row(id).run_after), (TaskStatus::Pending, None));
    }
    assert_eq!(fixture.claim_ids(), [delayed, failed.id]);
}

pub(crate) fn run_now_is_refused_unless_the_task_is_scheduled(fixture: &Fixture) {
    let check = |id: i64, status: &str| {
        let before = fixture.row(id);
        assert_refused(fixture.store.tasks().run_now(id), conflict, &[&id.to_string(), status, "scheduled"]);
        assert_eq!(fixture.row(id), before);
    };
    let id = fixture.enqueue_plain();
    check(id, "pending");
    let task = fixture.claim_one();
    check(id, "running");
    fixture.settle(&task, Disposition::Completed(None));
    check(id, "completed");
}

pub(crate) fn waiting_task_is_cancelled_at_once_and_only_once(fixture: &Fixture) {
    let pending = fixture.enqueue_plain();
    let scheduled = fixture.enqueue(NewTask { run_after: Some(after(HOUR)), kind: "later".to_owned(), ..plain_task() });
    fixture.advance(SEC);
    for id in [pending, scheduled] {
        assert_eq!(fixture.store.tasks().cancel(id), Ok(CancelOutcome::Cancelled));
        let row = fixture.row(id);
        assert_eq!((row.status, row.finished_at), (TaskStatus::Cancelled, Some(after(SEC))));
        assert_eq!(row.lease_expires_at, None);
        assert_refused(
            fixture.store.tasks().cancel(id),
            conflict,
            &[&id.to_string(), "cancelled", "pending, scheduled"],
        );
    }
    fixture.advance(2 * HOUR);
    assert_eq!(fixture.claim(), []);
    assert_eq!(fixture.dead_letters(), []);
}

pub(crate) fn cancel_deletes_the_checkpoints(fixture: &Fixture) {
    let task = fixture.enqueue_and_claim();
    fixture.save_checkpoint(&task, "a", "1").unwrap();
    fixture.cancel(task.id);
    assert_eq!(fixture.checkpoints(task.id), []);
}

pub(crate) fn running_task_is_cancelled_when_its_run_ends(fixture: &Fixture) {
    type End<'a> = &'a dyn Fn(&ClaimedTask);
    let settle = |task: &ClaimedTask, disposition: Disposition, expected: UpdateResult| {
        assert_eq!(fixture.settle(task, disposition), expected);
    };
    let retry = |task: &ClaimedTask| {
        settle(task, Disposition::Retry(after(HOUR), failure("x")), UpdateResult::Cancelled);
    };
    let expire = |task: &ClaimedTask| {
        fixture.advance(2 * LEASE);
        assert_eq!(fixture.store.tasks().heartbeat(vec![(task.id, task.token.clone())], LEASE).unwrap().len(), 1);
        settle(task, Disposition::Released, UpdateResult::Cancelled);
    };
    let recover = |_: &ClaimedTask| {
        fixture.advance(2 * LEASE);
        let found = fixture.store.tasks().recover(1).unwrap();
        assert_eq!((found.cancelled, found.freed, found.poisoned), (1, 0, vec![]));
    };
    let recover_cancelled = |_: &ClaimedTask| {
        assert_eq!(fixture.store.tasks().recover_cancelled(), Ok(0), "its worker may be alive");
        fixture.advance(2 * LEASE);
        assert_eq!(fixture.store.tasks().recover_cancelled(), Ok(1));
    };
    let ends: [(End<'_>, TaskStatus); 9] = [
        (&|task| settle(task, Disposition::Completed(None), UpdateResult::Done), TaskStatus::Completed),
        (&|task| settle(task, Disposition::Released, UpdateResult::Cancelled), TaskStatus::Cancelled),
        (&|task| settle(task, Disposition::Postponed(after(HOUR)), UpdateResult::Cancelled), TaskStatus::Cancelled),
        (&|task| settle(task, Disposition::DeadLettered(failure("x")), UpdateResult::Cancelled), TaskStatus::Cancelled),
        (&retry, TaskStatus::Cancelled),
        (&expire, TaskStatus::Cancelled),
        (&recover, TaskStatus::Cancelled),
        (&recover_cancelled, TaskStatus::Cancelled),
        (
            &|task| {
                assert_eq!(fixture.store.tasks().cancel(task.id), Ok(CancelOutcome::Requested), "a repeated request");
                settle(task, Disposition::Released, UpdateResult::Cancelled);
            },
            TaskStatus::Cancelled,
        ),
    ];
    for (end, status) in ends {
        let id = fixture.enqueue(task_with_key("k"));
        let task = fixture.claim_one();
        assert!(fixture.start(&task));
        assert_eq!(fixture.store.tasks().cancel_requests().unwrap(), []);
        assert_eq!(fixture.store.tasks().cancel(id), Ok(CancelOutcome::Requested));
        let row = fixture.row(id);
        assert_eq!((row.status, row.cancel_requested_at.is_some()), (TaskStatus::Running, true));
        assert_eq!(fixture.store.tasks().cancel_requests().unwrap(), [(id, task.token.clone())]);
        let second = fixture.store.tasks().enqueue(task_with_key("k")).unwrap();
        assert_eq!(second, Enqueued { id, created: false }, "its key is not free");
        end(&task);
        let row = fixture.row(id);
        assert_eq!((row.status, row.finished_at.is_some(), row.lease_expires_at), (status, true, None));
        assert_eq!(fixture.store.tasks().cancel_requests().unwrap(), []);
        assert_refused(fixture.store.tasks().cancel(id), conflict, &[&id.to_string(), status.as_str()]);
        let next = fixture.enqueue(task_with_key("k"));
        assert!(next > id, "its key is free");
        fixture.cancel(next);
    }
    assert_eq!(fixture.dead_letters(), [], "cancelled tasks have no dead letter");
}

pub(crate) fn unknown_ids_return_not_found(fixture: &Fixture) {
    let (tasks, dead_letters) = (fixture.store.tasks(), fixture.store.dead_letters());
    assert_refused(tasks.get(77), not_found, &["task 77"]);
    assert_refused(tasks.cancel(77), not_found, &["task 77"]);
    assert_refused(tasks.run_now(77), not_found, &["task 77"]);
    assert_refused(dead_letters.get(77), not_found, &["dead letter 77"]);
    assert_refused(dead_letters.discard(77), not_found, &["dead letter 77"]);
    assert_refused(dead_letters.retry(77, plain_task()), not_found, &["dead letter 77"]);
    assert_eq!(fixture.rows(), []);
    assert_eq!(fixture.store.checkpoints().list(77).unwrap(), []);
}

pub(crate) fn finished_task_is_never_overwritten(fixture: &Fixture) {
    let finish: [&dyn Fn(&ClaimedTask); 4] = [
        &|task| {
            assert_eq!(fixture.settle(task, Disposition::Completed(Some("[7]".to_owned()))), UpdateResult::Done);
        },
        &|task| assert!(fixture.dead_letter(task, "x") > 0),
        &|task| fixture.cancel(task.id),
        &|task| {
            assert!(fixture.start(task));
            fixture.advance(2 * LEASE);
            assert_eq!(fixture.store.tasks().recover(1).unwrap().poisoned.len(), 1);
        },
    ];
    for finish in finish {
        let task = fixture.enqueue_and_claim();
        finish(&task);
        let (row, dead_letters) = (fixture.row(task.id), fixture.dead_letters());
        assert!(row.status.is_terminal());
        assert_eq!((row.lease_expires_at, row.finished_at), (None, Some(UtcTime::of(&fixture.clock))));
        let unchanged = |what: &str| {
            assert_eq!(fixture.row(task.id), row, "{what}");
            assert_eq!(fixture.dead_letters(), dead_letters, "{what}");
        };
        let finished_at = UtcTime::of(&fixture.clock);
        for seconds in [0, 1, 100_000] {
            fixture.advance(SEC * seconds);
            for disposition in all_dispositions() {
                assert_eq!(fixture.settle(&task, disposition.clone()), UpdateResult::Lost, "{disposition:?}");
                unchanged(&format!("{disposition:?}"));
            }
            assert_eq!(fixture.heartbeat(&task), HeartbeatResult::Lost);
            unchanged("heartbeat");
            assert_refused(fixture.save_checkpoint(&task, "late", "1"), conflict, &[&task.id.to_string()]);
            assert_eq!(fixture.checkpoints(task.id), []);
            assert_refused(fixture.store.tasks().cancel(task.id), conflict, &[row.status.as_str()]);
            unchanged("cancel");
            assert_refused(fixture.store.tasks().run_now(task.id), conflict, &[row.status.as_str()]);
            unchanged("run_now");
            let recovered = fixture.store.tasks().recover(0).unwrap();
            assert_eq!((recovered.freed, recovered.poisoned), (0, vec![]));
            unchanged("recover");
            assert_eq!(fixture.claim(), []);
            unchanged("claim");
        }
        fixture.clock.set_unix_micros(finished_at.micros());
    }
}

pub(crate) fn text_that_is_not_acceptable_json_is_refused_with_the_reason(_: &Fixture) {
    let nested = |depth| "[".repeat(depth) + &"]".repeat(depth);
    for (text, part) in [
        ("{".to_owned(), "is not JSON: EOF"),
        (nested(501), "at most 500 levels"),
        ("1".repeat((16 << 20) + 1), "at most 16777216"),
    ] {
        let error = check_json("the payload", &text).unwrap_err().to_string();
        assert!(error.starts_with("the payload") && error.contains(part), "{error}");
    }
    // Brackets in strings are not nesting.
    let quoted = r#""[[[", "\\\"[[", "\\\\""#;
    for accepted in [nested(500), format!("{{\"a\": [{quoted}, {}]}}", nested(498))] {
        check_json("the payload", &accepted).unwrap();
    }
    assert!(check_json("the payload", &format!("[{quoted}, {}]", nested(500))).is_err());
}
