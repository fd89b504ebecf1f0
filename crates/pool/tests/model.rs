//! Random mixes of submit, spawn, failure, retry, panic, close and cancel, on pools of every shape, against a
//! simple model of what must come out: every task that was taken has exactly one fate, and without a cancel
//! that fate, and every attempt on the way to it, is known beforehand.

#![cfg(not(any(shuttle, loom)))]

#[macro_use]
mod suite;

use gristmill_pool::{
    Outcome, Priority, QueueOrder, Report, ResultOrder, Retry, TaskError, error::Cause,
    error::SubmitErrorKind,
};
use proptest::{prelude::*, test_runner::Config};
use std::{
    collections::{BTreeMap, BTreeSet},
    thread,
    time::Duration,
};
use suite::*;

/// What a task does, once it has spawned its children.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Deed {
    Succeed,
    Fail,
    Panic,
    /// Fails this often for a moment, of at most so many attempts.
    Struggle {
        failures: u32,
        attempts: u32,
    },
}

#[derive(Debug, Clone)]
struct Node {
    deed: Deed,
    rank: u8,
    children: Vec<Node>,
}

/// What is done to the pool, and after how many tasks were submitted (or started, for a cancel from inside).
#[derive(Debug, Clone, Copy)]
enum Stop {
    Join,
    CloseAfter(usize),
    CancelAfter(usize),
    CancelInside(usize),
}

#[derive(Debug, Clone)]
struct Plan {
    workers: usize,
    queue: usize,
    shelf: usize,
    order: QueueOrder,
    delivery: ResultOrder,
    stop: Stop,
    roots: Vec<Node>,
}

/// What becomes of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Made,
    Failed(u32),
    Panicked,
}

impl Deed {
    fn fate(self) -> Fate {
        match self {
            Self::Succeed => Fate::Made,
            Self::Fail => Fate::Failed(1),
            Self::Panic => Fate::Panicked,
            Self::Struggle { failures, attempts } if failures < attempts => Fate::Made,
            Self::Struggle { attempts, .. } => Fate::Failed(attempts),
        }
    }

    fn attempts(self) -> u32 {
        match self {
            Self::Struggle { failures, attempts } => attempts.min(failures + 1),
            _ => 1,
        }
    }
}

fn deed(with_retries: bool) -> impl Strategy<Value = Deed> {
    let struggle = if with_retries { 2 } else { 0 };
    prop_oneof![
        4 => Just(Deed::Succeed),
        1 => Just(Deed::Fail),
        1 => Just(Deed::Panic),
        struggle => (1..4u32, 1..4u32).prop_map(|(failures, attempts)| Deed::Struggle { failures, attempts }),
    ]
}

