//! Putting tasks in, the order they come out in, calling them off.

use gristmill_store::UtcTime;
use gristmill_store::lease::Token;
use gristmill_store::tasks::{
    CancelOutcome, ClaimRequest, Disposition, Enqueued, MAX_PAYLOAD, NewTask, TaskRow, TaskStatus,
};

use super::*;

pub(crate) fn ids_grow_in_the_order_of_enqueueing(mill: &Mill) {
    let mut ids: Vec<i64> = (0..20).map(|_| mill.put()).collect();
    let many = mill.store.tasks().enqueue_many(vec![plain(); 20]).unwrap();
    ids.extend(many.iter().map(|enqueued| enqueued.id));
    ids.push(mill.put());
    assert!(ids.is_sorted_by(|a, b| a < b), "{ids:?}");
    assert!(ids[0] > 0);
}

pub(crate) fn a_payload_is_kept_byte_for_byte(mill: &Mill) {
    for payload in [
        "null",
        "  { \"a\" :\t[1,\n2 ] }\r\n",
        r#"{"b": 1, "a": 2, "b": 3}"#,
        r#""\u00e9 \ud83c\udf3e é 🌾 mühle 石臼""#,
        r#"{"quote": "'\"", "percent": "%s", "nul": "\u0000"}"#,
        "[1.0, 1e3, 123456789012345678901234567890, -0.0, 0.1000]",
    ] {
        let id = mill.add(NewTask::new(KIND, payload));
        assert_eq!(mill.row(id).payload, payload);
        assert_eq!(mill.claim_one().payload, payload);
    }
    let long = format!("\"{}\"", "石".repeat(200_000));
    let id = mill.add(NewTask::new(KIND, long.clone()));
    assert!(mill.row(id).payload == long);
}

