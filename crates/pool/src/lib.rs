//! Bounded worker pools: much work on few workers, and none of it lost.
//!
//! A [`Pool`] runs [`Task`]s (mostly: closures) on a fixed number of workers. A task sees its pool through a
//! [`Context`]. When it is over, a [`Report`] says what became of every task; at any time, [`Stats`] say how it
//! goes. These five are most of what there is.
//!
//! Workers are threads, for disk and CPU; with the feature `tokio` they can also be tokio tasks, for the
//! network. The semantics are the same.
//!
//! # Submit, bounded
//! The queue has a limit. When it is reached, [`submit`](Pool::submit) waits: that is backpressure, and it is why
//! memory does not grow with the amount of work. [`try_submit`](Pool::try_submit) says `Full` instead, and
//! [`submit_timeout`](Pool::submit_timeout) waits only so long. Both hand the task back.
//!
//! ```
//! use gristmill_pool::{Pool, Task, error::Refusal};
//! use std::sync::mpsc;
//!
//! let pool = Pool::builder().workers(1).queue(1).build()?;
//! let (started, has_started) = mpsc::channel();
//! let (release, released) = mpsc::channel::<()>();
//! pool.submit(move |_| {
//!     started.send(())?;
//!     released.recv()?; // keeps the one worker busy
//!     Ok(())
//! })?;
//! has_started.recv()?;
//! pool.submit(|_| Ok(()))?; // fills the queue
//!
//! let refused = pool.try_submit(Task::new(|_| Ok(()))).unwrap_err();
//! assert_eq!(refused.refusal, Refusal::Full);
//! release.send(())?;
//! pool.submit_task(refused.into_task())?; // waits for room
//! assert_eq!(pool.join().finished, 3);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Results
//! [`Builder::build_with_results`] gives an iterator over what tasks make, as they complete or in the order
//! they were submitted. Every task that was started has one [`Outcome`]. A reader that is slow makes workers
//! wait, before they start the next task, so nothing is dropped and nothing piles up.
//!
//! ```
//! use gristmill_pool::{Delivery, Pool};
//!
//! let (pool, results) = Pool::builder().workers(2).build_with_results(Delivery::AsSubmitted)?;
//! for word in ["grist", "for", "the", "mill"] {
//!     pool.submit(move |_| Ok(word.len()))?;
//! }
//! pool.close();
//! let lengths: Vec<usize> = results.map(|outcome| outcome.result.unwrap()).collect();
//! assert_eq!(lengths, [5, 3, 3, 4]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Spawn from inside
//! A task can add tasks: a folder its subfolders. [`Context::spawn`] never waits, whatever the queue's limit, so
//! one worker is enough for any tree. Spawned tasks run newest first and before the queue: deep before wide,
//! which takes memory for a tree's depth, not for its size.
//!
//! ```
//! use gristmill_pool::{Context, Pool, TaskResult};
//!
//! fn walk(ctx: &Context, depth: u32) -> TaskResult<()> {
//!     for _ in 0..if depth > 0 { 3 } else { 0 } {
//!         ctx.spawn(move |ctx| walk(ctx, depth - 1))?;
//!     }
//!     Ok(())
//! }
//!
//! let pool = Pool::builder().workers(1).queue(1).build()?;
//! pool.submit(|ctx| walk(ctx, 6))?;
//! assert_eq!(pool.join().finished, 1 + 3 + 9 + 27 + 81 + 243 + 729);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Retry
//! An error is [`Transient`](Class::Transient), [`Permanent`](Class::Permanent) or [`Partial`](Class::Partial);
//! only the first and the last are tried again, as a [`Retry`] policy says. A task that waits for its next
//! attempt holds no worker. `?` on any error makes it permanent.
//!
//! ```
//! use gristmill_pool::{Pool, Retry, Task, TaskError};
//! use std::time::Duration;
//!
//! let pool = Pool::builder().workers(1).build()?;
//! let policy = Retry::exponential(5, Duration::from_millis(1)).cap(Duration::from_secs(30));
//! pool.submit_task(Task::retrying(policy, |ctx| match ctx.attempt() {
//!     1 => Err(TaskError::transient("the server is busy").retry_after(Duration::from_millis(2))),
//!     // Says which step failed; the next attempt can go on there.
//!     2 => Err(TaskError::partial("upload", "connection lost")),
//!     _ => {
//!         assert_eq!(ctx.failed_step(), Some("upload"));
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
//! A [`Breaker`] stops calling what keeps failing and asks again with one probe. Alone it guards any call; in
//! front of a pool it guards every task.
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
//! assert_eq!((breaker.opened, breaker.rejected), (1, 7)); // seven did not even try
//! println!("{}", report.failures[9]); // task #9: not run: the circuit breaker is open
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Priority and cost
//! [`Order`] says which waiting task is next: the first, the one with the highest [`Priority`], or the one with the
//! smallest [`cost`](Task::cost). Nothing starves: one start in 16 goes to whoever has waited longest.
//!
//! ```
//! use gristmill_pool::{Delivery, Order, Pool, Priority, Task};
//! use std::sync::mpsc;
//!
//! let builder = Pool::builder().workers(1).order(Order::Priority);
//! let (pool, results) = builder.build_with_results(Delivery::AsCompleted)?;
//! let (release, released) = mpsc::channel::<()>();
//! pool.submit(move |_| {
//!     let _ = released.recv();
//!     Ok("was running already")
//! })?;
//! pool.submit_task(Task::new(|_| Ok("can wait")).priority(Priority::LOW))?;
//! pool.submit_task(Task::new(|_| Ok("urgent")).priority(Priority::HIGH))?;
//! drop(release);
//! pool.close();
//! let last = results.last().unwrap().result.unwrap();
//! assert_eq!(last, "can wait");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![cfg_attr(
    feature = "tokio",
    doc = r##"
