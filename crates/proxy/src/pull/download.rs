//! Downloads one blob from the upstream into a fill of the cache, in a task of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use pierhead_cache::{Claim, Error as CacheError, Fill, StoredBlob};
use pierhead_host::{BackgroundTask, PIECE_BYTES, metered};
use pierhead_remote::{BlobSources, BlobStream};
use tokio::sync::mpsc::Sender;
use tokio::sync::oneshot;

use crate::context::RequestContext;
use crate::error::{is_not_admitted, is_wrong};
use crate::limits::downloads::{Download, DownloadSlot, DownloadWaiters, UpstreamPermit};
use crate::limits::work_slots::{WorkSlot, WorkState};
use crate::pull::blob_request::BlobRequest;
use crate::pull::download_log::DownloadLog;
use crate::pull::fill_owner::FillOwner;

/// Interval at which a running fill without readers must have received bytes. Otherwise the fill
/// ends.
const UNREAD_FILL_INTERVAL: Duration = Duration::from_secs(5);

/// Downloads into `fill` in a background task. If all clients of the fill disconnect, a download that
/// runs continues while bytes arrive, and a download that waits for its slot ends.
pub(crate) fn start(
    context: Arc<RequestContext>,
    request: BlobRequest,
    fill: Fill,
    owner: FillOwner,
    (fill_slot, permit): (WorkSlot, UpstreamPermit),
) -> oneshot::Receiver<HandedOverStream> {
    let (pass, handed_over) = oneshot::channel();
    let panics = context.cache.panics().clone();
    panics.spawn(BackgroundTask::FillOwner, async move {
        // If this task panics, dropping the fill reports an error to its readers. The next request
        // downloads the blob again.
        let waiters = DownloadWaiters::readers(fill.readers());
        let waiting = (&request, waiters);
        let slot = tokio::select! {
            slot = acquire_slot_for_fill(&context, waiting, permit, &owner) => slot,
            () = fill.unread() => return end(fill, owner),
            () = fill_slot.yield_requested() => return end(fill, owner),
        };
        let readers = fill.readers();
        fill_slot.set_state(move || match readers.is_empty() {
            true => WorkState::Unawaited,
            false => WorkState::Received,
        });
        let mut stream = None;
        let fill = (fill, AdmissionMode::IfAdmitted);
        let arrived = AtomicU64::new(0);
        // The readers of the fill get the result of the download, so this task returns nothing.
        tokio::select! {
            _ = run(&context, &request, fill, (&slot, &arrived), &mut stream) => {}
            () = slot.yield_requested() => {}
            () = fill_slot.yield_requested() => {}
            () = unread_and_silent(&slot, &arrived) => {}
        }
        // The stream is handed over only with a download slot of the client itself. The client
        // decides how fast it reads, and must not hold the slot of another client.
        if let Some(stream) = stream
            && slot.is_of(&request.client)
        {
            slot.set_owner_waiting(true);
            // The send fails if the client has disconnected.
            let _ = pass.send(HandedOverStream { stream, slot });
        }
        drop(owner);
    });
    handed_over
}

/// The upstream stream of a fill that the cache did not admit, from the first byte of the blob on.
/// The client that started the fill continues with this stream, without a second upstream request.
pub(crate) struct HandedOverStream {
    pub(crate) stream: BlobStream,
    pub(crate) slot: DownloadSlot,
}

/// Waits for a slot to download a blob. Cancel safe.
pub(crate) async fn acquire_slot(
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
pub(crate) async fn acquire_slot_for_fill(
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
        slot = acquire_slot(context, permit, request, waiters.clone()) => slot,
        Some(slot) = other => {
            // The slot belongs to another client that waits for the fill, and that client may
            // disconnect.
            slot.set_waiters(waiters);
            slot
        }
    }
}

