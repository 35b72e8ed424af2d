//! The fast tier as the cache uses it: the rules are asked at each fill, and told of each request.

use parking_lot::Mutex;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use pierhead_host::BackgroundWork;
use pierhead_oci::{Digest, Manifest};

use crate::blocking::blocking;
use crate::cache::Cache;
use crate::fill::shared_fill::SharedFill;
use crate::store::Store;
use crate::tier::placement::{Advisor, Destination, LayerProgress, Placement, TierSpeeds};
use crate::tier::{Dirty, FastStat, Hint, Options, Tier, WriteBack};

/// A tier in front of the disk.
#[derive(Clone)]
pub struct FastTier {
    /// The medium.
    pub tier: Arc<dyn Tier>,
    /// How the two are used.
    pub options: Options,
    /// The rule that decides which blobs it takes.
    pub placement: Placement,
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
    pub speeds: TierSpeeds,
}

/// A fill of fewer bytes says nothing of the link.
const MEASURED: u64 = 4 << 20;

pub(crate) struct Placer {
    behind: Arc<WriteBack>,
    advisor: Mutex<Advisor>,
    class: &'static str,
    capacity: u64,
}

impl Placer {
    /// Puts `fast` in front of `disk`.
    pub(crate) fn new(
        fast: &FastTier,
        disk: Arc<dyn Tier>,
        rest: &BackgroundWork,
    ) -> std::io::Result<Self> {
        let options = Options {
            margin: fast.placement.margin(),
            ..fast.options
        };
        let behind = WriteBack::open_resting(fast.tier.clone(), disk, options, rest)?;
        Ok(Self {
            behind: Arc::new(behind),
            advisor: Mutex::new(Advisor::new(fast.placement)),
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
        let Some(placer) = &self.placer else { return };
        let advisor = placer.advisor.lock();
        let Some(bytes) = advisor.expected(digest) else {
            return;
        };
        // Before the state is locked, which requests wait for: it may look at all that the fast tier has.
        let floor = placer.behind.floor(bytes);
        let state = self.state.lock();
        let progress = |layer: &Digest, size: u64| {
            let shared_fill = state.fills.get(layer);
            let landed = match state.index.contains_key(layer) {
                true => size,
                false => {
                    shared_fill.map_or(0, |shared_fill| shared_fill.staged.load(Ordering::Relaxed))
                }
            };
            LayerProgress {
                size,
                landed,
                rate: None,
                running: shared_fill.is_some(),
            }
        };
        let sharing = state.ranking.shares.of(digest).into();
        if let Some(decision) = advisor.decide(digest, sharing, progress, floor) {
            let hint = Hint {
                destination: decision.destination,
                priority: decision.priority,
                bytes,
            };
            placer.behind.hint(*digest, hint);
        }
    }

    /// A document will be stored, of so many bytes: a pull waits until it is. Nothing without a fast tier.
    pub(crate) fn place_document(&self, digest: &Digest, bytes: u64) {
        let Some(placer) = &self.placer else { return };
        let hint = Hint {
            destination: Destination::Fast,
            priority: placer.advisor.lock().priority(digest, bytes, 1),
            bytes,
        };
        placer.behind.hint(*digest, hint);
    }

    /// The bytes of a fill are all here. Nothing without a fast tier.
    pub(crate) fn arrived(&self, shared_fill: &SharedFill, size: u64) {
        let Some(placer) = &self.placer else { return };
        // What is smaller tells of the distance, and not of the link.
        if size < MEASURED {
            return;
        }
        let (begun, before) = shared_fill.begun;
        let seconds = begun.elapsed().as_secs_f64();
        let bytes = self.metrics.written_bytes.get().saturating_sub(before);
        #[expect(clippy::cast_precision_loss, reason = "an expectation")]
        placer.advisor.lock().arrived(bytes as f64 / seconds);
    }

    /// Somebody asked for a blob, which was opened for it. Nothing without a fast tier.
    pub(crate) fn requested(&self, digest: &Digest, bytes: u64) {
        let Some(placer) = &self.placer else { return };
        let mut advisor = placer.advisor.lock();
        advisor.request(digest);
        advisor.measured(placer.behind.speeds());
        let sharing = self.state.lock().ranking.shares.of(digest).into();
        let priority = advisor.priority(digest, bytes, sharing);
        if placer.behind.holds(digest) {
            placer.behind.rank(digest, priority);
        } else if placer.behind.hot(digest).is_none() {
            placer.behind.promote(*digest, bytes, priority);
        }
        if let Some(hot) = placer.behind.hot(digest) {
            let sharing = self.state.lock().ranking.shares.of(digest).into();
            let priority = advisor.hot_priority(digest, hot, sharing);
            placer.behind.rank_hot(digest, priority);
        }
    }

    /// The manifest of an image was stored. Nothing without a fast tier.
    pub(crate) fn image_came(&self, digest: &Digest, manifest: &Manifest) {
        let Some(placer) = &self.placer else { return };
        placer.advisor.lock().enter(*digest, manifest);
    }
}

impl Cache {
    /// What the fast tier is and holds; `None` when there is none.
    pub fn tier(&self) -> Option<TierStat> {
        self.store.placer.as_ref().map(Placer::stat)
    }

    /// Says which ranges of a blob a start reads, in bytes of it: the fast tier keeps just these ([`WriteBack::set_hot`]), by the
    /// seconds that they save for each byte. Nothing without a fast tier. Does not block.
    pub fn set_hot(&self, digest: Digest, ranges: &[Range<u64>]) {
        let Some(placer) = &self.store.placer else {
            return;
        };
        let advisor = placer.advisor.lock();
        let sharing = self.store.state.lock().ranking.shares.of(&digest).into();
        let bytes = ranges
            .iter()
            .map(|it| it.end.saturating_sub(it.start))
            .sum();
        let priority = advisor.hot_priority(&digest, (ranges.len(), bytes), sharing);
        placer.behind.set_hot(digest, ranges, priority);
    }

    /// Changes how many bytes the fast tier holds, as [`WriteBack::set_limit`] does; `false` when there is none.
    pub async fn set_tier_limit(&self, limit: u64) -> bool {
        let Some(placer) = &self.store.placer else {
            return false;
        };
        let behind = placer.behind.clone();
        blocking(move || behind.set_limit(limit)).await;
        true
    }

    /// Brings to the disk what a volatile fast tier would forget, until `give_up` says so: what the disk lacks then. For the
    /// end, when nothing is served any more.
    pub async fn save_tier(&self, give_up: impl FnMut() -> bool + Send + 'static) -> Dirty {
        let Some(placer) = &self.store.placer else {
            return Dirty::default();
        };
        let behind = placer.behind.clone();
        blocking(move || behind.save(give_up)).await
    }
}
