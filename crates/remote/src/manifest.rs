//! Manifests: conditional, bounded, and verified against every digest that is known.

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, ETAG, IF_NONE_MATCH};
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use pierhead_oci::{Algorithm, Digest, Manifest, MediaType, Reference, Target};
use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::authorize::request;
use crate::exchange::{Answer, read_into, refusal};
use crate::failover::{Addresses, none, reach};
use crate::metrics::{Errand, Kind};
use crate::origin::Origin;
use crate::retry::Patience;
use crate::room::Room;
use crate::{Error, Fetched, Known};

/// All that a client may want: what the upstream has is replayed as it is.
const ACCEPTED: &str = "application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json, \
    application/vnd.docker.distribution.manifest.list.v2+json, application/vnd.docker.distribution.manifest.v2+json, \
    application/vnd.oci.artifact.manifest.v1+json";

/// The headers of every request for a manifest.
pub(crate) fn accept() -> HeaderMap {
    HeaderMap::from_iter([(ACCEPT, HeaderValue::from_static(ACCEPTED))])
}

/// Fetches a manifest, unless it is the known one.
pub(crate) async fn manifest(
    addresses: &Addresses,
    reference: &Reference,
    known: &Known,
) -> Result<Fetched, Error> {
    let (kind, patience) = (Kind::Manifest, Patience::DOCUMENT);
    // A HEAD costs no pull in the books of Docker Hub.
    if let Some(digest) = &known.digest {
        let verdict = reach(
            addresses,
            (Errand::head(kind), reference),
            patience,
            none,
            |origin| async move { head(&origin, kind, reference, digest).await },
        );
        if verdict.await? == Verdict::Same {
            return Ok(Fetched::Unchanged);
        }
    }
    let fetched = reach(
        addresses,
        (Errand::get(kind), reference),
        patience,
        none,
        |origin| async move { get(&origin, kind, reference, known).await },
    );
    Ok(fetched.await?.unless(known))
}

impl Fetched {
    /// `Unchanged` when it is the known document.
    pub(crate) fn unless(self, known: &Known) -> Self {
        match self {
            Self::Document { digest, .. } if known.digest == Some(digest) => Self::Unchanged,
            other => other,
        }
    }
}

#[derive(PartialEq, Eq)]
enum Verdict {
    Same,
    /// It is another one, or the upstream does not say: a GET will tell.
    Unsure,
}

fn path(reference: &Reference) -> String {
    format!(
        "/v2/{}/manifests/{}",
        reference.repository, reference.target
    )
}

async fn ask(
    origin: &Origin,
    kind: Kind,
    method: &Method,
    reference: &Reference,
    etag: Option<&str>,
) -> Result<Answer, Error> {
    let mut headers = accept();
    if let Some(etag) = etag.and_then(|etag| HeaderValue::from_str(etag).ok()) {
        headers.insert(IF_NONE_MATCH, etag);
    }
    request(
        origin,
        kind,
        method,
        origin.url(&path(reference))?,
        headers,
        &reference.repository,
    )
    .await
}

async fn head(
    origin: &Origin,
    kind: Kind,
    reference: &Reference,
    known: &Digest,
) -> Result<Verdict, Error> {
    let answer = ask(origin, kind, &Method::HEAD, reference, None).await?;
    match answer.response.status().as_u16() {
        200 => {
            origin.budget.succeeded();
            let same = claimed_digest(answer.response.headers()) == Some(*known);
            Ok(if same { Verdict::Same } else { Verdict::Unsure })
        }
        // Verdicts that a GET would only repeat.
        401 | 403 | 404 | 429 | 500.. => Err(refusal(origin, &answer)),
        // No HEAD here.
        _ => Ok(Verdict::Unsure),
    }
}

pub(crate) async fn get(
    origin: &Origin,
    kind: Kind,
    reference: &Reference,
    known: &Known,
) -> Result<Fetched, Error> {
    // With a digest but no etag, and the other way round, there is nothing to be conditional about.
    let answer = ask(origin, kind, &Method::GET, reference, known.etag.as_deref()).await?;
    match answer.response.status() {
        StatusCode::OK => {}
        StatusCode::NOT_MODIFIED if known.etag.is_some() => {
            origin.budget.succeeded();
            return Ok(Fetched::Unchanged);
        }
        _ => return Err(refusal(origin, &answer)),
    }
    let headers = answer.response.headers();
    let claimed = claimed_digest(headers);
    let etag = etag(headers);
    let content_type = headers
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .and_then(MediaType::new);
    let mut room = Room::new(Manifest::MAX_SIZE);
    let bytes = read_into(origin, answer.response, &mut room).await?;
    let digest = verify(origin, &bytes, &reference.target, claimed)?;
    let media_type = content_type
        .or_else(|| stated_type(&bytes))
        .ok_or_else(|| origin.protocol("its manifest says nowhere of which media type it is"))?;
    origin.budget.succeeded();
    Ok(Fetched::Document {
        bytes: room.around(bytes),
        media_type,
        digest,
        etag,
    })
}

/// The digest by which the bytes were asked for, else the one claimed, else SHA-256.
fn verify(
    origin: &Origin,
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
            return Err(origin.protocol(format!(
                "its manifest has the digest {actual} and not {expected}"
            )));
        }
    }
    if let Some(digest) = asked.or(claimed) {
        return Ok(digest);
    }
    // Nothing vouches for it, and this may be the login page of somebody else's network.
    if !is_json_object(bytes) {
        return Err(origin.protocol("what it gives as a manifest is no JSON object"));
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

/// The `ETag`, when it is of a sensible length.
pub(crate) fn etag(headers: &HeaderMap) -> Option<String> {
    let text = headers.get(ETAG)?.to_str().ok()?;
    (text.len() <= 256).then(|| text.to_owned())
}

/// What the document says of itself, for upstreams that send no `Content-Type`.
fn stated_type(bytes: &[u8]) -> Option<MediaType> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Stated {
        media_type: String,
    }
    MediaType::new(&serde_json::from_slice::<Stated>(bytes).ok()?.media_type)
}
