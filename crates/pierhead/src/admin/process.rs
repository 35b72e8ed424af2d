//! Metrics of the process itself, read from `/proc` when somebody asks.

use std::fs;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use pierhead_engine::Offload;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry as Metrics, Unit};

use crate::machine::kibibytes;

/// Registers memory, open files, processor time, start and uptime, and which build this is.
pub(crate) fn register(metrics: &mut Metrics, started: Instant, offload: &Offload) {
    let build = Info::new(vec![
        ("version", env!("CARGO_PKG_VERSION")),
        ("arch", std::env::consts::ARCH),
    ]);
    metrics.register("pierhead_build", "Which pierhead this is", build);
    let engine = Info::new(vec![("name", offload.name())]);
    metrics.register(
        "pierhead_engine",
        "What hashes and decompresses (docs/offload.md)",
        engine,
    );
    metrics.register_collector(Box::new(Process { started }));
}

/// Resident memory in bytes; 0 where `/proc` is not there.
pub(crate) fn resident_bytes() -> u64 {
    kibibytes(
        &fs::read_to_string("/proc/self/status").unwrap_or_default(),
        "VmRSS:",
    ) << 10
}

#[derive(Debug)]
struct Process {
    started: Instant,
}

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        // The entry of the folder being read is one of them.
        let open =
            fs::read_dir("/proc/self/fd").map_or(0, |entries| entries.count().saturating_sub(1));
        let uptime = self.started.elapsed();
        let start = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default()
            .saturating_sub(uptime);
        let mut gauge = |name, help, unit: Option<&Unit>, value: u64| {
            let metric = ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX));
            metric.encode(encoder.encode_descriptor(name, help, unit, metric_type())?)
        };
        gauge(
            "process_resident_memory",
            "Resident memory",
            Some(&Unit::Bytes),
            kibibytes(&status, "VmRSS:") << 10,
        )?;
        gauge(
            "process_peak_resident_memory",
            "Resident memory at its highest",
            Some(&Unit::Bytes),
            kibibytes(&status, "VmHWM:") << 10,
        )?;
        gauge(
            "process_open_fds",
            "Open files and sockets",
            None,
            u64::try_from(open).unwrap_or(u64::MAX),
        )?;
        gauge(
            "process_threads",
            "Threads",
            None,
            kibibytes(&status, "Threads:"),
        )?;
        gauge(
            "process_start_time",
            "When it started, since 1970",
            Some(&Unit::Seconds),
            start.as_secs(),
        )?;
        gauge(
            "process_uptime",
            "Since when it runs",
            Some(&Unit::Seconds),
            uptime.as_secs(),
        )?;
        let cpu = ConstCounter::new(cpu_seconds());
        cpu.encode(encoder.encode_descriptor(
            "process_cpu",
            "Processor time used",
            Some(&Unit::Seconds),
            prometheus_client::metrics::MetricType::Counter,
        )?)
    }
}

fn metric_type() -> prometheus_client::metrics::MetricType {
    prometheus_client::metrics::MetricType::Gauge
}

/// User and system time of all threads so far.
fn cpu_seconds() -> f64 {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // Fields 14 and 15; the second field is the name in parentheses and may hold anything.
    let fields = stat
        .rsplit_once(") ")
        .map(|(_, rest)| rest)
        .unwrap_or_default();
    let ticks: f64 = fields
        .split(' ')
        .skip(11)
        .take(2)
        .filter_map(|ticks| ticks.parse::<f64>().ok())
        .sum();
    let per_second: u32 = rustix::param::clock_ticks_per_second()
        .try_into()
        .unwrap_or(100);
    ticks / f64::from(per_second)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use pierhead_testkit::engine::{End, Frail};

    use super::*;

    #[test]
    fn tells_the_engine_that_is_in_use() {
        let engine = Frail::new(i64::MAX, End::GivesUp);
        let frail = Offload::to(Arc::new(engine)).unwrap();
        for (offload, name) in [(Offload::default(), "cpu"), (frail, "frail")] {
            let mut metrics = Metrics::default();
            register(&mut metrics, Instant::now(), &offload);
            let mut text = String::new();
            prometheus_client::encoding::text::encode(&mut text, &metrics).unwrap();
            let line = format!("pierhead_engine_info{{name=\"{name}\"}} 1\n");
            assert!(text.contains(&line), "{text}");
        }
    }

    #[test]
    fn reads_its_own_memory_and_time() {
        assert!(resident_bytes() > 100_000);
        assert!(cpu_seconds() >= 0.0);
    }
}
