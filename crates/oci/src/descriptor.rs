//! Descriptors: the digest, size and media type by which a manifest refers to a blob or another
//! manifest.

use crate::{Digest, MediaType, Platform};

/// A reference to content: its digest, size and media type. The size is the value that the manifest
/// states. pierhead has not compared this size with the content.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Descriptor {
    /// The media type of the content.
    pub media_type: MediaType,
    /// The digest of the content.
    pub digest: Digest,
    /// The size in bytes that the manifest states.
    pub size: u64,
    /// The platform of the image, if the descriptor is an entry of an index.
    pub platform: Option<Platform>,
}
