//! The host: what it is, what it can spare, and how background work keeps out of the way of clients.
//!
//! - [`machine`], [`cgroup`], [`network_interface`]: memory, CPUs, cgroups and addresses, read from `/proc` and `/sys`.
//! - [`profile`]: sizing profiles, and the division of the memory.
//! - [`pressure`]: PSI, and the decision to pause background work or to shrink a limit.
//! - [`BackgroundWork`]: the pause switch, the CPU time that is left, and the count of panics.
//! - [`CpuBudget`]: CPU time within the quota of the cgroup.
//! - [`KeyedLock`]: a lock for each key.
//! - [`FairShare`]: equal slots, divided between clients.
//!
//! The crate reads no environment and no command line. Callers give the root of the file system, which is `/` but in
//! tests.

#![forbid(unsafe_code)]

mod background;
pub mod cgroup;
mod cpu_budget;
mod cpu_pacer;
mod fair_share;
mod kernel_file;
mod keyed_lock;
pub mod machine;
pub mod network_interface;
pub mod pressure;
pub mod profile;

pub use background::{BackgroundTask, BackgroundWork, PanicGuard, Panics, PausedWorker};
pub use cpu_budget::{CpuAllowance, CpuBudget, CpuReading, thread_time};
pub use cpu_pacer::{CpuMeter, CpuPacer, PIECE_BYTES, metered};
pub use fair_share::{ClientKey, FairShare, WaiterId};
pub use kernel_file::{kibibytes, read_kernel_file};
pub use keyed_lock::{KeyGuard, KeyedLock};
