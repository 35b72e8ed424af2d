//! The placement rules: each rule decides whether a fill (the download of a blob into the cache)
//! goes to the fast tier or to the disk. All rules except `layer-aware` also rank the blobs on the
//! fast tier, for eviction.

use std::fmt;
use std::str::FromStr;

use super::{Destination, SharingRuns, TierSpeeds};

/// The rule that decides which blobs the fast tier stores.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Placement {
    /// Ranks blobs by the seconds that each byte on the fast tier saves, computed from measured
    /// speeds and expected requests: [`TierSpeeds::saved_per_byte`].
    Value,
    /// Chooses the layers that would delay the end of a pull: [`LayerAware`](super::LayerAware).
    /// This rule does not rank blobs, so the oldest blob is evicted first.
    LayerAware,
    /// Ranks blobs by the number of images that contain the blob, times the number of requests for
    /// the blob: [`SharingRuns`]. This rule is the default: on images that were not used to develop
    /// the rules, it saved the most waiting time (docs/explanation/tiering.md).
    #[default]
    SharingRuns,
}

/// The error for a name that is not in [`Placement::ALL`].
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0:?} is no tier placement: write value, layer-aware or sharing-runs")]
pub struct UnknownPlacement(String);

/// The facts about one blob on which a rule decides.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct BlobFacts {
    /// Size of the blob in bytes.
    pub bytes: u64,
    /// Number of requests for the blob that are expected.
    pub demand: f64,
    /// Number of known images that contain the blob.
    pub sharing: u32,
    /// The decision of [`LayerAware`](super::LayerAware), while an image with the blob is being
    /// pulled.
    pub arriving: Option<Destination>,
    /// The highest priority of the blobs that would be evicted for this blob. 0 when no blob would
    /// be evicted.
    pub floor: f64,
}

/// The tier of a blob, and its rank on the fast tier.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Decision {
    /// The tier to which the fill is written.
    pub destination: Destination,
    /// The priority on the fast tier: blobs with a higher priority are evicted later. The number is
    /// finite, not negative, and comparable between decisions of one rule.
    pub priority: f64,
}

/// Minimum gain of a promotion (a copy to the fast tier): the promoted blob must save this fraction
/// more time than the blobs that are evicted for it. A few requests could reverse a smaller gain,
/// and each promotion takes time of the disk.
const MIN_GAIN: f64 = 0.25;

impl Placement {
    /// All placement rules, in order.
    pub const ALL: [Self; 3] = [Self::Value, Self::LayerAware, Self::SharingRuns];

    /// Returns the name of the rule in the configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Value => "value",
            Self::LayerAware => "layer-aware",
            Self::SharingRuns => "sharing-runs",
        }
    }

    /// Decides the tier of a fill, and the priority of the blob.
    pub fn decide(self, speeds: &TierSpeeds, facts: &BlobFacts) -> Decision {
        let priority = self.priority(speeds, facts);
        let destination = match self {
            Self::LayerAware => facts.arriving.unwrap_or_default(),
            Self::Value | Self::SharingRuns if priority > facts.floor => Destination::Fast,
            Self::Value | Self::SharingRuns => Destination::Disk,
        };
        Decision {
            destination,
            priority,
        }
    }

    /// Returns the priority of a blob on the fast tier. For [`Placement::Value`], each image that
    /// contains the blob counts as one expected request, because there is no better estimate for a
    /// blob with few requests (rule of succession). Later requests correct the estimate.
    pub fn priority(self, speeds: &TierSpeeds, facts: &BlobFacts) -> f64 {
        /// Smallest saving that counts, in seconds per byte. The value is one second per GB.
        const SECONDS_PER_BYTE: f64 = 1e-9;
        match self {
            Self::Value => {
                let expected = facts.demand + f64::from(facts.sharing.saturating_sub(1));
                magnitude(speeds.saved_per_byte(facts.bytes, expected) / SECONDS_PER_BYTE)
            }
            Self::LayerAware => 0.0,
            Self::SharingRuns => magnitude(SharingRuns.rank(facts.sharing, facts.demand)),
        }
    }

    /// Returns the amount by which the priority of a promoted blob must exceed the priority of the
    /// blobs that are evicted for it.
    pub fn margin(self) -> f64 {
        match self {
            Self::LayerAware => 0.0,
            Self::Value | Self::SharingRuns => magnitude(MIN_GAIN),
        }
    }
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Placement {
    type Err = UnknownPlacement;

    fn from_str(name: &str) -> Result<Self, UnknownPlacement> {
        let mut all = Self::ALL.into_iter();
        let found = all.find(|placement| placement.as_str() == name);
        found.ok_or_else(|| UnknownPlacement(name.to_owned()))
    }
}

/// Converts a saving to a logarithmic scale that begins at 0: if a large saving doubles, the result
/// grows by a constant.
fn magnitude(of: f64) -> f64 {
    of.clamp(0.0, f64::MAX).ln_1p()
}
