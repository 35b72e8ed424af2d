//! Tag lists and referrers lists: cached whole, paged and filtered here.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use pierhead_cache::Name;
use pierhead_oci::{self as oci, Digest, MediaType, Registry, Repository};
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::document::{Deadline, Document, resolve};
use crate::metrics::Outcome;
use crate::service::Inner;

/// What the client crate lets through at most.
const MAX_LIST: usize = 16 << 20;

/// Which part of a tag list is asked for.
pub(crate) struct Page<'a> {
    /// As the client wrote it: the answer's `name` and `Link` are in its words.
    pub(crate) name: &'a oci::Name,
    /// The request's query: `ns` must be in the `Link` too.
    pub(crate) query: Option<&'a str>,
    pub(crate) n: Option<u32>,
    pub(crate) last: Option<&'a str>,
}

/// A page of tags.
pub(crate) struct Tags {
    pub(crate) body: Bytes,
    /// The value of `Link`, when there is more.
    pub(crate) next: Option<String>,
}

/// A list of referrers.
pub(crate) struct Referrers {
    pub(crate) body: Bytes,
    pub(crate) media_type: MediaType,
}

#[derive(Deserialize)]
struct List<'a> {
    #[serde(borrow, default)]
    tags: Option<Vec<Cow<'a, str>>>,
}

#[derive(Serialize)]
struct Paged<'a> {
    name: String,
    tags: &'a [Cow<'a, str>],
}

/// One page of the complete list.
pub(crate) async fn tags(
    inner: &Arc<Inner>,
    registry: Registry,
    repository: Repository,
    page: Page<'_>,
    deadline: Deadline,
) -> Result<(Tags, Outcome), Error> {
    let _permit = inner.lists.acquire().await;
    let (document, outcome) = read(inner, Name::Tags(registry, repository), deadline).await?;
    Ok((paged(&document.1, &page)?, outcome))
}

fn paged(document: &[u8], page: &Page<'_>) -> Result<Tags, Error> {
    let list: List<'_> = serde_json::from_slice(document)
        .map_err(|error| Error::Document(format!("tag list: {error}")))?;
    let mut tags = list.tags.unwrap_or_default();
    // The client crate sorts; a document of an older version need not be.
    tags.sort_unstable();
    let first = page
        .last
        .map_or(0, |last| tags.partition_point(|tag| tag.as_ref() <= last));
    let rest = &tags[first..];
    let limit = page.n.map_or(rest.len(), |n| {
        usize::try_from(n).unwrap_or(usize::MAX).min(rest.len())
    });
    let shown = &rest[..limit];
    let next = match shown.last() {
        Some(last) if limit < rest.len() => Some(link(page, last)),
        _ => None,
    };
    let body = serde_json::to_vec(&Paged {
        name: page.name.to_string(),
        tags: shown,
    })
    .unwrap_or_default();
    Ok(Tags {
        body: body.into(),
        next,
    })
}

/// Tags need no escaping in a query, by their grammar; one that does is not followed further.
fn link(page: &Page<'_>, last: &str) -> String {
    let last: String = last
        .chars()
        .filter(|c| c.is_ascii_alphanumeric() || "._-".contains(*c))
        .collect();
    let name = page.name;
    let n = page.n.unwrap_or_default();
    let namespace = page
        .query
        .into_iter()
        .flat_map(|query| query.split('&'))
        .find(|pair| pair.starts_with("ns="));
    let namespace = namespace.map(|pair| format!("&{pair}")).unwrap_or_default();
    format!("</v2/{name}/tags/list?n={n}&last={last}{namespace}>; rel=\"next\"")
}

/// The complete list, or those of one artifact type.
pub(crate) async fn referrers(
    inner: &Arc<Inner>,
    registry: Registry,
    repository: Repository,
    digest: Digest,
    artifact_type: Option<&str>,
    deadline: Deadline,
) -> Result<(Referrers, Outcome), Error> {
    let _permit = inner.lists.acquire().await;
    let ((document, bytes), outcome) = read(
        inner,
        Name::Referrers(registry, repository, digest),
        deadline,
    )
    .await?;
    let body = match artifact_type {
        Some(wanted) => filtered(&bytes, wanted)?,
        None => bytes,
    };
    Ok((
        Referrers {
            body,
            media_type: document.media_type,
        },
        outcome,
    ))
}

