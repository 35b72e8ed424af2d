//! Reads all pages of a tag list or referrers list from an upstream, up to a maximum of bytes,
//! pages and time.

use std::collections::HashSet;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, IF_NONE_MATCH, LINK};
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use pierhead_oci::Repository;

use crate::auth::authenticate::request;
use crate::error::Error;
use crate::exchange::document_memory::DocumentReservation;
use crate::exchange::redirect::{next_link, resolve, same_origin};
use crate::exchange::{read_into, refusal};
use crate::metrics::RequestKind;
use crate::pull::document::{Validators, etag, warnings};
use crate::upstream::retry::{RetryPolicy, retrying};
use crate::upstream::session::Session;

/// Maximum number of pages of one tag or referrers list. The limit of pages matters for lists with
/// one entry per page: the limit of bytes alone would end such lists late.
const MAX_PAGES: usize = 10_000;

/// The result of reading all pages of a list.
pub(crate) enum Pages {
    NotModified {
        warnings: Vec<String>,
    },
    /// The pages of the list. `etag` is present only if there is a single page, because the `ETag`
    /// of a page does not cover further pages.
    All {
        pages: Vec<Bytes>,
        reservation: DocumentReservation,
        etag: Option<String>,
        /// The warnings of the last page.
        warnings: Vec<String>,
        /// Whether the `Content-Type` of the last page is JSON or is missing.
        is_json: bool,
    },
}

/// The response for one page.
enum Page {
    /// The caller's copy of the list is current. Contains the warnings of the response.
    NotModified(Vec<String>),
    Read(HeaderMap, Bytes, DocumentReservation),
}

/// Time limit for fetching one tag or referrers list, because a list in progress holds a large part
/// of the memory for documents.
const MAX_LIST_TIME: Duration = Duration::from_secs(60);

/// Reads the list that begins at `path`. `limits` contains the accepted media type, and the maximum
/// bytes of all pages together.
pub(crate) async fn pages(
    session: &Session,
    kind: RequestKind,
    path: &str,
    repository: &Repository,
    limits: (&'static str, usize),
    known: &Validators,
) -> Result<Pages, Error> {
    let read = read_pages(session, kind, path, repository, limits, known);
    let late = || session.transport(format!("its list is not complete within {MAX_LIST_TIME:?}"));
    tokio::time::timeout(MAX_LIST_TIME, read)
        .await
        .map_err(|_| late())?
}

async fn read_pages(
    session: &Session,
    kind: RequestKind,
    path: &str,
    repository: &Repository,
    (accept, most): (&'static str, usize),
    known: &Validators,
) -> Result<Pages, Error> {
    let first = session.url(path)?;
    let mut uri = first.clone();
    let mut seen = HashSet::new();
    let mut pages = Vec::new();
    let mut whole: Option<DocumentReservation> = None;
    let mut first_reservation = None;
    loop {
        let conditional = known.etag.as_deref().filter(|_| pages.is_empty());
        let page = retrying(&session.budget, RetryPolicy::DOCUMENT, || async {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT, HeaderValue::from_static(accept));
            if let Some(etag) = conditional.and_then(|etag| HeaderValue::from_str(etag).ok()) {
                headers.insert(IF_NONE_MATCH, etag);
            }
            let response = request(
                session,
                kind,
                &Method::GET,
                uri.clone(),
                headers,
                repository,
            )
            .await?;
            match response.http.status() {
                StatusCode::OK => {}
                StatusCode::NOT_MODIFIED if conditional.is_some() => {
                    return Ok(Page::NotModified(warnings(response.http.headers())));
                }
                _ => return Err(refusal(session, &response)),
            }
            let headers = response.http.headers().clone();
            let mut reservation = match &whole {
                Some(whole) => whole.next_page(),
                None => session.shared.documents.reservation(most),
            };
            let bytes = read_into(session, response.http, &mut reservation).await?;
            Ok(Page::Read(headers, bytes, reservation))
        });
        let (headers, bytes, reservation) = match page.await? {
            Page::Read(headers, bytes, reservation) => (headers, bytes, reservation),
            Page::NotModified(warnings) => return Ok(Pages::NotModified { warnings }),
        };
        session.budget.succeeded();
        match &mut whole {
            Some(whole) => whole.count(bytes.len()),
            None => first_reservation = Some(reservation),
        }
        pages.push(bytes);
        let next = headers
            .get_all(LINK)
            .iter()
            .find_map(|value| next_link(value.to_str().ok()?));
        let Some(next) = next else {
            let only = pages.len() == 1;
            let is_json = headers
                .get(CONTENT_TYPE)
                .is_none_or(|value| value.to_str().is_ok_and(|text| text.contains("json")));
            let reservation = whole.or(first_reservation);
            let unreserved = || session.shared.documents.reservation(most);
            let reservation = reservation.unwrap_or_else(unreserved);
            return Ok(Pages::All {
                pages,
                reservation,
                etag: etag(&headers).filter(|_| only),
                warnings: warnings(&headers),
                is_json,
            });
        };
        let next = resolve(&uri, next).filter(|next| same_origin(next, &first));
        let next =
            next.ok_or_else(|| session.protocol("the next page of its list is on another host"))?;
        if next == first || !seen.insert(next.to_string()) {
            return Err(session.protocol("the pages of its list form a loop"));
        }
        if seen.len() >= MAX_PAGES {
            return Err(session.protocol(format!("its list has more than {MAX_PAGES} pages")));
        }
        uri = next;
        if whole.is_none() {
            // The first page releases its memory before the list waits for the memory of all pages:
            // a wait while memory is held could deadlock.
            drop(first_reservation.take());
            let reservation = session.shared.documents.reservation(most);
            let mut reservation = reservation.reserve_all().await;
            reservation.count(pages.iter().map(Bytes::len).sum());
            whole = Some(reservation);
        }
    }
}
