//! The placement rules: each decides where a fill goes and ranks what the fast tier holds.

use std::fmt;
use std::str::FromStr;

use super::{Destination, SharingRuns, TierSpeeds};

/// The rule that decides which blobs the fast tier takes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Placement {
    /// Seconds that each byte on the fast tier saves, from measured speeds and expected requests:
    /// [`TierSpeeds::saved_per_byte`].
    Value,
    /// The layers that would delay the end of a pull: [`LayerAware`](super::LayerAware). It ranks
    /// nothing, so the oldest blob leaves first.
    LayerAware,
    /// Images that contain the blob, times its requests: [`SharingRuns`]. The default: on images that
    /// the rules had not seen, it saved the most waiting (docs/explanation/tiering.md).
    #[default]
    SharingRuns,
}

/// A name that is none of [`Placement::ALL`].
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0:?} is no tier placement: write value, layer-aware or sharing-runs")]
pub struct UnknownPlacement(String);

/// What the cache knows of one blob.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct BlobFacts {
    /// Bytes of it.
    pub bytes: u64,
    /// Requests that are expected.
    pub demand: f64,
    /// Images that contain it.
    pub sharing: u32,
    /// The decision of [`LayerAware`](super::LayerAware), while its image is fetched.
    pub arriving: Option<Destination>,
    /// The priority of the least valuable blob that would have to leave for it; 0 when none would.
    pub floor: f64,
}

/// Where a blob goes, and how long it stays on the fast tier.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Decision {
    /// Where the fill goes.
    pub destination: Destination,
    /// Higher stays longer; finite, not negative, and comparable between decisions of one rule.
    pub priority: f64,
}

/// By how much the saving of a blob on the disk has to exceed that of the blobs that leave for it.
/// Less is within what a few requests change, and each exchange takes time of the disk.
const MIN_GAIN: f64 = 0.25;

impl Placement {
    /// All rules.
    pub const ALL: [Self; 3] = [Self::Value, Self::LayerAware, Self::SharingRuns];

    /// The name, as in a configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Value => "value",
            Self::LayerAware => "layer-aware",
            Self::SharingRuns => "sharing-runs",
        }
    }

    /// Where a fill goes.
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

    /// How long a blob stays. For [`Placement::Value`], each image that contains the blob stands for
    /// one request that is still to come (a rule of succession): it is all that is known of a blob
    /// with few requests, and later requests decide.
    pub fn priority(self, speeds: &TierSpeeds, facts: &BlobFacts) -> f64 {
        /// The least saving that counts: one second for one GB.
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

    /// By how much the priority of a blob that is copied from the disk has to exceed that of the
    /// blobs that leave for it.
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

/// 0 for nothing; twice a large saving is the same step everywhere.
fn magnitude(of: f64) -> f64 {
    of.clamp(0.0, f64::MAX).ln_1p()
}
