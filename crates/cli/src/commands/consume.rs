//! `gristmill consume`: consumes RabbitMQ queues and runs an action for each message.
//!
//! Turns arguments and settings into consumers of the AMQP client. `args` declares the flags, each action has a module,
//! `end` waits for the end. The client (`gristmill-amqp`) acknowledges, retries and dead-letters messages.

mod args;
mod batch;
mod batch_writer;
mod drain;
mod end;
mod exec;
mod http;
mod metadata;
mod open_databases;
mod returning_counter;
mod status;
mod streams;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use gristmill_amqp::{Binding, Client, ClientBuilder, Consumer, Delivery, Error as AmqpError, Exchange, Offset, Queue};
use gristmill_jobs::ProcessGroups;
use gristmill_pool::CancelToken;
use gristmill_store::{Error as StoreError, Store};
use tokio::runtime::Handle;

pub(crate) use self::args::Args;
use self::batch_writer::{BatchResult, WriterPanic};
use self::end::{Check, Consuming};
use self::exec::{Exec, RunningCommands};
use self::http::Http;
pub(super) use self::metadata::is_message_variable;
use self::open_databases::SinkTable;
use self::returning_counter::ReturningCounter;
use super::management::Management;
use super::{amqp_common, metrics};
use crate::context::{Context, create_data_folder};
use crate::error::{Error, Outcome};
use crate::output::note;
use crate::settings::consumers::{self, Action};
use crate::settings::typed::Typed;
use crate::settings::{Origin, ResolvedSetting, Settings, absolute, keys};
use crate::supervisor::Supervisor;
use crate::units::show_duration;

/// Timeout of a request, unless `--timeout` is given.
const HTTP_TIMEOUT: Duration = Duration::from_secs(30);

/// Messages that `--into` and `--enqueue` write in one transaction, unless `--workers` is given.
const COMMIT_MESSAGES: usize = 200;

/// Time to drop the actions that are left after the shutdown timeout.
const DROP_TIMEOUT: Duration = Duration::from_millis(500);

/// State shared by the actions and the supervisor.
struct RunControl {
    /// Cancelled when running actions must end at once.
    abort: CancelToken,
    running: RunningCommands,
    /// Consuming stops when one of these fails.
    checks: Mutex<Vec<Check>>,
}

impl RunControl {
    fn add_check(&self, check: Check) {
        self.checks.lock().unwrap_or_else(PoisonError::into_inner).push(check);
    }
}

pub(crate) fn run(args: &Args, context: &mut Context) -> Result<Outcome, Error> {
    args.apply(context);
    let settings = context.settings()?;
    let chosen = args.choose(&settings)?;
    let limits = args.limits();
    let supervisor = Supervisor::with_forced_stop(context.quiet)?;
    let control =
        RunControl { abort: supervisor.force.child(), running: RunningCommands::default(), checks: Mutex::default() };
    let runtime = amqp_common::runtime(keys::cores().clamp(2, 4))?;
    // Pools and stores start tasks, which requires a runtime.
    let _guard = runtime.enter();
    let limit = limits.limit.into_iter().chain(limits.drain).min();
    let opened = runtime.block_on(open_databases::open_store(&settings, limit, &supervisor.stop));
    let Some(opened) = opened.transpose() else {
        // Does not wait for the thread that is opening the database.
        runtime.shutdown_background();
        return Ok(Outcome::Interrupted);
    };
    let builder = build_client(&chosen, &settings, opened, &control)?;
    let started = Instant::now();
    let ended = runtime.block_on(async {
        let metrics_listener = match settings.amqp.metrics {
            Some(address) => Some(metrics::bind(address).await?),
            None => None,
        };
        let client = tokio::select! {
            client = builder.start() => client.map_err(|error| start_error(error, &chosen))?,
            () = supervisor.stop.cancelled() => return Ok(None),
        };
        let stats = client.stats_handle();
        if let Some(listener) = metrics_listener {
            if let (false, Ok(address)) = (context.quiet, listener.local_addr()) {
                note(&format!("serving metrics at http://{address}/metrics"));
            }
            let stats = stats.clone();
            tokio::spawn(metrics::serve(listener, move || stats.stats().prometheus()));
        }
        if !context.quiet {
            note(&describe_start(&chosen, &client));
        }
        let progress = status::start_progress(stats, context.quiet);
        let mut consuming = Consuming {
            supervisor: &supervisor,
            abort: control.abort.clone(),
            running: control.running.clone(),
            quiet: context.quiet,
            shutdown: settings.amqp.shutdown,
            limit: limits.limit,
            drain: limits.drain.map(|timeout| (timeout, ReturningCounter::new(Management::from_settings(&settings)))),
            rejects_when_full: chosen.iter().any(rejects_when_full),
            unfinished: None,
            checks: std::mem::take(&mut *control.checks.lock().unwrap_or_else(PoisonError::into_inner)),
            failure: None,
        };
        let stats = consuming.until_stopped(client).await;
        drop(progress);
        match consuming.failure {
            Some(error) => Err(error),
            None => Ok(Some((stats.map_err(amqp_common::failed)?, consuming.unfinished))),
        }
    });
    // The shutdown timeout of actions that still run is over. Their commands were terminated; requests that block are
    // not waited for.
    runtime.shutdown_timeout(DROP_TIMEOUT);
    let Some((stats, unfinished)) = ended? else { return Ok(Outcome::Interrupted) };
    let has_end = limits.drain.is_some() || limits.limit.is_some();
    let outcome = supervisor.outcome(has_end);
    drop(supervisor);
    let interrupted = outcome == Outcome::Interrupted;
    let paused = stats.consumers.iter().find_map(|one| Some((&one.queue, one.paused.as_deref()?)));
    let elapsed = started.elapsed();
    let value = status::summary_json(&stats, elapsed, interrupted)?;
    context.output.summary(&value, Outcome::Done, |output| status::summary_text(&stats, elapsed, output))?;
    if let Some(unfinished) = unfinished {
        return Err(Error::System(unfinished));
    }
    match paused {
        Some((queue, why)) if has_end && !interrupted => Err(Error::System(format!(
            "ended while consuming was paused: messages are left in {queue}, because the action fails: {why}"
        ))),
        _ => Ok(outcome),
    }
}

