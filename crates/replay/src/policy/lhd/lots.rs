//! Where LHD's lots come from.

/// How lots are drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lots {
    /// From the seed. The default.
    #[default]
    Seeded,
    /// As libcachesim draws them: Lehmer's generator modulo 2^128 from one seed of its own. Which lots are
    /// drawn decides up to 5 % of the figures of a short trace.
    Libcachesim,
}

/// The multiplier of L'Ecuyer, "Tables of linear congruential generators of different sizes and good
/// lattice structure", Mathematics of Computation 68, 1999; and where libcachesim begins.
const LEHMER: u128 = 0xda94_2042_e4dd_58b5;
const BEGIN: u128 = 0xdead_beef;

/// A source of lots.
#[derive(Debug)]
pub(super) enum Random {
    Seeded(fastrand::Rng),
    Lehmer(u128),
}

impl Random {
    pub(super) fn new(lots: Lots, seed: u64) -> Self {
        match lots {
            Lots::Seeded => Self::Seeded(fastrand::Rng::with_seed(seed)),
            Lots::Libcachesim => Self::Lehmer(BEGIN),
        }
    }

    /// A number below `end`, which is not 0.
    pub(super) fn below(&mut self, end: usize) -> usize {
        match self {
            Self::Seeded(random) => random.usize(..end),
            Self::Lehmer(state) => {
                *state = state.wrapping_mul(LEHMER);
                // Below `end`, so it fits.
                usize::try_from((*state >> 64) % end as u128).unwrap_or(0)
            }
        }
    }

    /// What [`Random::resume`] goes on from.
    pub(super) fn state(&self) -> u128 {
        match self {
            Self::Seeded(random) => random.get_seed().into(),
            Self::Lehmer(state) => *state,
        }
    }

    /// Goes on where a source of the same kind was.
    pub(super) fn resume(&mut self, state: u128) {
        match self {
            Self::Seeded(random) => {
                // A state of that kind has 64 bits; the half of another one is as good a seed.
                random.seed(u64::try_from(state & u128::from(u64::MAX)).unwrap_or(0));
            }
            // It may be neither 0 nor even, from which it would come to 0.
            Self::Lehmer(own) => *own = state | 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lots_of_libcachesim_are_drawn_and_resumed() {
        let mut random = Random::new(Lots::Libcachesim, 7);
        let drawn: Vec<usize> = (0..4).map(|_| random.below(1 << 20)).collect();
        // Computed apart, in arithmetic without a bound.
        assert_eq!(drawn, [52505, 899022, 625109, 932456]);
        let mut resumed = Random::new(Lots::Libcachesim, 8);
        resumed.resume(random.state());
        assert_eq!(resumed.below(1000), random.below(1000));
    }
}
