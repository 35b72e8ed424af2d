//! Configuration and statistics of the fast tier: its medium, its limits and its placement rule.

use std::sync::Arc;

use super::{Placement, TierSpeeds};
use crate::tier::{FastMedium, FastStat, Options};

/// A fast tier in front of the disk, with its settings.
#[derive(Clone)]
pub struct FastTier {
    /// The medium of the fast tier.
    pub tier: Arc<dyn FastMedium>,
    /// Limits and write-back settings of the fast tier.
    pub options: Options,
    /// The rule that decides which blobs the fast tier stores.
    pub placement: Placement,
    /// Durability class of the medium for statistics: `pmem`, `emulated-file`, `volatile`.
    pub class: &'static str,
    /// Size of the medium in bytes.
    pub capacity: u64,
}

/// Statistics of the fast tier.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TierStat {
    /// Durability class of the medium: `pmem`, `emulated-file`, `volatile`.
    pub class: &'static str,
    /// Size of the medium in bytes.
    pub capacity: u64,
    /// Contents of the fast tier, and its counters.
    pub fast: FastStat,
    /// Measured speeds of disk and fast tier.
    pub speeds: TierSpeeds,
}
