//! Runs the whole pool under shuttle, which replaces the system's scheduler and explores interleavings at random and by
//! PCT (few, well-placed preemptions). A deadlock or a lost wake-up is a schedule that does not end, and shuttle prints
//! how to replay it.
//!
//! Run by `cargo xtask prove`. `GRISTMILL_SCHEDULES` sets the number of schedules per scenario.
#![cfg(shuttle)]

#[path = "shuttle/waits.rs"]
mod waits;

use gristmill_pool::{
    AsyncContext, AsyncPool, Breaker, Context, Pool, Priority, QueueOrder, Report, ResultOrder, Retry, Task, TaskError,
    clock::ManualClock, error::SubmitErrorKind,
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

/// Explores half of the schedules at random and half by PCT.
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

/// Checks that the report counts each task exactly once.
fn assert_reports_each_task_once(report: &Report) {
    let left = report.never_started.len() + report.abandoned.len();
    assert_eq!(report.finished + report.failed + left as u64, report.stats.submitted, "{report:?}");
}

/// Counts how often tasks ran.
#[derive(Clone, Default)]
struct Counter(Arc<AtomicUsize>);

impl Counter {
    fn increment(&self) {
        self.0.fetch_add(1, SeqCst);
    }

    fn count(&self) -> usize {
        self.0.load(SeqCst)
    }

    /// A task that increments the counter.
    fn task(&self) -> Task<()> {
        let counter = self.clone();
        Task::new(move |_| {
            counter.increment();
            Ok(())
        })
    }

    /// A task that increments the counter and spawns two more, down to `depth`.
    fn tree(&self, depth: u32) -> Task<()> {
        let counter = self.clone();
        Task::new(move |context| {
            counter.increment();
            for _ in 0..if depth > 0 { 2 } else { 0 } {
                // Rejected only if the pool was cancelled.
                let _ = context.spawn_task(counter.tree(depth - 1));
            }
            Ok(())
        })
    }
}

/// Advances the clock second by second until the pool has ended.
fn drive<T: Send + 'static>(pool: &Pool<T>, clock: &ManualClock) -> thread::JoinHandle<()> {
    let (pool, clock) = (pool.clone(), clock.clone());
    thread::spawn(move || {
        while !pool.is_finished() {
            clock.advance(SEC);
            thread::yield_now();
        }
    })
}

#[test]
fn every_waiting_submitter_is_served() {
    explore(|| {
        let pool = Pool::builder().workers(2).queue_capacity(1).build().unwrap();
        let counter = Counter::default();
        let submitters: Vec<_> = (0..3)
            .map(|_| {
                let (pool, counter) = (pool.clone(), counter.clone());
                thread::spawn(move || (0..2).for_each(|_| assert!(pool.submit_task(counter.task()).is_ok())))
            })
            .collect();
        submitters.into_iter().for_each(|submitter| submitter.join().unwrap());
        assert!(pool.join().is_clean());
        assert_eq!(counter.count(), 6);
    });
}

#[test]
fn close_and_cancel_release_submitters_and_report_every_task() {
    for cancel in [false, true] {
        explore(move || {
            let pool = Pool::builder().workers(1).queue_capacity(1).build().unwrap();
            let counter = Counter::default();
            let submitters: Vec<_> = (0..2)
                .map(|_| {
                    let (pool, counter) = (pool.clone(), counter.clone());
                    thread::spawn(move || (0..2).filter(|_| pool.submit_task(counter.task()).is_ok()).count())
                })
                .collect();
            if cancel {
                pool.cancel();
            } else {
                pool.close();
            }
            let accepted: usize = submitters.into_iter().map(|submitter| submitter.join().unwrap()).sum();
            let report = pool.join();
            assert_reports_each_task_once(&report);
            assert_eq!(report.stats.submitted, accepted as u64);
            assert_eq!(report.finished, counter.count() as u64);
            assert!(cancel || report.is_clean());
        });
    }
}

#[test]
fn every_spawned_task_runs_when_workers_sleep() {
    explore(|| {
        let pool = Pool::builder().workers(3).queue_capacity(1).build().unwrap();
        let counter = Counter::default();
        pool.submit_task(counter.tree(3)).unwrap();
        assert!(pool.join().is_clean());
        assert_eq!(counter.count(), 15);
    });
}

/// A counter on which tasks wait.
#[derive(Clone, Default)]
struct Gate(Arc<(Mutex<usize>, Condvar)>);

impl Gate {
    fn pass(&self) {
        *self.0.0.lock().unwrap() += 1;
        self.0.1.notify_all();
    }

    /// Waits until `count` tasks have passed.
    fn wait(&self, count: usize) {
        let mut passed = self.0.0.lock().unwrap();
        while *passed < count {
            passed = self.0.1.wait(passed).unwrap();
        }
    }
}

