//! Whether a client may read something, as the upstream decides it.

use http::header::{CONTENT_RANGE, CONTENT_TYPE, RANGE};
use http::{HeaderValue, Method, StatusCode};
use pierhead_oci::{Digest, Repository, Target};

use crate::auth::authenticate::request;
use crate::error::Error;
use crate::exchange::content_range::ContentRange;
use crate::exchange::{UpstreamResponse, refusal};
use crate::metrics::{Operation, RequestKind};
use crate::pull::manifest;
use crate::upstream::failover::{Candidates, no_penalty, try_hosts};
use crate::upstream::retry::RetryPolicy;

/// What a client asks to read.
#[derive(Clone, Copy, Debug)]
pub enum Resource<'a> {
    /// A manifest or index.
    Manifest(&'a Target),
    /// A blob.
    Blob(&'a Digest),
}

/// Whether an upstream lets a client read a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessDecision {
    /// The client may read the resource, and it exists.
    Granted,
    /// The credentials are wrong, or lack the right.
    Denied,
    /// 404 for this client: many registries send it instead of a 403. It grants nothing.
    NotFound,
}

/// Asks by HEAD. When another origin answers that with an error, asks for one byte by GET.
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
        no_penalty,
        |session| async move {
            let uri = session.url(path)?;
            let (head, mut headers) = (Method::HEAD, headers.clone());
            let mut answer = request(
                &session,
                kind,
                &head,
                uri.clone(),
                headers.clone(),
                repository,
            )
            .await?;
            if matches!(resource, Resource::Blob(_)) && is_doubtful(&answer) {
                headers.insert(RANGE, HeaderValue::from_static("bytes=0-0"));
                // Drops the body unread. A long body thereby closes the connection.
                answer = request(&session, kind, &Method::GET, uri, headers, repository).await?;
            }
            match answer.response.status().as_u16() {
                200 | 206 if answers(resource, &answer) => {}
                200 | 206 => {
                    return Err(
                        session.protocol("it answers with something else than was asked for")
                    );
                }
                _ => return Err(refusal(&session, &answer)),
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

/// Whether the answer to HEAD leaves open what GET would give. Signed URLs of object stores are often good for GET
/// alone; and the login of a gateway in front of the registry may answer HEAD by anything.
fn is_doubtful(answer: &UpstreamResponse) -> bool {
    let untyped = !answer.response.headers().contains_key(CONTENT_TYPE);
    answer.is_cross_origin
        && match answer.response.status().as_u16() {
            200 => untyped,
            429 => false,
            status => (400..500).contains(&status),
        }
}

/// Whether a 200 or 206 is about what was asked for: the page of a login form says nothing of rights.
fn answers(resource: Resource<'_>, answer: &UpstreamResponse) -> bool {
    let headers = answer.response.headers();
    let text = |name| {
        let value = headers.get(name).and_then(|value| value.to_str().ok());
        value.map(str::to_ascii_lowercase)
    };
    let kind = text(CONTENT_TYPE);
    let is = |word: &str| kind.as_ref().is_some_and(|text| text.contains(word));
    if answer.response.status() == StatusCode::PARTIAL_CONTENT {
        let range = text(CONTENT_RANGE).and_then(|text| ContentRange::parse(&text));
        let from_start = matches!(range, Some(ContentRange::Part { first: 0, .. }));
        return from_start && matches!(resource, Resource::Blob(_)) && !is("html");
    }
    match resource {
        Resource::Manifest(_) => {
            manifest::claimed_digest(headers).is_some() || is("manifest") || is("index")
        }
        Resource::Blob(_) => !is("html") && (kind.is_some() || !answer.is_cross_origin),
    }
}
