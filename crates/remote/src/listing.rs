//! Tags and referrers: all pages of a list, as one document.

use std::borrow::Cow;
use std::collections::HashSet;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, IF_NONE_MATCH, LINK};
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use pierhead_oci::{
    Algorithm, Digest, Manifest, MediaType, Reference, Registry, Repository, Tag, Target,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::authorize::request;
use crate::exchange::{read_into, refusal};
use crate::failover::{Addresses, none, reach};
use crate::manifest::{etag, get};
use crate::metrics::{Errand, Kind};
use crate::origin::Origin;
use crate::redirect::{next_link, resolve, same_origin};
use crate::retry::{Patience, retrying};
use crate::room::Room;
use crate::{Error, Fetched, Known, Verdict};

/// Bytes of all pages of tags together.
const MAX_TAGS_BYTES: usize = 16 << 20;

/// Tags that are sorted in memory.
const MAX_TAGS: usize = 1 << 20;

/// Bytes of all pages of referrers together: what a manifest may have. Their parsed form takes ten
/// times as much.
const MAX_REFERRERS: usize = Manifest::MAX_SIZE;

/// A page of one tag each would otherwise make an endless walk out of a large list.
const MAX_PAGES: usize = 10_000;

enum Pages {
    Unchanged,
    /// With the `ETag` when there is but one: it says nothing of the others.
    All {
        pages: Vec<Bytes>,
        room: Room,
        etag: Option<String>,
        json: bool,
    },
}

/// All pages of a list come within so long: it holds a large part of the room for documents.
const WALK: Duration = Duration::from_secs(60);

/// Walks the list that begins at `path`.
async fn pages(
    origin: &Origin,
    kind: Kind,
    path: &str,
    repository: &Repository,
    wanted: (&'static str, usize),
    known: &Known,
) -> Result<Pages, Error> {
    let walked = walk(origin, kind, path, repository, wanted, known);
    let late = || origin.transport(format!("its list is not complete within {WALK:?}"));
    tokio::time::timeout(WALK, walked)
        .await
        .map_err(|_| late())?
}

async fn walk(
    origin: &Origin,
    kind: Kind,
    path: &str,
    repository: &Repository,
    (accept, most): (&'static str, usize),
    known: &Known,
) -> Result<Pages, Error> {
    let first = origin.url(path)?;
    let mut uri = first.clone();
    let mut seen = HashSet::new();
    let mut pages = Vec::new();
    let mut whole: Option<Room> = None;
    let mut first_room = None;
    loop {
        let conditional = known.etag.as_deref().filter(|_| pages.is_empty());
        let page = retrying(origin, Patience::DOCUMENT, || async {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT, HeaderValue::from_static(accept));
            if let Some(etag) = conditional.and_then(|etag| HeaderValue::from_str(etag).ok()) {
                headers.insert(IF_NONE_MATCH, etag);
            }
            let answer =
                request(origin, kind, &Method::GET, uri.clone(), headers, repository).await?;
            match answer.response.status() {
                StatusCode::OK => {}
                StatusCode::NOT_MODIFIED if conditional.is_some() => return Ok(None),
                _ => return Err(refusal(origin, &answer)),
            }
            let headers = answer.response.headers().clone();
            let mut room = whole.as_ref().map_or_else(|| Room::new(most), Room::part);
            let bytes = read_into(origin, answer.response, &mut room).await?;
            Ok(Some((headers, bytes, room)))
        });
        let Some((headers, bytes, room)) = page.await? else {
            return Ok(Pages::Unchanged);
        };
        origin.budget.succeeded();
        match &mut whole {
            Some(whole) => whole.note(bytes.len()),
            None => first_room = Some(room),
        }
        pages.push(bytes);
        let next = headers
            .get_all(LINK)
            .iter()
            .find_map(|value| next_link(value.to_str().ok()?));
        let Some(next) = next else {
            let only = pages.len() == 1;
            let json = headers
                .get(CONTENT_TYPE)
                .is_none_or(|value| value.to_str().is_ok_and(|text| text.contains("json")));
            let room = whole.or(first_room).unwrap_or_else(|| Room::new(most));
            return Ok(Pages::All {
                pages,
                room,
                etag: etag(&headers).filter(|_| only),
                json,
            });
        };
        let next = resolve(&uri, next).filter(|next| same_origin(next, &first));
        let next = next.ok_or_else(|| origin.protocol("the next page of its list is elsewhere"))?;
        if next == first || !seen.insert(next.to_string()) {
            return Err(origin.protocol("the pages of its list go in a circle"));
        }
        if seen.len() >= MAX_PAGES {
            return Err(origin.protocol(format!("its list has more than {MAX_PAGES} pages")));
        }
        uri = next;
        if whole.is_none() {
            // What the first page took is given back first: it waits for all of it, holding nothing.
            first_room = None;
            let mut room = Room::whole(origin, most).await?;
            room.note(pages.iter().map(Bytes::len).sum());
            whole = Some(room);
        }
    }
}

/// Borrows where it can; a bare `Cow` in a list never does.
#[derive(Serialize, Deserialize, PartialEq, Eq, PartialOrd, Ord)]
#[serde(transparent)]
struct Word<'a>(#[serde(borrow)] Cow<'a, str>);

#[derive(Serialize, Deserialize)]
struct Tags<'a> {
    #[serde(default, borrow)]
    name: Cow<'a, str>,
    /// `null` is what some registries send for none.
    #[serde(borrow)]
    tags: Option<Vec<Word<'a>>>,
}

