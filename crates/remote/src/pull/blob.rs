//! Requests the bytes of a blob from an offset on, and handles the different ways in which
//! upstreams respond to a range request. Also requests a bounded range of a blob, and the size of a
//! blob.

use std::ops::Range;
use std::sync::Arc;

use http::header::{CONTENT_LENGTH, CONTENT_RANGE, ETAG, IF_RANGE, RANGE};
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use hyper::body::Incoming;
use pierhead_oci::{Digest, Repository};

use crate::auth::authenticate::request;
use crate::error::Error;
use crate::exchange::content_range::ContentRange;
use crate::exchange::{UpstreamResponse, refusal, require_identity};
use crate::metrics::{Operation, RequestKind};
use crate::upstream::failover::{Candidates, in_order_of_preference, try_hosts};
use crate::upstream::host::RegistryHost;
use crate::upstream::retry::RetryPolicy;
use crate::upstream::session::Session;

/// The violation of a 206 without `Content-Length`, or with another length than its range.
const OTHER_LENGTH: &str = "the length and the range of its response differ";

/// The request for a blob or a bounded range of a blob, and the hosts that may have the blob.
#[derive(Clone)]
pub(crate) struct BlobRequest {
    pub(crate) candidates: Candidates,
    repository: Repository,
    digest: Digest,
    path: String,
    requested: RequestedBytes,
}

/// The bytes of a blob that a request asks for.
#[derive(Clone)]
enum RequestedBytes {
    /// All bytes from the offset on.
    Rest,
    /// The bytes from the offset on, up to the end of a range of a known version of the blob.
    Bounded(BoundedRange),
    /// A range of a blob of which no version is known.
    Unversioned(RangeSpec),
}

/// A range of bytes as a client requests it, before the size of the blob is known (RFC 9110,
/// section 14.1.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RangeSpec {
    /// The bytes from `first` to `last`, inclusive. Without `last`, the range ends with the blob.
    Int {
        /// Offset of the first byte.
        first: u64,
        /// Offset of the last byte, which may be behind the blob.
        last: Option<u64>,
    },
    /// This number of bytes at the end of the blob.
    Suffix(u64),
}

impl RangeSpec {
    /// Returns the selected bytes of a blob of `size` bytes. The range is empty if it selects no
    /// byte.
    pub fn within(self, size: u64) -> Range<u64> {
        match self {
            Self::Int { first, last } => {
                let end = last.map_or(size, |last| last.saturating_add(1).min(size));
                first.min(end)..end
            }
            Self::Suffix(count) => size.saturating_sub(count)..size,
        }
    }

    fn header(self) -> String {
        match self {
            Self::Int { first, last } => {
                let last = last.map(|last| last.to_string()).unwrap_or_default();
                format!("bytes={first}-{last}")
            }
            Self::Suffix(count) => format!("bytes=-{count}"),
        }
    }
}

/// The end of a requested range, and the version of the blob to which the range must belong.
#[derive(Clone)]
struct BoundedRange {
    end: u64,
    version: BlobVersion,
}

/// The version of a blob that one response of an upstream stated: the size, and the strong ETag of
/// the host that sent the response. Every range of the blob must belong to this version
/// ([`Client::blob_range`](crate::Client::blob_range)).
#[derive(Clone)]
pub struct BlobVersion {
    pub(crate) size: u64,
    /// The host that sent the ETag. An ETag says nothing about the responses of other hosts.
    pub(crate) host: Arc<RegistryHost>,
    pub(crate) etag: Option<HeaderValue>,
}

impl BlobVersion {
    /// Size of the blob in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Returns the strong ETag that this host sent.
    fn etag_of(&self, host: &Arc<RegistryHost>) -> Option<&HeaderValue> {
        self.etag.as_ref().filter(|_| Arc::ptr_eq(&self.host, host))
    }
}

