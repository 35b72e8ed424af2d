//! The bundle extension: bundles of the file contents that a worker lacks, single files, and traces of container starts.
//!
//! A client may read the contents of an image exactly when it may pull its manifest and layers. So `access` checks each
//! request as a pull of these.

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
