//! Exports images from a table of contents and a content source: as a root file system, OCI layout or Docker archive.

mod archive;
mod layout;
pub mod rootfs;

pub use archive::archive;
pub use layout::{ImageLabels, ORIGINAL_MANIFEST, RebuiltLayer, layout};
