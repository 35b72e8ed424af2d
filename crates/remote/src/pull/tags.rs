//! Fetches all pages of a tag list as one sorted document, and asks whether a client may read a tag
//! list.

use std::borrow::Cow;

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use pierhead_oci::{Repository, Tag};
use serde::{Deserialize, Serialize};

use crate::auth::authenticate::request;
use crate::error::Error;
use crate::exchange::refusal;
use crate::metrics::{Operation, RequestKind};
use crate::pull::access::AccessDecision;
use crate::pull::document::{DocumentResponse, Validators};
use crate::pull::pages::{Pages, pages};
use crate::upstream::failover::{Candidates, in_order_of_preference, try_hosts};
use crate::upstream::retry::RetryPolicy;
use crate::upstream::session::Session;

/// Maximum number of bytes of all pages of a tag list together.
const MAX_TAGS_BYTES: usize = 16 << 20;

/// Maximum number of tags of one tag list, which is sorted in memory.
const MAX_TAGS: usize = 1 << 20;

/// A tag that borrows its text from the bytes of its page if possible. The attribute `borrow` is
/// needed, because serde never borrows a bare `Cow` in a list.
#[derive(Serialize, Deserialize, PartialEq, Eq, PartialOrd, Ord)]
#[serde(transparent)]
struct TagText<'a>(#[serde(borrow)] Cow<'a, str>);

#[derive(Serialize, Deserialize)]
struct Tags<'a> {
    #[serde(default, borrow)]
    name: Cow<'a, str>,
    /// The tags of the page. Some registries send `null` for an empty list.
    #[serde(borrow)]
    tags: Option<Vec<TagText<'a>>>,
}

/// Fetches all tags of a repository, sorted by their bytes, each tag once.
pub(crate) async fn tags(
    candidates: &Candidates,
    repository: &Repository,
    known: &Validators,
) -> Result<DocumentResponse, Error> {
    // The whole list is not retried, because each page is retried by itself.
    let (operation, policy) = (Operation::get(RequestKind::Tags), RetryPolicy::ONCE);
    try_hosts(
        candidates,
        (operation, repository),
        policy,
        in_order_of_preference,
        |session| async move { tags_at(&session, repository, known).await },
    )
    .await
}

/// Asks whether the client may read the tag list. Sends a GET request, because few registries
/// accept a HEAD request for a list. Does not read the body of the response.
pub(crate) async fn may_list(
    candidates: &Candidates,
    repository: &Repository,
) -> Result<AccessDecision, Error> {
    let (operation, policy) = (Operation::get(RequestKind::Tags), RetryPolicy::DOCUMENT);
    let path = &format!("/v2/{repository}/tags/list?n=1");
    let decision = try_hosts(
        candidates,
        (operation, repository),
        policy,
        in_order_of_preference,
        |session| async move {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
            let uri = session.url(path)?;
            let response = request(
                &session,
                RequestKind::Tags,
                &Method::GET,
                uri,
                headers,
                repository,
            )
            .await?;
            if response.http.status() != StatusCode::OK {
                return Err(refusal(&session, &response));
            }
            // The content type is checked, because an HTML page for logging in grants no access.
            let kind = response.http.headers().get(CONTENT_TYPE);
            if kind.is_some_and(|kind| kind.to_str().is_ok_and(|text| text.contains("text/html"))) {
                return Err(session.protocol("its tag list is invalid"));
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

async fn tags_at(
    session: &Session,
    repository: &Repository,
    known: &Validators,
) -> Result<DocumentResponse, Error> {
    // Without the parameter `n`, some registries send pages of 50 tags.
    let path = format!("/v2/{repository}/tags/list?n=1000");
    let (pages, reservation, etag, warnings) = match pages(
        session,
        RequestKind::Tags,
        &path,
        repository,
        ("application/json", MAX_TAGS_BYTES),
        known,
    )
    .await?
    {
        Pages::NotModified { warnings } => return Ok(DocumentResponse::NotModified { warnings }),
        Pages::All {
            pages,
            reservation,
            etag,
            warnings,
            ..
        } => (pages, reservation, etag, warnings),
    };
    let mut tags = Vec::new();
    let separators = |page: &Bytes| page.iter().filter(|byte| **byte == b',').count();
    if pages.iter().map(separators).sum::<usize>() > MAX_TAGS {
        return Err(session.protocol(format!("its list has more than {MAX_TAGS} tags")));
    }
    for page in &pages {
        let page: Tags<'_> = serde_json::from_slice(page)
            .map_err(|_| session.protocol("its tag list is invalid"))?;
        let is_valid = |tag: &TagText<'_>| tag.0.parse::<Tag>().is_ok();
        tags.extend(page.tags.unwrap_or_default().into_iter().filter(is_valid));
    }
    tags.sort_unstable();
    tags.dedup();
    let whole = Tags {
        name: repository.to_string().into(),
        tags: Some(tags),
    };
    let bytes = serde_json::to_vec(&whole).unwrap_or_default();
    let bytes = reservation.attach_to(bytes.into());
    let list = DocumentResponse::of(session, bytes, "application/json", etag, warnings)?;
    Ok(list.or_not_modified(known))
}
