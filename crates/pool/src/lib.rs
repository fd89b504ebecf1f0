//! Bounded worker pools.

mod breaker;
mod builder;
mod clock;
mod context;
mod core;
mod desk;
mod error;
mod panics;
mod pool;
mod queue;
mod report;
mod results;
mod retry;
mod slot;
mod stats;
mod sync;
mod task;
#[cfg(feature = "tokio")]
mod tasks;
mod watch;
mod worker;

pub use breaker::{Breaker, BreakerError, BreakerState, BreakerStats, Open, Permit};
pub use builder::{BuildError, Builder};
pub use clock::{Clock, ManualClock};
pub use context::{Cancelled, Context};
pub use error::{Cause, Class, TaskError, TaskResult};
pub use pool::Pool;
pub use queue::Order;
pub use report::{Failure, Report};
pub use results::{Delivery, Outcome, Results};
pub use retry::Retry;
pub use stats::{KindStats, Stats};
pub use task::{Priority, Refusal, SubmitError, Task, TaskId, TaskRef};
#[cfg(feature = "tokio")]
pub use tasks::{AsyncContext, AsyncPool, Tasks};
pub use worker::{Threads, Worker};
