//! Manifests and indexes of images: their exact bytes, and the descriptors that they contain.

mod wire;

use bytes::Bytes;

use crate::{Descriptor, Digest, MediaType, ParseError, Platform};
use wire::Document;

/// A manifest or an index. pierhead keeps the bytes unchanged and never serializes the document
/// again, because the digest depends on each byte.
#[derive(Clone, Debug)]
pub struct Manifest {
    /// The exact bytes of the document, at most [`Manifest::MAX_SIZE`].
    pub bytes: Bytes,
    /// The media type, from the `Content-Type` of the response, or, without this header, from the
    /// document.
    pub media_type: MediaType,
    /// The descriptors in the document.
    pub body: Body,
}

/// The descriptors in a [`Manifest`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Body {
    /// The document is the manifest of one image or artifact.
    Image {
        /// The descriptor of the config blob.
        config: Descriptor,
        /// The descriptors of the layers, lowest layer first.
        layers: Vec<Descriptor>,
        /// The manifest to which this image is attached, if there is one.
        subject: Option<Descriptor>,
    },
    /// The document is an index: it lists several manifests, one for each platform or purpose.
    Index {
        /// The manifests in the order of the document.
        manifests: Vec<Descriptor>,
        /// The manifest to which this index is attached, if there is one.
        subject: Option<Descriptor>,
    },
}

impl Manifest {
    /// Maximum number of bytes of a manifest. The specification requires registries to accept 4
    /// MiB.
    pub const MAX_SIZE: usize = 4 << 20;
    /// Maximum number of layers of an image, or entries of an index.
    pub const MAX_ENTRIES: usize = 4096;
    /// Maximum size in bytes (1 TiB) that a descriptor may state. The sum of
    /// [`Manifest::MAX_ENTRIES`] such sizes fits into an `i64`.
    pub const MAX_BLOB: u64 = 1 << 40;
    /// Maximum nesting depth of indexes in indexes. The code that visits the children of a manifest
    /// counts the depth.
    pub const MAX_DEPTH: usize = 4;

    /// Parses a document. `content_type` is the value of this header in the response, if the
    /// response has this header.
    ///
    /// # Errors
    /// - The document is too large, is no JSON or has another schema version than 2.
    /// - A descriptor is invalid: a negative size, an unknown digest algorithm.
    /// - There are more than 4,096 entries.
    /// - The document has the fields of both an image and an index.
    /// - The `mediaType` in the document contradicts `content_type`.
    ///
    /// # Cost
    /// The parser makes one pass over the bytes. The parser needs memory in proportion to the
    /// number of entries, but not to the length of annotations.
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

        // A generic type such as application/json does not tell whether the document is a manifest
        // or an index.
        let specific = sent
            .as_ref()
            .filter(|sent| sent.is_manifest() || sent.is_index());
        if let (Some(specific), Some(own)) = (specific, &own)
            && !specific.essence().eq_ignore_ascii_case(own.essence())
        {
            return Err(refuse(
                "its mediaType differs from the Content-Type of the response",
            ));
        }
        let kind = specific.or(own.as_ref());
        let is_index = match kind {
            Some(kind) if kind.is_index() => true,
            Some(kind) if kind.is_manifest() => false,
            _ => document.manifests.is_some(),
        };

        // A document with both sets of fields would be an image for one reader and an index for
        // another, under the same digest.
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

    /// Computes the digest of the bytes, in one pass.
    pub fn digest(&self) -> Digest {
        Digest::of(crate::Algorithm::Sha256, &self.bytes)
    }

    /// Returns the descriptors that a pull may request: the config and layers of an image, or the
    /// manifests of an index. The subject of a manifest is not included.
    pub fn children(&self) -> impl Iterator<Item = &Descriptor> {
        let (first, rest) = match &self.body {
            Body::Image { config, layers, .. } => (Some(config), layers),
            Body::Index { manifests, .. } => (None, manifests),
        };
        first.into_iter().chain(rest)
    }

    /// Returns the manifest to which this manifest is attached, if there is one.
    pub fn subject(&self) -> Option<&Descriptor> {
        match &self.body {
            Body::Image { subject, .. } | Body::Index { subject, .. } => subject.as_ref(),
        }
    }

    /// Chooses the entry of an index for a machine of this platform. `None` if no entry fits, and
    /// for a manifest that is no index. The rules of the choice are in [`Platform::choose`].
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
