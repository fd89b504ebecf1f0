//! Schedules: the whole pool under shuttle, which takes the place of the system's scheduler and tries out
//! interleavings, at random and by PCT (few, well-placed preemptions). A deadlock or a lost wake-up is a
//! schedule that ends nowhere, and shuttle prints how to play it again.
//!
//! Run by `cargo xtask prove`; `GRISTMILL_SCHEDULES` says how many schedules each scenario is tried with.
#![cfg(shuttle)]

use gristmill_pool::{
    AsyncContext, AsyncPool, Breaker, Context, Pool, Priority, QueueOrder, Report, ResultOrder, Retry, Task,
    TaskError, clock::ManualClock, error::SubmitErrorKind,
};
use shuttle::{
    Config, Runner,
    future::{block_on, yield_now},
    scheduler::{PctScheduler, RandomScheduler},
    sync::{
        Condvar, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    thread,
};
use std::{collections::BTreeSet, sync::Arc, time::Duration};

const SEC: Duration = Duration::from_secs(1);

/// Half of the schedules at random, half by PCT.
fn explore(scenario: impl Fn() + Send + Sync + 'static) {
    let count = std::env::var("GRISTMILL_SCHEDULES").map_or(200, |count| count.parse().expect("a number"));
    let scenario = Arc::new(scenario);
    let again = Arc::clone(&scenario);
    let mut config = Config::new();
    // The default of 32 KiB is too small for formatting a report.
    config.stack_size = 256 * 1024;
    let random = RandomScheduler::new(usize::div_ceil(count, 2));
    Runner::new(random, config.clone()).run(move || scenario());
    let pct = PctScheduler::new(3, usize::max(count / 2, 1));
    Runner::new(pct, config).run(move || again());
}

/// Each task has exactly one fate.
fn check_partition(report: &Report) {
    let left = report.never_started.len() + report.unstopped.len();
    assert_eq!(report.finished + report.failed + left as u64, report.stats.submitted, "{report:?}");
}

/// Counts how often something was done.
#[derive(Clone, Default)]
struct Hits(Arc<AtomicUsize>);

impl Hits {
    fn hit(&self) {
        self.0.fetch_add(1, SeqCst);
    }

    fn count(&self) -> usize {
        self.0.load(SeqCst)
    }

    /// A task that hits once.
    fn task(&self) -> Task<()> {
        let hits = self.clone();
        Task::new(move |_| {
            hits.hit();
            Ok(())
        })
    }

    /// A task that hits, and spawns two more down to a depth.
    fn tree(&self, depth: u32) -> Task<()> {
        let hits = self.clone();
        Task::new(move |context| {
            hits.hit();
            for _ in 0..if depth > 0 { 2 } else { 0 } {
                // Refused only where the pool was cancelled.
                let _ = context.spawn_task(hits.tree(depth - 1));
            }
            Ok(())
        })
    }
}

/// Moves the clock on, second by second, until the pool has ended.
fn drive<T: Send + 'static>(pool: &Pool<T>, clock: &ManualClock) -> thread::JoinHandle<()> {
    let (pool, clock) = (pool.clone(), clock.clone());
    thread::spawn(move || {
        while !pool.has_ended() {
            clock.advance(SEC);
            thread::yield_now();
        }
    })
}

#[test]
fn waiting_submitters_are_all_served() {
    explore(|| {
        let pool = Pool::builder().workers(2).queue(1).build().unwrap();
        let hits = Hits::default();
        let submitters: Vec<_> = (0..3)
            .map(|_| {
                let (pool, hits) = (pool.clone(), hits.clone());
                thread::spawn(move || (0..2).for_each(|_| assert!(pool.submit_task(hits.task()).is_ok())))
            })
            .collect();
        submitters.into_iter().for_each(|submitter| submitter.join().unwrap());
        assert!(pool.join().is_clean());
        assert_eq!(hits.count(), 6);
    });
}

