use gristmill_store::Error;
use gristmill_store::jobs::{JobFilter, JobKind, JobRow, JobStatus};
use gristmill_store::lease::HeartbeatResult;

use crate::{Bench, LEASE, seconds, token};

const ALL: JobFilter = JobFilter { status: None, kind: None };

impl Bench {
    fn scan(&self) -> JobRow {
        self.store.jobs().create(JobKind::Scan, "{}", true).unwrap()
    }

    fn claim(&self, worker: &str) -> JobRow {
        self.store.jobs().claim(&token(worker), LEASE).unwrap().expect("something to claim")
    }

    fn job(&self, id: &str) -> JobRow {
        self.store.jobs().get(id).unwrap()
    }

    /// A job in a state, made the way a program on the other side could: with SQL.
    fn job_in(&self, id: &str, kind: &str, status: &str) -> String {
        let id = format!("{id:0>36}");
        self.sql(&format!(
            "INSERT INTO jobs (id, kind, status, worker_id, lease_expires_at)
             VALUES ('{id}', '{kind}', '{status}', 'a', '2026-01-19 09:00:00')"
        ));
        id
    }
}

#[track_caller]
fn conflict<T: std::fmt::Debug>(result: &Result<T, Error>) {
    assert!(matches!(result, Err(Error::Conflict(_))), "{result:?}");
}

#[test]
fn a_job_from_order_to_end() {
    let bench = Bench::new();
    let payload = r#"{"library_names": null, "batch_size": 5}"#;
    let made = bench.store.jobs().create(JobKind::Scan, payload, false).unwrap();
    assert_eq!(made.id.len(), 36);
    assert_eq!(made.id, made.id.to_lowercase());
    assert_eq!(made.id.as_bytes()[14], b'4');
    assert_eq!((made.status, made.dry_run, made.progress), (JobStatus::Pending, false, 0.0));
    assert_eq!(made.payload, payload);
    assert_eq!((made.created_at, made.updated_at), (bench.now(), bench.now()));

    bench.pass(seconds(1));
    let started = bench.now();
    let claimed = bench.claim("a");
    assert_eq!((claimed.id.as_str(), claimed.status), (made.id.as_str(), JobStatus::Running));
    assert_eq!(claimed.worker_id.as_deref(), Some("a"));
    assert_eq!(claimed.worker_heartbeat_at, Some(started));
    assert_eq!(claimed.lease_expires_at, Some(started.plus(LEASE)));
    assert_eq!((claimed.started_at, claimed.updated_at), (Some(started), started));

    bench.pass(seconds(30));
    let jobs = bench.store.jobs();
    assert_eq!(jobs.heartbeat(&made.id, &token("a"), LEASE, 0.5, 12).unwrap(), HeartbeatResult::Kept);
    let beaten = bench.job(&made.id);
    assert_eq!((beaten.progress, beaten.processed_items), (0.5, 12));
    assert_eq!(beaten.lease_expires_at, Some(bench.now().plus(LEASE)));

    bench.pass(seconds(1));
    let done = jobs.finish(&made.id, &token("a"), Ok(())).unwrap();
    assert_eq!((done.status, done.progress, done.processed_items), (JobStatus::Completed, 1.0, 12));
    assert_eq!((done.finished_at, done.worker_heartbeat_at), (Some(bench.now()), Some(bench.now())));
    assert_eq!((done.lease_expires_at, done.error_code), (None, None));
    assert_eq!(done.worker_id.as_deref(), Some("a"));
    assert_eq!(done.started_at, Some(started));
}

#[test]
fn a_failed_run_says_so() {
    let bench = Bench::new();
    let id = bench.scan().id;
    bench.claim("a");
    let failed = bench.store.jobs().finish(&id, &token("a"), Err("no such folder".to_owned())).unwrap();
    assert_eq!((failed.status, failed.progress), (JobStatus::Failed, 0.0));
    assert_eq!(failed.error_code.as_deref(), Some("WORKER_FAILURE"));
    assert_eq!(failed.error_message.as_deref(), Some("no such folder"));
    assert_eq!((failed.finished_at, failed.lease_expires_at), (Some(bench.now()), None));
}

