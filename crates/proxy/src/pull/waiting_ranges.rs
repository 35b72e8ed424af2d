//! `WaitingRanges`: the ranges of clients that wait for a download slot while their blob is filled.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

/// The ranges for which readers wait, each without a download slot of its own. The first connection
/// of the fill downloads pieces of them in turn with the front. Otherwise a reader far behind the
/// front would wait for all bytes between them.
#[derive(Default)]
pub(crate) struct WaitingRanges(Mutex<VecDeque<Weak<WaitingRange>>>);

/// The range of one waiting reader. The reader drops this value when it waits no longer.
pub(crate) struct WaitingRange(Mutex<Range<u64>>);

impl WaitingRange {
    /// Sets the bytes that the reader still needs.
    pub(crate) fn set(&self, range: Range<u64>) {
        *self.0.lock() = range;
    }
}

impl WaitingRanges {
    pub(crate) fn add(&self, range: Range<u64>) -> Arc<WaitingRange> {
        let waiting = Arc::new(WaitingRange(Mutex::new(range)));
        self.0.lock().push_back(Arc::downgrade(&waiting));
        waiting
    }

    /// Calls `claim` with the ranges in turn, until it returns a value.
    pub(crate) fn claim_next<T>(
        &self,
        mut claim: impl FnMut(Range<u64>) -> Option<T>,
    ) -> Option<T> {
        let mut waiting = self.0.lock();
        waiting.retain(|range| range.strong_count() > 0);
        for _ in 0..waiting.len() {
            waiting.rotate_left(1);
            let range = waiting.back().and_then(Weak::upgrade);
            let range = range.map(|range| range.0.lock().clone());
            if let Some(claimed) = range.and_then(&mut claim) {
                return Some(claimed);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_waiting_reader_has_its_turn() {
        let ranges = WaitingRanges::default();
        let [one, two, three] = [0..1, 10..11, 20..21].map(|range| ranges.add(range));
        let next = || ranges.claim_next(|range| (range.start != 10).then_some(range.start));
        assert_eq!([next(), next(), next()], [Some(0), Some(20), Some(0)]);
        two.set(11..12);
        assert_eq!([next(), next()], [Some(11), Some(20)]);
        drop((one, three));
        assert_eq!([next(), next()], [Some(11), Some(11)]);
        drop(two);
        assert_eq!(next(), None);
    }
}
