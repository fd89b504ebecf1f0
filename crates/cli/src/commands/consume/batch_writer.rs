//! Writes messages in batches: those that arrive during one commit are written by the next.
//!
//! Owns the writer threads and assigns results to handlers. The handler of a message waits for the commit that
//! contains it, so every acknowledged message is on disk. If a writer thread ends, consuming ends with an error and
//! the messages return to the queue: the database, server or command is not the cause.

use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use gristmill_amqp::Delivery;
use gristmill_jsonl::{AppendResult, WithId};
use gristmill_pool::error::Cause;
use gristmill_pool::{TaskError, TaskResult};
use gristmill_store::Store;
use gristmill_store::tasks::NewTask;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::open_databases::SinkTable;
use crate::commands::enqueue;
use crate::error::Error;
use crate::units::show_duration;

/// Limits of one commit: at most 500 messages, and no message waits for further ones.
const COMMIT_LIMITS: BatchLimits = BatchLimits { max_messages: 500, linger: Duration::ZERO };

/// Whether a message must be written alone.
type RunsAlone<T> = fn(&T) -> bool;

/// Result of each message of a batch, or the error of the whole batch.
pub(super) type BatchResult = Result<Vec<TaskResult<()>>, TaskError>;

#[derive(Clone, Copy, Debug)]
pub(super) struct BatchLimits {
    /// Maximum number of messages in a batch.
    pub(super) max_messages: usize,
    /// How long the first message of a batch waits for further ones.
    pub(super) linger: Duration,
}

/// Handle to the writer threads; clones share them.
#[derive(Clone)]
pub(super) struct BatchWriter<T = Delivery> {
    sender: Sender<PendingMessage<T>>,
    /// How long a message may wait until it is written, if limited.
    begin_timeout: Option<Duration>,
    threads: WriterThreads,
}

/// The writer threads. Each ends when the last [`BatchWriter`] is dropped, or by a panic.
#[derive(Clone, Default)]
pub(super) struct WriterThreads(Arc<Mutex<Vec<JoinHandle<()>>>>);

struct PendingMessage<T> {
    message: T,
    /// Signalled right before the message is written. Sending fails if its handler no longer waits.
    begin: oneshot::Sender<()>,
    answer: oneshot::Sender<TaskResult<()>>,
}

struct BatchCollector<T> {
    receiver: Receiver<PendingMessage<T>>,
    limits: BatchLimits,
    runs_alone: RunsAlone<T>,
    /// The next batch, and the time at which it is written at the latest.
    batch: Vec<PendingMessage<T>>,
    deadline: Instant,
}

impl WriterThreads {
    /// Fails if a thread has ended while messages may still arrive.
    pub(super) fn check(&self) -> Result<(), Error> {
        let mut threads = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(at) = threads.iter().position(JoinHandle::is_finished) else { return Ok(()) };
        let thread = threads.swap_remove(at);
        let name = thread.thread().name().unwrap_or_default().to_owned();
        let why = match thread.join() {
            Ok(()) => "it returned".to_owned(),
            Err(panic) => {
                let text = panic.downcast_ref::<String>().map(String::as_str);
                let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
                format!("it panicked: {}", text.unwrap_or("no message"))
            }
        };
        Err(Error::System(format!(
            "the writer thread of --{name} has ended: {why}. Its messages return to the queue. This is a bug in gristmill: please \
             report it with the output above"
        )))
    }
}

