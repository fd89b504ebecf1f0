//! The runner on a real store: what each end of a handler means for its task, and who else may have it.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use gristmill_jobs::{Runner, RunnerHandle, TaskContext, TaskKind, dead_letters};
use gristmill_pool::{Breaker, Retry, TaskError, TaskResult};
use gristmill_store::dead_letters::DeadLetterFilter;
use gristmill_store::lease::WorkerId;
use gristmill_store::tasks::{ClaimRequest, NewTask, TaskRow, TaskStatus};
use gristmill_store::{Durability, Store, UtcTime, WallClock};
use tempfile::TempDir;

const LONG: Duration = Duration::from_secs(60);

/// A store in a folder of its own.
struct House {
    folder: TempDir,
    store: Store,
}

impl House {
    fn new() -> Self {
        Self::with(WallClock::system())
    }

    fn with(clock: WallClock) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let options = Store::options().durability(Durability::Normal).clock(clock);
        let store = options.open(folder.path().join("work.db")).unwrap();
        House { folder, store }
    }

    /// Another opening of the same file, as another process has it.
    fn again(&self) -> Store {
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

    /// Runs all that is due with this kind.
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
    receiver.recv_timeout(LONG).expect("it should have happened long ago")
}

/// Runs one task with a handler that ends like this, and checks what became of the task.
#[track_caller]
fn check_end(
    handler: impl Fn(&TaskContext<'_>) -> TaskResult<()> + Send + Sync + 'static,
    attempts: u32,
    expected: (TaskStatus, u32, u64),
) -> (TaskRow, House) {
    let house = House::new();
    let id = house.enqueue("k", "1");
    let running = house.run(TaskKind::new("k", handler).workers(1).retry(at_once(attempts)));
    // Retries are due at once; an idle runner has done them all.
    while !house.task(id).status.is_terminal() {
        running.wait_idle().unwrap();
    }
    running.stop(LONG).unwrap();
    let task = house.task(id);
    let letters = house.store.dead_letters().count().unwrap();
    assert_eq!((task.status, task.attempts, letters), expected, "{task:?}");
    assert_eq!(task.lease_expires_at, None);
    (task, house)
}

#[test]
fn a_handler_that_succeeds_completes_its_task_with_what_it_kept() {
    let (task, _house) = check_end(|work| work.set_result(&[work.id()]), 3, (TaskStatus::Completed, 0, 0));
    assert_eq!(task.result.as_deref(), Some("[1]"));
}

#[test]
fn a_transient_error_is_tried_again_and_counted() {
    let flaky = |work: &TaskContext<'_>| match work.attempt() {
        1 | 2 => Err(TaskError::transient("busy")),
        _ => Ok(()),
    };
    let (task, _house) = check_end(flaky, 5, (TaskStatus::Completed, 2, 0));
    assert_eq!(task.error_message.as_deref(), Some("busy"));
}

#[test]
fn the_last_attempt_makes_a_dead_letter() {
    let (_, house) =
        check_end(|_| Err(TaskError::transient("busy").with_hint("wait")), 3, (TaskStatus::Failed, 3, 1));
    let letter = house.store.dead_letters().get(1).unwrap();
    assert_eq!((letter.task_id.as_str(), letter.task_type.as_str(), letter.attempt_count), ("1", "k", 3));
    assert_eq!(letter.failure_reason, "busy (wait)");
    assert!(letter.first_failure < letter.last_failure, "{letter:?}");
    let details = letter.error_details.unwrap();
    assert!(details.contains("class: transient, attempt 3 of 3"), "{details}");
}

#[test]
fn a_permanent_error_is_not_tried_again() {
    check_end(|_| Err(TaskError::permanent("no such page")), 3, (TaskStatus::Failed, 1, 1));
}

#[test]
fn a_payload_that_does_not_fit_is_permanent() {
    let (task, _house) = check_end(|work| work.parse::<Vec<u8>>().map(drop), 3, (TaskStatus::Failed, 1, 1));
    assert!(task.error_message.as_deref().unwrap().contains("payload does not fit"), "{task:?}");
}

