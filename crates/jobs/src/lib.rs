//! Durable work on bounded pools.
