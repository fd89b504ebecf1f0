//! Republishes messages of a consumer: to a retry queue, or to the dead letters.
//!
//! The copy is confirmed before the original is acknowledged, so a failure in between leaves two copies, never none.

use crate::{
    consumer::ConsumerConfig,
    delivery::{Delivery, header},
    error::Error,
    message::Message,
    postponed::Postponed,
    publisher::Publisher,
    reconnect::{BACKOFF, ManagedConnection},
    store::{DeadLetter, MessageStore},
    topology::{Queue, Topology},
    wire::{
        properties::Properties,
        table::{FieldValue, Headers},
    },
};
use gristmill_pool::CancelToken;
use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

#[derive(Clone)]
pub(crate) struct Republisher {
    pub(crate) config: Arc<ConsumerConfig>,
    /// Waits for confirmations without a timeout, also while the broker is blocked: a message that is sent
    /// again after a timeout would arrive once for each time that it was sent.
    pub(crate) publisher: Publisher,
    pub(crate) broker: ManagedConnection,
    pub(crate) store: Option<Arc<dyn MessageStore>>,
    /// The target exchange was missing. It is declared before the next publication, because publishing to a missing
    /// exchange closes the channel and everything in flight on it is sent twice.
    pub(crate) target_missing: Arc<AtomicBool>,
    /// Messages that are expected to return from a retry queue.
    pub(crate) postponed: Arc<Postponed>,
    /// Delays, in milliseconds, whose retry queues are known to exist.
    pub(crate) declared_retry_queues: Arc<tokio::sync::Mutex<HashSet<u64>>>,
}

/// How a message waits in a retry queue.
pub(crate) struct RetryRequest {
    pub(crate) why: String,
    pub(crate) delay: Duration,
    /// Number of failed attempts that the message returns with.
    pub(crate) failed: u32,
    /// When the sink began to fail for it, in milliseconds since 1970, if that is to count after it returns.
    pub(crate) sink_failed_since: Option<u64>,
    /// Whether the sink failed for it and worked for another message.
    pub(crate) failed_alone: bool,
}

/// Why a message became a dead letter: the value of the header `x-gristmill-reason`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reason {
    Permanent,
    Attempts,
    Starts,
    Unreadable,
}

impl Reason {
    fn as_str(self) -> &'static str {
        match self {
            Self::Permanent => "permanent",
            Self::Attempts => "attempts",
            Self::Starts => "starts",
            Self::Unreadable => "unreadable",
        }
    }
}

/// Wait between declaring a queue and publishing the first message to it.
const QUEUE_START_DELAY: Duration = Duration::from_millis(500);
/// Interval between warnings about a missing confirmation.
const SLOW_CONFIRM_INTERVAL: Duration = Duration::from_secs(10);
/// Maximum length of an error text in a header, in bytes.
const MAX_ERROR_BYTES: usize = 2000;

impl Republisher {
    /// Publishes a message to a retry queue. Returns false if its channel was lost: the broker redelivers it.
    pub(crate) async fn retry_later(&self, delivery: &Delivery, request: RetryRequest, cancel: &CancelToken) -> bool {
        let RetryRequest { why, delay, failed, sink_failed_since, failed_alone } = request;
        let delay_ms = round_up_delay(delay);
        let queue = retry_queue(&self.config.queue, delay_ms);
        let mut message = self.with_failure_headers(delivery, "", &queue.name, &why);
        message.properties.headers.set(header::FAILED, i64::from(failed));
        if failed_alone {
            message.properties.headers.set(header::FAILED_ALONE, 1);
        }
        if let Some(since) = sink_failed_since {
            message.properties.headers.set(header::SINK_FAILED_SINCE, i64::try_from(since).unwrap_or(i64::MAX));
        }
        let waited_before = delivery.headers().get(header::FAILED).is_some();
        preserve_x_death(&mut message.properties.headers, waited_before);
        if let Some(at) = delivery.expires_at() {
            message.properties.headers.set(header::EXPIRES_AT, i64::try_from(at).unwrap_or(i64::MAX));
        }
        let topology = Topology { queues: vec![queue], ..Topology::default() };
        self.declare_retry_queue(&topology, delay_ms).await;
        // Before it is published, because it may return before the confirmation.
        let number = self.postponed.mark(&mut message.properties.headers, delay);
        let confirmed = self.publish_until_confirmed(message, &topology, cancel).await;
        if !confirmed {
            self.postponed.cancel(number);
        }
        confirmed
    }

