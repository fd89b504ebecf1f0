//! Fixture of the tests: a broker, a queue for each test, and the binary with the URI of the broker in its environment.

use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use gristmill_amqp::{Client, Consumer, Delivery, Message, Queue};
use gristmill_broker::{Broker, Settings};
use tokio::runtime::Runtime;

use crate::common::{Home, RunOutput};

/// Returns the broker that all tests share which do not restart or configure it. It ends with the process.
pub(crate) fn broker() -> &'static Broker {
    static BROKER: OnceLock<Broker> = OnceLock::new();
    BROKER.get_or_init(|| Broker::start().unwrap_or_else(|error| panic!("{error}")))
}

/// Returns the broker with the management plugin that its tests share.
pub(crate) fn broker_with_management() -> &'static Broker {
    static BROKER: OnceLock<Broker> = OnceLock::new();
    let start = || Broker::start_with(&Settings::new().management()).unwrap_or_else(|error| panic!("{error}"));
    BROKER.get_or_init(start)
}

/// Timeout of every wait.
const TIMEOUT: Duration = Duration::from_secs(120);

/// A home folder, a queue with a unique name, and a client of the broker.
pub(crate) struct Fixture {
    pub(crate) home: Home,
    pub(crate) queue: String,
    broker: &'static Broker,
    client: Option<Client>,
    runtime: Runtime,
}

impl Fixture {
    /// Creates a quorum queue whose name starts with `what`.
    pub(crate) fn new(what: &str) -> Self {
        Self::with(what, |queue| queue)
    }

    /// Creates a quorum queue with these arguments.
    pub(crate) fn with(what: &str, arguments: fn(Queue) -> Queue) -> Self {
        Self::at(broker(), what, arguments)
    }

    /// Creates a quorum queue at another broker.
    pub(crate) fn at(broker: &'static Broker, what: &str, arguments: fn(Queue) -> Queue) -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let queue = format!("{what}-{}", COUNT.fetch_add(1, Relaxed));
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let builder = Client::builder(broker.uri()).queue(arguments(Queue::quorum(&queue)));
        let client = runtime.block_on(builder.start()).unwrap();
        Fixture { home: Home::new(), queue, broker, client: Some(client), runtime }
    }

    /// Declares a queue with the name of the test's queue and this suffix.
    pub(crate) fn declare(&self, suffix: &str, kind: fn(String) -> Queue) -> String {
        let name = format!("{}{suffix}", self.queue);
        let builder = Client::builder(self.broker.uri()).queue(kind(name.clone()));
        let client = self.runtime.block_on(builder.start()).unwrap();
        self.runtime.block_on(client.shutdown(Duration::ZERO));
        name
    }

    fn client(&self) -> &Client {
        self.client.as_ref().unwrap()
    }

    pub(crate) fn publish(&self, bodies: impl IntoIterator<Item = impl Into<String>>) {
        self.send(bodies.into_iter().map(|body| Message::to_queue(&self.queue, body.into())));
    }

    pub(crate) fn send(&self, messages: impl IntoIterator<Item = Message>) {
        let publisher = self.client().publisher();
        for result in self.runtime.block_on(publisher.publish_all(messages)) {
            result.unwrap();
        }
    }

    /// Publishes to the queue until it is full; returns the number of messages.
    pub(crate) fn fill(&self, body: &str) -> usize {
        self.fill_queue(&self.queue, body)
    }

    /// Publishes to a queue until it is full. Uses a new client: after a rejection the broker rejects everything from
    /// the same channel until the queue is well below its limit.
    pub(crate) fn fill_queue(&self, queue: &str, body: &str) -> usize {
        let client = self.runtime.block_on(Client::builder(self.broker.uri()).start()).unwrap();
        let publisher = client.publisher();
        let one = || self.runtime.block_on(publisher.publish(Message::to_queue(queue, body.to_owned())));
        let count = std::iter::repeat_with(one).take_while(Result::is_ok).count();
        self.runtime.block_on(client.shutdown(Duration::ZERO));
        count
    }