/// An open response with the bytes of a blob from an offset on.
pub(crate) struct OpenedBlob {
    /// The host that responded, with the identity of the request.
    pub(crate) session: Session,
    pub(crate) body: Option<Incoming>,
    /// Offset of the first byte that the caller gets.
    pub(crate) start: u64,
    /// Offset behind the last byte of the response. `None`: the response ends with the blob.
    pub(crate) end: Option<u64>,
    /// Number of bytes to discard, because the upstream's response began before the offset.
    pub(crate) skip: u64,
    pub(crate) size: Option<u64>,
    /// The strong ETag of the response.
    pub(crate) etag: Option<HeaderValue>,
}

impl BlobRequest {
    pub(crate) fn new(candidates: Candidates, repository: &Repository, digest: &Digest) -> Self {
        Self {
            candidates,
            repository: repository.clone(),
            digest: *digest,
            path: format!("/v2/{repository}/blobs/{digest}"),
            requested: RequestedBytes::Rest,
        }
    }

    /// Creates the request for a range of a blob of which no version is known.
    pub(crate) fn unversioned(self, range: RangeSpec) -> Self {
        Self {
            requested: RequestedBytes::Unversioned(range),
            ..self
        }
    }

    /// Creates the request for all bytes from an offset on.
    pub(crate) fn rest(self) -> Self {
        Self {
            requested: RequestedBytes::Rest,
            ..self
        }
    }

    /// Creates the request for the bytes before `end` of this version of the blob.
    pub(crate) fn bounded(self, end: u64, version: BlobVersion) -> Self {
        Self {
            requested: RequestedBytes::Bounded(BoundedRange { end, version }),
            ..self
        }
    }

    fn bounded_range(&self) -> Option<&BoundedRange> {
        match &self.requested {
            RequestedBytes::Bounded(bounded) => Some(bounded),
            _ => None,
        }
    }

    pub(crate) fn digest(&self) -> &Digest {
        &self.digest
    }

    async fn ask(
        &self,
        session: &Session,
        method: &Method,
        offset: u64,
    ) -> Result<UpstreamResponse, Error> {
        let mut headers = HeaderMap::new();
        let range = match &self.requested {
            RequestedBytes::Bounded(bounded) => {
                Some(format!("bytes={offset}-{}", bounded.end.saturating_sub(1)))
            }
            RequestedBytes::Unversioned(range) => Some(range.header()),
            RequestedBytes::Rest => (offset > 0).then(|| format!("bytes={offset}-")),
        };
        if let Some(range) = range {
            let range = HeaderValue::try_from(range);
            headers.insert(RANGE, range.map_err(|_| session.protocol("no range"))?);
        }
        let version = self.bounded_range().map(|bounded| &bounded.version);
        if let Some(etag) = version.and_then(|version| version.etag_of(&session.host)) {
            headers.insert(IF_RANGE, etag.clone());
        }
        let uri = session.url(&self.path)?;
        request(
            session,
            RequestKind::Blob,
            method,
            uri,
            headers,
            &self.repository,
        )
        .await
    }

    /// Requests all bytes from `offset` on. `known` is the size that an earlier response stated.
    /// `last` is the host at which the previous attempt has just failed.
    pub(crate) async fn open(
        &self,
        policy: RetryPolicy,
        last: Option<&RegistryHost>,
        offset: u64,
        known: Option<u64>,
    ) -> Result<OpenedBlob, Error> {
        let operation = Operation::get(RequestKind::Blob);
        // Hosts with a penalty are asked later. A digest mismatch is a higher penalty than a broken
        // connection, and a broken connection is a higher penalty than empty bodies.
        let penalty = |host: &RegistryHost| {
            let failed = last.is_some_and(|last| std::ptr::eq(last, host));
            let mismatched = host.mismatches.contains(&self.digest);
            let empty = host.health.is_sending_empty_bodies();
            4 * u8::from(mismatched) + 2 * u8::from(failed) + u8::from(empty)
        };
        let requested = (operation, &self.repository);
        try_hosts(&self.candidates, requested, policy, penalty, |session| {
            self.open_in(session, offset, known)
        })
        .await
    }

