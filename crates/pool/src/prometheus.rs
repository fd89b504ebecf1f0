//! Writes metrics in the Prometheus text format.
//!
//! Owns the syntax: `HELP` and `TYPE` lines, labels and their escaping. It keeps no values; callers pass a snapshot.

use std::fmt::{self, Write as _};

/// Type of a metric, as its `TYPE` line names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricType {
    /// A value that only grows.
    Counter,
    /// A value that grows and shrinks.
    Gauge,
}

/// Text in the Prometheus format. All metrics share a prefix.
///
/// ```
/// use gristmill_pool::prometheus::{MetricType::Counter, MetricsText};
///
/// let mut text = MetricsText::new("shop_");
/// text.metric("orders_total", Counter, "Orders received.").sample(&[("country", "NL")], 17.0);
/// assert!(text.to_string().ends_with("\nshop_orders_total{country=\"NL\"} 17\n"));
/// ```
#[derive(Debug, Clone)]
pub struct MetricsText {
    prefix: &'static str,
    text: String,
}

/// One metric of a [`MetricsText`], to which samples are added.
#[derive(Debug)]
pub struct Metric<'a> {
    all: &'a mut MetricsText,
    name: &'a str,
}

impl MetricsText {
    /// Creates an empty text, whose metrics get this prefix.
    pub fn new(prefix: &'static str) -> Self {
        Self { prefix, text: String::new() }
    }

    /// Begins a metric with its `HELP` and `TYPE` lines.
    pub fn metric<'a>(&'a mut self, name: &'a str, kind: MetricType, help: &str) -> Metric<'a> {
        let kind = match kind {
            MetricType::Counter => "counter",
            MetricType::Gauge => "gauge",
        };
        let (prefix, help) = (self.prefix, Escaped(help, false));
        let _ = writeln!(self.text, "# HELP {prefix}{name} {help}\n# TYPE {prefix}{name} {kind}");
        Metric { all: self, name }
    }
}

impl Metric<'_> {
    /// Adds a value with its labels.
    pub fn sample(&mut self, labels: &[(&str, &str)], value: f64) {
        let text = &mut self.all.text;
        let _ = write!(text, "{}{}", self.all.prefix, self.name);
        for (at, (name, value)) in labels.iter().enumerate() {
            let _ = write!(text, "{}{name}=\"{}\"", if at == 0 { '{' } else { ',' }, Escaped(value, true));
        }
        let _ = writeln!(text, "{} {value}", if labels.is_empty() { "" } else { "}" });
    }
}

impl fmt::Display for MetricsText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// A text with backslashes and line ends escaped, in a label value also quotation marks.
struct Escaped<'a>(&'a str, bool);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|character| match character {
            '\\' => f.write_str("\\\\"),
            '\n' => f.write_str("\\n"),
            '"' if self.1 => f.write_str("\\\""),
            other => f.write_char(other),
        })
    }
}
