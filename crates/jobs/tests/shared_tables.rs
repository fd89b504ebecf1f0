//! The tables of the protocol: jobs, thumbnails, thumbnail clean-ups and WAL checkpoints, polled in this order.

use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use gristmill_jobs::{Runner, ThumbnailInfo};
use gristmill_pool::TaskError;
use gristmill_store::Store;
use gristmill_store::cleanup::CleanupStatus;
use gristmill_store::jobs::{JobKind, JobStatus};
use gristmill_store::tasks::NewTask;
use gristmill_store::thumbnails::{CAPACITY, MediaType, NewThumbnail, ThumbFormat, ThumbLimits, ThumbStatus};
use gristmill_store::wal::{WalMode, WalRequest, WalStatus};
use tempfile::TempDir;

const LONG: Duration = Duration::from_secs(60);

fn fixture() -> (TempDir, Store) {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path().join("work.db")).unwrap();
    (folder, store)
}

/// Adds a file to the catalog, which thumbnails refer to.
fn add_file(store: &Store) {
    let conn = rusqlite::Connection::open(store.path()).unwrap();
    conn.execute_batch(
        "INSERT INTO library_roots (id, name, root_path) VALUES (1, 'r', '/r');
         INSERT INTO library_files (id, library_id, relative_path, size_bytes, mtime_ns) VALUES (1, 1, 'a.jpg', 9, 9);",
    )
    .unwrap();
}

fn thumbnail(key: &str) -> NewThumbnail {
    NewThumbnail {
        thumb_key: key.to_owned(),
        file_id: 1,
        group_key: Some("g".to_owned()),
        media_type: MediaType::Image,
        format: ThumbFormat::Jpeg,
        max_dimension: 256,
        version: 2,
        source_size_bytes: 9,
        source_mtime_ns: 9,
        output_relpath: format!("{key}.jpg"),
    }
}

fn request(mode: WalMode) -> WalRequest {
    WalRequest { mode, requested_by: "test".to_owned(), reason: None, min_interval: None }
}

#[test]
fn progress_of_a_job_is_stored_by_heartbeats() {
    let (_folder, store) = fixture();
    let job = store.jobs().create(JobKind::Scan, "{}", true).unwrap();
    let (stored, progress) = channel();
    let stored = Mutex::new(stored);
    let running = Runner::builder(store.clone())
        .lease(Duration::from_secs(2))
        .on_job(move |context| {
            context.progress(7, 0.5);
            // Until a heartbeat has stored it.
            while context.store().jobs().get(&context.row().id)?.processed_items != 7 {
                assert!(!context.is_cancelled());
            }
            stored.lock().unwrap().send(context.store().jobs().get(&context.row().id)?.progress)?;
            Ok(())
        })
        .start()
        .unwrap();
    running.wait_idle().unwrap();
    assert_eq!(progress.recv_timeout(LONG).unwrap(), 0.5);
    let job = store.jobs().get(&job.id).unwrap();
    assert_eq!((job.status, job.progress, job.lease_expires_at), (JobStatus::Completed, 1.0, None));
}

#[test]
fn job_fails_with_the_reason_when_its_handler_fails_or_panics() {
    for (panics, part) in [(false, "no such folder"), (true, "panicked: oh, at ")] {
        let (_folder, store) = fixture();
        let job = store.jobs().create(JobKind::Hash, "{}", true).unwrap();
        let builder = Runner::builder(store.clone()).on_job(move |_| {
            assert!(!panics, "oh");
            Err(TaskError::permanent("no such folder"))
        });
        let running = builder.start().unwrap();
        running.wait_idle().unwrap();
        let job = store.jobs().get(&job.id).unwrap();
        assert_eq!((job.status, job.error_code.as_deref()), (JobStatus::Failed, Some("WORKER_FAILURE")));
        assert!(job.error_message.as_deref().unwrap().contains(part), "{job:?}");
    }
}

#[test]
fn job_is_released_when_the_runner_stops() {
    let (_folder, store) = fixture();
    let job = store.jobs().create(JobKind::Scan, "{}", true).unwrap();
    let (started, starts) = channel();
    let started = Mutex::new(started);
    let builder = Runner::builder(store.clone()).on_job(move |context| {
        started.lock().unwrap().send(())?;
        assert!(context.wait_cancelled(LONG));
        Err(TaskError::cancelled())
    });
    let running = builder.start().unwrap();
    starts.recv_timeout(LONG).unwrap();
    running.stop(Duration::from_millis(100)).unwrap();
    let job = store.jobs().get(&job.id).unwrap();
    assert_eq!((job.status, job.worker_id), (JobStatus::Pending, None));
}

