//! Gets manifests, lists and blobs for requests: from the cache or from the upstream, or a stale
//! copy if the upstream fails.

pub(crate) mod blob;
pub(crate) mod blob_request;
pub(crate) mod blob_size;
pub(crate) mod cached_image;
pub(crate) mod claim;
pub(crate) mod direct_download;
pub(crate) mod document;
pub(crate) mod download;
pub(crate) mod download_costs;
pub(crate) mod download_log;
#[cfg(test)]
pub(crate) mod fill_fixture;
pub(crate) mod fill_owner;
pub(crate) mod lists;
pub(crate) mod manifest;
pub(crate) mod manifest_type;
pub(crate) mod negative_cache;
pub(crate) mod resolve;
pub(crate) mod tag_page;
pub(crate) mod warm;
