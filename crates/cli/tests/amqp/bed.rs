//! What the tests share: a broker, queues of their own, and the binary with the broker's URI in its environment.

use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use gristmill_amqp::{Client, Consumer, Delivery, Message, Queue};
use gristmill_broker::{Broker, Settings};
use tokio::runtime::Runtime;

use crate::common::{Home, RunOutput};

/// One for all tests that do nothing to it. It ends with the process.
pub(crate) fn broker() -> &'static Broker {
    static BROKER: OnceLock<Broker> = OnceLock::new();
    BROKER.get_or_init(|| Broker::start().unwrap_or_else(|fault| panic!("{fault}")))
}

/// One with the management plugin, for all tests of it.
pub(crate) fn broker_with_management() -> &'static Broker {
    static BROKER: OnceLock<Broker> = OnceLock::new();
    let start =
        || Broker::start_with(&Settings::new().management()).unwrap_or_else(|fault| panic!("{fault}"));
    BROKER.get_or_init(start)
}

/// For what never comes.
const LIMIT: Duration = Duration::from_secs(120);

/// A home, a queue with a name that no other test has, and a client of the broker.
pub(crate) struct Bed {
    pub(crate) home: Home,
    pub(crate) queue: String,
    broker: &'static Broker,
    client: Option<Client>,
    runtime: Runtime,
}

impl Bed {
    /// With a quorum queue of its own.
    pub(crate) fn new(what: &str) -> Self {
        Self::with(what, |queue| queue)
    }

    /// With a quorum queue of its own that has these arguments.
    pub(crate) fn with(what: &str, arguments: fn(Queue) -> Queue) -> Self {
        Self::at(broker(), what, arguments)
    }

    /// The same at another broker.
    pub(crate) fn at(broker: &'static Broker, what: &str, arguments: fn(Queue) -> Queue) -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let queue = format!("{what}-{}", COUNT.fetch_add(1, Relaxed));
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let builder = Client::builder(broker.uri()).queue(arguments(Queue::quorum(&queue)));
        let client = runtime.block_on(builder.start()).unwrap();
        Bed { home: Home::new(), queue, broker, client: Some(client), runtime }
    }

    /// Declares a queue that is named like ours with this behind.
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

    /// Publishes to the queue until that takes no more.
    pub(crate) fn fill(&self, body: &str) -> usize {
        self.fill_queue(&self.queue, body)
    }

    /// Publishes to a queue until that takes no more. The client is a new one: after a refusal the broker refuses all that
    /// comes from the same channel until the queue is well below its limit.
    pub(crate) fn fill_queue(&self, queue: &str, body: &str) -> usize {
        let client = self.runtime.block_on(Client::builder(self.broker.uri()).start()).unwrap();
        let publisher = client.publisher();
        let one = || self.runtime.block_on(publisher.publish(Message::to_queue(queue, body.to_owned())));
        let count = std::iter::repeat_with(one).take_while(Result::is_ok).count();
        self.runtime.block_on(client.shutdown(Duration::ZERO));
        count
    }

    /// Makes a queue of this kind and puts messages into it.
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

    /// How many are ready in a queue that is named like ours with this behind; none if it is not there.
    pub(crate) fn depth(&self, suffix: &str) -> Option<u32> {
        let name = format!("{}{suffix}", self.queue);
        self.runtime.block_on(self.client().queue_depth(&name)).ok().map(|(messages, _)| messages)
    }

    /// Waits until so many are ready.
    #[track_caller]
    pub(crate) fn depth_is(&self, suffix: &str, messages: u32) {
        self.until(&format!("{messages} messages"), || self.depth(suffix) == Some(messages));
    }

    #[track_caller]
    pub(crate) fn until(&self, what: &str, mut is: impl FnMut() -> bool) {
        let since = Instant::now();
        while !is() {
            assert!(since.elapsed() < LIMIT, "waited in vain for {what}; the queue has {:?}", self.depth(""));
            std::thread::park_timeout(Duration::from_millis(20));
        }
    }

    /// Takes so many from a queue that is named like ours with this behind.
    pub(crate) fn take(&self, suffix: &str, count: usize) -> Vec<Delivery> {
        let name = format!("{}{suffix}", self.queue);
        let taken = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&taken);
        let consumer = Consumer::new(&name, "taking").dead_letters("amq.fanout", "").workers(1).handle(
            move |delivery| {
                log.lock().unwrap().push(delivery);
                async { Ok(()) }
            },
        );
        let builder = Client::builder(self.broker.uri()).queue(Queue::existing(&name)).consumer(consumer);
        let client = self.runtime.block_on(builder.start()).unwrap();
        self.until(&format!("{count} of {name}"), || taken.lock().unwrap().len() >= count);
        self.runtime.block_on(client.shutdown(Duration::from_secs(5)));
        let mut taken = taken.lock().unwrap();
        std::mem::take(&mut taken)
    }

    /// The binary, with the broker's place in its environment.
    pub(crate) fn command(&self, words: &[&str]) -> Command {
        let mut command = self.home.command(words);
        command.env("GRISTMILL_AMQP_URI", self.broker.uri());
        command
    }

    /// Runs the binary, and checks that it does not print the password.
    #[track_caller]
    pub(crate) fn run(&self, words: &[&str]) -> RunOutput {
        self.output(self.command(words))
    }

    /// Runs a command, and checks that it does not print the password.
    #[track_caller]
    pub(crate) fn output(&self, mut command: Command) -> RunOutput {
        without(self.broker.password(), RunOutput::of(&command.output().unwrap()))
    }

    /// Consumes our queue until nothing is left, and reads what it says in the end.
    #[track_caller]
    pub(crate) fn drain(&self, words: &[&str]) -> serde_json::Value {
        let fixed = ["consume", &self.queue, "--json", "--drain", "--for", "2m"];
        let said = self.run(&[&fixed, words].concat());
        assert_eq!(said.code, Some(0), "{words:?}: {said:?}");
        let mut value = said.json();
        value["consumers"][0]["said"] = said.err.into();
        value["consumers"][0].take()
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        if let Some(client) = self.client.take() {
            self.runtime.block_on(client.shutdown(Duration::ZERO));
        }
    }
}

/// Checks that the output does not have the broker's password in it.
#[track_caller]
pub(crate) fn clean(said: RunOutput) -> RunOutput {
    without(broker().password(), said)
}

#[track_caller]
fn without(password: &str, said: RunOutput) -> RunOutput {
    assert!(
        !said.out.contains(password) && !said.err.contains(password),
        "the password is printed: {said:?}"
    );
    said
}

/// A header of a message, as text.
pub(crate) fn header(delivery: &Delivery, name: &str) -> String {
    delivery.headers().get(name).map(ToString::to_string).unwrap_or_default()
}

pub(crate) fn body(delivery: &Delivery) -> String {
    String::from_utf8(delivery.body().to_vec()).unwrap()
}
