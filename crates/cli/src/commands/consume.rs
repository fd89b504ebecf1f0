//! `gristmill consume`: messages of RabbitMQ's queues, each given to an action.
//!
//! Owns what was asked for, and how that becomes consumers of the broker's client. What an action does with a message
//! stands in a file for each; how it is waited for, in `attend`; acknowledging, retrying and burying is the client's
//! affair.

mod about;
pub(super) mod attend;
mod exec;
mod flags;
mod gather;
mod http;
mod metrics;
mod told;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use gristmill_amqp::{Binding, Builder, Client, Consumer, Delivery, Exchange, Queue};
use gristmill_jsonl::Sink;
use gristmill_pool::Retry;
use gristmill_store::Store;
use tokio::sync::watch;

use self::attend::Attended;
use self::exec::Exec;
pub(crate) use self::flags::Args;
use self::gather::Gather;
use self::http::Http;
use super::broker;
use crate::context::{Context, open_or_create};
use crate::error::{Error, Outcome};
use crate::output::aside;
use crate::settings::consumers::{self, Action, Kind};
use crate::settings::{Settings, absolute};

/// No wait between two attempts is longer, unless the other side asks for it.
const LONGEST_RETRY: Duration = Duration::from_secs(300);

/// How long a request may take, unless it is said.
const HTTP_TIMEOUT: Duration = Duration::from_secs(30);

/// So many wait for a commit together, and so many are sent ahead meanwhile. Those that wait cost nothing.
const TOGETHER: (usize, usize) = (200, 500);

/// What actions and those who wait for the end know of each other.
struct Ends {
    /// True: there is no more time, not even to finish.
    halted: watch::Receiver<bool>,
    /// How many messages came to be tried again.
    seen_again: Arc<AtomicU64>,
}

type Note = Box<dyn Fn(&Delivery) + Send + Sync>;

pub(crate) fn run(args: &Args, context: &mut Context) -> Result<Outcome, Error> {
    args.note(context);
    let settings = context.settings()?;
    let chosen = args.choose(&settings)?;
    let limits = args.limits()?;
    let (signals, told) = broker::signals(2)?;
    let (halt, halted) = watch::channel(false);
    let ends = Ends { halted, seen_again: Arc::default() };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let runtime = broker::runtime(cores.clamp(2, 4))?;
    // Threads of the pools are started, and their stores opened, where tasks can run.
    let _guard = runtime.enter();
    let builder = assemble(&chosen, &settings, &ends)?;
    let started = Instant::now();
    let ended = runtime.block_on(async {
        let mut told = told;
        let listener = match settings.amqp.metrics {
            Some(address) => Some(metrics::bind(address).await?),
            None => None,
        };
        let client = tokio::select! {
            client = builder.start() => client.map_err(broker::failed)?,
            Some(()) = told.recv() => return Ok(None),
        };
        let watch = client.watch();
        if let Some(listener) = listener {
            if let (false, Ok(address)) = (context.quiet, listener.local_addr()) {
                aside(&format!("metrics are at http://{address}/metrics"));
            }
            tokio::spawn(metrics::serve(listener, watch.clone()));
        }
        if !context.quiet {
            aside(&tell_start(&chosen, &client));
        }
        let shown = told::show(watch.clone(), context.quiet);
        let mut attended = Attended {
            watch,
            told,
            halt,
            quiet: context.quiet,
            shutdown: settings.amqp.shutdown,
            limit: limits.limit,
            drain: limits.drain,
            seen_again: Arc::clone(&ends.seen_again),
            times_told: 0,
        };
        let stats = attended.until_stopped(client).await;
        shown.end();
        Ok::<_, Error>(Some((stats.map_err(broker::failed)?, attended.times_told)))
    });
    // What still runs has had its time.
    runtime.shutdown_background();
    let Some((stats, told)) = ended? else { return Ok(Outcome::Interrupted) };
    signals.stop();
    let has_end = limits.drain || limits.limit.is_some();
    let interrupted = told > 1 || (told > 0 && has_end);
    let elapsed = started.elapsed();
    let value = told::value(&stats, elapsed, interrupted)?;
    context.output.summary(&value, Outcome::Done, |output| told::text(&stats, elapsed, output))?;
    Ok(if interrupted { Outcome::Interrupted } else { Outcome::Done })
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
        format!("{} to {action} ({} at a time)", one.queue, stats.workers)
    });
    format!("consuming {}", told.collect::<Vec<_>>().join(", "))
}

