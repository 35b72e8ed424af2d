//! A limit that shrinks under pressure at once and grows back slowly: figures in, a limit out.

use super::Stall;

/// The limit shrinks from this stall on (either share).
const SHRINK_FROM: Stall = Stall {
    some: 0.10,
    full: 0.02,
};
/// Below this stall (both shares) the limit grows. In between it stays, since growth would bring the pressure back.
const CALM_BELOW: Stall = Stall {
    some: 0.01,
    full: 0.002,
};
/// Calm readings in a row before the limit grows, and before each further step.
const CALM_READINGS: u32 = 15;
const CALM_READINGS_PER_STEP: u32 = 5;
/// A step is this part of the ceiling. A limit shrinks by a step or by [`SHRINK_DIVISOR`], whichever is more.
const STEP_DIVISOR: u64 = 16;
/// A limit shrinks by this part of what is left.
const SHRINK_DIVISOR: u64 = 4;

/// A limit between 0 and its ceiling.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PressureLimit {
    ceiling: u64,
    limit: u64,
    /// Calm readings in a row.
    calm: u32,
}

impl PressureLimit {
    /// Starts at the ceiling.
    pub fn new(ceiling: u64) -> Self {
        Self {
            ceiling,
            limit: ceiling,
            calm: 0,
        }
    }

    /// The highest value of the limit.
    pub fn ceiling(&self) -> u64 {
        self.ceiling
    }

    /// The current limit, at most the ceiling.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Sets the ceiling. A limit that is at the ceiling stays there.
    pub fn set_ceiling(&mut self, ceiling: u64) {
        let is_whole = self.limit == self.ceiling;
        self.ceiling = ceiling;
        self.limit = if is_whole {
            ceiling
        } else {
            self.limit.min(ceiling)
        };
    }

    /// Takes one reading of a regular interval.
    pub fn update(&mut self, stall: Stall) {
        let step = self.ceiling.div_ceil(STEP_DIVISOR);
        if stall.some >= SHRINK_FROM.some || stall.full >= SHRINK_FROM.full {
            self.calm = 0;
            let less = (self.limit / SHRINK_DIVISOR).max(step);
            self.limit = self.limit.saturating_sub(less);
        } else if stall.some < CALM_BELOW.some && stall.full < CALM_BELOW.full {
            self.calm += 1;
            if self.calm >= CALM_READINGS {
                self.calm -= CALM_READINGS_PER_STEP;
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

    fn some(some: f64) -> Stall {
        Stall { some, full: 0.0 }
    }

    /// Limits after so many looks of the same.
    fn looks(follow: &mut PressureLimit, stalled: Stall, times: usize) -> Vec<u64> {
        let look = |_| {
            follow.update(stalled);
            follow.limit()
        };
        (0..times).map(look).collect()
    }

    #[test]
    fn pressure_takes_it_down_in_steps_to_nothing() {
        let mut follow = PressureLimit::new(1600);
        assert_eq!(looks(&mut follow, some(0.10), 3), [1200, 900, 675]);
        let full = Stall {
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
        let mut follow = PressureLimit::new(1600);
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
        let mut follow = PressureLimit::new(1600);
        follow.set_ceiling(3200);
        assert_eq!(follow.limit(), 3200, "nothing had given way");
        follow.update(some(0.2));
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
