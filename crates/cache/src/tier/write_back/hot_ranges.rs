//! The hot ranges of blobs, which are the byte ranges that container starts read, and the queue of
//! blobs whose hot ranges still have to be copied to the fast tier.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use pierhead_oci::Digest;

use super::spans::Spans;

/// Maximum number of blobs whose hot ranges are remembered. Above this number, the hot ranges that
/// were set first are dropped.
const MAX_KNOWN: usize = 4096;

/// The hot ranges of blobs, and a queue of blobs whose hot ranges must be copied to the fast tier.
#[derive(Default)]
pub(super) struct HotRanges {
    spans: HashMap<Digest, HotRange>,
    /// Keys of `spans`. The digest whose hot ranges were set least recently is first.
    order: VecDeque<Digest>,
    /// Blobs whose hot ranges must be copied to the fast tier.
    queue: VecDeque<Digest>,
}

/// The hot ranges of one blob, and their priority.
#[derive(Clone)]
pub(super) struct HotRange {
    pub(super) spans: Arc<Spans>,
    pub(super) priority: f64,
}

impl HotRanges {
    pub(super) fn set(&mut self, digest: Digest, hot_range: HotRange) {
        if self.spans.insert(digest, hot_range).is_some() {
            self.order.retain(|it| *it != digest);
        }
        self.order.push_back(digest);
        if self.order.len() > MAX_KNOWN
            && let Some(oldest) = self.order.pop_front()
        {
            self.spans.remove(&oldest);
            self.take(&oldest);
        }
        self.queue_copy(&digest);
    }

    pub(super) fn get(&self, digest: &Digest) -> Option<&HotRange> {
        self.spans.get(digest)
    }

    /// Changes the priority of a blob's hot ranges, and returns the hot ranges.
    pub(super) fn rank(&mut self, digest: &Digest, priority: f64) -> Option<&HotRange> {
        let hot_range = self.spans.get_mut(digest)?;
        hot_range.priority = priority;
        Some(hot_range)
    }

    /// Queues a blob with known hot ranges for a copy, because the disk has the blob now or a
    /// client requested it.
    pub(super) fn queue_copy(&mut self, digest: &Digest) {
        if self.spans.contains_key(digest) && !self.queue.contains(digest) {
            self.queue.push_back(*digest);
        }
    }

    /// Drops the hot ranges of a blob until they are set again.
    pub(super) fn forget(&mut self, digest: &Digest) {
        self.spans.remove(digest);
        self.order.retain(|it| it != digest);
        self.take(digest);
    }

    pub(super) fn is_idle(&self) -> bool {
        self.queue.is_empty()
    }

    /// Returns the next queued blob that `is_blocked` does not exclude.
    pub(super) fn next(&self, is_blocked: impl Fn(&Digest) -> bool) -> Option<Digest> {
        self.queue
            .iter()
            .find(|digest| !is_blocked(digest))
            .copied()
    }

    /// Removes a blob from the queue.
    pub(super) fn take(&mut self, digest: &Digest) {
        self.queue.retain(|it| it != digest);
    }
}

#[cfg(test)]
mod tests {
    use pierhead_oci::Algorithm;

    use super::*;

    fn digest(seed: usize) -> Digest {
        Digest::of(Algorithm::Sha256, &seed.to_le_bytes())
    }

    fn learn(known: &mut HotRanges, seed: usize) {
        let spans = Spans::of(std::slice::from_ref(&(0..1))).unwrap();
        let hot_range = HotRange {
            spans: Arc::new(spans),
            priority: 1.0,
        };
        known.set(digest(seed), hot_range);
    }

    #[test]
    fn dropped_hot_ranges_are_not_queued_and_ranges_set_again_are_newest() {
        let mut known = HotRanges::default();
        (0..MAX_KNOWN).for_each(|seed| learn(&mut known, seed));
        learn(&mut known, 0);
        (0..10).for_each(|seed| learn(&mut known, MAX_KNOWN + seed));
        assert!(known.get(&digest(0)).is_some(), "it was said anew");
        assert!(known.get(&digest(10)).is_none() && known.get(&digest(11)).is_some());
        assert_eq!(known.queue.len(), MAX_KNOWN);
        assert!(known.queue.iter().all(|it| known.get(it).is_some()));
        assert_eq!(
            (known.order.len(), known.spans.len()),
            (MAX_KNOWN, MAX_KNOWN)
        );
    }
}
