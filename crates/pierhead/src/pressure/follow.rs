//! A limit that gives way under pressure at once, and comes back slowly: figures in, a limit out.

use super::Stalled;

/// Somebody waits for so much of the time, or everybody for so much: the limit shrinks.
const PRESSED: Stalled = Stalled {
    some: 0.10,
    full: 0.02,
};
/// Below both of these nothing presses. Between them and [`PRESSED`] the limit stays: the way back would bring what it
/// gave way to.
const CALM: Stalled = Stalled {
    some: 0.01,
    full: 0.002,
};
/// Looks in a row that must be calm before it grows, and again before each next step.
const PATIENCE: (u32, u32) = (15, 5);
/// A step: of the ceiling, and of what is left where that is more and it shrinks.
const STEP: u64 = 16;
const SHRINK: u64 = 4;

/// See the head of this module.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Follow {
    ceiling: u64,
    limit: u64,
    /// Calm looks in a row.
    calm: u32,
}

impl Follow {
    /// Nothing has pressed yet.
    pub(crate) fn new(ceiling: u64) -> Self {
        Self {
            ceiling,
            limit: ceiling,
            calm: 0,
        }
    }

    /// The most that the limit can be.
    pub(crate) fn ceiling(&self) -> u64 {
        self.ceiling
    }

    /// What it is now; never above the ceiling.
    pub(crate) fn limit(&self) -> u64 {
        self.limit
    }

    /// Another ceiling, from an operator: a limit that had not given way follows it up, too.
    pub(crate) fn set_ceiling(&mut self, ceiling: u64) {
        let whole = self.limit == self.ceiling;
        self.ceiling = ceiling;
        self.limit = if whole {
            ceiling
        } else {
            self.limit.min(ceiling)
        };
    }

    /// One look at the pressure, made at regular intervals.
    pub(crate) fn step(&mut self, stalled: Stalled) {
        let step = self.ceiling.div_ceil(STEP);
        if stalled.some >= PRESSED.some || stalled.full >= PRESSED.full {
            self.calm = 0;
            let less = (self.limit / SHRINK).max(step);
            self.limit = self.limit.saturating_sub(less);
        } else if stalled.some < CALM.some && stalled.full < CALM.full {
            self.calm += 1;
            if self.calm >= PATIENCE.0 {
                self.calm -= PATIENCE.1;
                self.limit = self.limit.saturating_add(step).min(self.ceiling);
            }
        } else {
            self.calm = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some(some: f64) -> Stalled {
        Stalled { some, full: 0.0 }
    }

    /// Limits after so many looks of the same.
    fn looks(follow: &mut Follow, stalled: Stalled, times: usize) -> Vec<u64> {
        let look = |_| {
            follow.step(stalled);
            follow.limit()
        };
        (0..times).map(look).collect()
    }

    #[test]
    fn pressure_takes_it_down_in_steps_to_nothing() {
        let mut follow = Follow::new(1600);
        assert_eq!(looks(&mut follow, some(0.10), 3), [1200, 900, 675]);
        let full = Stalled {
            some: 0.02,
            full: 0.02,
        };
        assert_eq!(looks(&mut follow, full, 1), [507]);
        let rest = looks(&mut follow, some(1.0), 20);
        assert!(rest.is_sorted_by(|a, b| a >= b));
        assert_eq!(rest.last(), Some(&0));
    }

    #[test]
    fn it_comes_back_slowly_and_only_while_nothing_presses() {
        let mut follow = Follow::new(1600);
        looks(&mut follow, some(0.5), 2);
        assert_eq!(follow.limit(), 900);
        assert_eq!(
            looks(&mut follow, some(0.05), 100),
            [900; 100],
            "in between"
        );
        assert_eq!(looks(&mut follow, some(0.0), 14), [900; 14]);
        assert_eq!(
            looks(&mut follow, some(0.0), 6),
            [1000, 1000, 1000, 1000, 1000, 1100]
        );
        // A little pressure begins the wait anew.
        looks(&mut follow, some(0.05), 1);
        assert_eq!(looks(&mut follow, some(0.0), 14), [1100; 14]);
        assert_eq!(looks(&mut follow, some(0.0), 500).last(), Some(&1600));
    }

    #[test]
    fn an_operators_limit_is_the_ceiling() {
        let mut follow = Follow::new(1600);
        follow.set_ceiling(3200);
        assert_eq!(follow.limit(), 3200, "nothing had given way");
        follow.step(some(0.2));
        assert_eq!(follow.limit(), 2400);
        follow.set_ceiling(8000);
        assert_eq!((follow.ceiling(), follow.limit()), (8000, 2400));
        follow.set_ceiling(1000);
        assert_eq!(follow.limit(), 1000);
        follow.set_ceiling(0);
        looks(&mut follow, some(0.0), 100);
        assert_eq!(follow.limit(), 0);
        follow.set_ceiling(10);
        looks(&mut follow, some(1.0), 100);
        assert_eq!(follow.limit(), 0);
        looks(&mut follow, some(0.0), 1000);
        assert_eq!(follow.limit(), 10, "small ones come back, too");
    }
}
