//! One representation on its way out: conditional requests, ranges and the headers of content.

use bytes::Bytes;
use http::header::{
    ACCEPT_RANGES, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG, IF_NONE_MATCH,
};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use pierhead_oci::Digest;

use crate::Error;
use crate::body::Body;
use crate::metrics::Outcome;
use crate::range::{Selection, is_known, select};
use crate::respond::{DOCKER_CONTENT_DIGEST, finish, respond};
use crate::source::Source;

/// See the head of this module.
pub(crate) struct Entity {
    /// `None` when it will be known at the end only.
    size: Option<u64>,
    content: Content,
}

enum Content {
    /// Of a HEAD: the headers of a GET, and nothing else.
    None,
    Bytes(Bytes),
    Source(Box<Source>),
}

impl Entity {
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

    pub(crate) fn of(source: Source, size: Option<u64>) -> Self {
        Self {
            size,
            content: Content::Source(Box::new(source)),
        }
    }

    /// The answer that the request's headers ask for. Never content-encoded: digests are of these bytes.
    pub(crate) async fn respond(
        self,
        headers: &HeaderMap,
        digest: &Digest,
        content_type: &str,
        outcome: Outcome,
    ) -> Result<Response<Body>, Error> {
        let digest = digest.to_string();
        let etag = format!("\"{digest}\"");
        let known = headers.contains_key(IF_NONE_MATCH) && is_known(headers, &etag);
        let selection = match (self.size, &self.content) {
            // Range is defined for GET only, and unknown sizes have no end to count from.
            (_, Content::None) | (None, _) => Selection::Whole,
            (Some(size), _) => select(headers, &etag, size),
        };
        let status = match selection {
            _ if known => StatusCode::NOT_MODIFIED,
            Selection::Whole => StatusCode::OK,
            Selection::Part { .. } => StatusCode::PARTIAL_CONTENT,
            Selection::Unsatisfiable => StatusCode::RANGE_NOT_SATISFIABLE,
        };
        let builder = respond(status, outcome)
            .header(DOCKER_CONTENT_DIGEST, digest)
            .header(ETAG, etag)
            .header(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
        if known {
            return Ok(finish(builder, Body::empty()));
        }
        let builder = match (selection, self.size) {
            (Selection::Unsatisfiable, size) => {
                let range = format!("bytes */{}", size.unwrap_or_default());
                return Ok(finish(
                    builder
                        .header(CONTENT_RANGE, range)
                        .header(CONTENT_LENGTH, 0),
                    Body::empty(),
                ));
            }
            (Selection::Part { first, last }, Some(size)) => {
                builder.header(CONTENT_RANGE, format!("bytes {first}-{last}/{size}"))
            }
            _ => builder,
        };
        let length = match selection {
            Selection::Part { first, last } => Some(last - first + 1),
            _ => self.size,
        };
        let builder = builder.header(CONTENT_TYPE, content_type);
        let builder = match length {
            Some(length) => builder.header(CONTENT_LENGTH, length),
            None => builder,
        };
        let body = match (self.content, selection) {
            (Content::None, _) => Body::empty(),
            (Content::Bytes(bytes), Selection::Part { first, last }) => {
                Body::bytes(part(&bytes, first, last))
            }
            (Content::Bytes(bytes), _) => Body::bytes(bytes),
            (Content::Source(mut source), Selection::Part { first, last }) => {
                source.only(first, last + 1).await?;
                Body::stream(source, length)
            }
            (Content::Source(source), _) => Body::stream(source, length),
        };
        Ok(finish(builder, body))
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
