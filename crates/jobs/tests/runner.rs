//! The runner on a real store: the outcome of a task for each result of its handler, retries, stops, lost leases,
//! crashes, and several runners on one store.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use gristmill_jobs::{Runner, RunnerHandle, TaskContext, TaskKind, dead_letters};
use gristmill_pool::clock::{Clock, ManualClock};
use gristmill_pool::{Breaker, Retry, TaskError, TaskResult};
use gristmill_store::dead_letters::DeadLetterFilter;
use gristmill_store::lease::WorkerId;
use gristmill_store::tasks::{ClaimRequest, NewTask, TaskRow, TaskStatus};
use gristmill_store::{Durability, Store, UtcTime};
use tempfile::TempDir;

const LONG: Duration = Duration::from_secs(60);

struct Fixture {
    folder: TempDir,
    store: Store,
}

impl Fixture {
    fn new() -> Self {
        Self::with(Clock::system())
    }

    fn with(clock: impl Into<Clock>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let options = Store::options().durability(Durability::Normal).clock(clock);
        let store = options.open(folder.path().join("work.db")).unwrap();
        Fixture { folder, store }
    }

    /// Opens the same file again, as another process does.
    fn reopen(&self) -> Store {
        Store::options().durability(Durability::Normal).open(self.folder.path().join("work.db")).unwrap()
    }

    fn enqueue(&self, kind: &str, payload: &str) -> i64 {
        self.store.tasks().enqueue(NewTask::new(kind, payload)).unwrap().id
    }

    fn task(&self, id: i64) -> TaskRow {
        self.store.tasks().get(id).unwrap()
    }

    fn run(&self, kind: TaskKind) -> RunnerHandle {
        Runner::builder(self.store.clone()).kind(kind).start().unwrap()
    }

    /// Runs all due tasks of this kind.
    fn run_once(&self, kind: TaskKind) {
        let running = self.run(kind);
        running.wait_no_due_tasks().unwrap();
        running.stop(LONG).unwrap();
    }
}

fn at_once(attempts: u32) -> Retry {
    Retry::linear(attempts, Duration::ZERO).without_jitter()
}

fn wait_for<T>(receiver: &Receiver<T>) -> T {
    receiver.recv_timeout(LONG).expect("nothing was received within 60 s")
}

/// Runs one task with `handler` until it is finished. Checks its status, its failed attempts and the number of dead
/// letters.
#[track_caller]
fn check_end(
    handler: impl Fn(&TaskContext<'_>) -> TaskResult<()> + Send + Sync + 'static,
    attempts: u32,
    expected: (TaskStatus, u32, u64),
) -> (TaskRow, Fixture) {
    let fixture = Fixture::new();
    let id = fixture.enqueue("k", "1");
    let running = fixture.run(TaskKind::new("k", handler).workers(1).retry(at_once(attempts)));
    // Retries are due at once, so an idle runner has done them all.
    while !fixture.task(id).status.is_terminal() {
        running.wait_idle().unwrap();
    }
    running.stop(LONG).unwrap();
    let task = fixture.task(id);
    let dead_letters = fixture.store.dead_letters().count().unwrap();
    assert_eq!((task.status, task.attempts, dead_letters), expected, "{task:?}");
    assert_eq!(task.lease_expires_at, None);
    (task, fixture)
}

#[test]
fn task_is_completed_with_the_result_its_handler_set() {
    let (task, _fixture) = check_end(|task| task.set_result(&[task.id()]), 3, (TaskStatus::Completed, 0, 0));
    assert_eq!(task.result.as_deref(), Some("[1]"));
}

#[test]
fn transient_error_is_retried_and_counted() {
    let flaky = |task: &TaskContext<'_>| match task.attempt() {
        1 | 2 => Err(TaskError::transient("busy")),
        _ => Ok(()),
    };
    let (task, _fixture) = check_end(flaky, 5, (TaskStatus::Completed, 2, 0));
    assert_eq!(task.error_message.as_deref(), Some("busy"));
}

