//! Serves manifests. While the upstream fails, serves a manifest only if the blobs of its image are
//! cached.

use std::sync::Arc;

use pierhead_cache::TagKey;
use pierhead_oci::{Body, Descriptor, Digest, Manifest, Reference, Target};
use pierhead_remote::Validators;

use crate::context::RequestContext;
use crate::deadline::Deadline;
use crate::error::Error;
use crate::limits::client_usage::ClientUsage;
use crate::metrics::CacheOutcome;
use crate::pull::document::{Document, MAX_EAGER};
use crate::pull::negative_cache::Subject;
use crate::pull::resolve::{log_stale, resolve_unlogged};

/// Maximum number of images of an index that are looked up in the cache while the upstream fails.
/// Real indexes have about 12 images.
const MAX_IMAGES: usize = 64;

/// Returns the manifest or index of that reference. If a manifest fails, all clients fall back to
/// the upstream registry. If a blob fails after its manifest was served, some clients (podman) fail
/// the pull. So while the upstream fails, a manifest is served only if its blobs are cached.
pub(crate) async fn manifest(
    context: &Arc<RequestContext>,
    client: &Arc<ClientUsage>,
    reference: &Reference,
    deadline: Deadline,
) -> Result<(Document, CacheOutcome), Error> {
    let name = TagKey::Manifest(reference.clone());
    let (document, outcome, error) = resolve_unlogged(context, client, &name, deadline).await?;
    if outcome == CacheOutcome::Stale
        || (outcome == CacheOutcome::Hit
            && context
                .generation
                .negative_cache
                .is_failing(&reference.registry))
    {
        check_blobs(context, reference, &document, deadline).await?;
    }
    if let Some(error) = error {
        log_stale(context, &name, &document, &error);
    }
    Ok((document, outcome))
}

/// Returns an error if a blob of the manifest is neither cached nor available from the upstream.
async fn check_blobs(
    context: &RequestContext,
    reference: &Reference,
    document: &Document,
    deadline: Deadline,
) -> Result<(), Error> {
    let missing = match missing(context, document).await {
        None => return Ok(()),
        Some(missing) => missing,
    };
    let Reference {
        registry,
        repository,
        ..
    } = reference;
    let negative_cache = &context.generation.negative_cache;
    let name = Subject::Name(TagKey::Manifest(reference.clone()));
    // The tag was deleted, and stays available by configuration. The upstream itself works.
    let deletion = negative_cache.error(&name).filter(|error| {
        matches!(error, pierhead_remote::Error::NotFound { .. }) && context.keeps_deleted(registry)
    });
    if let MissingPart::Manifest(_) = missing
        && deletion.is_none()
    {
        return Err(not_cached(reference, missing));
    }
    // The upstream may work again, or it may refuse only manifests (Docker Hub's rate limit), or
    // the tag alone was deleted. A HEAD request for the missing part shows which is true.
    let available = async {
        match missing {
            MissingPart::Blob(digest) => {
                let size = context.client.blob_size(registry, repository, &digest);
                size.await.map(drop)
            }
            MissingPart::Manifest(digest) => {
                let part = Reference {
                    target: Target::Digest(digest),
                    ..reference.clone()
                };
                let known = Validators {
                    digest: Some(digest),
                    etag: None,
                };
                context.client.manifest(&part, &known).await.map(drop)
            }
        }
    };
    match tokio::time::timeout_at(deadline.wait_without_stale(), available).await {
        Ok(Ok(())) => {
            negative_cache.record_response(registry);
            return Ok(());
        }
        Ok(Err(error)) => {
            if let (Some(deletion), pierhead_remote::Error::NotFound { .. }) = (deletion, &error) {
                return Err(deletion.into());
            }
            if let MissingPart::Blob(digest) = missing {
                let subject = Subject::Blob(registry.clone(), repository.clone(), digest);
                negative_cache.record_failure(registry, subject, &error);
            }
        }
        Err(_) => {}
    }
    Err(not_cached(reference, missing))
}

fn not_cached(reference: &Reference, missing: MissingPart) -> Error {
    let (MissingPart::Blob(missing) | MissingPart::Manifest(missing)) = missing;
    Error::BlobNotCached {
        upstream: reference.registry.to_string(),
        missing,
    }
}

/// A part of an image that is neither cached nor being filled.
#[derive(Clone, Copy)]
enum MissingPart {
    Blob(Digest),
    /// The manifest for a platform. Without the manifest, the blobs of this platform are unknown.
    Manifest(Digest),
}

/// Returns the first part of an image or index that is missing in the cache, or `None` if nothing
/// is missing.
///
/// For an index, nothing is missing if one of its images is completely cached. The request does not
/// name a platform, but all machines of one host usually run the same platform, and other platforms
/// are not cached at all. A client of another platform gets 503 for the manifest of its image. A
/// 503 for the index would fail all clients: no cache has all platforms, and the clients would fall
/// back to the registry, which fails.
async fn missing(context: &RequestContext, document: &Document) -> Option<MissingPart> {
    // This permit limits the number of large documents in memory.
    let mut permit = None;
    if document.size() > MAX_EAGER {
        permit = context.parsing.acquire().await.ok();
    }
    let bytes = document.bytes(Manifest::MAX_SIZE).await.ok()?;
    // A document that is not a manifest names no blobs, so nothing is missing.
    let manifest = Manifest::parse(bytes, Some(document.media_type.as_str())).ok()?;
    if !matches!(manifest.body, Body::Index { .. }) {
        return missing_blob(context, &manifest).map(MissingPart::Blob);
    }
    let mut missing = None;
    for child in manifest
        .children()
        .filter(|child| is_image(child))
        .take(MAX_IMAGES)
    {
        if child.size > MAX_EAGER && permit.is_none() {
            permit = context.parsing.acquire().await.ok();
        }
        match image(context, child).await {
            None => missing = missing.or(Some(MissingPart::Manifest(child.digest))),
            Some(image) => missing = Some(MissingPart::Blob(missing_blob(context, &image)?)),
        }
    }
    missing
}

/// Reads the cached manifest to which an entry of an index points. A nested index counts as an
/// image without blobs.
async fn image(context: &RequestContext, child: &Descriptor) -> Option<Manifest> {
    let blob = context.cache.peek(&child.digest).await.ok()??;
    // The read is limited to the size that the index states, because that size decided whether a
    // permit is necessary.
    let bytes = blob
        .read_all(usize::try_from(child.size).ok()?)
        .await
        .ok()?;
    Manifest::parse(bytes, Some(child.media_type.as_str())).ok()
}

fn missing_blob(context: &RequestContext, manifest: &Manifest) -> Option<Digest> {
    if matches!(manifest.body, Body::Index { .. }) {
        return None;
    }
    manifest
        .children()
        .filter(|child| is_distributable(child))
        .map(|child| child.digest)
        .find(|digest| !context.cache.contains(digest))
}

/// Whether an entry of an index is an image. BuildKit's attestations have the platform `unknown`.
pub(crate) fn is_image(child: &Descriptor) -> bool {
    child
        .platform
        .as_ref()
        .is_none_or(|platform| platform.os != "unknown")
}

/// Whether a registry serves this blob. Foreign layers are not served: clients get them from the
/// URLs in the manifest.
pub(crate) fn is_distributable(descriptor: &Descriptor) -> bool {
    let media_type = descriptor.media_type.as_str();
    !media_type.contains(".nondistributable.") && !media_type.contains(".foreign.")
}
