//! When work in the background gives way to the rest of the machine, and when it goes on: figures in, yes or no out.

use super::{Resource, Stalled};

/// Shares of the time from which on it rests (either), and below which (both) nothing strains.
#[derive(Clone, Copy)]
struct Levels {
    rest: Stalled,
    calm: Stalled,
}

const fn stalled(some: f64, full: f64) -> Stalled {
    Stalled { some, full }
}

/// Looks in a row that must be calm before it goes on. Whoever goes on too early strains again at once.
const PATIENCE: u32 = 5;

impl Resource {
    /// Memory: half of what makes the fast tier shrink, so that work rests first. Processors and the disk are shared all the time, and a
    /// wait of some task is no harm to anybody: it is when somebody waits for two fifths of the time (two tasks that never sleep,
    /// on one core, are at 100 %), or nobody in our group gets on for a tenth: its quota is used up.
    fn levels(self) -> Levels {
        let (rest, calm) = match self {
            Self::Memory => (stalled(0.05, 0.01), stalled(0.01, 0.002)),
            Self::Cpu => (stalled(0.40, 0.10), stalled(0.20, 0.05)),
            Self::Io => (stalled(0.40, 0.20), stalled(0.20, 0.10)),
        };
        Levels { rest, calm }
    }
}

/// Of one resource.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Strain {
    resource: Resource,
    rests: bool,
    /// Calm looks in a row.
    calm: u32,
}

impl Strain {
    pub(super) fn new(resource: Resource) -> Self {
        Self {
            resource,
            rests: false,
            calm: 0,
        }
    }

    pub(super) fn resource(&self) -> Resource {
        self.resource
    }

    pub(super) fn rests(&self) -> bool {
        self.rests
    }

    /// One look, made at regular intervals; whether that changed anything.
    pub(super) fn step(&mut self, stalled: Stalled) -> bool {
        let Levels { rest, calm } = self.resource.levels();
        let before = self.rests;
        if stalled.some >= rest.some || stalled.full >= rest.full {
            (self.rests, self.calm) = (true, 0);
        } else if stalled.some < calm.some && stalled.full < calm.full {
            self.calm += 1;
            self.rests &= self.calm < PATIENCE;
        } else {
            self.calm = 0;
        }
        self.rests != before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_rests_at_once_and_goes_on_after_calm_looks_in_a_row() {
        let mut strain = Strain::new(Resource::Cpu);
        let mut after = |some, full| {
            strain.step(stalled(some, full));
            strain.rests()
        };
        assert!(!after(0.39, 0.09));
        assert!(after(0.40, 0.0));
        assert!(after(0.0, 0.0) && after(0.0, 0.0) && after(0.0, 0.0) && after(0.0, 0.0));
        assert!(after(0.3, 0.0), "in between: not calm in a row");
        for _ in 1..PATIENCE {
            assert!(after(0.19, 0.04));
        }
        assert!(!after(0.19, 0.04));
        assert!(!after(0.3, 0.0), "in between: nothing begins");
        assert!(after(0.0, 0.10), "nobody of the group gets on");
    }

    #[test]
    fn a_change_is_told_once() {
        let mut strain = Strain::new(Resource::Memory);
        let mut changes = |some, looks| {
            (0..looks)
                .filter(|_| strain.step(stalled(some, 0.0)))
                .count()
        };
        assert_eq!(changes(0.05, 10), 1);
        assert_eq!(changes(0.0, 30), 1);
        assert_eq!(changes(0.0, 30), 0);
    }

    #[test]
    fn of_memory_work_rests_before_the_tier_shrinks() {
        for stalled in [stalled(0.05, 0.0), stalled(0.0, 0.01)] {
            let (mut strain, mut follow) = (
                Strain::new(Resource::Memory),
                super::super::Follow::new(1600),
            );
            assert!(strain.step(stalled));
            follow.step(stalled);
            assert_eq!(follow.limit(), 1600);
        }
    }
}