#[test]
fn a_panic_costs_one_task() {
    let (task, house) = check_end(|_| panic!("over {}", 9_000), 3, (TaskStatus::Failed, 1, 1));
    let message = task.error_message.unwrap();
    assert!(message.starts_with("panicked: over 9000, at "), "{message}");
    let next = house.enqueue("k", "2");
    house.run_once(TaskKind::new("k", |_| Ok(())));
    assert_eq!(house.task(next).status, TaskStatus::Completed);
}

#[test]
fn a_dead_letter_of_a_panic_has_its_place_and_backtrace() {
    let (_, house) = check_end(|_| panic!("over {}", 9_000), 3, (TaskStatus::Failed, 1, 1));
    let letter = house.store.dead_letters().get(1).unwrap();
    let place = concat!(file!(), ":");
    assert!(letter.failure_reason.starts_with("panicked: over 9000, at "), "{letter:?}");
    assert!(letter.failure_reason.contains(place), "{} is not in {}", place, letter.failure_reason);
    let details = letter.error_details.unwrap();
    assert!(details.contains("class: permanent, attempt 1 of 3"), "{details}");
    let (_, backtrace) = details.split_once("\nbacktrace:\n").unwrap();
    assert!(backtrace.contains("a_dead_letter_of_a_panic_has_its_place_and_backtrace"), "{backtrace}");
}

#[test]
fn the_tasks_own_limit_of_attempts_holds() {
    let house = House::new();
    let task = NewTask { max_attempts: Some(1), ..NewTask::new("k", "1") };
    house.store.tasks().enqueue(task).unwrap();
    house.run_once(TaskKind::new("k", |_| Err(TaskError::transient("busy"))).retry(at_once(5)));
    assert_eq!(house.task(1).status, TaskStatus::Failed);
}

#[test]
fn a_partial_failure_goes_on_at_its_checkpoint() {
    let steps = Arc::new(Mutex::new(Vec::new()));
    let seen = steps.clone();
    let handler = move |work: &TaskContext<'_>| {
        let note = |step: &str| seen.lock().unwrap().push(format!("{}{step}", work.attempt()));
        if work.checkpoint::<u32>("upload")?.is_none() {
            note("upload");
            work.save_checkpoint("upload", &7)?;
        }
        if work.attempt() == 1 {
            return Err(TaskError::partial("move", "connection lost"));
        }
        assert_eq!((work.failed_step(), work.checkpoint::<u32>("upload")?), (Some("move"), Some(7)));
        note("move");
        Ok(())
    };
    let (_, house) = check_end(handler, 3, (TaskStatus::Completed, 1, 0));
    assert_eq!(*steps.lock().unwrap(), ["1upload", "2move"]);
    assert!(house.store.checkpoints().of(1).unwrap().is_empty(), "a finished task needs none");
}

#[test]
fn a_dead_letter_keeps_checkpoints_and_gives_them_to_the_next_task() {
    let fail = |work: &TaskContext<'_>| {
        work.save_checkpoint("upload", "page 3")?;
        Err(TaskError::permanent("gone"))
    };
    let (_, house) = check_end(fail, 3, (TaskStatus::Failed, 1, 1));
    assert_eq!(
        house.store.dead_letters().get(1).unwrap().checkpoint.as_deref(),
        Some(r#"{"upload":"page 3"}"#)
    );
    let again = dead_letters::retry(&house.store, &[], 1).unwrap();
    assert_eq!(house.store.dead_letters().count().unwrap(), 0);
    let (found, checkpoints) = channel();
    let kind = TaskKind::new("k", move |work| {
        found.send(work.checkpoint::<String>("upload")?)?;
        Ok(())
    });
    house.run_once(kind);
    assert_eq!(wait_for(&checkpoints).as_deref(), Some("page 3"));
    assert_eq!(house.task(again.id).status, TaskStatus::Completed);
}

