//! How much to spend on a frame, decided by bytes alone: a clock would make bundles differ from run to run.

/// How hard a frame is compressed: a zstd level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Level(i8);

impl Level {
    /// While a worker waits.
    pub const FAST: Self = Self(3);

    /// A zstd level from 1 to 22; others are taken to the nearest.
    pub const fn new(number: i8) -> Self {
        match number {
            ..1 => Self(1),
            23.. => Self(22),
            _ => Self(number),
        }
    }

    /// As zstd numbers them.
    pub const fn number(self) -> i8 {
        self.0
    }

    /// Whether matches far away are searched for by a hash of their own: above, the level's own tables hold all
    /// of prefix and data anyway.
    pub(super) const fn long_distance(self) -> bool {
        self.0 < 16
    }
}

/// What may be spent on a pair of images.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// The same level for everything.
    Level(Level),
    /// While a worker waits: [`Level::FAST`], and only if no more than so many bytes have to be read or compressed.
    Waiting(u64),
    /// Ahead of time: the highest levels that keep a pair below about 40 CPU-seconds.
    Idle,
}

/// Milliseconds of one processor for 1 MiB of data or prefix, measured on updates of Debian and Python images
/// with both cores of the machine busy.
const COST: [(Level, u64); 8] = [
    (Level(3), 12),
    (Level(6), 25),
    (Level(9), 40),
    (Level(12), 65),
    (Level(15), 190),
    (Level(17), 300),
    (Level(18), 350),
    (Level(19), 420),
];

/// Levels for groups of small contents and for ranges of large ones, best first. Small ones first: they hold text,
/// which gains most.
const LADDER: [(Level, Level); 9] = [
    (Level(19), Level(19)),
    (Level(19), Level(17)),
    (Level(19), Level(15)),
    (Level(19), Level(12)),
    (Level(17), Level(12)),
    (Level(15), Level(12)),
    (Level(12), Level(12)),
    (Level(9), Level(6)),
    (Level(3), Level(3)),
];

/// What [`Effort::Idle`] spends on a pair, in milliseconds by [`COST`].
const IDLE: u64 = 40_000;

/// A pair that costs more than this at the lowest level is not patched at all: 5 GiB.
const TOO_MUCH: u64 = 60_000;

impl Effort {
    /// Whether so many bytes may be compressed or compressed against, and so many read besides.
    pub fn affords(self, compressed: u64, read: u64) -> bool {
        match self {
            Self::Level(_) => true,
            Self::Waiting(most) => compressed.saturating_add(read) <= most,
            Self::Idle => cost(Level::FAST, compressed) <= TOO_MUCH,
        }
    }

    /// The levels for groups of small contents and for ranges of large ones, of which there are so many bytes,
    /// prefixes included.
    pub fn levels(self, small: u64, large: u64) -> (Level, Level) {
        match self {
            Self::Level(level) => (level, level),
            Self::Waiting(_) => (Level::FAST, Level::FAST),
            Self::Idle => LADDER
                .into_iter()
                .find(|levels| cost(levels.0, small) + cost(levels.1, large) <= IDLE)
                .unwrap_or((Level::FAST, Level::FAST)),
        }
    }
}

fn cost(level: Level, bytes: u64) -> u64 {
    let per_mebibyte = COST.iter().find(|(at, _)| *at >= level);
    let per_mebibyte = per_mebibyte.map_or(0, |(_, cost)| *cost);
    (bytes >> 10).saturating_mul(per_mebibyte) >> 10
}