#[test]
fn last_failed_attempt_makes_a_dead_letter() {
    let (_, fixture) =
        check_end(|_| Err(TaskError::transient("busy").with_hint("wait")), 3, (TaskStatus::Failed, 3, 1));
    let dead_letter = fixture.store.dead_letters().get(1).unwrap();
    assert_eq!(
        (dead_letter.task_id.as_str(), dead_letter.task_type.as_str(), dead_letter.attempt_count),
        ("1", "k", 3)
    );
    assert_eq!(dead_letter.failure_reason, "busy (wait)");
    assert!(dead_letter.first_failure < dead_letter.last_failure, "{dead_letter:?}");
    let details = dead_letter.error_details.unwrap();
    assert!(details.contains("class: transient, attempt 3 of 3"), "{details}");
}

#[test]
fn permanent_error_is_not_retried() {
    check_end(|_| Err(TaskError::permanent("no such page")), 3, (TaskStatus::Failed, 1, 1));
}

#[test]
fn payload_of_the_wrong_type_is_a_permanent_error() {
    let (task, _fixture) = check_end(|task| task.parse::<Vec<u8>>().map(drop), 3, (TaskStatus::Failed, 1, 1));
    assert!(task.error_message.as_deref().unwrap().contains("cannot parse the payload"), "{task:?}");
}

#[test]
fn panic_fails_only_its_task() {
    let (task, fixture) = check_end(|_| panic!("over {}", 9_000), 3, (TaskStatus::Failed, 1, 1));
    let message = task.error_message.unwrap();
    assert!(message.starts_with("panicked: over 9000, at "), "{message}");
    let next = fixture.enqueue("k", "2");
    fixture.run_once(TaskKind::new("k", |_| Ok(())));
    assert_eq!(fixture.task(next).status, TaskStatus::Completed);
}

#[test]
fn dead_letter_of_a_panic_has_its_location_and_backtrace() {
    let (_, fixture) = check_end(|_| panic!("over {}", 9_000), 3, (TaskStatus::Failed, 1, 1));
    let dead_letter = fixture.store.dead_letters().get(1).unwrap();
    let location = concat!(file!(), ":");
    assert!(dead_letter.failure_reason.starts_with("panicked: over 9000, at "), "{dead_letter:?}");
    assert!(dead_letter.failure_reason.contains(location), "{} is not in {}", location, dead_letter.failure_reason);
    let details = dead_letter.error_details.unwrap();
    assert!(details.contains("class: permanent, attempt 1 of 3"), "{details}");
    let (_, backtrace) = details.split_once("\nbacktrace:\n").unwrap();
    assert!(backtrace.contains("dead_letter_of_a_panic_has_its_location_and_backtrace"), "{backtrace}");
}

#[test]
fn max_attempts_of_a_task_overrides_its_kind() {
    let fixture = Fixture::new();
    let task = NewTask { max_attempts: Some(1), ..NewTask::new("k", "1") };
    fixture.store.tasks().enqueue(task).unwrap();
    fixture.run_once(TaskKind::new("k", |_| Err(TaskError::transient("busy"))).retry(at_once(5)));
    assert_eq!(fixture.task(1).status, TaskStatus::Failed);
}

#[test]
fn retry_after_a_partial_error_continues_from_its_checkpoint() {
    let steps = Arc::new(Mutex::new(Vec::new()));
    let seen = steps.clone();
    let handler = move |task: &TaskContext<'_>| {
        let note = |step: &str| seen.lock().unwrap().push(format!("{}{step}", task.attempt()));
        if task.checkpoint::<u32>("upload")?.is_none() {
            note("upload");
            task.save_checkpoint("upload", &7)?;
        }
        if task.attempt() == 1 {
            return Err(TaskError::partial("move", "connection lost"));
        }
        assert_eq!((task.failed_step(), task.checkpoint::<u32>("upload")?), (Some("move"), Some(7)));
        note("move");
        Ok(())
    };
    let (_, fixture) = check_end(handler, 3, (TaskStatus::Completed, 1, 0));
    assert_eq!(*steps.lock().unwrap(), ["1upload", "2move"]);
    assert!(fixture.store.checkpoints().list(1).unwrap().is_empty(), "checkpoints of a completed task are deleted");
}