pub(crate) fn a_task_is_kept_as_it_was_asked_for(mill: &Mill) {
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
    let id = mill.add(task);
    let row = mill.row(id);
    let want = TaskRow {
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
    assert_eq!(row, want);
    mill.advance(HOUR);
    let wanted = ClaimRequest { queue: "night".to_owned(), ..mill.wanted(1) };
    let claimed = mill.store.tasks().settle_and_claim(vec![], vec![wanted.clone()]).unwrap().claimed;
    let want = ClaimedTask {
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
        token: wanted.token,
    };
    assert_eq!(claimed, [want]);
}

pub(crate) fn what_is_not_legal_is_refused_with_what_is(mill: &Mill) {
    let long = "k".repeat(201);
    let large = format!("\"{}\"", "x".repeat(MAX_PAYLOAD));
    let deep = "[".repeat(5_000) + &"]".repeat(5_000);
    let check = |task: NewTask, parts: &[&str]| {
        refused(mill.store.tasks().enqueue(task.clone()), invalid, parts);
        refused(mill.store.tasks().enqueue_many(vec![plain(), task]), invalid, parts);
        assert_eq!(mill.rows(), []);
    };
    check(NewTask::new("", "{}"), &["kind", "1 to 200"]);
    check(NewTask::new(long.clone(), "{}"), &["kind", "1 to 200"]);
    check(NewTask::new("a\nb", "{}"), &["kind", "control"]);
    check(NewTask { queue: String::new(), ..plain() }, &["queue", "1 to 200"]);
    check(NewTask { queue: long, ..plain() }, &["queue", "1 to 200"]);
    check(NewTask { max_attempts: Some(0), ..plain() }, &["max_attempts", "1 or more"]);
    check(NewTask::new(KIND, ""), &["payload", "JSON"]);
    check(NewTask::new(KIND, "{'a': 1}"), &["payload", "JSON", "line 1"]);
    check(NewTask::new(KIND, "{} {}"), &["payload", "JSON"]);
    check(NewTask::new(KIND, "\"\u{0}\""), &["payload", "JSON"]);
    check(NewTask::new(KIND, large), &["payload", &MAX_PAYLOAD.to_string()]);
    check(NewTask::new(KIND, deep), &["payload"]);
}

pub(crate) fn what_is_just_legal_is_taken(mill: &Mill) {
    let longest = "k".repeat(200);
    let largest = format!("\"{}\"", "x".repeat(MAX_PAYLOAD - 2));
    for task in [
        NewTask::new(longest.clone(), "{}"),
        NewTask { queue: longest, ..plain() },
        NewTask { max_attempts: Some(1), ..plain() },
        NewTask { max_attempts: Some(u32::MAX), ..plain() },
        NewTask { priority: i32::MAX, ..plain() },
        NewTask { priority: i32::MIN, ..plain() },
        NewTask::new(KIND, "[".repeat(100) + &"]".repeat(100)),
        NewTask::new(KIND, largest),
    ] {
        let id = mill.add(task.clone());
        let row = mill.row(id);
        assert!(row.payload == task.payload);
        assert_eq!((row.priority, row.max_attempts), (task.priority, task.max_attempts));
        assert_eq!((row.kind, row.queue), (task.kind, task.queue));
    }
}

pub(crate) fn many_tasks_go_in_all_or_none(mill: &Mill) {
    let tasks: Vec<NewTask> = (0..50).map(|n| NewTask::new(KIND, n.to_string())).collect();
    let enqueued = mill.store.tasks().enqueue_many(tasks.clone()).unwrap();
    assert_eq!(enqueued.len(), 50);
    for (task, enqueued) in tasks.iter().zip(&enqueued) {
        assert!(enqueued.created);
        assert_eq!(mill.row(enqueued.id).payload, task.payload);
    }
    let mut bad = tasks;
    bad[49].payload = "{".to_owned();
    refused(mill.store.tasks().enqueue_many(bad), invalid, &["JSON"]);
    assert_eq!(mill.rows().len(), 50);
    assert_eq!(mill.store.tasks().enqueue_many(vec![]).unwrap(), []);
    // A key that is there already is no failure.
    let twice = mill.store.tasks().enqueue_many(vec![keyed("k"), keyed("k"), plain()]).unwrap();
    assert_eq!(twice.iter().map(|one| one.created).collect::<Vec<_>>(), [true, false, true]);
    assert_eq!(twice[0].id, twice[1].id);
}

pub(crate) fn a_second_task_with_a_key_is_the_first(mill: &Mill) {
    let first = mill.add(NewTask { payload: "1".to_owned(), ..keyed("k") });
    let other = mill.add(keyed("other"));
    let check = || {
        let task = NewTask { payload: "2".to_owned(), queue: "elsewhere".to_owned(), ..keyed("k") };
        let again = mill.store.tasks().enqueue(task).unwrap();
        assert_eq!(again, Enqueued { id: first, created: false });
        assert_eq!(mill.row(first).payload, "1");
        assert_eq!(mill.rows().len(), 2);
    };
    check();
    let claimed = mill.claim();
    assert_eq!(claimed.len(), 2);
    check();
    mill.settle(&claimed[0], Disposition::Retry(after(HOUR), failure("x")));
    assert_eq!(mill.status(first), TaskStatus::Scheduled);
    check();
    mill.cancel(other);
    check();
}

pub(crate) fn a_key_is_free_again_when_its_task_is_finished(mill: &Mill) {
    type Finish<'a> = &'a dyn Fn(&ClaimedTask);
    let finish: [(Finish<'_>, TaskStatus); 3] = [
        (
            &|task| assert_eq!(mill.settle(task, Disposition::Completed(None)), UpdateResult::Done),
            TaskStatus::Completed,
        ),
        (&|task| assert!(mill.bury(task, "x") > 0), TaskStatus::Failed),
        (&|task| mill.cancel(task.id), TaskStatus::Cancelled),
    ];
    for (finish, status) in finish {
        let id = mill.add(keyed("k"));
        finish(&mill.claim_one());
        assert_eq!(mill.status(id), status);
        let next = mill.add(keyed("k"));
        assert!(next > id);
        mill.cancel(next);
    }
}

pub(crate) fn a_key_is_for_one_kind(mill: &Mill) {
    let one = mill.add(keyed("k"));
    let two = mill.add(NewTask { kind: "sieve".to_owned(), ..keyed("k") });
    assert_ne!(one, two);
    // No key is no key, not the same one.
    assert_ne!(mill.put(), mill.put());
}

pub(crate) fn urgent_tasks_come_first_and_equal_ones_in_order(mill: &Mill) {
    let priorities = [0, 5, -1, 5, 0, i32::MAX, i32::MIN, 5, -1];
    let ids: Vec<i64> =
        priorities.iter().map(|priority| mill.add(NewTask { priority: *priority, ..plain() })).collect();
    let mut want: Vec<usize> = (0..priorities.len()).collect();
    want.sort_by_key(|nth| -i64::from(priorities[*nth]));
    let want: Vec<i64> = want.into_iter().map(|nth| ids[nth]).collect();
    // One at a time, then a few, then all that is left: the same order.
    let mut came: Vec<i64> = Vec::new();
    for limit in [1, 1, 3, 100] {
        came.extend(mill.turn(limit).claimed.iter().map(|task| task.id));
    }
    assert_eq!(came, want);
}

pub(crate) fn queues_and_kinds_are_kept_apart(mill: &Mill) {
    let place = |queue: &str, kind: &str| {
        let task = NewTask { queue: queue.to_owned(), ..NewTask::new(kind, "{}") };
        mill.add(task)
    };
    let wanted = |queue: &str, kind: &str| ClaimRequest {
        queue: queue.to_owned(),
        kind: kind.to_owned(),
        ..mill.wanted(10)
    };
    let ids = [place("day", "a"), place("day", "b"), place("night", "a"), place("Day", "a")];
    let check = |wanted: Vec<ClaimRequest>, want: &[(i64, &str)]| {
        let claimed = mill.store.tasks().settle_and_claim(vec![], wanted).unwrap().claimed;
        let came: Vec<_> = claimed.iter().map(|task| (task.id, &*task.kind)).collect();
        assert_eq!(came, want);
    };
    check(vec![wanted("day", "c"), wanted("dusk", "a"), wanted("a", "day")], &[]);
    check(vec![wanted("day", "b"), wanted("day", "a")], &[(ids[1], "b"), (ids[0], "a")]);
    check(vec![wanted("night", "a")], &[(ids[2], "a")]);
    check(vec![wanted("Day", "a")], &[(ids[3], "a")]);
}

pub(crate) fn a_claim_takes_no_more_than_its_limit(mill: &Mill) {
    mill.store.tasks().enqueue_many(vec![plain(); 10]).unwrap();
    for (limit, want) in [(0, 0), (1, 1), (4, 4), (usize::MAX, 5), (1, 0)] {
        assert_eq!(mill.turn(limit).claimed.len(), want, "limit {limit}");
    }
}

pub(crate) fn a_claim_does_not_bring_more_than_so_many_to_run(mill: &Mill) {
    let elsewhere = ClaimRequest { queue: "elsewhere".to_owned(), ..mill.wanted(2) };
    mill.store.tasks().enqueue_many(vec![NewTask { queue: "elsewhere".to_owned(), ..plain() }; 2]).unwrap();
    mill.store.tasks().enqueue_many(vec![plain(); 10]).unwrap();
    mill.store.tasks().enqueue_many(vec![NewTask::new("sieve", "{}"); 10]).unwrap();
    // Another kind that runs does not count; another queue's tasks of the same kind do.
    let sieve = ClaimRequest { kind: "sieve".to_owned(), ..mill.wanted(5) };
    assert_eq!(mill.store.tasks().settle_and_claim(vec![], vec![sieve, elsewhere]).unwrap().claimed.len(), 7);
    let mut held = Vec::new();
    for (limit, at_most, want) in
        [(9, 0, 0), (9, 2, 0), (1, 5, 1), (9, 5, 2), (9, 5, 0), (9, 6, 1), (9, 3, 0)]
    {
        let wanted = ClaimRequest { max_running: Some(at_most), ..mill.wanted(limit) };
        let claimed = mill.store.tasks().settle_and_claim(vec![], vec![wanted]).unwrap().claimed;
        assert_eq!(claimed.len(), want, "limit {limit}, at most {at_most}");
        held.extend(claimed);
    }
    // What the same turn settles makes room.
    let wanted = ClaimRequest { max_running: Some(6), ..mill.wanted(9) };
    let done =
        vec![settlement(&held[0], Disposition::Completed(None)), settlement(&held[1], Disposition::Released)];
    assert_eq!(mill.store.tasks().settle_and_claim(done, vec![wanted]).unwrap().claimed.len(), 2);
}

pub(crate) fn wants_under_one_token_share_their_limit(mill: &Mill) {
    let add = |kind: &str, count: usize| {
        mill.store.tasks().enqueue_many(vec![NewTask::new(kind, "{}"); count]).unwrap();
    };
    let wanted = |kind: &str, limit: usize, token: &Token| ClaimRequest {
        kind: kind.to_owned(),
        token: token.clone(),
        ..mill.wanted(limit)
    };
    let check = |wanted: Vec<ClaimRequest>, want: &[(&str, usize)]| {
        let claimed = mill.store.tasks().settle_and_claim(vec![], wanted).unwrap().claimed;
        let kinds: Vec<&str> = claimed.iter().map(|task| &*task.kind).collect();
        let want: Vec<&str> = want.iter().flat_map(|(kind, count)| vec![*kind; *count]).collect();
        assert_eq!(kinds, want);
    };
    let [one, two, three] = [mill.worker.token(), mill.worker.token(), mill.worker.token()];
    add("a", 3);
    add("b", 10);
    check(vec![wanted("a", 5, &one), wanted("b", 5, &one)], &[("a", 3), ("b", 2)]);
    add("a", 3);
    check(vec![wanted("a", 2, &two), wanted("b", 2, &two), wanted("b", 2, &three)], &[("a", 2), ("b", 2)]);
}

pub(crate) fn a_scheduled_task_waits_for_its_time(mill: &Mill) {
    let id = mill.add(NewTask { run_after: Some(after(HOUR)), priority: 9, ..plain() });
    let check = |at: UtcTime, claimed: &[i64]| {
        mill.clock.set(at);
        assert_eq!(mill.claim_ids(), claimed, "{at}");
    };
    assert_eq!(mill.status(id), TaskStatus::Scheduled);
    check(noon(), &[]);
    check(UtcTime::from_micros(after(HOUR).micros() - 1), &[]);
    assert_eq!(mill.status(id), TaskStatus::Scheduled);
    check(after(HOUR), &[id]);
    assert_eq!(mill.status(id), TaskStatus::Running);
}

pub(crate) fn a_time_that_has_come_is_no_reason_to_wait(mill: &Mill) {
    for run_after in [noon(), noon().minus(HOUR), UtcTime::from_micros(i64::MIN)] {
        let id = mill.add(NewTask { run_after: Some(run_after), ..plain() });
        assert_eq!((mill.row(id).status, mill.row(id).run_after), (TaskStatus::Pending, None));
        assert_eq!(mill.claim_ids(), [id]);
    }
    let never = mill.add(NewTask { run_after: Some(UtcTime::from_micros(i64::MAX)), ..plain() });
    assert_eq!(mill.claim_ids(), [0; 0]);
    assert_eq!(mill.status(never), TaskStatus::Scheduled);
}

pub(crate) fn the_next_due_time_is_told_when_something_is_missing(mill: &Mill) {
    assert_eq!(mill.turn(1).next_due, None);
    let late = mill.add(NewTask { run_after: Some(after(2 * HOUR)), ..plain() });
    mill.add(NewTask { run_after: Some(after(HOUR)), ..plain() });
    assert_eq!(mill.turn(1).next_due, Some(after(HOUR)));
    let ready = mill.put();
    let turn = mill.turn(1);
    assert_eq!((turn.claimed[0].id, turn.next_due), (ready, None), "all that was wanted was there");
    mill.advance(HOUR);
    let turn = mill.turn(2);
    assert_eq!((turn.claimed.len(), turn.next_due), (1, Some(after(2 * HOUR))));
    mill.cancel(late);
    assert_eq!(mill.turn(1).next_due, None);
    // A task of this very turn counts.
    let verdict = Disposition::Postponed(after(3 * HOUR));
    let settlements = vec![settlement(&turn.claimed[0], verdict)];
    let turn = mill.store.tasks().settle_and_claim(settlements, vec![mill.wanted(1)]).unwrap();
    assert_eq!(turn.next_due, Some(after(3 * HOUR)));
}

pub(crate) fn a_scheduled_task_can_be_hurried(mill: &Mill) {
    let asked = mill.add(NewTask { run_after: Some(after(HOUR)), ..plain() });
    let failed = mill.put_and_claim();
    mill.settle(&failed, Disposition::Retry(after(HOUR), failure("x")));
    for id in [asked, failed.id] {
        mill.store.tasks().run_now(id).unwrap();
        assert_eq!((mill.row(id).status, mill.row(id).run_after), (TaskStatus::Pending, None));
    }
    assert_eq!(mill.claim_ids(), [asked, failed.id]);
}

pub(crate) fn only_a_scheduled_task_can_be_hurried(mill: &Mill) {
    let check = |id: i64, status: &str| {
        let before = mill.row(id);
        refused(mill.store.tasks().run_now(id), conflict, &[&id.to_string(), status, "scheduled"]);
        assert_eq!(mill.row(id), before);
    };
    let id = mill.put();
    check(id, "pending");
    let task = mill.claim_one();
    check(id, "running");
    mill.settle(&task, Disposition::Completed(None));
    check(id, "completed");
}

pub(crate) fn a_task_can_be_cancelled_until_it_is_finished(mill: &Mill) {
    let pending = mill.put();
    let scheduled = mill.add(NewTask { run_after: Some(after(HOUR)), kind: "later".to_owned(), ..plain() });
    mill.advance(SEC);
    for id in [pending, scheduled] {
        assert_eq!(mill.store.tasks().cancel(id), Ok(CancelOutcome::Cancelled));
        let row = mill.row(id);
        assert_eq!((row.status, row.finished_at), (TaskStatus::Cancelled, Some(after(SEC))));
        assert_eq!(row.lease_expires_at, None);
        refused(
            mill.store.tasks().cancel(id),
            conflict,
            &[&id.to_string(), "cancelled", "pending, scheduled"],
        );
    }
    mill.advance(2 * HOUR);
    assert_eq!(mill.claim(), []);
    assert_eq!(mill.letters(), []);
}

pub(crate) fn cancelling_forgets_the_checkpoints(mill: &Mill) {
    let task = mill.put_and_claim();
    mill.note(&task, "a", "1").unwrap();
    mill.cancel(task.id);
    assert_eq!(mill.notes(task.id), []);
}

pub(crate) fn a_running_task_is_cancelled_when_its_run_has_ended(mill: &Mill) {
    type End<'a> = &'a dyn Fn(&ClaimedTask);
    let settle = |task: &ClaimedTask, verdict: Disposition, expected: UpdateResult| {
        assert_eq!(mill.settle(task, verdict), expected);
    };
    let retry = |task: &ClaimedTask| {
        settle(task, Disposition::Retry(after(HOUR), failure("x")), UpdateResult::Cancelled)
    };
    let expire = |task: &ClaimedTask| {
        mill.advance(2 * LEASE);
        assert_eq!(
            mill.store.tasks().heartbeat(vec![(task.id, task.token.clone())], LEASE).unwrap().len(),
            1
        );
        settle(task, Disposition::Released, UpdateResult::Cancelled);
    };
    let recover = |_: &ClaimedTask| {
        mill.advance(2 * LEASE);
        let found = mill.store.tasks().recover(1).unwrap();
        assert_eq!((found.cancelled, found.freed, found.poisoned), (1, 0, vec![]));
    };
    let recover_cancelled = |_: &ClaimedTask| {
        assert_eq!(mill.store.tasks().recover_cancelled(), Ok(0), "its worker may be alive");
        mill.advance(2 * LEASE);
        assert_eq!(mill.store.tasks().recover_cancelled(), Ok(1));
    };
    let ends: [(End<'_>, TaskStatus); 9] = [
        (&|task| settle(task, Disposition::Completed(None), UpdateResult::Done), TaskStatus::Completed),
        (&|task| settle(task, Disposition::Released, UpdateResult::Cancelled), TaskStatus::Cancelled),
        (
            &|task| settle(task, Disposition::Postponed(after(HOUR)), UpdateResult::Cancelled),
            TaskStatus::Cancelled,
        ),
        (
            &|task| settle(task, Disposition::DeadLettered(failure("x")), UpdateResult::Cancelled),
            TaskStatus::Cancelled,
        ),
        (&retry, TaskStatus::Cancelled),
        (&expire, TaskStatus::Cancelled),
        (&recover, TaskStatus::Cancelled),
        (&recover_cancelled, TaskStatus::Cancelled),
        (
            &|task| {
                assert_eq!(mill.store.tasks().cancel(task.id), Ok(CancelOutcome::Requested), "once more");
                settle(task, Disposition::Released, UpdateResult::Cancelled);
            },
            TaskStatus::Cancelled,
        ),
    ];
    for (end, status) in ends {
        let id = mill.add(keyed("k"));
        let task = mill.claim_one();
        assert!(mill.start(&task));
        assert_eq!(mill.store.tasks().cancel_requests().unwrap(), []);
        assert_eq!(mill.store.tasks().cancel(id), Ok(CancelOutcome::Requested));
        let row = mill.row(id);
        assert_eq!((row.status, row.cancel_requested_at.is_some()), (TaskStatus::Running, true));
        assert_eq!(mill.store.tasks().cancel_requests().unwrap(), [(id, task.token.clone())]);
        let second = mill.store.tasks().enqueue(keyed("k")).unwrap();
        assert_eq!(second, Enqueued { id, created: false }, "its key is not free");
        end(&task);
        let row = mill.row(id);
        assert_eq!((row.status, row.finished_at.is_some(), row.lease_expires_at), (status, true, None));
        assert_eq!(mill.store.tasks().cancel_requests().unwrap(), []);
        refused(mill.store.tasks().cancel(id), conflict, &[&id.to_string(), status.as_str()]);
        let next = mill.add(keyed("k"));
        assert!(next > id, "its key is free");
        mill.cancel(next);
    }
    assert_eq!(mill.letters(), [], "no dead letter is made of what is cancelled");
}

pub(crate) fn what_does_not_exist_is_not_found(mill: &Mill) {
    let (tasks, letters) = (mill.store.tasks(), mill.store.dead_letters());
    refused(tasks.get(77), not_found, &["task 77"]);
    refused(tasks.cancel(77), not_found, &["task 77"]);
    refused(tasks.run_now(77), not_found, &["task 77"]);
    refused(letters.get(77), not_found, &["letter 77"]);
    refused(letters.discard(77), not_found, &["letter 77"]);
    refused(letters.retry(77, plain()), not_found, &["letter 77"]);
    assert_eq!(mill.rows(), []);
    assert_eq!(mill.store.checkpoints().list(77).unwrap(), []);
}

pub(crate) fn nothing_overwrites_a_finished_task(mill: &Mill) {
    let finish: [&dyn Fn(&ClaimedTask); 4] = [
        &|task| {
            assert_eq!(mill.settle(task, Disposition::Completed(Some("[7]".to_owned()))), UpdateResult::Done)
        },
        &|task| assert!(mill.bury(task, "x") > 0),
        &|task| mill.cancel(task.id),
        &|task| {
            assert!(mill.start(task));
            mill.advance(2 * LEASE);
            assert_eq!(mill.store.tasks().recover(1).unwrap().poisoned.len(), 1);
        },
    ];
    for finish in finish {
        let task = mill.put_and_claim();
        finish(&task);
        let (row, letters) = (mill.row(task.id), mill.letters());
        assert!(row.status.is_terminal());
        assert_eq!((row.lease_expires_at, row.finished_at), (None, Some(mill.clock.now())));
        let unchanged = |what: &str| {
            assert_eq!(mill.row(task.id), row, "{what}");
            assert_eq!(mill.letters(), letters, "{what}");
        };
        let then = mill.clock.now();
        for ago in [0, 1, 100_000] {
            mill.advance(SEC * ago);
            for verdict in verdicts() {
                assert_eq!(mill.settle(&task, verdict.clone()), UpdateResult::Lost, "{verdict:?}");
                unchanged(&format!("{verdict:?}"));
            }
            assert_eq!(mill.beat(&task), HeartbeatResult::Lost);
            unchanged("heartbeat");
            refused(mill.note(&task, "late", "1"), conflict, &[&task.id.to_string()]);
            assert_eq!(mill.notes(task.id), []);
            refused(mill.store.tasks().cancel(task.id), conflict, &[row.status.as_str()]);
            unchanged("cancel");
            refused(mill.store.tasks().run_now(task.id), conflict, &[row.status.as_str()]);
            unchanged("hurry");
            let recovered = mill.store.tasks().recover(0).unwrap();
            assert_eq!((recovered.freed, recovered.poisoned), (0, vec![]));
            unchanged("recover");
            assert_eq!(mill.claim(), []);
            unchanged("claim");
        }
        mill.clock.set(then);
    }
}
