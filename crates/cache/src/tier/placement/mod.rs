//! Placement rules of the fast tier: decide which blobs the fast tier stores, and which blobs stay
//! there longest.

mod advisor;
mod destination;
mod fast_tier;
mod layer_aware;
mod rule;
mod sharing_runs;
mod tier_speeds;

#[cfg(test)]
mod tests;

pub(crate) use advisor::Advisor;
pub use destination::Destination;
pub use fast_tier::{FastTier, TierStat};
pub(crate) use layer_aware::SYNC_INTERVAL;
pub use layer_aware::{FetchRate, LayerAware, LayerProgress};
pub use rule::{BlobFacts, Decision, Placement, UnknownPlacement};
pub use sharing_runs::SharingRuns;
pub use tier_speeds::{Speed, TierSpeeds};
