//! Consumers, publishers and connections against a real RabbitMQ, started here.

mod bed;
mod blocked;
mod connections;
mod dead;
mod moving;
mod order;
mod pace;
mod pauses;
mod publishing;
mod retries;
mod review;
mod rights;
mod shutdown;
mod starts;
mod streams;
mod work;
