//! Decides from stall readings (shares of time in which tasks waited for a resource) whether the
//! pressure of this resource pauses background work.

use super::{Resource, Stall};

/// Work pauses when either share of the stall (`some` or `full`) reaches `pause`. The resource is
/// calm while both shares are below `calm`.
#[derive(Clone, Copy)]
struct Thresholds {
    pause: Stall,
    calm: Stall,
}

const fn stall(some: f64, full: f64) -> Stall {
    Stall { some, full }
}

/// Number of calm readings in a row before work resumes. If work resumed earlier, it would raise
/// the pressure again.
const CALM_READINGS: u32 = 5;

impl Resource {
    /// Memory: the thresholds are half of the stall that shrinks the fast tier, so that background
    /// work pauses before the tier shrinks.
    ///
    /// CPU and disk: some waiting is normal on a shared machine and harms no client. Work pauses if
    /// at least one task waits for 40 % of the time (two tasks that never sleep reach 100 % on one
    /// core). Work also pauses if all tasks of the cgroup wait for the CPU for 10 % of the time,
    /// because this means that the quota of the cgroup is used up, or if all tasks wait for the
    /// disk for 20 % of the time.
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
pub(crate) struct PauseState {
    resource: Resource,
    is_paused: bool,
    /// Number of calm readings in a row.
    calm: u32,
}

impl PauseState {
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

    /// Adds the reading of one interval. Returns whether the decision has changed.
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
    fn work_pauses_at_once_and_resumes_after_calm_readings_in_a_row() {
        let mut state = PauseState::new(Resource::Cpu);
        let mut after = |some, full| {
            state.update(stall(some, full));
            state.pauses_work()
        };
        assert!(!after(0.39, 0.09));
        assert!(after(0.40, 0.0));
        assert!(after(0.0, 0.0) && after(0.0, 0.0) && after(0.0, 0.0) && after(0.0, 0.0));
        assert!(
            after(0.3, 0.0),
            "neither calm nor a reason to pause: the row is interrupted"
        );
        for _ in 1..CALM_READINGS {
            assert!(after(0.19, 0.04));
        }
        assert!(!after(0.19, 0.04));
        assert!(
            !after(0.3, 0.0),
            "neither calm nor a reason to pause: work goes on"
        );
        assert!(after(0.0, 0.10), "all tasks of the cgroup wait");
    }

    #[test]
    fn a_change_of_the_decision_is_reported_once() {
        let mut state = PauseState::new(Resource::Memory);
        let mut changes = |some, readings| {
            (0..readings)
                .filter(|_| state.update(stall(some, 0.0)))
                .count()
        };
        assert_eq!(changes(0.05, 10), 1);
        assert_eq!(changes(0.0, 30), 1);
        assert_eq!(changes(0.0, 30), 0);
    }

    #[test]
    fn memory_pressure_pauses_work_before_it_shrinks_the_tier() {
        for stalled in [stall(0.05, 0.0), stall(0.0, 0.01)] {
            let (mut state, mut limit) = (
                PauseState::new(Resource::Memory),
                super::super::PressureLimit::new(1600),
            );
            assert!(state.update(stalled));
            limit.update(stalled);
            assert_eq!(limit.limit(), 1600);
        }
    }
}