/// Everything that is to be at the broker, and every consumer. What makes no sense is told before anything connects.
fn assemble(chosen: &[consumers::Consumer], settings: &Settings, ends: &Ends) -> Result<Builder, Error> {
    let mut builder = broker::builder(&settings.amqp, "gristmill consume");
    let needs_store = |one: &consumers::Consumer| {
        one.keep_letters || one.once_within.is_some() || matches!(one.action, Action::Enqueue { .. })
    };
    let store = match chosen.iter().any(needs_store) {
        true => Some(open_or_create(settings)?),
        false => None,
    };
    if let Some(store) = &store {
        builder = builder.store(store.clone());
    }
    let (mut queues, mut exchanges) = (Vec::new(), Vec::new());
    for one in chosen {
        if !queues.contains(&&one.queue) {
            queues.push(&one.queue);
            builder = builder.queue(match one.declare {
                None => Queue::existing(&one.queue),
                Some(Kind::Quorum) => Queue::quorum(&one.queue),
                Some(Kind::Classic) => Queue::classic(&one.queue),
                Some(Kind::Stream) => Queue::stream(&one.queue),
            });
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
    builder.check().map_err(broker::failed)?;
    Ok(builder)
}

fn consumer(
    one: &consumers::Consumer,
    settings: &Settings,
    store: Option<&Store>,
    ends: &Ends,
) -> Result<Consumer, Error> {
    let retry = Retry::exponential(one.attempts, one.retry_delay).cap(LONGEST_RETRY.max(one.retry_delay));
    let mut made =
        Consumer::new(&one.queue, &one.name).retry(retry).workers(one.workers).prefetch(one.prefetch);
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
        made = made.keep_letters();
    }
    if let Some(window) = one.once_within {
        made = made.once_within(window);
    }
    if let Some(count) = one.max_deliveries {
        made = made.max_deliveries(count);
    }
    if let Some(offset) = &one.offset {
        made = made.offset(offset.clone());
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
    let seen_again = Arc::clone(&ends.seen_again);
    let note: Note = Box::new(move |delivery| {
        if delivery.attempt() > 1 {
            seen_again.fetch_add(1, Relaxed);
        }
    });
    let gathered = |made: Consumer, gather: Gather, note: Note| {
        let (workers, prefetch) = TOGETHER;
        let made = made
            .workers(if one.workers == 0 { workers } else { one.workers })
            .prefetch(if one.workers == 0 && one.prefetch == 0 { prefetch } else { one.prefetch })
            .handle(move |delivery| {
                note(&delivery);
                gather.clone().write(delivery)
            });
        match one.timeout {
            Some(limit) => made.timeout(limit),
            None => made,
        }
    };
    Ok(match &one.action {
        Action::Exec(words) => {
            let timeout = one.timeout.or(settings.exec.timeout);
            exec::look_for(words)?;
            let exec = Exec::new(words.clone(), timeout, ends.halted.clone());
            made.handle(move |delivery| {
                note(&delivery);
                Arc::clone(&exec).run(delivery)
            })
        }
        Action::Http(url) => {
            let http = Http::new(url.clone(), one.timeout.unwrap_or(HTTP_TIMEOUT))?;
            made.handle_blocking(move |delivery| {
                note(delivery);
                http.post(delivery)
            })
        }
        Action::Enqueue { kind, queue } => {
            let Some(store) = store else {
                return Err(Error::System("there is no store for tasks".to_owned()));
            };
            gathered(made, Gather::enqueue(store.clone(), kind.clone(), queue.clone())?, note)
        }
        Action::Into { database, table } => {
            gathered(made, Gather::into(Sink::open(&absolute(database)?, table)?)?, note)
        }
    })
}
