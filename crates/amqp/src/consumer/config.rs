//! Resolves the declaration of a consumer into the configuration that it runs with.

use super::{Consumer, DEFAULT_RETRY, DEFAULT_RETRY_IN_PLACE, Handler, Offset};
use crate::{
    republish::longest_retry_queue_name,
    sizing::{Sizing, cores},
    topology::{Binding, Exchange, Queue, Topology, check_name},
};
use gristmill_pool::Retry;
use std::sync::Arc;

impl Consumer {
    /// Checks the declaration, applies defaults, and adds its dead-letter exchange and queue to the topology.
    pub(crate) fn resolve(&self, topology: &mut Topology, has_store: bool) -> Result<ConsumerConfig, String> {
        check_name("queue", &self.queue)?;
        check_name("queue", &longest_retry_queue_name(&self.queue))?;
        check_name("consumer", &self.name)?;
        let invalid = |what: &str| Err(format!("consumer {}: {what}", self.name));
        let Some(handler) = self.handler.clone() else {
            return invalid("no handler; set one with handle, handle_blocking or handle_batch");
        };
        if (self.dedup_window.is_some() || self.store_dead_letters) && !has_store {
            return invalid("dedup_window and store_dead_letters need a store (ClientBuilder::store)");
        }
        if self.timeout.is_some_and(|limit| limit.is_zero()) {
            return invalid("timeout is 0; omit it for no timeout");
        }
        if self.dedup_window.is_some_and(|window| window.is_zero()) {
            return invalid("dedup_window is 0; expected: more than 0");
        }
        if self.exclusive && topology.queue(&self.queue).and_then(Queue::kind).is_some_and(|kind| kind != "classic") {
            return invalid(
                "only a classic queue can be consumed exclusively; use x-single-active-consumer for others",
            );
        }
        if self.max_starts == 0 {
            return invalid("max_starts is 0; expected: at least 1");
        }
        let Some(queue) = topology.queue(&self.queue) else {
            return invalid(&format!("queue {} is not declared; declare it or use Queue::existing", self.queue));
        };
        if let Some(kind) = queue.kind().filter(|kind| self.rewind && *kind != "stream") {
            return invalid(&format!("--rewind needs a stream; queue {} is a {kind} queue", self.queue));
        }
        let is_stream = match (queue.kind(), &self.offset) {
            (Some("stream"), _) => true,
            (Some(kind), Some(_)) => {
                return invalid(&format!("an offset needs a stream; queue {} is a {kind} queue", self.queue));
            }
            (Some(_), None) => false,
            (None, offset) => offset.is_some(),
        };
        if self.store_position && is_stream && !has_store {
            return invalid(&format!(
                "queue {} is a stream, whose position needs a store; set one with ClientBuilder::store",
                self.queue
            ));
        }
        let kind = queue.kind().map(str::to_owned);
        let sizing = Sizing::of(self.workers, self.batch, self.prefetch, cores(), |_, _, _| {});
        let target = match &self.dead_letter_target {
            Some(target) => target.clone(),
            None => (format!("{}.dead", self.queue), String::new()),
        };
        check_name("queue", &format!("{}.dead", self.queue))?;
        let declared = topology.exchanges.iter().any(|exchange| exchange.name == target.0);
        match (&self.dead_letter_target, declared) {
            (_, true) => {}
            (Some(_), false) if target.0.is_empty() => {}
            // It must exist: publishing to a missing exchange would close the channel each time.
            (Some(_), false) => topology.exchanges.push(Exchange::existing(&target.0)),
            (None, false) => {
                topology.exchanges.push(Exchange::fanout(&target.0));
                topology.add_queue(Queue::quorum(&target.0));
                topology.bindings.push(Binding::new(&target.0, &target.0, ""));
            }
        }
        let dead_letter_topology = topology.for_exchange(&target.0);
        let in_place = self.order.is_some() || sizing.messages() == 1 || is_stream;
        let single_active = topology.queue(&self.queue).is_some_and(Queue::has_single_active_consumer);
        let retry = match in_place {
            true => self.retry_in_place.or(self.retry).unwrap_or(DEFAULT_RETRY_IN_PLACE),
            false => self.retry.unwrap_or(DEFAULT_RETRY),
        };
        Ok(ConsumerConfig {
            declared: self.clone(),
            queue: self.queue.as_str().into(),
            name: self.name.clone(),
            handler,
            sizing,
            in_place,
            kind,
            is_stream,
            retry: retry.without_jitter(),
            dead_letter_target: target,
            dead_letter_topology,
            offset: self.offset.clone().unwrap_or_default(),
            store_position: self.store_position && is_stream,
            single_active,
        })
    }

