//! Descriptors: what a manifest says of the content that it points to.

use crate::{Digest, MediaType, Platform};

/// A pointer to content: its digest, size in bytes and media type. Not to be believed before the
/// content is there: the size is what somebody wrote.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Descriptor {
    /// What the content is.
    pub media_type: MediaType,
    /// The content's digest.
    pub digest: Digest,
    /// Its size in bytes, as claimed.
    pub size: u64,
    /// For which machine it is, in an index.
    pub platform: Option<Platform>,
}
