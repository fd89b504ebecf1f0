//! The Prometheus text format.

#![cfg(not(any(shuttle, loom)))]

use gristmill_pool::prometheus::{MetricType, MetricsText};

#[test]
fn labels_and_help_are_escaped() {
    let mut text = MetricsText::new("x_");
    let mut metric = text.metric("a", MetricType::Gauge, "A \"b\"\\\nc.");
    metric.sample(&[("one", "a\"b\\c\nd"), ("two", "ä")], 0.5);
    metric.sample(&[], 3.0);
    let expected = "# HELP x_a A \"b\"\\\\\\nc.\n# TYPE x_a gauge\nx_a{one=\"a\\\"b\\\\c\\nd\",two=\"ä\"} 0.5\nx_a 3\n";
    assert_eq!(text.to_string(), expected);
}
