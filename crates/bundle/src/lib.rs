//! The delta bundle on the wire: request, header, frames and patches.
//!
//! This crate does no I/O and starts no thread. The server writes bundles with it, the worker reads them.
//!
//! Layers, from the bytes up: [`Frame`] and [`RecordHead`] (the unit of sending), [`patch`] (frames against
//! older contents), [`mod@format`] (the stream of a bundle), [`api`] (the JSON documents around it).

#![forbid(unsafe_code)]

pub mod api;
pub mod format;
mod frame;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
pub mod patch;

pub use frame::{BaseSlice, Coding, Frame, MAX_BASE, MAX_FRAME, RECORD_HEAD, RecordHead, Slice};
