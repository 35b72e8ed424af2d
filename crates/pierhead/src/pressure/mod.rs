//! How hard this machine presses: who waits for memory, a processor or the disk, and what gives way.

mod follow;
mod psi;
mod strain;
mod tier;
mod watch;

use follow::Follow;
use psi::Stalled;
pub(crate) use psi::{Resource, Stalls};
pub(crate) use tier::TierLimit;
pub(crate) use watch::{Figures, Watch};
