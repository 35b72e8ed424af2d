//! Fetches manifests: conditional requests, a maximum size, and verification of the digest.

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, IF_NONE_MATCH};
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use pierhead_oci::{Algorithm, Digest, Manifest, MediaType, Reference, Target};
use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::auth::authenticate::request;
use crate::error::Error;
use crate::exchange::{UpstreamResponse, read_into, refusal};
use crate::metrics::{Operation, RequestKind};
use crate::pull::document::{DocumentResponse, Validators, etag, warnings};
use crate::upstream::failover::{Candidates, in_order_of_preference, try_hosts};
use crate::upstream::retry::RetryPolicy;
use crate::upstream::session::Session;

/// The media types in the `Accept` header: all types that any client may accept, because pierhead
/// serves the upstream's manifest unchanged.
const ACCEPTED: &str = "application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json, \
    application/vnd.docker.distribution.manifest.list.v2+json, application/vnd.docker.distribution.manifest.v2+json, \
    application/vnd.oci.artifact.manifest.v1+json";

/// Returns the headers that every request for a manifest has.
pub(crate) fn accept() -> HeaderMap {
    HeaderMap::from_iter([(ACCEPT, HeaderValue::from_static(ACCEPTED))])
}

/// Fetches a manifest, unless the upstream confirms that the caller's copy is current.
pub(crate) async fn manifest(
    candidates: &Candidates,
    reference: &Reference,
    known: &Validators,
) -> Result<DocumentResponse, Error> {
    let (kind, policy) = (RequestKind::Manifest, RetryPolicy::DOCUMENT);
    // A HEAD request is sent first, because Docker Hub does not count it as a pull.
    if let Some(digest) = &known.digest {
        let current = try_hosts(
            candidates,
            (Operation::head(kind), reference),
            policy,
            in_order_of_preference,
            |session| async move { head(&session, kind, reference, digest).await },
        );
        if let Some(warnings) = current.await? {
            return Ok(DocumentResponse::NotModified { warnings });
        }
    }
    let fetched = try_hosts(
        candidates,
        (Operation::get(kind), reference),
        policy,
        in_order_of_preference,
        |session| async move { get(&session, kind, reference, known).await },
    );
    Ok(fetched.await?.or_not_modified(known))
}

fn path(reference: &Reference) -> String {
    format!(
        "/v2/{}/manifests/{}",
        reference.repository, reference.target
    )
}

async fn ask(
    session: &Session,
    kind: RequestKind,
    method: &Method,
    reference: &Reference,
    etag: Option<&str>,
) -> Result<UpstreamResponse, Error> {
    let mut headers = accept();
    if let Some(etag) = etag.and_then(|etag| HeaderValue::from_str(etag).ok()) {
        headers.insert(IF_NONE_MATCH, etag);
    }
    request(
        session,
        kind,
        method,
        session.url(&path(reference))?,
        headers,
        &reference.repository,
    )
    .await
}

/// Sends a HEAD request. Returns the warnings of the response if the caller's copy is current, or
/// `None` if the digest differs or is missing.
async fn head(
    session: &Session,
    kind: RequestKind,
    reference: &Reference,
    known: &Digest,
) -> Result<Option<Vec<String>>, Error> {
    let response = ask(session, kind, &Method::HEAD, reference, None).await?;
    match response.http.status().as_u16() {
        200 => {
            session.budget.succeeded();
            let headers = response.http.headers();
            Ok((claimed_digest(headers) == Some(*known)).then(|| warnings(headers)))
        }
        // A GET request would get the same status, so none is sent.
        401 | 403 | 404 | 429 | 500.. => Err(refusal(session, &response)),
        // The upstream does not support HEAD requests.
        _ => Ok(None),
    }
}

pub(crate) async fn get(
    session: &Session,
    kind: RequestKind,
    reference: &Reference,
    known: &Validators,
) -> Result<DocumentResponse, Error> {
    // The request is conditional only if the caller's copy has an `ETag`.
    let response = ask(
        session,
        kind,
        &Method::GET,
        reference,
        known.etag.as_deref(),
    )
    .await?;
    match response.http.status() {
        StatusCode::OK => {}
        StatusCode::NOT_MODIFIED if known.etag.is_some() => {
            session.budget.succeeded();
            let warnings = warnings(response.http.headers());
            return Ok(DocumentResponse::NotModified { warnings });
        }
        _ => return Err(refusal(session, &response)),
    }
    let headers = response.http.headers();
    let claimed = claimed_digest(headers);
    let (etag, warnings) = (etag(headers), warnings(headers));
    let content_type = headers
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .and_then(MediaType::new);
    let documents = &session.shared.documents;
    let mut reservation = documents.reservation(Manifest::MAX_SIZE);
    let bytes = read_into(session, response.http, &mut reservation).await?;
    let digest = verify(session, &bytes, &reference.target, claimed)?;
    let media_type = content_type
        .or_else(|| stated_type(&bytes))
        .ok_or_else(|| session.protocol("its manifest states no media type"))?;
    session.budget.succeeded();
    Ok(DocumentResponse::Document {
        bytes: reservation.attach_to(bytes),
        media_type,
        digest,
        etag,
        warnings,
    })
}

/// Verifies the bytes against the requested digest, or, without a requested digest, against the
/// digest in the response header. If neither exists, computes the SHA-256 digest of the bytes.
fn verify(
    session: &Session,
    bytes: &Bytes,
    target: &Target,
    claimed: Option<Digest>,
) -> Result<Digest, Error> {
    let asked = match target {
        Target::Digest(digest) => Some(*digest),
        Target::Tag(_) => None,
    };
    for expected in [asked, claimed].into_iter().flatten() {
        let actual = Digest::of(expected.algorithm(), bytes);
        if actual != expected {
            return Err(session.protocol(format!(
                "its manifest has the digest {actual} and not {expected}"
            )));
        }
    }
    if let Some(digest) = asked.or(claimed) {
        return Ok(digest);
    }
    // Without a digest to verify, the document may be the login page of a captive portal.
    if !is_json_object(bytes) {
        return Err(session.protocol("its manifest is not a JSON object"));
    }
    Ok(Digest::of(Algorithm::Sha256, bytes))
}

fn is_json_object(bytes: &[u8]) -> bool {
    bytes.trim_ascii_start().starts_with(b"{")
        && serde_json::from_slice::<IgnoredAny>(bytes).is_ok()
}

pub(crate) fn claimed_digest(headers: &HeaderMap) -> Option<Digest> {
    headers
        .get("docker-content-digest")?
        .to_str()
        .ok()?
        .parse()
        .ok()
}

/// Returns the media type that the document itself states, for upstreams that send no
/// `Content-Type`.
fn stated_type(bytes: &[u8]) -> Option<MediaType> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Stated {
        media_type: String,
    }
    MediaType::new(&serde_json::from_slice::<Stated>(bytes).ok()?.media_type)
}
