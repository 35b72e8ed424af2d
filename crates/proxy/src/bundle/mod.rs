//! The bundle extension of the API: bundles of the file contents that a worker lacks, single files
//! of images, and traces of container starts.
//!
//! A client may read the contents of an image exactly if it may pull the manifest and layers of the
//! image. So `access` checks each request of the extension as a pull of that manifest and those
//! layers.

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
