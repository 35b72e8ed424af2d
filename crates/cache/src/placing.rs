//! The fast tier as the cache uses it: the rules are asked at each fill, and told of each request.

use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use pierhead_host::BackgroundWork;
use pierhead_oci::{Digest, Manifest};

use crate::flight::Flight;
use crate::staging::{Advisor, Placement, Progress, Value, Weights};
use crate::store::{Store, blocking};
use crate::tier::{FastStat, Hint, Options, Owed, Tier, WriteBehind};
use crate::{Cache, lock};

/// A tier in front of the disk.
#[derive(Clone)]
pub struct FastTier {
    /// The medium.
    pub tier: Arc<dyn Tier>,
    /// How the two are used.
    pub options: Options,
    /// What the rules count for.
    pub weights: Weights,
    /// What becomes of it when the power goes, as people are told: `pmem`, `emulated-file`, `volatile`.
    pub class: &'static str,
    /// Bytes of the medium.
    pub capacity: u64,
}

/// What the fast tier is and holds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TierStat {
    /// What becomes of it when the power goes.
    pub class: &'static str,
    /// Bytes of the medium.
    pub capacity: u64,
    /// What it holds and did.
    pub fast: FastStat,
    /// How disk and fast tier serve, as measured.
    pub speeds: Value,
}

/// A fill of fewer bytes says nothing of the link.
const MEASURED: u64 = 4 << 20;

pub(crate) struct Placing {
    behind: Arc<WriteBehind>,
    advisor: Mutex<Advisor>,
    class: &'static str,
    capacity: u64,
}

impl Placing {
    /// Puts `fast` in front of `disk`.
    pub(crate) fn new(
        fast: &FastTier,
        disk: Arc<dyn Tier>,
        rest: &BackgroundWork,
    ) -> std::io::Result<Self> {
        let options = Options {
            margin: fast.weights.margin(),
            ..fast.options
        };
        let behind = WriteBehind::open_resting(fast.tier.clone(), disk, options, rest)?;
        Ok(Self {
            behind: Arc::new(behind),
            advisor: Mutex::new(Advisor::new(fast.weights)),
            class: fast.class,
            capacity: fast.capacity,
        })
    }

    /// Both tiers as one.
    pub(crate) fn tier(&self) -> Arc<dyn Tier> {
        self.behind.clone()
    }

    pub(crate) fn stat(&self) -> TierStat {
        TierStat {
            class: self.class,
            capacity: self.capacity,
            fast: self.behind.stat(),
            speeds: self.behind.speeds(),
        }
    }
}

impl Store {
    /// Says where the fill of a digest should go. Nothing without a fast tier.
    pub(crate) fn place(&self, digest: &Digest) {
        let Some(placing) = &self.placing else { return };
        let advisor = lock(&placing.advisor);
        let Some(bytes) = advisor.expected(digest) else {
            return;
        };
        // Before the state is locked, which requests wait for: it may look at all that the fast tier has.
        let floor = placing.behind.floor(bytes);
        let state = lock(&self.state);
        let progress = |layer: &Digest, size: u64| {
            let flight = state.fills.get(layer);
            let landed = match state.index.contains_key(layer) {
                true => size,
                false => flight.map_or(0, |flight| flight.staged.load(Ordering::Relaxed)),
            };
            Progress {
                size,
                landed,
                rate: None,
                running: flight.is_some(),
            }
        };
        let sharing = state.ranking.shares.of(digest).into();
        if let Some(verdict) = advisor.judge(digest, sharing, progress, floor) {
            let hint = Hint {
                placement: verdict.placement,
                priority: verdict.priority,
                bytes,
            };
            placing.behind.hint(*digest, hint);
        }
    }

    /// A document will be stored, of so many bytes: a pull waits until it is. Nothing without a fast tier.
    pub(crate) fn place_document(&self, digest: &Digest, bytes: u64) {
        let Some(placing) = &self.placing else { return };
        let hint = Hint {
            placement: Placement::Fast,
            priority: lock(&placing.advisor).priority(digest, bytes, 1),
            bytes,
        };
        placing.behind.hint(*digest, hint);
    }

