//! Leases of workers with a known process: it ends, it runs while the clock is set, it is stopped.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use gristmill_pool::clock::ManualClock;
use gristmill_store::lease::{HeldLeases, WorkerId};
use gristmill_store::start_log::StartLog;
use gristmill_store::tasks::{ClaimRequest, ClaimedTask, Disposition, NewTask, Recovered, TaskStatus, TaskUpdate};
use gristmill_store::workers::WorkerState;
use gristmill_store::{Durability, Store, UtcTime};

const LEASE: Duration = Duration::from_secs(300);
const HOUR: Duration = Duration::from_secs(3_600);

struct Fixture {
    clock: ManualClock,
    store: Store,
    folder: tempfile::TempDir,
}

impl Fixture {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let clock = ManualClock::at(UtcTime::parse("2026-01-19 12:00:00").unwrap().micros());
        let options = Store::options().durability(Durability::Normal).clock(clock.clone());
        let store = options.open(folder.path().join("work.db")).unwrap();
        Fixture { clock, store, folder }
    }

    fn sql(&self, sql: &str) {
        rusqlite::Connection::open(self.store.path()).unwrap().execute_batch(sql).unwrap();
    }

    /// Enqueues a task and claims it as `worker`.
    fn claimed_by(&self, worker: &WorkerId) -> ClaimedTask {
        self.store.tasks().enqueue(NewTask::new("k", "1")).unwrap();
        self.claim(worker)
    }

    fn claim(&self, worker: &WorkerId) -> ClaimedTask {
        let request = ClaimRequest {
            queue: "default".into(),
            kind: "k".into(),
            limit: 1,
            max_running: None,
            max_crashed_once: usize::MAX,
            max_crashed_often: usize::MAX,
            lease: LEASE,
            token: worker.token(),
        };
        self.store.tasks().settle_and_claim(vec![], vec![request]).unwrap().claimed.remove(0)
    }

    fn recover(&self) -> Recovered {
        self.store.tasks().recover(3).unwrap()
    }

    /// Returns status and crashes of a task.
    fn state(&self, task: &ClaimedTask) -> (TaskStatus, u32) {
        let row = self.store.tasks().get(task.id).unwrap();
        (row.status, row.crashes)
    }
}

fn freed(freed: usize) -> Recovered {
    Recovered { freed, ..Recovered::default() }
}

/// Starts a process that waits until its standard input ends.
fn process() -> Child {
    Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap()
}

/// Records `worker` with another process.
fn register(fixture: &Fixture, worker: &WorkerId, process: u32) {
    fixture.store.workers().heartbeat(worker, LEASE).unwrap();
    let tag = gristmill_store::process::tag_of(process);
    fixture.sql(&format!("UPDATE workers SET process = '{tag}' WHERE name = '{}'", worker.name()));
}

#[test]
fn tasks_of_a_killed_process_are_freed_before_their_lease_ends() {
    let fixture = Fixture::new();
    let worker = WorkerId::new("killed");
    let mut child = process();
    register(&fixture, &worker, child.id());
    let (started, waiting) = (fixture.claimed_by(&worker), fixture.claimed_by(&worker));
    assert!(fixture.store.tasks().start(started.id, &started.token).unwrap());
    assert_eq!(fixture.recover(), freed(0));
    assert!(fixture.store.workers().dead().unwrap().is_empty());
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(fixture.store.workers().dead().unwrap(), [worker.name().to_owned()].into());
    assert_eq!(fixture.recover(), freed(2));
    assert_eq!(fixture.state(&started), (TaskStatus::Pending, 1));
    assert_eq!(fixture.state(&waiting), (TaskStatus::Pending, 0), "it was not started");
    fixture.store.workers().remove(&worker).unwrap();
    assert!(fixture.store.workers().dead().unwrap().is_empty());
}

#[test]
fn zombie_process_counts_as_dead() {
    let fixture = Fixture::new();
    let worker = WorkerId::new("zombie");
    let mut child = process();
    register(&fixture, &worker, child.id());
    let task = fixture.claimed_by(&worker);
    child.kill().unwrap();
    // Not waited for, so the process stays a zombie.
    while fixture.store.workers().dead().unwrap().is_empty() {
        std::thread::yield_now();
    }
    assert_eq!(fixture.recover(), freed(1));
    assert_eq!(fixture.state(&task).0, TaskStatus::Pending);
    child.wait().unwrap();
}

