//! Bounded worker pools: backpressure, retries, timeouts, stall detection, and a report on every task.
//!
//! A [`Pool`] runs [`Task`]s, usually closures, on a fixed number of workers. Workers are threads, for disk and CPU;
//! with the feature `tokio` they can also be tokio tasks, for the network. Both kinds behave the same.
//!
//! ```
//! use gristmill_pool::Pool;
//!
//! let pool = Pool::builder().workers(4).queue_capacity(100).build()?;
//! for path in ["Cargo.toml", "no/such/file"] {
//!     pool.submit(move |_context| {
//!         let bytes = std::fs::read(path)?; // an error fails this task, not the pool
//!         println!("{path}: {} bytes", bytes.len());
//!         Ok(())
//!     })?;
//! }
//! let report = pool.join(); // waits for all tasks
//! assert_eq!((report.finished, report.failed), (1, 1));
//! println!("{}", report.failures[0]); // task #1: No such file or directory (os error 2)
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | Type | Purpose |
//! |---|---|
//! | [`PoolBuilder`] | Settings: workers, capacity, order, timeouts, breaker |
//! | [`Pool`] | Handle: submit, close, cancel, join, shut down |
//! | [`Task`] | A closure with kind, label, priority, cost, timeout and retry policy |
//! | [`CancelToken`] | Asks work to stop: polled, awaited, or with a callback |
//! | [`Context`] | Passed to a running task: cancellation, heartbeat, attempt, spawning |
//! | [`Results`], [`Outcome`] | The results of tasks, from an iterator or passed to a callback |
//! | [`Report`], [`PoolStats`] | The outcome of every task at the end; counters at any time |
//!
//! # Submitting tasks
//! The queue has a capacity. When it is full, [`submit`](Pool::submit) waits: this backpressure keeps memory bounded
//! however many tasks there are. [`try_submit`](Pool::try_submit) fails with `Full` instead, and
//! [`submit_timeout`](Pool::submit_timeout) waits for a limited time. A rejected task can be submitted again.
//!
//! ```
//! use gristmill_pool::{Pool, Task, error::SubmitErrorKind};
//! use std::sync::mpsc;
//!
//! let pool = Pool::builder().workers(1).queue_capacity(1).build()?;
//! let (started, has_started) = mpsc::channel();
//! let (release, released) = mpsc::channel::<()>();
//! pool.submit(move |_| {
//!     started.send(())?;
//!     released.recv()?; // occupies the only worker
//!     Ok(())
//! })?;
//! has_started.recv()?;
//! pool.submit(|_| Ok(()))?; // fills the queue
//!
//! let rejected = pool.try_submit(Task::new(|_| Ok(()))).unwrap_err();
//! assert_eq!(rejected.kind, SubmitErrorKind::Full);
//! release.send(())?;
//! pool.submit_task(rejected.into_task())?; // waits for room
//! assert_eq!(pool.join().finished, 3);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Reading results
//! [`PoolBuilder::build_with_results`] also returns an iterator over the results, in the order in which tasks complete
//! or in the order in which they were submitted. Every task that was started has one [`Outcome`]. When the reader is
//! slow, workers wait before they start the next task, so no result is dropped and results do not pile up.
//!
//! ```
//! use gristmill_pool::{Pool, ResultOrder};
//!
//! let (pool, results) = Pool::builder().workers(2).build_with_results(ResultOrder::AsSubmitted)?;
//! for word in ["grist", "for", "the", "mill"] {
//!     pool.submit(move |_| Ok(word.len()))?;
//! }
//! pool.close();
//! let lengths: Vec<usize> = results.map(|outcome| outcome.result.unwrap()).collect();
//! assert_eq!(lengths, [5, 3, 3, 4]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! With [`PoolBuilder::build_with_callback`] the worker that settled a task passes its outcome to a callback instead:
//! no thread has to read, and value or error, attempts and duration are already decided.
//!
//! # Spawning from inside a task
//! A task can add tasks, as a folder adds its subfolders. [`Context::spawn`] never waits, whatever the queue's
//! capacity, so one worker is enough for any tree. Spawned tasks run newest first and before the queue: depth first,
//! which needs memory for a tree's depth, not for its size.
//!
//! ```
//! use gristmill_pool::{Context, Pool, TaskResult};
//!
//! fn walk(context: &Context, depth: u32) -> TaskResult<()> {
//!     for _ in 0..if depth > 0 { 3 } else { 0 } {
//!         context.spawn(move |context| walk(context, depth - 1))?;
//!     }
//!     Ok(())
//! }
//!
//! let pool = Pool::builder().workers(1).queue_capacity(1).build()?;
//! pool.submit(|context| walk(context, 6))?;
//! assert_eq!(pool.join().finished, 1 + 3 + 9 + 27 + 81 + 243 + 729);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Retrying
//! An error is [`Transient`](ErrorClass::Transient), [`Permanent`](ErrorClass::Permanent) or
//! [`Partial`](ErrorClass::Partial). Transient and partial errors are retried if the task has a [`Retry`] policy. A
//! task that waits for its next attempt occupies no worker. `?` makes any error permanent.
//!
//! ```
//! use gristmill_pool::{Pool, Retry, Task, TaskError};
//! use std::time::Duration;
//!
//! let pool = Pool::builder().workers(1).build()?;
//! let policy = Retry::exponential(5, Duration::from_millis(1)).max_delay(Duration::from_secs(30));
//! pool.submit_task(Task::retrying(policy, |context| match context.attempt() {
//!     1 => Err(TaskError::transient("the server is busy").with_retry_after(Duration::from_millis(2))),
//!     2 => Err(TaskError::partial("upload", "connection lost")), // the steps before "upload" are done
//!     _ => {
//!         assert_eq!(context.failed_step(), Some("upload")); // resume here
//!         Ok(())
//!     }
//! }))?;
//! let report = pool.join();
//! assert!(report.is_clean());
//! assert_eq!(report.stats.retried, 2);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Circuit breaker
//! A [`Breaker`] stops calls to a failing service and tests it again with single probes. It guards any call, or every
//! task of a pool.
//!
//! ```
//! use gristmill_pool::{Breaker, Pool, TaskError};
//! use std::time::Duration;
//!
//! let breaker = Breaker::new(3, Duration::from_secs(30));
//! let pool = Pool::builder().workers(1).breaker(breaker).build()?;
//! for _ in 0..10 {
//!     pool.submit(|_| Err(TaskError::transient("no route to host")))?;
//! }
//! let report = pool.join();
//! let breaker = report.stats.breaker.as_ref().unwrap();
//! assert_eq!((breaker.opened, breaker.rejected), (1, 7)); // seven tasks did not run
//! println!("{}", report.failures[9]); // task #9: not run: the circuit breaker is open
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Priority and cost
//! [`QueueOrder`] decides which waiting task starts next: the oldest, the one with the highest [`Priority`], or the one
//! with the smallest [`cost`](Task::cost). No task starves: one start in 16 goes to the task that has waited longest.
//!
//! ```
//! use gristmill_pool::{Pool, Priority, QueueOrder, ResultOrder, Task};
//! use std::sync::mpsc;
//!
//! let builder = Pool::builder().workers(1).order(QueueOrder::Priority);
//! let (pool, results) = builder.build_with_results(ResultOrder::AsCompleted)?;
//! let (release, released) = mpsc::channel::<()>();
//! pool.submit(move |_| {
//!     let _ = released.recv();
//!     Ok("was running already")
//! })?;
//! pool.submit_task(Task::new(|_| Ok("can wait")).priority(Priority::LOW))?;
//! pool.submit_task(Task::new(|_| Ok("urgent")).priority(Priority::HIGH))?;
//! drop(release);
//! pool.close();
//! assert_eq!(results.last().unwrap().result.unwrap(), "can wait");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![cfg_attr(
    feature = "tokio",
    doc = r##"
