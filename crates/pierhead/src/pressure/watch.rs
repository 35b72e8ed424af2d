//! Looks at the pressure every two seconds: work in the background rests first, then the fast tier shrinks.

use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use pierhead_host::Rest;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::registry::{Registry, Unit};

use super::strain::Strain;
use super::{Resource, Stalled, Stalls, TierLimit};

/// The kernel adds up what its processors counted every two seconds.
const INTERVAL: Duration = Duration::from_secs(2);

type By = [(&'static str, &'static str); 1];

/// See the head of this module.
pub(crate) struct Watch {
    rest: Rest,
    /// With what there is to look at.
    rests: Vec<(Strain, Stalls)>,
    tier: Option<(TierLimit, Stalls)>,
    figures: Figures,
}

/// By resource, those that are watched.
#[derive(Clone, Debug, Default)]
pub(crate) struct Figures {
    some: Family<By, Gauge<f64, AtomicU64>>,
    full: Family<By, Gauge<f64, AtomicU64>>,
    paused: Family<By, Gauge>,
    seconds: Family<By, Counter<f64, AtomicU64>>,
    rest: Rest,
}

impl Watch {
    /// Turns `rest` under the pressure of `resources`, and lets `tier` give way to that of memory, as the kernel counts below `root` (`/` but
    /// in tests). What it does not count is said once.
    pub(crate) fn new(
        rest: Rest,
        resources: &[Resource],
        tier: Option<TierLimit>,
        root: &Path,
    ) -> Self {
        let figures = Figures {
            rest: rest.clone(),
            ..Figures::default()
        };
        let stalls = |resource: Resource, what: &str| {
            let stalls = Stalls::of(resource, root);
            if stalls.is_none() {
                tracing::warn!(
                    "{what}: this kernel does not count the pressure of {} (CONFIG_PSI, psi=1); nothing follows it",
                    resource.name()
                );
            }
            stalls
        };
        let rests = resources.iter().filter_map(|resource| {
            let stalls = stalls(*resource, "limits.pause_under")?;
            figures.paused.get_or_create(&by(*resource)).set(0);
            figures.seconds.get_or_create(&by(*resource)).inc_by(0.0);
            Some((Strain::new(*resource), stalls))
        });
        Self {
            rests: rests.collect(),
            tier: tier.and_then(|tier| {
                Some((tier, stalls(Resource::Memory, "the fast tier in memory")?))
            }),
            rest,
            figures,
        }
    }

    pub(crate) fn figures(&self) -> Figures {
        self.figures.clone()
    }

    /// Looks until it is dropped.
    pub(crate) async fn run(mut self) {
        let mut ticks = tokio::time::interval(INTERVAL);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut last = Instant::now();
        loop {
            ticks.tick().await;
            let now = Instant::now();
            self.look(
                now,
                now.saturating_duration_since(std::mem::replace(&mut last, now)),
            )
            .await;
        }
    }

    /// One look, so long after the one before.
    async fn look(&mut self, now: Instant, passed: Duration) {
        let mut began = false;
        for (strain, stalls) in &mut self.rests {
            let by = by(strain.resource());
            if strain.rests() {
                self.figures
                    .seconds
                    .get_or_create(&by)
                    .inc_by(passed.as_secs_f64());
            }
            let Some(stalled) = stalls.look(now) else {
                continue;
            };
            self.figures.note(strain.resource(), stalled);
            if strain.step(stalled) {
                let (some, full) = (percent(stalled.some), percent(stalled.full));
                let resource = strain.resource().name();
                if strain.rests() {
                    tracing::info!(
                        resource,
                        some,
                        full,
                        "background work rests: the machine is short of {resource}"
                    );
                } else {
                    tracing::info!(resource, some, full, "the machine has {resource} again");
                }
                began |= strain.rests() && strain.resource() == Resource::Memory;
                self.figures
                    .paused
                    .get_or_create(&by)
                    .set(strain.rests().into());
            }
        }
        let due = self.rests.iter().any(|(strain, _)| strain.rests());
        let is_memory = |strain: &Strain| strain.rests() && strain.resource() == Resource::Memory;
        let short = self.rests.iter().any(|(strain, _)| is_memory(strain));
        self.rest.set_memory_short(short);
        if due != self.rest.is_due() {
            self.rest.set(due);
            if !due {
                tracing::info!("background work goes on");
            }
        }
        if let Some((tier, stalls)) = &mut self.tier
            && let Some(stalled) = stalls.look(now)
            // What has just begun to rest may be all that pressed.
            && !began
        {
            tier.step(stalled).await;
        }
    }
}

fn by(resource: Resource) -> By {
    [("resource", resource.name())]
}

/// For the log.
fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

impl Figures {
    fn note(&self, resource: Resource, stalled: Stalled) {
        self.some.get_or_create(&by(resource)).set(stalled.some);
        self.full.get_or_create(&by(resource)).set(stalled.full);
    }