    /// Declares a retry queue once and waits until it works. RabbitMQ 3.10 does not dead-letter messages that a queue
    /// accepted in its first moments: 3 of 175 new queues kept their messages until they were inspected.
    async fn declare_retry_queue(&self, topology: &Topology, delay_ms: u64) {
        let mut declared = self.declared_retry_queues.lock().await;
        if declared.contains(&delay_ms) {
            return;
        }
        // The shortest retry queue exists whenever another does; see `derived_queue_names`.
        let shortest = Topology { queues: vec![retry_queue(&self.config.queue, MIN_DELAY_MS)], ..Topology::default() };
        let has_shortest =
            delay_ms == MIN_DELAY_MS || declared.contains(&MIN_DELAY_MS) || self.declare(&shortest).await;
        if has_shortest && self.declare(topology).await {
            tokio::time::sleep(QUEUE_START_DELAY).await;
            declared.insert(delay_ms);
        }
    }

    /// Publishes a dead letter, after storing it if that is configured. Returns false if its channel was lost.
    pub(crate) async fn dead_letter(
        &self,
        delivery: &Delivery,
        reason: Reason,
        why: &str,
        cancel: &CancelToken,
    ) -> bool {
        let (exchange, key) = &self.config.dead_letter_target;
        let mut message = self.with_failure_headers(delivery, exchange, key, why);
        let failed = match reason {
            Reason::Permanent | Reason::Attempts => i64::from(delivery.failed_attempts()) + 1,
            Reason::Starts | Reason::Unreadable => i64::from(delivery.failed_attempts()),
        };
        message.properties.headers.set(header::FAILED, failed);
        message.properties.headers.set(header::REASON, reason.as_str());
        self.store_dead_letter(delivery, reason, why, failed, cancel).await
            && self.publish_until_confirmed(message, &self.config.dead_letter_topology, cancel).await
    }

    fn with_failure_headers(&self, delivery: &Delivery, exchange: &str, key: &str, why: &str) -> Message {
        let mut message = Message::republished(delivery, exchange, key);
        let headers = &mut message.properties.headers;
        headers.set(header::CONSUMER, self.config.name.as_str());
        headers.set(header::ERROR, truncated(why));
        headers.set(header::FAILED_AT, jiff::Timestamp::now().to_string());
        message
    }

    /// Publishes until the broker confirms. Returns false if the channel of the original is lost.
    async fn publish_until_confirmed(&self, mut message: Message, topology: &Topology, cancel: &CancelToken) -> bool {
        let (mut failed, mut reductions) = (0, 0);
        loop {
            if self.target_missing.load(Relaxed) && !self.declare_until_found(topology, failed, cancel).await {
                return false;
            }
            let error = match self.publish(message.clone()).await {
                Ok(()) => return true,
                // The headers of the message leave no room for those of Gristmill. Drop the message's headers, then all
                // properties, rather than keep a message that cannot be published.
                Err(Error::Message(_)) if reductions < 2 => {
                    reductions += 1;
                    if reductions == 2 {
                        message.properties = Properties { delivery_mode: Some(2), ..Properties::default() };
                    }
                    message.properties.headers = only_gristmill_headers(&message.properties.headers);
                    continue;
                }
                Err(error) => error,
            };
            if cancel.is_cancelled() {
                return false;
            }
            failed += 1;
            if matches!(error, Error::Channel { code: 404, .. }) {
                self.target_missing.store(true, Relaxed);
            }
            // A missing queue is declared without a log line.
            if matches!(error, Error::Unroutable { .. }) && self.declare(topology).await && failed == 1 {
                tokio::time::sleep(QUEUE_START_DELAY).await;
                continue;
            }
            // A new quorum queue refuses messages until it has a leader, so the first failures are not logged.
            if failed > 3 {
                tracing::error!(
                    consumer = self.config.name,
                    exchange = message.exchange,
                    key = message.key,
                    %error,
                    "cannot republish a message; it stays unacknowledged and is retried"
                );
            }
            tokio::time::sleep(BACKOFF.delay(failed)).await;
            if cancel.is_cancelled() {
                return false;
            }
        }
    }

