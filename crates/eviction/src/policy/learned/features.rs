//! The per-key data of the policy `learned`, and the inputs of the network computed from it.
//!
//! The choice of inputs follows HALP (Song et al., NSDI '23, section 4.2) and LRB (Song et al.,
//! NSDI '20, section 4.3): the time since the last request, the times between earlier requests, a
//! decaying count, and the size. We add the cost of a miss and the number of images.

use serde::{Deserialize, Serialize};

/// Number of inputs of the network.
pub(super) const INPUTS: usize = 16;

/// The inputs of the network for one key; each input is within about ±4.
pub(super) type Features = [f32; INPUTS];

/// Whether the inputs in a saved state are valid. The bound is wide enough for a cost that is not
/// finite.
pub(super) fn are_valid(features: &Features) -> bool {
    features.iter().all(|x| x.abs() <= 64.0)
}

/// Number of remembered times between requests.
const GAPS: usize = 3;
/// Steps per power of two in a logarithm of 16 bits. The logarithm covers values up to 2^32 in
/// steps of 0.03 %.
const STEPS: f32 = 2048.0;
/// Size in bytes below which the round trip takes more than half of the time
/// [`crate::Access::prior`].
const SMALL_SIZE: u64 = 468_000;

/// The policy's data about one key, in 24 bytes. A time is the number of requests so far, which
/// wraps around. An age is the difference of two times.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Note {
    last: u32,
    first: u32,
    /// Logarithms of the times between the last requests, newest first. 0 stands for no time.
    gaps: [u16; GAPS],
    /// Logarithm of the decayed number of requests at the time `at`.
    warmth: u16,
    count: u16,
    cost: f32,
    shared: u8,
    /// The list of [`super::classes::Classes`] that contains the key.
    pub(super) list: u8,
}

/// The current time and the turnover of the cache. The inputs of the network are relative to both.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Clock {
    /// Number of requests so far, which wraps around.
    pub(super) now: u32,
    /// Time in seconds on the caller's clock.
    pub(super) tick: u64,
    /// The turnover: the recent mean number of requests between the last request for a key and its
    /// eviction. At least 1.
    pub(super) turnover: f32,
}

impl Note {
    /// Creates the data of a key that enters. If the key is a ghost (it was evicted recently),
    /// `ghost` is the number of its requests and the time of its last request before the eviction.
    pub(super) fn new(at: &Clock, cost: f32, shared: u32, ghost: Option<(u16, u32)>) -> Self {
        let mut note = Self {
            last: at.now,
            first: at.now,
            gaps: [0; GAPS],
            warmth: 0,
            count: 1,
            cost,
            shared: byte(shared),
            list: 0,
        };
        if let Some((count, last)) = ghost {
            // The ghost does not know the times between the earlier requests.
            (note.count, note.first, note.last) = (count, last, last);
            note.warmth = code(f32::from(count));
            note.record_request(at, cost, shared);
        }
        note
    }

    /// Counts a request for the key.
    pub(super) fn record_request(&mut self, at: &Clock, cost: f32, shared: u32) {
        let gap = self.age(at);
        self.gaps.copy_within(..GAPS - 1, 1);
        self.gaps[0] = code(gap);
        self.warmth = code(1.0 + self.warmth(at).exp2());
        self.last = at.now;
        self.count = self.count.saturating_add(1);
        self.cost = cost;
        self.shared = byte(shared);
    }

    /// Returns the number of known requests for the key.
    pub(super) fn count(&self) -> u16 {
        self.count
    }

    /// Returns the time of the last request for the key, as a number of requests.
    pub(super) fn last(&self) -> u32 {
        self.last
    }

    /// Returns the number of requests since the last request for this key, plus 1.
    pub(super) fn age(&self, at: &Clock) -> f32 {
        at.now.wrapping_sub(self.last) as f32 + 1.0
    }

    /// Returns the logarithm of the decayed number of requests at the time `at`.
    fn warmth(&self, at: &Clock) -> f32 {
        decode(self.warmth) - (self.age(at) / at.turnover).min(16.0)
    }

    /// Returns the base-2 logarithm of the cost of a miss in seconds per byte.
    pub(super) fn density(&self, size: u64) -> f32 {
        lg(self.cost.max(1e-6)) - lg(float(size) + 1.0)
    }

    /// Returns the base-2 logarithm of the request rate that the heuristic estimates. The estimate
    /// is sqrt(decayed number of requests) / (time since the last request). Without the square
    /// root, a new image that many clients request at the same time and hardly any client later
    /// would rank too high.
    pub(super) fn rate(&self, at: &Clock) -> f32 {
        0.5 * decode(self.warmth) - lg(self.age(at))
    }

