//! The index of partial fills, ordered by the time of their last write. A partial fill is the
//! staged bytes of an interrupted fill (the download of a blob into the cache).

use std::collections::{BTreeSet, HashMap};

use pierhead_oci::Digest;

use crate::origin::Origin;

/// A partial fill: staged bytes without a running fill.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Partial {
    pub(crate) bytes: u64,
    /// Time of the last write to the staged bytes, in seconds since 1970.
    pub(crate) modified: u64,
    /// The registry that sent the staged bytes.
    pub(crate) origin: Origin,
}

/// All partial fills. Every operation takes O(log n) time.
#[derive(Default)]
pub(crate) struct Partials {
    by_digest: HashMap<Digest, Partial>,
    by_age: BTreeSet<(u64, Digest)>,
    bytes: u64,
}

impl Partials {
    /// Inserts a partial fill. Replaces an older partial fill of the same digest.
    pub(crate) fn insert(&mut self, digest: Digest, partial: Partial) {
        self.remove(&digest);
        self.bytes += partial.bytes;
        self.by_age.insert((partial.modified, digest));
        self.by_digest.insert(digest, partial);
    }

    pub(crate) fn remove(&mut self, digest: &Digest) -> Option<Partial> {
        let partial = self.by_digest.remove(digest)?;
        self.by_age.remove(&(partial.modified, *digest));
        self.bytes -= partial.bytes;
        Some(partial)
    }

    /// Removes and returns the partial fill with the oldest write.
    pub(crate) fn pop_oldest(&mut self) -> Option<(Digest, Partial)> {
        self.pop_before(u64::MAX)
    }

    /// Removes and returns the partial fill with the oldest write, but only if this write was
    /// before `time`.
    pub(crate) fn pop_before(&mut self, time: u64) -> Option<(Digest, Partial)> {
        let (modified, digest) = *self.by_age.first()?;
        if modified >= time {
            return None;
        }
        self.remove(&digest).map(|partial| (digest, partial))
    }

    /// Returns the bytes of all partial fills, in whole blocks.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_partial_fills_are_evicted_first() {
        let digest = |n: u8| Digest::of(pierhead_oci::Algorithm::Sha256, &[n]);
        let mut partials = Partials::default();
        for (n, modified) in [(1, 30), (2, 10), (3, 20), (2, 40)] {
            let bytes = u64::from(n) * 4096;
            let origin = Origin::LOCAL;
            let partial = Partial {
                bytes,
                modified,
                origin,
            };
            partials.insert(digest(n), partial);
        }
        assert_eq!(partials.bytes(), 6 * 4096);
        assert!(partials.pop_before(20).is_none());
        let order = std::iter::from_fn(|| partials.pop_oldest());
        let order: Vec<_> = order.map(|(digest, _)| digest).collect();
        assert_eq!(order, [digest(3), digest(1), digest(2)]);
        assert_eq!(partials.bytes(), 0);
    }
}
