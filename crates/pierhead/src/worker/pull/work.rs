//! Which frames are still to be fetched, and by which connection.
//!
//! Each connection, a *lane*, is asked for a range and reads it in order. Where the bundle came in shares, each has its own
//! from the start; else the first reads all of it, since the answer that brings the header goes on with the records. A lane
//! that has nothing to do takes from the end of the one that has most.

use std::ops::Range;

/// Of a range that another lane asks for: less is not worth its round trip.
const LEAST: u64 = 256 << 10;
/// More would leave the others idle at the end.
const MOST: u64 = 32 << 20;
/// A share with less left than this is not taken from: what it has in flight by then would come twice.
const SHARE_LEFT: u64 = 8 << 20;

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

/// See [`Work::next`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// To be asked for.
    Range(Range<u32>),
    /// Not before another lane has said which share it was sent.
    Wait,
    /// There is nothing left to do.
    Nothing,
}

/// Frames by ordinal, weighed by the bytes that they decode to.
pub(super) struct Work {
    lanes: Vec<Lane>,
    /// Nobody's.
    loose: Vec<Range<u32>>,
    /// In shares of lanes that have not said yet which these are.
    promised: Vec<Range<u32>>,
    /// How many have not.
    silent: usize,
    /// Weight of all frames before each, and of all at the end.
    before: Vec<u64>,
}

#[derive(Clone, Default)]
struct Lane {
    /// What it reads, as far as nobody else has taken it.
    range: Range<u32>,
    /// It was sent as a share.
    is_share: bool,
}

impl Work {
    /// All frames that are missing, in order, of frames that weigh so much each, for so many lanes. The first was sent
    /// those before `shared` with the header. The others were promised the rest, and say so one by one ([`Work::claim`]),
    /// unless that is behind the last frame.
    pub(super) fn new(
        weights: impl Iterator<Item = u64>,
        missing: Vec<Range<u32>>,
        lanes: usize,
        shared: u32,
    ) -> Self {
        let mut sum = 0_u64;
        let mut before = vec![0];
        before.extend(weights.map(|weight| {
            sum = sum.saturating_add(weight);
            sum
        }));
        let (mut own, mut promised) = (Vec::new(), Vec::new());
        for range in missing {
            own.push(range.start..range.end.min(shared));
            promised.push(range.start.max(shared)..range.end);
        }
        own.retain(|range| !range.is_empty());
        promised.retain(|range| !range.is_empty());
        own.reverse();
        let mut lanes = vec![Lane::default(); lanes.max(1)];
        if let (Some(first), Some(range)) = (lanes.first_mut(), own.pop()) {
            first.range = range;
            first.is_share = !promised.is_empty();
        }
        let mut work = Self {
            silent: lanes.len() - 1,
            lanes,
            loose: own,
            promised,
            before,
        };
        work.settle();
        work
    }

    /// What a lane was sent: a share, or none. Once of each but the first.
    pub(super) fn claim(&mut self, lane: usize, share: Option<Range<u32>>) {
        self.silent = self.silent.saturating_sub(1);
        if let (Some(lane), Some(share)) = (self.lanes.get_mut(lane), share) {
            let parts = self.promised.iter().flat_map(|range| {
                let before = range.start..range.end.min(share.start);
                let behind = range.start.max(share.end)..range.end;
                [before, behind]
            });
            self.promised = parts.filter(|range| !range.is_empty()).collect();
            *lane = Lane {
                range: share,
                is_share: true,
            };
        }
        self.settle();
    }

    /// What was promised and did not come is nobody's.
    fn settle(&mut self) {
        if self.silent == 0 {
            self.loose.extend(self.promised.drain(..).rev());
        }
    }

