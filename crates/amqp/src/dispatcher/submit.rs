//! Submits messages to the pool: single ones as far as its queue has room, batches while workers are free.

use super::{Dispatcher, InFlight};
use crate::{
    consumer::Handler,
    handler_pool::{Run, RunContext},
    sink_gate::SinkGate,
    starts::RunStart,
};
use gristmill_pool::error::SubmitErrorKind;
use std::sync::Arc;

impl Dispatcher {
    /// Submits messages as far as the pool has room.
    pub(super) fn dispatch(&mut self) {
        if self.pause.is_paused() {
            return self.dispatch_probe();
        }
        self.requeue_recovered();
        let config = Arc::clone(&self.config);
        match &config.handler {
            Handler::Batch(handler) if config.is_batched() => self.dispatch_batches(handler),
            // Single messages are queued in the pool, ahead of a free worker.
            _ => {
                while let Some(message) = self.suspects.next(&mut self.keyed_queue) {
                    if self.submit(message, self.pause.gate.clone()).is_none() {
                        return;
                    }
                }
            }
        }
    }

    /// Submits a message on its own and returns the number of its run; none if it was not submitted.
    pub(super) fn submit(&mut self, mut message: InFlight, gate: SinkGate) -> Option<u64> {
        let job = match &self.config.handler {
            Handler::Batch(handler) if self.config.is_batched() => {
                return self.submit_batch(&Arc::clone(handler), vec![message], gate);
            }
            Handler::Batch(handler) => {
                self.run_context(gate).blocking_job(Arc::clone(handler), self.run_of(&mut message))
            }
            Handler::Async(handler) => self.run_context(gate).async_job(Arc::clone(handler), self.run_of(&mut message)),
        };
        match self.pool.submit(job) {
            Ok(number) => {
                self.submitted(number, message);
                Some(number)
            }
            Err(kind) => self.not_submitted(kind, vec![message]),
        }
    }

    /// Keeps messages that the pool has no room for. Those that a closed pool rejects are redelivered.
    pub(super) fn not_submitted(&mut self, kind: SubmitErrorKind, messages: Vec<InFlight>) -> Option<u64> {
        for message in messages.into_iter().rev() {
            match kind {
                SubmitErrorKind::Full => self.keyed_queue.push_front(message),
                _ => self.release(&message),
            }
        }
        None
    }

    pub(super) fn submitted(&mut self, number: u64, message: InFlight) {
        self.suspects.running += usize::from(message.suspect);
        self.in_pool.insert(number, message);
    }

    pub(super) fn run_context(&self, gate: SinkGate) -> RunContext {
        let (config, stopping, dedup) = (Arc::clone(&self.config), self.stopping.clone(), self.dedup.clone());
        RunContext { config, stopping, gate, dedup }
    }

    pub(super) fn run_of(&self, message: &mut InFlight) -> Run {
        let start = message.run.zip(self.starts.store.clone()).map(|(key, store)| {
            let recorded = Arc::clone(message.recorded.get_or_insert_default());
            Box::new(RunStart { store, key, recorded })
        });
        Run { delivery: message.delivery.clone(), session: message.cancel.clone(), start }
    }
}
