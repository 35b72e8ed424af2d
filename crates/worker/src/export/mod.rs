//! Exports images as a root file system, OCI layout or Docker archive. The input is a TOC and a
//! source of contents.

mod archive;
mod layout;
pub mod rootfs;

pub use archive::archive;
pub use layout::{ImageLabels, ORIGINAL_MANIFEST, RebuiltLayer, layout};
