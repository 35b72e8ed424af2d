//! Asks the upstream whether a client may read a manifest or blob.

use http::header::{CONTENT_RANGE, CONTENT_TYPE, RANGE};
use http::{HeaderValue, Method, StatusCode};
use pierhead_oci::{Digest, Repository, Target};

use crate::auth::authenticate::request;
use crate::error::Error;
use crate::exchange::content_range::ContentRange;
use crate::exchange::{UpstreamResponse, refusal};
use crate::metrics::{Operation, RequestKind};
use crate::pull::manifest;
use crate::upstream::failover::{Candidates, in_order_of_preference, try_hosts};
use crate::upstream::retry::RetryPolicy;

/// The resource that a client requests.
#[derive(Clone, Copy, Debug)]
pub enum Resource<'a> {
    /// The resource is a manifest or index.
    Manifest(&'a Target),
    /// The resource is a blob.
    Blob(&'a Digest),
}

/// The decision of the upstream whether a client may read a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessDecision {
    /// The client may read the resource, and it exists.
    Granted,
    /// The credentials are wrong, or have no right to read the resource.
    Denied,
    /// The upstream sends 404 to this client. Many registries send 404 instead of 403, so the
    /// client gets no access.
    NotFound,
}

/// Asks the upstream by a HEAD request. If a redirect led to another origin and the response from
/// there leaves the decision open, sends a GET request for one byte.
pub(crate) async fn authorize(
    candidates: &Candidates,
    repository: &Repository,
    resource: Resource<'_>,
) -> Result<AccessDecision, Error> {
    let (kind, path, headers) = match resource {
        Resource::Manifest(target) => (
            RequestKind::Manifest,
            format!("/v2/{repository}/manifests/{target}"),
            manifest::accept(),
        ),
        Resource::Blob(digest) => (
            RequestKind::Blob,
            format!("/v2/{repository}/blobs/{digest}"),
            http::HeaderMap::new(),
        ),
    };
    let (operation, policy) = (Operation::head(kind), RetryPolicy::DOCUMENT);
    let (path, headers) = (&path, &headers);
    let decision = try_hosts(
        candidates,
        (operation, repository),
        policy,
        in_order_of_preference,
        |session| async move {
            let uri = session.url(path)?;
            let (head, mut headers) = (Method::HEAD, headers.clone());
            let mut response = request(
                &session,
                kind,
                &head,
                uri.clone(),
                headers.clone(),
                repository,
            )
            .await?;
            if matches!(resource, Resource::Blob(_)) && is_doubtful(&response) {
                headers.insert(RANGE, HeaderValue::from_static("bytes=0-0"));
                // The body is dropped without being read. If the body is long, dropping it closes
                // the connection.
                response = request(&session, kind, &Method::GET, uri, headers, repository).await?;
            }
            match response.http.status().as_u16() {
                200 | 206 if is_resource(resource, &response) => {}
                200 | 206 => {
                    return Err(session.protocol("its response is not the requested resource"));
                }
                _ => return Err(refusal(&session, &response)),
            }
            session.budget.succeeded();
            Ok(AccessDecision::Granted)
        },
    );
    match decision.await {
        Err(Error::Denied { .. }) => Ok(AccessDecision::Denied),
        Err(Error::NotFound { .. }) => Ok(AccessDecision::NotFound),
        other => other,
    }
}

/// Whether a GET request may get another response than this HEAD request got. Signed URLs of object
/// stores are often valid only for GET, and the login page of a gateway may respond to HEAD with
/// any status.
fn is_doubtful(response: &UpstreamResponse) -> bool {
    let untyped = !response.http.headers().contains_key(CONTENT_TYPE);
    response.is_cross_origin
        && match response.http.status().as_u16() {
            200 => untyped,
            429 => false,
            status => (400..500).contains(&status),
        }
}

/// Whether a response with the status 200 or 206 contains the requested resource. A page with a
/// login form grants no access.
fn is_resource(resource: Resource<'_>, response: &UpstreamResponse) -> bool {
    let headers = response.http.headers();
    let text = |name| {
        let value = headers.get(name).and_then(|value| value.to_str().ok());
        value.map(str::to_ascii_lowercase)
    };
    let kind = text(CONTENT_TYPE);
    let is = |word: &str| kind.as_ref().is_some_and(|text| text.contains(word));
    if response.http.status() == StatusCode::PARTIAL_CONTENT {
        let range = text(CONTENT_RANGE).and_then(|text| ContentRange::parse(&text));
        let from_start = matches!(range, Some(ContentRange::Part { first: 0, .. }));
        return from_start && matches!(resource, Resource::Blob(_)) && !is("html");
    }
    match resource {
        Resource::Manifest(_) => {
            manifest::claimed_digest(headers).is_some() || is("manifest") || is("index")
        }
        Resource::Blob(_) => !is("html") && (kind.is_some() || !response.is_cross_origin),
    }
}
