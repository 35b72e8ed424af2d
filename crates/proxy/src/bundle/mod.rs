//! The bundle extension of the API: bundles (only the file contents that a worker lacks), single
//! files of images, and traces of the files that container starts open.
//!
//! A client may read the contents of an image exactly if it may pull the manifest and layers of the
//! image. For this reason, `access` checks each request of the extension in the same way as pulls
//! of the manifest and the layers of the image.

pub(crate) mod background_pulls;
pub(crate) mod cache_blobs;
pub(crate) mod handler;
pub(crate) mod hot_ranges;
pub(crate) mod image_pull;
pub(crate) mod image_watch;
pub(crate) mod pending_images;
pub(crate) mod plan_slots;
pub(crate) mod record_stream;
pub(crate) mod request;
pub(crate) mod stored_images;