#[test]
fn leases_of_a_live_process_survive_a_clock_set_forward() {
    let fixture = Fixture::new();
    let (known, unknown) = (WorkerId::new("known"), WorkerId::new("unknown"));
    fixture.store.workers().heartbeat(&known, LEASE).unwrap();
    let (kept, lost) = (fixture.claimed_by(&known), fixture.claimed_by(&unknown));
    fixture.clock.advance(9 * HOUR);
    assert_eq!(fixture.recover(), freed(1));
    assert_eq!(fixture.state(&kept).0, TaskStatus::Running);
    assert_eq!(fixture.state(&lost).0, TaskStatus::Pending, "its process is unknown");
}

#[test]
fn tasks_of_a_silent_process_are_freed_at_lease_end_without_a_crash() {
    let fixture = Fixture::new();
    let worker = WorkerId::new("silent");
    fixture.store.workers().heartbeat(&worker, LEASE).unwrap();
    let task = fixture.claimed_by(&worker);
    assert!(fixture.store.tasks().start(task.id, &task.token).unwrap());
    // The last heartbeat is older than the lease, by the monotonic clock.
    fixture.sql("UPDATE workers SET beat_ms = beat_ms - 300001");
    assert_eq!(fixture.recover(), freed(0), "the lease has not ended");
    fixture.clock.advance(LEASE);
    assert_eq!(fixture.recover(), freed(1));
    assert_eq!(fixture.state(&task), (TaskStatus::Pending, 0));
}

#[test]
fn unknown_processes_hold_leases_by_the_wall_clock() {
    let this = gristmill_store::process::tag();
    let (before, after) = this.split_once(" (boot ").unwrap();
    let (_, start) = after.split_once(',').unwrap();
    let elsewhere = format!("{before} (boot 00000000/1,{start}");
    let fixture = Fixture::new();
    let worker = WorkerId::new("elsewhere");
    fixture.store.workers().heartbeat(&worker, LEASE).unwrap();
    fixture.sql(&format!("UPDATE workers SET process = '{elsewhere}'"));
    let task = fixture.claimed_by(&worker);
    assert!(fixture.store.tasks().start(task.id, &task.token).unwrap());
    assert_eq!(fixture.recover(), freed(0));
    fixture.clock.advance(LEASE);
    assert_eq!(fixture.recover(), freed(1));
    assert_eq!(fixture.state(&task), (TaskStatus::Pending, 1));
}

#[test]
fn process_with_a_reused_pid_counts_as_dead() {
    let this = gristmill_store::process::tag();
    let (before, _) = this.split_once(", start ").unwrap();
    let fixture = Fixture::new();
    let worker = WorkerId::new("before");
    fixture.store.workers().heartbeat(&worker, LEASE).unwrap();
    fixture.sql(&format!("UPDATE workers SET process = '{before}, start 1)'"));
    fixture.claimed_by(&worker);
    assert_eq!(fixture.recover(), freed(1));
}

#[test]
fn every_leased_table_is_recovered_from_a_dead_process() {
    let fixture = Fixture::new();
    let worker = WorkerId::new("killed");
    let mut child = process();
    register(&fixture, &worker, child.id());
    fixture.sql("INSERT INTO wal_maintenance_jobs (execute_after) VALUES ('2026-01-01 00:00:00')");
    assert!(fixture.store.wal().claim(&worker.token(), LEASE).unwrap().is_some());
    assert_eq!(fixture.store.wal().recover().unwrap(), 0);
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(fixture.store.wal().recover().unwrap(), 1);
}

