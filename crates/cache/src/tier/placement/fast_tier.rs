//! What the fast tier is: what an operator configures, and what a reader of its state sees.

use std::sync::Arc;

use super::{Placement, TierSpeeds};
use crate::tier::{FastMedium, FastStat, Options};

/// A tier in front of the disk.
#[derive(Clone)]
pub struct FastTier {
    /// The medium.
    pub tier: Arc<dyn FastMedium>,
    /// How the two are used.
    pub options: Options,
    /// The rule that decides which blobs it takes.
    pub placement: Placement,
    /// What becomes of it when the power goes, as people are told: `pmem`, `emulated-file`, `volatile`.
    pub class: &'static str,
    /// Bytes of the medium.
    pub capacity: u64,
}

/// What the fast tier is and holds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TierStat {
    /// What becomes of it when the power goes.
    pub class: &'static str,
    /// Bytes of the medium.
    pub capacity: u64,
    /// What it holds and did.
    pub fast: FastStat,
    /// How disk and fast tier serve, as measured.
    pub speeds: TierSpeeds,
}
