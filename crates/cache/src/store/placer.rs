//! Applies the placement rules of the fast tier: chooses the tier of each fill (the download of a
//! blob into the cache), and reports each request to the rules.

use parking_lot::Mutex;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use pierhead_host::BackgroundWork;
use pierhead_oci::{Digest, Manifest};

use crate::store::state::State;
use crate::tier::placement::{Advisor, Destination, FastTier, LayerProgress, TierStat};
use crate::tier::{Hint, Options, Tier, WriteBack};

/// Minimum size of a fill, in bytes, that is used to measure the throughput of the link.
const MIN_MEASURED_FILL: u64 = 4 << 20;

pub(crate) struct Placer {
    write_back: Arc<WriteBack>,
    advisor: Mutex<Advisor>,
    class: &'static str,
    capacity: u64,
}

impl Placer {
    /// Puts the tier `fast` in front of the tier `disk`.
    pub(crate) fn new(
        fast: &FastTier,
        disk: Arc<dyn Tier>,
        background: &BackgroundWork,
    ) -> std::io::Result<Self> {
        let options = Options {
            margin: fast.placement.margin(),
            ..fast.options
        };
        let write_back = WriteBack::open_with(fast.tier.clone(), disk, options, background)?;
        Ok(Self {
            write_back: Arc::new(write_back),
            advisor: Mutex::new(Advisor::new(fast.placement)),
            class: fast.class,
            capacity: fast.capacity,
        })
    }

    /// Returns both tiers as one tier.
    pub(crate) fn tier(&self) -> Arc<dyn Tier> {
        self.write_back.clone()
    }

    pub(crate) fn stat(&self) -> TierStat {
        TierStat {
            class: self.class,
            capacity: self.capacity,
            fast: self.write_back.stat(),
            speeds: self.write_back.speeds(),
        }
    }

    /// Returns the fast tier with its write-back.
    pub(crate) fn write_back(&self) -> &Arc<WriteBack> {
        &self.write_back
    }

    /// Sets the hot ranges of a blob: the byte ranges that a container start reads. The fast tier
    /// ranks these ranges by saved seconds per byte.
    pub(crate) fn set_hot_ranges(
        &self,
        digest: Digest,
        ranges: &[Range<u64>],
        state: &Mutex<State>,
    ) {
        let advisor = self.advisor.lock();
        let sharing = state.lock().ranking.image_counts.count(&digest).into();
        let bytes = ranges
            .iter()
            .map(|it| it.end.saturating_sub(it.start))
            .sum();
        let priority = advisor.hot_priority(&digest, (ranges.len(), bytes), sharing);
        self.write_back.set_hot_ranges(digest, ranges, priority);
    }

    /// Chooses the tier to which the fill of a digest writes.
    pub(crate) fn choose_tier(&self, digest: &Digest, state: &Mutex<State>) {
        let advisor = self.advisor.lock();
        let Some(bytes) = advisor.expected(digest) else {
            return;
        };
        // `floor` may visit all blobs of the fast tier. `floor` is computed before the state is
        // locked, because requests wait for the lock of the state.
        let floor = self.write_back.floor(bytes);
        let state = state.lock();
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
        let sharing = state.ranking.image_counts.count(digest).into();
        if let Some(decision) = advisor.decide(digest, sharing, progress, floor) {
            let hint = Hint {
                destination: decision.destination,
                priority: decision.priority,
                bytes,
            };
            self.write_back.hint(*digest, hint);
        }
    }

    /// Places a document of `bytes` bytes on the fast tier, because a pull waits until the document
    /// is stored.
    pub(crate) fn place_document(&self, digest: &Digest, bytes: u64) {
        let hint = Hint {
            destination: Destination::Fast,
            priority: self.advisor.lock().priority(digest, bytes, 1),
            bytes,
        };
        self.write_back.hint(*digest, hint);
    }

    /// Measures the throughput of the link when a fill is complete. `started_at` is the start time
    /// of the fill, and the number of bytes that all fills had written before that time. `written`
    /// is the number of bytes that all fills have written until now.
    pub(crate) fn measure_link(
        &self,
        size: u64,
        (started_at, before): (Instant, u64),
        written: u64,
    ) {
        // A small fill measures the latency of the registry, not the throughput of the link.
        if size < MIN_MEASURED_FILL {
            return;
        }
        let seconds = started_at.elapsed().as_secs_f64();
        let bytes = written.saturating_sub(before);
        #[expect(clippy::cast_precision_loss, reason = "an expectation")]
        self.advisor.lock().arrived(bytes as f64 / seconds);
    }

    /// Counts a request that opened a blob.
    pub(crate) fn count_request(&self, digest: &Digest, bytes: u64, state: &Mutex<State>) {
        let mut advisor = self.advisor.lock();
        advisor.request(digest);
        advisor.measured(self.write_back.speeds());
        let sharing = state.lock().ranking.image_counts.count(digest).into();
        let priority = advisor.priority(digest, bytes, sharing);
        if self.write_back.has_copy(digest) {
            self.write_back.rank(digest, priority);
        } else if self.write_back.hot(digest).is_none() {
            self.write_back.promote(*digest, bytes, priority);
        }
        if let Some(hot) = self.write_back.hot(digest) {
            let sharing = state.lock().ranking.image_counts.count(digest).into();
            let priority = advisor.hot_priority(digest, hot, sharing);
            self.write_back.rank_hot(digest, priority);
        }
    }

    /// Tells the placement rules about an image whose manifest was stored.
    pub(crate) fn add_image(&self, digest: &Digest, manifest: &Manifest) {
        self.advisor.lock().enter(*digest, manifest);
    }
}
