//! `gristmill consume`: messages of RabbitMQ's queues, each given to an action.
//!
//! Owns what was asked for, and how that becomes consumers of the broker's client. What an action does with a message
//! stands in a file for each; how it is waited for, in `attend`; acknowledging, retrying and burying is the client's
//! affair.

mod args;
mod batch;
mod databases;
mod drain;
mod exec;
mod gather;
mod http;
mod metadata;
mod metrics;
mod policy;
mod returning;
mod status;
mod streams;
pub(super) mod supervisor;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use gristmill_amqp::{
    Binding, Client, ClientBuilder, Consumer, Delivery, Error as Fault, Exchange, Offset, Queue,
};
use gristmill_jobs::ProcessGroups;
use gristmill_store::{Error as StoreError, Store};
use tokio::runtime::Handle;
use tokio::sync::watch;

pub(crate) use self::args::Args;
use self::batch::Batching;
use self::databases::Table;
use self::exec::Exec;
use self::gather::Gather;
use self::http::Http;
pub(super) use self::metadata::MESSAGE_VARIABLES;
use self::returning::Returning;
use self::supervisor::{Check, Supervisor};
use super::amqp_common;
use super::management::Management;
use crate::context::{Context, create_data_folder};
use crate::error::{Error, Outcome};
use crate::output::note;
use crate::settings::consumers::{self, Action};
use crate::settings::typed::Typed;
use crate::settings::{Origin, ResolvedSetting, Settings, absolute, keys};

/// How long a request may take, unless it is said.
const HTTP_TIMEOUT: Duration = Duration::from_secs(30);

/// So many wait for a commit together, and so many are sent ahead meanwhile. Those that wait cost nothing.
const TOGETHER: (usize, usize) = (200, 500);

/// What actions and those who wait for the end know of each other.
struct Ends {
    /// True: there is no more time, not even to finish.
    halted: watch::Receiver<bool>,
    /// What has to be so for consuming to continue.
    checks: Mutex<Vec<Check>>,
}

impl Ends {
    fn watch(&self, check: Check) {
        self.checks.lock().unwrap_or_else(PoisonError::into_inner).push(check);
    }
}

pub(crate) fn run(args: &Args, context: &mut Context) -> Result<Outcome, Error> {
    args.note(context);
    let settings = context.settings()?;
    let chosen = args.choose(&settings)?;
    let limits = args.limits()?;
    let (signals, mut told) = amqp_common::signals(2)?;
    let (halt, halted) = watch::channel(false);
    let ends = Ends { halted, checks: Mutex::default() };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let runtime = amqp_common::runtime(cores.clamp(2, 4))?;
    // Threads of the pools are started, and their stores opened, where tasks can run.
    let _guard = runtime.enter();
    let limit = limits.limit.into_iter().chain(limits.drain).min();
    let opened = runtime.block_on(databases::open_store(&settings, limit, &mut told));
    let Some(opened) = opened.transpose() else {
        // Does not wait for the thread that opens the database.
        runtime.shutdown_background();
        return Ok(Outcome::Interrupted);
    };
    let builder = assemble(&chosen, &settings, opened, &ends)?;
    let started = Instant::now();
    let ended = runtime.block_on(async {
        let listener = match settings.amqp.metrics {
            Some(address) => Some(metrics::bind(address).await?),
            None => None,
        };
        let client = tokio::select! {
            client = builder.start() => client.map_err(|fault| not_started(fault, &chosen))?,
            Some(()) = told.recv() => return Ok(None),
        };
        let stats = client.stats_handle();
        if let Some(listener) = listener {
            if let (false, Ok(address)) = (context.quiet, listener.local_addr()) {
                note(&format!("metrics are at http://{address}/metrics"));
            }
            tokio::spawn(metrics::serve(listener, stats.clone()));
        }
        if !context.quiet {
            note(&tell_start(&chosen, &client));
        }
        let shown = status::show(stats.clone(), context.quiet);
        let mut attended = Supervisor {
            watch: stats,
            told,
            halt,
            quiet: context.quiet,
            shutdown: settings.amqp.shutdown,
            limit: limits.limit,
            drain: limits.drain.map(|timeout| (timeout, Returning::new(Management::of(&settings)))),
            is_bounded: chosen.iter().any(can_be_full),
            unfinished: None,
            times_told: 0,
            checks: std::mem::take(&mut *ends.checks.lock().unwrap_or_else(PoisonError::into_inner)),
            failure: None,
        };
        let stats = attended.until_stopped(client).await;
        shown.end();
        if let Some(error) = attended.failure {
            return Err(error);
        }
        Ok::<_, Error>(Some((stats.map_err(amqp_common::failed)?, attended.times_told, attended.unfinished)))
    });
    // What still runs has had its time.
    runtime.shutdown_background();
    let Some((stats, told, unfinished)) = ended? else { return Ok(Outcome::Interrupted) };
    signals.stop();
    let has_end = limits.drain.is_some() || limits.limit.is_some();
    let interrupted = told > 1 || (told > 0 && has_end);
    let paused = stats.consumers.iter().find_map(|one| Some((&one.queue, one.paused.as_deref()?)));
    let elapsed = started.elapsed();
    let value = status::value(&stats, elapsed, interrupted)?;
    context.output.summary(&value, Outcome::Done, |output| status::text(&stats, elapsed, output))?;
    if let Some(unfinished) = unfinished {
        return Err(Error::System(unfinished));
    }
    match paused {
        Some((queue, why)) if has_end && !interrupted => Err(Error::System(format!(
            "ended while consuming was paused: messages of {queue} are left, because what they are handed to fails: {why}"
        ))),
        _ => Ok(if interrupted { Outcome::Interrupted } else { Outcome::Done }),
    }
}

