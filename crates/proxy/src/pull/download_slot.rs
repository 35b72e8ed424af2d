//! Waits for the download slot that each upstream connection of a blob download needs.

use std::future::{Future, ready};

use tokio::sync::mpsc::Sender;

use crate::context::RequestContext;
use crate::limits::downloads::{Download, DownloadSlot, DownloadWaiters, UpstreamPermit};
use crate::pull::blob_request::BlobRequest;
use crate::pull::fill_owner::FillOwner;

/// Returns the result of a future that is ready at once.
pub(crate) async fn at_once<T>(future: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        biased;
        result = future => Some(result),
        () = ready(()) => None,
    }
}

/// Returns a slot of the client that sent the request, if a slot is free.
pub(crate) async fn acquire_at_once(
    context: &RequestContext,
    request: &BlobRequest,
    waiters: DownloadWaiters,
) -> Option<DownloadSlot> {
    let permit = context.limits.upstream_permit(&request.client).ok()?;
    at_once(acquire(context, permit, request, waiters)).await
}

/// Waits for a slot to download a blob. Cancel safe.
pub(crate) async fn acquire(
    context: &RequestContext,
    permit: UpstreamPermit,
    request: &BlobRequest,
    waiters: DownloadWaiters,
) -> DownloadSlot {
    let download = Download {
        registry: request.registry.clone(),
        digest: request.digest,
        is_configured: context.config().is_configured(&request.registry),
        waiters,
    };
    let all = context.limits.max_downloads();
    context.limits.acquire_download(permit, download, all).await
}

/// Waits for the first slot that the fill gets: a slot of the client that started the fill, or of
/// another client that waits for the fill.
pub(crate) async fn acquire_for_fill(
    context: &RequestContext,
    (request, waiters): (&BlobRequest, DownloadWaiters),
    permit: UpstreamPermit,
    owner: &FillOwner,
) -> DownloadSlot {
    let mut offered = owner.take_slot_offers(&request.client);
    let other = async {
        match &mut offered {
            Some(offered) => offered.recv().await,
            None => None,
        }
    };
    tokio::select! {
        slot = acquire(context, permit, request, waiters.clone()) => slot,
        Some(slot) = other => {
            // The slot belongs to another client that waits for the fill, and that client may
            // disconnect.
            slot.set_waiters(waiters);
            slot
        }
    }
}

/// Waits for a slot on behalf of another client's fill, until that fill has a slot.
pub(crate) async fn offer(
    context: &RequestContext,
    permit: UpstreamPermit,
    (request, waiters): (&BlobRequest, DownloadWaiters),
    fill: Sender<DownloadSlot>,
) {
    tokio::select! {
        slot = acquire(context, permit, request, waiters) => {
            // The fill may already have a slot. In that case, dropping this slot releases it.
            let _ = fill.try_send(slot);
        }
        () = fill.closed() => {}
    }
}
