//! The wire format of delta bundles: responses with the file contents of a container image that a
//! worker lacks, whole or as patches. The crate has the requests, the header, the frames and the
//! patches.
//!
//! The crate does no I/O and starts no thread. The server writes bundles with this crate, and the
//! worker reads bundles with it.
//!
//! Modules, from the bottom up: [`Frame`] and [`RecordHead`] (the unit of sending), [`patch`]
//! (compression of frames against older contents), [`mod@format`] (the byte stream of a bundle),
//! [`api`] (JSON requests and responses).

#![forbid(unsafe_code)]

pub mod api;
mod error;
pub mod format;
mod frame;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
pub mod patch;

pub use error::Error;
pub use frame::{BaseSlice, Coding, Frame, MAX_BASE, MAX_FRAME, RECORD_HEAD, RecordHead, Slice};
