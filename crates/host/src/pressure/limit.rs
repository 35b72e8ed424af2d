//! A limit (such as the size of the fast tier) that shrinks at once under memory pressure and grows
//! slowly without pressure, as a pure function of stall readings.

use super::Stall;

/// The limit shrinks when either share of the stall reaches this value.
const SHRINK_FROM: Stall = Stall {
    some: 0.10,
    full: 0.02,
};
/// The limit grows while both shares of the stall are below this value. If a share is between this
/// value and [`SHRINK_FROM`], the limit stays unchanged, because growth would raise the pressure
/// again.
const CALM_BELOW: Stall = Stall {
    some: 0.01,
    full: 0.002,
};
/// Number of calm readings in a row before the first step of growth.
const CALM_READINGS: u32 = 15;
/// Number of calm readings in a row before each further step of growth.
const CALM_READINGS_PER_STEP: u32 = 5;
/// Divisor of the ceiling: one step of growth is the ceiling divided by this number.
const STEP_DIVISOR: u64 = 16;
/// Under pressure, a limit shrinks by its value divided by this number, and at least by one step.
const SHRINK_DIVISOR: u64 = 4;

/// A limit between 0 and a ceiling, which follows the pressure as the documentation of this module
/// describes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PressureLimit {
    ceiling: u64,
    limit: u64,
    /// Number of calm readings in a row.
    calm: u32,
}

impl PressureLimit {
    /// Creates a limit that starts at the ceiling.
    pub fn new(ceiling: u64) -> Self {
        Self {
            ceiling,
            limit: ceiling,
            calm: 0,
        }
    }

    /// Returns the highest value that the limit can have.
    pub fn ceiling(&self) -> u64 {
        self.ceiling
    }

    /// Returns the present value of the limit, which is at most the ceiling.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Sets the ceiling. If the limit was at the old ceiling, it moves to the new ceiling.
    pub fn set_ceiling(&mut self, ceiling: u64) {
        let is_whole = self.limit == self.ceiling;
        self.ceiling = ceiling;
        self.limit = if is_whole {
            ceiling
        } else {
            self.limit.min(ceiling)
        };
    }

    /// Adds the stall reading of one interval, which may change the limit.
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

    /// Returns the limits after each of `times` equal readings.
    fn update_times(limit: &mut PressureLimit, stall: Stall, times: usize) -> Vec<u64> {
        let update = |_| {
            limit.update(stall);
            limit.limit()
        };
        (0..times).map(update).collect()
    }

    #[test]
    fn pressure_shrinks_the_limit_in_steps_to_zero() {
        let mut limit = PressureLimit::new(1600);
        assert_eq!(update_times(&mut limit, some(0.10), 3), [1200, 900, 675]);
        let full = Stall {
            some: 0.02,
            full: 0.02,
        };
        assert_eq!(update_times(&mut limit, full, 1), [507]);
        let rest = update_times(&mut limit, some(1.0), 20);
        assert!(rest.is_sorted_by(|a, b| a >= b));
        assert_eq!(rest.last(), Some(&0));
    }

    #[test]
    fn the_limit_grows_slowly_and_only_without_pressure() {
        let mut limit = PressureLimit::new(1600);
        update_times(&mut limit, some(0.5), 2);
        assert_eq!(limit.limit(), 900);
        assert_eq!(
            update_times(&mut limit, some(0.05), 100),
            [900; 100],
            "between the thresholds"
        );
        assert_eq!(update_times(&mut limit, some(0.0), 14), [900; 14]);
        assert_eq!(
            update_times(&mut limit, some(0.0), 6),
            [1000, 1000, 1000, 1000, 1000, 1100]
        );
        // A little pressure resets the count of calm readings.
        update_times(&mut limit, some(0.05), 1);
        assert_eq!(update_times(&mut limit, some(0.0), 14), [1100; 14]);
        assert_eq!(update_times(&mut limit, some(0.0), 500).last(), Some(&1600));
    }

    #[test]
    fn the_operators_value_is_the_ceiling_of_the_limit() {
        let mut limit = PressureLimit::new(1600);
        limit.set_ceiling(3200);
        assert_eq!(limit.limit(), 3200, "the limit was at its ceiling");
        limit.update(some(0.2));
        assert_eq!(limit.limit(), 2400);
        limit.set_ceiling(8000);
        assert_eq!((limit.ceiling(), limit.limit()), (8000, 2400));
        limit.set_ceiling(1000);
        assert_eq!(limit.limit(), 1000);
        limit.set_ceiling(0);
        update_times(&mut limit, some(0.0), 100);
        assert_eq!(limit.limit(), 0);
        limit.set_ceiling(10);
        update_times(&mut limit, some(1.0), 100);
        assert_eq!(limit.limit(), 0);
        update_times(&mut limit, some(0.0), 1000);
        assert_eq!(limit.limit(), 10, "a small limit grows back, too");
    }
}