#[test]
fn close_and_cancel_release_submitters_and_lose_nothing() {
    for cancel in [false, true] {
        explore(move || {
            let pool = Pool::builder().workers(1).queue(1).build().unwrap();
            let hits = Hits::default();
            let submitters: Vec<_> = (0..2)
                .map(|_| {
                    let (pool, hits) = (pool.clone(), hits.clone());
                    thread::spawn(move || (0..2).filter(|_| pool.submit_task(hits.task()).is_ok()).count())
                })
                .collect();
            if cancel {
                pool.cancel();
            } else {
                pool.close();
            }
            let taken: usize = submitters.into_iter().map(|submitter| submitter.join().unwrap()).sum();
            let report = pool.join();
            check_partition(&report);
            assert_eq!(report.stats.submitted, taken as u64);
            assert_eq!(report.finished, hits.count() as u64);
            assert!(cancel || report.is_clean());
        });
    }
}

#[test]
fn spawned_tasks_wake_sleepers_and_all_run() {
    explore(|| {
        let pool = Pool::builder().workers(3).queue(1).build().unwrap();
        let hits = Hits::default();
        pool.submit_task(hits.tree(3)).unwrap();
        assert!(pool.join().is_clean());
        assert_eq!(hits.count(), 15);
    });
}

/// A flag that tasks wait for.
#[derive(Clone, Default)]
struct Gate(Arc<(Mutex<usize>, Condvar)>);

impl Gate {
    fn pass(&self) {
        *self.0.0.lock().unwrap() += 1;
        self.0.1.notify_all();
    }

    /// Waits until so many have passed.
    fn wait(&self, count: usize) {
        let mut passed = self.0.0.lock().unwrap();
        while *passed < count {
            passed = self.0.1.wait(passed).unwrap();
        }
    }
}

/// Tasks that wait for each other: no worker may sleep while a task waits.
#[test]
fn queued_tasks_find_every_worker() {
    explore(|| {
        let pool = Pool::builder().workers(3).queue(3).build().unwrap();
        let gate = Gate::default();
        for _ in 0..3 {
            let gate = gate.clone();
            pool.submit(move |_| {
                gate.pass();
                gate.wait(3);
                Ok(())
            })
            .unwrap();
        }
        assert!(pool.join().is_clean());
    });
}

/// The same for spawned ones, which one worker has in a heap.
#[test]
fn spawned_tasks_find_every_worker() {
    explore(|| {
        let pool = Pool::builder().workers(3).queue(1).build().unwrap();
        pool.submit(|context| {
            let gate = Gate::default();
            for _ in 0..3 {
                let gate = gate.clone();
                context.spawn(move |_| {
                    gate.pass();
                    gate.wait(3);
                    Ok(())
                })?;
            }
            Ok(())
        })
        .unwrap();
        assert!(pool.join().is_clean());
    });
}

/// A context that was taken to another thread spawns while the pool drains.
#[test]
fn a_context_that_outlives_its_task_loses_nothing() {
    explore(|| {
        let pool = Pool::builder().workers(2).queue(2).build().unwrap();
        let (hits, taken) = (Hits::default(), Hits::default());
        let spawner = Hits::clone(&hits);
        let counted = taken.clone();
        pool.submit(move |context| {
            let context = context.clone();
            thread::spawn(move || {
                for _ in 0..2 {
                    if context.spawn_task(spawner.task()).is_ok() {
                        counted.hit();
                    }
                }
            });
            Ok(())
        })
        .unwrap();
        let report = pool.join();
        check_partition(&report);
        // Refused after the end; what was taken before it was run.
        assert_eq!(hits.count() as u64 + 1, report.finished);
        assert!(taken.count() <= 2);
    });
}

/// A task that waits for the one it has spawned: somebody else has to take it.
#[test]
fn a_spawned_task_does_not_wait_for_its_parent() {
    explore(|| {
        let pool = Pool::builder().workers(2).queue(1).build().unwrap();
        pool.submit(|context| {
            let done = Gate::default();
            let child = done.clone();
            context.spawn(move |_| {
                child.pass();
                Ok(())
            })?;
            done.wait(1);
            Ok(())
        })
        .unwrap();
        assert!(pool.join().is_clean());
    });
}

