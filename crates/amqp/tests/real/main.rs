//! Consumers, publishers and connections against a real RabbitMQ, started here.

mod bed;
mod blocked;
mod connections;
mod dead;
mod order;
mod publishing;
mod retries;
mod review;
mod shutdown;
mod streams;
mod work;
