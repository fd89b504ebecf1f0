//! Encodes and decodes AMQP 0-9-1. Pure: no sockets, no time, no tasks.

pub(crate) mod frame;
pub(crate) mod method;
pub(crate) mod properties;
pub(crate) mod table;
#[cfg(test)]
mod tests;
