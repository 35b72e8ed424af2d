//! Server side of delta updates of container images: makes bundles, which contain the file contents
//! and patches that a client lacks.
//!
//! The crate depends on no cache, no network and no async runtime. The crate reads the layers of
//! images through the trait `pierhead_toc::Blobs`.
//!
//! Modules, from the bottom up: `pack` (stores file contents as compressed frames), `plan` (decides
//! which compressed frames a bundle has), `image_database` (the images and the locations of packed
//! contents), `server` (background work and bundles).

#![forbid(unsafe_code)]

mod clock;
mod error;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod image_database;
pub mod pack;
pub mod plan;
mod server;

pub use error::Error;
pub use server::{
    Bundle, BundleServer, Config, HotRanges, INDEXER_MEMORY, Image, MAX_TOC_MEMORY, Piece,
    RECENT_MEMORY, RankedBases, RecordedTrace, RequestBase, SentFile, Stat, State, Stream,
    UnlimitedWrites, WriteBudget,
};
