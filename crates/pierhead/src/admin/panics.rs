//! Metric of background task panics, collected at each scrape.

use std::fmt;

use pierhead_rest::Panics;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;

/// For `GET /metrics`.
#[derive(Debug)]
pub(super) struct TaskPanics(pub(super) Panics);

impl Collector for TaskPanics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let panics = Family::<[(&str, &str); 1], Counter>::default();
        for (task, count) in self.0.counts() {
            panics.get_or_create(&[("task", task)]).inc_by(count);
        }
        let encoder = encoder.encode_descriptor(
            "pierhead_task_panics",
            "Panics of background tasks, each of which is a fault of pierhead",
            None,
            panics.metric_type(),
        )?;
        panics.encode(encoder)
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;
    use prometheus_client::registry::Registry;

    use super::*;

    #[test]
    fn each_task_has_its_count() {
        let panics = Panics::default();
        let mut registry = Registry::default();
        registry.register_collector(Box::new(TaskPanics(panics.clone())));
        for _ in 0..2 {
            panics.note("cache-upkeep", &"by intent");
        }
        let mut text = String::new();
        assert_eq!(encode(&mut text, &registry), Ok(()));
        let line = r#"pierhead_task_panics_total{task="cache-upkeep"} 2"#;
        assert!(text.lines().any(|found| found == line), "{text}");
    }
}
