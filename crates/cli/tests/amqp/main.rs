//! The commands that speak to RabbitMQ, as processes, on a real one.
#![cfg(unix)]

mod batches;
mod bed;
#[path = "../common/mod.rs"]
mod common;
mod drain;
mod enqueue;
mod exec;
mod http;
mod into;
mod letters;
mod management;
mod moves;
mod publish;
mod questions;
mod queues;
mod settings;
mod sinks;
mod stop;
mod streams;
mod ways;
mod wrong;
