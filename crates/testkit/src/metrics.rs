//! The text of metrics, as a scraper gets it.

use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;

/// Returns the metrics that `register` registers, as text.
pub fn metrics_text(register: impl FnOnce(&mut Registry)) -> String {
    let mut registry = Registry::default();
    register(&mut registry);
    let mut text = String::new();
    encode(&mut text, &registry).expect("a string has room");
    text
}

#[cfg(test)]
mod tests {
    use prometheus_client::metrics::gauge::Gauge;

    use super::*;

    #[test]
    fn a_registered_metric_is_in_the_text() {
        let gauge = Gauge::<i64>::default();
        gauge.set(7);
        let text = metrics_text(|registry| registry.register("depth", "Depth", gauge));
        assert!(text.lines().any(|line| line == "depth 7"), "{text}");
    }
}
