//! Describes the file contents of layers and images. The crate has the index of a layer, the table
//! of contents (TOC) of an image, and file digests.
//!
//! The bundle server and the worker share this crate. The crate depends on no cache, no network and
//! no async runtime. The crate reads layers through [`Blob`] and file contents through [`Source`].
//!
//! Modules, from the bottom up: [`FileDigest`] and [`Entry`] (basic types), [`layer`] (the index of
//! one layer), [`image_toc`] (the TOC of an image), [`Tree`] (the files of an image by path).

#![forbid(unsafe_code)]

mod entry;
mod error;
mod file_digest;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
pub mod image_toc;
pub mod layer;
mod source;
mod toc_view;
mod tree;
pub mod varint;

pub use entry::{Entry, Kind, Time};
pub use error::{Error, Fault, is_exhausted};
pub use file_digest::FileDigest;
pub use image_toc::ImageToc;
pub use source::{Blob, Blobs, FileBlob, Source};
pub use toc_view::TocView;
pub use tree::{Leaf, Tree};