/// All tags, sorted by their bytes, each once.
pub(crate) async fn tags(
    addresses: &Addresses,
    repository: &Repository,
    known: &Known,
) -> Result<Fetched, Error> {
    // Each page is tried again by itself.
    let (errand, patience) = (Errand::get(Kind::Tags), Patience::ONCE);
    reach(
        addresses,
        (errand, repository),
        patience,
        none,
        |origin| async move { tags_at(&origin, repository, known).await },
    )
    .await
}

/// Asks by GET, since few registries answer a HEAD for a list, and reads nothing of the body.
pub(crate) async fn may_list(
    addresses: &Addresses,
    repository: &Repository,
) -> Result<Verdict, Error> {
    let (errand, patience) = (Errand::get(Kind::Tags), Patience::DOCUMENT);
    let path = &format!("/v2/{repository}/tags/list?n=1");
    let verdict = reach(
        addresses,
        (errand, repository),
        patience,
        none,
        |origin| async move {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
            let uri = origin.url(path)?;
            let answer =
                request(&origin, Kind::Tags, &Method::GET, uri, headers, repository).await?;
            if answer.response.status() != StatusCode::OK {
                return Err(refusal(&origin, &answer));
            }
            // The page of a login form says nothing of rights.
            let kind = answer.response.headers().get(CONTENT_TYPE);
            if kind.is_some_and(|kind| kind.to_str().is_ok_and(|text| text.contains("text/html"))) {
                return Err(origin.protocol("its list of tags is not one"));
            }
            origin.budget.succeeded();
            Ok(Verdict::Granted)
        },
    );
    match verdict.await {
        Err(Error::Denied { .. }) => Ok(Verdict::Denied),
        Err(Error::NotFound { .. }) => Ok(Verdict::Absent),
        other => other,
    }
}

async fn tags_at(
    origin: &Origin,
    repository: &Repository,
    known: &Known,
) -> Result<Fetched, Error> {
    // Without `n` some registries send pages of 50.
    let path = format!("/v2/{repository}/tags/list?n=1000");
    let (pages, room, etag) = match pages(
        origin,
        Kind::Tags,
        &path,
        repository,
        ("application/json", MAX_TAGS_BYTES),
        known,
    )
    .await?
    {
        Pages::Unchanged => return Ok(Fetched::Unchanged),
        Pages::All {
            pages, room, etag, ..
        } => (pages, room, etag),
    };
    let mut tags = Vec::new();
    let separators = |page: &Bytes| page.iter().filter(|byte| **byte == b',').count();
    if pages.iter().map(separators).sum::<usize>() > MAX_TAGS {
        return Err(origin.protocol(format!("its list has more than {MAX_TAGS} tags")));
    }
    for page in &pages {
        let page: Tags<'_> = serde_json::from_slice(page)
            .map_err(|_| origin.protocol("its list of tags is not one"))?;
        let sound = |tag: &Word<'_>| tag.0.parse::<Tag>().is_ok();
        tags.extend(page.tags.unwrap_or_default().into_iter().filter(sound));
    }
    tags.sort_unstable();
    tags.dedup();
    let whole = Tags {
        name: repository.to_string().into(),
        tags: Some(tags),
    };
    let bytes = serde_json::to_vec(&whole).unwrap_or_default();
    let bytes = room.around(bytes.into());
    Ok(document(origin, bytes, "application/json", etag)?.unless(known))
}

/// All referrers of a digest as one index; none is an empty one.
pub(crate) async fn referrers(
    addresses: &Addresses,
    registry: &Registry,
    repository: &Repository,
    digest: &Digest,
    known: &Known,
) -> Result<Fetched, Error> {
    let (errand, patience) = (Errand::get(Kind::Referrers), Patience::ONCE);
    let found = reach(
        addresses,
        (errand, repository),
        patience,
        none,
        |origin| async move { referrers_at(&origin, registry, repository, digest, known).await },
    );
    match found.await {
        // Only when no address has any: a mirror may lack what the registry has.
        Err(Error::NotFound { .. }) => {
            let none = document(
                &addresses.first()?,
                EMPTY.into(),
                MediaType::OCI_INDEX,
                None,
            )?;
            Ok(none.unless(known))
        }
        other => other,
    }
}

