//! The pressure monitor: pauses background work while tasks wait too long for memory, a CPU or the
//! disk, and reports the pressure of memory.

use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::registry::{Registry, Unit};

use super::pause::PauseState;
use super::psi::{PressureReader, Resource, Stall};
use crate::background::BackgroundWork;

type ResourceLabel = [(&'static str, &'static str); 1];

/// Pauses and resumes background work by the pressure of the configured resources.
///
/// 1. Background work pauses before limits shrink: a limit that follows the pressure of memory
///    shrinks at the earliest one reading later.
pub struct PressureMonitor {
    background: BackgroundWork,
    states: Vec<(PauseState, PressureReader)>,
    /// Reads the pressure of memory for a limit that follows this pressure.
    memory: Option<PressureReader>,
    metrics: PressureMetrics,
}

/// The metrics of the monitored resources.
#[derive(Clone, Debug, Default)]
pub struct PressureMetrics {
    some: Family<ResourceLabel, Gauge<f64, AtomicU64>>,
    full: Family<ResourceLabel, Gauge<f64, AtomicU64>>,
    paused: Family<ResourceLabel, Gauge>,
    paused_seconds: Family<ResourceLabel, Counter<f64, AtomicU64>>,
    background: BackgroundWork,
}

impl PressureMonitor {
    /// Interval between two readings. The kernel updates the sums over all CPUs every two seconds.
    pub const INTERVAL: Duration = Duration::from_secs(2);

    /// Creates a monitor that pauses `background` under the pressure of each of `resources`.
    ///
    /// `key` is the configuration key that lists the resources, for the log. Reads the files below
    /// `root`, which is `/`, or a simulated folder in tests. Logs each resource whose pressure the
    /// kernel does not count.
    pub fn new(background: BackgroundWork, resources: &[Resource], key: &str, root: &Path) -> Self {
        let metrics = PressureMetrics {
            background: background.clone(),
            ..PressureMetrics::default()
        };
        let states = resources.iter().filter_map(|resource| {
            let reader = find(*resource, key, root)?;
            let label = label(*resource);
            metrics.paused.get_or_create(&label).set(0);
            metrics.paused_seconds.get_or_create(&label).inc_by(0.0);
            Some((PauseState::new(*resource), reader))
        });
        Self {
            states: states.collect(),
            memory: None,
            background,
            metrics,
        }
    }

    /// Makes [`Self::update`] also return the pressure of memory, for a limit that follows this
    /// pressure. `subject` is the name of the limit in the log.
    #[must_use]
    pub fn reporting_memory(mut self, subject: &str, root: &Path) -> Self {
        self.memory = find(Resource::Memory, subject, root);
        self
    }

    /// Returns the metrics, so that the caller can register them.
    pub fn metrics(&self) -> PressureMetrics {
        self.metrics.clone()
    }

    /// Reads the pressure at `now`. `passed` is the time since the previous call. Returns the stall
    /// of memory, for a limit that follows the pressure of memory.
    ///
    /// Returns `None` without [`Self::reporting_memory`] and at the first call. Also returns `None`
    /// when background work has just paused, because that work may have caused the whole pressure.
    pub fn update(&mut self, now: Instant, passed: Duration) -> Option<Stall> {
        let mut just_paused = false;
        for (state, reader) in &mut self.states {
            let label = label(state.resource());
            if state.pauses_work() {
                self.metrics
                    .paused_seconds
                    .get_or_create(&label)
                    .inc_by(passed.as_secs_f64());
            }
            let Some(stall) = reader.read(now) else {
                continue;
            };
            self.metrics.some.get_or_create(&label).set(stall.some);
            self.metrics.full.get_or_create(&label).set(stall.full);
            if state.update(stall) {
                let (some, full) = (percent(stall.some), percent(stall.full));
                let resource = state.resource().name();
                if state.pauses_work() {
                    tracing::info!(
                        resource,
                        some,
                        full,
                        "background work pauses: the host is short of {resource}"
                    );
                } else {
                    tracing::info!(resource, some, full, "the pressure of {resource} is over");
                }
                just_paused |= state.pauses_work() && state.resource() == Resource::Memory;
                self.metrics
                    .paused
                    .get_or_create(&label)
                    .set(state.pauses_work().into());
            }
        }
        let is_paused = self.states.iter().any(|(state, _)| state.pauses_work());
        let is_memory_short = self
            .states
            .iter()
            .any(|(state, _)| state.pauses_work() && state.resource() == Resource::Memory);
        self.background.set_memory_short(is_memory_short);
        if is_paused != self.background.is_paused() {
            self.background.set_paused(is_paused);
            if !is_paused {
                tracing::info!("background work resumes");
            }
        }
        let stall = self.memory.as_mut()?.read(now)?;
        (!just_paused).then_some(stall)
    }
}

/// Finds the files of a resource. If the kernel does not count the pressure of this resource,
/// writes a log line.
fn find(resource: Resource, subject: &str, root: &Path) -> Option<PressureReader> {
    let reader = PressureReader::find(resource, root);
    if reader.is_none() {
        tracing::warn!(
            "{subject}: this kernel does not count the pressure of {} (CONFIG_PSI, psi=1); nothing follows it",
            resource.name()
        );
    }
    reader
}