#[test]
fn retried_dead_letter_passes_its_checkpoints_to_the_new_task() {
    let fail = |task: &TaskContext<'_>| {
        task.save_checkpoint("upload", "page 3")?;
        Err(TaskError::permanent("gone"))
    };
    let (_, fixture) = check_end(fail, 3, (TaskStatus::Failed, 1, 1));
    assert_eq!(fixture.store.dead_letters().get(1).unwrap().checkpoint.as_deref(), Some(r#"{"upload":"page 3"}"#));
    let retried = dead_letters::retry(&fixture.store, &[], 1).unwrap();
    assert_eq!(fixture.store.dead_letters().count().unwrap(), 0);
    let (found, checkpoints) = channel();
    let kind = TaskKind::new("k", move |task| {
        found.send(task.checkpoint::<String>("upload")?)?;
        Ok(())
    });
    fixture.run_once(kind);
    assert_eq!(wait_for(&checkpoints).as_deref(), Some("page 3"));
    assert_eq!(fixture.task(retried.id).status, TaskStatus::Completed);
}

#[test]
fn retry_all_rebuilds_tasks_and_keeps_dead_letters_that_cannot_be_rebuilt() {
    let fixture = Fixture::new();
    for payload in ["1", "2", "3"] {
        fixture.enqueue("k", payload);
    }
    fixture.run_once(TaskKind::new("k", |_| Err(TaskError::permanent("no"))));
    let kind = TaskKind::new("k", |_| Ok(())).rebuild_with(|dead_letter| match dead_letter.payload.as_deref() {
        Some("2") => Err("it is a two".to_owned()),
        payload => Ok(NewTask::new("k", format!("[{}]", payload.unwrap_or_default()))),
    });
    let retried = dead_letters::retry_all(&fixture.store, &[kind], &DeadLetterFilter::default()).unwrap();
    assert_eq!((retried.tasks.len(), retried.refused.len()), (2, 1));
    assert!(retried.refused[0].1.to_string().contains("it is a two"));
    assert_eq!(fixture.store.dead_letters().count().unwrap(), 1);
    assert_eq!(fixture.task(4).payload, "[3]");
}

#[test]
fn clean_up_is_called_until_it_succeeds() {
    let fixture = Fixture::new();
    fixture.enqueue("k", "1");
    let calls = Arc::new(AtomicU32::new(0));
    let kind = || {
        let calls = calls.clone();
        TaskKind::new("k", |_| Err(TaskError::permanent("no"))).workers(1).on_exhausted(move |dead_letter| {
            assert_eq!(dead_letter.task_id, "1");
            match calls.fetch_add(1, Ordering::SeqCst) {
                0 => Err(TaskError::transient("not now")),
                _ => Ok(()),
            }
        })
    };
    fixture.run_once(kind());
    while !fixture.store.dead_letters().list_cleanup_pending(&["k".to_owned()], 9).unwrap().is_empty() {
        // Another start, as after a crash, finds the pending clean-up.
        fixture.run_once(kind());
    }
    assert_eq!(calls.load(Ordering::SeqCst), 2);
}

#[test]
fn no_attempt_is_counted_while_the_breaker_is_open() {
    let fixture = Fixture::new();
    for _ in 0..10 {
        fixture.enqueue("k", "1");
    }
    let calls = Arc::new(AtomicU32::new(0));
    let counted = calls.clone();
    let kind = TaskKind::new("k", move |_| {
        counted.fetch_add(1, Ordering::SeqCst);
        Err(TaskError::transient("no route"))
    });
    let kind = kind.workers(1).breaker(Breaker::new(2, LONG)).retry(Retry::linear(9, LONG));
    fixture.run_once(kind);
    assert_eq!(calls.load(Ordering::SeqCst), 2, "the other tasks were not tried");
    let page = fixture.store.tasks().list(&Default::default(), None, 99).unwrap();
    // Tasks that were claimed when it opened are postponed; the others were not claimed.
    let waits = |status| matches!(status, TaskStatus::Pending | TaskStatus::Scheduled);
    assert!(page.items.iter().all(|task| waits(task.status)), "{page:?}");
    assert_eq!(page.items.iter().map(|task| task.attempts).sum::<u32>(), 2);
}

#[test]
fn task_that_exceeds_its_timeout_is_retried() {
    let handler = |task: &TaskContext<'_>| {
        if task.attempt() == 1 {
            assert!(task.wait_cancelled(LONG));
            return Err(TaskError::cancelled());
        }
        Ok(())
    };
    let fixture = Fixture::new();
    fixture.enqueue("k", "1");
    let running = fixture.run(TaskKind::new("k", handler).timeout(Duration::from_millis(20)).retry(at_once(3)));
    while fixture.task(1).status != TaskStatus::Completed {
        running.wait_idle().unwrap();
    }
    let task = fixture.task(1);
    assert_eq!((task.attempts, task.error_message.as_deref()), (1, Some("exceeded the timeout of 20ms")));
}

