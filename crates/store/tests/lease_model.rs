//! The state machine of leases against a model: random steps of three workers, who never forget a token, over two
//! stores on one file and a clock that goes both ways. The model says what each step must return and what the
//! table must then hold; the rules that no step may break are checked besides.

use std::collections::BTreeMap;
use std::time::Duration;

use gristmill_store::dead_letters::DeadLetterFilter;
use gristmill_store::lease::{HeartbeatResult, Token, WorkerId};
use gristmill_store::tasks::{
    CancelOutcome, ClaimRequest, Disposition, NewTask, TaskFailure, TaskFilter, TaskRow, TaskStatus,
    TaskUpdate, UpdateResult,
};
use gristmill_store::{Durability, Error, Store, UtcTime, WallClock};
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::Config;

const KIND: &str = "grind";
const MAX_CRASHES: u32 = 3;

/// Seconds.
type Secs = u64;

#[derive(Clone, Copy, Debug)]
enum Say {
    Completed,
    Retry(Secs),
    Buried,
    Released,
    Postponed(Secs),
}

/// What is done next. A claim is picked among all that ever were: the last one, or any.
#[derive(Clone, Debug)]
enum Act {
    Enqueue { priority: i32, delay: Secs, key: Option<u8> },
    Claim { worker: usize, limit: usize, lease: Secs },
    Settle { claim: Pick, say: Say, then_claim: bool },
    Heartbeat { claim: Pick, lease: Secs },
    Start { claim: Pick },
    Note { claim: Pick },
    Recover,
    Cancel { task: Index },
    Hurry { task: Index },
    Forward(Secs),
    Back(Secs),
}

#[derive(Clone, Debug)]
enum Pick {
    Last,
    Any(Index),
    /// One task under another's token.
    Mixed(Index, Index),
}

#[derive(Clone, Debug)]
struct Step {
    store: usize,
    act: Act,
}

fn pick() -> impl Strategy<Value = Pick> {
    prop_oneof![
        3 => Just(Pick::Last),
        3 => any::<Index>().prop_map(Pick::Any),
        1 => any::<(Index, Index)>().prop_map(|(task, token)| Pick::Mixed(task, token)),
    ]
}

fn say() -> impl Strategy<Value = Say> {
    prop_oneof![
        Just(Say::Completed),
        (0..20u64).prop_map(Say::Retry),
        Just(Say::Buried),
        Just(Say::Released),
        (0..20u64).prop_map(Say::Postponed),
    ]
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        5 => (-1..2i32, prop_oneof![3 => Just(0), 1 => 1..20u64], prop::option::weighted(0.3, 0..2u8))
            .prop_map(|(priority, delay, key)| Act::Enqueue { priority, delay, key }),
        8 => (0..3usize, 0..3usize, 1..15u64)
            .prop_map(|(worker, limit, lease)| Act::Claim { worker, limit, lease }),
        8 => (pick(), say(), any::<bool>())
            .prop_map(|(claim, say, then_claim)| Act::Settle { claim, say, then_claim }),
        4 => (pick(), 1..15u64).prop_map(|(claim, lease)| Act::Heartbeat { claim, lease }),
        5 => pick().prop_map(|claim| Act::Start { claim }),
        2 => pick().prop_map(|claim| Act::Note { claim }),
        4 => Just(Act::Recover),
        1 => any::<Index>().prop_map(|task| Act::Cancel { task }),
        1 => any::<Index>().prop_map(|task| Act::Hurry { task }),
        5 => (1..12u64).prop_map(Act::Forward),
        1 => (1..25u64).prop_map(Act::Back),
    ]
}

/// A task as the model knows it.
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
    notes: u32,
    /// It is to be cancelled when its run has ended.
    cancelling: bool,
    /// How many notes its letter has, when there is one.
    letter: Option<u32>,
}

impl Task {
    fn is_stale(&self, now: UtcTime) -> bool {
        self.status == TaskStatus::Running && self.expires.is_none_or(|at| at <= now)
    }

    fn start(&mut self) {
        self.starts += u32::from(!self.started);
        self.started = true;
    }

    /// Nobody has it any more.
    fn leave(&mut self, status: TaskStatus) {
        self.status = status;
        self.owner = None;
        self.expires = None;
        if status.is_terminal() {
            self.notes = 0;
        }
    }

    fn bury(&mut self) {
        self.letter = Some(self.notes);
        self.leave(TaskStatus::Failed);
    }
}

/// The table, and whoever works at it.
struct World {
    tasks: BTreeMap<i64, Task>,
    claims: Vec<(i64, Token)>,
    clock: WallClock,
    stores: [Store; 2],
    workers: [WorkerId; 3],
    finished: BTreeMap<i64, TaskRow>,
    _folder: tempfile::TempDir,
}