/// Why consuming cannot start, with the next step. A dead queue that exists with other arguments can be used as it is.
fn not_started(fault: Fault, chosen: &[consumers::Consumer]) -> Error {
    let text = fault.to_string();
    let is_dead_queue = |one: &&consumers::Consumer| {
        one.dead_letters.is_none() && text.contains(&format!("queue '{}.dead'", one.queue))
    };
    match (amqp_common::difference(&text), chosen.iter().find(is_dead_queue)) {
        (Some(difference), Some(one)) => Error::Setting(format!(
            "{difference}. `--dead-letters :{}.dead` has dead letters sent to it as it is",
            one.queue
        )),
        _ => amqp_common::failed(fault),
    }
}

/// Whether the queue is declared here to refuse messages while it is full: the broker then cannot return those that waited.
fn can_be_full(one: &consumers::Consumer) -> bool {
    let refuses = |(name, value): &Typed| {
        name == "x-overflow" && value.as_str().is_some_and(|text| text.starts_with("reject-publish"))
    };
    one.arguments.iter().any(refuses)
}

fn tell_start(chosen: &[consumers::Consumer], client: &Client) -> String {
    let stats = client.stats();
    let told = chosen.iter().zip(&stats.consumers).map(|(one, stats)| {
        let action = match &one.action {
            // All of it: flags behind the command are the command's.
            Action::Exec(words) => words.join(" "),
            Action::Http(_) => "a POST".to_owned(),
            Action::Enqueue { kind, .. } => format!("a task of the kind {kind}"),
            Action::Into { database, table } => format!("the table {table} of {}", database.display()),
        };
        let queue = format!("{}{}", one.queue, tell_position(one, stats.began_at));
        match one.batch {
            Some((size, _)) => format!("{queue} to {action} (up to {size} in a batch)"),
            None => format!("{queue} to {action} ({} at a time)", stats.workers),
        }
    });
    format!("consuming {}", told.collect::<Vec<_>>().join(", "))
}

/// Where reading of a stream begins, if that is known before the first message.
fn tell_position(one: &consumers::Consumer, position: Option<u64>) -> String {
    let Some(at) = position else { return String::new() };
    let is_other = match &one.offset {
        Some(Offset::Number(number)) => *number != at,
        Some(Offset::First | Offset::Last) => true,
        Some(Offset::Next) | None => false,
    };
    match is_other && !one.rewind {
        true => format!(" from offset {at} (--offset is for the first time; --rewind begins there again)"),
        false => format!(" from offset {at}"),
    }
}

/// Everything that is to be at the broker, and every consumer. What makes no sense is told before anything connects.
fn assemble(
    chosen: &[consumers::Consumer],
    settings: &Settings,
    opened: Result<Store, Error>,
    ends: &Ends,
) -> Result<ClientBuilder, Error> {
    let mut builder = amqp_common::builder(&settings.amqp, "gristmill consume");
    let needs_store = |one: &consumers::Consumer| {
        let has_ids = one.once_within.is_some() && !matches!(one.action, Action::Into { .. });
        one.keep_letters || has_ids || one.is_stream() || matches!(one.action, Action::Enqueue { .. })
    };
    // Starts of messages are counted there. Where nothing else needs it, it may be missing.
    let store = match opened {
        Ok(store) => Some(store),
        Err(error @ Error::Store(StoreError::Busy(_))) => return Err(error),
        Err(error) if chosen.iter().any(needs_store) => return Err(error),
        Err(error) => {
            tracing::warn!(
                "{error}. Without the database starts of messages are not counted: one that ends this process is delivered \
                 again without limit"
            );
            None
        }
    };
    if let Some(store) = &store {
        let opened = store.clone();
        ends.watch(Box::new(move || Ok(opened.check_in_place()?)));
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
        builder = builder.consumer(consumer(one, settings, store.as_ref(), ends)?);
    }
    // A queue for dead letters must exist before the first of them is published.
    for (exchange, queue) in chosen.iter().filter_map(|one| one.dead_letters.as_ref()) {
        if exchange.is_empty() && !queues.contains(&queue) {
            queues.push(queue);
            builder = builder.queue(Queue::existing(queue));
        }
    }
    builder.check().map_err(amqp_common::failed)?;
    Ok(builder)
}

