//! Messages that are written together: those that came while the last commit ran go into the next.
//!
//! Owns the threads that write, and which handler gets which result. A message's handler waits for the commit that holds it, so
//! that what is acknowledged is on disk. A thread that has ended is no fault of the database, server or command: consuming ends
//! with an error, and the messages go back to the queue.

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

use super::databases::Table;
use crate::commands::enqueue;
use crate::error::Error;
use crate::settings::value::show_duration;

/// What one commit takes: at most 500 messages, and no message waits for others.
const COMMIT: Limits = Limits { most: 500, linger: Duration::ZERO };

/// Whether a message is not put into a batch with others.
type RunsAlone<T> = fn(&T) -> bool;

/// What became of each message of a batch, or why the whole batch was not written.
pub(super) type Written = Result<Vec<TaskResult<()>>, TaskError>;

/// How messages are collected.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Messages of a batch, at most.
    pub(super) most: usize,
    /// How long the first message of a batch waits for others.
    pub(super) linger: Duration,
}

/// Where messages are written together.
#[derive(Clone)]
pub(super) struct Gather<T = Delivery> {
    sender: Sender<Waiting<T>>,
    /// How long a message waits until it is written, if that is limited.
    limit: Option<Duration>,
    threads: Threads,
}

/// The threads that write. Each ends with the last [`Gather`], or by a panic.
#[derive(Clone, Default)]
pub(super) struct Threads(Arc<Mutex<Vec<JoinHandle<()>>>>);

struct Waiting<T> {
    message: T,
    /// Sent right before the message is written. That fails if its handler does not wait any more.
    begin: oneshot::Sender<()>,
    answer: oneshot::Sender<TaskResult<()>>,
}

/// Puts messages together.
struct Collector<T> {
    receiver: Receiver<Waiting<T>>,
    limits: Limits,
    runs_alone: RunsAlone<T>,
    /// The next batch, and when it is complete at the latest.
    batch: Vec<Waiting<T>>,
    due: Instant,
}

impl Threads {
    /// Fails when one of them has ended, though messages may come.
    pub(super) fn check(&self) -> Result<(), Error> {
        let mut threads = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(at) = threads.iter().position(JoinHandle::is_finished) else { return Ok(()) };
        let thread = threads.swap_remove(at);
        let name = thread.thread().name().unwrap_or_default().to_owned();
        let why = match thread.join() {
            Ok(()) => "it came to its end".to_owned(),
            Err(panic) => {
                let text = panic.downcast_ref::<String>().map(String::as_str);
                let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
                format!("it panicked: {}", text.unwrap_or("no text"))
            }
        };
        Err(Error::System(format!(
            "the thread that handles messages for --{name} has ended: {why}. Its messages go back to the queue. This is a defect \
             of gristmill: please report it, with what is above"
        )))
    }
}

