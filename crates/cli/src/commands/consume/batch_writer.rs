//! Writes batches of messages: `--into` inserts rows, `--enqueue` enqueues tasks.
//!
//! Owns the writes and the check for a writer that panicked. The AMQP client gathers the batches: messages that arrive
//! during one commit are written by the next, and every acknowledged message is on disk.

use std::sync::{Arc, Mutex, PoisonError};

use gristmill_amqp::{Delivery, TaskError, TaskResult};
use gristmill_jsonl::{AppendResult, WithId};
use gristmill_pool::error::{Cause, catch_panic};
use gristmill_store::Store;
use gristmill_store::tasks::NewTask;

use super::open_databases::SinkTable;
use crate::commands::enqueue;
use crate::error::Error;

/// Result of each message of a batch, or the error of the whole batch.
pub(super) type BatchResult = TaskResult<Vec<TaskResult<()>>>;

/// Text of the panic of a writer, if it has panicked. Consuming then ends with an error and the messages return to the
/// queue: the database, server or command is not the cause.
#[derive(Clone, Default)]
pub(super) struct WriterPanic(Arc<Mutex<Option<String>>>);

impl WriterPanic {
    /// Fails if the writer of the option `--name` has panicked.
    pub(super) fn check(&self, name: &str) -> Result<(), Error> {
        match &*self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            None => Ok(()),
            Some(why) => Err(Error::System(format!(
                "the writer of --{name} panicked: {why}. Its messages return to the queue. This is a bug in gristmill: please \
                 report it with the output above"
            ))),
        }
    }

    /// Cancels the batch that makes a writer panic, and all later ones.
    pub(super) fn catch<T>(&self, write: impl FnOnce() -> TaskResult<T>) -> TaskResult<T> {
        if self.0.lock().unwrap_or_else(PoisonError::into_inner).is_some() {
            return Err(TaskError::cancelled());
        }
        catch_panic(write).map_err(|error| {
            let Cause::Panic { message, .. } = error.cause() else { return error };
            *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(message.clone());
            TaskError::cancelled()
        })
    }
}

/// Returns a handler that inserts messages into a SQLite table.
pub(super) fn into_table(table: SinkTable) -> impl Fn(&[Delivery]) -> BatchResult + Send + Sync {
    let table = Mutex::new(table);
    move |deliveries| {
        let ids: Vec<Option<String>> = deliveries.iter().map(Delivery::identity).collect();
        let objects = deliveries
            .iter()
            .zip(&ids)
            .map(|(delivery, id)| WithId { id: id.as_deref(), object: &delivery.body()[..] });
        let objects: Vec<WithId<'_>> = objects.collect();
        let results = table.lock().unwrap_or_else(PoisonError::into_inner).append(&objects)?;
        for (delivery, result) in deliveries.iter().zip(&results) {
            if matches!(result, Ok(AppendResult::Duplicate)) {
                delivery.set_duplicate();
            }
        }
        Ok(results.into_iter().map(|result| result.map(drop).map_err(TaskError::permanent)).collect())
    }
}

/// Returns a handler that enqueues a task for each message. The id of the message is the unique key of the task, so a
/// redelivered message adds no second task while the first is unfinished.
pub(super) fn into_tasks(
    store: Store,
    kind: String,
    queue: Option<String>,
) -> impl Fn(&[Delivery]) -> BatchResult + Send + Sync {
    move |deliveries| {
        let mut results = Vec::with_capacity(deliveries.len());
        let mut tasks = Vec::with_capacity(deliveries.len());
        for delivery in deliveries {
            let task = task_from_message(delivery, &kind, queue.as_deref());
            results.push(task.map(|task| tasks.push(task)).map_err(TaskError::permanent));
        }
        if let Err(error) = store.tasks().enqueue_many(tasks.clone()) {
            if !error.is_user_error() {
                return Err(TaskError::unavailable(error.to_string()));
            }
            // The store rejects one of the tasks. Enqueued one by one, only that one fails.
            let mut tasks = tasks.into_iter();
            for result in results.iter_mut().filter(|result| result.is_ok()) {
                *result = tasks.next().map_or(Ok(()), |task| enqueue_one(&store, task));
            }
        }
        Ok(results)
    }
}

fn enqueue_one(store: &Store, task: NewTask) -> TaskResult<()> {
    store.tasks().enqueue(task).map(drop).map_err(|error| match error.is_user_error() {
        true => TaskError::permanent(error.to_string()),
        false => TaskError::unavailable(error.to_string()),
    })
}

fn task_from_message(delivery: &Delivery, kind: &str, queue: Option<&str>) -> Result<NewTask, String> {
    let payload = std::str::from_utf8(delivery.body())
        .map_err(|error| format!("the message is not JSON: it is not UTF-8: {error}"))?;
    enqueue::check(kind, payload).map_err(|error| format!("the message {error}"))?;
    let task = NewTask::new(kind, payload);
    Ok(NewTask {
        queue: queue.map_or_else(|| task.queue.clone(), str::to_owned),
        unique_key: delivery.message_id().map(str::to_owned),
        document_id: delivery.message_id().map(str::to_owned),
        ..task
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panic_of_writer_cancels_its_batches_and_ends_consuming() {
        let panic = WriterPanic::default();
        let written = |number: u32| {
            panic.catch(|| {
                assert_ne!(number, 2, "no room for 2");
                Ok(())
            })
        };
        assert!(written(1).is_ok() && panic.check("into").is_ok());
        let is_cancelled = |result: TaskResult<()>| matches!(result.unwrap_err().cause(), Cause::Cancelled);
        // The batch being written, and a later one.
        assert!(is_cancelled(written(2)) && is_cancelled(written(3)));
        let error = panic.check("into").unwrap_err();
        assert_eq!(error.exit_status(), 2);
        let text = error.to_string();
        assert!(text.contains("--into") && text.contains("no room for 2"), "{text}");
    }
}
