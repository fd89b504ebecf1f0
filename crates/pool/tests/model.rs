//! Random mixes of submit, spawn, failure, retry, panic, waits for idle, close and cancel on pools of every shape,
//! checked against a simple model: every accepted task is settled exactly once, and without a cancel its outcome and its
//! attempts are known in advance.

#![cfg(not(any(shuttle, loom)))]

#[macro_use]
mod suite;

use gristmill_pool::{
    Outcome, Priority, QueueOrder, Report, ResultOrder, Retry, TaskError, error::Cause, error::SubmitErrorKind,
};
use proptest::{prelude::*, test_runner::Config};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};
use suite::*;

/// What a task does after it has spawned its children.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Behavior {
    Succeed,
    Fail,
    Panic,
    /// Fails transiently `failures` times, with at most `attempts` attempts.
    FailFirst {
        failures: u32,
        attempts: u32,
    },
}

#[derive(Debug, Clone)]
struct Node {
    behavior: Behavior,
    rank: u8,
    children: Vec<Node>,
}

/// How the pool is ended, and after how many submitted tasks (`CancelInside`: started tasks).
#[derive(Debug, Clone, Copy)]
enum Stop {
    Join,
    CloseAfter(usize),
    CancelAfter(usize),
    CancelInside(usize),
}

#[derive(Debug, Clone)]
struct Scenario {
    workers: usize,
    queue: usize,
    result_capacity: usize,
    order: QueueOrder,
    /// Order of the results, or `None` for a callback.
    result_order: Option<ResultOrder>,
    stop: Stop,
    /// Number of submitted tasks after which it waits for an idle pool.
    idle_after: usize,
    roots: Vec<Node>,
}

/// How a task ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EndState {
    Succeeded,
    Failed(u32),
    Panicked,
}

impl Behavior {
    fn expected(self) -> EndState {
        match self {
            Self::Succeed => EndState::Succeeded,
            Self::Fail => EndState::Failed(1),
            Self::Panic => EndState::Panicked,
            Self::FailFirst { failures, attempts } if failures < attempts => EndState::Succeeded,
            Self::FailFirst { attempts, .. } => EndState::Failed(attempts),
        }
    }

    fn attempts(self) -> u32 {
        match self {
            Self::FailFirst { failures, attempts } => attempts.min(failures + 1),
            _ => 1,
        }
    }
}

fn behavior(with_retries: bool) -> impl Strategy<Value = Behavior> {
    let retry_weight = if with_retries { 2 } else { 0 };
    prop_oneof![
        4 => Just(Behavior::Succeed),
        1 => Just(Behavior::Fail),
        1 => Just(Behavior::Panic),
        retry_weight => (1..4u32, 1..4u32).prop_map(|(failures, attempts)| Behavior::FailFirst { failures, attempts }),
    ]
}

fn node(with_retries: bool) -> impl Strategy<Value = Node> {
    let leaf = (behavior(with_retries), any::<u8>()).prop_map(|(behavior, rank)| Node {
        behavior,
        rank,
        children: Vec::new(),
    });
    leaf.prop_recursive(3, 6, 3, move |inner| {
        (behavior(with_retries), any::<u8>(), prop::collection::vec(inner, 0..3))
            .prop_map(|(behavior, rank, children)| Node { behavior, rank, children })
    })
}

fn stop() -> impl Strategy<Value = Stop> {
    prop_oneof![
        3 => Just(Stop::Join),
        1 => (0..10usize).prop_map(Stop::CloseAfter),
        2 => (0..10usize).prop_map(Stop::CancelAfter),
        2 => (0..20usize).prop_map(Stop::CancelInside),
    ]
}

fn scenario() -> impl Strategy<Value = Scenario> {
    let shape = (1..=4usize, 1..=8usize, 1..=4usize);
    let roots = prop::collection::vec(node(true), 0..10);
    let delivery = prop::option::of(prop::sample::select(&RESULT_ORDERS));
    (shape, prop::sample::select(&ORDERS), delivery, (stop(), 1..=12usize), roots).prop_map(
        |((workers, queue, result_capacity), order, result_order, (stop, idle_after), roots)| Scenario {
            workers,
            queue,
            result_capacity,
            order,
            result_order,
            stop,
            idle_after,
            roots,
        },
    )
}

