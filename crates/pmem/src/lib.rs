//! Persistent memory: maps a region of it into the process, makes writes durable, and stores values
//! in a crash-safe log.
//!
//! The crate handles only bytes at offsets. It uses no digests, no images, no network and no async
//! runtime.
//!
//! Layers, from the bytes up:
//!
//! - `sys`: the mapped file, cache-line flushes and SIGBUS; all `unsafe` code.
//! - [`Region`]: a file as a medium.
//! - [`Class`]: the durability of a medium.
//! - [`Medium`]: the trait of a medium. Tests implement it to simulate power cuts.
//! - [`Log`]: key-value log; each value is committed atomically.

// The architecture test checks which modules may allow unsafe code.
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