#[test]
fn permanent_error_after_the_timeout_is_not_retried() {
    let handler = |task: &TaskContext<'_>| {
        assert!(task.wait_cancelled(LONG));
        Err(TaskError::permanent("no such file"))
    };
    let fixture = Fixture::new();
    fixture.enqueue("k", "1");
    fixture.run_once(TaskKind::new("k", handler).timeout(Duration::from_millis(20)).retry(at_once(3)));
    let task = fixture.task(1);
    assert_eq!((task.status, task.error_message.as_deref()), (TaskStatus::Failed, Some("no such file")));
}

/// A kind whose handler reports its start and then waits for a message on `ends`, or for its cancellation.
fn waiting_kind(started: Sender<i64>, ends: Receiver<()>) -> TaskKind {
    let (started, ends) = (Mutex::new(started), Mutex::new(ends));
    TaskKind::new("k", move |task| {
        started.lock().unwrap().send(task.id())?;
        loop {
            if task.is_cancelled() {
                return Err(TaskError::cancelled());
            }
            match ends.lock().unwrap().recv_timeout(Duration::from_millis(1)) {
                Err(RecvTimeoutError::Timeout) => {}
                // The test lets it end, or has dropped the sender.
                Ok(()) | Err(RecvTimeoutError::Disconnected) => return Ok(()),
            }
        }
    })
    .workers(1)
}

#[test]
fn stop_lets_running_tasks_finish_and_releases_the_others() {
    let fixture = Fixture::new();
    for _ in 0..5 {
        fixture.enqueue("k", "1");
    }
    let (started, starts) = channel();
    let (end, ends) = channel();
    let running = fixture.run(waiting_kind(started, ends));
    let first = wait_for(&starts);
    std::thread::scope(|scope| {
        let stop = scope.spawn(|| running.stop(LONG).unwrap());
        end.send(()).unwrap();
        // Tasks after the first were not started, or end when the sender is dropped.
        drop(end);
        let summary = stop.join().unwrap();
        assert_eq!(summary.unfinished, 0);
    });
    assert_eq!(fixture.task(first).status, TaskStatus::Completed);
    let page = fixture.store.tasks().list(&Default::default(), None, 99).unwrap();
    let released = page.items.iter().filter(|task| task.status == TaskStatus::Pending);
    assert!(released.clone().all(|task| task.attempts == 0 && task.crashes == 0 && task.worker_id.is_none()));
    let done = page.items.iter().filter(|task| task.status == TaskStatus::Completed).count();
    assert_eq!(released.count() + done, 5);
}

#[test]
fn task_is_released_when_its_handler_returns_cancelled_during_a_stop() {
    let fixture = Fixture::new();
    fixture.enqueue("k", "1");
    let (started, starts) = channel();
    let (_end, ends) = channel();
    let running = fixture.run(waiting_kind(started, ends));
    wait_for(&starts);
    let summary = running.stop(Duration::from_millis(200)).unwrap();
    assert_eq!((summary.released, summary.retried), (1, 0));
    let task = fixture.task(1);
    assert_eq!((task.status, task.attempts, task.worker_id), (TaskStatus::Pending, 0, None));
}

