use gristmill_store::Error;
use gristmill_store::jobs::{JobFilter, JobKind, JobRow, JobStatus};
use gristmill_store::lease::HeartbeatResult;

use crate::{Fixture, LEASE, seconds, token};

impl Fixture {
    fn scan(&self) -> JobRow {
        self.store.jobs().create(JobKind::Scan, "{}", true).unwrap()
    }

    fn claim(&self, worker: &str) -> JobRow {
        self.store.jobs().claim(&token(worker), LEASE).unwrap().expect("a pending job")
    }

    fn job(&self, id: &str) -> JobRow {
        self.store.jobs().get(id).unwrap()
    }

    /// Inserts a job in a state with SQL, as the control plane could.
    fn insert_job(&self, id: &str, kind: &str, status: &str) -> String {
        let id = format!("{id:0>36}");
        self.sql(&format!(
            "INSERT INTO jobs (id, kind, status, worker_id, lease_expires_at)
             VALUES ('{id}', '{kind}', '{status}', 'a', '2026-01-19 09:00:00')"
        ));
        id
    }
}

#[track_caller]
fn assert_conflict<T: std::fmt::Debug>(result: &Result<T, Error>) {
    assert!(matches!(result, Err(Error::Conflict(_))), "{result:?}");
}

#[test]
fn job_moves_from_pending_to_completed() {
    let fixture = Fixture::new();
    let payload = r#"{"library_names": null, "batch_size": 5}"#;
    let created = fixture.store.jobs().create(JobKind::Scan, payload, false).unwrap();
    assert_eq!(created.id.len(), 36);
    assert_eq!(created.id, created.id.to_lowercase());
    assert_eq!(created.id.as_bytes()[14], b'4');
    assert_eq!((created.status, created.dry_run, created.progress), (JobStatus::Pending, false, 0.0));
    assert_eq!(created.payload, payload);
    assert_eq!((created.created_at, created.updated_at), (fixture.now(), fixture.now()));

    fixture.advance(seconds(1));
    let started = fixture.now();
    let claimed = fixture.claim("a");
    assert_eq!((claimed.id.as_str(), claimed.status), (created.id.as_str(), JobStatus::Running));
    assert_eq!(claimed.worker_id.as_deref(), Some("a"));
    assert_eq!(claimed.worker_heartbeat_at, Some(started));
    assert_eq!(claimed.lease_expires_at, Some(started.plus(LEASE)));
    assert_eq!((claimed.started_at, claimed.updated_at), (Some(started), started));

    fixture.advance(seconds(30));
    let jobs = fixture.store.jobs();
    assert_eq!(jobs.heartbeat(&created.id, &token("a"), LEASE, 0.5, 12).unwrap(), HeartbeatResult::Kept);
    let renewed = fixture.job(&created.id);
    assert_eq!((renewed.progress, renewed.processed_items), (0.5, 12));
    assert_eq!(renewed.lease_expires_at, Some(fixture.now().plus(LEASE)));

    fixture.advance(seconds(1));
    let done = jobs.finish(&created.id, &token("a"), Ok(())).unwrap();
    assert_eq!((done.status, done.progress, done.processed_items), (JobStatus::Completed, 1.0, 12));
    assert_eq!((done.finished_at, done.worker_heartbeat_at), (Some(fixture.now()), Some(fixture.now())));
    assert_eq!((done.lease_expires_at, done.error_code), (None, None));
    assert_eq!(done.worker_id.as_deref(), Some("a"));
    assert_eq!(done.started_at, Some(started));
}

#[test]
fn failed_job_stores_code_and_message() {
    let fixture = Fixture::new();
    let id = fixture.scan().id;
    fixture.claim("a");
    let failed = fixture.store.jobs().finish(&id, &token("a"), Err("no such folder".to_owned())).unwrap();
    assert_eq!((failed.status, failed.progress), (JobStatus::Failed, 0.0));
    assert_eq!(failed.error_code.as_deref(), Some("WORKER_FAILURE"));
    assert_eq!(failed.error_message.as_deref(), Some("no such folder"));
    assert_eq!((failed.finished_at, failed.lease_expires_at), (Some(fixture.now()), None));
}

#[test]
fn payload_must_be_a_json_object() {
    let fixture = Fixture::new();
    for payload in ["", "null", "[]", "3", "{", "{}{}"] {
        let result = fixture.store.jobs().create(JobKind::Scan, payload, true);
        assert!(matches!(result, Err(Error::Invalid(_))), "{payload:?}: {result:?}");
    }
}