/// Adds advice to the error that prevents the start: a dead queue with other arguments can be used unchanged.
fn start_error(error: AmqpError, chosen: &[consumers::Consumer]) -> Error {
    let text = error.to_string();
    let is_dead_queue = |one: &&consumers::Consumer| {
        one.dead_letters.is_none() && text.contains(&format!("queue '{}.dead'", one.queue))
    };
    match (amqp_common::difference(&text), chosen.iter().find(is_dead_queue)) {
        (Some(difference), Some(one)) => {
            Error::Setting(format!("{difference}. Use the existing queue with --dead-letters :{}.dead", one.queue))
        }
        _ => amqp_common::failed(error),
    }
}

/// Whether the queue is declared to reject messages while it is full. The broker then cannot return messages that
/// waited for a retry.
fn rejects_when_full(one: &consumers::Consumer) -> bool {
    let rejects = |(name, value): &Typed| {
        name == "x-overflow" && value.as_str().is_some_and(|text| text.starts_with("reject-publish"))
    };
    one.arguments.iter().any(rejects)
}

fn describe_start(chosen: &[consumers::Consumer], client: &Client) -> String {
    let stats = client.stats();
    let descriptions = chosen.iter().zip(&stats.consumers).map(|(one, stats)| {
        let action = match &one.action {
            // The whole command, because flags after --exec belong to it.
            Action::Exec(words) => format!("with {}", words.join(" ")),
            Action::Http(_) => "with POST requests".to_owned(),
            Action::Enqueue { kind, .. } => format!("into tasks of kind {kind}"),
            Action::Into { database, table } => format!("into table {table} of {}", database.display()),
        };
        let queue = format!("{}{}", one.queue, describe_position(one, stats.began_at));
        match one.batch() {
            Some((size, _)) => format!("{queue} {action} (batches of up to {size})"),
            None => format!("{queue} {action} ({} at a time)", stats.workers),
        }
    });
    format!("consuming {}", descriptions.collect::<Vec<_>>().join(", "))
}

/// Describes where reading of a stream starts, if that is known before the first message.
fn describe_position(one: &consumers::Consumer, position: Option<u64>) -> String {
    let Some(at) = position else { return String::new() };
    let is_other = match &one.offset {
        Some(Offset::Number(number)) => *number != at,
        Some(Offset::First | Offset::Last) => true,
        Some(Offset::Next) | None => false,
    };
    match is_other && !one.rewind {
        true => format!(" from offset {at} (stored position; --rewind starts at --offset again)"),
        false => format!(" from offset {at}"),
    }
}

/// Builds the client with all queues, bindings and consumers. Reports invalid combinations before anything connects.
fn build_client(
    chosen: &[consumers::Consumer],
    settings: &Settings,
    opened: Result<Store, Error>,
    control: &RunControl,
) -> Result<ClientBuilder, Error> {
    let mut builder = amqp_common::builder(&settings.amqp, "gristmill consume");
    let needs_store = |one: &consumers::Consumer| {
        let has_ids = one.dedup_window.is_some() && !matches!(one.action, Action::Into { .. });
        one.store_dead_letters || has_ids || one.is_stream() || matches!(one.action, Action::Enqueue { .. })
    };
    // The store counts starts of messages. If nothing else needs it, consuming works without it.
    let store = match opened {
        Ok(store) => Some(store),
        Err(error @ Error::Store(StoreError::Busy(_))) => return Err(error),
        Err(error) if chosen.iter().any(needs_store) => return Err(error),
        Err(error) => {
            tracing::warn!(
                "{error}. Starts of messages are not counted without the database: a message that kills this process is \
                 redelivered without limit"
            );
            None
        }
    };
    if let Some(store) = &store {
        let opened = store.clone();
        control.add_check(Box::new(move || Ok(opened.check_in_place()?)));
        builder = builder.store(store.clone());
    }
    let (mut queues, mut exchanges) = (Vec::new(), Vec::new());
    for one in chosen {
        if !queues.contains(&&one.queue) {
            queues.push(&one.queue);
            builder = builder.queue(amqp_common::queue(&one.queue, one.declare, &one.arguments));
        }
        for (exchange, key) in &one.bind {
            if !exchanges.contains(&exchange) {
                exchanges.push(exchange);
                builder = builder.exchange(Exchange::existing(exchange));
            }
            builder = builder.bind(Binding::new(&one.queue, exchange, key));
        }
        builder = builder.consumer(with_action(one, settings, store.as_ref(), control)?);
    }
    // The queue for dead letters must exist before the first one is published.
    for (exchange, queue) in chosen.iter().filter_map(|one| one.dead_letters.as_ref()) {
        if exchange.is_empty() && !queues.contains(&queue) {
            queues.push(queue);
            builder = builder.queue(Queue::existing(queue));
        }
    }
    builder.check().map_err(amqp_common::failed)?;
    Ok(builder)
}

