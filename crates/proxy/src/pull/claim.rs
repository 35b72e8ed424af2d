//! Who gets a blob how: from the cache, by a fill under way, or as the one that fills it.

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
use crate::pull::fetch::{self, HandedOverStream};
use crate::pull::fill_owner::FillOwner;

/// Fills at once: each holds a staged file open while it waits for its turn at the upstream, and goes on
/// when its client has left.
const MAX_FILLS: u64 = 512;

/// What a claim found, or `None` when another registry is filling this digest: nobody who does not mean
/// that registry waits for it, or believes it.
pub(crate) async fn claim_of(
    context: &RequestContext,
    request: &BlobRequest,
) -> Result<Option<ClaimResult>, Error> {
    let BlobRequest {
        registry, digest, ..
    } = request;
    let Some(owner) = context.fill_owners.enter(digest, registry) else {
        // Committed by the one before, maybe.
        let found = context.cache.get(digest).await?;
        return Ok(found.map(ClaimResult::Stored));
    };
    Ok(Some(
        match context.cache.claim(digest, request.origin()).await? {
            Claim::Hit(blob) => ClaimResult::Stored(blob),
            Claim::Follower(content) => {
                let offer = owner.slot_offer(&request.client);
                ClaimResult::Follower(content, offer)
            }
            Claim::Leader(fill, content) => {
                owner.begin();
                ClaimResult::Leader(fill, content, owner)
            }
        },
    ))
}

/// As [`Claim`].
pub(crate) enum ClaimResult {
    Stored(StoredBlob),
    /// With where to leave a turn for the fill, when it has none.
    Follower(BlobReader, Option<Sender<DownloadSlot>>),
    /// With what keeps other registries away until the fill has ended.
    Leader(Fill, BlobReader, FillOwner),
}

/// One claim; the fetch of a leader is a task of its own, and may have something to pass on. `None` as of [`claim_of`].
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
        return Err(Limit::Fetches.into());
    }
    // Taken before it is known who leads: whoever follows a fill that has its turn gives it back at once.
    let ticket = match context.cache.contains(&request.digest) {
        true => None,
        false => Some(context.limits.queue(&request.client)?),
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
        Some(ClaimResult::Follower(content, offer)) => {
            // Whoever has no place to wait in waits along.
            if let Some(offer) = offer
                && let Ok(ticket) = ticket.map_or_else(|| context.limits.queue(&request.client), Ok)
            {
                let (context, request) = (context.clone(), request.clone());
                let waiters = content
                    .readers()
                    .map_or_else(DownloadWaiters::owner, DownloadWaiters::readers);
                tokio::spawn(async move {
                    fetch::offer_slot(&context, ticket, (&request, waiters), offer).await;
                });
            }
            Some((content, CacheOutcome::Miss, None))
        }
        Some(ClaimResult::Leader(mut fill, content, owner)) => {
            let single_origin = match context.client_pass_through() {
                Some(pass_through) => Some(pass_through.begin(&mut fill).await?),
                None => None,
            };
            let ticket = match ticket {
                Some(ticket) => ticket,
                // Evicted, or failed, since we looked. The fill is given up when there is no place.
                None => context.limits.queue(&request.client)?,
            };
            let handed_over = fetch::start(
                context.clone(),
                request.clone(),
                fill,
                (owner, single_origin),
                ticket,
            );
            Some((content, CacheOutcome::Miss, Some(handed_over)))
        }
    })
}