    async fn open_in(
        &self,
        session: Session,
        offset: u64,
        known: Option<u64>,
    ) -> Result<OpenedBlob, Error> {
        match &self.requested {
            RequestedBytes::Bounded(bounded) => self.open_bounded(session, offset, bounded).await,
            RequestedBytes::Unversioned(range) => self.open_unversioned(session, *range).await,
            RequestedBytes::Rest => self.open_at(session, offset, known).await,
        }
    }

    /// Requests a range of a blob of unknown size. The upstream may send the whole blob instead.
    ///
    /// # Errors
    /// [`Error::NoRanges`] for a response that is neither the range nor the whole blob.
    async fn open_unversioned(
        &self,
        session: Session,
        range: RangeSpec,
    ) -> Result<OpenedBlob, Error> {
        let response = self.ask(&session, &Method::GET, 0).await?;
        let headers = response.http.headers();
        let length = length(headers);
        let (start, end, size) = match (response.http.status().as_u16(), content_range(headers)) {
            (200, _) => (0, None, length),
            (206, Some(ContentRange::Part { first, last, total })) => {
                let Some(size) = total.filter(|size| range.within(*size) == (first..last + 1))
                else {
                    return Err(session.no_ranges("it sent another range, or stated no size"));
                };
                if length != Some(last - first + 1) {
                    return Err(session.no_ranges(OTHER_LENGTH));
                }
                (first, Some(last + 1), Some(size))
            }
            (206, None) => return Err(session.no_ranges("it did not state which range it sent")),
            (206 | 416, _) => return Err(session.no_ranges("it refused the range")),
            _ => return Err(refusal(&session, &response)),
        };
        require_identity(&session, headers)?;
        let etag = strong_etag(headers);
        session.budget.succeeded();
        Ok(OpenedBlob {
            session,
            body: Some(response.http.into_body()),
            start,
            end,
            skip: 0,
            size,
            etag,
        })
    }

    /// Requests the bytes from `offset` to the end of a bounded range.
    ///
    /// # Errors
    /// [`Error::NoRanges`] for every response that is not exactly this range of this version of the
    /// blob.
    async fn open_bounded(
        &self,
        session: Session,
        offset: u64,
        BoundedRange { end, version }: &BoundedRange,
    ) -> Result<OpenedBlob, Error> {
        let response = self.ask(&session, &Method::GET, offset).await?;
        let headers = response.http.headers();
        let refused = |what: &str| Err(session.no_ranges(what));
        match (response.http.status().as_u16(), content_range(headers)) {
            (206, Some(ContentRange::Part { first, last, total })) => {
                if first != offset || last != end.saturating_sub(1) {
                    return refused("it sent another range");
                }
                if total != Some(version.size) {
                    return refused("it stated another size");
                }
            }
            (200, _) => return refused("it ignored the range, or the blob has changed"),
            (206, None) => return refused("it did not state which range it sent"),
            (206 | 416, _) => return refused("it refused the range"),
            _ => return Err(refusal(&session, &response)),
        }
        require_identity(&session, headers)?;
        if length(headers) != Some(end - offset) {
            return refused(OTHER_LENGTH);
        }
        let etag = headers.get(ETAG);
        let known = version.etag_of(&session.host);
        if etag.is_some() && known.is_some() && etag != known {
            return refused("the blob has changed");
        }
        let etag = strong_etag(headers);
        session.budget.succeeded();
        Ok(OpenedBlob {
            session,
            body: Some(response.http.into_body()),
            start: offset,
            end: Some(*end),
            skip: 0,
            size: Some(version.size),
            etag,
        })
    }

