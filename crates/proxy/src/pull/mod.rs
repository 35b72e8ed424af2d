//! Gets manifests, lists and blobs for requests: from the cache or from the upstream, or a stale
//! copy if the upstream fails.

pub(crate) mod blob;
pub(crate) mod blob_connection;
pub(crate) mod blob_request;
pub(crate) mod blob_size;
pub(crate) mod cached_image;
pub(crate) mod claim;
pub(crate) mod connection_controller;
pub(crate) mod document;
pub(crate) mod download;
pub(crate) mod download_costs;
pub(crate) mod download_log;
pub(crate) mod download_slot;
pub(crate) mod extra_connections;
#[cfg(test)]
pub(crate) mod fill_fixture;
pub(crate) mod fill_owner;
pub(crate) mod fill_ranges;
pub(crate) mod first_range;
pub(crate) mod front;
pub(crate) mod lists;
pub(crate) mod manifest;
pub(crate) mod manifest_type;
pub(crate) mod negative_cache;
pub(crate) mod pending_claims;
pub(crate) mod range_reader;
pub(crate) mod resolve;
pub(crate) mod shared_download;
pub(crate) mod tag_page;
pub(crate) mod transfer;
pub(crate) mod waiting_ranges;
pub(crate) mod warm;