#[test]
fn second_active_scan_or_hash_job_is_refused() {
    let fixture = Fixture::new();
    let jobs = fixture.store.jobs();
    let id = fixture.scan().id;
    let refused = jobs.create(JobKind::Hash, "{}", true);
    assert_conflict(&refused);
    assert!(refused.unwrap_err().to_string().contains(&id), "names the active job");
    fixture.claim("a");
    assert_conflict(&jobs.create(JobKind::Scan, "{}", true));
    assert_conflict(&fixture.second().jobs().create(JobKind::Scan, "{}", true));
    // Other kinds are not limited by the index and not claimed.
    jobs.create(JobKind::Delete, "{}", true).unwrap();
    jobs.create(JobKind::Thumbnail, "{}", true).unwrap();
    assert_eq!(jobs.claim(&token("b"), LEASE).unwrap(), None);
    jobs.finish(&id, &token("a"), Ok(())).unwrap();
    jobs.create(JobKind::Hash, "{}", true).unwrap();
}

#[test]
fn retryable_job_does_not_block_a_new_job() {
    let fixture = Fixture::new();
    let first = fixture.scan().id;
    fixture.claim("a");
    let jobs = fixture.store.jobs();
    let retryable = jobs.mark_retryable(&first, &token("a"), "DISK_MISSING", "the disk is missing").unwrap();
    assert_eq!(retryable.status, JobStatus::Retryable);
    assert_eq!(retryable.error_code.as_deref(), Some("DISK_MISSING"));
    assert_eq!((retryable.finished_at, retryable.lease_expires_at), (Some(fixture.now()), None));

    let second = fixture.scan().id;
    assert_conflict(&jobs.reset(&first));
    jobs.cancel(&second).unwrap();
    let reset = jobs.reset(&first).unwrap();
    assert_eq!(reset.status, JobStatus::Pending);
    assert_eq!((reset.error_code, reset.error_message, reset.finished_at), (None, None, None));
    assert_eq!((reset.worker_id, reset.worker_heartbeat_at), (None, None));
    assert_eq!(reset.started_at, retryable.started_at);
    // Its start time is kept when it is claimed again.
    fixture.advance(seconds(5));
    assert_eq!(fixture.claim("b").started_at, retryable.started_at);
}

#[test]
fn expired_lease_does_not_block_a_new_job() {
    let fixture = Fixture::new();
    let first = fixture.scan().id;
    fixture.claim("a");
    fixture.advance(LEASE);
    let second = fixture.scan().id;
    assert_eq!(fixture.job(&first).error_code.as_deref(), Some("LEASE_EXPIRED"));
    assert_eq!(fixture.claim("b").id, second);
    // Nor does it block the reset of an earlier job.
    fixture.advance(LEASE);
    assert_eq!(fixture.store.jobs().reset(&first).unwrap().status, JobStatus::Pending);
    assert_eq!(fixture.job(&second).status, JobStatus::Retryable);
}

#[test]
fn released_job_is_pending_at_once() {
    let fixture = Fixture::new();
    let id = fixture.scan().id;
    let started = fixture.claim("a").started_at;
    let jobs = fixture.store.jobs();
    assert_conflict(&jobs.release(&id, &token("b")));
    let released = jobs.release(&id, &token("a")).unwrap();
    assert_eq!((released.status, released.worker_id, released.error_code), (JobStatus::Pending, None, None));
    assert_eq!((released.finished_at, released.lease_expires_at), (None, None));
    let again = fixture.second().jobs().claim(&token("b"), LEASE).unwrap().unwrap();
    assert_eq!((again.id, again.started_at), (id.clone(), started));
    assert_conflict(&jobs.release(&id, &token("a")));
}

