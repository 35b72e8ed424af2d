//! Exports images as a root file system, OCI layout or Docker archive. The input of an export is a
//! TOC (the table of contents of the image) and a source of file contents.

mod archive;
mod layout;
pub mod rootfs;

pub use archive::archive;
pub use layout::{ImageLabels, ORIGINAL_MANIFEST, RebuiltLayer, layout};
