//! Manifests: documents that are handed out only when what they name can be had.

use std::sync::Arc;

use pierhead_cache::Name;
use pierhead_oci::{Body, Descriptor, Digest, Manifest, Reference};

use crate::Error;
use crate::document::{Deadline, Document, EAGER, resolve};
use crate::limits::Client;
use crate::metrics::Outcome;
use crate::recent::Subject;
use crate::service::Inner;

/// The manifest or index of that reference. Some clients (podman) fail a pull for good when a blob of
/// a manifest that they got is missing, while all fall back to the origin when the manifest is. So
/// while the upstream fails, a manifest must be backed by the cache.
pub(crate) async fn manifest(
    inner: &Arc<Inner>,
    client: &Arc<Client>,
    reference: &Reference,
    deadline: Deadline,
) -> Result<(Document, Outcome), Error> {
    let (document, outcome) =
        resolve(inner, client, &Name::Manifest(reference.clone()), deadline).await?;
    if outcome == Outcome::Stale
        || (outcome == Outcome::Hit && inner.recent.is_failing(&reference.registry))
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
    let Some(missing) = missing(inner, document).await else {
        return Ok(());
    };
    // The upstream may be back, or refuse manifests only (Docker Hub's rate limit): one HEAD tells.
    let size = inner
        .client
        .blob_size(&reference.registry, &reference.repository, &missing);
    match tokio::time::timeout_at(deadline.last(), size).await {
        Ok(Ok(_)) => {
            inner.recent.answered(&reference.registry);
            return Ok(());
        }
        Ok(Err(error)) => {
            let subject = Subject::Blob(
                reference.registry.clone(),
                reference.repository.clone(),
                missing,
            );
            inner.recent.failed(&reference.registry, subject, &error);
        }
        Err(_) => {}
    }
    Err(Error::Unbacked {
        upstream: reference.registry.to_string(),
        missing,
    })
}

/// The first blob of an image that is neither cached nor on its way. An index passes: its children are
/// asked for one by one, and each is looked at then.
async fn missing(inner: &Inner, document: &Document) -> Option<Digest> {
    // Large ones are in memory one after the other.
    let _permit = match document.size() > EAGER {
        true => inner.parsing.acquire().await.ok(),
        false => None,
    };
    let bytes = document.bytes(Manifest::MAX_SIZE).await.ok()?;
    // What cannot be parsed names nothing that we could look for.
    let manifest = Manifest::parse(bytes, Some(document.media_type.as_str())).ok()?;
    if matches!(manifest.body, Body::Index { .. }) {
        return None;
    }
    manifest
        .children()
        .filter(|child| is_distributable(child))
        .map(|child| child.digest)
        .find(|digest| !inner.cache.contains(digest))
}

/// Foreign layers come from where they say, never from a registry.
pub(crate) fn is_distributable(descriptor: &Descriptor) -> bool {
    let media_type = descriptor.media_type.as_str();
    !media_type.contains(".nondistributable.") && !media_type.contains(".foreign.")
}