#[test]
fn expired_lease_makes_a_job_retryable() {
    type Way = (&'static str, fn(&Fixture, &str));
    let ways: [Way; 3] = [
        ("recovery", |fixture, _| assert_eq!(fixture.store.jobs().recover().unwrap(), 1)),
        ("a claim", |fixture, _| assert_eq!(fixture.store.jobs().claim(&token("b"), LEASE).unwrap(), None)),
        ("a late heartbeat", |fixture, id| {
            let heartbeat = fixture.store.jobs().heartbeat(id, &token("a"), LEASE, 0.5, 1);
            assert_eq!(heartbeat.unwrap(), HeartbeatResult::Expired);
        }),
    ];
    for (way, expire) in ways {
        let fixture = Fixture::new();
        let id = fixture.scan().id;
        fixture.claim("a");
        fixture.advance(LEASE);
        expire(&fixture, &id);
        let job = fixture.job(&id);
        assert_eq!(job.status, JobStatus::Retryable, "{way}");
        assert_eq!(job.error_code.as_deref(), Some("LEASE_EXPIRED"), "{way}");
        assert_eq!(job.finished_at, Some(fixture.now()), "{way}");
        assert_eq!(job.progress, 0.0, "{way}");
        assert_eq!((job.worker_id, job.worker_heartbeat_at, job.lease_expires_at), (None, None, None), "{way}");
        assert_eq!(fixture.store.jobs().recover().unwrap(), 0, "{way}");
        assert_conflict(&fixture.store.jobs().finish(&id, &token("a"), Ok(())));
    }
}

#[test]
fn lease_holds_until_its_exact_end() {
    let fixture = Fixture::new();
    let id = fixture.scan().id;
    fixture.claim("a");
    fixture.advance(LEASE - std::time::Duration::from_micros(1));
    assert_eq!(fixture.store.jobs().recover().unwrap(), 0);
    assert_eq!(fixture.store.jobs().heartbeat(&id, &token("a"), LEASE, 0.0, 0).unwrap(), HeartbeatResult::Kept);
}

#[test]
fn lease_times_of_every_text_form_are_compared_as_times() {
    // The current time is 07:08:09.25 in each case.
    for (lease, stale) in [
        ("2026-01-19 07:08:09", 1),
        ("2026-01-19 07:08:09+00:00", 1),
        ("2026-01-19 07:08:09.250000+00:00", 1),
        ("2026-01-19 07:08:09.250001+00:00", 0),
        ("2026-01-19 07:08:09.250001", 0),
        ("2026-01-19 07:08:10", 0),
        ("2026-01-19 07:08:10+00:00", 0),
    ] {
        let fixture = Fixture::new();
        fixture.insert_job("1", "hash", "running");
        fixture.sql(&format!("UPDATE jobs SET lease_expires_at = '{lease}'"));
        assert_eq!(fixture.store.jobs().recover().unwrap(), stale, "{lease}");
    }
    let fixture = Fixture::new();
    fixture.insert_job("1", "hash", "running");
    fixture.sql("UPDATE jobs SET lease_expires_at = NULL");
    assert_eq!(fixture.store.jobs().recover().unwrap(), 1);
}

#[test]
fn job_update_with_a_wrong_token_is_refused() {
    let fixture = Fixture::new();
    let id = fixture.scan().id;
    fixture.claim("a");
    let before = fixture.job(&id);
    let (jobs, other) = (fixture.store.jobs(), token("b"));
    assert_eq!(jobs.heartbeat(&id, &other, LEASE, 0.5, 1).unwrap(), HeartbeatResult::Lost);
    assert_conflict(&jobs.finish(&id, &other, Ok(())));
    assert_conflict(&jobs.finish(&id, &other, Err("no".to_owned())));
    assert_conflict(&jobs.mark_retryable(&id, &other, "X", "x"));
    assert_eq!(fixture.job(&id), before);
}

#[test]
fn finished_job_is_never_overwritten() {
    for status in ["completed", "failed", "cancelled"] {
        let fixture = Fixture::new();
        let id = fixture.insert_job("1", "scan", status);
        let before = fixture.job(&id);
        let (jobs, owner) = (fixture.store.jobs(), token("a"));
        fixture.advance(seconds(100_000));
        assert_eq!(jobs.heartbeat(&id, &owner, LEASE, 0.5, 1).unwrap(), HeartbeatResult::Lost);
        assert_conflict(&jobs.finish(&id, &owner, Ok(())));
        assert_conflict(&jobs.finish(&id, &owner, Err("no".to_owned())));
        assert_conflict(&jobs.mark_retryable(&id, &owner, "X", "x"));
        assert_conflict(&jobs.release(&id, &owner));
        assert_conflict(&jobs.cancel(&id));
        assert_conflict(&jobs.reset(&id));
        assert_eq!(jobs.recover().unwrap(), 0);
        assert_eq!(jobs.claim(&owner, LEASE).unwrap(), None);
        assert_eq!(fixture.job(&id), before, "{status}");
    }
}

#[test]
fn reset_is_refused_unless_the_job_is_retryable() {
    for (status, allowed) in [("pending", false), ("running", false), ("retryable", true)] {
        let fixture = Fixture::new();
        let id = fixture.insert_job("1", "scan", status);
        assert_eq!(fixture.store.jobs().reset(&id).is_ok(), allowed, "{status}");
    }
}

#[test]
fn unfinished_job_is_cancelled() {
    for kind in ["scan", "delete"] {
        for status in ["pending", "running", "retryable"] {
            let fixture = Fixture::new();
            let id = fixture.insert_job("1", kind, status);
            let job = fixture.store.jobs().cancel(&id).unwrap();
            assert_eq!((job.status, job.finished_at), (JobStatus::Cancelled, Some(fixture.now())));
            assert_eq!(job.lease_expires_at, None);
            assert_eq!(fixture.store.jobs().heartbeat(&id, &token("a"), LEASE, 0.5, 1).unwrap(), HeartbeatResult::Lost);
        }
    }
}

#[test]
fn delete_and_thumbnail_jobs_are_not_recovered() {
    let fixture = Fixture::new();
    let id = fixture.insert_job("1", "delete", "running");
    fixture.advance(seconds(1_000_000));
    assert_eq!(fixture.store.jobs().recover().unwrap(), 0);
    assert_eq!(fixture.store.jobs().heartbeat(&id, &token("a"), LEASE, 0.5, 1).unwrap(), HeartbeatResult::Lost);
}

#[test]
fn heartbeat_with_invalid_progress_is_refused() {
    let fixture = Fixture::new();
    let id = fixture.scan().id;
    fixture.claim("a");
    let heartbeat = |progress, items| fixture.store.jobs().heartbeat(&id, &token("a"), LEASE, progress, items);
    for progress in [f64::NAN, f64::INFINITY, -0.1, 1.1] {
        assert!(matches!(heartbeat(progress, 0), Err(Error::Invalid(_))), "{progress}");
    }
    assert!(matches!(heartbeat(0.5, u64::MAX), Err(Error::Invalid(_))));
    assert_eq!(heartbeat(1.0, 0).unwrap(), HeartbeatResult::Kept);
}

#[test]
fn unknown_job_returns_not_found() {
    let fixture = Fixture::new();
    let (jobs, owner) = (fixture.store.jobs(), token("a"));
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
fn oldest_job_is_claimed_for_every_time_format() {
    // Without the unique index, which allows one active job, the order can be tested.
    let fixture = Fixture::new();
    fixture.sql("DROP INDEX ix_jobs_single_active_scan_hash");
    let times = [
        ("3", "2026-01-19 07:00:00.000001"),
        ("1", "2026-01-19 07:00:00.000000"),
        ("2", "2026-01-19 07:00:00"),
        ("4", "2026-01-19 07:00:01"),
    ];
    for (id, time) in times {
        let id = fixture.insert_job(id, "scan", "pending");
        fixture.sql(&format!("UPDATE jobs SET created_at = '{time}' WHERE id = '{id}'"));
    }
    let order: Vec<String> = (0..4).map(|_| fixture.claim("a").id.trim_start_matches('0').to_owned()).collect();
    assert_eq!(order, ["1", "2", "3", "4"]);
}

#[test]
fn only_one_of_two_stores_claims_the_job() {
    let fixture = Fixture::new();
    let other = fixture.second();
    let id = fixture.scan().id;
    let claims = std::thread::scope(|scope| {
        let threads: Vec<_> = [&fixture.store, &other]
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
fn job_pages_are_ordered_by_time_and_skip_nothing() {
    let fixture = Fixture::new();
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
        let id = fixture.insert_job(&format!("{:02}", (number * 7) % 30), kind, status);
        let time = texts[number % texts.len()];
        fixture.sql(&format!("UPDATE jobs SET created_at = '{time}' WHERE id = '{id}'"));
    }
    let pages = |filter: JobFilter, limit: usize| {
        let (mut rows, mut after) = (Vec::new(), None::<String>);
        loop {
            let page = fixture.store.jobs().list(filter, after.as_deref(), limit).unwrap();
            assert!(page.items.len() <= limit);
            rows.extend(page.items);
            assert!(rows.len() <= 30, "rows are repeated");
            after = page.next_cursor;
            if after.is_none() {
                return rows;
            }
        }
    };
    let all = pages(JobFilter::default(), 200);
    assert_eq!(all.len(), 30);
    assert!(all.windows(2).all(|pair| (pair[0].created_at, &pair[0].id) > (pair[1].created_at, &pair[1].id)));
    for limit in [1, 2, 3, 7, 29, 30] {
        assert_eq!(pages(JobFilter::default(), limit), all, "{limit}");
    }
    let filter = JobFilter::default().status(Some(JobStatus::Failed)).kind(Some(JobKind::Thumbnail));
    let expected: Vec<JobRow> =
        all.into_iter().filter(|job| job.status == JobStatus::Failed && job.kind == JobKind::Thumbnail).collect();
    assert!(expected.len() > 3);
    assert_eq!(pages(filter, 2), expected);
}

#[test]
fn invalid_cursor_or_limit_is_refused() {
    let fixture = Fixture::new();
    let id = fixture.scan().id;
    let list = |after, limit| fixture.store.jobs().list(JobFilter::default(), after, limit);
    for (after, limit) in [(Some("unknown"), 10), (Some(""), 10), (None, 0), (None, 201)] {
        assert!(matches!(list(after, limit), Err(Error::Invalid(_))), "{after:?} {limit}");
    }
    let last = list(Some(&id), 200).unwrap();
    assert_eq!((last.items.len(), last.next_cursor), (0, None));
}
