//! Layer index, directory database and delta bundles: just the file contents that a worker lacks.
//!
//! It knows no cache, no network and no async runtime: layers are read through [`Blobs`], contents through
//! [`Source`], on the server and on the worker alike.
//!
//! Layers, from the bytes up: [`Content`] and [`Entry`] (the words), `layer` (one pass over a layer),
//! `table` (an image's merged view), `pack` (contents as compressed frames), `plan` and `patch` (what to send),
//! `format` (the bundle on the wire), `store` and `export` (the worker's side), `directory` and `library`
//! (what the server knows, and the work in the background).

#![forbid(unsafe_code)]

pub mod api;
mod content;
mod directory;
mod durable;
mod entry;
mod error;
pub mod export;
pub mod format;
mod frame;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
pub mod layer;
pub mod library;
pub mod pack;
pub mod patch;
pub mod plan;
mod source;
pub mod store;
pub mod table;
mod varint;

pub use content::Content;
pub use entry::{Entry, Kind, Time};
pub use error::{Error, Fault};
pub use frame::{Base, Coding, Frame, MAX_BASE, MAX_FRAME, Place, RECORD_HEAD, RecordHead, Slice};
pub use source::{Blob, Blobs, FileBlob, Source};
pub use table::Table;