/// Path of a node in the scenario: `[3, 0, 1]` is the second child of the first child of the fourth root.
type TreePath = Vec<usize>;

/// Records every attempt and every id that the pool has assigned.
struct Recorder<K: WorkerKind> {
    attempts: Log<(TreePath, u32)>,
    ids: Log<(u64, TreePath)>,
    pool: Handle<TreePath, K>,
    cancel_at: Option<usize>,
    started: Signal,
}

impl<K: WorkerKind> Clone for Recorder<K> {
    fn clone(&self) -> Self {
        Self {
            attempts: self.attempts.clone(),
            ids: self.ids.clone(),
            pool: self.pool.clone(),
            cancel_at: self.cancel_at,
            started: self.started.clone(),
        }
    }
}

impl<K: WorkerKind> Recorder<K> {
    fn task(&self, node: &Node, path: TreePath) -> TaskOf<TreePath, K> {
        let rank = node.rank;
        let task = match node.behavior {
            Behavior::FailFirst { attempts, .. } => {
                let (recorder, node) = (self.clone(), node.clone());
                K::retrying(Retry::linear(attempts, Duration::ZERO), move |context| {
                    recorder.clone().attempt(node.clone(), path.clone(), context)
                })
            }
            _ => {
                let (recorder, node) = (self.clone(), node.clone());
                K::once(move |context| recorder.attempt(node, path, context))
            }
        };
        task.priority(Priority(rank)).cost(rank.into())
    }

    async fn attempt(self, node: Node, path: TreePath, context: ContextOf<TreePath, K>) -> Result<TreePath, TaskError> {
        self.attempts.add((path.clone(), context.attempt()));
        self.started.notify();
        if self.cancel_at.is_some_and(|at| self.started.count() > at) {
            self.pool.cancel();
        }
        if context.attempt() == 1 {
            for (nth, child) in node.children.iter().enumerate() {
                let below: TreePath = path.iter().copied().chain([nth]).collect();
                match context.spawn_task(self.task(child, below.clone())) {
                    Ok(id) => self.ids.add((id.get(), below)),
                    Err(error) => assert_eq!(error.kind, SubmitErrorKind::Cancelled),
                }
            }
        }
        match node.behavior {
            Behavior::Succeed => Ok(path),
            Behavior::Fail => Err(TaskError::permanent("no")),
            Behavior::Panic => panic!("ouch"),
            Behavior::FailFirst { failures, .. } if context.attempt() <= failures => Err(TaskError::transient("busy")),
            Behavior::FailFirst { .. } => Ok(path),
        }
    }
}

/// Everything observed of one pool.
struct Observations {
    report: Report,
    outcomes: Vec<Outcome<TreePath>>,
    attempts: Vec<(TreePath, u32)>,
    ids: BTreeMap<u64, TreePath>,
}

