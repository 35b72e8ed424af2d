//! Manifests: documents that are handed out only when what they name can be had.

use std::sync::Arc;

use pierhead_cache::TagKey;
use pierhead_oci::{Body, Descriptor, Digest, Manifest, Reference};

use crate::context::Inner;
use crate::deadline::Deadline;
use crate::error::Error;
use crate::limits::client::Client;
use crate::metrics::Outcome;
use crate::pull::document::{Document, EAGER};
use crate::pull::negative_cache::Subject;
use crate::pull::resolve::resolve;

/// Images of an index that are looked for in the cache, at most: real ones have a dozen.
const IMAGES: usize = 64;

/// The manifest or index of that reference. Some clients (podman) fail a pull for good when a blob of
/// a manifest that they got is missing, while all fall back to the origin when the manifest is. So
/// while the upstream fails, a manifest must be backed by the cache.
pub(crate) async fn manifest(
    inner: &Arc<Inner>,
    client: &Arc<Client>,
    reference: &Reference,
    deadline: Deadline,
) -> Result<(Document, Outcome), Error> {
    let (document, outcome) = resolve(
        inner,
        client,
        &TagKey::Manifest(reference.clone()),
        deadline,
    )
    .await?;
    if outcome == Outcome::Stale
        || (outcome == Outcome::Hit && inner.trust.recent.is_failing(&reference.registry))
    {
        backed(inner, reference, &document, deadline).await?;
    }
    Ok((document, outcome))
}

async fn backed(
    inner: &Inner,
    reference: &Reference,
    document: &Document,
    deadline: Deadline,
) -> Result<(), Error> {
    let missing = match missing(inner, document).await {
        None => return Ok(()),
        Some(missing) => missing,
    };
    let Missing::Blob(digest) = missing else {
        return Err(unbacked(reference, missing));
    };
    // The upstream may be back, or refuse manifests only (Docker Hub's rate limit): one HEAD tells.
    let size = inner
        .client
        .blob_size(&reference.registry, &reference.repository, &digest);
    match tokio::time::timeout_at(deadline.last(), size).await {
        Ok(Ok(_)) => {
            inner.trust.recent.answered(&reference.registry);
            return Ok(());
        }
        Ok(Err(error)) => {
            let subject = Subject::Blob(
                reference.registry.clone(),
                reference.repository.clone(),
                digest,
            );
            inner
                .trust
                .recent
                .failed(&reference.registry, subject, &error);
        }
        Err(_) => {}
    }
    Err(unbacked(reference, missing))
}

fn unbacked(reference: &Reference, missing: Missing) -> Error {
    let (Missing::Blob(missing) | Missing::Manifest(missing)) = missing;
    Error::Unbacked {
        upstream: reference.registry.to_string(),
        missing,
    }
}

/// What of an image is neither cached nor on its way.
#[derive(Clone, Copy)]
enum Missing {
    Blob(Digest),
    /// Of a platform; whoever has no manifest of it has no blobs of it either.
    Manifest(Digest),
}

/// The first thing that an image lacks. For which platform an index is asked is not told, so it passes
/// when one of its images is here whole: the machines of one host are of one kind, and what they do not
/// run is not here at all. Whoever wants another one of it gets a 503 for that image's manifest. To refuse the index
/// for its sake would refuse it to everybody, as no host holds all platforms, and the registry that the client
/// would fall back to is the one that fails.
async fn missing(inner: &Inner, document: &Document) -> Option<Missing> {
    // Large ones are in memory one after the other.
    let mut turn = None;
    if document.size() > EAGER {
        turn = inner.parsing.acquire().await.ok();
    }
    let bytes = document.bytes(Manifest::MAX_SIZE).await.ok()?;
    // What cannot be parsed names nothing that we could look for.
    let manifest = Manifest::parse(bytes, Some(document.media_type.as_str())).ok()?;
    if !matches!(manifest.body, Body::Index { .. }) {
        return missing_blob(inner, &manifest).map(Missing::Blob);
    }
    let mut missing = None;
    for child in manifest.children().filter(|child| runs(child)).take(IMAGES) {
        if child.size > EAGER && turn.is_none() {
            turn = inner.parsing.acquire().await.ok();
        }
        match image(inner, child).await {
            None => missing = missing.or(Some(Missing::Manifest(child.digest))),
            Some(image) => missing = Some(Missing::Blob(missing_blob(inner, &image)?)),
        }
    }
    missing
}

/// A child of an index as the cache has it. An index in an index passes for an image without blobs.
async fn image(inner: &Inner, child: &Descriptor) -> Option<Manifest> {
    let object = inner.cache.peek(&child.digest).await.ok()??;
    // What the index claims of its size decided whether this is in memory alone.
    let bytes = object
        .read_all(usize::try_from(child.size).ok()?)
        .await
        .ok()?;
    Manifest::parse(bytes, Some(child.media_type.as_str())).ok()
}

fn missing_blob(inner: &Inner, manifest: &Manifest) -> Option<Digest> {
    if matches!(manifest.body, Body::Index { .. }) {
        return None;
    }
    manifest
        .children()
        .filter(|child| is_distributable(child))
        .map(|child| child.digest)
        .find(|digest| !inner.cache.contains(digest))
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