#[test]
fn a_kind_can_rebuild_its_tasks_and_one_that_cannot_costs_only_itself() {
    let house = House::new();
    for payload in ["1", "2", "3"] {
        house.enqueue("k", payload);
    }
    house.run_once(TaskKind::new("k", |_| Err(TaskError::permanent("no"))));
    let kind = TaskKind::new("k", |_| Ok(())).rebuild_with(|letter| match letter.payload.as_deref() {
        Some("2") => Err("it is a two".to_owned()),
        payload => Ok(NewTask::new("k", format!("[{}]", payload.unwrap_or_default()))),
    });
    let retried = dead_letters::retry_all(&house.store, &[kind], &DeadLetterFilter::default()).unwrap();
    assert_eq!((retried.tasks.len(), retried.refused.len()), (2, 1));
    assert!(retried.refused[0].1.to_string().contains("it is a two"));
    assert_eq!(house.store.dead_letters().count().unwrap(), 1);
    assert_eq!(house.task(4).payload, "[3]");
}

#[test]
fn a_workloads_clean_up_is_called_until_it_succeeds() {
    let house = House::new();
    house.enqueue("k", "1");
    let calls = Arc::new(AtomicU32::new(0));
    let kind = || {
        let calls = calls.clone();
        TaskKind::new("k", |_| Err(TaskError::permanent("no"))).workers(1).on_exhausted(move |letter| {
            assert_eq!(letter.task_id, "1");
            match calls.fetch_add(1, Ordering::SeqCst) {
                0 => Err(TaskError::transient("not now")),
                _ => Ok(()),
            }
        })
    };
    house.run_once(kind());
    while !house.store.dead_letters().list_cleanup_pending(&["k".to_owned()], 9).unwrap().is_empty() {
        // Another start, as after a crash, finds what was left undone.
        house.run_once(kind());
    }
    assert_eq!(calls.load(Ordering::SeqCst), 2);
}

#[test]
fn an_open_breaker_costs_no_attempt() {
    let house = House::new();
    for _ in 0..10 {
        house.enqueue("k", "1");
    }
    let calls = Arc::new(AtomicU32::new(0));
    let counted = calls.clone();
    let kind = TaskKind::new("k", move |_| {
        counted.fetch_add(1, Ordering::SeqCst);
        Err(TaskError::transient("no route"))
    });
    let kind = kind.workers(1).breaker(Breaker::new(2, LONG)).retry(Retry::linear(9, LONG));
    house.run_once(kind);
    assert_eq!(calls.load(Ordering::SeqCst), 2, "the others did not even try");
    let page = house.store.tasks().list(&Default::default(), None, 99).unwrap();
    // Those that were claimed when it opened are scheduled again, the others were never claimed.
    let waits = |status| matches!(status, TaskStatus::Pending | TaskStatus::Scheduled);
    assert!(page.items.iter().all(|task| waits(task.status)), "{page:?}");
    assert_eq!(page.items.iter().map(|task| task.attempts).sum::<u32>(), 2);
}

#[test]
fn a_task_that_takes_too_long_is_tried_again() {
    let handler = |work: &TaskContext<'_>| {
        if work.attempt() == 1 {
            assert!(work.wait_cancelled(LONG));
            return Err(TaskError::cancelled());
        }
        Ok(())
    };
    let house = House::new();
    house.enqueue("k", "1");
    let running = house.run(TaskKind::new("k", handler).timeout(Duration::from_millis(20)).retry(at_once(3)));
    while house.task(1).status != TaskStatus::Completed {
        running.wait_idle().unwrap();
    }
    let task = house.task(1);
    assert_eq!(
        (task.attempts, task.error_message.as_deref()),
        (1, Some("the attempt took longer than its 20ms"))
    );
}

/// A handler that says that it has started and then waits to be told to end, or to stop.
fn patient(started: Sender<i64>, ends: Receiver<()>) -> TaskKind {
    let (started, ends) = (Mutex::new(started), Mutex::new(ends));
    TaskKind::new("k", move |work| {
        started.lock().unwrap().send(work.id())?;
        loop {
            if work.is_cancelled() {
                return Err(TaskError::cancelled());
            }
            match ends.lock().unwrap().recv_timeout(Duration::from_millis(1)) {
                Err(RecvTimeoutError::Timeout) => {}
                // Told to end, or nobody is left to tell.
                Ok(()) | Err(RecvTimeoutError::Disconnected) => return Ok(()),
            }
        }
    })
    .workers(1)
}

