//! What consumers of messages remember: ids of processed messages, unfinished runs, and positions in streams.

pub mod message_runs;
pub mod positions;
pub mod processed;