/// Waits for a slot on behalf of another client's fill, until that fill has a slot.
pub(crate) async fn offer_slot(
    context: &RequestContext,
    permit: UpstreamPermit,
    (request, waiters): (&BlobRequest, DownloadWaiters),
    fill: Sender<DownloadSlot>,
) {
    tokio::select! {
        slot = acquire_slot(context, permit, request, waiters) => {
            // The fill may already have a slot. In that case, dropping this slot releases it.
            let _ = fill.try_send(slot);
        }
        () = fill.closed() => {}
    }
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
/// they arrive. `handed_over` gets the upstream stream if the cache does not admit the blob.
///
/// If the future is dropped, the readers of the fill get an error. The staged bytes of the fill
/// stay.
pub(crate) async fn run(
    context: &Arc<RequestContext>,
    request: &BlobRequest,
    (mut fill, admission): (Fill, AdmissionMode),
    (slot, arrived): (&DownloadSlot, &AtomicU64),
    handed_over: &mut Option<BlobStream>,
) -> Result<StoredBlob, crate::error::Error> {
    let resumed = fill.offset() > 0;
    admission.apply_to(&mut fill);
    match download_into(context, request, fill, (slot, arrived), handed_over).await {
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
                    download_into(context, request, fill, (slot, arrived), handed_over).await
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
    context: &RequestContext,
    request: &BlobRequest,
    mut fill: Fill,
    (slot, arrived): (&DownloadSlot, &AtomicU64),
    handed_over: &mut Option<BlobStream>,
) -> Result<StoredBlob, crate::error::Error> {
    let mut download = DownloadLog::start(context, request, Some(slot));
    let bytes = (arrived, &mut download);
    let failed = match transfer(context, request, &mut fill, bytes, handed_over).await {
        Ok(sources) => match finish(fill, sources).await {
            Ok(blob) => {
                download.stored();
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
                download.failed(&error);
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
    download.failed(&failed);
    fill.abandon(&failed.to_string());
    Err(failed)
}

/// Finishes the fill. If the bytes are wrong, pierhead distrusts the addresses that sent them. This
/// happens before the readers get the error, because a reader then starts another fill at once, and
/// that fill must ask another address.
async fn finish(fill: Fill, sources: BlobSources) -> Result<StoredBlob, CacheError> {
    fill.before_failure(move |error| {
        if is_fault_of_address(error) {
            sources.report_mismatch();
        }
    });
    fill.finish().await
}

/// Whether the addresses that sent the bytes are to blame for `error`. If corrupt staged bytes of an
/// earlier fill may have caused the mismatch, no address is to blame.
fn is_fault_of_address(error: &CacheError) -> bool {
    is_wrong(error) && !has_staged_bytes(error)
}

async fn transfer(
    context: &RequestContext,
    request: &BlobRequest,
    fill: &mut Fill,
    (arrived, download): (&AtomicU64, &mut DownloadLog<'_>),
    handed_over: &mut Option<BlobStream>,
) -> Result<BlobSources, crate::error::Error> {
    let BlobRequest {
        registry,
        repository,
        digest,
        ..
    } = request;
    let mut waiting_since = Instant::now();
    let mut stream = context
        .client
        .blob(registry, repository, digest, fill.offset())
        .await?;
    let head = waiting_since.elapsed();
    download.from(stream.address());
    if stream.offset() != fill.offset() {
        fill.restart().await?;
    }
    fill.set_repository(repository);
    if let Some(size) = stream.size() {
        fill.set_cost(context.costs.estimate(registry, size));
    }
    if let Err(error) = fill.begin(stream.size()).await {
        if is_not_admitted(&error) && stream.offset() == 0 {
            *handed_over = Some(stream);
        }
        return Err(error.into());
    }
    // The measured time is the wait for the upstream, without the time for disk, eviction and CPU
    // pacer.
    let (mut first, mut waited, mut rest) = (None, Duration::ZERO, 0);
    waiting_since = Instant::now();
    let mut since_pause = 0;
    while let Some(bytes) = stream.next().await {
        let bytes = bytes?;
        if first.is_none() {
            first = Some(head + waiting_since.elapsed());
        } else {
            waited += waiting_since.elapsed();
            rest += u64::try_from(bytes.len()).unwrap_or(0);
        }
        download.received(bytes.len());
        arrived.fetch_add(u64::try_from(bytes.len()).unwrap_or(0), Ordering::Relaxed);
        since_pause += u64::try_from(bytes.len()).unwrap_or(0);
        let pacer = context.pacer.as_deref();
        metered(pacer, fill.write(bytes)).await?;
        if let Some(pacer) = pacer.filter(|_| since_pause >= PIECE_BYTES) {
            since_pause = 0;
            pacer.pass().await;
        }
        waiting_since = Instant::now();
    }
    if let Some(first) = first {
        context.costs.learn(registry, first, waited, rest);
    }
    // If several addresses of the upstream sent parts of the blob, the log names the last of them.
    download.from(stream.address());
    Ok(stream.sources())
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
    use pierhead_testkit::images::random_bytes;
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
        let bytes = random_bytes(1, 1 << 20);
        let digest = upstream.put_blob("app", bytes.clone());
        let one = fixture.request(digest, 1);
        // In this test, an earlier fill has left corrupt staged bytes.
        let (mut fill, _) = fixture.lead_and_read(&one).await;
        let size = u64::try_from(bytes.len()).ok();
        fill.begin(size).await.unwrap();
        fill.write(Bytes::from(vec![0; 512 << 10])).await.unwrap();
        fill.abandon("cut");
        let (fill, _) = fixture.lead_and_read(&one).await;
        assert!(fill.offset() > 0);
        let (first, restarted) = (Gate::new(), Gate::new());
        upstream.inject(Fault::GateBody(1, first.clone()).on_blobs().times(1));
        upstream.inject(Fault::GateBody(1, restarted.clone()).on_blobs().skip(1));
        let waiters = DownloadWaiters::owner_and(fill.readers());
        let permit = context.limits.upstream_permit(&one.client).unwrap();
        let slot = acquire_slot(context, permit, &one, waiters).await;
        // The operator's command ends before the fill restarts.
        slot.set_owner_waiting(false);
        let (arrived, mut handed_over) = (AtomicU64::new(0), None);
        let fill = (fill, AdmissionMode::Always);
        let run = run(context, &one, fill, (&slot, &arrived), &mut handed_over);
        let two = fixture.request(digest, 2);
        let other = async {
            first.reached(1).await;
            first.release();
            restarted.reached(1).await;
            let permit = context.limits.upstream_permit(&two.client).unwrap();
            let slot = acquire_slot(context, permit, &two, DownloadWaiters::owner());
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
