//! The read operations of the registry client: manifests, blobs, tags, referrers, access checks and
//! probes.

pub(crate) mod access;
pub(crate) mod blob;
pub(crate) mod blob_stream;
pub(crate) mod document;
pub(crate) mod manifest;
pub(crate) mod pages;
pub(crate) mod probe;
pub(crate) mod referrers;
pub(crate) mod tags;
