//! Metrics of the share of the host's resources that this process takes: profile, limits (CPU,
//! memory, upstream bandwidth), and CPU throttling by the cgroup.

use std::path::PathBuf;

use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};
use std::sync::atomic::AtomicU64;

use crate::config::Config;
use pierhead_host::CpuThrottlingMetrics;
use pierhead_host::machine::Machine;

/// The metrics about the profile, limits and CPU throttling of this process. All clones share the
/// same metrics.
#[derive(Clone)]
pub(crate) struct HostResourceMetrics {
    profile: &'static str,
    memory: Gauge,
    threads: Gauge,
    cores: Gauge,
    bandwidth: Gauge,
    quota: Gauge<f64, AtomicU64>,
    /// Path of `cpu.stat` of the cgroup, if the cgroup has a CPU quota.
    cpu_stat: Option<PathBuf>,
}

impl HostResourceMetrics {
    /// Creates the metrics of a process with this configuration and this number of worker threads.
    pub(crate) fn new(config: &Config, machine: &Machine, threads: usize) -> Self {
        let metrics = Self {
            profile: config.profile.map_or("none", |profile| profile.name),
            memory: Gauge::default(),
            threads: Gauge::default(),
            cores: Gauge::default(),
            bandwidth: Gauge::default(),
            quota: Gauge::default(),
            cpu_stat: machine.cpu_limit.as_ref().map(|quota| quota.stat.clone()),
        };
        metrics.threads.set(signed(threads));
        let cores = config.limits.cores.resolve(machine).ok().flatten();
        let cores = cores.map_or(machine.cores.len(), |cores| cores.len());
        metrics.cores.set(signed(cores));
        metrics
            .memory
            .set(signed(config.limits.memory.unwrap_or(0)));
        let amount = machine.cpu_limit.as_ref().map_or(0, |quota| quota.amount);
        let amount = u32::try_from(amount).unwrap_or(u32::MAX);
        metrics.quota.set(f64::from(amount) / 1000.0);
        metrics.update(config);
        metrics
    }

    /// Sets the metrics that show configuration keys, after a reload has changed these keys.
    pub(crate) fn update(&self, config: &Config) {
        self.bandwidth
            .set(signed(config.limits.upstream_bandwidth.unwrap_or(0)));
    }

    pub(crate) fn register(&self, registry: &mut Registry) {
        let profile = Info::new(vec![("profile", self.profile)]);
        registry.register(
            "pierhead_profile",
            "The profile in use (docs/explanation/profiles.md)",
            profile,
        );
        let limits = registry.sub_registry_with_prefix("pierhead_limit");
        limits.register_with_unit(
            "memory",
            "limits.memory, from which the defaults of other limits follow; 0: off",
            Unit::Bytes,
            self.memory.clone(),
        );
        limits.register("threads", "Worker threads", self.threads.clone());
        limits.register("cores", "Cores that pierhead runs on", self.cores.clone());
        limits.register(
            "upstream_bandwidth_bytes_per_second",
            "Maximum rate of all downloads together; 0: no limit",
            self.bandwidth.clone(),
        );
        limits.register(
            "cpu_quota_cores",
            "CPU quota of the cgroup, in cores; 0: no quota",
            self.quota.clone(),
        );
        if let Some(stat) = &self.cpu_stat {
            CpuThrottlingMetrics::new(stat.clone()).register(registry);
        }
    }
}

fn signed(number: impl TryInto<i64>) -> i64 {
    number.try_into().unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use pierhead_host::machine::CpuLimit;
    use pierhead_testkit::metrics::metrics_text;

    #[test]
    fn the_metrics_have_profile_limits_and_throttling() {
        let folder = tempfile::tempdir().unwrap();
        let stat = folder.path().join("cpu.stat");
        std::fs::write(
            &stat,
            "nr_periods 9\nnr_throttled 4\nthrottled_usec 2500000\n",
        )
        .unwrap();
        let machine = Machine {
            cores: (0..8).collect(),
            cpu_limit: Some(CpuLimit {
                amount: 1500,
                period: Duration::from_millis(100),
                stat: stat.clone(),
            }),
            ..Machine::default()
        };
        let mut config = Config::with_data("data".into());
        config.profile = pierhead_host::profile::Profile::named("bluefield2");
        config.limits.memory = Some(1 << 30);
        config.limits.cores = "last 2".parse().unwrap();
        config.limits.upstream_bandwidth = Some(7);
        let metrics = HostResourceMetrics::new(&config, &machine, 3);
        config.limits.upstream_bandwidth = Some(312_000_000);
        metrics.update(&config);
        let output = metrics_text(|registry| metrics.register(registry));
        for line in [
            "pierhead_profile_info{profile=\"bluefield2\"} 1\n",
            "pierhead_limit_memory_bytes 1073741824\n",
            "pierhead_limit_threads 3\n",
            "pierhead_limit_cores 2\n",
            "pierhead_limit_upstream_bandwidth_bytes_per_second 312000000\n",
            "pierhead_limit_cpu_quota_cores 1.5\n",
            "pierhead_cpu_quota_periods_total 9\n",
            "pierhead_cpu_quota_exhausted_total 4\n",
            "pierhead_cpu_quota_stopped_seconds_total 2.5\n",
        ] {
            assert!(output.contains(line), "{line} in {output}");
        }
        std::fs::remove_file(stat).unwrap();
        assert!(!metrics_text(|registry| metrics.register(registry)).contains("cpu_quota_periods"));
        let without_profile =
            HostResourceMetrics::new(&Config::with_data("data".into()), &Machine::default(), 2);
        let output = metrics_text(|registry| without_profile.register(registry));
        assert!(
            output.contains("pierhead_profile_info{profile=\"none\"} 1\n"),
            "{output}"
        );
        assert!(
            output.contains("pierhead_limit_memory_bytes 0\n"),
            "{output}"
        );
        assert!(!output.contains("cpu_quota_stopped"), "{output}");
    }
}