#[test]
fn cancel_in_the_middle_of_a_tree() {
    explore(|| {
        let pool = Pool::builder().workers(2).queue(2).build().unwrap();
        let hits = Hits::default();
        for _ in 0..2 {
            pool.submit_task(hits.tree(2)).unwrap();
        }
        let canceller = thread::spawn({
            let pool = pool.clone();
            move || pool.cancel()
        });
        let report = pool.join();
        canceller.join().unwrap();
        check_partition(&report);
        assert_eq!(report.finished, hits.count() as u64);
    });
}

#[test]
fn everybody_stops_it_at_once() {
    explore(|| {
        let pool = Pool::builder().workers(2).queue(2).build().unwrap();
        let joiners: Vec<_> = (0..4)
            .map(|nth| {
                let pool = pool.clone();
                thread::spawn(move || {
                    let _ = pool.submit(|_| Ok(()));
                    match nth {
                        0 => pool.close(),
                        1 => pool.cancel(),
                        _ => {}
                    }
                    pool.join()
                })
            })
            .collect();
        for joiner in joiners {
            check_partition(&joiner.join().unwrap());
        }
        assert!(pool.has_ended());
    });
}

#[test]
fn a_task_that_stops_its_own_pool() {
    explore(|| {
        let pool = Pool::builder().workers(2).queue(4).build().unwrap();
        for nth in 0..3 {
            let inner = pool.clone();
            let task = Task::new(move |_| {
                if nth == 0 {
                    inner.cancel()
                } else {
                    inner.close()
                }
                // Does not wait: its own end would have to come first.
                inner.join();
                Ok(())
            });
            if pool.submit_task(task).is_err() {
                break;
            }
        }
        check_partition(&pool.join());
    });
}

#[test]
fn a_slow_reader_gets_every_result() {
    for delivery in [Delivery::AsCompleted, Delivery::AsSubmitted] {
        explore(move || {
            let (pool, mut results) =
                Pool::builder().workers(2).queue(1).results(1).build_with_results::<u64>(delivery).unwrap();
            let submitter = thread::spawn(move || {
                for number in 0..5 {
                    pool.submit(move |_| Ok(number)).unwrap();
                }
                pool
            });
            let mut numbers: Vec<u64> =
                results.by_ref().take(5).map(|outcome| outcome.result.unwrap()).collect();
            let pool = submitter.join().unwrap();
            pool.close();
            assert!(results.next().is_none());
            if delivery == Delivery::AsCompleted {
                numbers.sort_unstable();
            }
            assert_eq!(numbers, [0, 1, 2, 3, 4]);
            assert!(pool.join().is_clean());
        });
    }
}

#[test]
fn cancel_while_results_wait_for_their_reader() {
    for delivery in [Delivery::AsCompleted, Delivery::AsSubmitted] {
        explore(move || {
            let (pool, results) =
                Pool::builder().workers(2).queue(2).results(1).build_with_results::<u64>(delivery).unwrap();
            let submitter = thread::spawn({
                let pool = pool.clone();
                move || (0..4).all(|number| pool.submit(move |_| Ok(number)).is_ok())
            });
            let canceller = thread::spawn({
                let pool = pool.clone();
                move || pool.cancel()
            });
            let seen: BTreeSet<u64> = results.map(|outcome| outcome.result.unwrap()).collect();
            submitter.join().unwrap();
            canceller.join().unwrap();
            let report = pool.join();
            check_partition(&report);
            assert_eq!(report.finished, seen.len() as u64, "a result was dropped");
        });
    }
}

#[test]
fn cancel_does_not_wait_for_a_reader() {
    explore(|| {
        let builder = Pool::builder().workers(2).queue(3).results(1);
        let (pool, results) = builder.build_with_results::<()>(Delivery::AsCompleted).unwrap();
        for _ in 0..3 {
            pool.submit(|_| Ok(())).unwrap();
        }
        pool.cancel();
        let report = pool.join();
        check_partition(&report);
        assert_eq!(report.finished, results.count() as u64, "a result was dropped");
    });
}

