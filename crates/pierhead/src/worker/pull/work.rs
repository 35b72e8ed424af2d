//! Which frames are still to be fetched, and by which connection.
//!
//! One connection reads the bundle from its beginning, since the answer that brings the header goes on with the
//! records. Others ask for ranges from its end, so that the two meet and no record is sent twice.

use std::ops::Range;

/// Of a range that another connection asks for: less is not worth its round trip.
const LEAST: u64 = 256 << 10;
/// More would leave the others idle at the end.
const MOST: u64 = 32 << 20;

/// Frames that are here already are received again up to so many bytes, rather than to ask anew behind them.
const GAP: u64 = 256 << 10;

/// See [`Work::turn`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// It is wanted.
    Take,
    /// It is here already.
    Skip,
    /// It, and what is behind it, is another's to bring.
    Stop,
}

/// Frames by ordinal, weighed by the bytes that they decode to.
pub(super) struct Work {
    /// What the first connection reads, as far as nobody else has taken it.
    front: Range<u32>,
    /// What was taken and not brought, or was missing from the start.
    loose: Vec<Range<u32>>,
    /// Weight of all frames before each, and of all at the end.
    before: Vec<u64>,
}

impl Work {
    /// All frames that are missing, in order, of frames that weigh so much each.
    pub(super) fn new(weights: impl Iterator<Item = u64>, missing: Vec<Range<u32>>) -> Self {
        let mut sum = 0_u64;
        let mut before = vec![0];
        before.extend(weights.map(|weight| {
            sum = sum.saturating_add(weight);
            sum
        }));
        let mut missing = missing.into_iter().filter(|range| !range.is_empty());
        let front = missing.next().unwrap_or(0..0);
        let mut loose: Vec<_> = missing.collect();
        loose.reverse();
        Self {
            front,
            loose,
            before,
        }
    }

    /// The first connection has a frame, and so all before it, of an answer that ends before `bound`. Whether it is
    /// worth reading on.
    pub(super) fn brought(&mut self, frame: u32, bound: u32) -> bool {
        self.front.start = frame
            .saturating_add(1)
            .clamp(self.front.start, self.front.end);
        if !self.front.is_empty() {
            return true;
        }
        let behind = self.front.end;
        let next = self.loose.last().filter(|next| {
            let gap = behind..next.start;
            next.start >= behind && next.start < bound && self.weight(&gap) <= GAP
        });
        if next.is_some() {
            self.front = self.loose.pop().unwrap_or_default();
            return true;
        }
        // An answer that is read to its end leaves a connection that can be used again.
        self.weight(&(behind..bound)) == 0
    }

    /// The first connection was sent all there is: what is left of its share are frames without records.
    pub(super) fn front_ended(&mut self) {
        self.front.start = self.front.end;
    }

    /// What becomes of a frame that the first connection is sent.
    pub(super) fn turn(&self, frame: u32) -> Turn {
        match frame {
            frame if frame < self.front.start => Turn::Skip,
            frame if frame < self.front.end => Turn::Take,
            _ => Turn::Stop,
        }
    }

    /// How many frames there are.
    pub(super) fn frames(&self) -> u32 {
        u32::try_from(self.before.len().saturating_sub(1)).unwrap_or(u32::MAX)
    }

    /// The first connection's share is whatever is loose, once it has none.
    pub(super) fn next_front(&mut self) -> Option<Range<u32>> {
        if self.front.is_empty() {
            self.front = self.loose.pop()?;
        }
        Some(self.front.clone())
    }