/// Records `worker` with a process that has ended.
fn register_dead(fixture: &Fixture, worker: &WorkerId) {
    let mut child = process();
    register(fixture, worker, child.id());
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn start_log_survives_a_failed_recovery() {
    let fixture = Fixture::new();
    let worker = WorkerId::new("killed");
    let task = fixture.claimed_by(&worker);
    let log = StartLog::new(&fixture.store, &worker);
    log.write(task.id, &task.token).unwrap();
    // A killed process does not delete its log.
    std::mem::forget(log);
    register_dead(&fixture, &worker);
    fixture.sql("CREATE TRIGGER refuse BEFORE UPDATE OF crashes ON tasks BEGIN SELECT RAISE(ABORT, 'no'); END");
    assert!(fixture.store.tasks().recover(3).is_err());
    fixture.sql("DROP TRIGGER refuse");
    assert_eq!(fixture.recover(), freed(1));
    let task = fixture.store.tasks().get(task.id).unwrap();
    assert_eq!((task.crashes, task.abandoned), (1, 0));
}

#[test]
fn recovery_removes_the_record_of_a_dead_worker_without_leases() {
    let fixture = Fixture::new();
    let (worker, other) = (WorkerId::new("killed"), WorkerId::new("alive"));
    fixture.store.workers().heartbeat(&other, LEASE).unwrap();
    register_dead(&fixture, &worker);
    fixture.claimed_by(&worker);
    fixture.sql("INSERT INTO wal_maintenance_jobs (execute_after) VALUES ('2026-01-01 00:00:00')");
    assert!(fixture.store.wal().claim(&worker.token(), LEASE).unwrap().is_some());
    assert_eq!(fixture.recover(), freed(1));
    assert_eq!(recorded(&fixture), [other.name(), worker.name()], "a row of another table has its token");
    assert_eq!(fixture.store.wal().recover().unwrap(), 1);
    assert_eq!(fixture.recover(), freed(0));
    assert_eq!(recorded(&fixture), [other.name()]);
}

/// Returns the names in the table of workers.
fn recorded(fixture: &Fixture) -> Vec<String> {
    let connection = rusqlite::Connection::open(fixture.store.path()).unwrap();
    let mut names = connection.prepare("SELECT name FROM workers ORDER BY name").unwrap();
    names.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
}

#[test]
fn worker_frees_its_expired_leases_that_it_does_not_hold() {
    let fixture = Fixture::new();
    let (worker, other) = (WorkerId::new("alive"), WorkerId::new("alive too"));
    fixture.store.workers().heartbeat(&worker, LEASE).unwrap();
    fixture.store.workers().heartbeat(&other, LEASE).unwrap();
    let (held, dropped) = (fixture.claimed_by(&worker), fixture.claimed_by(&worker));
    let (cancelled, of_other) = (fixture.claimed_by(&worker), fixture.claimed_by(&other));
    assert!(fixture.store.tasks().start(dropped.id, &dropped.token).unwrap());
    fixture.store.tasks().cancel(cancelled.id).unwrap();
    fixture.sql("INSERT INTO wal_maintenance_jobs (execute_after) VALUES ('2026-01-01 00:00:00')");
    assert!(fixture.store.wal().claim(&worker.token(), LEASE).unwrap().is_some());
    let tasks = || HeldLeases::new(&worker, [(held.id, &held.token)]);
    let checkpoints = || HeldLeases::new(&worker, Vec::<(i64, _)>::new());
    let recover = || fixture.store.tasks().recover_by(3, tasks()).unwrap();
    assert_eq!(recover(), freed(0), "no lease has expired");
    assert_eq!(fixture.store.wal().recover_by(checkpoints()).unwrap(), 0);
    fixture.clock.advance(LEASE);
    assert_eq!(fixture.recover(), freed(0), "only the worker knows what it holds");
    assert_eq!(recover(), Recovered { freed: 1, cancelled: 1, poisoned: vec![] });
    assert_eq!(fixture.state(&held).0, TaskStatus::Running);
    assert_eq!(fixture.state(&of_other).0, TaskStatus::Running);
    assert_eq!(fixture.state(&dropped), (TaskStatus::Pending, 0), "its worker has not died");
    assert_eq!(fixture.state(&cancelled).0, TaskStatus::Cancelled);
    assert_eq!(fixture.store.wal().recover().unwrap(), 0);
    assert_eq!(fixture.store.wal().recover_by(checkpoints()).unwrap(), 1);
}

#[test]
fn start_log_is_rewritten_with_unsettled_starts_only() {
    let fixture = Fixture::new();
    let worker = WorkerId::new("killed");
    let (running, settled) = (fixture.claimed_by(&worker), fixture.claimed_by(&worker));
    let log = StartLog::new(&fixture.store, &worker);
    log.write(running.id, &running.token).unwrap();
    let done = TaskUpdate {
        id: settled.id,
        token: settled.token.clone(),
        disposition: Disposition::Completed(None),
        checkpointed: false,
    };
    fixture.store.tasks().settle_and_claim(vec![done], vec![]).unwrap();
    for _ in 0..80_000 {
        log.write(settled.id, &settled.token).unwrap();
    }
    let folder = fixture.store.path().parent().unwrap();
    let logs = std::fs::read_dir(folder).unwrap().map(Result::unwrap);
    let logs: Vec<_> = logs.filter(|file| file.file_name().to_string_lossy().contains("-starts-")).collect();
    assert_eq!(logs.len(), 1);
    let bytes = logs[0].metadata().unwrap().len();
    assert!(bytes <= 1 << 20, "the log has {bytes} bytes");
    std::mem::forget(log);
    register_dead(&fixture, &worker);
    assert_eq!(fixture.recover(), freed(1));
    assert_eq!(fixture.state(&running), (TaskStatus::Pending, 1));
}

/// A restarted container or machine does not show its earlier processes.
#[test]
fn start_logs_of_unknown_workers_are_read_and_removed_later() {
    let fixture = Fixture::new();
    let logs = || {
        let files = std::fs::read_dir(fixture.store.path().parent().unwrap()).unwrap();
        files.filter(|file| file.as_ref().unwrap().file_name().to_string_lossy().contains("-starts-")).count()
    };
    fixture.store.tasks().enqueue(NewTask::new("k", "1")).unwrap();
    for crash in 1..=3 {
        let worker = WorkerId::new("container");
        fixture.store.workers().heartbeat(&worker, LEASE).unwrap();
        fixture.sql("UPDATE workers SET process = replace(process, '(boot ', '(boot 0')");
        let claimed = fixture.claim(&worker);
        let log = StartLog::new(&fixture.store, &worker);
        log.write(claimed.id, &claimed.token).unwrap();
        // A killed process does not delete its log.
        std::mem::forget(log);
        fixture.clock.advance(LEASE);
        fixture.recover();
        let status = if crash < 3 { TaskStatus::Pending } else { TaskStatus::Failed };
        assert_eq!(fixture.state(&claimed), (status, crash));
    }
    assert_eq!(logs(), 3);
    fixture.clock.advance(24 * HOUR);
    fixture.recover();
    assert_eq!(logs(), 0);
}

/// Returns the names and contents of the start logs in a folder.
fn start_logs(folder: &std::path::Path) -> Vec<(String, String)> {
    let files = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap());
    let logs = files.filter(|file| file.file_name().to_string_lossy().contains("-starts-"));
    logs.map(|log| (log.file_name().into_string().unwrap(), std::fs::read_to_string(log.path()).unwrap())).collect()
}

