//! The resources of the host (memory, CPUs, disk, network addresses): their limits, their pressure,
//! and their division between clients and background work.
//!
//! - [`clock`]: the wall clock.
//! - [`machine`], [`cgroup`], [`network_interface`]: memory, CPUs, cgroups and addresses, read from
//!   `/proc` and `/sys`.
//! - [`profile`]: sizing profiles, and the division of the memory between the parts of pierhead.
//! - [`pressure`]: the kernel's pressure stall information (PSI), and the decision to pause
//!   background work or to shrink a limit.
//! - [`BackgroundWork`]: the pause switch of background work, its CPU budget, and the number of its
//!   panics.
//! - [`CpuBudget`]: CPU time within the quota of the cgroup.
//! - [`CpuPacer`]: the queue in which pieces of responses wait for CPU time.
//! - [`CpuThrottlingMetrics`]: how often the kernel stopped pierhead because of the CPU quota.
//! - [`KeyedLock`]: a lock for each key.
//! - [`FairShare`]: the division of equal slots between clients.
//! - [`check_database_files`]: kind and size of a database's files, before the database opens them.
//!
//! The crate reads neither environment variables nor the command line. Callers pass the root folder
//! of the file system, which is `/`, or a simulated folder in tests.

#![forbid(unsafe_code)]

mod background;
pub mod cgroup;
pub mod clock;
mod cpu_budget;
mod cpu_pacer;
mod cpu_throttling_metrics;
mod database_files;
mod fair_share;
mod kernel_file;
mod keyed_lock;
pub mod machine;
pub mod network_interface;
pub mod pressure;
pub mod profile;

pub use background::{
    BackgroundTask, BackgroundWork, PanicGuard, Panics, PausedWorker, WatchedFuture,
};
pub use cpu_budget::{CpuAllowance, CpuBudget, CpuReading, thread_time};
pub use cpu_pacer::{CpuMeter, CpuPacer, PIECE_BYTES, metered};
pub use cpu_throttling_metrics::CpuThrottlingMetrics;
pub use database_files::check_database_files;
pub use fair_share::{ClientKey, FairShare, WaiterId};
pub use kernel_file::{kibibytes, read_kernel_file};
pub use keyed_lock::{KeyGuard, KeyedLock};