    /// A range for one of `among` connections that has nothing to do.
    pub(super) fn take(&mut self, among: usize) -> Option<Range<u32>> {
        if let Some(loose) = self.loose.pop() {
            return Some(loose);
        }
        let left = self.weight(&self.front);
        let among = u64::try_from(among.max(1)).unwrap_or(u64::MAX);
        let share = (left / among.saturating_mul(2)).clamp(LEAST, MOST);
        // What the first connection has in flight already stays its own.
        if left < share.saturating_mul(2) {
            return None;
        }
        let end = self.front.end;
        let bound = self.before.get(index(end))?.saturating_sub(share);
        let start = self.before.partition_point(|before| *before < bound);
        let start = u32::try_from(start).ok()?.clamp(self.front.start, end);
        if start <= self.front.start || start == end {
            return None;
        }
        self.front.end = start;
        Some(start..end)
    }

    /// A range that was taken, as far as it was not brought.
    pub(super) fn give_back(&mut self, range: Range<u32>) {
        if !range.is_empty() {
            self.loose.push(range);
        }
    }

    fn weight(&self, range: &Range<u32>) -> u64 {
        let at = |frame| self.before.get(index(frame)).copied().unwrap_or_default();
        at(range.end).saturating_sub(at(range.start))
    }
}

fn index(frame: u32) -> usize {
    usize::try_from(frame).unwrap_or(usize::MAX)
}

#[cfg(test)]
#[allow(
    clippy::single_range_in_vec_init,
    reason = "it is the ranges that are listed"
)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn every_frame_is_brought_once_by_somebody() {
        for connections in 1..6 {
            let frames = 100;
            let mut work = Work::new((0..frames).map(|_| MIB), vec![0..40, 45..100]);
            let mut times = vec![0; 100];
            let mut others: Vec<Range<u32>> = Vec::new();
            loop {
                while others.len() < connections - 1
                    && let Some(range) = work.take(connections)
                {
                    others.push(range);
                }
                let mut idle = true;
                if let Some(front) = work.next_front() {
                    times[index(front.start)] += 1;
                    work.brought(front.start, frames);
                    idle = false;
                }
                if let Some(mut range) = others.pop() {
                    times[index(range.start)] += 1;
                    range.start += 1;
                    // Cut after every frame.
                    work.give_back(range);
                    idle = false;
                }
                if idle {
                    break;
                }
            }
            let expected: Vec<_> = (0..100)
                .map(|frame| i32::from(!(40..45).contains(&frame)))
                .collect();
            assert_eq!(times, expected, "{connections} connections");
        }
    }

    #[test]
    fn small_gaps_are_read_over_and_large_ones_are_not() {
        let weights = || [MIB, 1000, MIB, MIB, MIB, 0].into_iter();
        let mut work = Work::new(weights(), vec![0..1, 2..3, 4..5]);
        assert!(work.brought(0, 6));
        assert_eq!(
            [1, 2, 3].map(|frame| work.turn(frame)),
            [Turn::Skip, Turn::Take, Turn::Stop]
        );
        assert!(!work.brought(2, 6));
        assert_eq!(work.next_front(), Some(4..5));
        assert!(work.brought(4, 6), "nothing is sent for the last frame");
        assert_eq!(work.next_front(), None);
    }

    #[test]
    fn what_is_little_is_left_to_the_first() {
        let mut work = Work::new((0..4).map(|_| 100_000), vec![0..4]);
        assert_eq!(work.take(8), None);
        assert_eq!(work.next_front(), Some(0..4));
        let mut work = Work::new([0, 0, 0].into_iter(), vec![0..3]);
        assert_eq!(work.take(8), None);
    }

    #[test]
    fn the_first_stops_where_another_began() {
        let mut work = Work::new((0..8).map(|_| 4 * MIB), vec![0..8]);
        let taken = work.take(2).expect("half of it is worth a request");
        assert_eq!(taken, 6..8);
        assert!(work.brought(0, 8));
        assert_eq!(
            [0, 5, 6].map(|frame| work.turn(frame)),
            [Turn::Skip, Turn::Take, Turn::Stop]
        );
        assert!(!work.brought(5, 8), "the rest is another's");
        assert!(
            work.brought(5, 6),
            "an answer that ends there is read to its end"
        );
    }
}