#[test]
fn start_log_has_a_line_for_each_start_and_is_deleted_with_its_worker() {
    let fixture = Fixture::new();
    let worker = WorkerId::new("a/b");
    let log = StartLog::new(&fixture.store, &worker);
    assert_eq!(start_logs(fixture.folder.path()), []);
    let tokens = [worker.token(), worker.token()];
    log.write(7, &tokens[0]).unwrap();
    log.write(8, &tokens[1]).unwrap();
    let name = format!("work.db-starts-{}", worker.name().rsplit(':').next().unwrap());
    let lines = format!("7 {}\n8 {}\n", tokens[0].as_str(), tokens[1].as_str());
    assert_eq!(start_logs(fixture.folder.path()), [(name, lines)]);
    drop(log);
    assert_eq!(start_logs(fixture.folder.path()), []);
}

#[cfg(unix)]
#[test]
fn start_log_is_beside_the_resolved_database_file() {
    let fixture = Fixture::new();
    let links = tempfile::tempdir().unwrap();
    let link = links.path().join("link.db");
    std::os::unix::fs::symlink(fixture.store.path(), &link).unwrap();
    let worker = WorkerId::new("a");
    let log = StartLog::new(&Store::open(&link).unwrap(), &worker);
    log.write(7, &worker.token()).unwrap();
    assert_eq!((start_logs(links.path()).len(), start_logs(fixture.folder.path()).len()), (0, 1));
}

#[test]
fn workers_are_listed_with_their_tasks_and_leases() {
    let fixture = Fixture::new();
    let workers = fixture.store.workers();
    assert_eq!(workers.list().unwrap(), []);
    let names = ["a", "b"].map(WorkerId::new);
    workers.heartbeat(&names[0], LEASE).unwrap();
    fixture.clock.advance(HOUR);
    workers.heartbeat(&names[1], LEASE).unwrap();
    fixture.claimed_by(&names[0]);
    fixture.claimed_by(&names[0]);
    fixture.sql(
        "INSERT INTO workers (name, process, lease_ms, beat_ms, state, updated_at) VALUES
            ('dead/1', 'x', 1, 1, 'dead', '2026-01-19 12:00:00'),
            ('elsewhere', 'x', 9223372036854775807, 1, 'alive', '2026-01-19 12:00:00')",
    );
    let json = |worker: &WorkerId, state: &str, beat: &str, end: &str, tasks: u32| {
        format!(r#"{{"id":"{}","state":{state},"last_heartbeat_at":"2026-01-19T{beat}.000000Z","#, worker.name())
            + &format!(r#""lease_expires_at":"2026-01-19T{end}.000000Z","running_tasks":{tasks}}}"#)
    };
    let found = workers.list().unwrap();
    let find = |name: &str| found.iter().find(|worker| worker.id == name).unwrap();
    let text = |name: &str| serde_json::to_string(find(name)).unwrap();
    assert_eq!(text(names[0].name()), json(&names[0], r#""alive""#, "12:00:00", "12:05:00", 2));
    assert_eq!(text(names[1].name()), json(&names[1], r#""alive""#, "13:00:00", "13:05:00", 0));
    assert_eq!((find("dead/1").state, find("elsewhere").state), (Some(WorkerState::Dead), None));
    assert_eq!(found.len(), 4);
    assert!(found.is_sorted_by_key(|worker| &worker.id));
}
