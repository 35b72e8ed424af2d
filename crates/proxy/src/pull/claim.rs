//! Decides how a request gets a blob. Either the blob is cached; or a fill (a download into the
//! cache) runs, and the request follows the fill; or the request starts a fill as its leader.

use std::sync::Arc;

use pierhead_cache::{BlobReader, Claim, Fill, StoredBlob};
use pierhead_host::BackgroundTask;
use pierhead_remote::RangeSpec;
use tokio::sync::mpsc::Sender;

use crate::context::RequestContext;
use crate::error::Error;
use crate::limits::downloads::{DownloadSlot, DownloadWaiters};
use crate::limits::limit::Limit;
use crate::metrics::CacheOutcome;
use crate::pull::blob_request::BlobRequest;
use crate::pull::download;
use crate::pull::download_slot;
use crate::pull::extra_connections::FillDownload;
use crate::pull::fill_owner::FillOwner;
use crate::pull::fill_ranges::FillRanges;
use crate::pull::shared_download::shared_reader::SharedReader;

/// Maximum number of running fills. Each fill holds a staged file open while it waits for a
/// download slot, and continues after its client has disconnected.
const MAX_FILLS: u64 = 512;

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
                let ranges = reader.pieces().map(|pieces| owner.ranges(&pieces));
                ClaimResult::Follower(reader, offer, ranges)
            }
            Claim::Leader(fill, reader) => {
                owner.begin();
                ClaimResult::Leader(fill, reader, owner)
            }
        },
    ))
}

/// How a request gets a blob: from the cache, from the fill of another request, or by a fill of its
/// own. Equals [`Claim`] of the cache, with the state that the proxy adds for a fill.
pub(crate) enum ClaimResult {
    Stored(StoredBlob),
    /// A fill runs. If the fill has no download slot, this request can offer a slot to it through
    /// the sender.
    Follower(
        BlobReader,
        Option<Sender<DownloadSlot>>,
        Option<Arc<FillRanges>>,
    ),
    /// The request starts a fill. The owner prevents fills of the digest from other registries
    /// until the fill has ended.
    Leader(Fill, BlobReader, FillOwner),
}

/// The blob that a client claimed.
pub(crate) struct ClaimedBlob {
    pub(crate) reader: BlobReader,
    pub(crate) outcome: CacheOutcome,
    /// The state of the upstream connections, if a fill runs.
    pub(crate) ranges: Option<Arc<FillRanges>>,
    /// Reads the upstream stream of the fill that the request started, if the cache does not store
    /// the blob.
    pub(crate) handed_over: Option<Box<SharedReader>>,
}

/// Claims the blob for a client. The leader starts the download in a task of its own, which may
/// hand over its upstream stream. The first upstream request of this download is for `range`, if
/// there is one. `None` for the reason that [`claim_of`] gives, if pass-through forbids the
/// content, or if a shared download without a fill runs.
pub(crate) async fn claim(
    context: &Arc<RequestContext>,
    request: &BlobRequest,
    range: Option<RangeSpec>,
) -> Result<Option<ClaimedBlob>, Error> {
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
        Some(ClaimResult::Stored(blob)) => Some(ClaimedBlob {
            reader: BlobReader::Stored(blob),
            outcome: CacheOutcome::Hit,
            ranges: None,
            handed_over: None,
        }),
        Some(ClaimResult::Follower(reader, offer, ranges)) => {
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
                    download_slot::offer(&context, permit, (&request, waiters), offer).await;
                });
            }
            Some(ClaimedBlob {
                reader,
                outcome: CacheOutcome::Miss,
                ranges,
                handed_over: None,
            })
        }
        // An earlier fill handed over its stream. One download serves all clients, so this fill ends
        // before its first request.
        Some(ClaimResult::Leader(..)) if context.shared_downloads.is_running(request) => None,
        Some(ClaimResult::Leader(fill, reader, owner)) => {
            let permit = match permit {
                Some(permit) => permit,
                // The blob was evicted after the check above. If no permit is free, the fill is
                // cancelled.
                None => context.limits.upstream_permit(&request.client)?,
            };
            let ranges = owner.ranges(&fill.pieces());
            let download = FillDownload {
                context: context.clone(),
                request: request.clone(),
                ranges: ranges.clone(),
            };
            let (shared, expected) = SharedReader::expecting(context, request, range);
            download::start(download, fill, owner, permit, (range, expected));
            Some(ClaimedBlob {
                reader,
                outcome: CacheOutcome::Miss,
                ranges: Some(ranges),
                handed_over: Some(shared),
            })
        }
    })
}