impl<T: Send + 'static> Gather<T> {
    /// Starts a thread for each writer, which writes one batch at a time. They end with the last of the handles.
    pub(super) fn start(
        name: &str,
        limits: Limits,
        runs_alone: RunsAlone<T>,
        writers: impl IntoIterator<Item = impl FnMut(&[T]) -> Written + Send + 'static>,
    ) -> Result<Self, Error> {
        let (sender, receiver) = mpsc::channel::<Waiting<T>>();
        let mut threads = Vec::new();
        let (batch, due) = (Vec::new(), Instant::now());
        let collector = Arc::new(Mutex::new(Collector { receiver, limits, runs_alone, batch, due }));
        for mut write in writers {
            let collector = Arc::clone(&collector);
            // One thread collects at a time, so that batches fill one after the other.
            let next = move || collector.lock().unwrap_or_else(PoisonError::into_inner).next();
            let write_all = move || {
                while let Some(batch) = next() {
                    // A message whose handler has ended is retried or goes back to the queue: here it would be written twice.
                    let begin =
                        |one: Waiting<T>| one.begin.send(()).is_ok().then_some((one.message, one.answer));
                    let (messages, answers): (Vec<_>, Vec<_>) = batch.into_iter().filter_map(begin).unzip();
                    if messages.is_empty() {
                        continue;
                    }
                    let results = match write(&messages) {
                        Ok(results) => results,
                        Err(error) => answers.iter().map(|_| Err(again(&error))).collect(),
                    };
                    for (answer, result) in answers.into_iter().zip(results) {
                        // A handler that does not wait any more was cancelled: the broker delivers its message again.
                        let _ = answer.send(result);
                    }
                }
            };
            let thread = std::thread::Builder::new().name(name.to_owned()).spawn(write_all);
            threads.push(thread.map_err(|error| Error::System(format!("cannot start a thread: {error}")))?);
        }
        Ok(Gather { sender, limit: None, threads: Threads(Arc::new(Mutex::new(threads))) })
    }

    /// The same with a limit of the time that a message waits until it is written. A message that is being written has its own
    /// time: that of the database, server or command.
    pub(super) fn within(self, limit: Option<Duration>) -> Self {
        Gather { limit, ..self }
    }

    /// The threads that write, to be watched.
    pub(super) fn threads(&self) -> Threads {
        self.threads.clone()
    }

    /// Waits until the message is written, or is known not to be.
    /// Where a thread has ended, the message is neither done nor failed: it goes back to the queue as consuming ends.
    pub(super) async fn write(self, message: T) -> TaskResult<()> {
        let (begin, mut begun) = oneshot::channel();
        let (answer, answered) = oneshot::channel();
        self.sender.send(Waiting { message, begin, answer }).map_err(|_| TaskError::cancelled())?;
        if let Some(limit) = self.limit
            && timeout(limit, &mut begun).await.is_err()
        {
            begun.close();
            // It may have begun right before.
            if begun.try_recv().is_err() {
                let limit = show_duration(limit);
                let text = format!(
                    "the database is locked or slow: no transaction began within {limit} (--timeout)"
                );
                return Err(TaskError::unavailable(text));
            }
        }
        answered.await.unwrap_or_else(|_| Err(TaskError::cancelled()))
    }
}