#[test]
fn payloads_are_objects() {
    let bench = Bench::new();
    for payload in ["", "null", "[]", "3", "{", "{}{}"] {
        let result = bench.store.jobs().create(JobKind::Scan, payload, true);
        assert!(matches!(result, Err(Error::Invalid(_))), "{payload:?}: {result:?}");
    }
}

#[test]
fn one_scan_or_hash_at_a_time() {
    let bench = Bench::new();
    let jobs = bench.store.jobs();
    let id = bench.scan().id;
    let refused = jobs.create(JobKind::Hash, "{}", true);
    conflict(&refused);
    assert!(refused.unwrap_err().to_string().contains(&id), "says which job is in the way");
    bench.claim("a");
    conflict(&jobs.create(JobKind::Scan, "{}", true));
    conflict(&bench.second().jobs().create(JobKind::Scan, "{}", true));
    // Other kinds are not bound by it, and nobody claims them.
    jobs.create(JobKind::Delete, "{}", true).unwrap();
    jobs.create(JobKind::Thumbnail, "{}", true).unwrap();
    assert_eq!(jobs.claim(&token("b"), LEASE).unwrap(), None);
    jobs.finish(&id, &token("a"), Ok(())).unwrap();
    jobs.create(JobKind::Hash, "{}", true).unwrap();
}

#[test]
fn a_retryable_job_stands_in_nobodys_way() {
    let bench = Bench::new();
    let first = bench.scan().id;
    bench.claim("a");
    let jobs = bench.store.jobs();
    let put_off = jobs.mark_retryable(&first, &token("a"), "DISK_GONE", "the disk is gone").unwrap();
    assert_eq!(put_off.status, JobStatus::Retryable);
    assert_eq!(put_off.error_code.as_deref(), Some("DISK_GONE"));
    assert_eq!((put_off.finished_at, put_off.lease_expires_at), (Some(bench.now()), None));

    let second = bench.scan().id;
    conflict(&jobs.reset(&first));
    jobs.cancel(&second).unwrap();
    let reset = jobs.reset(&first).unwrap();
    assert_eq!(reset.status, JobStatus::Pending);
    assert_eq!((reset.error_code, reset.error_message, reset.finished_at), (None, None, None));
    assert_eq!((reset.worker_id, reset.worker_heartbeat_at), (None, None));
    assert_eq!(reset.started_at, put_off.started_at);
    // Its start is kept when it is claimed again.
    bench.pass(seconds(5));
    assert_eq!(bench.claim("b").started_at, put_off.started_at);
}

#[test]
fn a_dead_worker_does_not_block_new_jobs() {
    let bench = Bench::new();
    let first = bench.scan().id;
    bench.claim("a");
    bench.pass(LEASE);
    let second = bench.scan().id;
    assert_eq!(bench.job(&first).error_code.as_deref(), Some("LEASE_EXPIRED"));
    assert_eq!(bench.claim("b").id, second);
    // Nor the return of an old one.
    bench.pass(LEASE);
    assert_eq!(bench.store.jobs().reset(&first).unwrap().status, JobStatus::Pending);
    assert_eq!(bench.job(&second).status, JobStatus::Retryable);
}

#[test]
fn a_released_job_is_free_at_once() {
    let bench = Bench::new();
    let id = bench.scan().id;
    let started = bench.claim("a").started_at;
    let jobs = bench.store.jobs();
    conflict(&jobs.release(&id, &token("b")));
    let free = jobs.release(&id, &token("a")).unwrap();
    assert_eq!((free.status, free.worker_id, free.error_code), (JobStatus::Pending, None, None));
    assert_eq!((free.finished_at, free.lease_expires_at), (None, None));
    let again = bench.second().jobs().claim(&token("b"), LEASE).unwrap().unwrap();
    assert_eq!((again.id, again.started_at), (id.clone(), started));
    conflict(&jobs.release(&id, &token("a")));
}

