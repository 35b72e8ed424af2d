//! The response for a document (manifest or list) from an upstream, and the validators (digest,
//! ETag) of conditional requests.

use bytes::Bytes;
use http::HeaderMap;
use http::header::{ETAG, WARNING};
use pierhead_oci::{Algorithm, Digest, MediaType};

use crate::error::Error;
use crate::upstream::session::Session;

/// Maximum length in bytes of an `ETag` that is stored with a document.
const MAX_ETAG: usize = 256;

/// Maximum length in bytes of all warnings of one response together. The OCI distribution
/// specification allows 4096 bytes. pierhead allows less, because it keeps the warnings of each tag
/// in memory.
const MAX_WARNINGS: usize = 512;

/// Maximum number of warnings of one response.
const MAX_WARNING_COUNT: usize = 4;

/// The validators of the caller's copy of a document, for a conditional request (RFC 9110, section
/// 8.8).
#[derive(Clone, Debug, Default)]
pub struct Validators {
    /// The digest of the caller's copy.
    pub digest: Option<Digest>,
    /// The `ETag` of the response that contained the caller's copy.
    pub etag: Option<String>,
}

/// The response to a (conditional) request for a document.
#[derive(Clone, Debug)]
pub enum DocumentResponse {
    /// The caller's copy of the document is current.
    NotModified {
        /// The values of the `Warning` headers, for the user of the client.
        warnings: Vec<String>,
    },
    /// The complete document. If its digest was known before, the bytes match the digest.
    Document {
        /// The exact bytes of the document.
        bytes: Bytes,
        /// The `Content-Type` of the response, unchanged.
        media_type: MediaType,
        /// The digest of the bytes, which pierhead computed.
        digest: Digest,
        /// The `ETag`, for the next conditional request.
        etag: Option<String>,
        /// The values of the `Warning` headers, for the user of the client.
        warnings: Vec<String>,
    },
}

impl DocumentResponse {
    /// Returns `NotModified` if the document equals the caller's copy, otherwise the document.
    pub(crate) fn or_not_modified(self, known: &Validators) -> Self {
        match self {
            Self::Document {
                digest, warnings, ..
            } if known.digest == Some(digest) => Self::NotModified { warnings },
            other => other,
        }
    }

    /// Creates the response for a document that pierhead merged from several responses.
    pub(crate) fn of(
        session: &Session,
        bytes: Bytes,
        media_type: &str,
        etag: Option<String>,
        warnings: Vec<String>,
    ) -> Result<Self, Error> {
        let media_type =
            MediaType::new(media_type).ok_or_else(|| session.protocol("no media type"))?;
        let digest = Digest::of(Algorithm::Sha256, &bytes);
        Ok(Self::Document {
            bytes,
            media_type,
            digest,
            etag,
            warnings,
        })
    }
}

/// Returns the `ETag` of a response, unless it is longer than [`MAX_ETAG`].
pub(crate) fn etag(headers: &HeaderMap) -> Option<String> {
    let text = headers.get(ETAG)?.to_str().ok()?;
    (text.len() <= MAX_ETAG).then(|| text.to_owned())
}

/// Returns the `Warning` headers that have the form of the OCI distribution specification: code
/// 299, agent `-`, printable text. Drops further warnings once they exceed [`MAX_WARNINGS`].
pub(crate) fn warnings(headers: &HeaderMap) -> Vec<String> {
    let mut left = MAX_WARNINGS;
    let values = headers.get_all(WARNING).iter();
    let texts = values.filter_map(|value| value.to_str().ok());
    texts
        .filter(|text| text.starts_with("299 - \"") && text.ends_with('"') && text.len() > 8)
        .filter(|text| match left.checked_sub(text.len()) {
            Some(rest) => {
                left = rest;
                true
            }
            None => false,
        })
        .take(MAX_WARNING_COUNT)
        .map(str::to_owned)
        .collect()
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
            warnings: vec!["299 - \"deprecated\"".into()],
        };
        let known = |digest| Validators { digest, etag: None };
        let is_not_modified = |known| matches!(document().or_not_modified(&known), DocumentResponse::NotModified { warnings } if warnings.len() == 1);
        assert!(is_not_modified(known(Some(digest))));
        assert!(!is_not_modified(known(None)));
        let other = Digest::of(Algorithm::Sha256, b"");
        assert!(!is_not_modified(known(Some(other))));
    }

    #[test]
    fn only_warnings_of_the_specification_are_returned_up_to_their_maximum_length() {
        let headers = |values: &[&str]| {
            let value = |value: &&str| (WARNING, HeaderValue::from_str(value).unwrap());
            values.iter().map(value).collect::<HeaderMap>()
        };
        let long = format!("299 - \"{}\"", "l".repeat(MAX_WARNINGS));
        let given = [
            "299 - \"deprecated\"",
            "110 - \"response is stale\"",
            "299 registry.example \"an agent\"",
            "299 - unquoted",
            "299 - \"",
            &long,
            "299 - \"quota\"",
        ];
        let expected = ["299 - \"deprecated\"", "299 - \"quota\""];
        assert_eq!(warnings(&headers(&given)), expected);
        assert!(warnings(&HeaderMap::new()).is_empty());
        let many = ["299 - \"deprecated\""; MAX_WARNING_COUNT + 1];
        assert_eq!(warnings(&headers(&many)).len(), MAX_WARNING_COUNT);
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