    /// Declares a queue of this kind and publishes messages to it.
    pub(crate) fn send_to(&self, queue: &str, kind: &str, bodies: impl IntoIterator<Item = &'static str>) {
        let declared = if kind == "classic" { Queue::classic(queue) } else { Queue::quorum(queue) };
        let builder = Client::builder(self.broker.uri()).queue(declared);
        let client = self.runtime.block_on(builder.start()).unwrap();
        let messages = bodies.into_iter().map(|body| Message::to_queue(queue, body));
        for result in self.runtime.block_on(client.publisher().publish_all(messages)) {
            result.unwrap();
        }
        self.runtime.block_on(client.shutdown(Duration::ZERO));
    }

    /// Number of ready messages in the queue with this suffix; none if it does not exist.
    pub(crate) fn depth(&self, suffix: &str) -> Option<u32> {
        let name = format!("{}{suffix}", self.queue);
        self.runtime.block_on(self.client().queue_depth(&name)).ok().map(|(messages, _)| messages)
    }

    /// Waits until the queue with this suffix has this many ready messages.
    #[track_caller]
    pub(crate) fn wait_for_depth(&self, suffix: &str, messages: u32) {
        self.wait_until(&format!("{messages} messages"), || self.depth(suffix) == Some(messages));
    }

    #[track_caller]
    pub(crate) fn wait_until(&self, what: &str, mut condition: impl FnMut() -> bool) {
        let started = Instant::now();
        while !condition() {
            assert!(started.elapsed() < TIMEOUT, "timeout: {what}; the queue has {:?} messages", self.depth(""));
            std::thread::park_timeout(Duration::from_millis(20));
        }
    }

    /// Consumes this many messages of the queue with this suffix.
    pub(crate) fn take(&self, suffix: &str, count: usize) -> Vec<Delivery> {
        let name = format!("{}{suffix}", self.queue);
        let taken = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&taken);
        let consumer = Consumer::new(&name, "take").dead_letters("amq.fanout", "").workers(1).handle(move |delivery| {
            log.lock().unwrap().push(delivery);
            async { Ok(()) }
        });
        let builder = Client::builder(self.broker.uri()).queue(Queue::existing(&name)).consumer(consumer);
        let client = self.runtime.block_on(builder.start()).unwrap();
        self.wait_until(&format!("{count} of {name}"), || taken.lock().unwrap().len() >= count);
        self.runtime.block_on(client.shutdown(Duration::from_secs(5)));
        let mut taken = taken.lock().unwrap();
        std::mem::take(&mut taken)
    }

    /// Returns a command of the binary with the URI of the broker in its environment.
    pub(crate) fn command(&self, words: &[&str]) -> Command {
        let mut command = self.home.command(words);
        command.env("GRISTMILL_AMQP_URI", self.broker.uri());
        command
    }

    /// Runs the binary and checks that it does not print the password.
    #[track_caller]
    pub(crate) fn run(&self, words: &[&str]) -> RunOutput {
        self.output(self.command(words))
    }

    /// Runs a command and checks that it does not print the password.
    #[track_caller]
    pub(crate) fn output(&self, mut command: Command) -> RunOutput {
        without(self.broker.password(), RunOutput::of(&command.output().unwrap()))
    }

    /// Drains the queue, and returns the statistics of the consumer with its standard error in `stderr`.
    #[track_caller]
    pub(crate) fn drain(&self, words: &[&str]) -> serde_json::Value {
        let fixed = ["consume", &self.queue, "--json", "--drain", "--for", "2m"];
        let output = self.run(&[&fixed, words].concat());
        assert_eq!(output.code, Some(0), "{words:?}: {output:?}");
        let mut value = output.json();
        value["consumers"][0]["stderr"] = output.err.into();
        value["consumers"][0].take()
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        if let Some(client) = self.client.take() {
            self.runtime.block_on(client.shutdown(Duration::ZERO));
        }
    }
}

/// Checks that the output does not contain the password of the broker.
#[track_caller]
pub(crate) fn check_no_password(output: RunOutput) -> RunOutput {
    without(broker().password(), output)
}

#[track_caller]
fn without(password: &str, output: RunOutput) -> RunOutput {
    assert!(!output.out.contains(password) && !output.err.contains(password), "the password was printed: {output:?}");
    output
}

/// Returns a header of a message as text, empty if missing.
pub(crate) fn header(delivery: &Delivery, name: &str) -> String {
    delivery.headers().get(name).map(ToString::to_string).unwrap_or_default()
}

pub(crate) fn body(delivery: &Delivery) -> String {
    String::from_utf8(delivery.body().to_vec()).unwrap()
}