#[test]
fn job_stays_cancelled_when_its_handler_reports_success() {
    let (_folder, store) = fixture();
    let job = store.jobs().create(JobKind::Scan, "{}", true).unwrap();
    let (started, starts) = channel();
    let started = Mutex::new(started);
    let builder = Runner::builder(store.clone()).lease(Duration::from_millis(200)).on_job(move |context| {
        started.lock().unwrap().send(())?;
        assert!(context.wait_cancelled(LONG));
        Ok(()) // reports success although it was cancelled
    });
    let running = builder.start().unwrap();
    starts.recv_timeout(LONG).unwrap();
    store.jobs().cancel(&job.id).unwrap();
    running.wait_idle().unwrap();
    assert_eq!(store.jobs().get(&job.id).unwrap().status, JobStatus::Cancelled);
}

#[test]
fn failed_thumbnail_has_an_error_code_of_the_protocol() {
    let (_folder, store) = fixture();
    add_file(&store);
    for key in ["good", "bad", "worse"] {
        store.thumbnails().request(thumbnail(key), CAPACITY).unwrap();
    }
    let builder = Runner::builder(store.clone()).on_thumbnail(ThumbLimits::default(), |context| {
        match context.row().thumb_key.as_str() {
            "good" => Ok(ThumbnailInfo { width: 256, height: 128, bytes_size: 999 }),
            "bad" => Err(TaskError::permanent("no image").with_step("THUMB_DECODE_FAILED")),
            _ => Err(TaskError::permanent("unknown").with_step("other")),
        }
    });
    builder.start().unwrap().wait_idle().unwrap();
    let get = |key| store.thumbnails().get(key).unwrap();
    assert_eq!((get("good").status, get("good").width), (ThumbStatus::Ready, Some(256)));
    let codes = [get("bad"), get("worse")].map(|row| (row.status, row.error_code.unwrap()));
    let failed = |code: &str| (ThumbStatus::Failed, code.to_owned());
    assert_eq!(codes, [failed("THUMB_DECODE_FAILED"), failed("THUMB_GENERATION_FAILED")]);
}

#[test]
fn requested_wal_checkpoint_is_made_without_a_handler() {
    let (_folder, store) = fixture();
    store.wal().enqueue(request(WalMode::Truncate)).unwrap();
    Runner::builder(store.clone()).start().unwrap().wait_idle().unwrap();
    let row = store.wal().latest().unwrap().unwrap();
    assert!(matches!(row.status, WalStatus::Completed | WalStatus::Retryable), "{row:?}");
    assert!(row.checkpoint_busy.is_some(), "{row:?}");
}

#[test]
fn tables_are_polled_in_the_order_of_the_protocol() {
    let (_folder, store) = fixture();
    add_file(&store);
    // Enqueued in the reverse order.
    store.tasks().enqueue(NewTask::new("k", "1")).unwrap();
    store.cleanups().schedule("other", store.now()).unwrap();
    store.thumbnails().request(thumbnail("t"), CAPACITY).unwrap();
    store.jobs().create(JobKind::Scan, "{}", true).unwrap();
    let started = |row: Option<gristmill_store::UtcTime>| row.unwrap();
    let builder = Runner::builder(store.clone())
        .kind(gristmill_jobs::TaskKind::new("k", |_| Ok(())))
        .on_cleanup(|_| Ok(()))
        .on_thumbnail(ThumbLimits::default(), |_| Ok(ThumbnailInfo { width: 1, height: 1, bytes_size: 1 }))
        .on_job(|_| Ok(()));
    builder.start().unwrap().wait_idle().unwrap();
    let job = store.jobs().list(Default::default(), None, 1).unwrap().items.remove(0);
    let thumbnail = store.thumbnails().get("t").unwrap();
    let cleanup = store.cleanups().get("other").unwrap();
    let task = store.tasks().get(1).unwrap();
    assert_eq!(cleanup.status, CleanupStatus::Completed);
    let order = [started(job.started_at), started(thumbnail.started_at), started(task.started_at)];
    assert!(order.is_sorted(), "{order:?}");
}

#[test]
fn clean_up_deletes_the_rows_of_finished_thumbnails() {
    let (_folder, store) = fixture();
    add_file(&store);
    store.thumbnails().request(thumbnail("t"), CAPACITY).unwrap();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let files = seen.clone();
    let builder = Runner::builder(store.clone())
        .on_thumbnail(ThumbLimits::default(), |_| Ok(ThumbnailInfo { width: 1, height: 1, bytes_size: 1 }))
        .on_cleanup(move |context| {
            let group = &context.row().group_key;
            let made = context.store().thumbnails().finished(group)?;
            files.lock().unwrap().extend(made.into_iter().filter_map(|row| row.output_relpath));
            context.store().cleanups().remove_finished_thumbnails(context.row().id, context.token())?;
            Ok(())
        });
    let running = builder.start().unwrap();
    running.wait_idle().unwrap();
    store.cleanups().schedule("g", store.now()).unwrap();
    running.wait_idle().unwrap();
    assert_eq!(*seen.lock().unwrap(), ["t.jpg"]);
    assert!(store.thumbnails().get("t").is_err());
}