impl World {
    fn new() -> Self {
        // In memory where there is such a place: nothing here is about the disk.
        let memory = std::path::Path::new("/dev/shm");
        let folder =
            if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }.unwrap();
        let clock = WallClock::manual(UtcTime::parse("2026-01-19 12:00:00").unwrap());
        let open = || {
            let options = Store::options().clock(clock.clone()).durability(Durability::Normal);
            options.open(folder.path().join("mill.db")).unwrap()
        };
        World {
            stores: [open(), open()],
            tasks: BTreeMap::new(),
            claims: Vec::new(),
            clock,
            workers: ["ann", "ben", "cid"].map(WorkerId::new),
            finished: BTreeMap::new(),
            _folder: folder,
        }
    }

    fn soon(&self, by: Secs) -> UtcTime {
        self.clock.now().plus(Duration::from_secs(by))
    }

    fn claim_of(&self, pick: &Pick) -> Option<(i64, Token)> {
        if self.claims.is_empty() {
            return None;
        }
        Some(match pick {
            Pick::Last => self.claims[self.claims.len() - 1].clone(),
            Pick::Any(nth) => nth.get(&self.claims).clone(),
            Pick::Mixed(task, token) => (task.get(&self.claims).0, token.get(&self.claims).1.clone()),
        })
    }

    /// The task, if `token` is the one that has it.
    fn owned(&mut self, id: i64, token: &Token) -> Option<&mut Task> {
        let task = self.tasks.get_mut(&id).unwrap();
        (task.status == TaskStatus::Running && task.owner.as_ref() == Some(token)).then_some(task)
    }

    fn step(&mut self, Step { store, act }: &Step) {
        let store = self.stores[*store].clone();
        match act {
            Act::Enqueue { priority, delay, key } => self.enqueue(&store, *priority, *delay, *key),
            Act::Claim { worker, limit, lease } => {
                let wanted = self.wanted(*worker, *limit, *lease);
                self.turn(&store, None, Some(wanted));
            }
            Act::Settle { claim, say, then_claim } => {
                if let Some(claim) = self.claim_of(claim) {
                    let wanted = then_claim.then(|| self.wanted(0, 1, 5));
                    self.turn(&store, Some((claim, *say)), wanted);
                }
            }
            Act::Heartbeat { claim, lease } => {
                if let Some(claim) = self.claim_of(claim) {
                    self.heartbeat(&store, claim, *lease);
                }
            }
            Act::Start { claim } => {
                if let Some((id, token)) = self.claim_of(claim) {
                    let started = store.tasks().start(id, &token).unwrap();
                    let owned = self.owned(id, &token);
                    assert_eq!(started, owned.is_some());
                    if let Some(task) = owned {
                        task.start();
                    }
                }
            }
            Act::Note { claim } => {
                if let Some((id, token)) = self.claim_of(claim) {
                    self.note(&store, id, &token);
                }
            }
            Act::Recover => self.recover(&store),
            Act::Cancel { task } => self.cancel(&store, task),
            Act::Hurry { task } => self.hurry(&store, task),
            Act::Forward(by) => self.clock.set(self.soon(*by)),
            Act::Back(by) => self.clock.set(self.clock.now().minus(Duration::from_secs(*by))),
        }
    }

    fn enqueue(&mut self, store: &Store, priority: i32, delay: Secs, key: Option<u8>) {
        let run_after = (delay > 0).then(|| self.soon(delay));
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
            notes: 0,
            cancelling: false,
            letter: None,
        };
        self.tasks.insert(enqueued.id, task);
    }

    fn wanted(&self, worker: usize, limit: usize, lease: Secs) -> ClaimRequest {
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

    fn turn(&mut self, store: &Store, said: Option<((i64, Token), Say)>, wanted: Option<ClaimRequest>) {
        let settlements: Vec<TaskUpdate> = said
            .iter()
            .map(|((id, token), say)| TaskUpdate {
                id: *id,
                token: token.clone(),
                disposition: self.verdict(*say),
                checkpointed: true,
            })
            .collect();
        let turn = store.tasks().settle_and_claim(settlements, wanted.clone().into_iter().collect()).unwrap();
        if let Some(((id, token), say)) = said {
            let cancelling = self.tasks[&id].cancelling && !matches!(say, Say::Completed);
            let kept = self.settle(id, &token, say);
            match (kept, say) {
                (true, _) if cancelling => assert_eq!(turn.results, [UpdateResult::Cancelled]),
                (false, _) => assert_eq!(turn.results, [UpdateResult::Lost]),
                (true, Say::Buried) => assert!(matches!(turn.results[..], [UpdateResult::DeadLettered(_)])),
                (true, _) => assert_eq!(turn.results, [UpdateResult::Done]),
            }
        }
        let Some(wanted) = wanted else {
            assert_eq!((turn.claimed.len(), turn.next_due), (0, None));
            return;
        };
        let due = self.claim(&wanted);
        assert_eq!(turn.claimed.iter().map(|task| task.id).collect::<Vec<_>>(), due);
        for task in turn.claimed {
            let known = &self.tasks[&task.id];
            assert_eq!(
                (task.attempts, task.starts, task.crashes, task.abandoned, task.priority),
                (known.attempts, known.starts, known.crashes, known.abandoned, known.priority)
            );
            self.claims.push((task.id, task.token));
        }
        let waiting = self.tasks.values().filter(|task| task.status == TaskStatus::Scheduled);
        let next = waiting.filter_map(|task| task.run_after).min();
        assert_eq!(turn.next_due, next.filter(|_| due.len() < wanted.limit));
    }

    fn verdict(&self, say: Say) -> Disposition {
        let failure = TaskFailure { reason: "broke".to_owned(), ..TaskFailure::default() };
        match say {
            Say::Completed => Disposition::Completed(None),
            Say::Retry(by) => Disposition::Retry(self.soon(by), failure),
            Say::Buried => Disposition::DeadLettered(failure),
            Say::Released => Disposition::Released,
            Say::Postponed(by) => Disposition::Postponed(self.soon(by)),
        }
    }

    fn settle(&mut self, id: i64, token: &Token, say: Say) -> bool {
        let at = match say {
            Say::Retry(by) | Say::Postponed(by) => Some(self.soon(by)),
            _ => None,
        };
        let Some(task) = self.owned(id, token) else { return false };
        if matches!(say, Say::Completed | Say::Retry(_) | Say::Buried) {
            task.start();
        }
        match say {
            Say::Completed => task.leave(TaskStatus::Completed),
            _ if task.cancelling => task.leave(TaskStatus::Cancelled),
            Say::Released => task.leave(TaskStatus::Pending),
            Say::Retry(_) => {
                task.attempts += 1;
                task.run_after = at;
                task.leave(TaskStatus::Scheduled);
            }
            Say::Postponed(_) => {
                task.run_after = at;
                task.leave(TaskStatus::Scheduled);
            }
            Say::Buried => {
                task.attempts += 1;
                task.bury();
            }
        }
        true
    }

    /// The ids that a claim must bring, in order.
    fn claim(&mut self, wanted: &ClaimRequest) -> Vec<i64> {
        let (now, expires) = (self.clock.now(), self.clock.now().plus(wanted.lease));
        for task in self.tasks.values_mut().filter(|task| task.status == TaskStatus::Scheduled) {
            if task.run_after.is_none_or(|at| at <= now) {
                // For good: a clock that is set back does not make it wait again.
                task.status = TaskStatus::Pending;
                task.run_after = None;
            }
        }
        let is_due = |task: &Task| task.status == TaskStatus::Pending;
        let mut due: Vec<(i32, i64)> = self
            .tasks
            .iter()
            .filter(|(_, task)| is_due(task))
            .map(|(id, task)| (-task.priority, *id))
            .collect();
        due.sort_unstable();
        due.truncate(wanted.limit);
        let due: Vec<i64> = due.into_iter().map(|(_, id)| id).collect();
        for id in &due {
            let task = self.tasks.get_mut(id).unwrap();
            task.status = TaskStatus::Running;
            task.started = false;
            task.owner = Some(wanted.token.clone());
            task.expires = Some(expires);
        }
        due
    }

    fn heartbeat(&mut self, store: &Store, (id, token): (i64, Token), lease: Secs) {
        let beats = store.tasks().heartbeat(vec![(id, token.clone())], Duration::from_secs(lease)).unwrap();
        let expires = self.soon(lease);
        let want = match self.owned(id, &token) {
            None => HeartbeatResult::Lost,
            Some(task) => {
                task.expires = Some(expires);
                HeartbeatResult::Kept
            }
        };
        assert_eq!(beats, [want]);
    }

    fn note(&mut self, store: &Store, id: i64, token: &Token) {
        let notes = self.tasks[&id].notes;
        let noted = store.checkpoints().save(id, token, &notes.to_string(), "1");
        match self.owned(id, token) {
            Some(task) => {
                task.notes += 1;
                assert_eq!(noted, Ok(()));
            }
            None => assert!(matches!(noted, Err(Error::Conflict(_))), "{noted:?}"),
        }
    }

    fn recover(&mut self, store: &Store) {
        let recovered = store.tasks().recover(MAX_CRASHES).unwrap();
        let now = self.clock.now();
        let (mut freed, mut poisoned, mut cancelled) = (0, 0, 0);
        for task in self.tasks.values_mut().filter(|task| task.is_stale(now)) {
            if task.cancelling {
                task.leave(TaskStatus::Cancelled);
                cancelled += 1;
                continue;
            }
            *if task.started { &mut task.crashes } else { &mut task.abandoned } += 1;
            if task.started && task.crashes >= MAX_CRASHES {
                task.bury();
                poisoned += 1;
            } else {
                task.leave(TaskStatus::Pending);
                freed += 1;
            }
        }
        assert_eq!(
            (recovered.freed, recovered.poisoned.len(), recovered.cancelled),
            (freed, poisoned, cancelled)
        );
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
            task.leave(TaskStatus::Cancelled);
        }
    }

    fn hurry(&mut self, store: &Store, task: &Index) {
        let ids: Vec<i64> = self.tasks.keys().copied().collect();
        if ids.is_empty() {
            return;
        }
        let id = *task.get(&ids);
        let hurried = store.tasks().run_now(id);
        let task = self.tasks.get_mut(&id).unwrap();
        if task.status == TaskStatus::Scheduled {
            assert_eq!(hurried, Ok(()));
            task.status = TaskStatus::Pending;
            task.run_after = None;
        } else {
            assert!(matches!(hurried, Err(Error::Conflict(_))), "{hurried:?}");
        }
    }

    /// The table is as the model has it, whichever store looks; and what must never be, is not.
    fn check(&mut self, looker: usize) {
        let store = &self.stores[looker];
        let rows = store.tasks().list(&TaskFilter::default(), None, 1_000).unwrap().items;
        let letters = store.dead_letters().list(&DeadLetterFilter::default(), None, 1_000).unwrap().items;
        assert_eq!(
            rows.iter().map(|row| row.id).collect::<Vec<_>>(),
            self.tasks.keys().rev().copied().collect::<Vec<_>>(),
            "none is lost"
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
                assert_eq!(owners.count(), 1, "one owner, and one only: {row:?}");
                assert_eq!(row.worker_id.as_deref(), task.owner.as_ref().map(Token::as_str));
            }
            let notes = store.checkpoints().list(row.id).unwrap().len();
            assert_eq!(notes, task.notes as usize, "{row:?}");
            if row.status.is_terminal() {
                let first = self.finished.entry(row.id).or_insert_with(|| row.clone());
                assert_eq!(&row, first, "nothing changes a finished row");
            } else {
                assert!(!self.finished.contains_key(&row.id), "{row:?}");
            }
            let own: Vec<_> = letters.iter().filter(|letter| letter.task_id == row.id.to_string()).collect();
            assert_eq!(own.len(), usize::from(row.status == TaskStatus::Failed), "{row:?}");
            for letter in own {
                assert_eq!(letter.attempt_count, row.attempts + row.crashes);
                assert_eq!(letter.checkpoint.is_some(), task.letter != Some(0));
            }
        }
        let failed = self.tasks.values().filter(|task| task.status == TaskStatus::Failed).count();
        assert_eq!(letters.len(), failed, "letters exactly for what was given up");
    }

    /// Whatever happened: in the end every task can be brought to its end.
    fn drain(&mut self) {
        let unfinished = |world: &World| world.tasks.values().any(|task| !task.status.is_terminal());
        for _ in 0..10 {
            if !unfinished(self) {
                return;
            }
            self.clock.set(self.soon(1_000));
            let store = self.stores[0].clone();
            self.recover(&store);
            let wanted = self.wanted(0, 1_000, 10);
            let before = self.claims.len();
            self.turn(&store, None, Some(wanted));
            for nth in before..self.claims.len() {
                let claim = self.claims[nth].clone();
                self.turn(&store, Some((claim, Say::Completed)), None);
            }
        }
        assert!(!unfinished(self), "{:?}", self.tasks);
    }
}

#[test]
fn every_interleaving_comes_out_as_the_model_says() {
    // PROPTEST_CASES asks for more, never for fewer.
    let cases = Config::default().cases.max(256);
    let config = Config { failure_persistence: None, max_shrink_iters: 2_000, ..Config::with_cases(cases) };
    let step = (0..2usize, act()).prop_map(|(store, act)| Step { store, act });
    proptest!(config, |(steps in prop::collection::vec(step, 40..60))| {
        let mut world = World::new();
        for (nth, step) in steps.iter().enumerate() {
            world.step(step);
            world.check(nth % 2);
        }
        world.drain();
        world.check(0);
    });
}
