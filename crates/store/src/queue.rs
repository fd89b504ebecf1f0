//! The queue of durable tasks: tasks, leases, checkpoints, failed attempts, dead letters and the workers that run tasks.

pub mod checkpoints;
pub mod dead_letters;
pub mod failures;
pub mod lease;
pub mod start_log;
pub mod tasks;
pub mod workers;
