//! Metrics of the database, the worker and the server, for Prometheus.

use gristmill_pool::prometheus::MetricType::{Counter, Gauge};
use gristmill_pool::prometheus::MetricsText;
use gristmill_store::Store;
use gristmill_store::tasks::TaskCount;

use crate::app::AppState;
use crate::problem::Result;

/// Returns all metrics as text.
pub(crate) fn text(app: &AppState) -> Result<String> {
    let mut text = MetricsText::new("gristmill_");
    write_store_metrics(&app.store, &mut text)?;
    let uptime = app.started.elapsed().as_secs_f64();
    text.metric("uptime_seconds", Gauge, "Time since the server started.").sample(&[], uptime);
    if let Some(worker) = app.worker.get() {
        worker().write_metrics(&mut text);
    }
    text.metric("events_total", Counter, "Live events published.").sample(&[], app.events.count() as f64);
    Ok(text.to_string())
}

/// Adds the numbers of the database: tasks, dead letters, the write-ahead log.
pub fn write_store_metrics(store: &Store, text: &mut MetricsText) -> gristmill_store::Result<()> {
    let mut tasks = text.metric("tasks", Gauge, "Tasks by queue, kind and status.");
    for TaskCount { queue, kind, status, count } in store.tasks().counts_by_kind()? {
        tasks.sample(&[("queue", &queue), ("kind", &kind), ("status", status.as_str())], count as f64);
    }
    let dead_letters = store.dead_letters().count()?;
    text.metric("dead_letters", Gauge, "Dead letters.").sample(&[], dead_letters as f64);
    let wal = store.wal().metrics()?;
    text.metric("wal_bytes", Gauge, "Size of the write-ahead log.").sample(&[], wal.wal_size_bytes as f64);
    Ok(())
}
