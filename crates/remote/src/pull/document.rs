//! The response for a document (manifest or list) from an upstream, and the validators (digest,
//! ETag) of conditional requests.

use bytes::Bytes;
use http::HeaderMap;
use http::header::ETAG;
use pierhead_oci::{Algorithm, Digest, MediaType};

use crate::error::Error;
use crate::upstream::session::Session;

/// Maximum length in bytes of an `ETag` that is stored with a document.
const MAX_ETAG: usize = 256;

/// The validators of the caller's copy of a document, for a conditional request (RFC 9110, section
/// 8.8).
#[derive(Clone, Debug, Default)]
pub struct Validators {
    /// The digest of the document.
    pub digest: Option<Digest>,
    /// The `ETag` of the response.
    pub etag: Option<String>,
}

/// The response to a (conditional) request for a document.
#[derive(Clone, Debug)]
pub enum DocumentResponse {
    /// The caller's copy is current.
    NotModified,
    /// The complete document, verified against its digest when the digest is known.
    Document {
        /// The exact bytes of the document.
        bytes: Bytes,
        /// The exact `Content-Type`.
        media_type: MediaType,
        /// The digest, computed from the bytes.
        digest: Digest,
        /// The `ETag`, for the next conditional request.
        etag: Option<String>,
    },
}

impl DocumentResponse {
    /// Returns `NotModified` if the document equals the caller's copy, otherwise the document.
    pub(crate) fn unless(self, known: &Validators) -> Self {
        match self {
            Self::Document { digest, .. } if known.digest == Some(digest) => Self::NotModified,
            other => other,
        }
    }

    /// Creates the response for a document that pierhead merged from several responses.
    pub(crate) fn of(
        session: &Session,
        bytes: Bytes,
        media_type: &str,
        etag: Option<String>,
    ) -> Result<Self, Error> {
        let media_type =
            MediaType::new(media_type).ok_or_else(|| session.protocol("no media type"))?;
        let digest = Digest::of(Algorithm::Sha256, &bytes);
        Ok(Self::Document {
            bytes,
            media_type,
            digest,
            etag,
        })
    }
}

/// Returns the `ETag` of a response, unless it is longer than [`MAX_ETAG`].
pub(crate) fn etag(headers: &HeaderMap) -> Option<String> {
    let text = headers.get(ETAG)?.to_str().ok()?;
    (text.len() <= MAX_ETAG).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn a_current_copy_is_not_modified() {
        let bytes = Bytes::from_static(b"{}");
        let digest = Digest::of(Algorithm::Sha256, &bytes);
        let document = || DocumentResponse::Document {
            bytes: bytes.clone(),
            media_type: MediaType::new(MediaType::OCI_INDEX).unwrap(),
            digest,
            etag: None,
        };
        let known = |digest| Validators { digest, etag: None };
        let is_not_modified =
            |known| matches!(document().unless(&known), DocumentResponse::NotModified);
        assert!(is_not_modified(known(Some(digest))));
        assert!(!is_not_modified(known(None)));
        let other = Digest::of(Algorithm::Sha256, b"");
        assert!(!is_not_modified(known(Some(other))));
    }

    #[test]
    fn long_etags_are_not_stored() {
        let with = |length| {
            let value = HeaderValue::try_from("e".repeat(length)).unwrap();
            etag(&HeaderMap::from_iter([(ETAG, value)])).map(|etag| etag.len())
        };
        assert_eq!((with(MAX_ETAG), with(MAX_ETAG + 1)), (Some(MAX_ETAG), None));
        assert_eq!(etag(&HeaderMap::new()), None);
    }
}
