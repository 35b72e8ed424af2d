//! The limit for the bytes on the fast tier: the value that the operator has set, or a lower value
//! under memory pressure.

#![expect(
    clippy::disallowed_types,
    reason = "one task holds the monitor as long as it runs, and a change of the limit awaits evictions"
)]

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Instant;

use parking_lot::Mutex;
use pierhead_cache::Cache;
use pierhead_host::pressure::{PressureLimit, PressureMonitor, Stall};
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};
use tokio::time::MissedTickBehavior;

/// The monitor of [`follow_pressure`]. The caller shares the monitor with the task, so that the
/// monitor survives a restart of the task after a panic.
pub(crate) type SharedMonitor = Arc<tokio::sync::Mutex<PressureMonitor>>;

/// Reads the memory pressure every [`PressureMonitor::INTERVAL`] until the task is cancelled. Under
/// pressure, background work pauses first. If the pressure continues, the `limit` shrinks.
pub(crate) async fn follow_pressure(monitor: SharedMonitor, limit: Option<TierLimit>) {
    let mut monitor = monitor.lock().await;
    let mut ticks = tokio::time::interval(PressureMonitor::INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut last = Instant::now();
    loop {
        ticks.tick().await;
        let now = Instant::now();
        let passed = now.saturating_duration_since(std::mem::replace(&mut last, now));
        if let (Some(stall), Some(limit)) = (monitor.update(now, passed), &limit) {
            limit.update(stall).await;
        }
    }
}

/// The limit of the fast tier. All clones share one limit.
#[derive(Clone)]
pub(crate) struct TierLimit {
    cache: Cache,
    /// Capacity in bytes of the medium.
    max: u64,
    limit: Arc<Mutex<PressureLimit>>,
    /// Serializes changes of the limit, since a change waits for evictions.
    changing: Arc<tokio::sync::Mutex<()>>,
    metrics: TierLimitMetrics,
}

/// The metrics of the limit: the memory pressure of the last interval, and the limit without
/// pressure.
#[derive(Clone, Default)]
struct TierLimitMetrics {
    some: Gauge<f64, AtomicU64>,
    full: Gauge<f64, AtomicU64>,
    ceiling: Gauge<i64>,
}

impl TierLimit {
    /// Returns the limit of the fast tier of `cache`, or `None` without a fast tier.
    pub(crate) fn of(cache: &Cache) -> Option<Self> {
        let fast = cache.tier()?.fast;
        let limit = PressureLimit::new(fast.limit);
        let metrics = TierLimitMetrics::default();
        metrics.set(&limit);
        Some(Self {
            cache: cache.clone(),
            max: fast.max_limit,
            limit: Arc::new(Mutex::new(limit)),
            changing: Arc::default(),
            metrics,
        })
    }

    /// Returns the ceiling: the limit that the operator or the configuration has set.
    pub(crate) fn ceiling(&self) -> u64 {
        self.limit.lock().ceiling()
    }

    /// Sets the ceiling (the limit without memory pressure), at most to the capacity of the medium.
    pub(crate) async fn set_ceiling(&self, ceiling: u64) {
        let ceiling = ceiling.min(self.max);
        self.change(|limit| limit.set_ceiling(ceiling)).await;
    }

    /// Adjusts the limit to one measurement of the memory pressure.
    pub(crate) async fn update(&self, stall: Stall) {
        self.metrics.some.set(stall.some);
        self.metrics.full.set(stall.full);
        self.change(|limit| limit.update(stall)).await;
    }

    async fn change(&self, change: impl FnOnce(&mut PressureLimit)) {
        let _serialized = self.changing.lock().await;
        let (before, after, ceiling) = {
            let mut limit = self.limit.lock();
            let before = limit.limit();
            change(&mut limit);
            self.metrics.set(&limit);
            (before, limit.limit(), limit.ceiling())
        };
        if before != after {
            tracing::info!(before, after, "the limit of the fast tier changed");
        }
        // Below the ceiling, sets the limit again even if it has not changed: this frees the memory
        // of blobs that were in use at the last change.
        if before != after || after < ceiling {
            self.cache.set_tier_limit(after).await;
        }
    }

    /// Registers the metrics of the limit. The caller gives the prefix of their names.
    pub(crate) fn register(&self, registry: &mut Registry) {
        registry.register("memory_some", "Share of the last two seconds in which at least one task waited for memory; 0 unless the limit of the fast tier depends on it", self.metrics.some.clone());
        registry.register(
            "memory_full",
            "Share of the last two seconds in which all tasks waited for memory",
            self.metrics.full.clone(),
        );
        registry.register_with_unit(
            "tier_ceiling",
            "The limit of the fast tier without pressure",
            Unit::Bytes,
            self.metrics.ceiling.clone(),
        );
    }
}

impl TierLimitMetrics {
    fn set(&self, limit: &PressureLimit) {
        self.ceiling
            .set(i64::try_from(limit.ceiling()).unwrap_or(i64::MAX));
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Duration;

    use pierhead_cache::FastTier;
    use pierhead_cache::Placement;
    use pierhead_cache::tier::{DiskTier, Options};
    use pierhead_eviction::Lru;
    use pierhead_host::BackgroundWork;
    use pierhead_host::pressure::Resource;

    use super::*;

    /// Creates a cache with a fast tier of 1600 bytes. Returns also the folders of the cache and of
    /// the tier.
    fn cache_with_tier() -> (Cache, TierLimit, [tempfile::TempDir; 2]) {
        let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let mut config = pierhead_cache::Config::new(folders[0].path(), 1 << 30);
        config.fast = Some(FastTier {
            tier: Arc::new(DiskTier::new(folders[1].path()).unwrap()),
            options: Options {
                max_limit: 3000,
                ..Options::new(1600)
            },
            placement: Placement::default(),
            class: "volatile",
            capacity: 4000,
        });
        let cache = Cache::open(config, Box::new(Lru::new())).unwrap();
        let limit = TierLimit::of(&cache).unwrap();
        (cache, limit, folders)
    }

    #[tokio::test]
    async fn the_limit_shrinks_under_pressure_and_grows_back_to_the_ceiling() {
        let (cache, limit, _folders) = cache_with_tier();
        let now = || (cache.tier().unwrap().fast.limit, limit.ceiling());
        let pressed = Stall {
            some: 0.5,
            full: 0.1,
        };
        assert_eq!(now(), (1600, 1600));
        limit.update(pressed).await;
        assert_eq!(now(), (1200, 1600));
        limit.set_ceiling(2000).await;
        assert_eq!(now(), (1200, 2000));
        for _ in 0..100 {
            limit.update(Stall::default()).await;
        }
        assert_eq!(now(), (2000, 2000));
        limit.set_ceiling(u64::MAX).await;
        assert_eq!(
            now(),
            (3000, 3000),
            "the ceiling is above the capacity of the medium"
        );
        limit.set_ceiling(500).await;
        assert_eq!(now(), (500, 500));
        limit.update(pressed).await;
        let text = pierhead_testkit::metrics::metrics_text(|registry| limit.register(registry));
        for line in [
            "memory_some 0.5\n",
            "memory_full 0.1\n",
            "tier_ceiling_bytes 500\n",
        ] {
            assert!(text.contains(line), "{line} in {text}");
        }
        cache.close().await;
    }

    #[tokio::test]
    async fn background_work_pauses_before_the_tier_shrinks() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("proc/pressure/memory");
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        let write_stall = |millis: u64| {
            let total = millis * 1000;
            let text = format!("some avg10=0.00 avg60=0.00 avg300=0.00 total={total}\n");
            fs::write(&file, text).unwrap();
        };
        write_stall(0);
        let (cache, limit, _folders) = cache_with_tier();
        let work = BackgroundWork::default();
        let monitor = PressureMonitor::new(work.clone(), &[Resource::Memory], "key", root.path());
        let mut monitor = monitor.reporting_memory("the fast tier", root.path());
        let begin = Instant::now();
        let after = |seconds| begin + Duration::from_secs(seconds);
        let now = || cache.tier().unwrap().fast.limit;
        assert_eq!(monitor.update(begin, Duration::ZERO), None);
        write_stall(500);
        assert_eq!(monitor.update(after(1), Duration::ZERO), None);
        assert!(work.is_paused());
        assert_eq!(
            now(),
            limit.ceiling(),
            "the paused work may have caused all of the pressure"
        );
        write_stall(1000);
        let stall = monitor.update(after(2), Duration::ZERO).unwrap();
        limit.update(stall).await;
        assert!(now() < limit.ceiling());
        cache.close().await;
    }
}
