//! Assigns the missing frames (groups of compressed contents) of a bundle to connections.
//!
//! A connection requests a range of frames and reads this range in order. If the bundle arrives in
//! shares (one part for each connection), each connection has its share from the start. Without
//! shares, the first connection starts with all frames, since they follow the header in its
//! response. A connection without work takes frames from the end of the largest remaining range.

use std::ops::Range;

/// Minimum number of bytes of a range that one connection takes from another. A smaller range costs
/// more in round trips than it saves.
const MIN_TAKEN: u64 = 256 << 10;
/// Maximum number of bytes of a range that one connection takes from another. With a larger range,
/// other connections would be idle at the end.
const MAX_TAKEN: u64 = 32 << 20;
/// Minimum number of remaining bytes of a share from which another connection takes frames. From a
/// share with fewer bytes left, the bytes in flight would arrive twice.
const MIN_SHARE_LEFT: u64 = 8 << 20;
/// Maximum number of bytes of already applied frames that a connection receives again to reach a
/// wanted frame. For a longer gap, a new request is faster.
const MAX_GAP: u64 = 256 << 10;

/// What a connection does with a frame that arrives ([`FrameSchedule::action`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FrameAction {
    /// Apply the frame to the store.
    Apply,
    /// Skip the frame, which was already applied.
    Skip,
    /// Stop reading, since this frame and all following frames are assigned to another connection.
    Stop,
}

/// What a connection does next ([`FrameSchedule::next`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NextRange {
    /// Request this range of frames.
    Range(Range<u32>),
    /// Wait until another connection has reported its share.
    Wait,
    /// End the connection, since no work is left.
    Nothing,
}

/// The missing frames of a bundle, and the connections to which they are assigned. Frames are
/// numbered by their position in the bundle. The weight of a frame is the number of its decoded
/// bytes.
pub(super) struct FrameSchedule {
    connections: Vec<Assignment>,
    /// Ranges of frames that are assigned to no connection. The last range of the list is assigned
    /// next.
    unassigned: Vec<Range<u32>>,
    /// Ranges of frames that are expected as shares, but that no connection has reported yet.
    promised: Vec<Range<u32>>,
    /// Number of connections that have not reported their share.
    unreported: usize,
    /// The sum of the weights before each frame. The last element is the sum of all weights.
    weight_before: Vec<u64>,
}

/// The frames that are assigned to one connection.
#[derive(Clone, Default)]
struct Assignment {
    /// The frames that the connection reads, without the frames that other connections have taken.
    range: Range<u32>,
    /// Whether the range arrives as a share, without a further request.
    is_share: bool,
}

impl FrameSchedule {
    /// Assigns the ranges `missing`, in order, to a number of connections. The first connection
    /// receives the frames before `first_share_end`, after the header. The other connections
    /// receive the remaining frames as shares, and report their shares by [`Self::claim`].
    pub(super) fn new(
        weights: impl Iterator<Item = u64>,
        missing: Vec<Range<u32>>,
        connections: usize,
        first_share_end: u32,
    ) -> Self {
        let mut sum = 0_u64;
        let mut weight_before = vec![0];
        weight_before.extend(weights.map(|weight| {
            sum = sum.saturating_add(weight);
            sum
        }));
        let (mut own, mut promised) = (Vec::new(), Vec::new());
        for range in missing {
            own.push(range.start..range.end.min(first_share_end));
            promised.push(range.start.max(first_share_end)..range.end);
        }
        own.retain(|range| !range.is_empty());
        promised.retain(|range| !range.is_empty());
        own.reverse();
        let mut connections = vec![Assignment::default(); connections.max(1)];
        if let (Some(first), Some(range)) = (connections.first_mut(), own.pop()) {
            first.range = range;
            first.is_share = !promised.is_empty();
        }
        let mut schedule = Self {
            unreported: connections.len() - 1,
            connections,
            unassigned: own,
            promised,
            weight_before,
        };
        schedule.settle();
        schedule
    }