#[test]
fn task_is_released_at_the_deadline_when_its_handler_does_not_stop() {
    let fixture = Fixture::new();
    fixture.enqueue("k", "1");
    let (started, starts) = channel();
    let (end, ends) = channel::<()>();
    let (started, ends) = (Mutex::new(started), Mutex::new(ends));
    let kind = TaskKind::new("k", move |task| {
        started.lock().unwrap().send(task.id())?;
        let _ = ends.lock().unwrap().recv();
        Ok(())
    });
    let running = fixture.run(kind);
    wait_for(&starts);
    running.stop(Duration::from_millis(100)).unwrap();
    assert_eq!(fixture.task(1).status, TaskStatus::Pending, "other workers can claim it at once");
    // Its late success is ignored.
    drop(end);
    drop(running);
    assert_eq!(fixture.task(1).status, TaskStatus::Pending);
}

#[test]
fn lost_lease_cancels_the_handler_and_its_result_is_refused() {
    let fixture = Fixture::new();
    let id = fixture.enqueue("k", "1");
    let (started, starts) = channel();
    let (stopped, stops) = channel();
    let (started, stopped) = (Mutex::new(started), Mutex::new(stopped));
    let kind = TaskKind::new("k", move |task| {
        started.lock().unwrap().send(())?;
        let cancelled = task.wait_cancelled(LONG);
        stopped.lock().unwrap().send(cancelled)?;
        Ok(()) // reports success although it was cancelled
    });
    let running = Runner::builder(fixture.store.clone()).lease(Duration::from_millis(300)).kind(kind).start().unwrap();
    wait_for(&starts);
    // Another worker has claimed it.
    let conn = rusqlite::Connection::open(fixture.store.path()).unwrap();
    let sql = "UPDATE tasks SET worker_id = 'other/1', lease_expires_at = '2099-01-01 00:00:00'";
    assert_eq!(conn.execute(sql, []).unwrap(), 1);
    assert!(wait_for(&stops), "the handler was cancelled");
    running.wait_idle().unwrap();
    let summary = running.stop(LONG).unwrap();
    assert_eq!((summary.lost, summary.completed), (1, 0));
    assert_eq!(fixture.task(id).worker_id.as_deref(), Some("other/1"));
}

#[test]
fn lease_is_renewed_while_a_handler_never_yields() {
    let fixture = Fixture::new();
    let id = fixture.enqueue("k", "1");
    let lease = Duration::from_millis(800);
    let (started, starts) = channel();
    let end = Arc::new(AtomicBool::new(false));
    let (started, ended) = (Mutex::new(started), end.clone());
    let kind = TaskKind::new("k", move |_| {
        started.lock().unwrap().send(())?;
        while !ended.load(Ordering::SeqCst) {
            std::hint::spin_loop();
        }
        Ok(())
    });
    let running = Runner::builder(fixture.store.clone()).lease(lease).kind(kind).start().unwrap();
    wait_for(&starts);
    let other = fixture.reopen();
    let begin = other.now();
    // For three times the lease, recovery by another process does not release it.
    while other.now().since(begin) < lease * 3 {
        assert_eq!(other.tasks().recover(3).unwrap(), Default::default());
    }
    end.store(true, Ordering::SeqCst);
    running.wait_idle().unwrap();
    assert_eq!(fixture.task(id).status, TaskStatus::Completed);
}

/// Claims and starts tasks as a worker that then dies.
fn die_with(store: &Store, lease: Duration) -> usize {
    let token = WorkerId::new("dead").token();
    let request = ClaimRequest {
        queue: "default".into(),
        kind: "k".into(),
        limit: 9,
        max_running: None,
        max_crashed_once: usize::MAX,
        max_crashed_often: usize::MAX,
        lease,
        token,
    };
    let claimed = store.tasks().settle_and_claim(vec![], vec![request]).unwrap().claimed;
    for task in &claimed {
        assert!(store.tasks().start(task.id, &task.token).unwrap());
    }
    claimed.len()
}

#[test]
fn task_of_a_dead_worker_is_run_again_without_counting_an_attempt() {
    let clock = ManualClock::at(UtcTime::parse("2026-01-19 12:00:00").unwrap().micros());
    let fixture = Fixture::with(clock.clone());
    let id = fixture.enqueue("k", "1");
    assert_eq!(die_with(&fixture.store, LONG), 1);
    clock.advance(LONG);
    fixture.run_once(TaskKind::new("k", |task| task.set_result(&(task.attempt(), task.crashes()))));
    let task = fixture.task(id);
    assert_eq!((task.status, task.attempts, task.crashes), (TaskStatus::Completed, 0, 1));
    assert_eq!(task.result.as_deref(), Some("[2,1]"));
    assert_eq!(task.starts, 2);
}