# Async
[`Builder::build_async`] makes a pool of tokio tasks on the current runtime. What blocks above is awaited
here; a task that runs out of time is dropped where it waits.

```
use gristmill_pool::{Delivery, Pool};
use std::time::Duration;

# tokio::runtime::Builder::new_multi_thread().worker_threads(2).build()?.block_on(async {
let builder = Pool::builder().cores_times(4, 200).timeout(Duration::from_secs(30));
let (pool, mut results) = builder.build_async_with_results(Delivery::AsCompleted)?;
for n in 0..3u32 {
    pool.submit(move |ctx| async move {
        // A real task would await the network, or `ctx.cancelled()` beside it.
        assert!(!ctx.is_cancelled());
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
//! # Stop
//! [`close`](Pool::close) takes nothing new and lets the rest finish; [`cancel`](Pool::cancel) stops now;
//! [`join`](Pool::join) closes, waits and reports; [`shutdown`](Pool::shutdown) does it within a deadline. All can
//! be called from anywhere, at any time, as often as one likes.
//!
//! ```
//! use gristmill_pool::{Pool, TaskError};
//! use std::{sync::mpsc, time::Duration};
//!
//! let pool = Pool::builder().workers(1).queue(8).build()?;
//! let (started, has_started) = mpsc::channel();
//! for _ in 0..3 {
//!     let started = started.clone();
//!     pool.submit(move |ctx| {
//!         started.send(())?;
//!         while !ctx.is_cancelled() {
//!             std::thread::yield_now(); // some work, in small pieces
//!         }
//!         Err(TaskError::cancelled())
//!     })?;
//! }
//! has_started.recv()?;
//! let report = pool.shutdown(Duration::from_millis(50));
//! println!("{report}"); // 0 finished, 1 failed, 2 never started
//! assert_eq!(report.never_started.len(), 2);
//! // The first was running. It stopped when it was told to, and if not in time, it is named.
//! assert_eq!(report.failed as usize + report.unstopped.len(), 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # When things go wrong
//! - **A panic** costs its task: it is that task's error, with message and backtrace, and its worker lives on.
//! - **A task that takes too long** has a [`timeout`](Builder::timeout), after which its context tells it to stop.
//! - **A worker that hangs** is replaced by the [stall watch](Builder::stall_after): the number of workers never
//!   shrinks.
//! - **A test that needs time to pass** hands the pool a [`ManualClock`](clock::ManualClock).

pub mod breaker;
mod builder;
pub mod clock;
mod context;
mod core;
pub mod error;
mod executor;
mod panics;
mod pool;
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
pub mod worker;
mod worker_state;

#[doc(inline)]
pub use breaker::Breaker;
pub use builder::PoolBuilder;
pub use context::Context;
#[doc(inline)]
pub use error::{Dependency, ErrorClass, TaskError, TaskResult};
pub use pool::Pool;
pub use queue::QueueOrder;
pub use report::{Failure, Report};
pub use results::{Outcome, ResultOrder, Results};
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
