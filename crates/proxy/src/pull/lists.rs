//! Responds with tag lists and referrers lists: selects pages of the cached tag list, and filters
//! the cached referrers.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use pierhead_cache::{StoredBlob, TagKey};
use pierhead_oci::{self as oci, Digest, Endpoint, Manifest, MediaType, Registry, Repository};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::context::RequestContext;
use crate::deadline::Deadline;
use crate::error::Error;
use crate::limits::client_usage::ClientUsage;
use crate::metrics::CacheOutcome;
use crate::pull::blob::BlobSource;
use crate::pull::blob_request::BlobRequest;
use crate::pull::document::{Document, MAX_EAGER};
use crate::pull::resolve::resolve;
use crate::pull::tag_page::{self, find_page};

/// The JSON text at the end of a tag list, after the last tag.
const LIST_END: &[u8] = b"]}";

/// The request of a client for a page of a tag list.
pub(crate) struct TagPageRequest<'a> {
    /// The name of the repository as the client wrote it. The field `name` and the header `Link` of
    /// the response contain this name.
    pub(crate) name: &'a oci::Name,
    /// The query of the request. The `Link` header repeats the parameter `ns` of the query.
    pub(crate) query: Option<&'a str>,
    pub(crate) n: Option<u32>,
    pub(crate) last: Option<&'a str>,
}

/// The body of a response with a list.
pub(crate) enum ListBody {
    Whole(Bytes),
    /// A body of this length in bytes, which is read from the disk at the speed of the client.
    Long(Box<BlobSource>, u64),
}

/// A page of a tag list.
pub(crate) struct TagPage {
    pub(crate) body: ListBody,
    /// The value of the `Link` header. `None` on the last page.
    pub(crate) next: Option<String>,
    /// Values of the `Warning` headers of the upstream's response.
    pub(crate) warnings: Arc<[String]>,
}

/// A list of referrers for a response.
pub(crate) struct ReferrersPage {
    pub(crate) body: ListBody,
    pub(crate) media_type: MediaType,
    /// Values of the `Warning` headers of the upstream's response.
    pub(crate) warnings: Arc<[String]>,
}

/// A request for a tag list or referrers list of a repository.
pub(crate) struct ListRequest<'a> {
    pub(crate) context: &'a Arc<RequestContext>,
    pub(crate) client: &'a Arc<ClientUsage>,
    pub(crate) registry: Registry,
    pub(crate) repository: Repository,
    pub(crate) deadline: Deadline,
}

/// Returns the page of a repository's tag list that the client requested.
pub(crate) async fn tags(
    list: &ListRequest<'_>,
    page: TagPageRequest<'_>,
) -> Result<(TagPage, CacheOutcome), Error> {
    let name = TagKey::Tags(list.registry.clone(), list.repository.clone());
    let (document, outcome) = list.resolve(&name).await?;
    match list.page(&document, &page).await {
        Ok(tags) => Ok((tags, outcome)),
        // The stored list was damaged, and the cache deleted it. `tags` now requests the list from
        // the upstream.
        Err(_) => {
            let (document, outcome) = list.resolve(&name).await?;
            Ok((list.page(&document, &page).await?, outcome))
        }
    }
}

/// Returns the complete referrers list, or the referrers of one artifact type.
pub(crate) async fn referrers(
    list: &ListRequest<'_>,
    digest: Digest,
    artifact_type: Option<&str>,
) -> Result<(ReferrersPage, CacheOutcome), Error> {
    let name = TagKey::Referrers(list.registry.clone(), list.repository.clone(), digest);
    let (document, outcome) = list.resolve(&name).await?;
    match list.referrers(&document, artifact_type).await {
        Ok(referrers) => Ok((referrers, outcome)),
        Err(_) => {
            let (document, outcome) = list.resolve(&name).await?;
            Ok((list.referrers(&document, artifact_type).await?, outcome))
        }
    }
}

