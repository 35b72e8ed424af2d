//! Manifests: documents that are handed out only when what they name can be had.

use std::sync::Arc;

use pierhead_cache::TagKey;
use pierhead_oci::{Body, Descriptor, Digest, Manifest, Reference};

use crate::context::RequestContext;
use crate::deadline::Deadline;
use crate::error::Error;
use crate::limits::client_usage::ClientUsage;
use crate::metrics::CacheOutcome;
use crate::pull::document::{Document, MAX_EAGER};
use crate::pull::negative_cache::Subject;
use crate::pull::resolve::resolve;

/// Images of an index that are looked for in the cache, at most: real ones have a dozen.
const MAX_IMAGES: usize = 64;

/// The manifest or index of that reference. Some clients (podman) fail a pull for good when a blob of
/// a manifest that they got is missing, while all fall back to the origin when the manifest is. So
/// while the upstream fails, a manifest must be backed by the cache.
pub(crate) async fn manifest(
    context: &Arc<RequestContext>,
    client: &Arc<ClientUsage>,
    reference: &Reference,
    deadline: Deadline,
) -> Result<(Document, CacheOutcome), Error> {
    let (document, outcome) = resolve(
        context,
        client,
        &TagKey::Manifest(reference.clone()),
        deadline,
    )
    .await?;
    if outcome == CacheOutcome::Stale
        || (outcome == CacheOutcome::Hit
            && context
                .generation
                .negative_cache
                .is_failing(&reference.registry))
    {
        backed(context, reference, &document, deadline).await?;
    }
    Ok((document, outcome))
}

async fn backed(
    context: &RequestContext,
    reference: &Reference,
    document: &Document,
    deadline: Deadline,
) -> Result<(), Error> {
    let missing = match missing(context, document).await {
        None => return Ok(()),
        Some(missing) => missing,
    };
    let MissingPart::Blob(digest) = missing else {
        return Err(unbacked(reference, missing));
    };
    // The upstream may be back, or refuse manifests only (Docker Hub's rate limit): one HEAD tells.
    let size = context
        .client
        .blob_size(&reference.registry, &reference.repository, &digest);
    match tokio::time::timeout_at(deadline.last(), size).await {
        Ok(Ok(_)) => {
            context
                .generation
                .negative_cache
                .answered(&reference.registry);
            return Ok(());
        }
        Ok(Err(error)) => {
            let subject = Subject::Blob(
                reference.registry.clone(),
                reference.repository.clone(),
                digest,
            );
            context
                .generation
                .negative_cache
                .failed(&reference.registry, subject, &error);
        }
        Err(_) => {}
    }
    Err(unbacked(reference, missing))
}

fn unbacked(reference: &Reference, missing: MissingPart) -> Error {
    let (MissingPart::Blob(missing) | MissingPart::Manifest(missing)) = missing;
    Error::BlobNotCached {
        upstream: reference.registry.to_string(),
        missing,
    }
}

/// What of an image is neither cached nor on its way.
#[derive(Clone, Copy)]
enum MissingPart {
    Blob(Digest),
    /// Of a platform; whoever has no manifest of it has no blobs of it either.
    Manifest(Digest),
}

/// The first thing that an image lacks. For which platform an index is asked is not told, so it passes
/// when one of its images is here whole: the machines of one host are of one kind, and what they do not
/// run is not here at all. Whoever wants another one of it gets a 503 for that image's manifest. To refuse the index
/// for its sake would refuse it to everybody, as no host holds all platforms, and the registry that the client
/// would fall back to is the one that fails.
async fn missing(context: &RequestContext, document: &Document) -> Option<MissingPart> {
    // Large ones are in memory one after the other.
    let mut turn = None;
    if document.size() > MAX_EAGER {
        turn = context.parsing.acquire().await.ok();
    }
    let bytes = document.bytes(Manifest::MAX_SIZE).await.ok()?;
    // What cannot be parsed names nothing that we could look for.
    let manifest = Manifest::parse(bytes, Some(document.media_type.as_str())).ok()?;
    if !matches!(manifest.body, Body::Index { .. }) {
        return missing_blob(context, &manifest).map(MissingPart::Blob);
    }
    let mut missing = None;
    for child in manifest
        .children()
        .filter(|child| runs(child))
        .take(MAX_IMAGES)
    {
        if child.size > MAX_EAGER && turn.is_none() {
            turn = context.parsing.acquire().await.ok();
        }
        match image(context, child).await {
            None => missing = missing.or(Some(MissingPart::Manifest(child.digest))),
            Some(image) => missing = Some(MissingPart::Blob(missing_blob(context, &image)?)),
        }
    }
    missing
}

/// A child of an index as the cache has it. An index in an index passes for an image without blobs.
async fn image(context: &RequestContext, child: &Descriptor) -> Option<Manifest> {
    let object = context.cache.peek(&child.digest).await.ok()??;
    // What the index claims of its size decided whether this is in memory alone.
    let bytes = object
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

/// Whether an entry of an index is an image: BuildKit's attestations are of no platform.
pub(crate) fn runs(child: &Descriptor) -> bool {
    child
        .platform
        .as_ref()
        .is_none_or(|platform| platform.os != "unknown")
}

/// Foreign layers come from where they say, never from a registry.
pub(crate) fn is_distributable(descriptor: &Descriptor) -> bool {
    let media_type = descriptor.media_type.as_str();
    !media_type.contains(".nondistributable.") && !media_type.contains(".foreign.")
}
