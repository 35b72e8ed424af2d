//! The table of contents of an image against a simple model: random layers are merged by both.
#![allow(clippy::unwrap_used, reason = "a test that fails may panic")]

#[path = "image_toc/lookup.rs"]
mod lookup;
#[path = "image_toc/merge.rs"]
mod merge;
#[path = "image_toc/model.rs"]
mod model;
#[path = "image_toc/transfer.rs"]
mod transfer;
