//! Downloads one blob from the upstream into a fill of the cache, in a task of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use pierhead_cache::{Claim, Error as CacheError, Fill, StoredBlob};
use pierhead_host::BackgroundTask;
use pierhead_remote::RangeSpec;

use crate::context::RequestContext;
use crate::error::{is_not_admitted, is_wrong};
use crate::limits::downloads::{DownloadSlot, DownloadWaiters, UpstreamPermit};
use crate::limits::work_slots::{WorkSlot, WorkState};
use crate::pull::blob_request::BlobRequest;
use crate::pull::download_log::DownloadLog;
use crate::pull::download_slot;
use crate::pull::extra_connections::FillDownload;
use crate::pull::fill_owner::FillOwner;
use crate::pull::fill_ranges::FillRanges;
use crate::pull::shared_download::stream_task::ExpectedStream;
use crate::pull::transfer::{self, FirstRequest};

/// Interval at which a running fill without readers must have received bytes. Otherwise the fill
/// ends.
const UNREAD_FILL_INTERVAL: Duration = Duration::from_secs(5);

/// Downloads into `fill` in a background task. If all clients of the fill disconnect, a download that
/// runs continues while bytes arrive, and a download that waits for its slot ends. The first upstream
/// request is for `range`, if the client requested a range.
pub(crate) fn start(
    download: FillDownload,
    fill: Fill,
    owner: FillOwner,
    (fill_slot, permit): (WorkSlot, UpstreamPermit),
    (range, expected): (Option<RangeSpec>, ExpectedStream),
) {
    let panics = download.context.cache.panics().clone();
    panics.spawn(BackgroundTask::FillOwner, async move {
        // If this task panics, dropping the fill reports an error to its readers. The next request
        // downloads the blob again.
        let (context, request) = (&download.context, &download.request);
        let waiters = DownloadWaiters::readers(fill.readers());
        let waiting = (request, waiters);
        let slot = tokio::select! {
            slot = download_slot::acquire_for_fill(context, waiting, permit, &owner) => slot,
            () = fill.unread() => return end(fill, owner),
            () = fill_slot.yield_requested() => return end(fill, owner),
        };
        let readers = fill.readers();
        fill_slot.set_state(move || match readers.is_empty() {
            true => WorkState::Unawaited,
            false => WorkState::Received,
        });
        let mut first = FirstRequest {
            range,
            expected: Some(expected),
            handed_over: None,
        };
        let fill = (fill, AdmissionMode::IfAdmitted);
        let arrived = Arc::default();
        // The readers of the fill get the result of the download, so this task returns nothing.
        tokio::select! {
            _ = run((&download, &owner), fill, (&slot, &arrived), &mut first) => {}
            () = slot.yield_requested() => {}
            () = fill_slot.yield_requested() => {}
            () = unread_and_silent(&slot, &arrived) => {}
        }
        if let (Some(stream), Some(expected)) = (first.handed_over, first.expected) {
            expected.hand_over(stream, slot);
        }
        drop(owner);
    });
}

/// Ends a fill that has no download slot. The owner must outlive the fill.
fn end(fill: Fill, owner: FillOwner) {
    drop(fill);
    drop(owner);
}

/// Resolves when no client reads the fill and no bytes have arrived for a while.
async fn unread_and_silent(slot: &DownloadSlot, arrived: &AtomicU64) {
    let mut before = None;
    loop {
        let now = (!slot.has_readers()).then(|| arrived.load(Ordering::Relaxed));
        if now.is_some() && now == before {
            return;
        }
        before = now;
        tokio::time::sleep(UNREAD_FILL_INTERVAL).await;
    }
}

/// Whether the cache may refuse to store the blob.
#[derive(Clone, Copy)]
pub(crate) enum AdmissionMode {
    /// The admission policy of the cache decides whether the blob is stored. Used for a pull of a
    /// client.
    IfAdmitted,
    /// The blob is stored in any case. For `cache warm` and for bundles, which need the blob in the
    /// cache.
    Always,
}

impl AdmissionMode {
    fn apply_to(self, fill: &mut Fill) {
        if matches!(self, Self::Always) {
            fill.insist();
        }
    }
}