impl Gather {
    /// Into a table of SQLite.
    pub(super) fn into(mut table: Table) -> Result<Self, Error> {
        let write = move |deliveries: &[Delivery]| -> Written {
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
        Gather::start("into", COMMIT, |_| false, [starting(write)])
    }

    /// Into the store, as tasks. A message that is delivered again while its task is unfinished, known by its id, makes
    /// no second one.
    pub(super) fn enqueue(store: Store, kind: String, queue: Option<String>) -> Result<Self, Error> {
        let write = move |deliveries: &[Delivery]| -> Written {
            let mut results = Vec::with_capacity(deliveries.len());
            let mut tasks = Vec::with_capacity(deliveries.len());
            for delivery in deliveries {
                let task = task(delivery, &kind, queue.as_deref());
                results.push(task.map(|task| tasks.push(task)).map_err(TaskError::permanent));
            }
            if let Err(error) = store.tasks().enqueue_many(tasks.clone()) {
                if !error.is_user_error() {
                    return Err(TaskError::unavailable(error.to_string()));
                }
                // One of them is not what the store takes. That costs it alone.
                let mut tasks = tasks.into_iter();
                for result in results.iter_mut().filter(|result| result.is_ok()) {
                    *result = tasks.next().map_or(Ok(()), |task| enqueue_one(&store, task));
                }
            }
            Ok(results)
        };
        Gather::start("enqueue", COMMIT, |_| false, [starting(write)])
    }
}

/// Records the starts of messages before they are written: those that only wait to be collected have none. Leaves out those
/// that were started too often.
pub(super) fn starting(mut write: impl FnMut(&[Delivery]) -> Written) -> impl FnMut(&[Delivery]) -> Written {
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

fn task(delivery: &Delivery, kind: &str, queue: Option<&str>) -> Result<NewTask, String> {
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

impl<T> Collector<T> {
    /// The next batch: the first message, and those that come while it waits; or one message that runs alone, which waits for
    /// nothing. None: no more can come.
    fn next(&mut self) -> Option<Vec<Waiting<T>>> {
        while self.batch.len() < self.limits.most {
            let left = self.due.saturating_duration_since(Instant::now());
            let waiting = match (self.batch.is_empty(), left.is_zero()) {
                (true, _) => Some(self.receiver.recv().ok()?),
                (false, true) => self.receiver.try_recv().ok(),
                (false, false) => self.receiver.recv_timeout(left).ok(),
            };
            match waiting {
                Some(waiting) if (self.runs_alone)(&waiting.message) => return Some(vec![waiting]),
                Some(waiting) => {
                    if self.batch.is_empty() {
                        self.due = Instant::now() + self.limits.linger;
                    }
                    self.batch.push(waiting);
                }
                None => break,
            }
        }
        Some(std::mem::take(&mut self.batch))
    }
}

/// The error of a batch once more, for another of its messages.
pub(super) fn again(error: &TaskError) -> TaskError {
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
    fn panic_of_a_writing_thread_cancels_its_messages_and_ends_consuming() {
        let write = |messages: &[u32]| {
            assert!(!messages.contains(&2), "no room for 2");
            Ok(messages.iter().map(|_| Ok(())).collect())
        };
        let gather = Gather::start("into", COMMIT, |_| false, [write]).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let written = |message| runtime.block_on(gather.clone().write(message));
        assert!(written(1).is_ok() && gather.threads().check().is_ok());
        let is_cancelled = |result: TaskResult<()>| matches!(result.unwrap_err().cause(), Cause::Cancelled);
        // The message that is written, and those that come after it.
        assert!(is_cancelled(written(2)) && is_cancelled(written(3)));
        let threads = gather.threads();
        let error = std::iter::repeat_with(|| threads.check()).find_map(Result::err).unwrap();
        assert_eq!(error.exit_status(), 2);
        let text = error.to_string();
        assert!(text.contains("--into") && text.contains("no room for 2"), "{text}");
    }

    /// Reports each batch when it begins to be written, and writes it when it may.
    fn stepwise() -> (Gather<u32>, Receiver<Vec<u32>>, Sender<()>) {
        let (begun, begins) = mpsc::channel();
        let (go, may_go) = mpsc::channel();
        let write = move |messages: &[u32]| {
            begun.send(messages.to_vec()).unwrap();
            may_go.recv().unwrap();
            Ok(messages.iter().map(|_| Ok(())).collect())
        };
        (Gather::start("into", COMMIT, |_| false, [write]).unwrap(), begins, go)
    }

    #[test]
    fn message_that_waited_too_long_for_others_to_be_written_is_not_written_and_not_at_fault() {
        let (gather, begins, go) = stepwise();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let first = runtime.spawn(gather.clone().write(1));
        runtime.block_on(tokio::task::yield_now());
        assert_eq!(begins.recv().unwrap(), [1]);
        let limited = gather.clone().within(Some(Duration::from_millis(1)));
        let error = runtime.block_on(limited.write(2)).unwrap_err();
        assert_eq!(error.dependency(), Some(gristmill_pool::Dependency::Unavailable), "{error}");
        let third = runtime.spawn(gather.write(3));
        go.send(()).unwrap();
        go.send(()).unwrap();
        assert!(runtime.block_on(first).unwrap().is_ok() && runtime.block_on(third).unwrap().is_ok());
        assert_eq!(begins.recv().unwrap(), [3]);
    }

    #[test]
    fn message_whose_handler_has_ended_is_not_written() {
        let (gather, begins, go) = stepwise();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let written = |message| runtime.spawn(gather.clone().write(message));
        // Lets every task run that can.
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