#[test]
fn task_becomes_a_dead_letter_after_three_crashes() {
    let clock = ManualClock::at(UtcTime::parse("2026-01-19 12:00:00").unwrap().micros());
    let fixture = Fixture::with(clock.clone());
    let id = fixture.enqueue("k", "1");
    for _ in 0..3 {
        assert_eq!(die_with(&fixture.store, LONG), 1);
        clock.advance(LONG);
        fixture.store.tasks().recover(3).unwrap();
    }
    fixture.run_once(TaskKind::new("k", |_| panic!("a poison pill must not be run again")));
    assert_eq!(fixture.task(id).status, TaskStatus::Failed);
    let dead_letter = fixture.store.dead_letters().get(1).unwrap();
    assert_eq!(
        (dead_letter.failure_reason.as_str(), dead_letter.attempt_count),
        ("poison pill: its worker died 3 times", 3)
    );
}

#[test]
fn idle_runner_notices_tasks_of_this_process_other_processes_and_schedules() {
    let fixture = Fixture::new();
    let (done, payloads) = channel();
    let done = Mutex::new(done);
    let kind = TaskKind::new("k", move |task| {
        done.lock().unwrap().send(task.payload().to_owned())?;
        Ok(())
    });
    let running = fixture.run(kind);
    running.wait_idle().unwrap();
    fixture.enqueue("k", "1");
    assert_eq!(wait_for(&payloads), "1");
    // As another process does, which cannot notify the runner. An idle runner polls after 22 seconds at the earliest,
    // so it must have noticed the change in the file.
    fixture.reopen().tasks().enqueue(NewTask::new("k", "2")).unwrap();
    assert_eq!(payloads.recv_timeout(Duration::from_secs(15)).as_deref(), Ok("2"));
    let later =
        NewTask { run_after: Some(fixture.store.now().plus(Duration::from_millis(30))), ..NewTask::new("k", "3") };
    fixture.store.tasks().enqueue(later).unwrap();
    assert_eq!(wait_for(&payloads), "3");
}

#[test]
fn two_runners_on_one_store_run_each_task_once() {
    let fixture = Fixture::new();
    let count = 5_000;
    let tasks = (0..count).map(|n| NewTask::new("k", n.to_string())).collect();
    fixture.store.tasks().enqueue_many(tasks).unwrap();
    let seen = Arc::new((0..=count).map(|_| AtomicU32::new(0)).collect::<Vec<_>>());
    let kind = || {
        let seen = seen.clone();
        TaskKind::new("k", move |task| {
            seen[task.parse::<usize>()?].fetch_add(1, Ordering::SeqCst);
            Ok(())
        })
    };
    let other = Fixture { folder: tempfile::tempdir().unwrap(), store: fixture.reopen() };
    let (one, two) = (fixture.run(kind()), other.run(kind()));
    assert_ne!(one.worker(), two.worker());
    one.wait_idle().unwrap();
    two.wait_idle().unwrap();
    let (one, two) = (one.stop(LONG).unwrap(), two.stop(LONG).unwrap());
    assert_eq!(one.completed + two.completed, count as u64, "{one:?} {two:?}");
    assert!(seen[..count].iter().all(|times| times.load(Ordering::SeqCst) == 1));
}

#[test]
fn max_running_limits_all_processes_together() {
    let fixture = Fixture::new();
    for _ in 0..200 {
        fixture.enqueue("k", "1");
    }
    let (now, peak) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let kind = || {
        let (now, peak) = (now.clone(), peak.clone());
        TaskKind::new("k", move |_| {
            peak.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            std::thread::yield_now();
            now.fetch_sub(1, Ordering::SeqCst);
            Ok(())
        })
        .workers(4)
        .max_running(2)
    };
    let other = Fixture { folder: tempfile::tempdir().unwrap(), store: fixture.reopen() };
    let (one, two) = (fixture.run(kind()), other.run(kind()));
    let finished = || fixture.store.tasks().counts().unwrap() == [(TaskStatus::Completed, 200)];
    while !finished() {
        one.wait_idle().unwrap();
        two.wait_idle().unwrap();
    }
    assert!(peak.load(Ordering::SeqCst) <= 2, "{peak:?}");
}

