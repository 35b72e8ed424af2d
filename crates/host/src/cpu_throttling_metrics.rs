//! Metrics of the CPU throttling by the cgroup.

use std::path::PathBuf;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::registry::{Registry, Unit};

use crate::cgroup::CpuThrottling;
use crate::read_kernel_file;

/// The metrics of the CPU throttling by the cgroup. Each scrape reads `cpu.stat`.
#[derive(Debug)]
pub struct CpuThrottlingMetrics(PathBuf);

impl CpuThrottlingMetrics {
    /// Creates the metrics. `stat` is the path of `cpu.stat`.
    pub fn new(stat: PathBuf) -> Self {
        Self(stat)
    }

    /// Registers the metrics.
    pub fn register(self, registry: &mut Registry) {
        registry.register_collector(Box::new(self));
    }
}

impl Collector for CpuThrottlingMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let Some(throttled) =
            read_kernel_file(&self.0).and_then(|text| CpuThrottling::parse(&text))
        else {
            return Ok(());
        };
        let counter = MetricType::Counter;
        for (name, help, count) in [
            (
                "pierhead_cpu_quota_periods",
                "Quota periods in which the cgroup used CPU time",
                throttled.periods,
            ),
            (
                "pierhead_cpu_quota_exhausted",
                "Quota periods in which the kernel throttled the cgroup because its quota was used up",
                throttled.throttled_periods,
            ),
        ] {
            let described = encoder.encode_descriptor(name, help, None, counter)?;
            ConstCounter::new(count).encode(described)?;
        }
        let seconds = encoder.encode_descriptor(
            "pierhead_cpu_quota_stopped",
            "Time for which the kernel throttled the cgroup, summed over CPUs",
            Some(&Unit::Seconds),
            counter,
        )?;
        ConstCounter::new(throttled.throttled_time.as_secs_f64()).encode(seconds)
    }
}