fn node(with_retries: bool) -> impl Strategy<Value = Node> {
    let leaf =
        (deed(with_retries), any::<u8>()).prop_map(|(deed, rank)| Node { deed, rank, children: Vec::new() });
    leaf.prop_recursive(3, 6, 3, move |inner| {
        (deed(with_retries), any::<u8>(), prop::collection::vec(inner, 0..3))
            .prop_map(|(deed, rank, children)| Node { deed, rank, children })
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

fn plan() -> impl Strategy<Value = Plan> {
    let shape = (1..=4usize, 1..=8usize, 1..=4usize);
    let roots = prop::collection::vec(node(true), 0..10);
    (shape, prop::sample::select(&ORDERS), prop::sample::select(&DELIVERIES), stop(), roots).prop_map(
        |((workers, queue, shelf), order, delivery, stop, roots)| Plan {
            workers,
            queue,
            shelf,
            order,
            delivery,
            stop,
            roots,
        },
    )
}

/// A node by its place in the plan: `3/0/1` is the second child of the first child of the fourth root.
type Place = Vec<usize>;

/// Every attempt, and every id that a pool has given.
struct Diary<K: Kind> {
    attempts: Log<(Place, u32)>,
    ids: Log<(u64, Place)>,
    pool: Handle<Place, K>,
    cancel_at: Option<usize>,
    started: Signal,
}

impl<K: Kind> Clone for Diary<K> {
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

impl<K: Kind> Diary<K> {
    fn task(&self, node: &Node, place: Place) -> Job<Place, K> {
        let rank = node.rank;
        let task = match node.deed {
            Deed::Struggle { attempts, .. } => {
                let (diary, node) = (self.clone(), node.clone());
                K::retrying(Retry::linear(attempts, Duration::ZERO), move |context| {
                    diary.clone().attempt(node.clone(), place.clone(), context)
                })
            }
            _ => {
                let (diary, node) = (self.clone(), node.clone());
                K::once(move |context| diary.attempt(node, place, context))
            }
        };
        task.priority(Priority(rank)).cost(rank.into())
    }

    async fn attempt(self, node: Node, place: Place, context: Ctx<Place, K>) -> Result<Place, TaskError> {
        self.attempts.add((place.clone(), context.attempt()));
        self.started.give();
        if self.cancel_at.is_some_and(|at| self.started.count() > at) {
            self.pool.cancel();
        }
        if context.attempt() == 1 {
            for (nth, child) in node.children.iter().enumerate() {
                let below: Place = place.iter().copied().chain([nth]).collect();
                match context.spawn_task(self.task(child, below.clone())) {
                    Ok(id) => self.ids.add((id.get(), below)),
                    Err(error) => assert_eq!(error.kind, SubmitErrorKind::Cancelled),
                }
            }
        }
        match node.deed {
            Deed::Succeed => Ok(place),
            Deed::Fail => Err(TaskError::permanent("no")),
            Deed::Panic => panic!("ouch"),
            Deed::Struggle { failures, .. } if context.attempt() <= failures => {
                Err(TaskError::transient("busy"))
            }
            Deed::Struggle { .. } => Ok(place),
        }
    }
}

/// What came out of a pool.
struct Outcomes {
    report: Report,
    outcomes: Vec<Outcome<Place>>,
    attempts: Vec<(Place, u32)>,
    ids: BTreeMap<u64, Place>,
}

fn run<K: Kind>(plan: &Plan) -> Outcomes {
    let builder = small(plan.workers, plan.queue).result_capacity(plan.shelf).order(plan.order);
    let (rig, results) = build_with_results::<Place, K>(builder, plan.delivery);
    let reader = thread::spawn(move || results.collect::<Vec<_>>());
    let cancel_at = if let Stop::CancelInside(at) = plan.stop { Some(at) } else { None };
    let (attempts, ids, started) = (Log::default(), Log::default(), Signal::default());
    let diary = Diary { attempts, ids, pool: rig.pool.clone(), cancel_at, started };
    for (nth, root) in plan.roots.iter().enumerate() {
        match plan.stop {
            Stop::CloseAfter(after) if after == nth => rig.close(),
            Stop::CancelAfter(after) if after == nth => rig.cancel(),
            _ => {}
        }
        match rig.submit(diary.task(root, vec![nth])) {
            Ok(id) => diary.ids.add((id.get(), vec![nth])),
            Err(_) => break,
        }
    }
    let report = rig.join();
    let given = diary.ids.all();
    let ids: BTreeMap<u64, Place> = given.iter().cloned().collect();
    assert_eq!(ids.len(), given.len(), "an id was given twice");
    Outcomes { report, outcomes: reader.join().unwrap(), attempts: diary.attempts.all(), ids }
}

fn find<'a>(roots: &'a [Node], place: &[usize]) -> &'a Node {
    let (first, rest) = place.split_first().unwrap();
    rest.iter().fold(&roots[*first], |node, nth| &node.children[*nth])
}

/// All places of a plan whose first so many roots were taken.
fn places(roots: &[Node], above: &Place) -> BTreeSet<Place> {
    let mut all = BTreeSet::new();
    for (nth, root) in roots.iter().enumerate() {
        let place: Place = above.iter().copied().chain([nth]).collect();
        all.extend(places(&root.children, &place));
        all.insert(place);
    }
    all
}

fn fate(outcome: &Outcome<Place>) -> Fate {
    match &outcome.result {
        Ok(_) => Fate::Made,
        Err(failure) if matches!(failure.error.cause(), Cause::Panic { .. }) => Fate::Panicked,
        Err(failure) => Fate::Failed(failure.attempts),
    }
}

/// What holds of every run.
fn check_any(plan: &Plan, out: &Outcomes) {
    assert_partition(&out.report);
    assert_eq!(out.report.stats.submitted, out.ids.len() as u64, "what was taken is what was counted");
    let delivered: BTreeSet<u64> = out.outcomes.iter().map(|outcome| outcome.task.id.get()).collect();
    assert_eq!(delivered.len(), out.outcomes.len(), "delivered twice");
    let never: BTreeSet<u64> = out.report.never_started.iter().map(|task| task.id.get()).collect();
    assert!(delivered.is_disjoint(&never), "never started, and yet an outcome");
    let fates: BTreeSet<u64> = delivered.union(&never).copied().collect();
    assert!(fates.into_iter().eq(out.ids.keys().copied()), "a task without a fate, or a fate without a task");
    let made = out.outcomes.iter().filter(|outcome| outcome.result.is_ok()).count();
    assert_eq!(out.report.finished, made as u64);
    for outcome in &out.outcomes {
        let place = &out.ids[&outcome.task.id.get()];
        if let Ok(value) = &outcome.result {
            assert_eq!(value, place, "another task's result");
        }
    }
    if plan.delivery == ResultOrder::AsSubmitted {
        let ids: Vec<u64> = out.outcomes.iter().map(|outcome| outcome.task.id.get()).collect();
        assert!(ids.is_sorted(), "not in submit order: {ids:?}");
    }
    // Attempts of one task count up from 1, none twice; and whoever had one was started.
    let mut seen = BTreeMap::<&Place, u32>::new();
    for (place, attempt) in &out.attempts {
        let before = seen.insert(place, *attempt).unwrap_or(0);
        assert_eq!(*attempt, before + 1, "{place:?}");
    }
    let started: BTreeSet<&Place> = delivered.iter().map(|id| &out.ids[id]).collect();
    assert!(seen.into_keys().eq(started), "an outcome without a start, or a start without an outcome");
}

/// What holds of a run that was not cancelled.
fn check_whole(plan: &Plan, out: &Outcomes) {
    let taken = match plan.stop {
        Stop::CloseAfter(after) => after.min(plan.roots.len()),
        _ => plan.roots.len(),
    };
    let want = places(&plan.roots[..taken], &Vec::new());
    let got: BTreeSet<Place> = out.ids.values().cloned().collect();
    assert_eq!(got, want);
    assert!(out.report.never_started.is_empty());
    let mut attempts = BTreeMap::<&Place, u32>::new();
    attempts.extend(out.attempts.iter().map(|(place, attempt)| (place, *attempt)));
    for outcome in &out.outcomes {
        let place = &out.ids[&outcome.task.id.get()];
        let deed = find(&plan.roots, place).deed;
        assert_eq!((fate(outcome), attempts[place]), (deed.fate(), deed.attempts()), "{place:?}");
    }
    let retried: u32 = want.iter().map(|place| find(&plan.roots, place).deed.attempts() - 1).sum();
    assert_eq!(out.report.stats.retried, u64::from(retried));
}

fn config(cases: u32) -> Config {
    Config { failure_persistence: None, max_shrink_iters: 200, ..Config::with_cases(cases) }
}

fn every_mix_comes_out_as_the_model_says<K: Kind>() {
    proptest!(config(400), |(plan in plan())| {
        let out = run::<K>(&plan);
        check_any(&plan, &out);
        if !matches!(plan.stop, Stop::CancelAfter(_) | Stop::CancelInside(_)) {
            check_whole(&plan, &out);
        }
    });
}

/// One worker, first in first out: each root, then all below it, the newest child first.
fn walk(node: &Node, place: &[usize], order: &mut Vec<Place>) {
    order.push(place.to_vec());
    for (nth, child) in node.children.iter().enumerate().rev() {
        walk(child, &[place, &[nth]].concat(), order);
    }
}

fn one_worker_keeps_the_order_of_the_model<K: Kind>() {
    let roots = prop::collection::vec(node(false), 0..10);
    let shape = (1..=8usize, 1..=4usize, prop::sample::select(&DELIVERIES));
    proptest!(config(200), |(roots in roots, (queue, shelf, delivery) in shape)| {
        let plan = Plan { workers: 1, queue, shelf, order: QueueOrder::Fifo, delivery, stop: Stop::Join, roots };
        let out = run::<K>(&plan);
        check_any(&plan, &out);
        check_whole(&plan, &out);
        let mut want = Vec::new();
        plan.roots.iter().enumerate().for_each(|(nth, root)| walk(root, &[nth], &mut want));
        let ran: Vec<Place> = out.attempts.into_iter().map(|(place, _)| place).collect();
        prop_assert_eq!(ran, want);
    });
}

every_kind!(every_mix_comes_out_as_the_model_says, one_worker_keeps_the_order_of_the_model);
