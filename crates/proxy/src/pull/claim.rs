//! Decides how a request gets a blob: from the cache, as a follower that reads a running fill (a
//! download into the cache), or as the leader that starts the fill.

use std::sync::Arc;

use pierhead_cache::{BlobReader, Claim, Fill, StoredBlob};
use tokio::sync::mpsc::Sender;
use tokio::sync::oneshot;

use crate::context::RequestContext;
use crate::error::Error;
use crate::limits::downloads::{DownloadSlot, DownloadWaiters};
use crate::limits::limit::Limit;
use crate::metrics::CacheOutcome;
use crate::pull::blob_request::BlobRequest;
use crate::pull::download::{self, HandedOverStream};
use crate::pull::fill_owner::FillOwner;

/// Maximum number of running fills. Each fill holds a staged file open while it waits for a
/// download slot, and continues after its client has left.
const MAX_FILLS: u64 = 512;

/// Claims the blob. `None`: another registry fills this digest. Only clients of that other registry
/// may wait for its fill or trust its bytes.
pub(crate) async fn claim_of(
    context: &RequestContext,
    request: &BlobRequest,
) -> Result<Option<ClaimResult>, Error> {
    let BlobRequest {
        registry, digest, ..
    } = request;
    let Some(owner) = context.fill_owners.enter(digest, registry) else {
        // An earlier fill may have stored the blob meanwhile.
        let found = context.cache.get(digest).await?;
        return Ok(found.map(ClaimResult::Stored));
    };
    Ok(Some(
        match context.cache.claim(digest, request.origin()).await? {
            Claim::Hit(blob) => ClaimResult::Stored(blob),
            Claim::Follower(reader) => {
                let offer = owner.slot_offer(&request.client);
                ClaimResult::Follower(reader, offer)
            }
            Claim::Leader(fill, reader) => {
                owner.begin();
                ClaimResult::Leader(fill, reader, owner)
            }
        },
    ))
}

/// The [`Claim`] of the cache, with the state that the proxy adds for a fill.
pub(crate) enum ClaimResult {
    Stored(StoredBlob),
    /// A running fill. The sender offers it a download slot, if the fill has no slot.
    Follower(BlobReader, Option<Sender<DownloadSlot>>),
    /// A new fill. Its owner prevents fills of the digest from other registries until the fill has
    /// ended.
    Leader(Fill, BlobReader, FillOwner),
}

/// Claims the blob for a client. As the leader, starts the download in its own task, which may hand
/// over its stream. `None` as for [`claim_of`], or if pass-through forbids the content.
pub(crate) async fn claim(
    context: &Arc<RequestContext>,
    request: &BlobRequest,
) -> Result<
    Option<(
        BlobReader,
        CacheOutcome,
        Option<oneshot::Receiver<HandedOverStream>>,
    )>,
    Error,
> {
    if !context.cache.contains(&request.digest) && context.cache.stat().fills >= MAX_FILLS {
        return Err(Limit::UpstreamRequests.into());
    }
    // The permit is acquired before the claim. A follower of a fill that has a download slot
    // releases the permit at once.
    let permit = match context.cache.contains(&request.digest) {
        true => None,
        false => Some(context.limits.upstream_permit(&request.client)?),
    };
    Ok(match claim_of(context, request).await? {
        None => None,
        Some(ClaimResult::Stored(_)) if !context.may_share(&request.registry, &request.digest) => {
            None
        }
        Some(ClaimResult::Follower(..))
            if context
                .client_pass_through()
                .is_some_and(|it| !it.is_single_origin(&request.digest)) =>
        {
            None
        }
        Some(ClaimResult::Stored(blob)) => {
            Some((BlobReader::Stored(blob), CacheOutcome::Hit, None))
        }
        Some(ClaimResult::Follower(reader, offer)) => {
            // A follower without a permit waits until the fill gets the slot of another client.
            if let Some(offer) = offer
                && let Ok(permit) =
                    permit.map_or_else(|| context.limits.upstream_permit(&request.client), Ok)
            {
                let (context, request) = (context.clone(), request.clone());
                let waiters = reader
                    .readers()
                    .map_or_else(DownloadWaiters::owner, DownloadWaiters::readers);
                tokio::spawn(async move {
                    download::offer_slot(&context, permit, (&request, waiters), offer).await;
                });
            }
            Some((reader, CacheOutcome::Miss, None))
        }
        Some(ClaimResult::Leader(mut fill, reader, owner)) => {
            let single_origin = match context.client_pass_through() {
                Some(pass_through) => Some(pass_through.begin_single_origin(&mut fill).await?),
                None => None,
            };
            let permit = match permit {
                Some(permit) => permit,
                // The blob was evicted since the check above. If there is no permit, the fill is
                // cancelled.
                None => context.limits.upstream_permit(&request.client)?,
            };
            let handed_over = download::start(
                context.clone(),
                request.clone(),
                fill,
                (owner, single_origin),
                permit,
            );
            Some((reader, CacheOutcome::Miss, Some(handed_over)))
        }
    })
}