/// The tasks wait for each other, so no worker may sleep while a task is queued.
#[test]
fn queued_tasks_wake_every_worker() {
    explore(|| {
        let pool = Pool::builder().workers(3).queue_capacity(3).build().unwrap();
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

/// The tasks wait for each other, and all are in the local queue of one worker.
#[test]
fn spawned_tasks_wake_every_worker() {
    explore(|| {
        let pool = Pool::builder().workers(3).queue_capacity(1).build().unwrap();
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

/// A context that was moved to another thread spawns while the pool drains.
#[test]
fn tasks_spawned_after_their_parent_ended_are_not_lost() {
    explore(|| {
        let pool = Pool::builder().workers(2).queue_capacity(2).build().unwrap();
        let (counter, accepted) = (Counter::default(), Counter::default());
        let spawner = Counter::clone(&counter);
        let counted = accepted.clone();
        pool.submit(move |context| {
            let context = context.clone();
            thread::spawn(move || {
                for _ in 0..2 {
                    if context.spawn_task(spawner.task()).is_ok() {
                        counted.increment();
                    }
                }
            });
            Ok(())
        })
        .unwrap();
        let report = pool.join();
        assert_reports_each_task_once(&report);
        // Rejected after the end; what was accepted before has run.
        assert_eq!(counter.count() as u64 + 1, report.finished);
        assert!(accepted.count() <= 2);
    });
}

/// A task waits for the one that it spawned, which another worker has to run.
#[test]
fn spawned_task_runs_while_its_parent_waits() {
    explore(|| {
        let pool = Pool::builder().workers(2).queue_capacity(1).build().unwrap();
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
fn cancel_in_a_tree_of_tasks_reports_every_task() {
    explore(|| {
        let pool = Pool::builder().workers(2).queue_capacity(2).build().unwrap();
        let counter = Counter::default();
        for _ in 0..2 {
            pool.submit_task(counter.tree(2)).unwrap();
        }
        let canceller = thread::spawn({
            let pool = pool.clone();
            move || pool.cancel()
        });
        let report = pool.join();
        canceller.join().unwrap();
        assert_reports_each_task_once(&report);
        assert_eq!(report.finished, counter.count() as u64);
    });
}

#[test]
fn concurrent_close_cancel_and_join_report_every_task() {
    explore(|| {
        let pool = Pool::builder().workers(2).queue_capacity(2).build().unwrap();
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
            assert_reports_each_task_once(&joiner.join().unwrap());
        }
        assert!(pool.is_finished());
    });
}

#[test]
fn task_can_stop_its_own_pool() {
    explore(|| {
        let pool = Pool::builder().workers(2).queue_capacity(4).build().unwrap();
        for nth in 0..3 {
            let inner = pool.clone();
            let task = Task::new(move |_| {
                if nth == 0 {
                    inner.cancel()
                } else {
                    inner.close()
                }
                // Does not wait, because this task would have to end first.
                inner.join();
                Ok(())
            });
            if pool.submit_task(task).is_err() {
                break;
            }
        }
        assert_reports_each_task_once(&pool.join());
    });
}

#[test]
fn slow_reader_gets_every_result() {
    for result_order in [ResultOrder::AsCompleted, ResultOrder::AsSubmitted] {
        explore(move || {
            let (pool, mut results) = Pool::builder()
                .workers(2)
                .queue_capacity(1)
                .result_capacity(1)
                .build_with_results::<u64>(result_order)
                .unwrap();
            let submitter = thread::spawn(move || {
                for number in 0..5 {
                    pool.submit(move |_| Ok(number)).unwrap();
                }
                pool
            });
            let mut numbers: Vec<u64> = results.by_ref().take(5).map(|outcome| outcome.result.unwrap()).collect();
            let pool = submitter.join().unwrap();
            pool.close();
            assert!(results.next().is_none());
            if result_order == ResultOrder::AsCompleted {
                numbers.sort_unstable();
            }
            assert_eq!(numbers, [0, 1, 2, 3, 4]);
            assert!(pool.join().is_clean());
        });
    }
}

#[test]
fn cancel_delivers_results_that_wait_for_their_reader() {
    for result_order in [ResultOrder::AsCompleted, ResultOrder::AsSubmitted] {
        explore(move || {
            let (pool, results) = Pool::builder()
                .workers(2)
                .queue_capacity(2)
                .result_capacity(1)
                .build_with_results::<u64>(result_order)
                .unwrap();
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
            assert_reports_each_task_once(&report);
            assert_eq!(report.finished, seen.len() as u64, "a result was dropped");
        });
    }
}

#[test]
fn cancel_does_not_wait_for_the_reader() {
    explore(|| {
        let builder = Pool::builder().workers(2).queue_capacity(3).result_capacity(1);
        let (pool, results) = builder.build_with_results::<()>(ResultOrder::AsCompleted).unwrap();
        for _ in 0..3 {
            pool.submit(|_| Ok(())).unwrap();
        }
        pool.cancel();
        let report = pool.join();
        assert_reports_each_task_once(&report);
        assert_eq!(report.finished, results.count() as u64, "a result was dropped");
    });
}

/// The first result is late, so the others wait for it until submitters have to wait; then all continue.
#[test]
fn submit_order_admits_submitters_as_results_are_read() {
    explore(|| {
        let builder = Pool::builder().workers(2).queue_capacity(1).result_capacity(1);
        let (pool, results) = builder.build_with_results(ResultOrder::AsSubmitted).unwrap();
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
fn dropped_reader_does_not_block_the_pool() {
    explore(|| {
        let (pool, mut results) = Pool::builder()
            .workers(2)
            .queue_capacity(1)
            .result_capacity(1)
            .build_with_results(ResultOrder::AsSubmitted)
            .unwrap();
        let reader = thread::spawn(move || drop(results.next()));
        for number in 0..4 {
            pool.submit(move |_| Ok(number)).unwrap();
        }
        assert!(pool.join().is_clean());
        reader.join().unwrap();
    });
}

/// Submits two tasks whose first attempts fail.
fn submit_two_that_are_retried(pool: &Pool) {
    for _ in 0..2 {
        let policy = Retry::linear(2, SEC).without_jitter();
        let body = |context: &Context| match context.attempt() {
            1 => Err(TaskError::transient("first")),
            _ => Ok(()),
        };
        pool.submit_task(Task::retrying(policy, body)).unwrap();
    }
}

#[test]
fn retries_run_or_are_cancelled() {
    for cancel in [false, true] {
        explore(move || {
            let clock = ManualClock::new();
            let pool = Pool::builder().workers(1).queue_capacity(2).clock(&clock).build().unwrap();
            submit_two_that_are_retried(&pool);
            let driver = drive(&pool, &clock);
            if cancel {
                pool.cancel();
            }
            let report = pool.join();
            driver.join().unwrap();
            assert_reports_each_task_once(&report);
            assert!(cancel || (report.finished == 2 && report.stats.retried == 2), "{report:?}");
        });
    }
}

#[test]
fn stalled_worker_is_replaced_and_its_task_has_one_outcome() {
    explore(|| {
        let clock = ManualClock::new();
        let builder = Pool::builder().workers(1).queue_capacity(4).stall_timeout(SEC).clock(&clock);
        let (pool, results) = builder.build_with_results::<u8>(ResultOrder::AsCompleted).unwrap();
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
        assert_reports_each_task_once(&report);
        assert_eq!(report.failed, report.stats.stalled);
        assert!(report.stats.late_discarded <= report.stats.stalled);
    });
}

#[test]
fn task_is_settled_once_when_timeout_and_end_race() {
    explore(|| {
        let clock = ManualClock::new();
        let pool = Pool::builder().workers(1).timeout(SEC).clock(&clock).build().unwrap();
        for _ in 0..2 {
            let body = |context: &Context| if context.is_cancelled() { Err(TaskError::cancelled()) } else { Ok(()) };
            pool.submit(body).unwrap();
        }
        let driver = thread::spawn({
            let clock = clock.clone();
            move || clock.advance(SEC)
        });
        let report = pool.join();
        driver.join().unwrap();
        assert_reports_each_task_once(&report);
        assert!(report.failed <= report.stats.timed_out);
    });
}

#[test]
fn shutdown_abandons_only_running_tasks() {
    explore(|| {
        let clock = ManualClock::new();
        let pool = Pool::builder().workers(2).queue_capacity(4).clock(&clock).build().unwrap();
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
        assert_reports_each_task_once(&report);
        assert!(report.finished <= 1);
        gate.pass();
        driver.join().unwrap();
        assert_reports_each_task_once(&pool.join());
    });
}

#[test]
fn ordered_queues_run_every_task() {
    for order in [QueueOrder::Priority, QueueOrder::Cost] {
        explore(move || {
            let pool = Pool::builder().workers(2).queue_capacity(2).order(order).build().unwrap();
            let counter = Counter::default();
            for nth in 0..4u8 {
                pool.submit_task(counter.tree(1).priority(Priority(nth)).cost(nth.into())).unwrap();
            }
            assert!(pool.join().is_clean());
            assert_eq!(counter.count(), 12);
        });
    }
}

#[test]
fn half_open_breaker_permits_one_probe() {
    explore(|| {
        let clock = ManualClock::new();
        let breaker = Breaker::new(1, SEC).clock(&clock);
        breaker.acquire().unwrap().failure();
        clock.advance(SEC);
        let callers: Vec<_> = (0..3)
            .map(|_| {
                let breaker = breaker.clone();
                thread::spawn(move || breaker.acquire().ok())
            })
            .collect();
        let permits: Vec<_> = callers.into_iter().filter_map(|caller| caller.join().unwrap()).collect();
        assert_eq!(permits.len(), 1);
    });
}

#[test]
fn dropping_the_last_handle_closes_the_pool() {
    explore(|| {
        let builder = Pool::builder().workers(2).queue_capacity(2);
        let (pool, results) = builder.build_with_results(ResultOrder::AsCompleted).unwrap();
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
fn submit_timeout_passes_its_room_on() {
    explore(|| {
        let clock = ManualClock::new();
        let pool = Pool::builder().workers(1).queue_capacity(1).clock(&clock).build().unwrap();
        let counter = Counter::default();
        let submitters: Vec<_> = (0..3)
            .map(|_| {
                let (pool, counter) = (pool.clone(), counter.clone());
                thread::spawn(move || match pool.submit_timeout(counter.task(), SEC) {
                    Ok(_) => 1,
                    Err(error) => {
                        assert_eq!(error.kind, SubmitErrorKind::TimedOut);
                        0
                    }
                })
            })
            .collect();
        let driver = drive(&pool, &clock);
        pool.submit_task(counter.task()).unwrap();
        let accepted: usize = submitters.into_iter().map(|submitter| submitter.join().unwrap()).sum();
        assert!(pool.join().is_clean());
        driver.join().unwrap();
        assert_eq!(counter.count(), accepted + 1);
    });
}

/// The parent waits for its child, and so does another task: the third worker has to run it, though it may have been
/// woken for the other task.
#[test]
fn sleeping_worker_runs_spawned_task() {
    explore(|| {
        let pool = Pool::builder().workers(3).queue_capacity(4).build().unwrap();
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

/// A task is abandoned while it spawns: each child is either rejected or settled.
#[test]
fn tasks_spawned_by_stalling_task_are_not_lost() {
    explore(|| {
        let clock = ManualClock::new();
        let pool = Pool::builder().workers(1).queue_capacity(4).stall_timeout(SEC).clock(&clock).build().unwrap();
        let started = Gate::default();
        let begun = started.clone();
        pool.submit(move |context| {
            begun.pass();
            for _ in 0..4 {
                // Rejected once the task is abandoned.
                let _ = context.spawn(|_| Ok(()));
            }
            Ok(())
        })
        .unwrap();
        started.wait(1);
        (0..6).for_each(|_| clock.advance(SEC / 4));
        assert_reports_each_task_once(&pool.join());
    });
}

// ---- workers that are async tasks ----

#[test]
fn async_workers_run_every_task() {
    explore(|| {
        block_on(async {
            let pool = Pool::builder().workers(2).queue_capacity(1).build_async().unwrap();
            let counter = Counter::default();
            let submitters: Vec<_> = (0..2)
                .map(|_| {
                    let (pool, counter) = (pool.clone(), counter.clone());
                    shuttle::future::spawn(async move {
                        for _ in 0..2 {
                            let counter = counter.clone();
                            let body = |context: AsyncContext| async move {
                                let inner = counter.clone();
                                context.spawn(|_| async move { Ok(inner.increment()) })?;
                                yield_now().await;
                                Ok(counter.increment())
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
            assert_eq!(counter.count(), 8);
        });
    });
}

#[test]
fn dropped_submit_frees_its_place() {
    explore(|| {
        block_on(async {
            let pool: AsyncPool = Pool::builder().workers(1).queue_capacity(1).build_async().unwrap();
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
fn cancel_wakes_async_tasks() {
    explore(|| {
        block_on(async {
            let pool: AsyncPool = Pool::builder().workers(2).queue_capacity(2).build_async().unwrap();
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
            assert_reports_each_task_once(&report);
            assert_eq!(report.finished, 0);
        });
    });
}

/// No snapshot shows more tasks ended, running or waiting than were submitted.
#[test]
fn snapshots_are_consistent_while_tasks_run() {
    explore(|| {
        let (pool, counter) = (Pool::builder().workers(2).queue_capacity(2).build().unwrap(), Counter::default());
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
            // Rejected only if the pool was cancelled.
            let _ = pool.submit_task(counter.tree(1));
        }
        let inside = pool.clone();
        let reporter = Task::new(move |_| {
            let report = inside.shutdown(SEC);
            let left = report.never_started.len() + report.abandoned.len();
            let sum = report.finished + report.failed + left as u64 + report.waiting;
            assert_eq!(sum, report.stats.submitted, "{report:?}");
            Ok(())
        });
        let _ = pool.submit_task(reporter);
        let report = pool.join();
        assert_reports_each_task_once(&report);
        assert_eq!(report.failed, 0, "{report:?}");
        watcher.join().unwrap();
    });
}