    /// Reports the share that a connection receives, or that the connection receives none. Each
    /// connection except the first calls this once.
    pub(super) fn claim(&mut self, connection: usize, share: Option<Range<u32>>) {
        self.unreported = self.unreported.saturating_sub(1);
        if let (Some(connection), Some(share)) = (self.connections.get_mut(connection), share) {
            let parts = self.promised.iter().flat_map(|range| {
                let before = range.start..range.end.min(share.start);
                let behind = range.start.max(share.end)..range.end;
                [before, behind]
            });
            self.promised = parts.filter(|range| !range.is_empty()).collect();
            *connection = Assignment {
                range: share,
                is_share: true,
            };
        }
        self.settle();
    }

    /// Once all connections have reported, expected ranges that no share covers become unassigned.
    fn settle(&mut self) {
        if self.unreported == 0 {
            self.unassigned.extend(self.promised.drain(..).rev());
        }
    }

    /// Reports that a connection has applied a frame, and so all frames of its range up to this
    /// one. The response of this connection ends before frame `end`. Returns whether the connection
    /// should read on.
    pub(super) fn applied(&mut self, connection: usize, frame: u32, end: u32) -> bool {
        let mut range = self.range(connection);
        range.start = frame.saturating_add(1).clamp(range.start, range.end);
        let mut more = !range.is_empty();
        if !more {
            let range_end = range.end;
            let next = self.unassigned.last().filter(|next| {
                let gap = range_end..next.start;
                next.start >= range_end && next.start < end && self.weight(&gap) <= MAX_GAP
            });
            if next.is_some() {
                range = self.unassigned.pop().unwrap_or_default();
                more = true;
            } else {
                // If no further bytes follow, the connection reads the response to its end, since
                // only then the connection can be reused.
                more = self.weight(&(range_end..end)) == 0;
            }
        }
        self.set(connection, range);
        more
    }

    /// Reports that the response of a connection has ended. The remaining frames of its range have
    /// no records.
    pub(super) fn ended(&mut self, connection: usize) {
        let range = self.range(connection);
        self.set(connection, range.end..range.end);
    }

    /// Returns what a connection must do with a frame that arrives.
    pub(super) fn action(&self, connection: usize, frame: u32) -> FrameAction {
        let range = self.range(connection);
        match frame {
            frame if frame < range.start => FrameAction::Skip,
            frame if frame < range.end => FrameAction::Apply,
            _ => FrameAction::Stop,
        }
    }

    /// Returns the next range that a connection must request: the rest of its own range, else an
    /// unassigned range, else a part of another connection's range.
    pub(super) fn next(&mut self, connection: usize) -> NextRange {
        let own = self.range(connection);
        let found = match own.is_empty() {
            false => Some(own),
            true => self.unassigned.pop().or_else(|| self.take_from_largest()),
        };
        match found {
            Some(range) => {
                self.set(connection, range.clone());
                NextRange::Range(range)
            }
            None if self.unreported > 0 => NextRange::Wait,
            None => NextRange::Nothing,
        }
    }

    /// Takes frames from the end of the largest remaining range.
    fn take_from_largest(&mut self) -> Option<Range<u32>> {
        let left = |connection: &Assignment| self.weight(&connection.range);
        let from =
            (0..self.connections.len()).max_by_key(|at| self.connections.get(*at).map(left))?;
        let connection = self.connections.get(from)?;
        let (left, end) = (left(connection), connection.range.end);
        let count = u64::try_from(self.connections.len()).unwrap_or(u64::MAX);
        let taken = (left / count.saturating_mul(2)).clamp(MIN_TAKEN, MAX_TAKEN);
        // The frames that are already in flight remain assigned to the connection that receives
        // them.
        let min_left = if connection.is_share {
            MIN_SHARE_LEFT
        } else {
            taken * 2
        };
        if left < min_left {
            return None;
        }
        let bound = self.weight_before.get(index(end))?.saturating_sub(taken);
        let start = self.weight_before.partition_point(|before| *before < bound);
        let start = u32::try_from(start)
            .ok()?
            .clamp(connection.range.start, end);
        if start <= connection.range.start || start == end {
            return None;
        }
        self.connections.get_mut(from)?.range.end = start;
        Some(start..end)
    }

    fn range(&self, connection: usize) -> Range<u32> {
        self.connections
            .get(connection)
            .map(|connection| connection.range.clone())
            .unwrap_or_default()
    }

    /// Replaces the range of a connection. The new range counts as a share only if its end is the
    /// old end.
    fn set(&mut self, connection: usize, range: Range<u32>) {
        if let Some(connection) = self.connections.get_mut(connection) {
            connection.is_share &= range.end == connection.range.end;
            connection.range = range;
        }
    }

