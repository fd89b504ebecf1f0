//! A real RabbitMQ broker for tests, benchmarks and crash runs, which can be killed, stopped, paused and restarted, and
//! a proxy that breaks the connections to it.
//!
//! Owns where RabbitMQ comes from ([`Installation`]) and every process of it ([`Broker`]). Each broker has its own
//! folder, ports, user and single-node cluster, so any number of them run at the same time, also beside an installed
//! one. None of it outlives the process that started it, even if that is killed.
//!
//! For development only: no crate under `crates/` may depend on it except for its tests. It speaks only the first eight
//! bytes of AMQP.

mod broker;
mod command;
mod error;
mod fetch;
mod files;
mod handshake;
mod installation;
mod ports;
mod process;
mod proxy;
mod reaper;
mod settings;
#[cfg(feature = "tls")]
mod tls;
mod tools;

pub use broker::Broker;
pub use error::Error;
pub use handshake::speaks_amqp;
pub use installation::Installation;
pub use proxy::Proxy;
pub use settings::Settings;
pub use tools::tools;
