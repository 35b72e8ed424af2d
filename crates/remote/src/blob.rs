//! Blobs: asked for from some offset on, and what an upstream makes of that.

use http::header::{CONTENT_LENGTH, CONTENT_RANGE, RANGE};
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use hyper::body::Incoming;
use pierhead_oci::{Digest, Repository};

use crate::Error;
use crate::authorize::request;
use crate::exchange::{Answer, refusal, require_identity};
use crate::failover::{Addresses, none, reach};
use crate::metrics::{Errand, Kind};
use crate::origin::{Origin, Place};
use crate::range::ContentRange;
use crate::retry::Patience;

/// Which blob.
#[derive(Clone)]
pub(crate) struct Subject {
    pub(crate) addresses: Addresses,
    repository: Repository,
    digest: Digest,
    path: String,
}

/// A response from some offset on.
pub(crate) struct Opened {
    /// Who answered.
    pub(crate) origin: Origin,
    pub(crate) body: Option<Incoming>,
    /// Bytes to throw away: the upstream began earlier than asked to.
    pub(crate) skip: u64,
    pub(crate) size: Option<u64>,
}

impl Subject {
    pub(crate) fn new(addresses: Addresses, repository: &Repository, digest: &Digest) -> Self {
        Self {
            addresses,
            repository: repository.clone(),
            digest: *digest,
            path: format!("/v2/{repository}/blobs/{digest}"),
        }
    }

    pub(crate) fn digest(&self) -> &Digest {
        &self.digest
    }

    async fn ask(&self, origin: &Origin, method: &Method, offset: u64) -> Result<Answer, Error> {
        let mut headers = HeaderMap::new();
        if offset > 0 {
            let range = HeaderValue::try_from(format!("bytes={offset}-"));
            headers.insert(RANGE, range.map_err(|_| origin.protocol("no range"))?);
        }
        let uri = origin.url(&self.path)?;
        request(origin, Kind::Blob, method, uri, headers, &self.repository).await
    }

    /// Asks for all from `offset`; `known` is the size that an earlier answer told, and `last` the address
    /// that has just failed.
    pub(crate) async fn open(
        &self,
        patience: Patience,
        last: Option<&Place>,
        offset: u64,
        known: Option<u64>,
    ) -> Result<Opened, Error> {
        let errand = Errand::get(Kind::Blob);
        // What was wrong a moment ago is worse than what broke off.
        let doubt = |place: &Place| {
            let failed = last.is_some_and(|last| std::ptr::eq(last, place));
            let (wrong, barren) = (place.distrust.has(&self.digest), place.health.is_barren());
            4 * u8::from(wrong) + 2 * u8::from(failed) + u8::from(barren)
        };
        let asked = (errand, &self.repository);
        reach(&self.addresses, asked, patience, doubt, |origin| {
            self.open_at(origin, offset, known)
        })
        .await
    }

    async fn open_at(
        &self,
        origin: Origin,
        offset: u64,
        known: Option<u64>,
    ) -> Result<Opened, Error> {
        let mut answer = self.ask(&origin, &Method::GET, offset).await?;
        if is_refused_part(&answer, offset) {
            answer = self.ask(&origin, &Method::GET, 0).await?;
        }
        let headers = answer.response.headers();
        let range = content_range(headers);
        let length = length(headers);
        let (skip, size) = match (answer.response.status().as_u16(), range) {
            (200, _) => (offset, length),
            (206, Some(ContentRange::Part { first, last, total }))
                if offset > 0 && first == offset =>
            {
                if length.is_some_and(|length| length != last - first + 1) {
                    return Err(origin.protocol("the length and the range of its answer differ"));
                }
                (0, total)
            }
            (206, _) => {
                return Err(
                    origin.protocol(format!("it sent another part than the one from {offset}"))
                );
            }
            (416, Some(ContentRange::Unsatisfied { total })) if total == offset => {
                agree(&origin, Some(total), known)?;
                return Ok(Opened {
                    origin,
                    body: None,
                    skip: 0,
                    size: Some(total),
                });
            }
            (416, _) => {
                return Err(origin.protocol(format!("it has nothing from {offset} on")));
            }
            _ => return Err(refusal(&origin, &answer)),
        };
        require_identity(&origin, headers)?;
        let size = agree(&origin, size, known)?;
        if size.is_some_and(|size| size < offset) {
            return Err(origin.protocol(format!("its blob ends before {offset}")));
        }
        origin.budget.succeeded();
        Ok(Opened {
            origin,
            body: Some(answer.response.into_body()),
            skip,
            size,
        })
    }
}

/// Some registries serve no ranges that are open at their end, and say of each that it cannot be satisfied. An end
/// that lies before the offset is told, on the other hand.
fn is_refused_part(answer: &Answer, offset: u64) -> bool {
    let response = &answer.response;
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

/// What an upstream says of a size, all its addresses say every time.
fn agree(origin: &Origin, told: Option<u64>, known: Option<u64>) -> Result<Option<u64>, Error> {
    match (told, known) {
        (Some(told), Some(known)) if told != known => Err(origin.protocol(format!(
            "it said that the blob has {known} bytes, and now {told}"
        ))),
        (told, known) => Ok(told.or(known)),
    }
}

fn length(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// The size, by HEAD.
pub(crate) async fn size(
    addresses: Addresses,
    repository: &Repository,
    digest: &Digest,
) -> Result<Option<u64>, Error> {
    let subject = &Subject::new(addresses, repository, digest);
    let errand = Errand::head(Kind::Blob);
    let patience = Patience::DOCUMENT;
    reach(
        &subject.addresses,
        (errand, repository),
        patience,
        none,
        |origin| async move {
            let answer = subject.ask(&origin, &Method::HEAD, 0).await?;
            match answer.response.status().as_u16() {
                200 => {
                    origin.budget.succeeded();
                    Ok(length(answer.response.headers()))
                }
                // Signed URLs of object stores are often good for GET alone.
                400..500 if answer.elsewhere => Ok(None),
                405 => Ok(None),
                _ => Err(refusal(&origin, &answer)),
            }
        },
    )
    .await
}
