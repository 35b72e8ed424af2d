//! The decision to pause background work under the pressure of one resource: figures in, yes or no out.

use super::{Resource, Stall};

/// The stall from which on work pauses (either share), and below which (both shares) the resource is calm.
#[derive(Clone, Copy)]
struct Thresholds {
    pause: Stall,
    calm: Stall,
}

const fn stall(some: f64, full: f64) -> Stall {
    Stall { some, full }
}

/// Calm readings in a row before work resumes. Work that resumes too early brings the pressure back at once.
const CALM_READINGS: u32 = 5;

impl Resource {
    /// Memory: half of the stall that shrinks the fast tier, so that background work pauses first.
    ///
    /// CPUs and the disk are shared all the time, and the wait of one task harms no client. Work pauses when some task waits
    /// for two fifths of the time (two tasks that never sleep reach 100 % on one core). It also pauses when all tasks of
    /// the cgroup wait for a tenth of the time, since then its quota is used up.
    fn thresholds(self) -> Thresholds {
        let (pause, calm) = match self {
            Self::Memory => (stall(0.05, 0.01), stall(0.01, 0.002)),
            Self::Cpu => (stall(0.40, 0.10), stall(0.20, 0.05)),
            Self::Io => (stall(0.40, 0.20), stall(0.20, 0.10)),
        };
        Thresholds { pause, calm }
    }
}

/// Whether the pressure of one resource pauses background work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PressureLevel {
    resource: Resource,
    is_paused: bool,
    /// Calm readings in a row.
    calm: u32,
}

impl PressureLevel {
    pub(crate) fn new(resource: Resource) -> Self {
        Self {
            resource,
            is_paused: false,
            calm: 0,
        }
    }

    pub(crate) fn resource(&self) -> Resource {
        self.resource
    }

    pub(crate) fn pauses_work(&self) -> bool {
        self.is_paused
    }

    /// Takes one reading of a regular interval. Returns whether the decision changed.
    pub(crate) fn update(&mut self, stall: Stall) -> bool {
        let Thresholds { pause, calm } = self.resource.thresholds();
        let before = self.is_paused;
        if stall.some >= pause.some || stall.full >= pause.full {
            (self.is_paused, self.calm) = (true, 0);
        } else if stall.some < calm.some && stall.full < calm.full {
            self.calm += 1;
            self.is_paused &= self.calm < CALM_READINGS;
        } else {
            self.calm = 0;
        }
        self.is_paused != before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_rests_at_once_and_goes_on_after_calm_looks_in_a_row() {
        let mut level = PressureLevel::new(Resource::Cpu);
        let mut after = |some, full| {
            level.update(stall(some, full));
            level.pauses_work()
        };
        assert!(!after(0.39, 0.09));
        assert!(after(0.40, 0.0));
        assert!(after(0.0, 0.0) && after(0.0, 0.0) && after(0.0, 0.0) && after(0.0, 0.0));
        assert!(after(0.3, 0.0), "in between: not calm in a row");
        for _ in 1..CALM_READINGS {
            assert!(after(0.19, 0.04));
        }
        assert!(!after(0.19, 0.04));
        assert!(!after(0.3, 0.0), "in between: nothing begins");
        assert!(after(0.0, 0.10), "nobody of the group gets on");
    }

    #[test]
    fn a_change_is_told_once() {
        let mut level = PressureLevel::new(Resource::Memory);
        let mut changes = |some, looks| {
            (0..looks)
                .filter(|_| level.update(stall(some, 0.0)))
                .count()
        };
        assert_eq!(changes(0.05, 10), 1);
        assert_eq!(changes(0.0, 30), 1);
        assert_eq!(changes(0.0, 30), 0);
    }

    #[test]
    fn of_memory_work_rests_before_the_tier_shrinks() {
        for stalled in [stall(0.05, 0.0), stall(0.0, 0.01)] {
            let (mut level, mut limit) = (
                PressureLevel::new(Resource::Memory),
                super::super::PressureLimit::new(1600),
            );
            assert!(level.update(stalled));
            limit.update(stalled);
            assert_eq!(limit.limit(), 1600);
        }
    }
}
