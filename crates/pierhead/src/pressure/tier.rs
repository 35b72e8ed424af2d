//! The limit of the fast tier: an operator's, and less while this machine is short of memory.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pierhead_cache::Cache;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};
use std::sync::atomic::AtomicU64;

use super::{Follow, Stalled};

/// A handle; clones share everything.
#[derive(Clone)]
pub(crate) struct TierLimit {
    cache: Cache,
    /// What the medium holds.
    most: u64,
    follow: Arc<Mutex<Follow>>,
    /// One change of the limit at a time.
    setting: Arc<tokio::sync::Mutex<()>>,
    figures: Figures,
}

/// Shares of the last interval.
#[derive(Clone, Default)]
struct Figures {
    some: Gauge<f64, AtomicU64>,
    full: Gauge<f64, AtomicU64>,
    ceiling: Gauge<i64>,
}

impl TierLimit {
    /// `None` where there is no fast tier.
    pub(crate) fn of(cache: &Cache) -> Option<Self> {
        let fast = cache.tier()?.fast;
        let follow = Follow::new(fast.limit);
        let limit = Self {
            cache: cache.clone(),
            most: fast.most,
            follow: Arc::new(Mutex::new(follow)),
            setting: Arc::default(),
            figures: Figures::default(),
        };
        limit.figures.note(&follow);
        Some(limit)
    }

    fn follow(&self) -> MutexGuard<'_, Follow> {
        self.follow.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What an operator, or the configuration, set.
    pub(crate) fn ceiling(&self) -> u64 {
        self.follow().ceiling()
    }

    /// An operator's word; more than the medium holds is what it holds.
    pub(crate) async fn set_ceiling(&self, ceiling: u64) {
        let ceiling = ceiling.min(self.most);
        self.change(|follow| follow.set_ceiling(ceiling)).await;
    }

    /// One look at the pressure.
    pub(crate) async fn step(&self, stalled: Stalled) {
        self.figures.some.set(stalled.some);
        self.figures.full.set(stalled.full);
        self.change(|follow| follow.step(stalled)).await;
    }

    async fn change(&self, change: impl FnOnce(&mut Follow)) {
        let _one = self.setting.lock().await;
        let (before, after, ceiling) = {
            let mut follow = self.follow();
            let before = follow.limit();
            change(&mut follow);
            self.figures.note(&follow);
            (before, follow.limit(), follow.ceiling())
        };
        if before != after {
            tracing::info!(before, after, "the limit of the fast tier changes");
        }
        // What was let go of since the last time gives its memory back, too.
        if before != after || after < ceiling {
            self.cache.set_tier_limit(after).await;
        }
    }

    pub(crate) fn register(&self, registry: &mut Registry) {
        registry.register("memory_some", "Share of the last two seconds in which a task waited for memory, where the limit of the fast tier follows that", self.figures.some.clone());
        registry.register(
            "memory_full",
            "The same of all tasks at once",
            self.figures.full.clone(),
        );
        registry.register_with_unit(
            "tier_ceiling",
            "The limit of the fast tier while nothing presses",
            Unit::Bytes,
            self.figures.ceiling.clone(),
        );
    }
}

impl Figures {
    fn note(&self, follow: &Follow) {
        self.ceiling
            .set(i64::try_from(follow.ceiling()).unwrap_or(i64::MAX));
    }
}

#[cfg(test)]
pub(super) mod tests {
    use pierhead_cache::FastTier;
    use pierhead_cache::staging::Weights;
    use pierhead_cache::tier::{DiskTier, Options};
    use pierhead_eviction::Lru;

    use super::*;

    /// A cache with a fast tier of 1600 bytes, and where both lie.
    pub(in crate::pressure) fn tiered() -> (Cache, TierLimit, [tempfile::TempDir; 2]) {
        let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let mut config = pierhead_cache::Config::new(folders[0].path(), 1 << 30);
        config.fast = Some(FastTier {
            tier: Arc::new(DiskTier::new(folders[1].path()).unwrap()),
            options: Options {
                most: 3000,
                ..Options::new(1600)
            },
            weights: Weights::default(),
            class: "volatile",
            capacity: 4000,
        });
        let cache = Cache::open(config, Box::new(Lru::new())).unwrap();
        let limit = TierLimit::of(&cache).unwrap();
        (cache, limit, folders)
    }

    #[tokio::test]
    async fn the_tier_has_the_limit_that_pressure_leaves_of_the_operators() {
        let (cache, limit, _folders) = tiered();
        let now = || (cache.tier().unwrap().fast.limit, limit.ceiling());
        let pressed = Stalled {
            some: 0.5,
            full: 0.1,
        };
        assert_eq!(now(), (1600, 1600));
        limit.step(pressed).await;
        assert_eq!(now(), (1200, 1600));
        limit.set_ceiling(2000).await;
        assert_eq!(now(), (1200, 2000));
        for _ in 0..100 {
            limit.step(Stalled::default()).await;
        }
        assert_eq!(now(), (2000, 2000));
        limit.set_ceiling(u64::MAX).await;
        assert_eq!(now(), (3000, 3000), "more than the medium holds");
        limit.set_ceiling(500).await;
        assert_eq!(now(), (500, 500));
        let mut registry = Registry::default();
        limit.register(&mut registry);
        limit.step(pressed).await;
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        for line in [
            "memory_some 0.5\n",
            "memory_full 0.1\n",
            "tier_ceiling_bytes 500\n",
        ] {
            assert!(text.contains(line), "{line} in {text}");
        }
        cache.close().await;
    }
}