    /// Publishes, and warns while no confirmation comes: messages behind it in order wait too.
    async fn publish(&self, message: Message) -> Result<(), Error> {
        let route = (message.exchange.clone(), message.key.clone());
        let publish = self.publisher.publish(message);
        tokio::pin!(publish);
        loop {
            tokio::select! {
                published = &mut publish => return published,
                () = tokio::time::sleep(SLOW_CONFIRM_INTERVAL) => tracing::warn!(
                    consumer = self.config.name,
                    exchange = route.0,
                    key = route.1,
                    "the broker has not confirmed a republished message yet; still waiting"
                ),
            }
        }
    }

    /// Declares until it succeeds. Returns false if the channel of the original was lost.
    async fn declare_until_found(&self, topology: &Topology, failed: u32, cancel: &CancelToken) -> bool {
        let mut tries = failed;
        while !self.declare(topology).await {
            tries += 1;
            tokio::time::sleep(BACKOFF.delay(tries)).await;
            if cancel.is_cancelled() {
                return false;
            }
        }
        self.target_missing.store(false, Relaxed);
        true
    }

    async fn declare(&self, topology: &Topology) -> bool {
        let declared = async { topology.declare(&self.broker.connected().await?.0).await };
        match declared.await {
            Ok(()) => true,
            Err(error) => {
                tracing::error!(consumer = self.config.name, %error, "cannot declare a queue");
                false
            }
        }
    }

    /// Stores the dead letter if that is configured. Returns false if the channel of the original was lost.
    async fn store_dead_letter(
        &self,
        delivery: &Delivery,
        reason: Reason,
        why: &str,
        failed: i64,
        cancel: &CancelToken,
    ) -> bool {
        let Some(store) = self.store.clone().filter(|_| self.config.declared.store_dead_letters) else { return true };
        let dead_letter = dead_letter(delivery, reason, why, failed);
        let mut tries = 0;
        loop {
            let (store, dead_letter) = (store.clone(), dead_letter.clone());
            let inserted = tokio::task::spawn_blocking(move || store.add_dead_letter(dead_letter)).await;
            let error = match inserted {
                Ok(Ok(_)) => return true,
                Ok(Err(error)) => error.to_string(),
                Err(error) => error.to_string(),
            };
            tries += 1;
            tracing::error!(consumer = self.config.name, error, "cannot store a dead letter; retried");
            tokio::time::sleep(BACKOFF.delay(tries)).await;
            if cancel.is_cancelled() {
                return false;
            }
        }
    }
}

fn dead_letter(delivery: &Delivery, reason: Reason, why: &str, failed: i64) -> DeadLetter {
    DeadLetter {
        message_id: delivery.message_id().unwrap_or_default().to_owned(),
        queue: delivery.queue().to_owned(),
        reason: truncated(why),
        attempts: failed.clamp(0, u32::MAX.into()) as u32,
        details: serde_json::json!({ "reason": reason.as_str(), "error": why }).to_string(),
        message: delivery.to_json().to_string(),
    }
}

/// Shortest retry delay in milliseconds, and how often it is doubled for the longest: about 36 hours.
const MIN_DELAY_MS: u64 = 125;
const MAX_DOUBLINGS: u32 = 20;

/// Rounds a delay up to ⅛, ¼, ½, 1, 2, 4 … seconds. Each of these has its own retry queue.
fn round_up_delay(delay: Duration) -> u64 {
    let millis = delay.as_millis().min(u128::from(MIN_DELAY_MS << MAX_DOUBLINGS)) as u64;
    let mut step = MIN_DELAY_MS;
    while step < millis {
        step *= 2;
    }
    step
}

