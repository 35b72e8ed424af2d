//! Tier placement: which blobs enter the fast tier, and how long each stays there.

mod advisor;
mod layer_aware;
pub(crate) mod placer;
mod rule;
mod sharing_runs;
mod tier_speeds;

#[cfg(test)]
mod tests;

pub(crate) use advisor::Advisor;
pub(crate) use layer_aware::SYNC_INTERVAL;
pub use layer_aware::{FetchRate, LayerAware, LayerProgress};
pub use rule::{BlobFacts, Decision, Placement, UnknownPlacement};
pub use sharing_runs::SharingRuns;
pub use tier_speeds::{Speed, TierSpeeds};

/// The tier that the bytes of a fill are written to first.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Destination {
    /// The fast tier; the write-back thread copies them to the disk later.
    Fast,
    /// The disk.
    #[default]
    Disk,
}