/// The first result is late, so the others pile up until submitters have to wait; then they go on.
#[test]
fn the_window_of_submit_order_moves() {
    explore(|| {
        let builder = Pool::builder().workers(2).queue(1).results(1);
        let (pool, results) = builder.build_with_results(Delivery::AsSubmitted).unwrap();
        let submitter = thread::spawn(move || {
            let gate = Gate::default();
            for nth in 0..7 {
                let gate = gate.clone();
                let body = move |_: &Context<usize>| {
                    if nth == 0 {
                        gate.wait(3)
                    } else {
                        gate.pass()
                    }
                    Ok(nth)
                };
                pool.submit(body).unwrap();
            }
        });
        let numbers: Vec<usize> = results.map(|outcome| outcome.result.unwrap()).collect();
        assert_eq!(numbers, [0, 1, 2, 3, 4, 5, 6]);
        submitter.join().unwrap();
    });
}

#[test]
fn a_reader_that_goes_holds_nobody_up() {
    explore(|| {
        let (pool, mut results) =
            Pool::builder().workers(2).queue(1).results(1).build_with_results(Delivery::AsSubmitted).unwrap();
        let reader = thread::spawn(move || drop(results.next()));
        for number in 0..4 {
            pool.submit(move |_| Ok(number)).unwrap();
        }
        assert!(pool.join().is_clean());
        reader.join().unwrap();
    });
}

#[test]
fn retries_come_back_and_cancel_catches_them() {
    for cancel in [false, true] {
        explore(move || {
            let clock = ManualClock::new();
            let pool = Pool::builder().workers(1).queue(2).clock(&clock).build().unwrap();
            for _ in 0..2 {
                let policy = Retry::linear(2, SEC).without_jitter();
                let body = |context: &Context| match context.attempt() {
                    1 => Err(TaskError::transient("first")),
                    _ => Ok(()),
                };
                pool.submit_task(Task::retrying(policy, body)).unwrap();
            }
            let driver = drive(&pool, &clock);
            if cancel {
                pool.cancel();
            }
            let report = pool.join();
            driver.join().unwrap();
            check_partition(&report);
            assert!(cancel || (report.finished == 2 && report.stats.retried == 2), "{report:?}");
        });
    }
}

#[test]
fn a_stalled_worker_is_replaced_and_its_task_has_one_outcome() {
    explore(|| {
        let clock = ManualClock::new();
        let builder = Pool::builder().workers(1).queue(4).stall_after(SEC).clock(&clock);
        let (pool, results) = builder.build_with_results::<u8>(Delivery::AsCompleted).unwrap();
        for number in 0..2 {
            pool.submit(move |_| {
                thread::yield_now();
                Ok(number)
            })
            .unwrap();
        }
        let driver = thread::spawn({
            let clock = clock.clone();
            move || (0..2).for_each(|_| clock.advance(SEC))
        });
        pool.close();
        assert_eq!(results.count(), 2);
        driver.join().unwrap();
        let report = pool.join();
        check_partition(&report);
        assert_eq!(report.failed, report.stats.stalled);
        assert!(report.stats.late_discarded <= report.stats.stalled);
    });
}

#[test]
fn a_timeout_and_the_end_of_its_task_meet() {
    explore(|| {
        let clock = ManualClock::new();
        let pool = Pool::builder().workers(1).timeout(SEC).clock(&clock).build().unwrap();
        for _ in 0..2 {
            let body =
                |context: &Context| if context.is_cancelled() { Err(TaskError::cancelled()) } else { Ok(()) };
            pool.submit(body).unwrap();
        }
        let driver = thread::spawn({
            let clock = clock.clone();
            move || clock.advance(SEC)
        });
        let report = pool.join();
        driver.join().unwrap();
        check_partition(&report);
        assert!(report.failed <= report.stats.timed_out);
    });
}

#[test]
fn shutdown_leaves_behind_only_what_runs() {
    explore(|| {
        let clock = ManualClock::new();
        let pool = Pool::builder().workers(2).queue(4).clock(&clock).build().unwrap();
        let gate = Gate::default();
        let held = gate.clone();
        pool.submit(move |_| {
            held.wait(1);
            Ok(())
        })
        .unwrap();
        pool.submit(|_| Ok(())).unwrap();
        let driver = drive(&pool, &clock);
        let report = pool.shutdown(SEC * 5);
        check_partition(&report);
        assert!(report.finished <= 1);
        gate.pass();
        driver.join().unwrap();
        check_partition(&pool.join());
    });
}