/// Downloads the whole blob in that slot and stores it in the cache. `arrived` counts the bytes as
/// they arrive. `first` gets the upstream stream if the cache does not admit the blob.
///
/// If the future is dropped, the readers of the fill get an error. The staged bytes of the fill
/// stay.
pub(crate) async fn run(
    (download, owner): (&FillDownload, &FillOwner),
    (mut fill, admission): (Fill, AdmissionMode),
    (slot, arrived): (&DownloadSlot, &Arc<AtomicU64>),
    first: &mut FirstRequest,
) -> Result<StoredBlob, crate::error::Error> {
    let FillDownload {
        context, request, ..
    } = download;
    let resumed = fill.offset() > 0;
    admission.apply_to(&mut fill);
    match download_into(download, fill, (slot, arrived), first).await {
        // The staged bytes of an earlier fill may have been corrupt. The cache has deleted these
        // bytes, so a new fill starts.
        Err(error) if resumed && error.is_wrong_content() => {
            match context
                .cache
                .claim(&request.digest, request.origin())
                .await?
            {
                Claim::Leader(mut fill, reader) => {
                    // The reader is dropped, because the download task must not count as a reader
                    // of the fill.
                    drop(reader);
                    admission.apply_to(&mut fill);
                    // The readers of the first fill now wait for the new fill.
                    slot.set_readers(fill.readers());
                    let ranges = owner.ranges(&fill.pieces());
                    let download = FillDownload {
                        ranges,
                        ..download.clone()
                    };
                    download_into(&download, fill, (slot, arrived), first).await
                }
                Claim::Hit(blob) => Ok(blob),
                Claim::Follower(reader) => committed(reader).await,
            }
        }
        ended => ended,
    }
}

/// Waits until the blob that `reader` reads is stored.
pub(crate) async fn committed(
    reader: pierhead_cache::BlobReader,
) -> Result<StoredBlob, crate::error::Error> {
    match reader {
        pierhead_cache::BlobReader::Stored(blob) => Ok(blob),
        pierhead_cache::BlobReader::Tail(tail) => Ok(tail.committed().await?),
    }
}

/// Downloads the blob into `fill`, stores it, and records how the download ended.
async fn download_into(
    download: &FillDownload,
    mut fill: Fill,
    (slot, arrived): (&DownloadSlot, &Arc<AtomicU64>),
    first: &mut FirstRequest,
) -> Result<StoredBlob, crate::error::Error> {
    let FillDownload {
        context,
        request,
        ranges,
    } = download;
    let mut log = DownloadLog::start(context, request, Some(slot));
    let bytes = (arrived, &mut log);
    let failed = match transfer::transfer(download, &mut fill, bytes, first).await {
        Ok(()) => match finish(fill, ranges.clone()).await {
            Ok(blob) => {
                log.stored();
                context
                    .generation
                    .negative_cache
                    .record_response(&request.registry);
                context.record_origin(&request.registry, &request.repository, &request.digest);
                return Ok(blob);
            }
            Err(error) => {
                // Whether another address of the upstream may have the right bytes of the blob.
                let has_other_address = is_fault_of_address(&error)
                    && !context
                        .client
                        .all_mismatched(&request.registry, &request.digest);
                record_cache_error(context, request, &error, has_other_address);
                let error = error.into();
                log.failed(&error);
                return Err(error);
            }
        },
        Err(failed) => failed,
    };
    // The failure is recorded before the fill ends, because the readers of the fill look into the
    // negative cache after its end.
    match &failed {
        crate::error::Error::Upstream(error) => context.generation.negative_cache.record_failure(
            &request.registry,
            request.subject(),
            error,
        ),
        crate::error::Error::Cache(error) => record_cache_error(context, request, error, false),
        _ => {}
    }
    log.failed(&failed);
    fill.abandon(&failed.to_string());
    Err(failed)
}

/// Finishes the fill. If the bytes are wrong, pierhead distrusts the addresses that sent them. This
/// happens before the readers get the error, because a reader then starts another fill at once, and
/// that fill must ask another address.
async fn finish(fill: Fill, ranges: Arc<FillRanges>) -> Result<StoredBlob, CacheError> {
    fill.before_failure(move |error| {
        if is_fault_of_address(error) {
            ranges.report_mismatch();
        }
    });
    fill.finish().await
}

/// Whether the addresses that sent the bytes are to blame for `error`. If corrupt staged bytes of an
/// earlier fill may have caused the mismatch, no address is to blame.
fn is_fault_of_address(error: &CacheError) -> bool {
    is_wrong(error) && !has_staged_bytes(error)
}

/// Whether staged bytes of an earlier fill may have caused the digest mismatch.
fn has_staged_bytes(error: &CacheError) -> bool {
    matches!(error, CacheError::WrongDigest { resumed: true, .. })
}