impl<T: Send + 'static> BatchWriter<T> {
    /// Starts a thread for each writer, which writes one batch at a time, until the last handle is dropped.
    pub(super) fn start(
        name: &str,
        limits: BatchLimits,
        runs_alone: RunsAlone<T>,
        writers: impl IntoIterator<Item = impl FnMut(&[T]) -> BatchResult + Send + 'static>,
    ) -> Result<Self, Error> {
        let (sender, receiver) = mpsc::channel::<PendingMessage<T>>();
        let mut threads = Vec::new();
        let (batch, deadline) = (Vec::new(), Instant::now());
        let collector = Arc::new(Mutex::new(BatchCollector { receiver, limits, runs_alone, batch, deadline }));
        for mut write in writers {
            let collector = Arc::clone(&collector);
            // One thread collects at a time, so that batches fill one after another.
            let next = move || collector.lock().unwrap_or_else(PoisonError::into_inner).next_batch();
            let write_all = move || {
                while let Some(batch) = next() {
                    // A message whose handler has ended is retried or returned to the queue; writing it too would
                    // write it twice.
                    let begin =
                        |one: PendingMessage<T>| one.begin.send(()).is_ok().then_some((one.message, one.answer));
                    let (messages, answers): (Vec<_>, Vec<_>) = batch.into_iter().filter_map(begin).unzip();
                    if messages.is_empty() {
                        continue;
                    }
                    let results = match write(&messages) {
                        Ok(results) => results,
                        Err(error) => answers.iter().map(|_| Err(copy_error(&error))).collect(),
                    };
                    for (answer, result) in answers.into_iter().zip(results) {
                        // A handler that no longer waits was cancelled: the broker redelivers its message.
                        let _ = answer.send(result);
                    }
                }
            };
            let thread = std::thread::Builder::new().name(name.to_owned()).spawn(write_all);
            threads.push(thread.map_err(|error| Error::System(format!("cannot start a thread: {error}")))?);
        }
        Ok(BatchWriter { sender, begin_timeout: None, threads: WriterThreads(Arc::new(Mutex::new(threads))) })
    }

    /// Limits the time that a message waits until it is written. The write itself is limited by the timeout of the
    /// database, server or command.
    pub(super) fn with_begin_timeout(self, limit: Option<Duration>) -> Self {
        BatchWriter { begin_timeout: limit, ..self }
    }

    /// Returns the writer threads, for the supervisor to check.
    pub(super) fn threads(&self) -> WriterThreads {
        self.threads.clone()
    }

    /// Waits until the message is written or has failed. If the thread has ended, returns "cancelled": consuming
    /// ends, and the message returns to the queue.
    pub(super) async fn write(self, message: T) -> TaskResult<()> {
        let (begin, mut begun) = oneshot::channel();
        let (answer, answered) = oneshot::channel();
        self.sender.send(PendingMessage { message, begin, answer }).map_err(|_| TaskError::cancelled())?;
        if let Some(limit) = self.begin_timeout
            && timeout(limit, &mut begun).await.is_err()
        {
            begun.close();
            // Writing may have begun just before the channel was closed.
            if begun.try_recv().is_err() {
                let limit = show_duration(limit);
                let text = format!("the database is locked or slow: no transaction began within {limit} (--timeout)");
                return Err(TaskError::unavailable(text));
            }
        }
        answered.await.unwrap_or_else(|_| Err(TaskError::cancelled()))
    }
}

impl BatchWriter {
    /// Starts a writer that inserts messages into a SQLite table.
    pub(super) fn into_table(mut table: SinkTable) -> Result<Self, Error> {
        let write = move |deliveries: &[Delivery]| -> BatchResult {
            let ids: Vec<Option<String>> = deliveries.iter().map(Delivery::identity).collect();
            let objects = deliveries
                .iter()
                .zip(&ids)
                .map(|(delivery, id)| WithId { id: id.as_deref(), object: &delivery.body()[..] });
            let objects: Vec<WithId<'_>> = objects.collect();
            let results = table.append(&objects)?;
            for (delivery, result) in deliveries.iter().zip(&results) {
                if matches!(result, Ok(AppendResult::Duplicate)) {
                    delivery.set_duplicate();
                }
            }
            Ok(results.into_iter().map(|result| result.map(drop).map_err(TaskError::permanent)).collect())
        };
        BatchWriter::start("into", COMMIT_LIMITS, |_| false, [recording_starts(write)])
    }

    /// Starts a writer that enqueues a task for each message. The id of the message is the unique key of the task, so a
    /// redelivered message adds no second task while the first is unfinished.
    pub(super) fn into_tasks(store: Store, kind: String, queue: Option<String>) -> Result<Self, Error> {
        let write = move |deliveries: &[Delivery]| -> BatchResult {
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
        };
        BatchWriter::start("enqueue", COMMIT_LIMITS, |_| false, [recording_starts(write)])
    }
}

