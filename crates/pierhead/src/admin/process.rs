//! Metrics of the process, such as memory and CPU time, read from `/proc` at each scrape. The names
//! of these metrics are the names that all Prometheus client libraries use.

use std::fs;
use std::time::{Duration, Instant};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry as Metrics, Unit};

use rustix::process::{Resource, getrlimit};

use pierhead_host::kibibytes;

use pierhead_host::clock;

/// Registers the metrics of the process, and `pierhead_build_info`.
pub(crate) fn register(metrics: &mut Metrics, started: Instant) {
    let build = Info::new(vec![
        ("version", env!("CARGO_PKG_VERSION")),
        ("arch", std::env::consts::ARCH),
    ]);
    metrics.register(
        "pierhead_build",
        "Version and architecture of this build",
        build,
    );
    // The start time is computed once. If it differed by a second between two scrapes, Prometheus
    // would see a restart.
    let start_time = clock::since_epoch().saturating_sub(started.elapsed());
    metrics.register_collector(Box::new(Process {
        started,
        start_time,
    }));
}

/// Returns the resident memory of this process in bytes, or 0 without `/proc`.
pub(crate) fn resident_bytes() -> u64 {
    kibibytes(
        &fs::read_to_string("/proc/self/status").unwrap_or_default(),
        "VmRSS:",
    ) << 10
}

#[derive(Debug)]
struct Process {
    started: Instant,
    /// Start of the process, as time since 1970.
    start_time: Duration,
}

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        // Does not count the descriptor with which this function reads the folder `/proc/self/fd`
        // itself.
        let open =
            fs::read_dir("/proc/self/fd").map_or(0, |entries| entries.count().saturating_sub(1));
        // Reports `unlimited` as the largest 64-bit number, since the value of a metric must be a
        // number.
        let max_open = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
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
            "process_virtual_memory",
            "Virtual memory",
            Some(&Unit::Bytes),
            kibibytes(&status, "VmSize:") << 10,
        )?;
        gauge(
            "process_peak_resident_memory",
            "Peak resident memory",
            Some(&Unit::Bytes),
            kibibytes(&status, "VmHWM:") << 10,
        )?;
        gauge(
            "process_open_fds",
            "Open file descriptors",
            None,
            u64::try_from(open).unwrap_or(u64::MAX),
        )?;
        gauge(
            "process_max_fds",
            "Maximum number of open file descriptors",
            None,
            max_open,
        )?;
        gauge(
            "process_threads",
            "Threads",
            None,
            kibibytes(&status, "Threads:"),
        )?;
        gauge(
            "process_start_time",
            "Start time of the process since 1970",
            Some(&Unit::Seconds),
            self.start_time.as_secs(),
        )?;
        gauge(
            "process_uptime",
            "Time since the start of the process",
            Some(&Unit::Seconds),
            self.started.elapsed().as_secs(),
        )?;
        let cpu = ConstCounter::new(cpu_seconds());
        cpu.encode(encoder.encode_descriptor(
            "process_cpu",
            "User and system CPU time",
            Some(&Unit::Seconds),
            prometheus_client::metrics::MetricType::Counter,
        )?)
    }
}

fn metric_type() -> prometheus_client::metrics::MetricType {
    prometheus_client::metrics::MetricType::Gauge
}

/// User and system CPU time of all threads, in seconds.
fn cpu_seconds() -> f64 {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // User and system CPU time are fields 14 and 15 of `/proc/self/stat`. The second field is the
    // process name in parentheses, which may contain spaces and parentheses.
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
    use super::*;

    #[test]
    fn memory_and_cpu_time_of_this_process_are_read() {
        assert!(resident_bytes() > 100_000);
        assert!(cpu_seconds() >= 0.0);
    }
}