    /// Computes the inputs of the network for this key.
    pub(super) fn features(&self, size: u64, at: &Clock) -> Features {
        let turnover = lg(at.turnover);
        let relative = |lg: f32| (lg - turnover) * 0.25;
        let known = |n: usize| self.gaps[n] != 0;
        let gap = |n: usize| {
            if known(n) {
                relative(decode(self.gaps[n]))
            } else {
                0.0
            }
        };
        let age = lg(self.age(at));
        let life = lg(at.now.wrapping_sub(self.first) as f32 + 1.0);
        let count = lg(f32::from(self.count));
        let hour = (at.tick % 86_400) as f32 / 86_400.0 * std::f32::consts::TAU;
        [
            relative(age),
            gap(0),
            gap(1),
            gap(2),
            f32::from(u8::from(known(0)) + u8::from(known(1)) + u8::from(known(2))) / 3.0,
            count * 0.25,
            decode(self.warmth) * 0.25,
            (self.age(at) / at.turnover).min(8.0) * 0.5,
            relative(life),
            relative(life - count),
            if known(0) {
                (age - decode(self.gaps[0])) * 0.25
            } else {
                0.0
            },
            (lg(float(size) + 1.0) - 20.0) * 0.125,
            lg(self.cost.max(1e-6)) * 0.25,
            lg(f32::from(self.shared) + 1.0) * 0.25,
            hour.sin(),
            if size < SMALL_SIZE { 1.0 } else { 0.0 },
        ]
    }
}

/// Returns the linear weights with which the network computes [`Note::rate`]. The result is in
/// natural logarithms, and differs by a constant.
pub(super) fn heuristic() -> Features {
    let mut weights = [0.0; INPUTS];
    weights[0] = -4.0 * std::f32::consts::LN_2;
    weights[6] = 2.0 * std::f32::consts::LN_2;
    weights
}

fn byte(shared: u32) -> u8 {
    u8::try_from(shared).unwrap_or(u8::MAX)
}

pub(super) fn float(size: u64) -> f32 {
    size as f32
}

/// Returns the base-2 logarithm of a positive number, precise to 0.01. The bits of a float nearly
/// contain this logarithm. A table or a library call would take most of the time of an eviction.
pub(super) fn lg(x: f32) -> f32 {
    let bits = x.to_bits();
    let exponent = (bits >> 23) as f32 - 127.0;
    let m = f32::from_bits((bits & 0x007f_ffff) | 0x3f80_0000) - 1.0;
    // This parabola is exact at both ends, and has the least maximum error between them.
    exponent + m * (1.346 - 0.346 * m)
}

// The conversion to an integer saturates.
#[allow(clippy::cast_possible_truncation)]
fn code(x: f32) -> u16 {
    (lg(x.max(1.0)) * STEPS + 0.5) as u16
}

fn decode(code: u16) -> f32 {
    f32::from(code) / STEPS
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(now: u32) -> Clock {
        Clock {
            now,
            tick: 0,
            turnover: 16.0,
        }
    }

    #[test]
    fn the_logarithm_is_within_a_hundredth() {
        for n in 1..100_000 {
            let x = n as f32 * 0.37;
            assert!((lg(x) - x.log2()).abs() < 0.01, "{x}: {}", lg(x));
        }
    }

    #[test]
    fn times_between_requests_shift_and_are_relative_to_the_turnover() {
        let mut note = Note::new(&at(0), 1.0, 1, None);
        let unknown = note.features(1, &at(0));
        assert_eq!(unknown[1..5], [0.0; 4]);
        for now in [63, 78, 81] {
            note.record_request(&at(now), 1.0, 1);
        }
        let features = note.features(1, &at(81 + 15));
        // Ages count from 1. There are 64, 16 and 4 requests between the requests for the key, and
        // 16 requests since its last request.
        let expected = [0.0, -0.5, 0.0, 0.5, 1.0, 0.5];
        for (n, expected) in expected.into_iter().enumerate() {
            assert!((features[n] - expected).abs() < 0.01, "{n}: {features:?}");
        }
    }

    #[test]
    fn a_ghost_restores_its_count_and_the_time_since_its_last_request() {
        let note = Note::new(&at(100), 1.0, 1, Some((5, 37)));
        assert_eq!((note.count(), note.last()), (6, 100));
        let gap = note.features(1, &at(100))[1];
        assert!((gap - 0.5).abs() < 0.01, "64 requests: {gap}");
    }

    #[test]
    fn ages_are_right_after_the_request_counter_wraps() {
        let mut note = Note::new(&at(u32::MAX - 1), 1.0, 1, None);
        assert_eq!(note.age(&at(2)), 5.0);
        note.record_request(&at(2), 1.0, 1);
        assert_eq!(note.age(&at(5)), 4.0);
    }

    #[test]
    fn inputs_stay_in_bounds_for_any_size_and_time() {
        for (size, cost, shared) in [(0, 0.0, 0), (1 << 40, 1e9, u32::MAX)] {
            let note = Note::new(&at(0), cost, shared, Some((u16::MAX, 1)));
            for x in note.features(size, &at(u32::MAX)) {
                assert!(x.is_finite() && x.abs() < 16.0, "{x}");
            }
        }
    }
}
