//! Consumes and publishes RabbitMQ messages: handlers run on worker pools, and finished messages are acknowledged.
//!
//! A [`Client`] declares exchanges, queues and bindings ([`Exchange`], [`Queue`], [`Binding`]), runs a [`Consumer`] for
//! each queue, and publishes through a [`Publisher`]. A message is acknowledged after its handler has succeeded. One
//! whose handler fails is retried later; one that cannot be handled becomes a dead letter. The client reconnects.
//!
//! ```no_run
//! use gristmill_amqp::{Binding, Client, Consumer, Exchange, Message, Queue};
//! use std::time::Duration;
//!
//! #[derive(serde::Deserialize)]
//! struct Order {
//!     id: u64,
//! }
//!
//! # async fn example() -> Result<(), gristmill_amqp::Error> {
//! let client = Client::builder("amqp://guest:guest@localhost")
//!     .exchange(Exchange::topic("shop"))
//!     .queue(Queue::quorum("orders"))
//!     .bind(Binding::new("orders", "shop", "order.*"))
//!     .consumer(Consumer::new("orders", "shipping").handle_json(|order: Order, _| async move {
//!         println!("shipping {}", order.id);
//!         Ok(())
//!     }))
//!     .start()
//!     .await?;
//! client.publisher().publish(Message::new("shop", "order.created", r#"{"id": 17}"#)).await?;
//! // Until the program stops:
//! client.shutdown(Duration::from_secs(30)).await;
//! # Ok(())
//! # }
//! ```

#[doc(hidden)]
pub mod __fuzz;
mod acks;
mod adaptive_prefetch;
mod browse;
mod client;
mod consumer;
mod dedup;
mod delivery;
mod dispatcher;
mod error;
mod fingerprint;
mod handler_pool;
mod json_form;
mod keyed_queue;
mod message;
mod net;
mod orphans;
mod permissions;
mod positions;
mod postponed;
mod publisher;
mod queue_kind;
mod reconnect;
mod republish;
mod sink_gate;
mod sizing;
mod starts;
pub mod stats;
pub mod store;
mod tls;
mod topology;
mod transfer;
mod uri;
mod wire;

pub use client::{Client, ClientBuilder};
pub use consumer::{Consumer, DEFAULT_RETRY, DEFAULT_RETRY_IN_PLACE, Offset, OrderBy};
pub use delivery::{Delivery, header};
pub use error::Error;
pub use gristmill_pool::{CancelToken, Retry, TaskError, TaskResult};
pub use message::Message;
pub use permissions::{MissingPermission, MissingPermissions, Permission};
pub use publisher::Publisher;
pub use republish::derived_queue_names;
#[doc(inline)]
pub use stats::ClientStats;
pub use topology::{Binding, Exchange, Queue};
pub use transfer::{Transfer, Transferred};
pub use uri::Endpoint;
pub use wire::{
    properties::Properties,
    table::{FieldValue, Headers},
};
