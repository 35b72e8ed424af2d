//! The bundle extension: what a worker lacks of an image in one answer, single files ahead of it, traces of starts.
//!
//! Whoever may pull an image's manifest and layers may have what is in them, and nobody else: each question is put to
//! `access` as the pulls that it stands for.

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
