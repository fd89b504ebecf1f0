//! A thread that both reads results and submits tasks. Needs its own process, because it captures the log.

#![cfg(not(any(shuttle, loom)))]

use gristmill_pool::{Pool, ResultOrder, Task, error::SubmitErrorKind};
use std::{
    collections::VecDeque,
    fmt::{self, Write},
    sync::{Condvar, Mutex, mpsc},
    thread,
};
use tracing::{
    Event, Metadata, Subscriber,
    field::{Field, Visit},
    span,
};

static LOGGED: (Mutex<String>, Condvar) = (Mutex::new(String::new()), Condvar::new());

/// Captures log lines of level error.
struct Log;

struct Text<'a>(&'a mut String);

impl Visit for Text<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let _ = write!(self.0, "{field}={value:?} ");
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == tracing::Level::ERROR
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        event.record(&mut Text(&mut LOGGED.0.lock().unwrap()));
        LOGGED.1.notify_all();
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

fn number(n: usize) -> Task<usize> {
    Task::new(move |_| Ok(n))
}

/// The reader waits for room in the queue, and the workers wait for the reader. `first` is the first task whose result
/// the reader does not read.
fn check_deadlock_is_logged(result_order: ResultOrder, first: Task<usize>, meanwhile: impl FnOnce(&Pool<usize>)) {
    let builder = Pool::builder().workers(2).queue_capacity(2).result_capacity(2);
    let (pool, results) = builder.build_with_results::<usize>(result_order).unwrap();
    LOGGED.0.lock().unwrap().clear();
    thread::scope(|scope| {
        let reading = pool.clone();
        let reader = scope.spawn(move || {
            let mut results = results;
            reading.submit_task(number(0)).unwrap();
            results.next().unwrap();
            reading.submit_task(first).unwrap();
            // More tasks than queue, workers and results hold together.
            let rejected = (2..100).map(|n| reading.submit_task(number(n))).find_map(Result::err);
            rejected.map(|rejected| rejected.kind)
        });
        meanwhile(&pool);
        let logged = LOGGED.1.wait_while(LOGGED.0.lock().unwrap(), |text| text.is_empty()).unwrap();
        assert!(logged.contains("the thread that reads the results waits in submit"), "{logged}");
        drop(logged);
        pool.cancel();
        assert_eq!(reader.join().unwrap(), Some(SubmitErrorKind::Cancelled));
    });
}

/// In submit order all tasks that may start end before the first one, so that the workers are idle.
fn check_deadlock_with_idle_workers_is_logged() {
    let (open, gate) = mpsc::channel::<()>();
    let first = Task::new(move |_| {
        gate.recv().unwrap();
        Ok(1)
    });
    check_deadlock_is_logged(ResultOrder::AsSubmitted, first, |pool| {
        // All other tasks that queue, workers and results have room for.
        while pool.stats().completed < 1 + 5 {
            thread::yield_now();
        }
        open.send(()).unwrap();
    });
}

/// Another thread reads, so that a full queue is ordinary backpressure and nothing is logged.
fn check_backpressure_is_not_logged(result_order: ResultOrder) {
    let builder = Pool::builder().workers(2).queue_capacity(2).result_capacity(2);
    let (pool, results) = builder.build_with_results::<usize>(result_order).unwrap();
    LOGGED.0.lock().unwrap().clear();
    thread::scope(|scope| {
        let reader = scope.spawn(move || results.count());
        for n in 0..500 {
            pool.submit_task(number(n)).unwrap();
        }
        pool.close();
        assert_eq!(reader.join().unwrap(), 500);
    });
    assert_eq!(*LOGGED.0.lock().unwrap(), "");
}

/// The example in the documentation of `Results`: the reader keeps rejected tasks until it has read more.
fn check_recipe(result_order: ResultOrder) {
    let builder = Pool::builder().workers(2).queue_capacity(2).result_capacity(2);
    let (pool, mut results) = builder.build_with_results::<usize>(result_order).unwrap();
    LOGGED.0.lock().unwrap().clear();
    let (mut rejected, mut in_flight, mut read) = (VecDeque::from([number(100)]), 0, 0);
    while in_flight > 0 || !rejected.is_empty() {
        while let Some(task) = rejected.pop_front() {
            match pool.try_submit(task) {
                Ok(_) => in_flight += 1,
                Err(full) => {
                    rejected.push_front(full.into_task());
                    break;
                }
            }
        }
        let value = results.next().unwrap().result.unwrap();
        in_flight -= 1;
        read += 1;
        rejected.extend((0..2).filter(|_| value > 1).map(|_| number(value / 2)));
    }
    assert_eq!(read, 127);
    assert_eq!(*LOGGED.0.lock().unwrap(), "");
}

#[test]
fn deadlock_of_reader_in_submit_is_logged() {
    tracing::subscriber::set_global_default(Log).unwrap();
    for result_order in [ResultOrder::AsCompleted, ResultOrder::AsSubmitted] {
        check_backpressure_is_not_logged(result_order);
        check_recipe(result_order);
        check_deadlock_is_logged(result_order, number(1), |_| ());
    }
    check_deadlock_with_idle_workers_is_logged();
}
