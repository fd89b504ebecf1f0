//! Tests of the commands that connect to RabbitMQ, run as processes with a real broker.
#![cfg(unix)]

mod batches;
#[path = "../common/mod.rs"]
mod common;
mod consumer_process;
mod delivery;
mod drain;
mod enqueue;
mod errors;
mod exec;
mod fixture;
mod http;
mod into;
mod management;
mod pauses;
mod proxy;
mod publish;
mod queue_messages;
mod queues;
mod settings;
mod shutdown;
mod stored_dead_letters;
mod streams;