    /// A lane has a frame, and so all of its own before it, of an answer that ends before `bound`. Whether it is worth
    /// reading on.
    pub(super) fn brought(&mut self, lane: usize, frame: u32, bound: u32) -> bool {
        let mut range = self.range(lane);
        range.start = frame.saturating_add(1).clamp(range.start, range.end);
        let mut more = !range.is_empty();
        if !more {
            let behind = range.end;
            let next = self.loose.last().filter(|next| {
                let gap = behind..next.start;
                next.start >= behind && next.start < bound && self.weight(&gap) <= GAP
            });
            if next.is_some() {
                range = self.loose.pop().unwrap_or_default();
                more = true;
            } else {
                // An answer that is read to its end leaves a connection that can be used again.
                more = self.weight(&(behind..bound)) == 0;
            }
        }
        self.set(lane, range);
        more
    }

    /// A lane was sent all there is: what is left of its range are frames without records.
    pub(super) fn ended(&mut self, lane: usize) {
        let range = self.range(lane);
        self.set(lane, range.end..range.end);
    }

    /// What becomes of a frame that a lane is sent.
    pub(super) fn turn(&self, lane: usize, frame: u32) -> Turn {
        let range = self.range(lane);
        match frame {
            frame if frame < range.start => Turn::Skip,
            frame if frame < range.end => Turn::Take,
            _ => Turn::Stop,
        }
    }

    /// What a lane does next: what is left of its own, then what is nobody's, then another's.
    pub(super) fn next(&mut self, lane: usize) -> Next {
        let own = self.range(lane);
        let found = match own.is_empty() {
            false => Some(own),
            true => self.loose.pop().or_else(|| self.steal()),
        };
        match found {
            Some(range) => {
                self.set(lane, range.clone());
                Next::Range(range)
            }
            None if self.silent > 0 => Next::Wait,
            None => Next::Nothing,
        }
    }

    /// The end of what the lane with most has left.
    fn steal(&mut self) -> Option<Range<u32>> {
        let left = |lane: &Lane| self.weight(&lane.range);
        let from = (0..self.lanes.len()).max_by_key(|at| self.lanes.get(*at).map(left))?;
        let lane = self.lanes.get(from)?;
        let (left, end) = (left(lane), lane.range.end);
        let among = u64::try_from(self.lanes.len()).unwrap_or(u64::MAX);
        let share = (left / among.saturating_mul(2)).clamp(LEAST, MOST);
        // What it has in flight already stays its own.
        let least = if lane.is_share { SHARE_LEFT } else { share * 2 };
        if left < least {
            return None;
        }
        let bound = self.before.get(index(end))?.saturating_sub(share);
        let start = self.before.partition_point(|before| *before < bound);
        let start = u32::try_from(start).ok()?.clamp(lane.range.start, end);
        if start <= lane.range.start || start == end {
            return None;
        }
        self.lanes.get_mut(from)?.range.end = start;
        Some(start..end)
    }

    fn range(&self, lane: usize) -> Range<u32> {
        self.lanes
            .get(lane)
            .map(|lane| lane.range.clone())
            .unwrap_or_default()
    }

