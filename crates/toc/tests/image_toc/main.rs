//! Property tests of the table of contents of an image: merging, lookups, transfer and files. For
//! merging, the crate and a simple model merge the same random layers, and must agree.
#![allow(clippy::unwrap_used, reason = "a test that fails may panic")]

mod lookup;
mod merge;
mod model;
mod transfer;
