//! Manifests and indexes: the exact bytes, and what they point to.

use bytes::Bytes;

use crate::{Descriptor, Digest, MediaType, ParseError};

/// A manifest or an index. The bytes are kept as they came and are never written anew: their
/// digest is what everybody agreed upon.
#[derive(Clone, Debug)]
pub struct Manifest {
    /// The exact bytes; at most [`Manifest::MAX_SIZE`].
    pub bytes: Bytes,
    /// As the upstream's `Content-Type` says, else as the document says.
    pub media_type: MediaType,
    /// What it points to.
    pub body: Body,
}

/// What a [`Manifest`] points to.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Body {
    /// One image or artifact.
    Image {
        /// The config blob.
        config: Descriptor,
        /// The layers, base first.
        layers: Vec<Descriptor>,
        /// What this is attached to, if anything.
        subject: Option<Descriptor>,
    },
    /// Several manifests, one a platform or purpose.
    Index {
        /// In the document's order.
        manifests: Vec<Descriptor>,
        /// What this is attached to, if anything.
        subject: Option<Descriptor>,
    },
}

impl Manifest {
    /// The spec asks registries to take at least 4 MiB; more is refused unread.
    pub const MAX_SIZE: usize = 4 << 20;

    /// Parses a document. `content_type` is what the upstream said, when it said anything.
    ///
    /// # Errors
    /// Not JSON, too large, not schema 2, a descriptor that cannot be (negative size, unknown
    /// digest algorithm, over 4 096 entries), or a `mediaType` in it that contradicts `content_type`.
    pub fn parse(_bytes: Bytes, _content_type: Option<&str>) -> Result<Self, ParseError> {
        todo!()
    }

    /// The digest of the bytes. One pass over them.
    pub fn digest(&self) -> Digest {
        Digest::of(crate::Algorithm::Sha256, &self.bytes)
    }

    /// All that it points to and that a pull of it may ask for: config and layers, or children.
    /// The subject is not among them.
    pub fn children(&self) -> impl Iterator<Item = &Descriptor> {
        let (first, rest) = match &self.body {
            Body::Image { config, layers, .. } => (Some(config), layers),
            Body::Index { manifests, .. } => (None, manifests),
        };
        first.into_iter().chain(rest)
    }
}