/// Records a failure of the fill in the negative cache. A digest mismatch is not recorded while
/// another address of the upstream may have the right bytes.
fn record_cache_error(
    context: &RequestContext,
    request: &BlobRequest,
    error: &CacheError,
    has_other_address: bool,
) {
    let BlobRequest {
        registry,
        repository,
        digest,
        ..
    } = request;
    // A blob that is not admitted is not recorded as a failure, because the policy may admit it at
    // the next request.
    if is_not_admitted(error) {
        tracing::debug!(%registry, %repository, %digest, %error, "blob streamed without storing it");
        return;
    }
    if error.is_storage() {
        context.generation.negative_cache.record_unstorable(*digest);
    }
    if is_fault_of_address(error) && !has_other_address {
        let mismatch = pierhead_remote::Error::Protocol {
            upstream: registry.to_string(),
            what: error.to_string(),
        };
        context
            .generation
            .negative_cache
            .record_mismatch(request.subject(), mismatch);
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use pierhead_oci::{Algorithm, Digest};
    use pierhead_testkit::registry::{Fault, Gate};

    use super::*;
    use crate::pull::fill_fixture::FillFixture;

    #[tokio::test(start_paused = true)]
    async fn a_fill_ends_when_no_client_reads_it_and_no_bytes_arrive() {
        let fixture = FillFixture::start().await;
        let slot = fixture.hold_slot().await;
        let request = fixture.request(Digest::of(Algorithm::Sha256, b"a"), 1);
        let (fill, reader) = fixture.lead_and_read(&request).await;
        slot.set_readers(fill.readers());
        let arrived = AtomicU64::new(0);
        let mut ended = std::pin::pin!(unread_and_silent(&slot, &arrived));
        let read = tokio::time::timeout(10 * UNREAD_FILL_INTERVAL, &mut ended).await;
        assert!(read.is_err(), "a client reads the fill");
        drop(reader);
        for _ in 0..20 {
            arrived.fetch_add(1, Ordering::Relaxed);
            let busy = tokio::time::timeout(UNREAD_FILL_INTERVAL / 2, &mut ended).await;
            assert!(busy.is_err(), "bytes arrive");
        }
        let silent = tokio::time::timeout(10 * UNREAD_FILL_INTERVAL, ended).await;
        assert!(silent.is_ok(), "the fill only waits");
    }

    #[tokio::test]
    async fn a_restarted_fill_without_readers_yields_its_slot() {
        let fixture = FillFixture::start().await;
        let (context, upstream) = (&fixture.context, &fixture.upstream);
        let bytes = pierhead_testkit::images::random_bytes(1, 1 << 20);
        let digest = upstream.put_blob("app", bytes.clone());
        let one = fixture.request(digest, 1);
        // In this test, an earlier fill has left corrupt staged bytes.
        let mut fill = fixture.lead(&one).await;
        let size = u64::try_from(bytes.len()).ok();
        fill.begin(size).await.unwrap();
        fill.write(Bytes::from(vec![0; 512 << 10])).await.unwrap();
        fill.abandon("cut");
        let fill = fixture.lead(&one).await;
        assert!(fill.offset() > 0);
        let (first, restarted) = (Gate::new(), Gate::new());
        upstream.inject(Fault::GateBody(1, first.clone()).on_blobs().times(1));
        upstream.inject(Fault::GateBody(1, restarted.clone()).on_blobs().skip(1));
        let waiters = DownloadWaiters::owner_and(fill.readers());
        let permit = context.limits.upstream_permit(&one.client).unwrap();
        let slot = download_slot::acquire(context, permit, &one, waiters).await;
        // The operator's command ends before the fill restarts.
        slot.set_owner_waiting(false);
        let (arrived, mut whole) = (Arc::default(), FirstRequest::default());
        let owner = fixture.owner(&one);
        let download = fixture.download(&one, &owner, &fill);
        let fill = (fill, AdmissionMode::Always);
        let run = run((&download, &owner), fill, (&slot, &arrived), &mut whole);
        let two = fixture.request(digest, 2);
        let other = async {
            first.reached(1).await;
            first.release();
            restarted.reached(1).await;
            let permit = context.limits.upstream_permit(&two.client).unwrap();
            let slot = download_slot::acquire(context, permit, &two, DownloadWaiters::owner());
            slot.await
        };
        tokio::select! {
            _ = run => panic!("the gate holds the restarted download"),
            _ = other => panic!("there is one slot"),
            () = slot.yield_requested() => {}
            () = tokio::time::sleep(Duration::from_secs(20)) => panic!("it never yields"),
        }
    }
}