    async fn open_at(
        &self,
        session: Session,
        offset: u64,
        known: Option<u64>,
    ) -> Result<OpenedBlob, Error> {
        let mut response = self.ask(&session, &Method::GET, offset).await?;
        if is_refused_part(&response, offset) {
            response = self.ask(&session, &Method::GET, 0).await?;
        }
        let headers = response.http.headers();
        let range = content_range(headers);
        let length = length(headers);
        let (skip, size) = match (response.http.status().as_u16(), range) {
            (200, _) => (offset, length),
            (206, Some(ContentRange::Part { first, last, total }))
                if offset > 0 && first == offset =>
            {
                if length.is_some_and(|length| length != last - first + 1) {
                    return Err(session.protocol("the length and the range of its response differ"));
                }
                (0, total)
            }
            (206, _) => {
                return Err(session.protocol(format!(
                    "it sent another range than the one from {offset} on"
                )));
            }
            (416, Some(ContentRange::Unsatisfied { total })) if total == offset => {
                agree(&session, Some(total), known)?;
                return Ok(OpenedBlob {
                    session,
                    body: None,
                    start: offset,
                    end: None,
                    skip: 0,
                    size: Some(total),
                    etag: None,
                });
            }
            (416, _) => {
                return Err(session.protocol(format!("it has nothing from {offset} on")));
            }
            _ => return Err(refusal(&session, &response)),
        };
        require_identity(&session, headers)?;
        let size = agree(&session, size, known)?;
        if size.is_some_and(|size| size < offset) {
            return Err(session.protocol(format!("its blob ends before {offset}")));
        }
        let etag = strong_etag(headers);
        session.budget.succeeded();
        Ok(OpenedBlob {
            session,
            body: Some(response.http.into_body()),
            start: offset,
            end: None,
            skip,
            size,
            etag,
        })
    }
}

/// Whether a 416 refuses only the open end of the range, which some registries do not support. If
/// the 416 states a size below the offset, the offset itself is invalid.
fn is_refused_part(response: &UpstreamResponse, offset: u64) -> bool {
    let response = &response.http;
    let ends_before = matches!(
        content_range(response.headers()),
        Some(ContentRange::Unsatisfied { total }) if total <= offset
    );
    response.status() == StatusCode::RANGE_NOT_SATISFIABLE && offset > 0 && !ends_before
}

fn content_range(headers: &HeaderMap) -> Option<ContentRange> {
    let text = headers.get(CONTENT_RANGE)?.to_str().ok()?;
    ContentRange::parse(text)
}

/// Checks that the size in this response equals the size in the responses of other hosts.
fn agree(session: &Session, stated: Option<u64>, known: Option<u64>) -> Result<Option<u64>, Error> {
    match (stated, known) {
        (Some(stated), Some(known)) if stated != known => Err(session.protocol(format!(
            "it stated {known} bytes for the blob before, and states {stated} now"
        ))),
        (stated, known) => Ok(stated.or(known)),
    }
}

/// Returns the ETag, unless it is weak: equal weak ETags do not mean equal bytes.
fn strong_etag(headers: &HeaderMap) -> Option<HeaderValue> {
    let etag = headers.get(ETAG)?;
    etag.as_bytes().starts_with(b"\"").then(|| etag.clone())
}

fn length(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// Requests the size of a blob by a HEAD request.
pub(crate) async fn size(
    candidates: Candidates,
    repository: &Repository,
    digest: &Digest,
) -> Result<Option<u64>, Error> {
    let blob = &BlobRequest::new(candidates, repository, digest);
    let operation = Operation::head(RequestKind::Blob);
    let policy = RetryPolicy::DOCUMENT;
    try_hosts(
        &blob.candidates,
        (operation, repository),
        policy,
        in_order_of_preference,
        |session| async move {
            let response = blob.ask(&session, &Method::HEAD, 0).await?;
            match response.http.status().as_u16() {
                200 => {
                    session.budget.succeeded();
                    Ok(length(response.http.headers()))
                }
                // The size stays unknown: signed URLs of object stores are often valid only for GET
                // requests.
                400..500 if response.is_cross_origin => Ok(None),
                405 => Ok(None),
                _ => Err(refusal(&session, &response)),
            }
        },
    )
    .await
}
