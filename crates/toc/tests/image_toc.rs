//! Property tests of the table of contents of an image: merging, lookups, transfer and files. For
//! merging, the crate and a simple model merge the same random layers, and must agree.
#![allow(clippy::unwrap_used, reason = "a test that fails may panic")]

#[path = "image_toc/lookup.rs"]
mod lookup;
#[path = "image_toc/merge.rs"]
mod merge;
#[path = "image_toc/model.rs"]
mod model;
#[path = "image_toc/transfer.rs"]
mod transfer;