    /// As a part, unless it is what is left of a share.
    fn set(&mut self, lane: usize, range: Range<u32>) {
        if let Some(lane) = self.lanes.get_mut(lane) {
            lane.is_share &= range.end == lane.range.end;
            lane.range = range;
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

    /// Lanes of no share.
    fn of_parts(
        weights: impl Iterator<Item = u64>,
        missing: Vec<Range<u32>>,
        lanes: usize,
    ) -> Work {
        let mut work = Work::new(weights, missing, lanes, u32::MAX);
        (1..lanes).for_each(|lane| work.claim(lane, None));
        work
    }

    #[test]
    fn every_frame_is_brought_once_by_somebody() {
        for lanes in 1..6 {
            for shared in [false, true] {
                let missing = vec![0..40, 45..100];
                let mut work = Work::new(
                    (0..100).map(|_| MIB),
                    missing,
                    lanes,
                    if shared { 20 } else { 100 },
                );
                let mut times = vec![0; 100];
                for lane in 1..lanes {
                    // One of them was sent no share.
                    let first = 20 * u32::try_from(lane).unwrap();
                    work.claim(lane, (shared && lane != 2).then_some(first..first + 20));
                }
                let mut idle = 0;
                for lane in (0..lanes).cycle() {
                    let Next::Range(range) = work.next(lane) else {
                        idle += 1;
                        if idle > lanes {
                            break;
                        }
                        continue;
                    };
                    idle = 0;
                    // Cut after every frame.
                    times[index(range.start)] += 1;
                    work.brought(lane, range.start, range.end);
                }
                let expected: Vec<_> = (0..100)
                    .map(|frame| i32::from(!(40..45).contains(&frame)))
                    .collect();
                assert_eq!(times, expected, "{lanes} lanes, shared: {shared}");
            }
        }
    }

    #[test]
    fn small_gaps_are_read_over_and_large_ones_are_not() {
        let weights = || [MIB, 1000, MIB, MIB, MIB, 0].into_iter();
        let mut work = of_parts(weights(), vec![0..1, 2..3, 4..5], 1);
        assert!(work.brought(0, 0, 6));
        assert_eq!(
            [1, 2, 3].map(|frame| work.turn(0, frame)),
            [Turn::Skip, Turn::Take, Turn::Stop]
        );
        assert!(!work.brought(0, 2, 6));
        assert_eq!(work.next(0), Next::Range(4..5));
        assert!(work.brought(0, 4, 6), "nothing is sent for the last frame");
        assert_eq!(work.next(0), Next::Nothing);
    }

    #[test]
    fn what_is_little_is_left_to_the_first() {
        let mut work = of_parts((0..4).map(|_| 100_000), vec![0..4], 8);
        assert_eq!(work.next(1), Next::Nothing);
        assert_eq!(work.next(0), Next::Range(0..4));
        let mut work = of_parts([0, 0, 0].into_iter(), vec![0..3], 8);
        assert_eq!(work.next(1), Next::Nothing);
    }

    #[test]
    fn the_first_stops_where_another_began() {
        let mut work = of_parts((0..8).map(|_| 4 * MIB), vec![0..8], 2);
        assert_eq!(work.next(1), Next::Range(6..8));
        assert!(work.brought(0, 0, 8));
        assert_eq!(
            [0, 5, 6].map(|frame| work.turn(0, frame)),
            [Turn::Skip, Turn::Take, Turn::Stop]
        );
        assert!(!work.brought(0, 5, 8), "the rest is another's");
        assert!(
            work.brought(0, 5, 6),
            "an answer that ends there is read to its end"
        );
    }

    #[test]
    fn a_share_is_its_lanes_own_until_it_is_known_which_did_not_come() {
        let mut work = Work::new((0..9).map(|_| MIB), vec![0..9], 3, 3);
        assert_eq!(work.turn(0, 3), Turn::Stop);
        work.ended(0);
        assert_eq!(work.next(0), Next::Wait);
        work.claim(2, Some(6..9));
        assert_eq!(
            [5, 6].map(|frame| work.turn(2, frame)),
            [Turn::Skip, Turn::Take]
        );
        assert_eq!(work.next(0), Next::Wait, "another lane may be sent it");
        work.claim(1, None);
        assert_eq!(work.next(0), Next::Range(3..6));
        assert_eq!(
            work.next(1),
            Next::Nothing,
            "a small share is not taken from"
        );
        assert_eq!(work.next(2), Next::Range(6..9), "it was cut");
    }

    #[test]
    fn what_a_slow_share_has_left_is_taken_from_its_end() {
        let mut work = Work::new((0..40).map(|_| MIB), vec![0..40], 2, 4);
        work.claim(1, Some(4..40));
        work.ended(0);
        assert_eq!(work.next(0), Next::Range(31..40));
        assert_eq!(work.turn(1, 31), Turn::Stop);
    }
}
