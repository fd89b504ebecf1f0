//! The tables that the Python control plane and Gristmill share: jobs, thumbnails, clean-ups, WAL checkpoints and I/O
//! rate limits.

pub mod cleanup;
pub mod jobs;
pub mod rate_limits;
pub mod thumbnails;
pub mod wal;