#[test]
fn ranked_queues_serve_everybody() {
    for order in [Order::Priority, Order::Cost] {
        explore(move || {
            let pool = Pool::builder().workers(2).queue(2).order(order).build().unwrap();
            let hits = Hits::default();
            for nth in 0..4u8 {
                pool.submit_task(hits.tree(1).priority(Priority(nth)).cost(nth.into())).unwrap();
            }
            assert!(pool.join().is_clean());
            assert_eq!(hits.count(), 12);
        });
    }
}

#[test]
fn a_breaker_lets_one_probe_through() {
    explore(|| {
        let clock = ManualClock::new();
        let breaker = Breaker::new(1, SEC).clock(&clock);
        breaker.acquire().unwrap().failure();
        clock.advance(SEC);
        let askers: Vec<_> = (0..3)
            .map(|_| {
                let breaker = breaker.clone();
                thread::spawn(move || breaker.acquire().ok())
            })
            .collect();
        let permits: Vec<_> = askers.into_iter().filter_map(|asker| asker.join().unwrap()).collect();
        assert_eq!(permits.len(), 1);
    });
}

#[test]
fn the_last_handle_closes() {
    explore(|| {
        let builder = Pool::builder().workers(2).queue(2);
        let (pool, results) = builder.build_with_results(Delivery::AsCompleted).unwrap();
        let submitter = thread::spawn({
            let pool = pool.clone();
            move || assert!(pool.submit(|_| Ok(1)).is_ok())
        });
        pool.submit(|_| Ok(2)).unwrap();
        drop(pool);
        assert_eq!(results.map(|outcome| outcome.result.unwrap()).sum::<i32>(), 3);
        submitter.join().unwrap();
    });
}

#[test]
fn submit_timeout_passes_its_place_on() {
    explore(|| {
        let clock = ManualClock::new();
        let pool = Pool::builder().workers(1).queue(1).clock(&clock).build().unwrap();
        let hits = Hits::default();
        let submitters: Vec<_> = (0..3)
            .map(|_| {
                let (pool, hits) = (pool.clone(), hits.clone());
                thread::spawn(move || match pool.submit_timeout(hits.task(), SEC) {
                    Ok(_) => 1,
                    Err(error) => {
                        assert_eq!(error.refusal, Refusal::TimedOut);
                        0
                    }
                })
            })
            .collect();
        let driver = drive(&pool, &clock);
        pool.submit_task(hits.task()).unwrap();
        let taken: usize = submitters.into_iter().map(|submitter| submitter.join().unwrap()).sum();
        assert!(pool.join().is_clean());
        driver.join().unwrap();
        assert_eq!(hits.count(), taken + 1);
    });
}

/// The parent waits for its child, and so does another task: the third worker has to take it, though it may
/// have been called for the other.
#[test]
fn a_spawned_task_is_not_left_while_a_worker_sleeps() {
    explore(|| {
        let pool = Pool::builder().workers(3).queue(4).build().unwrap();
        let gate = Gate::default();
        let parent = gate.clone();
        pool.submit(move |context| {
            let child = parent.clone();
            context.spawn(move |_| {
                child.pass();
                Ok(())
            })?;
            parent.wait(1);
            Ok(())
        })
        .unwrap();
        pool.submit(move |_| {
            gate.wait(1);
            Ok(())
        })
        .unwrap();
        assert_eq!(pool.join().finished, 3);
    });
}

/// A task is given up as it spawns: each child is either refused or has a fate.
#[test]
fn a_stalled_task_that_spawns_as_it_is_replaced_loses_nothing() {
    explore(|| {
        let clock = ManualClock::new();
        let pool = Pool::builder().workers(1).queue(4).stall_after(SEC).clock(&clock).build().unwrap();
        let started = Gate::default();
        let begun = started.clone();
        pool.submit(move |context| {
            begun.pass();
            for _ in 0..4 {
                // Refused once it is given up.
                let _ = context.spawn(|_| Ok(()));
            }
            Ok(())
        })
        .unwrap();
        started.wait(1);
        (0..6).for_each(|_| clock.advance(SEC / 4));
        check_partition(&pool.join());
    });
}