#[test]
fn stopping_lets_what_runs_finish_and_frees_the_rest() {
    let house = House::new();
    for _ in 0..5 {
        house.enqueue("k", "1");
    }
    let (started, starts) = channel();
    let (end, ends) = channel();
    let running = house.run(patient(started, ends));
    let first = wait_for(&starts);
    std::thread::scope(|scope| {
        let stop = scope.spawn(|| running.stop(LONG).unwrap());
        end.send(()).unwrap();
        // Those after the first were not started, or were told to end by nobody: they are free again.
        drop(end);
        let summary = stop.join().unwrap();
        assert_eq!(summary.unfinished, 0);
    });
    assert_eq!(house.task(first).status, TaskStatus::Completed);
    let page = house.store.tasks().list(&Default::default(), None, 99).unwrap();
    let free = page.items.iter().filter(|task| task.status == TaskStatus::Pending);
    assert!(free.clone().all(|task| task.attempts == 0 && task.crashes == 0 && task.worker_id.is_none()));
    let done = page.items.iter().filter(|task| task.status == TaskStatus::Completed).count();
    assert_eq!(free.count() + done, 5);
}

#[test]
fn a_handler_that_stops_when_told_gives_its_task_back() {
    let house = House::new();
    house.enqueue("k", "1");
    let (started, starts) = channel();
    let (_end, ends) = channel();
    let running = house.run(patient(started, ends));
    wait_for(&starts);
    let summary = running.stop(Duration::from_millis(200)).unwrap();
    assert_eq!((summary.released, summary.retried), (1, 0));
    let task = house.task(1);
    assert_eq!((task.status, task.attempts, task.worker_id), (TaskStatus::Pending, 0, None));
}

#[test]
fn a_handler_that_does_not_stop_loses_its_task_at_the_deadline() {
    let house = House::new();
    house.enqueue("k", "1");
    let (started, starts) = channel();
    let (end, ends) = channel::<()>();
    let (started, ends) = (Mutex::new(started), Mutex::new(ends));
    let kind = TaskKind::new("k", move |work| {
        started.lock().unwrap().send(work.id())?;
        let _ = ends.lock().unwrap().recv();
        Ok(())
    });
    let running = house.run(kind);
    wait_for(&starts);
    running.stop(Duration::from_millis(100)).unwrap();
    assert_eq!(house.task(1).status, TaskStatus::Pending, "free for others at once");
    // Its late success is nobody's business.
    drop(end);
    drop(running);
    assert_eq!(house.task(1).status, TaskStatus::Pending);
}

#[test]
fn a_lost_lease_stops_the_handler_and_refuses_its_result() {
    let house = House::new();
    let id = house.enqueue("k", "1");
    let (started, starts) = channel();
    let (stopped, stops) = channel();
    let (started, stopped) = (Mutex::new(started), Mutex::new(stopped));
    let kind = TaskKind::new("k", move |work| {
        started.lock().unwrap().send(())?;
        let told = work.wait_cancelled(LONG);
        stopped.lock().unwrap().send(told)?;
        Ok(()) // says it is done all the same
    });
    let running =
        Runner::builder(house.store.clone()).lease(Duration::from_millis(300)).kind(kind).start().unwrap();
    wait_for(&starts);
    // Another worker takes it over.
    let conn = rusqlite::Connection::open(house.store.path()).unwrap();
    let sql = "UPDATE tasks SET worker_id = 'other/1', lease_expires_at = '2099-01-01 00:00:00'";
    assert_eq!(conn.execute(sql, []).unwrap(), 1);
    assert!(wait_for(&stops), "the handler was told to stop");
    running.wait_idle().unwrap();
    let summary = running.stop(LONG).unwrap();
    assert_eq!((summary.lost, summary.completed), (1, 0));
    assert_eq!(house.task(id).worker_id.as_deref(), Some("other/1"));
}

#[test]
fn a_handler_that_never_yields_keeps_its_lease() {
    let house = House::new();
    let id = house.enqueue("k", "1");
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
    let running = Runner::builder(house.store.clone()).lease(lease).kind(kind).start().unwrap();
    wait_for(&starts);
    let other = house.again();
    let begin = other.now();
    // Several leases long nobody else can have it, however often one looks.
    while other.now().since(begin) < lease * 3 {
        assert_eq!(other.tasks().recover(3).unwrap(), Default::default());
    }
    end.store(true, Ordering::SeqCst);
    running.wait_idle().unwrap();
    assert_eq!(house.task(id).status, TaskStatus::Completed);
}