fn with_action(
    one: &consumers::Consumer,
    settings: &Settings,
    store: Option<&Store>,
    control: &RunControl,
) -> Result<Consumer, Error> {
    let consumer = one.for_client();
    // No message waits for others: a transaction has those that arrived during the one before.
    let commits = (if one.workers == 0 { COMMIT_MESSAGES } else { one.workers }, Duration::ZERO);
    let with_commits = |consumer: Consumer| {
        // A timeout of the whole attempt could end it while its row is written, and the message would be written twice.
        one.timeout.into_iter().fold(consumer.workers(1), |consumer, limit| {
            let why = "the database is locked or slow: no transaction began within";
            let why = format!("{why} {} (--timeout)", show_duration(limit));
            consumer.handler_timeout(limit).start_timeout(limit, why)
        })
    };
    Ok(match &one.action {
        Action::Exec(words) => {
            let timeout = one.timeout.or(settings.exec.timeout);
            exec::check_program(words)?;
            let is_default = |setting: &ResolvedSetting| {
                setting.key.name == keys::EXEC_TIMEOUT.name && setting.origin == Origin::Default
            };
            // The default is longer than the consumer_timeout of most brokers, so it causes no warning at the start.
            let chosen = one.timeout.or(timeout.filter(|_| !settings.resolved.iter().any(is_default)));
            let consumer = chosen.into_iter().fold(consumer, Consumer::handler_timeout);
            // Without the folder commands are not recorded, which is logged.
            let _ = create_data_folder(settings);
            let groups = ProcessGroups::for_database(&settings.database);
            let exec = Exec::new(words.clone(), timeout, control, groups);
            if let Some(limits) = one.batch() {
                let runtime = Handle::current();
                let run = move |batch: &[Delivery], lines: Vec<u8>| runtime.block_on(exec.run_batch(batch, &lines));
                let run = move |batch: &[Delivery]| batch::run_batch(batch, &run);
                return Ok(with_writer(consumer.workers(one.workers.max(1)), "exec", limits, control, run));
            }
            consumer.handle(move |delivery| Arc::clone(&exec).run(delivery))
        }
        Action::Http(url) => {
            let timeout = one.timeout.unwrap_or(HTTP_TIMEOUT);
            let consumer = consumer.handler_timeout(timeout);
            let http = Http::new(url.clone(), timeout, one.http_retry_status.clone())?;
            if let Some(limits) = one.batch() {
                let run = move |batch: &[Delivery], lines: Vec<u8>| http.post_batch(batch, &lines);
                let run = move |batch: &[Delivery]| batch::run_batch(batch, &run);
                return Ok(with_writer(consumer.workers(one.workers.max(1)), "http", limits, control, run));
            }
            consumer.handle_blocking(move |delivery| http.post(delivery))
        }
        Action::Enqueue { kind, queue } => {
            let Some(store) = store else {
                return Err(Error::System("--enqueue needs the database".to_owned()));
            };
            let write = batch_writer::into_tasks(store.clone(), kind.clone(), queue.clone());
            with_writer(with_commits(consumer), "enqueue", commits, control, write)
        }
        Action::Into { database, table } => {
            let dedup = one.dedup_window.map(|window| (format!("amqp:{}", one.queue), window));
            let table = SinkTable::open(absolute(database)?, table, dedup)?;
            let state = table.state();
            control.add_check(Box::new(move || state.check()));
            with_writer(with_commits(consumer), "into", commits, control, batch_writer::into_table(table))
        }
    })
}

/// Sets a handler that writes batches. Consuming ends if it panics.
fn with_writer(
    consumer: Consumer,
    name: &'static str,
    (max, linger): (usize, Duration),
    control: &RunControl,
    write: impl Fn(&[Delivery]) -> BatchResult + Send + Sync + 'static,
) -> Consumer {
    let panic = WriterPanic::default();
    let checked = panic.clone();
    control.add_check(Box::new(move || checked.check(name)));
    consumer.handle_batch(max, linger, move |batch| panic.catch(|| write(batch)))
}