# Async
[`PoolBuilder::build_async`] makes a pool of tokio tasks on the current runtime. Calls that block above are awaited
here, and a task that exceeds its timeout is dropped at the point where it waits.

```
use gristmill_pool::{Pool, ResultOrder};
use std::time::Duration;

# tokio::runtime::Builder::new_multi_thread().worker_threads(2).build()?.block_on(async {
let builder = Pool::builder().workers_per_core(4, 200).timeout(Duration::from_secs(30));
let (pool, mut results) = builder.build_async_with_results(ResultOrder::AsCompleted)?;
for n in 0..3u32 {
    pool.submit(move |context| async move {
        // A real task would await the network, and `context.cancelled()` beside it.
        assert!(!context.is_cancelled());
        Ok(n)
    })
    .await?;
}
pool.close();
let mut sum = 0;
while let Some(outcome) = results.next_async().await {
    sum += outcome.result?;
}
assert_eq!(sum, 3);
assert!(pool.join().await.is_clean());
# Ok::<(), Box<dyn std::error::Error>>(())
# })?;
# Ok::<(), Box<dyn std::error::Error>>(())
```
"##
)]
//! # Stopping work
//! A [`CancelToken`] asks work to stop. [`Context::cancel_token`] is the token of a run: it is cancelled with the pool,
//! at the timeout and after the run. A task polls it, sleeps or blocks on it, awaits it, or registers a callback that
//! ends another wait. A producer waits for room with [`submit_until`](Pool::submit_until) and ends with its own token.
//!
//! ```
//! use gristmill_pool::{CancelToken, Pool, Task};
//! use std::time::Duration;
//!
//! let pool = Pool::builder().workers(1).build()?;
//! let stop = CancelToken::new();
//! let inside = stop.clone();
//! let task = Task::new(move |context| {
//!     inside.cancel(); // ends the loop below
//!     context.cancel_token().wait_timeout(Duration::from_millis(1)); // a sleep that ends with the pool
//!     Ok(())
//! });
//! pool.submit_until(task, &stop)?;
//! while pool.submit_until(Task::new(|_| Ok(())), &stop).is_ok() {}
//! assert!(pool.join().is_clean()); // what was submitted before has run
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Waiting until idle
//! [`wait_idle`](Pool::wait_idle) waits until no task is queued, waits for a retry or runs, and every callback has
//! returned. The pool stays open, so one pool serves any number of rounds;
//! [`wait_idle_until`](Pool::wait_idle_until) waits for a limited time, or until a token is cancelled.
//!
//! # Ending a pool
//! [`close`](Pool::close) rejects new tasks and finishes the others. [`cancel`](Pool::cancel) starts no more tasks and
//! cancels the running ones. [`join`](Pool::join) closes the pool, waits and reports; [`shutdown`](Pool::shutdown) does
//! so within a deadline. All can be called from any thread, at any time, any number of times.
//!
//! ```
//! use gristmill_pool::{Pool, TaskError};
//! use std::{sync::mpsc, time::Duration};
//!
//! let pool = Pool::builder().workers(1).queue_capacity(8).build()?;
//! let (started, has_started) = mpsc::channel();
//! for _ in 0..3 {
//!     let started = started.clone();
//!     pool.submit(move |context| {
//!         started.send(())?;
//!         while !context.is_cancelled() {
//!             std::thread::yield_now(); // some work, in small pieces
//!         }
//!         Err(TaskError::cancelled())
//!     })?;
//! }
//! has_started.recv()?;
//! let report = pool.shutdown(Duration::from_millis(50));
//! println!("{report}"); // 0 finished, 1 failed, 2 never started
//! assert_eq!(report.never_started.len(), 2);
//! // The first task was running. It was cancelled or, if it did not stop in time, abandoned.
//! assert_eq!(report.failed as usize + report.abandoned.len(), 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # When a task misbehaves
//! - **It panics**: the panic becomes the task's error, with message and backtrace. Its worker continues.
//! - **It takes too long**: after its [`timeout`](PoolBuilder::timeout) its context is cancelled.
//! - **It hangs**: after the [`stall_timeout`](PoolBuilder::stall_timeout) its worker is replaced by a new one.
//!
//! Tests that need time to pass use a [`ManualClock`](clock::ManualClock).