/// `NotFound` where there are none in either way.
async fn referrers_at(
    origin: &Origin,
    registry: &Registry,
    repository: &Repository,
    digest: &Digest,
    known: &Known,
) -> Result<Fetched, Error> {
    let path = format!("/v2/{repository}/referrers/{digest}");
    let fetched = match pages(
        origin,
        Kind::Referrers,
        &path,
        repository,
        (MediaType::OCI_INDEX, MAX_REFERRERS),
        known,
    )
    .await
    {
        Ok(Pages::Unchanged) => return Ok(Fetched::Unchanged),
        Ok(Pages::All {
            pages,
            room,
            etag,
            json: true,
        }) => match merge(pages) {
            Some(bytes) => document(origin, room.around(bytes), MediaType::OCI_INDEX, etag)?,
            None => return Err(origin.protocol("its list of referrers is no index")),
        },
        // Registries without the API answer so, or with the page of a web site.
        Ok(Pages::All { json: false, .. })
        | Err(
            Error::NotFound { .. }
            | Error::Status {
                status: 400 | 405 | 406 | 501,
                ..
            },
        ) => {
            let target = Target::Tag(
                fallback_tag(digest)
                    .parse()
                    .map_err(|_| origin.protocol("no such tag"))?,
            );
            let reference = Reference {
                registry: registry.clone(),
                repository: repository.clone(),
                target,
            };
            let fetch = || get(origin, Kind::Referrers, &reference, known);
            let fetched = retrying(origin, Patience::DOCUMENT, fetch).await?;
            if let Fetched::Document { bytes, .. } = &fetched
                && !is_index(bytes)
            {
                // Somebody's image under a tag of that form: no list of anything.
                return Err(Error::NotFound {
                    upstream: origin.name.to_string(),
                });
            }
            fetched
        }
        Err(error) => return Err(error),
    };
    Ok(fetched.unless(known))
}

/// Whether it is a list that clients can read as one of referrers, whatever it is called.
fn is_index(bytes: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Index {
        #[serde(rename = "manifests")]
        _manifests: Vec<serde::de::IgnoredAny>,
        config: Option<serde::de::IgnoredAny>,
        layers: Option<serde::de::IgnoredAny>,
    }
    serde_json::from_slice::<Index>(bytes)
        .is_ok_and(|index| index.config.is_none() && index.layers.is_none())
}

const EMPTY: &[u8] =
    br#"{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[]}"#;

/// The tag under which referrers lie where the API is missing: `<alg>-<hex>`, each part cut to the
/// lengths that the spec gives (Distribution v1.1, "Referrers Tag Schema").
fn fallback_tag(digest: &Digest) -> String {
    let mut tag = format!("{}-{}", digest.algorithm().as_str(), digest.hex());
    tag.truncate(digest.algorithm().as_str().len().min(32) + 1 + 64);
    tag
}

/// One index out of all pages; a single page stays byte for byte what it is.
pub(crate) fn merge(pages: Vec<Bytes>) -> Option<Bytes> {
    let mut whole: Option<Value> = None;
    for page in &pages {
        let mut page: Value = serde_json::from_slice(page).ok()?;
        let entries = std::mem::take(page.get_mut("manifests")?.as_array_mut()?);
        let whole = whole.get_or_insert(page);
        whole.get_mut("manifests")?.as_array_mut()?.extend(entries);
    }
    match <[Bytes; 1]>::try_from(pages) {
        Ok([only]) => Some(only),
        Err(_) => Some(serde_json::to_vec(&whole?).ok()?.into()),
    }
}

fn document(
    origin: &Origin,
    bytes: Bytes,
    media_type: &str,
    etag: Option<String>,
) -> Result<Fetched, Error> {
    let media_type = MediaType::new(media_type).ok_or_else(|| origin.protocol("no media type"))?;
    let digest = Digest::of(Algorithm::Sha256, &bytes);
    Ok(Fetched::Document {
        bytes,
        media_type,
        digest,
        etag,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fallback_tags_are_tags() {
        let short = Digest::of(Algorithm::Sha256, b"");
        assert_eq!(fallback_tag(&short), short.to_string().replace(':', "-"));
        let long = fallback_tag(&Digest::of(Algorithm::Sha512, b""));
        assert_eq!(long.len(), "sha512-".len() + 64);
        assert!(long.parse::<Tag>().is_ok());
    }

    #[test]
    fn pages_merge_and_a_single_one_is_kept() {
        let page = |text: &'static str| Bytes::from_static(text.as_bytes());
        let odd = page(r#"{ "manifests" : [ 1 ], "schemaVersion":2 }"#);
        assert_eq!(merge(vec![odd.clone()]), Some(odd.clone()));
        let merged = merge(vec![odd, page(r#"{"manifests":[2,3]}"#)]).unwrap();
        assert_eq!(merged, page(r#"{"manifests":[1,2,3],"schemaVersion":2}"#));
        for wrong in ["", "[]", "{}", r#"{"manifests":7}"#] {
            assert_eq!(merge(vec![page(wrong)]), None, "{wrong}");
        }
    }
}