impl ListRequest<'_> {
    async fn resolve(&self, name: &TagKey) -> Result<(Document, CacheOutcome), Error> {
        resolve(self.context, self.client, name, self.deadline).await
    }

    async fn page(&self, document: &Document, page: &TagPageRequest<'_>) -> Result<TagPage, Error> {
        let range = find_page(document, page.n, page.last).await?;
        let before = format!(r#"{{"name":"{}","tags":["#, page.name);
        let next = range.next_after.as_deref().map(|last| link(page, last));
        let body = match document.stored_blob() {
            Some(blob) if range.end - range.first > MAX_EAGER => {
                let length =
                    range.end - range.first + as_u64(before.len()) + as_u64(LIST_END.len());
                let source = self.source(document, blob);
                let mut source = source.in_range(range.first, range.end).await?;
                source.surround(before.into(), Bytes::from_static(LIST_END));
                ListBody::Long(Box::new(source), length)
            }
            _ => ListBody::Whole(
                tag_page::read(document, &range, [before.as_bytes(), LIST_END]).await?,
            ),
        };
        Ok(TagPage {
            body,
            next,
            warnings: document.warnings.clone(),
        })
    }

    async fn referrers(
        &self,
        document: &Document,
        artifact_type: Option<&str>,
    ) -> Result<ReferrersPage, Error> {
        let body = match (artifact_type, document.stored_blob()) {
            (None, Some(blob)) if document.size() > MAX_EAGER => {
                let source = self.source(document, blob);
                ListBody::Long(Box::new(source), document.size())
            }
            (None, _) => ListBody::Whole(document.bytes(Manifest::MAX_SIZE).await?),
            (Some(artifact_type), _) => {
                // The permit is taken here and not earlier, so that no permit is held during an
                // upstream request.
                let _permit = match document.size() > MAX_EAGER {
                    true => self.context.parsing.acquire().await.ok(),
                    false => None,
                };
                ListBody::Whole(filtered(
                    &document.bytes(Manifest::MAX_SIZE).await?,
                    artifact_type,
                )?)
            }
        };
        Ok(ReferrersPage {
            body,
            media_type: document.media_type.clone(),
            warnings: document.warnings.clone(),
        })
    }

    fn source(&self, document: &Document, blob: &StoredBlob) -> BlobSource {
        let request = BlobRequest {
            registry: self.registry.clone(),
            repository: self.repository.clone(),
            digest: document.digest,
            client: self.client.clone(),
        };
        BlobSource::of(self.context.clone(), request, blob.clone())
    }
}

/// Formats the value of the `Link` header for the next page. Characters that need escaping in a
/// query are dropped; a valid tag has none.
pub(crate) fn link(page: &TagPageRequest<'_>, last: &str) -> String {
    let last: String = last
        .chars()
        .filter(|c| c.is_ascii_alphanumeric() || "._-".contains(*c))
        .collect();
    let name = page.name;
    let n = page.n.unwrap_or_default();
    // The namespace is parsed first, because the raw query may contain any characters.
    let namespace = Endpoint::namespace(page.query).ok().flatten();
    let namespace = namespace.map(|registry| format!("&ns={registry}"));
    let namespace = namespace.unwrap_or_default();
    format!("</v2/{name}/tags/list?n={n}&last={last}{namespace}>; rel=\"next\"")
}

/// The fields of an index that a filtered index keeps. The values of these fields stay as the
/// upstream sent them.
#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct FilteredIndex<'a> {
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    schema_version: Option<&'a RawValue>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    media_type: Option<&'a RawValue>,
    #[serde(borrow, default)]
    manifests: Vec<&'a RawValue>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    annotations: Option<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ArtifactTypeOnly<'a> {
    #[serde(borrow, default)]
    artifact_type: Option<Cow<'a, str>>,
}

pub(crate) fn filtered(document: &[u8], artifact_type: &str) -> Result<Bytes, Error> {
    let malformed = |error: serde_json::Error| Error::Document(format!("referrers list: {error}"));
    // A filtered list is not content-addressed, so serializing the index again changes no digest.
    let mut index: FilteredIndex<'_> = serde_json::from_slice(document).map_err(malformed)?;
    index.manifests.retain(|manifest| {
        serde_json::from_str::<ArtifactTypeOnly<'_>>(manifest.get())
            .is_ok_and(|it| it.artifact_type.as_deref() == Some(artifact_type))
    });
    Ok(serde_json::to_vec(&index).map_err(malformed)?.into())
}

