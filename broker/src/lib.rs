//! A real RabbitMQ for tests, benchmarks and crash runs: started, killed, stopped, paused and started again at
//! will, and a proxy that breaks the connections to it.
//!
//! Owns where RabbitMQ comes from ([`Kit`]) and every process it starts of it ([`Broker`]). A broker has a folder,
//! ports, a user and a cluster of one of its own, so that any number of them run beside each other and beside one
//! that is installed here. Nothing of it outlives the process that started it, however that ends.
//!
//! For development only: no crate under `crates/` may depend on it except for its tests. It speaks no AMQP beyond
//! the first eight bytes.

mod broker;
mod command;
mod error;
mod fetch;
mod files;
mod handshake;
mod installation;
mod node;
mod ports;
mod proxy;
mod settings;
#[cfg(feature = "tls")]
mod tls;
mod tools;
mod watcher;

pub use broker::Broker;
pub use error::Error;
pub use installation::Installation;
pub use proxy::Proxy;
pub use settings::Settings;
pub use tools::tools;