    /// The bytes of a fill are all here. Nothing without a fast tier.
    pub(crate) fn arrived(&self, flight: &Flight, size: u64) {
        let Some(placing) = &self.placing else { return };
        // What is smaller tells of the distance, and not of the link.
        if size < MEASURED {
            return;
        }
        let (begun, before) = flight.begun;
        let seconds = begun.elapsed().as_secs_f64();
        let bytes = self.metrics.written_bytes.get().saturating_sub(before);
        #[expect(clippy::cast_precision_loss, reason = "an expectation")]
        lock(&placing.advisor).arrived(bytes as f64 / seconds);
    }

    /// Somebody asked for a blob, which was opened for it. Nothing without a fast tier.
    pub(crate) fn requested(&self, digest: &Digest, bytes: u64) {
        let Some(placing) = &self.placing else { return };
        let mut advisor = lock(&placing.advisor);
        advisor.request(digest);
        advisor.measured(placing.behind.speeds());
        let sharing = lock(&self.state).ranking.shares.of(digest).into();
        let priority = advisor.priority(digest, bytes, sharing);
        if placing.behind.holds(digest) {
            placing.behind.rank(digest, priority);
        } else if placing.behind.hot(digest).is_none() {
            placing.behind.promote(*digest, bytes, priority);
        }
        if let Some(hot) = placing.behind.hot(digest) {
            let sharing = lock(&self.state).ranking.shares.of(digest).into();
            let priority = advisor.hot_priority(digest, hot, sharing);
            placing.behind.rank_hot(digest, priority);
        }
    }

    /// The manifest of an image was stored. Nothing without a fast tier.
    pub(crate) fn image_came(&self, digest: &Digest, manifest: &Manifest) {
        let Some(placing) = &self.placing else { return };
        let mut advisor = lock(&placing.advisor);
        if let Some(config) = advisor.enter(*digest, manifest) {
            let small = lock(&self.state).in_memory(&config);
            if let Some(small) = small {
                advisor.configure(&config, &small.bytes);
            }
        }
    }

    /// A small blob was stored, maybe a config. Nothing without a fast tier.
    pub(crate) fn small_came(&self, digest: &Digest, content: &Bytes) {
        if let Some(placing) = &self.placing {
            lock(&placing.advisor).configure(digest, content);
        }
    }
}

impl Cache {
    /// What the fast tier is and holds; `None` when there is none.
    pub fn tier(&self) -> Option<TierStat> {
        self.store.placing.as_ref().map(Placing::stat)
    }

    /// Says which ranges of a blob a start reads, in bytes of it: the fast tier keeps just these ([`WriteBehind::set_hot`]), by the
    /// seconds that they save for each byte. Nothing without a fast tier. Does not block.
    pub fn set_hot(&self, digest: Digest, ranges: &[Range<u64>]) {
        let Some(placing) = &self.store.placing else {
            return;
        };
        let advisor = lock(&placing.advisor);
        let sharing = lock(&self.store.state).ranking.shares.of(&digest).into();
        let bytes = ranges
            .iter()
            .map(|it| it.end.saturating_sub(it.start))
            .sum();
        let priority = advisor.hot_priority(&digest, (ranges.len(), bytes), sharing);
        placing.behind.set_hot(digest, ranges, priority);
    }

    /// Changes how many bytes the fast tier holds, as [`WriteBehind::set_limit`] does; `false` when there is none.
    pub async fn set_tier_limit(&self, limit: u64) -> bool {
        let Some(placing) = &self.store.placing else {
            return false;
        };
        let behind = placing.behind.clone();
        blocking(move || behind.set_limit(limit)).await;
        true
    }

    /// Brings to the disk what a volatile fast tier would forget, until `give_up` says so: what the disk lacks then. For the
    /// end, when nothing is served any more.
    pub async fn save_tier(&self, give_up: impl FnMut() -> bool + Send + 'static) -> Owed {
        let Some(placing) = &self.store.placing else {
            return Owed::default();
        };
        let behind = placing.behind.clone();
        blocking(move || behind.save(give_up)).await
    }
}
