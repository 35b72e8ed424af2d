//! How hard this machine presses: who waits for memory, a processor or the disk, and what gives way.

mod follow;
mod psi;
mod tier;

pub(crate) use follow::Follow;
pub(crate) use psi::{Resource, Stalled, Stalls};
pub(crate) use tier::TierLimit;