pub mod breaker;
mod builder;
mod cancel;
pub mod clock;
mod context;
mod core; // shared state: submit, dispatch, settle, shutdown, snapshot
pub mod error;
mod executor; // runs a worker's tasks: start, classify, settle, retry
mod outcome; // where outcomes go: nowhere, to a queue or to a callback
mod panics;
mod pool;
pub mod prometheus;
mod queue;
mod report;
mod results;
mod retry;
mod stall;
pub mod stats;
mod sync;
pub mod task;
mod thread_priority;
#[cfg(feature = "tokio")]
mod tokio_worker;
mod waiting; // the waits of callers: for room, for an idle pool, for its end
pub mod worker;
mod worker_state; // state of one worker: local queue, current run, cancellation

#[doc(inline)]
pub use breaker::Breaker;
pub use builder::PoolBuilder;
pub use cancel::{CancelCallback, CancelToken, Cancelled};
pub use context::Context;
#[doc(inline)]
pub use error::{Dependency, ErrorClass, TaskError, TaskResult};
pub use outcome::Outcome;
pub use pool::Pool;
pub use queue::QueueOrder;
pub use report::{Failure, Report};
pub use results::{ResultOrder, Results};
pub use retry::Retry;
#[doc(inline)]
pub use stats::PoolStats;
#[doc(inline)]
pub use task::{Priority, Task};
#[cfg(feature = "tokio")]
pub use tokio_worker::{AsyncContext, AsyncPool};

#[cfg(feature = "tokio")]
#[doc(hidden)]
pub use worker::TokioTasks;