// ---- workers that are async tasks ----

#[test]
fn async_workers_serve_everybody() {
    explore(|| {
        block_on(async {
            let pool = Pool::builder().workers(2).queue(1).build_async().unwrap();
            let hits = Hits::default();
            let submitters: Vec<_> = (0..2)
                .map(|_| {
                    let (pool, hits) = (pool.clone(), hits.clone());
                    shuttle::future::spawn(async move {
                        for _ in 0..2 {
                            let hits = hits.clone();
                            let body = |context: AsyncContext| async move {
                                let inner = hits.clone();
                                context.spawn(|_| async move { Ok(inner.hit()) })?;
                                yield_now().await;
                                Ok(hits.hit())
                            };
                            pool.submit(body).await.unwrap();
                        }
                    })
                })
                .collect();
            for submitter in submitters {
                submitter.await.unwrap();
            }
            assert!(pool.join().await.is_clean());
            assert_eq!(hits.count(), 8);
        });
    });
}

#[test]
fn a_dropped_submit_leaves_no_hole() {
    explore(|| {
        block_on(async {
            let pool: AsyncPool = Pool::builder().workers(1).queue(1).build_async().unwrap();
            let submitters: Vec<_> = (0..3)
                .map(|nth| {
                    let pool = pool.clone();
                    shuttle::future::spawn(async move {
                        let mut submit = Box::pin(pool.submit(|_| async { Ok(()) }));
                        if nth > 0 {
                            return assert!(submit.await.is_ok());
                        }
                        // Polled once, then dropped.
                        std::future::poll_fn(|cx| {
                            let _ = submit.as_mut().poll(cx);
                            std::task::Poll::Ready(())
                        })
                        .await;
                        yield_now().await;
                    })
                })
                .collect();
            for submitter in submitters {
                submitter.await.unwrap();
            }
            pool.submit(|_| async { Ok(()) }).await.unwrap();
            let report = pool.join().await;
            assert!(report.is_clean());
            assert!((3..=4).contains(&report.finished), "{report:?}");
        });
    });
}

#[test]
fn async_cancel_is_heard() {
    explore(|| {
        block_on(async {
            let pool: AsyncPool = Pool::builder().workers(2).queue(2).build_async().unwrap();
            for _ in 0..3 {
                let body = |context: AsyncContext| async move {
                    context.cancelled().await;
                    Err(TaskError::cancelled())
                };
                pool.submit(body).await.unwrap();
            }
            let canceller = thread::spawn({
                let pool = pool.clone();
                move || pool.cancel()
            });
            let report = pool.join().await;
            canceller.join().unwrap();
            check_partition(&report);
            assert_eq!(report.finished, 0);
        });
    });
}

/// Whoever looks sees no more tasks ended, running or waiting than were submitted.
#[test]
fn snapshots_are_consistent_while_tasks_are_submitted_spawned_and_stopped() {
    explore(|| {
        let (pool, hits) = (Pool::builder().workers(2).queue(2).build().unwrap(), Hits::default());
        let watched = pool.clone();
        let watcher = thread::spawn(move || {
            for _ in 0..3 {
                let stats = watched.stats();
                let ended = stats.completed + stats.failed + stats.never_started;
                assert!(ended <= stats.submitted, "{stats:?}");
                thread::yield_now();
            }
        });
        for _ in 0..2 {
            // Refused only where the pool was cancelled.
            let _ = pool.submit_task(hits.tree(1));
        }
        let inside = pool.clone();
        let reporter = Task::new(move |_| {
            let report = inside.shutdown(SEC);
            let left = report.never_started.len() + report.unstopped.len();
            let sum = report.finished + report.failed + left as u64 + report.waiting;
            assert_eq!(sum, report.stats.submitted, "{report:?}");
            Ok(())
        });
        let _ = pool.submit_task(reporter);
        let report = pool.join();
        check_partition(&report);
        assert_eq!(report.failed, 0, "{report:?}");
        watcher.join().unwrap();
    });
}
