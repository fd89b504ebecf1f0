//! Metrics of the database, the worker and the server, for Prometheus.

use gristmill_pool::prometheus::MetricType::{Counter, Gauge};
use gristmill_pool::prometheus::MetricsText;

use crate::app::AppState;
use crate::problem::Result;

/// Returns all metrics as text.
pub(crate) fn text(app: &AppState) -> Result<String> {
    let mut text = MetricsText::new("gristmill_");
    let mut tasks = text.metric("tasks", Gauge, "Tasks by status.");
    for (status, count) in app.store.tasks().counts()? {
        tasks.sample(&[("status", status.as_str())], count as f64);
    }
    let dead_letters = app.store.dead_letters().count()?;
    text.metric("dead_letters", Gauge, "Dead letters.").sample(&[], dead_letters as f64);
    let wal = app.store.wal().metrics()?;
    text.metric("wal_bytes", Gauge, "Size of the write-ahead log.").sample(&[], wal.wal_size_bytes as f64);
    let uptime = app.started.elapsed().as_secs_f64();
    text.metric("uptime_seconds", Gauge, "Time since the server started.").sample(&[], uptime);
    if let Some(worker) = &app.worker {
        worker().write_metrics(&mut text);
    }
    text.metric("events_total", Counter, "Live events published.").sample(&[], app.events.count() as f64);
    Ok(text.to_string())
}