#[test]
fn queues_are_served_in_order_and_other_queues_are_not_claimed() {
    let fixture = Fixture::new();
    let add = |queue: &str| {
        let task = NewTask { queue: queue.into(), ..NewTask::new("k", format!("{queue:?}")) };
        fixture.store.tasks().enqueue(task).unwrap();
    };
    ["other", "slow", "fast", "slow", "fast"].into_iter().for_each(add);
    let order = Arc::new(Mutex::new(Vec::new()));
    let seen = order.clone();
    let kind = TaskKind::new("k", move |task| {
        seen.lock().unwrap().push(task.parse::<String>()?);
        Ok(())
    });
    let builder = Runner::builder(fixture.store.clone()).queues(["fast", "slow"]).kind(kind.workers(1));
    let running = builder.start().unwrap();
    running.wait_idle().unwrap();
    assert_eq!(*order.lock().unwrap(), ["fast", "fast", "slow", "slow"]);
    assert_eq!(fixture.task(1).status, TaskStatus::Pending);
}

#[test]
fn no_task_is_lost_when_runners_start_and_stop_under_load() {
    let fixture = Fixture::new();
    let count = 2_000;
    let tasks = (0..count).map(|n| NewTask::new("k", n.to_string())).collect();
    fixture.store.tasks().enqueue_many(tasks).unwrap();
    let mut completed = 0;
    for round in 0..20 {
        let running = fixture.run(TaskKind::new("k", |_| Ok(())).workers(3));
        let deadline = if round % 2 == 0 { LONG } else { Duration::ZERO };
        completed += running.stop(deadline).unwrap().completed;
    }
    let running = fixture.run(TaskKind::new("k", |_| Ok(())));
    running.wait_idle().unwrap();
    completed += running.stop(LONG).unwrap().completed;
    assert_eq!(fixture.store.tasks().counts().unwrap(), [(TaskStatus::Completed, count)]);
    assert_eq!(completed, count);
}

#[test]
fn start_fails_with_the_name_of_an_invalid_setting() {
    let fixture = Fixture::new();
    let builder = || Runner::builder(fixture.store.clone());
    let check = |result: Result<RunnerHandle, gristmill_jobs::Error>, text: &str| {
        let error = result.expect_err(text).to_string();
        assert!(error.contains(text), "{error}");
    };
    let kind = || TaskKind::new("k", |_| Ok(()));
    check(builder().kind(kind()).kind(kind()).start(), "\"k\" is registered twice");
    check(builder().queues(Vec::<String>::new()).start(), "no queue");
    check(builder().lease(Duration::from_millis(1)).start(), "100 ms or more");
    check(builder().max_crashes(0).start(), "max_crashes is 0");
    check(builder().kind(kind().workers(0)).start(), "workers");
    check(builder().kind(kind().max_running(0)).start(), "at most 0");
}

#[test]
fn wait_idle_waits_for_tasks_that_an_open_breaker_has_postponed() {
    let fixture = Fixture::new();
    fixture.store.tasks().enqueue_many((0..6).map(|_| NewTask::new("k", "1")).collect()).unwrap();
    let runs = AtomicUsize::new(0);
    let handler = move |_: &gristmill_jobs::TaskContext<'_>| match runs.fetch_add(1, Ordering::SeqCst) {
        1 => Err(TaskError::transient("down")),
        _ => Ok(()),
    };
    let kind = TaskKind::new("k", handler).workers(1).retry(Retry::linear(1, Duration::ZERO));
    let kind = kind.breaker(Breaker::new(1, Duration::from_millis(300)));
    let runner = Runner::builder(fixture.store.clone()).kind(kind).start().unwrap();
    runner.wait_idle().unwrap();
    let counts = fixture.store.tasks().counts().unwrap();
    assert_eq!(counts, [(TaskStatus::Completed, 5), (TaskStatus::Failed, 1)]);
}
