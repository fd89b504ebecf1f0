//! Messages that are written together: whatever came while the last commit ran goes into the next.
//!
//! Owns the thread that writes, and who is told what. A message's handler waits for the commit that holds it, so that
//! what is acknowledged is on disk.

use std::sync::mpsc::{self, Sender};

use gristmill_amqp::Delivery;
use gristmill_pool::{TaskError, TaskResult};
use gristmill_store::Store;
use gristmill_store::tasks::NewTask;
use tokio::sync::oneshot;

use crate::commands::enqueue;
use crate::error::Error;

/// So many at most are written at a time.
const BATCH: usize = 500;

/// What became of each message of a batch, or why the whole batch was not written.
type Written = Result<Vec<TaskResult<()>>, TaskError>;

/// Where messages are written together.
#[derive(Clone)]
pub(super) struct Gather(Sender<Waiting>);

struct Waiting {
    delivery: Delivery,
    answer: oneshot::Sender<TaskResult<()>>,
}

impl Gather {
    /// Starts the thread. It ends with the last of the handles.
    fn start(
        name: &str,
        mut write: impl FnMut(&[Delivery]) -> Written + Send + 'static,
    ) -> Result<Self, Error> {
        let (sender, receiver) = mpsc::channel::<Waiting>();
        let write_all = move || {
            while let Ok(first) = receiver.recv() {
                let batch: Vec<Waiting> =
                    std::iter::once(first).chain(receiver.try_iter().take(BATCH - 1)).collect();
                let (deliveries, answers): (Vec<_>, Vec<_>) =
                    batch.into_iter().map(|waiting| (waiting.delivery, waiting.answer)).unzip();
                let results = match write(&deliveries) {
                    Ok(results) => results,
                    Err(error) => answers.iter().map(|_| Err(again(&error))).collect(),
                };
                for (answer, result) in answers.into_iter().zip(results) {
                    // Who does not wait any more is told by the broker: it delivers the message again.
                    let _ = answer.send(result);
                }
            }
        };
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(write_all);
        thread.map_err(|error| Error::System(format!("cannot start a thread: {error}")))?;
        Ok(Gather(sender))
    }

    /// Waits until the message is written, or is known not to be.
    pub(super) async fn write(self, delivery: Delivery) -> TaskResult<()> {
        let (answer, answered) = oneshot::channel();
        let gone = || TaskError::transient("the thread that writes is gone");
        self.0.send(Waiting { delivery, answer }).map_err(|_| gone())?;
        answered.await.unwrap_or_else(|_| Err(gone()))
    }

    /// Into a table of SQLite.
    pub(super) fn into(mut sink: gristmill_jsonl::Sink) -> Result<Self, Error> {
        Gather::start("into", move |deliveries| {
            let objects: Vec<&[u8]> = deliveries.iter().map(|delivery| &delivery.body()[..]).collect();
            let results = sink.append(&objects).map_err(|error| TaskError::transient(error.to_string()))?;
            Ok(results.into_iter().map(|result| result.map_err(TaskError::permanent)).collect())
        })
    }

    /// Into the store, as tasks. A message that is delivered again while its task is unfinished, known by its id, makes
    /// no second one.
    pub(super) fn enqueue(store: Store, kind: String, queue: Option<String>) -> Result<Self, Error> {
        Gather::start("enqueue", move |deliveries| {
            let mut results = Vec::with_capacity(deliveries.len());
            let mut tasks = Vec::with_capacity(deliveries.len());
            for delivery in deliveries {
                let task = task(delivery, &kind, queue.as_deref());
                results.push(task.map(|task| tasks.push(task)).map_err(TaskError::permanent));
            }
            if let Err(error) = store.tasks().enqueue_many(tasks.clone()) {
                if !error.is_users() {
                    return Err(TaskError::transient(error.to_string()));
                }
                // One of them is not what the store takes. That costs it alone.
                let mut tasks = tasks.into_iter();
                for result in results.iter_mut().filter(|result| result.is_ok()) {
                    *result = tasks.next().map_or(Ok(()), |task| enqueue_one(&store, task));
                }
            }
            Ok(results)
        })
    }
}

fn enqueue_one(store: &Store, task: NewTask) -> TaskResult<()> {
    store.tasks().enqueue(task).map(drop).map_err(|error| match error.is_users() {
        true => TaskError::permanent(error.to_string()),
        false => TaskError::transient(error.to_string()),
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

/// The same once more: all of a batch are told why it was not written.
fn again(error: &TaskError) -> TaskError {
    TaskError::transient(error.to_string())
}
