//! The commands that speak to RabbitMQ, as processes, on a real one.
#![cfg(unix)]

mod bed;
#[path = "../common/mod.rs"]
mod common;
mod enqueue;
mod exec;
mod http;
mod into;
mod publish;
mod queues;
mod settings;
mod stop;
mod ways;
mod wrong;