#[test]
fn an_expired_lease_makes_a_job_retryable() {
    type Way = (&'static str, fn(&Bench, &str));
    let ways: [Way; 3] = [
        ("recovery", |bench, _| assert_eq!(bench.store.jobs().recover().unwrap(), 1)),
        ("a claim", |bench, _| assert_eq!(bench.store.jobs().claim(&token("b"), LEASE).unwrap(), None)),
        ("a late heartbeat", |bench, id| {
            let beat = bench.store.jobs().heartbeat(id, &token("a"), LEASE, 0.5, 1);
            assert_eq!(beat.unwrap(), HeartbeatResult::Expired);
        }),
    ];
    for (way, find) in ways {
        let bench = Bench::new();
        let id = bench.scan().id;
        bench.claim("a");
        bench.pass(LEASE);
        find(&bench, &id);
        let job = bench.job(&id);
        assert_eq!(job.status, JobStatus::Retryable, "{way}");
        assert_eq!(job.error_code.as_deref(), Some("LEASE_EXPIRED"), "{way}");
        assert_eq!(job.finished_at, Some(bench.now()), "{way}");
        assert_eq!(job.progress, 0.0, "{way}");
        assert_eq!(
            (job.worker_id, job.worker_heartbeat_at, job.lease_expires_at),
            (None, None, None),
            "{way}"
        );
        assert_eq!(bench.store.jobs().recover().unwrap(), 0, "{way}");
        conflict(&bench.store.jobs().finish(&id, &token("a"), Ok(())));
    }
}

#[test]
fn a_lease_holds_until_its_last_moment() {
    let bench = Bench::new();
    let id = bench.scan().id;
    bench.claim("a");
    bench.pass(LEASE - std::time::Duration::from_micros(1));
    assert_eq!(bench.store.jobs().recover().unwrap(), 0);
    assert_eq!(bench.store.jobs().heartbeat(&id, &token("a"), LEASE, 0.0, 0).unwrap(), HeartbeatResult::Kept);
}

#[test]
fn leases_are_compared_as_times() {
    // Now is 07:08:09.25 in each case.
    for (lease, stale) in [
        ("2026-01-19 07:08:09", 1),
        ("2026-01-19 07:08:09+00:00", 1),
        ("2026-01-19 07:08:09.250000+00:00", 1),
        ("2026-01-19 07:08:09.250001+00:00", 0),
        ("2026-01-19 07:08:09.250001", 0),
        ("2026-01-19 07:08:10", 0),
        ("2026-01-19 07:08:10+00:00", 0),
    ] {
        let bench = Bench::new();
        bench.job_in("1", "hash", "running");
        bench.sql(&format!("UPDATE jobs SET lease_expires_at = '{lease}'"));
        assert_eq!(bench.store.jobs().recover().unwrap(), stale, "{lease}");
    }
    let bench = Bench::new();
    bench.job_in("1", "hash", "running");
    bench.sql("UPDATE jobs SET lease_expires_at = NULL");
    assert_eq!(bench.store.jobs().recover().unwrap(), 1);
}

#[test]
fn only_the_owner_writes() {
    let bench = Bench::new();
    let id = bench.scan().id;
    bench.claim("a");
    let before = bench.job(&id);
    let (jobs, other) = (bench.store.jobs(), token("b"));
    assert_eq!(jobs.heartbeat(&id, &other, LEASE, 0.5, 1).unwrap(), HeartbeatResult::Lost);
    conflict(&jobs.finish(&id, &other, Ok(())));
    conflict(&jobs.finish(&id, &other, Err("no".to_owned())));
    conflict(&jobs.mark_retryable(&id, &other, "X", "x"));
    assert_eq!(bench.job(&id), before);
}

#[test]
fn nothing_overwrites_a_finished_job() {
    for status in ["completed", "failed", "cancelled"] {
        let bench = Bench::new();
        let id = bench.job_in("1", "scan", status);
        let before = bench.job(&id);
        let (jobs, owner) = (bench.store.jobs(), token("a"));
        bench.pass(seconds(100_000));
        assert_eq!(jobs.heartbeat(&id, &owner, LEASE, 0.5, 1).unwrap(), HeartbeatResult::Lost);
        conflict(&jobs.finish(&id, &owner, Ok(())));
        conflict(&jobs.finish(&id, &owner, Err("no".to_owned())));
        conflict(&jobs.mark_retryable(&id, &owner, "X", "x"));
        conflict(&jobs.release(&id, &owner));
        conflict(&jobs.cancel(&id));
        conflict(&jobs.reset(&id));
        assert_eq!(jobs.recover().unwrap(), 0);
        assert_eq!(jobs.claim(&owner, LEASE).unwrap(), None);
        assert_eq!(bench.job(&id), before, "{status}");
    }
}

#[test]
fn only_retryable_jobs_are_reset() {
    for (status, legal) in [("pending", false), ("running", false), ("retryable", true)] {
        let bench = Bench::new();
        let id = bench.job_in("1", "scan", status);
        assert_eq!(bench.store.jobs().reset(&id).is_ok(), legal, "{status}");
    }
}

#[test]
fn what_is_not_finished_can_be_cancelled() {
    for kind in ["scan", "delete"] {
        for status in ["pending", "running", "retryable"] {
            let bench = Bench::new();
            let id = bench.job_in("1", kind, status);
            let job = bench.store.jobs().cancel(&id).unwrap();
            assert_eq!((job.status, job.finished_at), (JobStatus::Cancelled, Some(bench.now())));
            assert_eq!(job.lease_expires_at, None);
            assert_eq!(
                bench.store.jobs().heartbeat(&id, &token("a"), LEASE, 0.5, 1).unwrap(),
                HeartbeatResult::Lost
            );
        }
    }
}

#[test]
fn jobs_that_we_do_not_execute_are_not_rescued_either() {
    let bench = Bench::new();
    let id = bench.job_in("1", "delete", "running");
    bench.pass(seconds(1_000_000));
    assert_eq!(bench.store.jobs().recover().unwrap(), 0);
    assert_eq!(bench.store.jobs().heartbeat(&id, &token("a"), LEASE, 0.5, 1).unwrap(), HeartbeatResult::Lost);
}

#[test]
fn heartbeats_are_checked() {
    let bench = Bench::new();
    let id = bench.scan().id;
    bench.claim("a");
    let beat = |progress, items| bench.store.jobs().heartbeat(&id, &token("a"), LEASE, progress, items);
    for progress in [f64::NAN, f64::INFINITY, -0.1, 1.1] {
        assert!(matches!(beat(progress, 0), Err(Error::Invalid(_))), "{progress}");
    }
    assert!(matches!(beat(0.5, u64::MAX), Err(Error::Invalid(_))));
    assert_eq!(beat(1.0, 0).unwrap(), HeartbeatResult::Kept);
}

#[test]
fn a_job_that_is_not_there_is_not_found() {
    let bench = Bench::new();
    let (jobs, owner) = (bench.store.jobs(), token("a"));
    let results = [
        jobs.get("x").map(drop),
        jobs.heartbeat("x", &owner, LEASE, 0.5, 1).map(drop),
        jobs.finish("x", &owner, Ok(())).map(drop),
        jobs.mark_retryable("x", &owner, "X", "x").map(drop),
        jobs.release("x", &owner).map(drop),
        jobs.cancel("x").map(drop),
        jobs.reset("x").map(drop),
    ];
    for result in results {
        assert!(matches!(result, Err(Error::NotFound(_))), "{result:?}");
    }
}

#[test]
fn the_oldest_is_claimed_whatever_its_text() {
    // The index lets no two be active in a real file; without it the order can be seen.
    let bench = Bench::new();
    bench.sql("DROP INDEX ix_jobs_single_active_scan_hash");
    let times = [
        ("3", "2026-01-19 07:00:00.000001"),
        ("1", "2026-01-19 07:00:00.000000"),
        ("2", "2026-01-19 07:00:00"),
        ("4", "2026-01-19 07:00:01"),
    ];
    for (id, time) in times {
        let id = bench.job_in(id, "scan", "pending");
        bench.sql(&format!("UPDATE jobs SET created_at = '{time}' WHERE id = '{id}'"));
    }
    let order: Vec<String> = (0..4).map(|_| bench.claim("a").id.trim_start_matches('0').to_owned()).collect();
    assert_eq!(order, ["1", "2", "3", "4"]);
}

#[test]
fn of_two_stores_one_gets_the_job() {
    let bench = Bench::new();
    let other = bench.second();
    let id = bench.scan().id;
    let claims = std::thread::scope(|scope| {
        let threads: Vec<_> = [&bench.store, &other]
            .into_iter()
            .flat_map(|store| (0..8).map(move |number| (store, number)))
            .map(|(store, number)| {
                scope.spawn(move || store.jobs().claim(&token(&format!("w{number}")), LEASE).unwrap())
            })
            .collect();
        threads.into_iter().filter_map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    assert_eq!(claims.len(), 1);
    assert_eq!(claims[0].id, id);
}

#[test]
fn pages_are_in_the_order_of_time_and_lose_nothing() {
    let bench = Bench::new();
    let texts = [
        "2026-01-19 07:00:00",
        "2026-01-19 07:00:00.000000",
        "2026-01-19 07:00:00+00:00",
        "2026-01-19 07:00:00.000001",
        "2026-01-19 06:59:59.999999",
        "2026-01-19 07:00:01",
    ];
    for number in 0..30 {
        let kind = if number % 2 == 0 { "delete" } else { "thumbnail" };
        let status = if number % 3 == 0 { "completed" } else { "failed" };
        let id = bench.job_in(&format!("{:02}", (number * 7) % 30), kind, status);
        let time = texts[number % texts.len()];
        bench.sql(&format!("UPDATE jobs SET created_at = '{time}' WHERE id = '{id}'"));
    }
    let pages = |filter: JobFilter, limit: usize| {
        let (mut rows, mut after) = (Vec::new(), None::<String>);
        loop {
            let page = bench.store.jobs().list(filter, after.as_deref(), limit).unwrap();
            assert!(page.items.len() <= limit);
            rows.extend(page.items);
            assert!(rows.len() <= 30, "rows are repeated");
            after = page.next_cursor;
            if after.is_none() {
                return rows;
            }
        }
    };
    let all = pages(ALL, 200);
    assert_eq!(all.len(), 30);
    assert!(all.windows(2).all(|pair| (pair[0].created_at, &pair[0].id) > (pair[1].created_at, &pair[1].id)));
    for limit in [1, 2, 3, 7, 29, 30] {
        assert_eq!(pages(ALL, limit), all, "{limit}");
    }
    let filter = JobFilter { status: Some(JobStatus::Failed), kind: Some(JobKind::Thumbnail) };
    let some: Vec<JobRow> = all
        .into_iter()
        .filter(|job| job.status == JobStatus::Failed && job.kind == JobKind::Thumbnail)
        .collect();
    assert!(some.len() > 3);
    assert_eq!(pages(filter, 2), some);
}

#[test]
fn bad_cursors_and_limits_are_refused() {
    let bench = Bench::new();
    let id = bench.scan().id;
    let list = |after, limit| bench.store.jobs().list(ALL, after, limit);
    for (after, limit) in [(Some("nobody"), 10), (Some(""), 10), (None, 0), (None, 201)] {
        assert!(matches!(list(after, limit), Err(Error::Invalid(_))), "{after:?} {limit}");
    }
    let last = list(Some(&id), 200).unwrap();
    assert_eq!((last.items.len(), last.next_cursor), (0, None));
}