fn run<K: WorkerKind>(scenario: &Scenario) -> Observations {
    let builder =
        pool_builder(scenario.workers, scenario.queue).result_capacity(scenario.result_capacity).order(scenario.order);
    let outcomes = Arc::new(Mutex::new(Vec::new()));
    let collected = Arc::clone(&outcomes);
    let (fixture, reader) = if let Some(result_order) = scenario.result_order {
        let (fixture, results) = build_with_results::<TreePath, K>(builder, result_order);
        (fixture, Some(thread::spawn(move || collected.lock().unwrap().extend(results))))
    } else {
        (build_with_callback::<TreePath, K>(builder, move |outcome| collected.lock().unwrap().push(outcome)), None)
    };
    let cancel_at = if let Stop::CancelInside(at) = scenario.stop { Some(at) } else { None };
    let (attempts, ids, started) = (Log::default(), Log::default(), Signal::default());
    let recorder = Recorder { attempts, ids, pool: fixture.pool.clone(), cancel_at, started };
    for (nth, root) in scenario.roots.iter().enumerate() {
        match scenario.stop {
            Stop::CloseAfter(after) if after == nth => fixture.close(),
            Stop::CancelAfter(after) if after == nth => fixture.cancel(),
            _ => {}
        }
        match fixture.submit(recorder.task(root, vec![nth])) {
            Ok(id) => recorder.ids.add((id.get(), vec![nth])),
            Err(_) => break,
        }
        if (nth + 1) % scenario.idle_after == 0 {
            fixture.wait_idle();
            check_idle(&fixture, reader.is_none().then(|| outcomes.lock().unwrap().len()));
        }
    }
    let report = fixture.join();
    reader.into_iter().for_each(|reader| reader.join().unwrap());
    let assigned = recorder.ids.all();
    let ids: BTreeMap<u64, TreePath> = assigned.iter().cloned().collect();
    assert_eq!(ids.len(), assigned.len(), "two tasks have the same id");
    let outcomes = std::mem::take(&mut *outcomes.lock().unwrap());
    Observations { report, outcomes, attempts: recorder.attempts.all(), ids }
}

/// Only this thread submits, so a pool that was idle stays so: each task is settled, and its callback has returned.
fn check_idle<K: WorkerKind>(pool: &Handle<TreePath, K>, callbacks: Option<usize>) {
    let stats = pool.stats();
    let waiting = (stats.active, stats.queued, stats.waiting_retry);
    assert_eq!(waiting, (0, 0, 0), "{stats:?}");
    let outcomes = stats.completed + stats.failed;
    assert_eq!(outcomes + stats.never_started, stats.submitted, "{stats:?}");
    assert!(callbacks.is_none_or(|calls| calls as u64 == outcomes), "{callbacks:?} callbacks: {stats:?}");
}

fn find<'a>(roots: &'a [Node], path: &[usize]) -> &'a Node {
    let (first, rest) = path.split_first().unwrap();
    rest.iter().fold(&roots[*first], |node, nth| &node.children[*nth])
}

/// The paths of all nodes below `roots`.
fn all_paths(roots: &[Node], above: &TreePath) -> BTreeSet<TreePath> {
    let mut all = BTreeSet::new();
    for (nth, root) in roots.iter().enumerate() {
        let path: TreePath = above.iter().copied().chain([nth]).collect();
        all.extend(all_paths(&root.children, &path));
        all.insert(path);
    }
    all
}

fn end_state(outcome: &Outcome<TreePath>) -> EndState {
    match &outcome.result {
        Ok(_) => EndState::Succeeded,
        Err(failure) if matches!(failure.error.cause(), Cause::Panic { .. }) => EndState::Panicked,
        Err(failure) => EndState::Failed(failure.attempts),
    }
}

fn check_invariants(scenario: &Scenario, out: &Observations) {
    assert_reports_each_task_once(&out.report);
    assert_eq!(out.report.stats.submitted, out.ids.len() as u64, "accepted and counted tasks differ");
    let delivered: BTreeSet<u64> = out.outcomes.iter().map(|outcome| outcome.task.id.get()).collect();
    assert_eq!(delivered.len(), out.outcomes.len(), "delivered twice");
    let never: BTreeSet<u64> = out.report.never_started.iter().map(|task| task.id.get()).collect();
    assert!(delivered.is_disjoint(&never), "a never started task has an outcome");
    let settled: BTreeSet<u64> = delivered.union(&never).copied().collect();
    assert!(settled.into_iter().eq(out.ids.keys().copied()), "accepted and settled tasks differ");
    let values = out.outcomes.iter().filter(|outcome| outcome.result.is_ok()).count();
    assert_eq!(out.report.finished, values as u64);
    for outcome in &out.outcomes {
        let path = &out.ids[&outcome.task.id.get()];
        if let Ok(value) = &outcome.result {
            assert_eq!(value, path, "result of another task");
        }
    }
    if scenario.result_order == Some(ResultOrder::AsSubmitted) {
        let ids: Vec<u64> = out.outcomes.iter().map(|outcome| outcome.task.id.get()).collect();
        assert!(ids.is_sorted(), "not in submit order: {ids:?}");
    }
    // The attempts of a task are numbered from 1 without repetition, and only started tasks have any.
    let mut seen = BTreeMap::<&TreePath, u32>::new();
    for (path, attempt) in &out.attempts {
        let before = seen.insert(path, *attempt).unwrap_or(0);
        assert_eq!(*attempt, before + 1, "{path:?}");
    }
    let started: BTreeSet<&TreePath> = delivered.iter().map(|id| &out.ids[id]).collect();
    assert!(seen.into_keys().eq(started), "started tasks and tasks with an outcome differ");
}

