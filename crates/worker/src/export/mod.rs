//! Images written out of a table and a source of contents, in the forms that others take.

mod archive;
mod layout;
pub mod rootfs;

pub use archive::archive;
pub use layout::{Names, ORIGINAL, Rebuilt, layout};
