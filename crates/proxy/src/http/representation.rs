//! Builds the response for a manifest, blob or list (a representation, RFC 9110): conditional
//! requests, ranges, headers.

use bytes::Bytes;
use http::header::{
    ACCEPT_RANGES, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG, IF_NONE_MATCH,
};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use pierhead_oci::Digest;

use crate::error::Error;
use crate::http::body::Body;
use crate::http::range::{Selection, matches_etag, select};
use crate::http::respond::{self, DOCKER_CONTENT_DIGEST};
use crate::metrics::CacheOutcome;
use crate::pull::blob::BlobSource;

/// A representation: a manifest, blob or list with which pierhead responds.
pub(crate) struct Representation {
    /// The size in bytes. `None`: the size is known only at the end of the content.
    size: Option<u64>,
    content: Content,
}

enum Content {
    /// No content, because a response to HEAD has only the headers of a response to GET.
    None,
    Bytes(Bytes),
    Source(Box<BlobSource>),
}

impl Representation {
    pub(crate) fn head(size: Option<u64>) -> Self {
        Self {
            size,
            content: Content::None,
        }
    }

    pub(crate) fn bytes(bytes: Bytes) -> Self {
        Self {
            size: u64::try_from(bytes.len()).ok(),
            content: Content::Bytes(bytes),
        }
    }

    pub(crate) fn of(source: BlobSource, size: Option<u64>) -> Self {
        Self {
            size,
            content: Content::Source(Box::new(source)),
        }
    }

    /// Builds the response according to the request's headers. The response never has a content
    /// encoding, because the digest is computed over the bytes without any encoding.
    pub(crate) async fn respond(
        self,
        headers: &HeaderMap,
        digest: &Digest,
        content_type: &str,
        outcome: CacheOutcome,
    ) -> Result<Response<Body>, Error> {
        let tag = Bytes::from(format!("\"{digest}\""));
        let is_not_modified = headers.contains_key(IF_NONE_MATCH) && matches_etag(headers, &tag);
        let selection = match (self.size, &self.content) {
            // RFC 9110 defines Range only for GET. If the size is unknown, a range cannot be
            // evaluated.
            (_, Content::None) | (None, _) => Selection::Whole,
            (Some(size), _) => select(headers, &tag, size),
        };
        let (status, selection) = match selection {
            _ if is_not_modified => (StatusCode::NOT_MODIFIED, None),
            Selection::Whole => (StatusCode::OK, Some(selection)),
            Selection::Part { .. } => (StatusCode::PARTIAL_CONTENT, Some(selection)),
            Selection::Unsatisfiable => (StatusCode::RANGE_NOT_SATISFIABLE, Some(selection)),
        };
        let length = match selection {
            Some(Selection::Part { first, last }) => Some(last - first + 1),
            Some(Selection::Unsatisfiable) => Some(0),
            _ if self.is_wrongly_empty(digest) => None,
            _ => self.size,
        };
        // The headers are added to a map, because a response builder would be moved for each
        // header.
        let mut response_headers = respond::headers(outcome);
        let added = self.add_headers(&mut response_headers, tag, content_type, selection, length);
        if let Err(error) = added {
            return Ok(respond::internal_error(&error));
        }
        let body = match (self.content, selection) {
            (Content::None, _) | (_, None | Some(Selection::Unsatisfiable)) => Body::empty(),
            (Content::Bytes(bytes), Some(Selection::Part { first, last })) => {
                Body::bytes(part(&bytes, first, last))
            }
            (Content::Bytes(bytes), _) => Body::bytes(bytes),
            (Content::Source(source), Some(Selection::Part { first, last })) => {
                let part = source.in_range(first, last + 1).await?;
                Body::stream(Box::new(part), length)
            }
            (Content::Source(source), _) => Body::stream(source, length),
        };
        let mut response = Response::new(body);
        (*response.status_mut(), *response.headers_mut()) = (status, response_headers);
        Ok(response)
    }

    /// Whether this response to HEAD has the length 0 of an upstream, although the empty content has
    /// another digest. Some upstreams send this length if they do not know the length.
    fn is_wrongly_empty(&self, digest: &Digest) -> bool {
        matches!((&self.content, self.size), (Content::None, Some(0)))
            && Digest::of(digest.algorithm(), b"") != *digest
    }

    /// Adds the headers for the selected bytes; `length` is their number. If the client already has
    /// the representation, `selection` is `None`. This function cannot fail, because all parts are
    /// constants or validated values.
    fn add_headers(
        &self,
        headers: &mut HeaderMap,
        tag: Bytes,
        content_type: &str,
        selection: Option<Selection>,
        length: Option<u64>,
    ) -> Result<(), http::Error> {
        // The ETag and the digest header share one allocation.
        let digest = tag.slice(1..tag.len() - 1);
        let digest = HeaderValue::from_maybe_shared(digest)?;
        headers.insert(DOCKER_CONTENT_DIGEST, digest);
        headers.insert(ETAG, HeaderValue::from_maybe_shared(tag)?);
        headers.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
        let range = match (selection, self.size) {
            (None, _) => return Ok(()),
            (Some(Selection::Unsatisfiable), size) => {
                Some(format!("bytes */{}", size.unwrap_or_default()))
            }
            (Some(Selection::Part { first, last }), Some(size)) => {
                Some(format!("bytes {first}-{last}/{size}"))
            }
            _ => None,
        };
        if let Some(range) = range {
            headers.insert(CONTENT_RANGE, range.try_into()?);
        }
        if !matches!(selection, Some(Selection::Unsatisfiable)) {
            headers.insert(CONTENT_TYPE, content_type.try_into()?);
        }
        if let Some(length) = length {
            headers.insert(CONTENT_LENGTH, length.into());
        }
        Ok(())
    }
}

fn part(bytes: &Bytes, first: u64, last: u64) -> Bytes {
    let index = |offset: u64| {
        usize::try_from(offset)
            .unwrap_or(usize::MAX)
            .min(bytes.len())
    };
    bytes.slice(index(first)..index(last + 1))
}
