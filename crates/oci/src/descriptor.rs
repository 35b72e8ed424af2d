//! Descriptors: the references of a manifest to content.

use crate::{Digest, MediaType, Platform};

/// A reference to content: its digest, size and media type. The size is not verified: it is the
/// value in the manifest.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Descriptor {
    /// The media type of the content.
    pub media_type: MediaType,
    /// The digest of the content.
    pub digest: Digest,
    /// The stated size in bytes.
    pub size: u64,
    /// The platform of the image, in an index.
    pub platform: Option<Platform>,
}