    fn weight(&self, range: &Range<u32>) -> u64 {
        let at = |frame| {
            self.weight_before
                .get(index(frame))
                .copied()
                .unwrap_or_default()
        };
        at(range.end).saturating_sub(at(range.start))
    }
}

fn index(frame: u32) -> usize {
    usize::try_from(frame).unwrap_or(usize::MAX)
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init, reason = "these are lists of ranges")]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Creates a schedule of a bundle that arrives without shares.
    fn without_shares(
        weights: impl Iterator<Item = u64>,
        missing: Vec<Range<u32>>,
        connections: usize,
    ) -> FrameSchedule {
        let mut schedule = FrameSchedule::new(weights, missing, connections, u32::MAX);
        (1..connections).for_each(|connection| schedule.claim(connection, None));
        schedule
    }

    #[test]
    fn every_frame_is_assigned_exactly_once() {
        for connections in 1..6 {
            for shared in [false, true] {
                let missing = vec![0..40, 45..100];
                let mut schedule = FrameSchedule::new(
                    (0..100).map(|_| MIB),
                    missing,
                    connections,
                    if shared { 20 } else { 100 },
                );
                let mut times = vec![0; 100];
                for connection in 1..connections {
                    // One of the connections reports that it receives no share.
                    let first = 20 * u32::try_from(connection).unwrap();
                    schedule.claim(
                        connection,
                        (shared && connection != 2).then_some(first..first + 20),
                    );
                }
                let mut idle = 0;
                for connection in (0..connections).cycle() {
                    let NextRange::Range(range) = schedule.next(connection) else {
                        idle += 1;
                        if idle > connections {
                            break;
                        }
                        continue;
                    };
                    idle = 0;
                    // The connection that receives this response breaks after every frame.
                    times[index(range.start)] += 1;
                    schedule.applied(connection, range.start, range.end);
                }
                let expected: Vec<_> = (0..100)
                    .map(|frame| i32::from(!(40..45).contains(&frame)))
                    .collect();
                assert_eq!(
                    times, expected,
                    "{connections} connections, shared: {shared}"
                );
            }
        }
    }

    #[test]
    fn a_small_gap_is_received_again_and_a_large_gap_is_not() {
        let weights = || [MIB, 1000, MIB, MIB, MIB, 0].into_iter();
        let mut schedule = without_shares(weights(), vec![0..1, 2..3, 4..5], 1);
        assert!(schedule.applied(0, 0, 6));
        assert_eq!(
            [1, 2, 3].map(|frame| schedule.action(0, frame)),
            [FrameAction::Skip, FrameAction::Apply, FrameAction::Stop]
        );
        assert!(!schedule.applied(0, 2, 6));
        assert_eq!(schedule.next(0), NextRange::Range(4..5));
        assert!(schedule.applied(0, 4, 6), "the last frame has no record");
        assert_eq!(schedule.next(0), NextRange::Nothing);
    }

    #[test]
    fn little_work_stays_with_the_first_connection() {
        let mut schedule = without_shares((0..4).map(|_| 100_000), vec![0..4], 8);
        assert_eq!(schedule.next(1), NextRange::Nothing);
        assert_eq!(schedule.next(0), NextRange::Range(0..4));
        let mut schedule = without_shares([0, 0, 0].into_iter(), vec![0..3], 8);
        assert_eq!(schedule.next(1), NextRange::Nothing);
    }

    #[test]
    fn a_connection_stops_at_frames_that_another_has_taken() {
        let mut schedule = without_shares((0..8).map(|_| 4 * MIB), vec![0..8], 2);
        assert_eq!(schedule.next(1), NextRange::Range(6..8));
        assert!(schedule.applied(0, 0, 8));
        assert_eq!(
            [0, 5, 6].map(|frame| schedule.action(0, frame)),
            [FrameAction::Skip, FrameAction::Apply, FrameAction::Stop]
        );
        assert!(!schedule.applied(0, 5, 8), "the rest belongs to another");
        assert!(
            schedule.applied(0, 5, 6),
            "a response that ends there is read to its end"
        );
    }

    #[test]
    fn promised_shares_are_not_assigned_until_all_are_reported() {
        let mut schedule = FrameSchedule::new((0..9).map(|_| MIB), vec![0..9], 3, 3);
        assert_eq!(schedule.action(0, 3), FrameAction::Stop);
        schedule.ended(0);
        assert_eq!(schedule.next(0), NextRange::Wait);
        schedule.claim(2, Some(6..9));
        assert_eq!(
            [5, 6].map(|frame| schedule.action(2, frame)),
            [FrameAction::Skip, FrameAction::Apply]
        );
        assert_eq!(
            schedule.next(0),
            NextRange::Wait,
            "another connection may receive it"
        );
        schedule.claim(1, None);
        assert_eq!(schedule.next(0), NextRange::Range(3..6));
        assert_eq!(
            schedule.next(1),
            NextRange::Nothing,
            "a small share is not taken from"
        );
        assert_eq!(
            schedule.next(2),
            NextRange::Range(6..9),
            "its response broke"
        );
    }

    #[test]
    fn the_end_of_a_slow_share_is_taken() {
        let mut schedule = FrameSchedule::new((0..40).map(|_| MIB), vec![0..40], 2, 4);
        schedule.claim(1, Some(4..40));
        schedule.ended(0);
        assert_eq!(schedule.next(0), NextRange::Range(31..40));
        assert_eq!(schedule.action(1, 31), FrameAction::Stop);
    }

    /// The response that one connection reads: the next frame in the response, and the end of the
    /// response.
    type Response = Option<(u32, u32)>;

    /// Reads at most `frames` frames of a response, and counts in `applied` how often each frame is
    /// applied.
    fn read(
        schedule: &mut FrameSchedule,
        connection: usize,
        (mut next, end): (u32, u32),
        frames: u32,
        applied: &mut [u32],
    ) -> Response {
        for _ in 0..frames {
            if next >= end {
                return None;
            }
            match schedule.action(connection, next) {
                FrameAction::Skip => {}
                FrameAction::Stop => return None,
                FrameAction::Apply => {
                    applied[index(next)] += 1;
                    if !schedule.applied(connection, next, end) {
                        return None;
                    }
                }
            }
            next += 1;
        }
        Some((next, end))
    }

    proptest::proptest! {
        #![proptest_config(proptest::prelude::ProptestConfig::with_cases(200))]

        /// Property test: connections read in any order, any response may break after any frame,
        /// and every frame is applied.
        #[test]
        fn every_missing_frame_is_applied_once_whatever_breaks(
            weights in proptest::collection::vec(proptest::prop_oneof![
                proptest::prelude::Just(0), 1..1000_u64, MIB..12 * MIB
            ], 1..60),
            is_missing in proptest::collection::vec(proptest::prelude::any::<bool>(), 60),
            connections in 1..6_usize,
            steps in proptest::collection::vec((0..6_usize, 1..20_u32, proptest::prelude::any::<bool>()), 0..200),
        ) {
            let count = u32::try_from(weights.len()).unwrap();
            let wanted = |frame: u32| is_missing[index(frame)];
            let mut missing: Vec<Range<u32>> = Vec::new();
            for frame in (0..count).filter(|frame| wanted(*frame)) {
                match missing.last_mut() {
                    Some(range) if range.end == frame => range.end += 1,
                    _ => missing.push(frame..frame + 1),
                }
            }
            let mut schedule = without_shares(weights.into_iter(), missing, connections);
            let mut responses: Vec<Response> = vec![None; connections];
            let mut applied = vec![0; index(count)];
            // After the random steps, each connection reads all its responses to the end.
            let last = (0..2000).map(|nth| (nth % connections, u32::MAX, false));
            for (connection, frames, breaks) in steps.into_iter().chain(last) {
                let connection = connection % connections;
                let open = match responses[connection].take() {
                    Some(open) => open,
                    None => match schedule.next(connection) {
                        NextRange::Range(range) => (range.start, range.end),
                        NextRange::Wait | NextRange::Nothing => continue,
                    },
                };
                let frames = frames.min(count + 1);
                let left = read(&mut schedule, connection, open, frames, &mut applied);
                responses[connection] = left.filter(|_| !breaks);
            }
            let expected: Vec<u32> = (0..count).map(|frame| u32::from(wanted(frame))).collect();
            proptest::prop_assert_eq!(applied, expected);
        }
    }
}
