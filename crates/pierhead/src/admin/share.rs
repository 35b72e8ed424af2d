//! How much of the machine this process takes, as metrics: what a profile, an operator or the cgroup made of it.

use std::path::PathBuf;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};
use std::sync::atomic::AtomicU64;

use crate::config::Config;
use pierhead_host::cgroup::CpuThrottling;
use pierhead_host::machine::Machine;
use pierhead_host::read_kernel_file;

/// See the head of this module.
#[derive(Clone)]
pub(crate) struct Share {
    profile: &'static str,
    memory: Gauge,
    threads: Gauge,
    cores: Gauge,
    bandwidth: Gauge,
    quota: Gauge<f64, AtomicU64>,
    stat: Option<PathBuf>,
}

impl Share {
    /// What `config`, which is in effect, means on `machine` for a process of so many worker threads.
    pub(crate) fn new(config: &Config, machine: &Machine, threads: usize) -> Self {
        let share = Self {
            profile: config.profile.map_or("none", |profile| profile.name),
            memory: Gauge::default(),
            threads: Gauge::default(),
            cores: Gauge::default(),
            bandwidth: Gauge::default(),
            quota: Gauge::default(),
            stat: machine.cpu_limit.as_ref().map(|quota| quota.stat.clone()),
        };
        share.threads.set(signed(threads));
        let cores = config.limits.cores.resolve(machine).ok().flatten();
        let cores = cores.map_or(machine.cores.len(), |cores| cores.len());
        share.cores.set(signed(cores));
        share.memory.set(signed(config.limits.memory.unwrap_or(0)));
        let amount = machine.cpu_limit.as_ref().map_or(0, |quota| quota.amount);
        let amount = u32::try_from(amount).unwrap_or(u32::MAX);
        share.quota.set(f64::from(amount) / 1000.0);
        share.note(config);
        share
    }

    /// What can change while it runs.
    pub(crate) fn note(&self, config: &Config) {
        self.bandwidth
            .set(signed(config.limits.upstream_bandwidth.unwrap_or(0)));
    }

    pub(crate) fn register(&self, registry: &mut Registry) {
        let profile = Info::new(vec![("profile", self.profile)]);
        registry.register(
            "pierhead_profile",
            "How much of the machine it takes (docs/explanation/profiles.md)",
            profile,
        );
        let limits = registry.sub_registry_with_prefix("pierhead_limit");
        limits.register_with_unit(
            "memory",
            "Memory that it plans with; 0: defaults that follow from none",
            Unit::Bytes,
            self.memory.clone(),
        );
        limits.register("threads", "Worker threads", self.threads.clone());
        limits.register("cores", "Cores that pierhead runs on", self.cores.clone());
        limits.register(
            "upstream_bandwidth_bytes_per_second",
            "Limit of all downloads together; 0: none",
            self.bandwidth.clone(),
        );
        limits.register(
            "cpu_quota_cores",
            "CPU time that the cgroup grants, in cores; 0: no quota",
            self.quota.clone(),
        );
        if let Some(stat) = &self.stat {
            registry.register_collector(Box::new(Stopped(stat.clone())));
        }
    }
}

fn signed(number: impl TryInto<i64>) -> i64 {
    number.try_into().unwrap_or(i64::MAX)
}

/// Read when somebody asks.
#[derive(Debug)]
struct Stopped(PathBuf);

impl Collector for Stopped {
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
                "Periods in which the cgroup worked",
                throttled.periods,
            ),
            (
                "pierhead_cpu_quota_exhausted",
                "Those at whose end the kernel had stopped it because its quota was used up",
                throttled.throttled_periods,
            ),
        ] {
            let described = encoder.encode_descriptor(name, help, None, counter)?;
            ConstCounter::new(count).encode(described)?;
        }
        let seconds = encoder.encode_descriptor(
            "pierhead_cpu_quota_stopped",
            "For how long it was stopped, each processor by itself",
            Some(&Unit::Seconds),
            counter,
        )?;
        ConstCounter::new(throttled.throttled_time.as_secs_f64()).encode(seconds)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use pierhead_host::machine::CpuLimit;

    fn text(share: &Share) -> String {
        let mut registry = Registry::default();
        share.register(&mut registry);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        text
    }

    #[test]
    fn what_is_taken_is_told() {
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
        let share = Share::new(&config, &machine, 3);
        config.limits.upstream_bandwidth = Some(312_000_000);
        share.note(&config);
        let output = text(&share);
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
        assert!(!text(&share).contains("cpu_quota_periods"));
        let plain = Share::new(&Config::with_data("data".into()), &Machine::default(), 2);
        let output = text(&plain);
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
