//! Compares the state machine of leases with a model: random steps of three workers that keep every token, over two
//! stores on one file, with a clock that moves both ways. The model predicts the result of each step and the rows of
//! the table; invariants are checked, too.

use std::collections::BTreeMap;
use std::time::Duration;

use gristmill_pool::clock::ManualClock;
use gristmill_store::dead_letters::DeadLetterFilter;
use gristmill_store::lease::{HeartbeatResult, Token, WorkerId};
use gristmill_store::tasks::{
    CancelOutcome, ClaimRequest, Disposition, NewTask, TaskFailure, TaskFilter, TaskRow, TaskStatus, TaskUpdate,
    UpdateResult,
};
use gristmill_store::{Durability, Error, Store, UtcTime};
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::Config;

const KIND: &str = "convert";
const MAX_CRASHES: u32 = 3;

/// Duration in seconds.
type Secs = u64;

#[derive(Clone, Copy, Debug)]
enum Outcome {
    Completed,
    Retry(Secs),
    DeadLettered,
    Released,
    Postponed(Secs),
}

/// A step. It uses the last claim, or any earlier one.
#[derive(Clone, Debug)]
enum Action {
    Enqueue { priority: i32, delay: Secs, key: Option<u8> },
    Claim { worker: usize, limit: usize, lease: Secs },
    Settle { claim: Pick, outcome: Outcome, then_claim: bool },
    Heartbeat { claim: Pick, lease: Secs },
    Start { claim: Pick },
    SaveCheckpoint { claim: Pick },
    Recover,
    Cancel { task: Index },
    RunNow { task: Index },
    Forward(Secs),
    Back(Secs),
}

#[derive(Clone, Debug)]
enum Pick {
    Last,
    Any(Index),
    /// The task of one claim with the token of another.
    Mixed(Index, Index),
}

#[derive(Clone, Debug)]
struct Step {
    store: usize,
    action: Action,
}

fn pick() -> impl Strategy<Value = Pick> {
    prop_oneof![
        3 => Just(Pick::Last),
        3 => any::<Index>().prop_map(Pick::Any),
        1 => any::<(Index, Index)>().prop_map(|(task, token)| Pick::Mixed(task, token)),
    ]
}

fn outcome() -> impl Strategy<Value = Outcome> {
    prop_oneof![
        Just(Outcome::Completed),
        (0..20u64).prop_map(Outcome::Retry),
        Just(Outcome::DeadLettered),
        Just(Outcome::Released),
        (0..20u64).prop_map(Outcome::Postponed),
    ]
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        5 => (-1..2i32, prop_oneof![3 => Just(0), 1 => 1..20u64], prop::option::weighted(0.3, 0..2u8))
            .prop_map(|(priority, delay, key)| Action::Enqueue { priority, delay, key }),
        8 => (0..3usize, 0..3usize, 1..15u64)
            .prop_map(|(worker, limit, lease)| Action::Claim { worker, limit, lease }),
        8 => (pick(), outcome(), any::<bool>())
            .prop_map(|(claim, outcome, then_claim)| Action::Settle { claim, outcome, then_claim }),
        4 => (pick(), 1..15u64).prop_map(|(claim, lease)| Action::Heartbeat { claim, lease }),
        5 => pick().prop_map(|claim| Action::Start { claim }),
        2 => pick().prop_map(|claim| Action::SaveCheckpoint { claim }),
        4 => Just(Action::Recover),
        1 => any::<Index>().prop_map(|task| Action::Cancel { task }),
        1 => any::<Index>().prop_map(|task| Action::RunNow { task }),
        5 => (1..12u64).prop_map(Action::Forward),
        1 => (1..25u64).prop_map(Action::Back),
    ]
}

/// A task as the model predicts it.
#[derive(Clone, Debug, PartialEq)]
struct Task {
    status: TaskStatus,
    priority: i32,
    key: Option<u8>,
    owner: Option<Token>,
    expires: Option<UtcTime>,
    run_after: Option<UtcTime>,
    attempts: u32,
    starts: u32,
    started: bool,
    crashes: u32,
    abandoned: u32,
    checkpoints: u32,
    /// It is cancelled when its run ends.
    cancelling: bool,
    /// Number of checkpoints in its dead letter, if there is one.
    dead_letter_checkpoints: Option<u32>,
}

impl Task {
    fn is_stale(&self, now: UtcTime) -> bool {
        self.status == TaskStatus::Running && self.expires.is_none_or(|at| at <= now)
    }

