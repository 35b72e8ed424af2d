//! Decides how a request gets a blob. Either the blob is cached; or a fill (a download into the
//! cache) runs, and the request follows the fill; or the request starts a fill as its leader.

use std::sync::Arc;

use pierhead_cache::{BlobReader, Claim, Fill, StoredBlob};
use pierhead_host::BackgroundTask;
use tokio::sync::mpsc::Sender;
use tokio::sync::oneshot;

use crate::context::RequestContext;
use crate::error::Error;
use crate::limits::downloads::{DownloadSlot, DownloadWaiters};
use crate::limits::limit::Limit;
use crate::limits::work_slots::{WorkSlot, WorkState};
use crate::metrics::CacheOutcome;
use crate::pull::blob_request::BlobRequest;
use crate::pull::download::{self, HandedOverStream};
use crate::pull::fill_owner::FillOwner;

/// Claims the blob. `None`: a fill of this digest from another registry runs. Only clients of that
/// registry may wait for the fill or trust its bytes.
pub(crate) async fn claim_of(
    context: &RequestContext,
    request: &BlobRequest,
) -> Result<Option<ClaimResult>, Error> {
    let BlobRequest {
        registry, digest, ..
    } = request;
    let Some(owner) = context.fill_owners.enter(digest, registry) else {
        // A fill may have stored the blob after the caller looked for it.
        let found = context.cache.get(digest).await?;
        return Ok(found.map(ClaimResult::Stored));
    };
    Ok(Some(
        match context.cache.claim(digest, request.origin()).await? {
            Claim::Hit(blob) => ClaimResult::Stored(blob),
            // The owner of that fill has been dropped, and the fill is about to end.
            Claim::Follower(reader) if !reader.is_fill_from(&request.origin()) => return Ok(None),
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

/// Takes the slot of a fill that the client is about to start.
fn take_fill_slot(context: &RequestContext, request: &BlobRequest) -> Result<WorkSlot, Limit> {
    let holder = context.holder(&request.client, &request.registry);
    context.limits.fills.take(holder, || WorkState::Awaited)
}

/// How a request gets a blob: from the cache, from the fill of another request, or by a fill of its
/// own. Equals [`Claim`] of the cache, with the state that the proxy adds for a fill.
pub(crate) enum ClaimResult {
    Stored(StoredBlob),
    /// A fill runs. If the fill has no download slot, this request can offer a slot to it through
    /// the sender.
    Follower(BlobReader, Option<Sender<DownloadSlot>>),
    /// The request starts a fill. The owner prevents fills of the digest from other registries
    /// until the fill has ended.
    Leader(Fill, BlobReader, FillOwner),
}

/// Claims the blob for a client. The leader starts the download in a task of its own, which may
/// hand over its upstream stream. `None` for the reason that [`claim_of`] gives, or if pass-through
/// forbids the content.
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
                let panics = context.cache.panics().clone();
                panics.spawn(BackgroundTask::FillOwner, async move {
                    download::offer_slot(&context, permit, (&request, waiters), offer).await;
                });
            }
            Some((reader, CacheOutcome::Miss, None))
        }
        Some(ClaimResult::Leader(fill, reader, owner)) => {
            // Only a leader takes the slot of a fill, because a full table takes it from another
            // fill. Without a slot or a permit (the blob was evicted after the check above), the
            // fill is cancelled.
            let fill_slot = take_fill_slot(context, request)?;
            let permit = permit.map_or_else(|| context.limits.upstream_permit(&request.client), Ok);
            let slots = (fill_slot, permit?);
            let handed_over = download::start(context.clone(), request.clone(), fill, owner, slots);
            Some((reader, CacheOutcome::Miss, Some(handed_over)))
        }
    })
}

#[cfg(test)]
mod tests {
    use pierhead_oci::{Algorithm, Digest, Registry};
    use pierhead_testkit::wait;

    use super::*;
    use crate::pull::fill_fixture::FillFixture;

    fn digest(seed: usize) -> Digest {
        Digest::of(Algorithm::Sha256, &seed.to_le_bytes())
    }

    #[tokio::test]
    async fn a_fill_without_slot_ends_when_its_clients_have_left() {
        let fixture = FillFixture::start().await;
        let _slot = fixture.hold_slot().await;
        let context = &fixture.context;
        let request = fixture.request(digest(1), 1);
        let first = claim(context, &request).await.unwrap();
        let other = fixture.request(digest(1), 2);
        let second = claim(context, &other).await.unwrap();
        drop(first);
        // The fill continues for its second client.
        tokio::task::yield_now().await;
        assert_eq!(context.cache.stat().fills, 1);
        drop(second);
        wait::until_async("the end", || context.cache.stat().fills == 0).await;
        // The client gets all its permits back.
        let permits: Result<Vec<_>, _> = (0..4)
            .map(|_| context.limits.upstream_permit(&request.client))
            .collect();
        assert!(permits.is_ok());
    }

    #[tokio::test]
    async fn fills_of_unconfigured_registries_leave_room_for_other_clients() {
        let fixture = FillFixture::start().await;
        let _slot = fixture.hold_slot().await;
        let context = &fixture.context;
        let unconfigured: Registry = "slow.test".parse().unwrap();
        let mut held = Vec::new();
        // 200 clients start as many fills as they may.
        for nth in 0..800 {
            let request = BlobRequest {
                registry: unconfigured.clone(),
                ..fixture.request(digest(nth), u8::try_from(nth % 200).unwrap())
            };
            held.extend(claim(context, &request).await);
        }
        assert!(held.len() < 512, "{}", held.len());
        for last in 200..250 {
            let request = fixture.request(digest(1000 + usize::from(last)), last);
            held.push(claim(context, &request).await.unwrap());
        }
        // A new client of an unconfigured registry gets the slot of a client with several fills.
        let request = BlobRequest {
            registry: unconfigured,
            ..fixture.request(digest(2000), 251)
        };
        held.push(claim(context, &request).await.unwrap());
        wait::until_async("the fill that yields", || context.cache.stat().fills <= 512).await;
    }
}
