//! A set of bytes as disjoint ranges.

use std::collections::BTreeMap;
use std::ops::Range;

/// Disjoint ranges of bytes. Ranges that touch are merged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RangeSet(BTreeMap<u64, u64>);

impl RangeSet {
    /// Adds a range.
    pub(crate) fn insert(&mut self, range: Range<u64>) {
        let Range { mut start, mut end } = range;
        if start >= end {
            return;
        }
        while let Some((&from, &to)) = self.0.range(..=end).next_back() {
            if to < start {
                break;
            }
            (start, end) = (start.min(from), end.max(to));
            self.0.remove(&from);
        }
        self.0.insert(start, end);
    }

    /// Removes all bytes before `offset`.
    pub(crate) fn remove_before(&mut self, offset: u64) {
        let mut later = self.0.split_off(&offset);
        if let Some((_, &end)) = self.0.last_key_value()
            && end > offset
        {
            later.insert(offset, end);
        }
        self.0 = later;
    }

    /// Returns the end of the range that contains `offset`.
    pub(crate) fn run_end(&self, offset: u64) -> Option<u64> {
        let (_, &end) = self.0.range(..=offset).next_back()?;
        (end > offset).then_some(end)
    }

    /// Returns the end of the last range that ends at or before `offset`.
    pub(crate) fn end_before(&self, offset: u64) -> Option<u64> {
        let mut ends = self.0.range(..=offset).rev().map(|(_, &end)| end);
        ends.find(|end| *end <= offset)
    }

    /// Returns the start of the first range that starts at or after `offset`.
    pub(crate) fn start_after(&self, offset: u64) -> Option<u64> {
        self.0.range(offset..).next().map(|(&start, _)| start)
    }

    /// Returns the end of the last range. 0 for an empty set.
    pub(crate) fn end(&self) -> u64 {
        self.0.last_key_value().map_or(0, |(_, &end)| end)
    }

    /// Returns the number of ranges.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the number of bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.0.iter().map(|(start, end)| end - start).sum()
    }

    /// Returns the ranges in ascending order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Range<u64>> {
        self.0.iter().map(|(&start, &end)| start..end)
    }
}

impl FromIterator<Range<u64>> for RangeSet {
    fn from_iter<T: IntoIterator<Item = Range<u64>>>(ranges: T) -> Self {
        let mut set = Self::default();
        ranges.into_iter().for_each(|range| set.insert(range));
        set
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_set_of_ranges_behaves_like_a_set_of_bytes(
            ranges in proptest::collection::vec((0usize..60, 0usize..20), 0..12),
            before in 0usize..80,
        ) {
            let mut bytes = [false; 128];
            let mut set = RangeSet::default();
            for (start, len) in ranges {
                set.insert(start as u64..(start + len) as u64);
                (start..start + len).for_each(|at| bytes[at] = true);
            }
            set.remove_before(before as u64);
            bytes[..before].fill(false);
            let count = bytes.iter().filter(|it| **it).count() as u64;
            prop_assert_eq!(set.bytes(), count);
            let mut end = 0;
            for range in set.iter() {
                prop_assert!(range.start < range.end && (range.start > end || end == 0));
                end = range.end;
            }
            prop_assert_eq!(set.end(), end);
            for at in 0..100 {
                let first = |is: &dyn Fn(usize) -> bool| (at..128).find(|it| is(*it));
                let run = first(&|it| !bytes[it]).filter(|end| *end > at);
                let start = first(&|it| bytes[it] && (it == 0 || !bytes[it - 1]));
                let ends = |it: &usize| *it > 0 && bytes[it - 1] && !bytes[*it];
                let end = (0..=at).rev().find(ends);
                let as_u64 = |it: Option<usize>| it.map(|it| it as u64);
                prop_assert_eq!(set.run_end(at as u64), as_u64(run));
                prop_assert_eq!(set.start_after(at as u64), as_u64(start));
                prop_assert_eq!(set.end_before(at as u64), as_u64(end));
            }
        }
    }
}
