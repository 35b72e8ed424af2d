//! The clock of the eviction policy: follows the wall clock, and never goes back.

/// A clock in seconds that follows the wall clock. When the wall clock is set back, this clock
/// continues from its last value at the pace of the wall clock. If this clock waited for the wall
/// clock instead, it could stand still for years. When a machine starts before its wall clock is
/// set, this clock continues from the last saved value.
#[derive(Debug)]
pub(crate) struct PolicyClock {
    tick: u64,
    wall: u64,
}

impl PolicyClock {
    /// Creates a clock that starts at the time of the wall clock.
    pub(crate) fn new(wall: u64) -> Self {
        Self { tick: wall, wall }
    }

    /// Returns the tick at the wall clock time `wall`.
    pub(crate) fn read(&mut self, wall: u64) -> u64 {
        self.tick = match wall >= self.tick {
            true => wall,
            false => self.tick + wall.saturating_sub(self.wall),
        };
        self.wall = wall;
        self.tick
    }

    /// Returns the tick of a past event at the wall clock time `then`. The returned tick is at most
    /// the current tick.
    pub(crate) fn past(&self, then: u64) -> u64 {
        self.tick.saturating_sub(self.wall.saturating_sub(then))
    }

    /// Continues from the tick of an earlier process, if that tick is later than the current tick.
    pub(crate) fn resume(&mut self, tick: u64) {
        self.tick = self.tick.max(tick);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_continues_when_the_wall_clock_is_set_back() {
        let mut clock = PolicyClock::new(1000);
        assert_eq!(clock.read(1010), 1010);
        assert_eq!(clock.read(500), 1010, "never back");
        assert_eq!(clock.read(507), 1017, "and on");
        assert_eq!((clock.past(502), clock.past(9999)), (1012, 1017));
        clock.resume(900);
        assert_eq!(clock.read(507), 1017);
        clock.resume(2000);
        assert_eq!(clock.read(508), 2001);
        assert_eq!(clock.read(3000), 3000, "the time is known now");
    }
}
