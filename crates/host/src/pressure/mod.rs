//! The pressure of the host: how long tasks wait for memory, a CPU or the disk, and which work
//! pauses or which limits shrink because of that.

mod limit;
mod monitor;
mod pause;
mod psi;

pub use limit::PressureLimit;
pub use monitor::{PressureMetrics, PressureMonitor};
pub use psi::{PressureReader, Resource, Stall};