fn consumer(
    one: &consumers::Consumer,
    settings: &Settings,
    store: Option<&Store>,
    ends: &Ends,
) -> Result<Consumer, Error> {
    let mut made = Consumer::new(&one.queue, &one.name)
        .retry(policy::retry(one, false))
        .retry_in_place(policy::retry(one, true))
        .store_position()
        .workers(one.workers)
        .prefetch(one.prefetch);
    if let Some(event) = &one.event {
        made = made.event(event);
    }
    if let Some(order) = &one.order_by {
        made = made.order_by(order.clone());
    }
    if let Some((exchange, key)) = &one.dead_letters {
        made = made.dead_letters(exchange, key);
    }
    if one.keep_letters {
        made = made.store_dead_letters();
    }
    // A table has the ids of its rows itself.
    let is_into = matches!(one.action, Action::Into { .. });
    if let Some(window) = one.once_within.filter(|_| !is_into) {
        made = made.dedup_window(window);
    }
    if let Some(count) = one.max_starts {
        made = made.max_starts(count);
    }
    if let Some(limit) = one.consumer_timeout {
        made = made.consumer_timeout(limit);
    }
    if let Some(offset) = &one.offset {
        made = made.offset(offset.clone());
    }
    if one.rewind {
        made = made.rewind();
    }
    if one.exclusive {
        made = made.exclusive();
    }
    with_action(made, one, settings, store, ends)
}

fn with_action(
    made: Consumer,
    one: &consumers::Consumer,
    settings: &Settings,
    store: Option<&Store>,
    ends: &Ends,
) -> Result<Consumer, Error> {
    let watch = |gather: &Gather| {
        let threads = gather.threads();
        ends.watch(Box::new(move || threads.check()));
    };
    let gathered = |made: Consumer, gather: Gather| {
        let (workers, _) = TOGETHER;
        watch(&gather);
        // A limit of the whole attempt would end it while its row is written, and the message would be written again.
        let gather = gather.within(one.timeout);
        let made = one.timeout.into_iter().fold(made, Consumer::handler_timeout);
        made.workers(if one.workers == 0 { workers } else { one.workers })
            .handler_records_starts()
            .handle(move |delivery| gather.clone().write(delivery))
    };
    // Each run of a batch has the time limit; waiting for the batch has none.
    let batched = |made: Consumer, gather: Gather| {
        let (handlers, prefetch) = TOGETHER;
        watch(&gather);
        made.workers(handlers)
            .handler_records_starts()
            .prefetch(if one.prefetch == 0 { prefetch } else { one.prefetch })
            .handle(move |delivery| gather.clone().write(delivery))
    };
    let batching = one.batch.map(|(size, linger)| Batching { size, linger, parallel: one.workers.max(1) });
    Ok(match &one.action {
        Action::Exec(words) => {
            let timeout = one.timeout.or(settings.exec.timeout);
            exec::look_for(words)?;
            let is_default = |shown: &ResolvedSetting| {
                shown.key.name == keys::EXEC_TIMEOUT.name && shown.origin == Origin::Default
            };
            // The default is longer than most brokers wait. That it was exceeded is logged when it happens.
            let chosen = one.timeout.or(timeout.filter(|_| !settings.resolved.iter().any(is_default)));
            let made = chosen.into_iter().fold(made, Consumer::handler_timeout);
            // Without the folder, commands are not recorded, which is logged.
            let _ = create_data_folder(settings);
            let groups = ProcessGroups::for_database(&settings.database);
            let exec = Exec::new(words.clone(), timeout, ends.halted.clone(), groups);
            if let Some(batching) = batching {
                let runtime = Handle::current();
                let run =
                    move |some: &[Delivery], lines: Vec<u8>| runtime.block_on(exec.run_batch(some, &lines));
                return Ok(batched(made, batch::gather("exec", batching, run)?));
            }
            made.handle(move |delivery| Arc::clone(&exec).run(delivery))
        }
        Action::Http(url) => {
            let timeout = one.timeout.unwrap_or(HTTP_TIMEOUT);
            let made = made.handler_timeout(timeout);
            let http = Http::new(url.clone(), timeout, one.http_retry_status.clone())?;
            if let Some(batching) = batching {
                let http = Arc::new(http);
                let run = move |some: &[Delivery], lines: Vec<u8>| http.post_batch(some, &lines);
                return Ok(batched(made, batch::gather("http", batching, run)?));
            }
            made.handle_blocking(move |delivery| http.post(delivery))
        }
        Action::Enqueue { kind, queue } => {
            let Some(store) = store else {
                return Err(Error::System("there is no store for tasks".to_owned()));
            };
            gathered(made, Gather::enqueue(store.clone(), kind.clone(), queue.clone())?)
        }
        Action::Into { database, table } => {
            let once = one.once_within.map(|window| (format!("amqp:{}", one.queue), window));
            let table = Table::open(absolute(database)?, table, once)?;
            let state = table.state();
            ends.watch(Box::new(move || state.check()));
            gathered(made, Gather::into(table)?)
        }
    })
}