/// Claims and starts tasks as a worker that then dies.
fn die_with(store: &Store, lease: Duration) -> usize {
    let token = WorkerId::new("dead").token();
    let wanted = ClaimRequest {
        queue: "default".into(),
        kind: "k".into(),
        limit: 9,
        max_running: None,
        max_crashed_once: usize::MAX,
        max_crashed_often: usize::MAX,
        lease,
        token,
    };
    let claimed = store.tasks().settle_and_claim(vec![], vec![wanted]).unwrap().claimed;
    for task in &claimed {
        assert!(store.tasks().start(task.id, &task.token).unwrap());
    }
    claimed.len()
}

#[test]
fn a_dead_workers_task_is_taken_over_and_the_crash_is_no_failed_attempt() {
    let clock = WallClock::manual(UtcTime::parse("2026-01-19 12:00:00").unwrap());
    let house = House::with(clock.clone());
    let id = house.enqueue("k", "1");
    assert_eq!(die_with(&house.store, LONG), 1);
    clock.set(clock.now().plus(LONG));
    house.run_once(TaskKind::new("k", |work| work.set_result(&(work.attempt(), work.crashes()))));
    let task = house.task(id);
    assert_eq!((task.status, task.attempts, task.crashes), (TaskStatus::Completed, 0, 1));
    assert_eq!(task.result.as_deref(), Some("[2,1]"));
    assert_eq!(task.starts, 2);
}

#[test]
fn a_poison_pill_goes_to_the_dead_letters() {
    let clock = WallClock::manual(UtcTime::parse("2026-01-19 12:00:00").unwrap());
    let house = House::with(clock.clone());
    let id = house.enqueue("k", "1");
    for _ in 0..3 {
        assert_eq!(die_with(&house.store, LONG), 1);
        clock.set(clock.now().plus(LONG));
        house.store.tasks().recover(3).unwrap();
    }
    house.run_once(TaskKind::new("k", |_| panic!("it is not to be run again")));
    assert_eq!(house.task(id).status, TaskStatus::Failed);
    let letter = house.store.dead_letters().get(1).unwrap();
    assert_eq!(
        (letter.failure_reason.as_str(), letter.attempt_count),
        ("poison pill: its worker died 3 times", 3)
    );
}

#[test]
fn work_is_seen_whoever_brings_it() {
    let house = House::new();
    let (done, dones) = channel();
    let done = Mutex::new(done);
    let kind = TaskKind::new("k", move |work| {
        done.lock().unwrap().send(work.payload().to_owned())?;
        Ok(())
    });
    let running = house.run(kind);
    running.wait_idle().unwrap();
    house.enqueue("k", "1");
    assert_eq!(wait_for(&dones), "1");
    // As another process does: nobody rings a bell here. Long before the runner would look by itself, which it does
    // after 22 seconds at the earliest.
    house.again().tasks().enqueue(NewTask::new("k", "2")).unwrap();
    assert_eq!(dones.recv_timeout(Duration::from_secs(15)).as_deref(), Ok("2"));
    let later = NewTask {
        run_after: Some(house.store.now().plus(Duration::from_millis(30))),
        ..NewTask::new("k", "3")
    };
    house.store.tasks().enqueue(later).unwrap();
    assert_eq!(wait_for(&dones), "3");
}

#[test]
fn two_runners_share_and_nothing_is_done_twice() {
    let house = House::new();
    let count = 5_000;
    let tasks = (0..count).map(|n| NewTask::new("k", n.to_string())).collect();
    house.store.tasks().enqueue_many(tasks).unwrap();
    let seen = Arc::new((0..=count).map(|_| AtomicU32::new(0)).collect::<Vec<_>>());
    let kind = || {
        let seen = seen.clone();
        TaskKind::new("k", move |work| {
            seen[work.parse::<usize>()?].fetch_add(1, Ordering::SeqCst);
            Ok(())
        })
    };
    let other = House { folder: tempfile::tempdir().unwrap(), store: house.again() };
    let (one, two) = (house.run(kind()), other.run(kind()));
    assert_ne!(one.worker(), two.worker());
    one.wait_idle().unwrap();
    two.wait_idle().unwrap();
    let (one, two) = (one.stop(LONG).unwrap(), two.stop(LONG).unwrap());
    assert_eq!(one.completed + two.completed, count as u64, "{one:?} {two:?}");
    assert!(seen[..count].iter().all(|times| times.load(Ordering::SeqCst) == 1));
}