fn as_u64(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In a test, returns a page of the stored list of `tags`, and its `Link` value.
    async fn paged(tags: &str, n: Option<u32>, last: Option<&str>) -> (String, Option<String>) {
        let name = "docker.io/library/redis".parse().unwrap();
        let page = TagPageRequest {
            name: &name,
            query: Some("n=2&ns=docker.io"),
            n,
            last,
        };
        let stored = format!(r#"{{"name":"library/redis","tags":[{tags}]}}"#);
        let document = Document::of(stored.into());
        let range = find_page(&document, n, last).await.unwrap();
        let before = format!(r#"{{"name":"{name}","tags":["#);
        let body = tag_page::read(&document, &range, [before.as_bytes(), LIST_END]);
        let next = range.next_after.as_deref().map(|last| link(&page, last));
        (
            String::from_utf8(body.await.unwrap().to_vec()).unwrap(),
            next,
        )
    }

    #[tokio::test]
    async fn pages_are_cut_from_the_sorted_list() {
        let page = |n, last| paged(r#""a","b","c","d","e""#, n, last);
        let body = |tags: &str| format!(r#"{{"name":"docker.io/library/redis","tags":[{tags}]}}"#);
        let link = |last: &str| {
            Some(format!(
                "</v2/docker.io/library/redis/tags/list?n=2&last={last}&ns=docker.io>; rel=\"next\""
            ))
        };
        assert_eq!(
            page(None, None).await,
            (body(r#""a","b","c","d","e""#), None)
        );
        assert_eq!(page(Some(2), None).await, (body(r#""a","b""#), link("b")));
        assert_eq!(
            page(Some(2), Some("b")).await,
            (body(r#""c","d""#), link("d"))
        );
        assert_eq!(page(Some(2), Some("d")).await, (body(r#""e""#), None));
        let exact = page(Some(2), Some("c")).await;
        assert_eq!(
            exact,
            (body(r#""d","e""#), None),
            "the last page has no link"
        );
        let deleted = page(None, Some("bb")).await;
        assert_eq!(
            deleted,
            (body(r#""c","d","e""#), None),
            "a page may begin after a deleted tag"
        );
        assert_eq!(page(Some(0), None).await, (body(""), None));
        assert_eq!(page(Some(u32::MAX), Some("zz")).await, (body(""), None));
        assert_eq!(paged("", None, None).await, (body(""), None));
        assert_eq!(paged("", Some(3), Some("a")).await, (body(""), None));
    }

    #[tokio::test]
    async fn pages_of_a_long_list_add_up_to_it() {
        let all: Vec<_> = (0..40_000).map(|nth| format!("\"v{nth:08}\"")).collect();
        let tags = all.join(",");
        let (mut last, mut seen) = (None::<String>, Vec::new());
        loop {
            let (body, next) = paged(&tags, Some(9_999), last.as_deref()).await;
            let page: serde_json::Value = serde_json::from_str(&body).unwrap();
            let page = page["tags"].as_array().unwrap();
            seen.extend(page.iter().map(|tag| format!("{tag}")));
            last = page.last().and_then(|tag| tag.as_str()).map(str::to_owned);
            if next.is_none() {
                break;
            }
        }
        assert!(seen == all);
    }

    #[tokio::test]
    async fn a_malformed_stored_list_is_an_error() {
        for stored in ["[", "{}", r#"{"tags":["a"]"#, r#"{"tags":["a\"b"]}"#] {
            let document = Document::of(stored.into());
            let range = find_page(&document, Some(9), None).await;
            assert!(
                matches!(range, Err(Error::Document(_))),
                "{stored}: {range:?}"
            );
        }
    }

    #[test]
    fn the_filter_keeps_one_artifact_type() {
        let index = br#"{"schemaVersion":2,"manifests":[{"artifactType":"a","size":1},{"artifactType":"b"},{},7],"annotations":{"k":"v"}}"#;
        let index_of_type: serde_json::Value =
            serde_json::from_slice(&filtered(index, "a").unwrap()).unwrap();
        assert_eq!(
            index_of_type,
            serde_json::json!({"schemaVersion":2,"manifests":[{"artifactType":"a","size":1}],"annotations":{"k":"v"}})
        );
        assert!(filtered(b"{", "a").is_err());
    }
}
