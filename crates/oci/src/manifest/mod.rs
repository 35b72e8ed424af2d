//! Manifests and indexes: the exact bytes, and what they point to.

mod wire;

use bytes::Bytes;

use crate::{Descriptor, Digest, MediaType, ParseError, Platform};
use wire::Document;

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
    /// Maximum number of layers of an image, or entries of an index.
    pub const MAX_ENTRIES: usize = 4096;
    /// Largest size in bytes (1 TiB) that a descriptor may claim. With [`Manifest::MAX_ENTRIES`]
    /// of them a sum still fits an `i64`.
    pub const MAX_BLOB: u64 = 1 << 40;
    /// How deep indexes may lie in indexes. A document cannot say how deep it lies, so whoever
    /// walks from one manifest to its children counts.
    pub const MAX_DEPTH: usize = 4;

    /// Parses a document. `content_type` is what the upstream said, when it said anything.
    ///
    /// # Errors
    /// Not JSON, too large, not schema 2, a descriptor that cannot be (negative size, unknown
    /// digest algorithm, over 4 096 entries), both an image and an index, or a `mediaType` in it
    /// that contradicts `content_type`.
    ///
    /// # Cost
    /// One pass over the bytes; memory in proportion to the entries, not to the annotations.
    pub fn parse(bytes: Bytes, content_type: Option<&str>) -> Result<Self, ParseError> {
        let document = Document::read(&bytes).map_err(ParseError::Manifest)?;
        let sent =
            content_type.map(|text| MediaType::new(text).ok_or("the content type is malformed"));
        let sent = sent.transpose().map_err(refuse)?;
        let own = match document.media_type.as_deref() {
            None | Some("") => None,
            Some(text) => Some(
                MediaType::new(text)
                    .ok_or("its mediaType is malformed")
                    .map_err(refuse)?,
            ),
        };

        // An upstream that serves everything as application/json says nothing about the kind.
        let telling = sent
            .as_ref()
            .filter(|sent| sent.is_manifest() || sent.is_index());
        if let (Some(telling), Some(own)) = (telling, &own)
            && !telling.essence().eq_ignore_ascii_case(own.essence())
        {
            return Err(refuse(
                "its mediaType is not the content type that it was sent with",
            ));
        }
        let kind = telling.or(own.as_ref());
        let is_index = match kind {
            Some(kind) if kind.is_index() => true,
            Some(kind) if kind.is_manifest() => false,
            _ => document.manifests.is_some(),
        };

        // Whoever reads it as an image and whoever reads it as an index would see two different
        // things under one digest.
        let body = if is_index {
            if document.config.is_some() || document.layers.is_some() {
                return Err(refuse("an index with the fields of an image"));
            }
            Body::Index {
                manifests: document.manifests.unwrap_or_default(),
                subject: document.subject,
            }
        } else {
            if document.manifests.is_some() {
                return Err(refuse("an image with the fields of an index"));
            }
            let config = document
                .config
                .ok_or("neither a config nor manifests")
                .map_err(refuse)?;
            Body::Image {
                config,
                layers: document.layers.unwrap_or_default(),
                subject: document.subject,
            }
        };
        let implied = if is_index {
            MediaType::OCI_INDEX
        } else {
            MediaType::OCI_MANIFEST
        };
        let media_type = sent.or(own).or_else(|| MediaType::new(implied));
        let media_type = media_type.ok_or("no media type").map_err(refuse)?;
        Ok(Self {
            bytes,
            media_type,
            body,
        })
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

    /// What this is attached to, if anything.
    pub fn subject(&self) -> Option<&Descriptor> {
        match &self.body {
            Body::Image { subject, .. } | Body::Index { subject, .. } => subject.as_ref(),
        }
    }

    /// The entry of an index that a machine of this platform runs; `None` when no entry fits, and
    /// for an image. See [`Platform::choose`].
    pub fn choose(&self, platform: &Platform) -> Option<&Descriptor> {
        match &self.body {
            Body::Image { .. } => None,
            Body::Index { manifests, .. } => platform.choose(manifests),
        }
    }
}

fn refuse(why: &str) -> ParseError {
    ParseError::Manifest(why.into())
}
