//! Fetches all pages of a referrers list as one index. For registries without the referrers API,
//! uses the referrers tag.

use bytes::Bytes;
use pierhead_oci::{Digest, Manifest, MediaType, Reference, Registry, Repository, Target};
use serde::Deserialize;
use serde_json::Value;

use crate::error::Error;
use crate::metrics::{Operation, RequestKind};
use crate::pull::document::{DocumentResponse, Validators};
use crate::pull::manifest::get;
use crate::pull::pages::{Pages, pages};
use crate::upstream::failover::{Candidates, in_order_of_preference, try_hosts};
use crate::upstream::retry::{RetryPolicy, retrying};
use crate::upstream::session::Session;

/// Maximum number of bytes of all pages of a referrers list together. The same maximum applies to a
/// manifest. The parsed form of the list uses ten times as much memory.
const MAX_REFERRERS_BYTES: usize = Manifest::MAX_SIZE;

const EMPTY_INDEX: &[u8] =
    br#"{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[]}"#;

/// Fetches all referrers of a digest as one index, which may be empty.
pub(crate) async fn referrers(
    candidates: &Candidates,
    registry: &Registry,
    repository: &Repository,
    digest: &Digest,
    known: &Validators,
) -> Result<DocumentResponse, Error> {
    let (operation, policy) = (Operation::get(RequestKind::Referrers), RetryPolicy::ONCE);
    let found = try_hosts(
        candidates,
        (operation, repository),
        policy,
        in_order_of_preference,
        |session| async move { referrers_at(&session, registry, repository, digest, known).await },
    );
    match found.await {
        // An empty index is returned only if no host has referrers, because a mirror may lack the
        // referrers of the registry.
        Err(Error::NotFound { .. }) => {
            let none = DocumentResponse::of(
                &candidates.first()?,
                EMPTY_INDEX.into(),
                MediaType::OCI_INDEX,
                None,
                Vec::new(),
            )?;
            Ok(none.or_not_modified(known))
        }
        other => other,
    }
}

/// Fetches the referrers from one host. Returns `NotFound` if the host has referrers neither in the
/// API nor under the referrers tag.
async fn referrers_at(
    session: &Session,
    registry: &Registry,
    repository: &Repository,
    digest: &Digest,
    known: &Validators,
) -> Result<DocumentResponse, Error> {
    let path = format!("/v2/{repository}/referrers/{digest}");
    let fetched = match pages(
        session,
        RequestKind::Referrers,
        &path,
        repository,
        (MediaType::OCI_INDEX, MAX_REFERRERS_BYTES),
        known,
    )
    .await
    {
        Ok(Pages::NotModified { warnings }) => {
            return Ok(DocumentResponse::NotModified { warnings });
        }
        Ok(Pages::All {
            pages,
            reservation,
            etag,
            warnings,
            is_json: true,
        }) => match merge(pages) {
            Some(bytes) => DocumentResponse::of(
                session,
                reservation.attach_to(bytes),
                MediaType::OCI_INDEX,
                etag,
                warnings,
            )?,
            None => return Err(session.protocol("its list of referrers is not an index")),
        },
        // Registries without the referrers API send one of these statuses, or an HTML page.
        Ok(Pages::All { is_json: false, .. })
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
                    .map_err(|_| session.protocol("no such tag"))?,
            );
            let reference = Reference {
                registry: registry.clone(),
                repository: repository.clone(),
                target,
            };
            let fetch = || get(session, RequestKind::Referrers, &reference, known);
            let fetched = retrying(&session.budget, RetryPolicy::DOCUMENT, fetch).await?;
            if let DocumentResponse::Document { bytes, .. } = &fetched
                && !is_index(bytes)
            {
                // The tag names an image and no list of referrers: an image may have a tag of this
                // form by chance.
                return Err(Error::NotFound {
                    upstream: session.name.to_string(),
                });
            }
            fetched
        }
        Err(error) => return Err(error),
    };
    Ok(fetched.or_not_modified(known))
}

/// Whether clients can read the document as a list of referrers. The media type of the document is
/// not checked.
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

/// Returns the referrers tag, which upstreams without the referrers API use: `<alg>-<hex>`. Each
/// part is truncated as the specification says (Distribution v1.1, "Referrers Tag Schema").
fn fallback_tag(digest: &Digest) -> String {
    let mut tag = digest.file_name();
    tag.truncate(digest.algorithm().as_str().len().min(32) + 1 + 64);
    tag
}

/// Merges all pages of a referrers list into one index. A single page stays unchanged.
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

#[cfg(test)]
mod tests {
    use pierhead_oci::{Algorithm, Tag};

    use super::*;

    #[test]
    fn fallback_tags_are_valid_tags() {
        let short = Digest::of(Algorithm::Sha256, b"");
        assert_eq!(fallback_tag(&short), short.to_string().replace(':', "-"));
        let long = fallback_tag(&Digest::of(Algorithm::Sha512, b""));
        assert_eq!(long.len(), "sha512-".len() + 64);
        assert!(long.parse::<Tag>().is_ok());
    }

    #[test]
    fn pages_merge_and_a_single_page_stays_unchanged() {
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