fn label(resource: Resource) -> ResourceLabel {
    [("resource", resource.name())]
}

/// Formats a share as a percentage for the log.
fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

impl PressureMetrics {
    /// Registers the metrics. The caller chooses the prefix of their names.
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "some",
            "Share of the last two seconds in which a task waited for the resource, on the host or in the cgroup of pierhead",
            self.some.clone(),
        );
        registry.register(
            "full",
            "Share of the last two seconds in which all tasks waited for the resource",
            self.full.clone(),
        );
        registry.register(
            "background_paused",
            "Whether background work pauses because of this resource",
            self.paused.clone(),
        );
        registry.register_with_unit(
            "background_paused",
            "Time for which background work paused because of this resource",
            Unit::Seconds,
            self.paused_seconds.clone(),
        );
        registry.register_collector(Box::new(PausedWorkers(self.background.clone())));
    }
}

/// Counts paused workers at each scrape.
#[derive(Debug)]
struct PausedWorkers(BackgroundWork);

impl Collector for PausedWorkers {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let workers = ConstGauge::new(i64::try_from(self.0.paused_workers()).unwrap_or(i64::MAX));
        let encoder = encoder.encode_descriptor(
            "background_paused_workers",
            "Background workers that pause now",
            None,
            workers.metric_type(),
        )?;
        workers.encode(encoder)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use pierhead_testkit::metrics::metrics_text;

    struct Host(tempfile::TempDir);

    impl Host {
        fn new() -> Self {
            let host = Self(tempfile::tempdir().unwrap());
            fs::create_dir_all(host.0.path().join("proc/pressure")).unwrap();
            host.waited(Resource::Memory, 0);
            host.waited(Resource::Cpu, 0);
            host
        }

        /// Sets the total waiting time of tasks to `millis` milliseconds.
        fn waited(&self, resource: Resource, millis: u64) {
            let text = format!(
                "some avg10=0.00 avg60=0.00 avg300=0.00 total={}\n",
                millis * 1000
            );
            fs::write(
                self.0.path().join("proc/pressure").join(resource.name()),
                text,
            )
            .unwrap();
        }
    }

    #[test]
    fn work_pauses_under_pressure_and_the_metrics_count_it() {
        let (host, work) = (Host::new(), BackgroundWork::default());
        let resources = [Resource::Memory, Resource::Cpu];
        let mut monitor = PressureMonitor::new(
            work.clone(),
            &resources,
            "limits.pause_under",
            host.0.path(),
        );
        let (metrics, begin, step) = (monitor.metrics(), Instant::now(), Duration::from_secs(1));
        let mut readings = 0;
        let mut update = |monitor: &mut PressureMonitor| {
            readings += 1;
            monitor.update(begin + step * readings, step);
        };
        update(&mut monitor);
        assert!(!work.is_paused());
        host.waited(Resource::Cpu, 900);
        update(&mut monitor);
        assert!(work.is_paused() && !work.is_memory_short());
        host.waited(Resource::Memory, 100);
        update(&mut monitor);
        assert!(work.is_memory_short());
        let scraped = metrics_text(|registry| metrics.register(registry));
        for line in [
            "some{resource=\"memory\"} 0.1\n",
            "some{resource=\"cpu\"} 0.0\n",
            "background_paused{resource=\"memory\"} 1\n",
            "background_paused{resource=\"cpu\"} 1\n",
            "background_paused_seconds_total{resource=\"memory\"} 0.0\n",
            "background_paused_seconds_total{resource=\"cpu\"} 1.0\n",
            "background_paused_workers 0\n",
        ] {
            assert!(scraped.contains(line), "{line} in {scraped}");
        }
        // The CPU is calm from the third reading on. Memory is calm from the fourth reading on.
        for _ in 0..4 {
            update(&mut monitor);
        }
        assert!(work.is_paused(), "memory had too few calm readings");
        update(&mut monitor);
        assert!(!work.is_paused() && !work.is_memory_short());
        let scraped = metrics_text(|registry| metrics.register(registry));
        assert!(
            scraped.contains("background_paused{resource=\"memory\"} 0\n"),
            "{scraped}"
        );
        assert!(
            scraped.contains("background_paused_seconds_total{resource=\"memory\"} 5.0\n"),
            "{scraped}"
        );
    }

    #[test]
    fn without_psi_work_never_pauses() {
        let (root, work) = (tempfile::tempdir().unwrap(), BackgroundWork::default());
        let mut monitor = PressureMonitor::new(
            work.clone(),
            &[Resource::Memory],
            "limits.pause_under",
            root.path(),
        );
        monitor.update(Instant::now(), Duration::ZERO);
        assert!(!work.is_paused());
        let scraped = metrics_text(|registry| monitor.metrics().register(registry));
        assert!(!scraped.contains("resource="), "{scraped}");
    }
}
