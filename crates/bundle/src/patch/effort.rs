//! Chooses the zstd level of frames (groups of contents that are compressed together) by the number
//! of bytes, so that the CPU time of a bundle is limited. The choice reads no clock, since with a
//! clock, bundles would differ from run to run.

/// A zstd level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Level(i8);

impl Level {
    /// The zstd level of patches for which a worker waits.
    pub const FAST: Self = Self(3);

    /// Creates a level from 1 to 22. Lower numbers become 1, and higher numbers become 22.
    pub const fn new(number: i8) -> Self {
        match number {
            ..1 => Self(1),
            23.. => Self(22),
            _ => Self(number),
        }
    }

    /// Returns the number of the zstd level.
    pub const fn number(self) -> i8 {
        self.0
    }

    /// Whether zstd's long-distance matching is on. Higher levels do not need long-distance
    /// matching, since their regular tables cover prefix and data.
    pub(super) const fn long_distance(self) -> bool {
        self.0 < 16
    }
}

/// The effort for the patches from one image to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// The given level for all frames.
    Level(Level),
    /// The effort while a worker waits: patches at [`Level::FAST`], and only when at most this
    /// number of bytes must be read or compressed.
    Waiting(u64),
    /// The effort in the background: the highest levels with which the patches between two images
    /// take less than about 40 s of CPU time.
    Idle,
}

/// CPU time in milliseconds per MiB of data or prefix, by level. The values were measured on
/// updates of Debian and Python images, with both cores of the machine busy.
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

/// Pairs of levels, for groups of small contents and for ranges of large contents. The pair with
/// the best compression is first. Small contents get the higher levels, since text gains most from
/// a higher level.
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

/// Maximum cost of the patches between two images for [`Effort::Idle`], in milliseconds by
/// [`COST`].
const IDLE: u64 = 40_000;

/// Maximum cost of the patches between two images at the lowest level, in milliseconds. The maximum
/// corresponds to 5 GiB. If the cost would be higher, the server makes no patches.
const TOO_MUCH: u64 = 60_000;

impl Effort {
    /// Whether the work for the patches between two images is within the limit of this effort.
    /// `compressed` is the number of bytes of data and prefixes. `read` is the number of other
    /// bytes that must be read.
    pub fn affords(self, compressed: u64, read: u64) -> bool {
        match self {
            Self::Level(_) => true,
            Self::Waiting(most) => compressed.saturating_add(read) <= most,
            Self::Idle => cost(Level::FAST, compressed) <= TOO_MUCH,
        }
    }

    /// Returns the levels for groups of small contents and for ranges of large contents. `small`
    /// and `large` are the numbers of bytes of the two kinds, including prefixes.
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

/// Returns the cost of compressing `bytes`, in milliseconds of CPU time.
fn cost(level: Level, bytes: u64) -> u64 {
    let per_mebibyte = COST.iter().find(|(at, _)| *at >= level);
    let per_mebibyte = per_mebibyte.map_or(0, |(_, cost)| *cost);
    (bytes >> 10).saturating_mul(per_mebibyte) >> 10
}