    /// Logs warnings about doubtful settings, at the start.
    pub(crate) fn warn(&self, config: &ConsumerConfig) {
        Sizing::of(self.workers, self.batch, self.prefetch, cores(), |what, requested, used| {
            tracing::warn!(consumer = self.name, what, requested, used, "above the maximum; clamped");
        });
        if config.kind.is_none() && !config.is_stream {
            tracing::warn!(
                consumer = self.name,
                queue = self.queue,
                "the broker does not report the kind of the queue. If it is a stream, its position is not stored and it never counts \
                 as drained; in that case set the offset where it begins the first time"
            );
        }
        if let (Some(limit), Some(broker)) = (self.timeout.or(self.handler_timeout), self.consumer_timeout)
            && limit >= broker
        {
            tracing::warn!(
                consumer = self.name,
                timeout = ?limit,
                consumer_timeout = ?broker,
                "a handler may take longer than the broker waits for an acknowledgement (its consumer_timeout); the broker then \
                 redelivers the messages of this consumer. Raise consumer_timeout at the broker, or lower the handler's timeout"
            );
        }
    }
}

/// Configuration of a consumer, checked and complete.
pub(crate) struct ConsumerConfig {
    pub(crate) declared: Consumer,
    pub(crate) queue: Arc<str>,
    pub(crate) name: String,
    pub(crate) handler: Handler,
    pub(crate) sizing: Sizing,
    /// Messages are retried in place, because the order of those behind must stay.
    pub(crate) in_place: bool,
    pub(crate) is_stream: bool,
    /// Kind of the queue, as declared or found.
    pub(crate) kind: Option<String>,
    pub(crate) retry: Retry,
    pub(crate) dead_letter_target: (String, String),
    /// Declared again when a dead letter cannot be routed.
    pub(crate) dead_letter_topology: Topology,
    pub(crate) offset: Offset,
    pub(crate) store_position: bool,
    /// The queue is declared with a single active consumer.
    pub(crate) single_active: bool,
}

impl ConsumerConfig {
    /// For a batch handler: whether it runs batches, also of one message, that start only while a worker is free.
    /// Otherwise single messages are queued in the pool, where the start timeout does not apply.
    pub(crate) fn is_batched(&self) -> bool {
        self.sizing.batch > 1 || self.declared.start_timeout.is_some()
    }

    /// Whether messages are handled in order: those of one key, or all.
    pub(crate) fn is_ordered(&self) -> bool {
        self.declared.order.is_some() || self.sizing.messages() == 1
    }

    /// Whether order depends on this consumer alone, so that two must not consume at once. The broker ensures that
    /// itself for exclusive consumers and for queues with a single active consumer.
    pub(crate) fn waits_for_old_consumer(&self) -> bool {
        self.is_ordered() && !self.is_stream && !self.declared.exclusive && !self.single_active
    }

    /// Whether the prefetch is fixed for a channel: a change could make another consumer the active or exclusive one.
    pub(crate) fn has_fixed_prefetch(&self) -> bool {
        self.is_ordered() || self.is_stream || self.declared.exclusive || self.single_active
    }
}