/// Names of the queues that a consumer of `queue` may have declared: its dead-letter queue, unless another target is
/// set, and its retry queues. The first retry queue exists whenever another does, so if it does not exist the others
/// need not be queried. (The broker logs each query for a missing queue as an error.)
pub fn derived_queue_names(queue: &str) -> impl Iterator<Item = String> {
    let retry_queues = (0..=MAX_DOUBLINGS).map(move |step| retry_queue(queue, MIN_DELAY_MS << step).name);
    std::iter::once(format!("{queue}.dead")).chain(retry_queues)
}

/// Retry queues of a consumer, by its retry policy.
pub(crate) fn retry_queues(config: &ConsumerConfig) -> Vec<Queue> {
    let delays = (1..config.retry.max_attempts()).map(|failed| round_up_delay(config.retry.delay(failed)));
    // Delays are capped, so a large number of attempts uses few queues.
    let mut delays: std::collections::BTreeSet<u64> = delays.collect();
    if !delays.is_empty() {
        delays.insert(MIN_DELAY_MS);
    }
    delays.into_iter().map(|delay| retry_queue(&config.queue, delay)).collect()
}

/// Longest name of a retry queue of `queue`, for the length check.
pub(crate) fn longest_retry_queue_name(queue: &str) -> String {
    retry_queue(queue, round_up_delay(Duration::MAX)).name
}

/// Retry queue that dead-letters expired messages back to `queue`. Each delay has its own queue, because a long delay
/// would block messages behind it. The broker dead-letters with confirmation (`at-least-once`), so a crash loses none.
fn retry_queue(queue: &str, milliseconds: u64) -> Queue {
    Queue::quorum(format!("{queue}.retry.{milliseconds}"))
        .argument("x-message-ttl", milliseconds as i64)
        .argument("x-dead-letter-exchange", "")
        .argument("x-dead-letter-routing-key", queue)
        .argument("x-dead-letter-strategy", "at-least-once")
        .argument("x-overflow", "reject-publish")
}

/// Moves `x-death` to another header. With it the broker would drop a message that expired in its queue before instead
/// of returning it. Entries that the broker writes for retry queues are dropped.
fn preserve_x_death(headers: &mut Headers, waited_before: bool) {
    if let Some(death) = headers.remove("x-death").filter(|_| !waited_before) {
        headers.set(header::DEATH, death);
    }
}

fn only_gristmill_headers(headers: &Headers) -> Headers {
    const GRISTMILL_HEADERS: [&str; 12] = [
        header::ERROR,
        header::FAILED,
        header::EXPIRES_AT,
        header::SINK_FAILED_SINCE,
        header::FAILED_ALONE,
        header::QUEUE,
        header::EXCHANGE,
        header::ROUTING_KEY,
        header::CONSUMER,
        header::REASON,
        header::FAILED_AT,
        header::POSTPONED,
    ];
    // By name and size, because publishers can set the same names.
    let small = |value: &FieldValue| match value {
        FieldValue::Text(text) => text.len() <= MAX_ERROR_BYTES,
        value => value.as_int().is_some(),
    };
    let kept_headers = headers.iter().filter(|(name, value)| GRISTMILL_HEADERS.contains(name) && small(value));
    let kept = kept_headers.map(|(name, value)| (name.to_owned(), value.clone()));
    kept.fold(Headers::new(), |all, (name, value)| all.with(name, value)).with(header::HEADERS_DROPPED, true)
}

fn truncated(text: &str) -> String {
    let mut end = text.len().min(MAX_ERROR_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_are_rounded_up_to_powers_of_two() {
        let check = |milliseconds, expected| assert_eq!(round_up_delay(Duration::from_millis(milliseconds)), expected);
        check(0, 125);
        check(125, 125);
        check(126, 250);
        check(1000, 1000);
        check(1001, 2000);
        check(300_000, 512_000);
        assert_eq!(round_up_delay(Duration::MAX), 125 << 20);
    }

    #[test]
    fn long_errors_are_truncated_at_a_character_boundary() {
        assert_eq!(truncated("short"), "short");
        let long = "ä".repeat(MAX_ERROR_BYTES);
        assert!(truncated(&long).len() <= MAX_ERROR_BYTES && truncated(&long).ends_with('ä'));
    }
}