#[test]
fn no_more_than_allowed_run_in_all_processes_together() {
    let house = House::new();
    for _ in 0..200 {
        house.enqueue("k", "1");
    }
    let (now, most) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let kind = || {
        let (now, most) = (now.clone(), most.clone());
        TaskKind::new("k", move |_| {
            most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            std::thread::yield_now();
            now.fetch_sub(1, Ordering::SeqCst);
            Ok(())
        })
        .workers(4)
        .max_running(2)
    };
    let other = House { folder: tempfile::tempdir().unwrap(), store: house.again() };
    let (one, two) = (house.run(kind()), other.run(kind()));
    let finished = || house.store.tasks().counts().unwrap() == [(TaskStatus::Completed, 200)];
    while !finished() {
        one.wait_idle().unwrap();
        two.wait_idle().unwrap();
    }
    assert!(most.load(Ordering::SeqCst) <= 2, "{most:?}");
}

#[test]
fn queues_are_served_in_order_and_others_left_alone() {
    let house = House::new();
    let add = |queue: &str| {
        let task = NewTask { queue: queue.into(), ..NewTask::new("k", format!("{queue:?}")) };
        house.store.tasks().enqueue(task).unwrap();
    };
    ["other", "slow", "fast", "slow", "fast"].into_iter().for_each(add);
    let order = Arc::new(Mutex::new(Vec::new()));
    let seen = order.clone();
    let kind = TaskKind::new("k", move |work| {
        seen.lock().unwrap().push(work.parse::<String>()?);
        Ok(())
    });
    let builder = Runner::builder(house.store.clone()).queues(["fast", "slow"]).kind(kind.workers(1));
    let running = builder.start().unwrap();
    running.wait_idle().unwrap();
    assert_eq!(*order.lock().unwrap(), ["fast", "fast", "slow", "slow"]);
    assert_eq!(house.task(1).status, TaskStatus::Pending);
}

#[test]
fn starting_and_stopping_under_load_loses_nothing() {
    let house = House::new();
    let count = 2_000;
    let tasks = (0..count).map(|n| NewTask::new("k", n.to_string())).collect();
    house.store.tasks().enqueue_many(tasks).unwrap();
    let mut completed = 0;
    for round in 0..20 {
        let running = house.run(TaskKind::new("k", |_| Ok(())).workers(3));
        let deadline = if round % 2 == 0 { LONG } else { Duration::ZERO };
        completed += running.stop(deadline).unwrap().completed;
    }
    let running = house.run(TaskKind::new("k", |_| Ok(())));
    running.wait_idle().unwrap();
    completed += running.stop(LONG).unwrap().completed;
    assert_eq!(house.store.tasks().counts().unwrap(), [(TaskStatus::Completed, count)]);
    assert_eq!(completed, count);
}

#[test]
fn settings_that_make_no_sense_are_refused_by_name() {
    let house = House::new();
    let builder = || Runner::builder(house.store.clone());
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
    let house = House::new();
    house.store.tasks().enqueue_many((0..6).map(|_| NewTask::new("k", "1")).collect()).unwrap();
    let runs = AtomicUsize::new(0);
    let handler = move |_: &gristmill_jobs::TaskContext<'_>| match runs.fetch_add(1, Ordering::SeqCst) {
        1 => Err(TaskError::transient("down")),
        _ => Ok(()),
    };
    let kind = TaskKind::new("k", handler).workers(1).retry(Retry::linear(1, Duration::ZERO));
    let kind = kind.breaker(Breaker::new(1, Duration::from_millis(300)));
    let runner = Runner::builder(house.store.clone()).kind(kind).start().unwrap();
    runner.wait_idle().unwrap();
    let counts = house.store.tasks().counts().unwrap();
    assert_eq!(counts, [(TaskStatus::Completed, 5), (TaskStatus::Failed, 1)]);
}