    pub(crate) fn register(&self, registry: &mut Registry) {
        registry.register("some", "Share of the last two seconds in which a task waited, of the machine or our group, where background work rests under that", self.some.clone());
        registry.register("full", "The same of all tasks at once", self.full.clone());
        registry.register(
            "background_paused",
            "Whether background work rests for the sake of this resource",
            self.paused.clone(),
        );
        registry.register_with_unit(
            "background_paused",
            "Time for which background work rested for the sake of this resource",
            Unit::Seconds,
            self.seconds.clone(),
        );
        registry.register_collector(Box::new(Resting(self.rest.clone())));
    }
}

/// Counted when somebody asks.
#[derive(Debug)]
struct Resting(Rest);

impl Collector for Resting {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let resting = ConstGauge::new(i64::try_from(self.0.resting()).unwrap_or(i64::MAX));
        let described = encoder.encode_descriptor(
            "background_resting",
            "Workers of the background that rest at this moment",
            None,
            resting.metric_type(),
        )?;
        resting.encode(described)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    struct Machine(tempfile::TempDir);

    impl Machine {
        fn new() -> Self {
            let machine = Self(tempfile::tempdir().unwrap());
            fs::create_dir_all(machine.0.path().join("proc/pressure")).unwrap();
            machine.waited(Resource::Memory, 0);
            machine.waited(Resource::Cpu, 0);
            machine
        }

        /// So many milliseconds in all.
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

    fn text(figures: &Figures) -> String {
        let mut registry = Registry::default();
        figures.register(&mut registry);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        text
    }

    #[tokio::test]
    async fn work_rests_while_something_is_short_and_that_is_counted() {
        let (machine, rest) = (Machine::new(), Rest::default());
        let both = [Resource::Memory, Resource::Cpu];
        let mut watch = Watch::new(rest.clone(), &both, None, machine.0.path());
        let (figures, begin, step) = (watch.figures(), Instant::now(), Duration::from_secs(1));
        let mut looks = 0;
        let mut look = async |watch: &mut Watch| {
            looks += 1;
            watch.look(begin + step * looks, step).await;
        };
        look(&mut watch).await;
        assert!(!rest.is_due());
        machine.waited(Resource::Cpu, 900);
        look(&mut watch).await;
        assert!(rest.is_due() && !rest.is_memory_short());
        machine.waited(Resource::Memory, 100);
        look(&mut watch).await;
        assert!(rest.is_memory_short());
        let said = text(&figures);
        for line in [
            "some{resource=\"memory\"} 0.1\n",
            "some{resource=\"cpu\"} 0.0\n",
            "background_paused{resource=\"memory\"} 1\n",
            "background_paused{resource=\"cpu\"} 1\n",
            "background_paused_seconds_total{resource=\"memory\"} 0.0\n",
            "background_paused_seconds_total{resource=\"cpu\"} 1.0\n",
            "background_resting 0\n",
        ] {
            assert!(said.contains(line), "{line} in {said}");
        }
        // The processors are calm from the third look on, memory from the fourth.
        for _ in 0..4 {
            look(&mut watch).await;
        }
        assert!(rest.is_due(), "memory is not calm for long enough");
        look(&mut watch).await;
        assert!(!rest.is_due() && !rest.is_memory_short());
        let said = text(&figures);
        assert!(
            said.contains("background_paused{resource=\"memory\"} 0\n"),
            "{said}"
        );
        assert!(
            said.contains("background_paused_seconds_total{resource=\"memory\"} 5.0\n"),
            "{said}"
        );
    }

    #[tokio::test]
    async fn work_rests_before_the_tier_shrinks() {
        let (machine, rest) = (Machine::new(), Rest::default());
        let (cache, limit, _folders) = super::super::tier::tests::tiered();
        let tier = Some(limit.clone());
        let mut watch = Watch::new(rest.clone(), &[Resource::Memory], tier, machine.0.path());
        let begin = Instant::now();
        let after = |seconds| begin + Duration::from_secs(seconds);
        let now = || cache.tier().unwrap().fast.limit;
        watch.look(begin, Duration::ZERO).await;
        machine.waited(Resource::Memory, 500);
        watch.look(after(1), Duration::ZERO).await;
        assert!(rest.is_due());
        assert_eq!(now(), limit.ceiling(), "what rests may be all that pressed");
        machine.waited(Resource::Memory, 1000);
        watch.look(after(2), Duration::ZERO).await;
        assert!(now() < limit.ceiling());
        cache.close().await;
    }

    #[tokio::test]
    async fn where_nothing_is_counted_nothing_rests() {
        let (root, rest) = (tempfile::tempdir().unwrap(), Rest::default());
        let mut watch = Watch::new(rest.clone(), &[Resource::Memory], None, root.path());
        watch.look(Instant::now(), Duration::ZERO).await;
        assert!(!rest.is_due());
        let said = text(&watch.figures());
        assert!(!said.contains("resource="), "{said}");
    }
}