fn filtered(document: &[u8], wanted: &str) -> Result<Bytes, Error> {
    let broken = |error: serde_json::Error| Error::Document(format!("referrers list: {error}"));
    // An index made for one request: it is not content-addressed, so writing it anew changes no digest.
    let mut index: serde_json::Value = serde_json::from_slice(document).map_err(broken)?;
    if let Some(manifests) = index
        .get_mut("manifests")
        .and_then(serde_json::Value::as_array_mut)
    {
        manifests.retain(|manifest| {
            manifest
                .get("artifactType")
                .and_then(serde_json::Value::as_str)
                == Some(wanted)
        });
    }
    Ok(serde_json::to_vec(&index).map_err(broken)?.into())
}

async fn read(
    inner: &Arc<Inner>,
    name: Name,
    deadline: Deadline,
) -> Result<((Document, Bytes), Outcome), Error> {
    let (document, outcome) = resolve(inner, &name, deadline).await?;
    match document.bytes(MAX_LIST).await {
        Ok(bytes) => Ok(((document, bytes), outcome)),
        // It was damaged, which took it out of the cache: this asks the upstream.
        Err(_) => {
            let (document, outcome) = resolve(inner, &name, deadline).await?;
            let bytes = document.bytes(MAX_LIST).await?;
            Ok(((document, bytes), outcome))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(n: Option<u32>, last: Option<&str>) -> (String, Option<String>) {
        let name = "docker.io/library/redis".parse().unwrap();
        let page = Page {
            name: &name,
            query: Some("n=2&ns=docker.io"),
            n,
            last,
        };
        let tags = paged(
            br#"{"name":"library/redis","tags":["c","a","b","e","d"]}"#,
            &page,
        )
        .unwrap();
        (String::from_utf8(tags.body.to_vec()).unwrap(), tags.next)
    }

    #[test]
    fn pages_are_cut_from_the_sorted_list() {
        let body = |tags: &str| format!(r#"{{"name":"docker.io/library/redis","tags":[{tags}]}}"#);
        let link = |last: &str| {
            Some(format!(
                "</v2/docker.io/library/redis/tags/list?n=2&last={last}&ns=docker.io>; rel=\"next\""
            ))
        };
        assert_eq!(page(None, None), (body(r#""a","b","c","d","e""#), None));
        assert_eq!(page(Some(2), None), (body(r#""a","b""#), link("b")));
        assert_eq!(page(Some(2), Some("b")), (body(r#""c","d""#), link("d")));
        assert_eq!(page(Some(2), Some("d")), (body(r#""e""#), None));
        assert_eq!(
            page(Some(2), Some("c")),
            (body(r#""d","e""#), None),
            "the last page has no link"
        );
        assert_eq!(
            page(None, Some("bb")),
            (body(r#""c","d","e""#), None),
            "a tag that is gone still orders"
        );
        assert_eq!(page(Some(0), None), (body(""), None));
        assert_eq!(page(Some(u32::MAX), Some("zz")), (body(""), None));
    }

    #[test]
    fn a_list_without_tags_is_empty_and_no_list_is_an_error() {
        let name = "a".parse().unwrap();
        let page = Page {
            name: &name,
            query: None,
            n: None,
            last: None,
        };
        assert_eq!(
            paged(br#"{"name":"a","tags":null}"#, &page).unwrap().body,
            r#"{"name":"a","tags":[]}"#
        );
        assert!(matches!(paged(b"[", &page), Err(Error::Document(_))));
    }

    #[test]
    fn the_filter_keeps_one_artifact_type() {
        let index = br#"{"schemaVersion":2,"manifests":[{"artifactType":"a","size":1},{"artifactType":"b"},{}],"annotations":{"k":"v"}}"#;
        let kept: serde_json::Value =
            serde_json::from_slice(&filtered(index, "a").unwrap()).unwrap();
        assert_eq!(
            kept,
            serde_json::json!({"schemaVersion":2,"manifests":[{"artifactType":"a","size":1}],"annotations":{"k":"v"}})
        );
        assert!(filtered(b"{", "a").is_err());
    }
}
