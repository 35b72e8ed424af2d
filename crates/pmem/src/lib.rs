//! Persistent memory: a region of it, how what was written gets there for good, and what it may be
//! called.
//!
//! It knows no digest, no image, no network and no async runtime: bytes at offsets.
//!
//! Layers, from the bytes up: `sys` (the mapped file, its flushes and faults: all that is unsafe),
//! [`Region`] (a medium of them), [`Class`] (what a medium promises), [`Medium`] (the seam where
//! power is cut), [`Log`] (values that are committed whole or not at all).

// What is excepted stands in the architecture test, which sees to it.
#![deny(unsafe_code)]
#![deny(unsafe_op_in_unsafe_fn, clippy::undocumented_unsafe_blocks)]

mod backing;
mod class;
mod create;
mod error;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod log;
mod looked;
mod medium;
mod region;
#[cfg(any(test, feature = "shadow"))]
pub mod shadow;
mod sys;

pub use backing::{TMPFS, is_memory};
pub use class::Class;
pub use error::{Error, Fault};
pub use log::{
    Entry, Extent, Found, Log, MAX_KEY, MAX_META, Options, Partial, Recovered, SEGMENTS, Writer,
};
pub use medium::Medium;
pub use region::{Config, Region, Report};