/// Checks the tasks, outcomes and attempts of a run without a cancel against the model.
fn check_uncancelled(scenario: &Scenario, out: &Observations) {
    let accepted = match scenario.stop {
        Stop::CloseAfter(after) => after.min(scenario.roots.len()),
        _ => scenario.roots.len(),
    };
    let want = all_paths(&scenario.roots[..accepted], &Vec::new());
    let got: BTreeSet<TreePath> = out.ids.values().cloned().collect();
    assert_eq!(got, want);
    assert!(out.report.never_started.is_empty());
    let mut attempts = BTreeMap::<&TreePath, u32>::new();
    attempts.extend(out.attempts.iter().map(|(path, attempt)| (path, *attempt)));
    for outcome in &out.outcomes {
        let path = &out.ids[&outcome.task.id.get()];
        let behavior = find(&scenario.roots, path).behavior;
        assert_eq!((end_state(outcome), attempts[path]), (behavior.expected(), behavior.attempts()), "{path:?}");
        assert_eq!(outcome.attempts, attempts[path], "{path:?}");
    }
    let retried: u32 = want.iter().map(|path| find(&scenario.roots, path).behavior.attempts() - 1).sum();
    assert_eq!(out.report.stats.retried, u64::from(retried));
}

fn config(cases: u32) -> Config {
    Config { failure_persistence: None, max_shrink_iters: 200, ..Config::with_cases(cases) }
}

fn random_scenarios_end_as_the_model_predicts<K: WorkerKind>() {
    proptest!(config(400), |(scenario in scenario())| {
        let out = run::<K>(&scenario);
        check_invariants(&scenario, &out);
        if !matches!(scenario.stop, Stop::CancelAfter(_) | Stop::CancelInside(_)) {
            check_uncancelled(&scenario, &out);
        }
    });
}

/// The order with one worker and a FIFO queue: each root, then all nodes below it, the newest child first.
fn walk(node: &Node, path: &[usize], order: &mut Vec<TreePath>) {
    order.push(path.to_vec());
    for (nth, child) in node.children.iter().enumerate().rev() {
        walk(child, &[path, &[nth]].concat(), order);
    }
}

fn one_worker_runs_tasks_in_model_order<K: WorkerKind>() {
    let roots = prop::collection::vec(node(false), 0..10);
    let delivery = prop::option::of(prop::sample::select(&RESULT_ORDERS));
    let shape = (1..=8usize, 1..=4usize, delivery, 1..=12usize);
    proptest!(config(200), |(roots in roots, (queue, result_capacity, result_order, idle_after) in shape)| {
        let (order, stop) = (QueueOrder::Fifo, Stop::Join);
        let scenario = Scenario { workers: 1, queue, result_capacity, order, result_order, stop, idle_after, roots };
        let out = run::<K>(&scenario);
        check_invariants(&scenario, &out);
        check_uncancelled(&scenario, &out);
        let mut want = Vec::new();
        scenario.roots.iter().enumerate().for_each(|(nth, root)| walk(root, &[nth], &mut want));
        let ran: Vec<TreePath> = out.attempts.into_iter().map(|(path, _)| path).collect();
        prop_assert_eq!(ran, want);
    });
}

for_each_worker_kind!(random_scenarios_end_as_the_model_predicts, one_worker_runs_tasks_in_model_order);
