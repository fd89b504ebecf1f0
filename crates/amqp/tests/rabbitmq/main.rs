//! Consumers, publishers and connections against a real RabbitMQ, which this test starts.

mod attempt_counts;
mod batches;
mod blocked;
mod connections;
mod dead_letter_targets;
mod dead_letters;
mod fixture;
mod handling;
mod hostile_messages;
mod order;
mod pauses;
mod permissions;
mod prefetch;
mod protocol_violations;
mod publishing;
mod raw_amqp;
mod recovery;
mod retries;
mod shutdown;
mod starts;
mod streams;
mod transfer;