    fn start(&mut self) {
        self.starts += u32::from(!self.started);
        self.started = true;
    }

    /// Ends the claim of the task.
    fn end_claim(&mut self, status: TaskStatus) {
        self.status = status;
        self.owner = None;
        self.expires = None;
        if status.is_terminal() {
            self.checkpoints = 0;
        }
    }

    fn dead_letter(&mut self) {
        self.dead_letter_checkpoints = Some(self.checkpoints);
        self.end_claim(TaskStatus::Failed);
    }
}

/// The predicted table, the stores and the workers.
struct Model {
    tasks: BTreeMap<i64, Task>,
    claims: Vec<(i64, Token)>,
    clock: ManualClock,
    stores: [Store; 2],
    workers: [WorkerId; 3],
    finished: BTreeMap<i64, TaskRow>,
    _folder: tempfile::TempDir,
}

impl Model {
    fn new() -> Self {
        // In memory if possible: this test does not depend on the disk.
        let memory = std::path::Path::new("/dev/shm");
        let folder = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }.unwrap();
        let clock = ManualClock::at(UtcTime::parse("2026-01-19 12:00:00").unwrap().micros());
        let open = || {
            let options = Store::options().clock(clock.clone()).durability(Durability::Normal);
            options.open(folder.path().join("work.db")).unwrap()
        };
        Model {
            stores: [open(), open()],
            tasks: BTreeMap::new(),
            claims: Vec::new(),
            clock,
            workers: ["ann", "ben", "cid"].map(WorkerId::new),
            finished: BTreeMap::new(),
            _folder: folder,
        }
    }

    fn after(&self, by: Secs) -> UtcTime {
        UtcTime::of(&self.clock).plus(Duration::from_secs(by))
    }

    fn pick_claim(&self, pick: &Pick) -> Option<(i64, Token)> {
        if self.claims.is_empty() {
            return None;
        }
        Some(match pick {
            Pick::Last => self.claims[self.claims.len() - 1].clone(),
            Pick::Any(nth) => nth.get(&self.claims).clone(),
            Pick::Mixed(task, token) => (task.get(&self.claims).0, token.get(&self.claims).1.clone()),
        })
    }

    /// Returns the task if `token` owns it.
    fn owned_task(&mut self, id: i64, token: &Token) -> Option<&mut Task> {
        let task = self.tasks.get_mut(&id).unwrap();
        (task.status == TaskStatus::Running && task.owner.as_ref() == Some(token)).then_some(task)
    }

    fn step(&mut self, Step { store, action }: &Step) {
        let store = self.stores[*store].clone();
        match action {
            Action::Enqueue { priority, delay, key } => self.enqueue(&store, *priority, *delay, *key),
            Action::Claim { worker, limit, lease } => {
                let claim_request = self.claim_request(*worker, *limit, *lease);
                self.settle_and_claim(&store, None, Some(claim_request));
            }
            Action::Settle { claim, outcome, then_claim } => {
                if let Some(claim) = self.pick_claim(claim) {
                    let claim_request = then_claim.then(|| self.claim_request(0, 1, 5));
                    self.settle_and_claim(&store, Some((claim, *outcome)), claim_request);
                }
            }
            Action::Heartbeat { claim, lease } => {
                if let Some(claim) = self.pick_claim(claim) {
                    self.heartbeat(&store, claim, *lease);
                }
            }
            Action::Start { claim } => {
                if let Some((id, token)) = self.pick_claim(claim) {
                    let started = store.tasks().start(id, &token).unwrap();
                    let owned_task = self.owned_task(id, &token);
                    assert_eq!(started, owned_task.is_some());
                    if let Some(task) = owned_task {
                        task.start();
                    }
                }
            }
            Action::SaveCheckpoint { claim } => {
                if let Some((id, token)) = self.pick_claim(claim) {
                    self.save_checkpoint(&store, id, &token);
                }
            }
            Action::Recover => self.recover(&store),
            Action::Cancel { task } => self.cancel(&store, task),
            Action::RunNow { task } => self.run_now(&store, task),
            Action::Forward(by) => self.clock.set_unix_micros(self.after(*by).micros()),
            Action::Back(by) => {
                self.clock.set_unix_micros(UtcTime::of(&self.clock).minus(Duration::from_secs(*by)).micros());
            }
        }
    }

    fn enqueue(&mut self, store: &Store, priority: i32, delay: Secs, key: Option<u8>) {
        let run_after = (delay > 0).then(|| self.after(delay));
        let unique_key = key.map(|key| key.to_string());
        let task = NewTask { priority, run_after, unique_key, ..NewTask::new(KIND, "{}") };
        let enqueued = store.tasks().enqueue(task).unwrap();
        let same = |task: &Task| key.is_some() && task.key == key && !task.status.is_terminal();
        if let Some((id, _)) = self.tasks.iter().find(|(_, task)| same(task)) {
            assert_eq!((enqueued.id, enqueued.created), (*id, false));
            return;
        }
        assert!(enqueued.created && self.tasks.keys().all(|id| *id < enqueued.id));
        let task = Task {
            status: if delay > 0 { TaskStatus::Scheduled } else { TaskStatus::Pending },
            priority,
            key,
            owner: None,
            expires: None,
            run_after,
            attempts: 0,
            starts: 0,
            started: false,
            crashes: 0,
            abandoned: 0,
            checkpoints: 0,
            cancelling: false,
            dead_letter_checkpoints: None,
        };
        self.tasks.insert(enqueued.id, task);
    }

    fn claim_request(&self, worker: usize, limit: usize, lease: Secs) -> ClaimRequest {
        ClaimRequest {
            queue: "default".to_owned(),
            kind: KIND.to_owned(),
            limit,
            max_running: None,
            max_crashed_once: usize::MAX,
            max_crashed_often: usize::MAX,
            lease: Duration::from_secs(lease),
            token: self.workers[worker].token(),
        }
    }

    fn settle_and_claim(
        &mut self,
        store: &Store,
        update: Option<((i64, Token), Outcome)>,
        claim_request: Option<ClaimRequest>,
    ) {
        let updates: Vec<TaskUpdate> = update
            .iter()
            .map(|((id, token), outcome)| TaskUpdate {
                id: *id,
                token: token.clone(),
                disposition: self.disposition(*outcome),
                checkpointed: true,
            })
            .collect();
        let batch = store.tasks().settle_and_claim(updates, claim_request.clone().into_iter().collect()).unwrap();
        if let Some(((id, token), outcome)) = update {
            let cancelling = self.tasks[&id].cancelling && !matches!(outcome, Outcome::Completed);
            let kept = self.settle(id, &token, outcome);
            match (kept, outcome) {
                (true, _) if cancelling => assert_eq!(batch.results, [UpdateResult::Cancelled]),
                (false, _) => assert_eq!(batch.results, [UpdateResult::Lost]),
                (true, Outcome::DeadLettered) => {
                    assert!(matches!(batch.results[..], [UpdateResult::DeadLettered(_)]));
                }
                (true, _) => assert_eq!(batch.results, [UpdateResult::Done]),
            }
        }
        let Some(claim_request) = claim_request else {
            assert_eq!((batch.claimed.len(), batch.next_due), (0, None));
            return;
        };
        let due = self.claim(&claim_request);
        assert_eq!(batch.claimed.iter().map(|task| task.id).collect::<Vec<_>>(), due);
        for task in batch.claimed {
            let task_model = &self.tasks[&task.id];
            assert_eq!(
                (task.attempts, task.starts, task.crashes, task.abandoned, task.priority),
                (task_model.attempts, task_model.starts, task_model.crashes, task_model.abandoned, task_model.priority)
            );
            self.claims.push((task.id, task.token));
        }
        let waiting = self.tasks.values().filter(|task| task.status == TaskStatus::Scheduled);
        let next = waiting.filter_map(|task| task.run_after).min();
        assert_eq!(batch.next_due, next.filter(|_| due.len() < claim_request.limit));
    }

    fn disposition(&self, outcome: Outcome) -> Disposition {
        let failure = TaskFailure { reason: "failed".to_owned(), ..TaskFailure::default() };
        match outcome {
            Outcome::Completed => Disposition::Completed(None),
            Outcome::Retry(by) => Disposition::Retry(self.after(by), failure),
            Outcome::DeadLettered => Disposition::DeadLettered(failure),
            Outcome::Released => Disposition::Released,
            Outcome::Postponed(by) => Disposition::Postponed(self.after(by)),
        }
    }

    fn settle(&mut self, id: i64, token: &Token, outcome: Outcome) -> bool {
        let at = match outcome {
            Outcome::Retry(by) | Outcome::Postponed(by) => Some(self.after(by)),
            _ => None,
        };
        let Some(task) = self.owned_task(id, token) else { return false };
        if matches!(outcome, Outcome::Completed | Outcome::Retry(_) | Outcome::DeadLettered) {
            task.start();
        }
        match outcome {
            Outcome::Completed => task.end_claim(TaskStatus::Completed),
            _ if task.cancelling => task.end_claim(TaskStatus::Cancelled),
            Outcome::Released => task.end_claim(TaskStatus::Pending),
            Outcome::Retry(_) => {
                task.attempts += 1;
                task.run_after = at;
                task.end_claim(TaskStatus::Scheduled);
            }
            Outcome::Postponed(_) => {
                task.run_after = at;
                task.end_claim(TaskStatus::Scheduled);
            }
            Outcome::DeadLettered => {
                task.attempts += 1;
                task.dead_letter();
            }
        }
        true
    }

    /// Returns the ids that a claim must return, in order.
    fn claim(&mut self, claim_request: &ClaimRequest) -> Vec<i64> {
        let (now, expires) = (UtcTime::of(&self.clock), UtcTime::of(&self.clock).plus(claim_request.lease));
        for task in self.tasks.values_mut().filter(|task| task.status == TaskStatus::Scheduled) {
            if task.run_after.is_none_or(|at| at <= now) {
                // Permanently: a clock that is set back does not make it scheduled again.
                task.status = TaskStatus::Pending;
                task.run_after = None;
            }
        }
        let is_due = |task: &Task| task.status == TaskStatus::Pending;
        let mut due: Vec<(i32, i64)> =
            self.tasks.iter().filter(|(_, task)| is_due(task)).map(|(id, task)| (-task.priority, *id)).collect();
        due.sort_unstable();
        due.truncate(claim_request.limit);
        let due: Vec<i64> = due.into_iter().map(|(_, id)| id).collect();
        for id in &due {
            let task = self.tasks.get_mut(id).unwrap();
            task.status = TaskStatus::Running;
            task.started = false;
            task.owner = Some(claim_request.token.clone());
            task.expires = Some(expires);
        }
        due
    }

    fn heartbeat(&mut self, store: &Store, (id, token): (i64, Token), lease: Secs) {
        let results = store.tasks().heartbeat(vec![(id, token.clone())], Duration::from_secs(lease)).unwrap();
        let expires = self.after(lease);
        let expected = match self.owned_task(id, &token) {
            None => HeartbeatResult::Lost,
            Some(task) => {
                task.expires = Some(expires);
                HeartbeatResult::Kept
            }
        };
        assert_eq!(results, [expected]);
    }

    fn save_checkpoint(&mut self, store: &Store, id: i64, token: &Token) {
        let checkpoints = self.tasks[&id].checkpoints;
        let saved = store.checkpoints().save(id, token, &checkpoints.to_string(), "1");
        match self.owned_task(id, token) {
            Some(task) => {
                task.checkpoints += 1;
                assert_eq!(saved, Ok(()));
            }
            None => assert!(matches!(saved, Err(Error::Conflict(_))), "{saved:?}"),
        }
    }

    fn recover(&mut self, store: &Store) {
        let recovered = store.tasks().recover(MAX_CRASHES).unwrap();
        let now = UtcTime::of(&self.clock);
        let (mut freed, mut poisoned, mut cancelled) = (0, 0, 0);
        for task in self.tasks.values_mut().filter(|task| task.is_stale(now)) {
            if task.cancelling {
                task.end_claim(TaskStatus::Cancelled);
                cancelled += 1;
                continue;
            }
            *if task.started { &mut task.crashes } else { &mut task.abandoned } += 1;
            if task.started && task.crashes >= MAX_CRASHES {
                task.dead_letter();
                poisoned += 1;
            } else {
                task.end_claim(TaskStatus::Pending);
                freed += 1;
            }
        }
        assert_eq!((recovered.freed, recovered.poisoned.len(), recovered.cancelled), (freed, poisoned, cancelled));
    }

    fn cancel(&mut self, store: &Store, task: &Index) {
        let ids: Vec<i64> = self.tasks.keys().copied().collect();
        if ids.is_empty() {
            return;
        }
        let id = *task.get(&ids);
        let cancelled = store.tasks().cancel(id);
        let task = self.tasks.get_mut(&id).unwrap();
        if task.status.is_terminal() {
            assert!(matches!(cancelled, Err(Error::Conflict(_))), "{cancelled:?}");
        } else if task.status == TaskStatus::Running {
            assert_eq!(cancelled, Ok(CancelOutcome::Requested));
            task.cancelling = true;
        } else {
            assert_eq!(cancelled, Ok(CancelOutcome::Cancelled));
            task.end_claim(TaskStatus::Cancelled);
        }
    }

    fn run_now(&mut self, store: &Store, task: &Index) {
        let ids: Vec<i64> = self.tasks.keys().copied().collect();
        if ids.is_empty() {
            return;
        }
        let id = *task.get(&ids);
        let result = store.tasks().run_now(id);
        let task = self.tasks.get_mut(&id).unwrap();
        if task.status == TaskStatus::Scheduled {
            assert_eq!(result, Ok(()));
            task.status = TaskStatus::Pending;
            task.run_after = None;
        } else {
            assert!(matches!(result, Err(Error::Conflict(_))), "{result:?}");
        }
    }

    /// Asserts that the table matches the model in both stores, and that the invariants hold.
    fn check(&mut self, reader: usize) {
        let store = &self.stores[reader];
        let rows = store.tasks().list(&TaskFilter::default(), None, 1_000).unwrap().items;
        let dead_letters = store.dead_letters().list(&DeadLetterFilter::default(), None, 1_000).unwrap().items;
        assert_eq!(
            rows.iter().map(|row| row.id).collect::<Vec<_>>(),
            self.tasks.keys().rev().copied().collect::<Vec<_>>(),
            "no task is lost"
        );
        for row in rows {
            let task = &self.tasks[&row.id];
            assert_eq!(
                (row.status, row.attempts, row.starts, row.crashes),
                (task.status, task.attempts, task.starts, task.crashes),
                "{row:?}"
            );
            assert_eq!((row.lease_expires_at, row.run_after), (task.expires, task.run_after), "{row:?}");
            if row.status == TaskStatus::Running {
                let owners = self
                    .claims
                    .iter()
                    .filter(|(id, token)| *id == row.id && Some(token.as_str()) == row.worker_id.as_deref());
                assert_eq!(owners.count(), 1, "exactly one owner: {row:?}");
                assert_eq!(row.worker_id.as_deref(), task.owner.as_ref().map(Token::as_str));
            }
            let checkpoints = store.checkpoints().list(row.id).unwrap().len();
            assert_eq!(checkpoints, task.checkpoints as usize, "{row:?}");
            if row.status.is_terminal() {
                let first = self.finished.entry(row.id).or_insert_with(|| row.clone());
                assert_eq!(&row, first, "nothing changes a finished row");
            } else {
                assert!(!self.finished.contains_key(&row.id), "{row:?}");
            }
            let own: Vec<_> =
                dead_letters.iter().filter(|dead_letter| dead_letter.task_id == row.id.to_string()).collect();
            assert_eq!(own.len(), usize::from(row.status == TaskStatus::Failed), "{row:?}");
            for dead_letter in own {
                assert_eq!(dead_letter.attempt_count, row.attempts + row.crashes);
                assert_eq!(dead_letter.checkpoint.is_some(), task.dead_letter_checkpoints != Some(0));
            }
        }
        let failed = self.tasks.values().filter(|task| task.status == TaskStatus::Failed).count();
        assert_eq!(dead_letters.len(), failed, "exactly the failed tasks have dead letters");
    }

    /// Asserts that every task can be finished in the end.
    fn drain(&mut self) {
        let unfinished = |model: &Model| model.tasks.values().any(|task| !task.status.is_terminal());
        for _ in 0..10 {
            if !unfinished(self) {
                return;
            }
            self.clock.set_unix_micros(self.after(1_000).micros());
            let store = self.stores[0].clone();
            self.recover(&store);
            let claim_request = self.claim_request(0, 1_000, 10);
            let before = self.claims.len();
            self.settle_and_claim(&store, None, Some(claim_request));
            for nth in before..self.claims.len() {
                let claim = self.claims[nth].clone();
                self.settle_and_claim(&store, Some((claim, Outcome::Completed)), None);
            }
        }
        assert!(!unfinished(self), "{:?}", self.tasks);
    }
}

#[test]
fn random_steps_match_the_lease_model() {
    // PROPTEST_CASES can only increase the number of cases.
    let cases = Config::default().cases.max(256);
    let config = Config { failure_persistence: None, max_shrink_iters: 2_000, ..Config::with_cases(cases) };
    let step = (0..2usize, action()).prop_map(|(store, action)| Step { store, action });
    proptest!(config, |(steps in prop::collection::vec(step, 40..60))| {
        let mut model = Model::new();
        for (nth, step) in steps.iter().enumerate() {
            model.step(step);
            model.check(nth % 2);
        }
        model.drain();
        model.check(0);
    });
}