/// Records the starts of messages right before they are written, so that messages that only wait in a batch have
/// none. Omits messages that were started too often.
pub(super) fn recording_starts(
    mut write: impl FnMut(&[Delivery]) -> BatchResult,
) -> impl FnMut(&[Delivery]) -> BatchResult {
    move |deliveries| {
        let allowed = Delivery::record_starts(deliveries);
        if allowed.iter().all(|is_allowed| *is_allowed) {
            return write(deliveries);
        }
        let rest = deliveries.iter().zip(&allowed).filter(|(_, is_allowed)| **is_allowed);
        let rest: Vec<Delivery> = rest.map(|(delivery, _)| delivery.clone()).collect();
        let mut results = if rest.is_empty() { Vec::new() } else { write(&rest)? }.into_iter();
        let result = |is_allowed| match is_allowed {
            true => results.next().unwrap_or_else(|| Err(TaskError::cancelled())),
            false => Ok(()),
        };
        Ok(allowed.into_iter().map(result).collect())
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

impl<T> BatchCollector<T> {
    /// Returns the next batch: the first message and those that arrive while it waits, or one message that must run
    /// alone, without waiting. Returns none if no more messages can arrive.
    fn next_batch(&mut self) -> Option<Vec<PendingMessage<T>>> {
        while self.batch.len() < self.limits.max_messages {
            let left = self.deadline.saturating_duration_since(Instant::now());
            let waiting = match (self.batch.is_empty(), left.is_zero()) {
                (true, _) => Some(self.receiver.recv().ok()?),
                (false, true) => self.receiver.try_recv().ok(),
                (false, false) => self.receiver.recv_timeout(left).ok(),
            };
            match waiting {
                Some(waiting) if (self.runs_alone)(&waiting.message) => return Some(vec![waiting]),
                Some(waiting) => {
                    if self.batch.is_empty() {
                        self.deadline = Instant::now() + self.limits.linger;
                    }
                    self.batch.push(waiting);
                }
                None => break,
            }
        }
        Some(std::mem::take(&mut self.batch))
    }
}

/// Copies the error of a batch for another of its messages.
pub(super) fn copy_error(error: &TaskError) -> TaskError {
    if matches!(error.cause(), Cause::Cancelled) {
        return TaskError::cancelled();
    }
    let copy = TaskError::unavailable(error.to_string());
    match error.retry_after() {
        Some(delay) => copy.with_retry_after(delay),
        None => copy,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panic_of_writer_thread_cancels_its_messages() {
        let write = |messages: &[u32]| {
            assert!(!messages.contains(&2), "no room for 2");
            Ok(messages.iter().map(|_| Ok(())).collect())
        };
        let writer = BatchWriter::start("into", COMMIT_LIMITS, |_| false, [write]).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let written = |message| runtime.block_on(writer.clone().write(message));
        assert!(written(1).is_ok() && writer.threads().check().is_ok());
        let is_cancelled = |result: TaskResult<()>| matches!(result.unwrap_err().cause(), Cause::Cancelled);
        // The message being written, and a later one.
        assert!(is_cancelled(written(2)) && is_cancelled(written(3)));
        let threads = writer.threads();
        let error = std::iter::repeat_with(|| threads.check()).find_map(Result::err).unwrap();
        assert_eq!(error.exit_status(), 2);
        let text = error.to_string();
        assert!(text.contains("--into") && text.contains("no room for 2"), "{text}");
    }

    /// Starts a writer that reports each batch before writing it, and writes when the test allows.
    fn stepwise() -> (BatchWriter<u32>, Receiver<Vec<u32>>, Sender<()>) {
        let (begun, begins) = mpsc::channel();
        let (go, may_go) = mpsc::channel();
        let write = move |messages: &[u32]| {
            begun.send(messages.to_vec()).unwrap();
            may_go.recv().unwrap();
            Ok(messages.iter().map(|_| Ok(())).collect())
        };
        (BatchWriter::start("into", COMMIT_LIMITS, |_| false, [write]).unwrap(), begins, go)
    }

    #[test]
    fn message_is_unavailable_and_not_written_after_begin_timeout() {
        let (writer, begins, go) = stepwise();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let first = runtime.spawn(writer.clone().write(1));
        runtime.block_on(tokio::task::yield_now());
        assert_eq!(begins.recv().unwrap(), [1]);
        let limited = writer.clone().with_begin_timeout(Some(Duration::from_millis(1)));
        let error = runtime.block_on(limited.write(2)).unwrap_err();
        assert_eq!(error.dependency(), Some(gristmill_pool::Dependency::Unavailable), "{error}");
        let third = runtime.spawn(writer.write(3));
        go.send(()).unwrap();
        go.send(()).unwrap();
        assert!(runtime.block_on(first).unwrap().is_ok() && runtime.block_on(third).unwrap().is_ok());
        assert_eq!(begins.recv().unwrap(), [3]);
    }

    #[test]
    fn message_of_cancelled_handler_is_not_written() {
        let (writer, begins, go) = stepwise();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let written = |message| runtime.spawn(writer.clone().write(message));
        // Lets every runnable task run.
        let progress = || runtime.block_on(tokio::task::yield_now());
        let first = written(1);
        progress();
        assert_eq!(begins.recv().unwrap(), [1]);
        let (second, third) = (written(2), written(3));
        progress();
        second.abort();
        assert!(runtime.block_on(second).unwrap_err().is_cancelled());
        go.send(()).unwrap();
        go.send(()).unwrap();
        assert!(runtime.block_on(first).unwrap().is_ok() && runtime.block_on(third).unwrap().is_ok());
        assert_eq!(begins.recv().unwrap(), [3]);
    }
}
