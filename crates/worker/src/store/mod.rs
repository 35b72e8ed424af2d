//! The image store of a worker: one file for each file content, and one folder for each complete
//! image and for each unfinished fetch (transfer of a bundle).
//!
//! ```text
//! DIR/version      the version of this layout
//! DIR/lock         flock: shared by each user of the store, exclusive for recovery and collection
//! DIR/unsynced     the boot ID of the system that wrote contents which are not synced yet
//! DIR/contents/ab/ab…   sealed files, see `content_dir`
//! DIR/stamps       stamps of files that exported trees share, see `stamps`
//! DIR/NAME, DIR/NAME.lock   a document of the caller (`pulled.json`), and its write lock
//! DIR/images/HEX/  manifest, config, table (the TOC), image.json of a complete image
//! DIR/fetches/HEX/ an unfinished fetch, see `fetch_dir`
//! ```
//!
//! A seal is an mtime that the store derives from the digest. A seal marks a file whose bytes the
//! store verified when it wrote the file.
//! Seals are reliable until the system crashes. After a crash of the system, the store hashes again
//! every content that belongs to no complete image.

mod apply;
mod content_dir;
mod content_writer;
mod fetch;
mod fetch_dir;
mod folder;
mod image;
mod image_store;
mod maintenance;
mod partial_file;
mod stamps;
#[cfg(test)]
pub(crate) mod tests;

pub use apply::{Apply, ApplyCounts, ApplyOutcome, CompleteImage, TransferCount};
pub use content_writer::ContentWriter;
pub use fetch::{NewFetch, decode_toc};
pub use folder::{FolderKind, kind};
pub use image::Image;
pub use image_store::{Store, StoredImage};
pub use maintenance::{CollectReport, VerifyReport};
