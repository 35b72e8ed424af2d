//! Stores values in a crash-safe log on persistent memory: maps a file into the process and makes
//! writes to it durable. The same log also works on ordinary memory and on disks.
//!
//! The crate handles only bytes at offsets. The crate has no digests, no images, no network and no
//! async runtime.
//!
//! The layers of the crate, from the bytes to the log:
//!
//! - `sys`: the mapped file, cache-line flushes and SIGBUS; all `unsafe` code.
//! - [`Region`]: a mapped file as a medium.
//! - [`Class`]: the durability of a medium.
//! - [`Medium`]: the trait of a medium. Tests implement this trait to simulate power cuts.
//! - [`Log`]: a key-value log, which commits each value atomically.

// A test of the architecture checks which modules may allow unsafe code.
#![deny(unsafe_code)]
#![deny(unsafe_op_in_unsafe_fn, clippy::undocumented_unsafe_blocks)]

mod backing;
mod class;
mod create;
mod error;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod log;
mod medium;
mod read_only;
mod region;
#[cfg(any(test, feature = "shadow"))]
pub mod shadow;
mod sys;

pub use backing::{TMPFS, is_memory};
pub use class::Class;
pub use error::{Error, Fault};
pub use log::{
    Entry, EntryInfo, Extent, Log, MAX_KEY_LEN, MAX_META_LEN, Options, RecoveryReport,
    SEGMENT_SIZES, UncommittedReader, Writer,
};
pub use medium::Medium;
pub use region::{Config, Region, Report};
