//! Delta bundles on the server: directory of images, packs and plans.
//!
//! It knows no cache, no network and no async runtime. It reads layers through `pierhead_toc::Blobs`.
//!
//! Layers, from the bytes up: `pack` (contents as compressed frames), `plan` (what to send), `directory`
//! (what is known of each image), `server` (the work in the background, and the bundles).

#![forbid(unsafe_code)]

mod directory;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
pub mod pack;
pub mod plan;
mod server;

pub use server::{
    Bundle, BundleServer, Config, HotRanges, Image, Piece, RECENT_MEMORY, RecordedTrace,
    RequestBase, SentFile, Stat, State, Stream, UnlimitedWrites, WORKER_MEMORY, WriteBudget,
};
