//! Fetching one blob from the upstream into its fill: the leader's work, as a task of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use pierhead_cache::{Claim, Error as CacheError, Fill, Readers, StoredBlob};
use pierhead_host::{BackgroundTask, PIECE_BYTES, metered};
use pierhead_remote::{BlobSources, BlobStream};
use tokio::sync::mpsc::Sender;
use tokio::sync::oneshot;

use crate::access::pass_through::SingleOriginFill;
use crate::context::RequestContext;
use crate::error::{is_passed_on, is_wrong};
use crate::limits::downloads::{Download, DownloadSlot, Ticket};
use crate::pull::blob_request::BlobRequest;
use crate::pull::download_log::DownloadLog;
use crate::pull::fill_owner::FillOwner;

/// Fills `fill` in the background: clients come and go without a say in it.
pub(crate) fn start(
    context: Arc<RequestContext>,
    request: BlobRequest,
    fill: Fill,
    (owner, single_origin): (FillOwner, Option<SingleOriginFill>),
    ticket: Ticket,
) -> oneshot::Receiver<HandedOverStream> {
    let (pass, handed_over) = oneshot::channel();
    tokio::spawn(async move {
        // Dropping the fill fails its readers. The next request fetches the digest again.
        let _watch = context.cache.panics().watch(BackgroundTask::FillOwner);
        let readers = Some(fill.readers());
        let slot = acquire_slot_for_fill(&context, (&request, readers), ticket, &owner).await;
        let mut stream = None;
        let fill = (fill, AdmissionMode::IfAdmitted);
        let arrived = AtomicU64::new(0);
        // How it ended is known to the fill's readers; nobody else waits.
        tokio::select! {
            _ = run(&context, &request, fill, (&slot, &arrived), &mut stream) => {}
            () = slot.yield_requested() => {}
        }
        // How fast it is read is up to the client: only its own turn is held up by that.
        if let Some(stream) = stream
            && slot.is_of(&request.client)
        {
            slot.set_readers(None);
            // Nobody takes it when the client has left.
            let _ = pass.send(HandedOverStream { stream, slot });
        }
        // In this order: while it counts as clean, no other registry fills it.
        drop(single_origin);
        drop(owner);
    });
    handed_over
}

/// What was opened for a fill that was not let in, from its first byte: for whoever began it, so that no second
/// request is made.
pub(crate) struct HandedOverStream {
    pub(crate) stream: BlobStream,
    pub(crate) slot: DownloadSlot,
}

/// Waits for a slot to download a blob. `readers`: the readers of its bytes; `None` when a reader waits until the end.
/// Cancel safe.
pub(crate) async fn acquire_slot(
    context: &RequestContext,
    ticket: Ticket,
    request: &BlobRequest,
    readers: Option<Readers>,
) -> DownloadSlot {
    let download = Download {
        registry: request.registry.clone(),
        digest: request.digest,
        is_configured: context.config.load().names(&request.registry),
        readers,
    };
    let all = context.limits.max_fetches();
    context.limits.acquire_download(ticket, download, all).await
}

/// Waits until the fill has its turn: that of whoever began it, or of another who waits for it, whichever
/// comes first.
pub(crate) async fn acquire_slot_for_fill(
    context: &RequestContext,
    (request, readers): (&BlobRequest, Option<Readers>),
    ticket: Ticket,
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
        slot = acquire_slot(context, ticket, request, readers) => slot,
        Some(slot) = other => slot,
    }
}

/// Waits for a turn on behalf of a fill that somebody else began, until it has one.
pub(crate) async fn offer_slot(
    context: &RequestContext,
    ticket: Ticket,
    (request, readers): (&BlobRequest, Option<Readers>),
    fill: Sender<DownloadSlot>,
) {
    tokio::select! {
        slot = acquire_slot(context, ticket, request, readers) => {
            // When another was quicker, this one is given back.
            let _ = fill.try_send(slot);
        }
        () = fill.closed() => {}
    }
}

/// Whether the admission is asked.
#[derive(Clone, Copy)]
pub(crate) enum AdmissionMode {
    /// A client wants the bytes.
    IfAdmitted,
    /// Somebody asked for it to be kept.
    Always,
}

impl AdmissionMode {
    fn tell(self, fill: &mut Fill) {
        if matches!(self, Self::Always) {
            fill.insist();
        }
    }

    /// The readers of `fill`; `None` when a reader waits until its end.
    fn readers(self, fill: &Fill) -> Option<Readers> {
        match self {
            Self::IfAdmitted => Some(fill.readers()),
            Self::Always => None,
        }
    }
}

/// Fetches the whole blob in that slot, and commits it. `arrived` counts bytes on arrival. `passed` gets the stream when
/// the cache refuses to store the blob.
///
/// Not cancel safe in one respect: when dropped, the fill ends for its readers. What is staged stays.
pub(crate) async fn run(
    context: &Arc<RequestContext>,
    request: &BlobRequest,
    (mut fill, admission): (Fill, AdmissionMode),
    (slot, arrived): (&DownloadSlot, &AtomicU64),
    handed_over: &mut Option<BlobStream>,
) -> Result<StoredBlob, crate::error::Error> {
    let resumed = fill.offset() > 0;
    admission.tell(&mut fill);
    match into(context, request, fill, (slot, arrived), handed_over).await {
        // The leftovers of an earlier fill may be what was wrong, and they are gone now.
        Err(error) if resumed && error.is_wrong_content() => {
            match context
                .cache
                .claim(&request.digest, request.origin())
                .await?
            {
                Claim::Leader(mut fill, _) => {
                    admission.tell(&mut fill);
                    // The readers of the first fill now wait for this one.
                    slot.set_readers(admission.readers(&fill));
                    into(context, request, fill, (slot, arrived), handed_over).await
                }
                Claim::Hit(object) => Ok(object),
                Claim::Follower(content) => committed(content).await,
            }
        }
        ended => ended,
    }
}

/// Waits for somebody else's fill.
pub(crate) async fn committed(
    content: pierhead_cache::BlobReader,
) -> Result<StoredBlob, crate::error::Error> {
    match content {
        pierhead_cache::BlobReader::Stored(object) => Ok(object),
        pierhead_cache::BlobReader::Tail(tail) => Ok(tail.committed().await?),
    }
}

async fn into(
    context: &RequestContext,
    request: &BlobRequest,
    mut fill: Fill,
    (slot, arrived): (&DownloadSlot, &AtomicU64),
    handed_over: &mut Option<BlobStream>,
) -> Result<StoredBlob, crate::error::Error> {
    let is_whole = fill.offset() == 0;
    let mut download = DownloadLog::start(context, request, Some(slot));
    let bytes = (arrived, &mut download);
    let failed = match transfer(context, request, &mut fill, bytes, handed_over).await {
        Ok(sources) => match fill.finish().await {
            Ok(object) => {
                download.stored();
                context
                    .generation
                    .negative_cache
                    .answered(&request.registry);
                if is_whole {
                    context.record_origin(&request.registry, &request.repository, &request.digest);
                }
                return Ok(object);
            }
            Err(error) => {
                // Whoever asks again gets it from an address that has not lied, where there is one.
                let mut elsewhere = false;
                // Bytes of an earlier fill may have been wrong, so no address is to blame.
                if is_wrong(&error) && !is_leftover(&error) {
                    sources.report_mismatch();
                    let (registry, digest) = (&request.registry, &request.digest);
                    elsewhere = !context.client.all_mismatched(registry, digest);
                }
                note(context, request, &error, elsewhere);
                let error = error.into();
                download.failed(&error);
                return Err(error);
            }
        },
        Err(failed) => failed,
    };
    // First the note, then the news: readers that wake up look for the note.
    match &failed {
        crate::error::Error::Upstream(error) => {
            context
                .generation
                .negative_cache
                .failed(&request.registry, request.subject(), error)
        }
        crate::error::Error::Cache(error) => note(context, request, error, false),
        _ => {}
    }
    download.failed(&failed);
    fill.abandon(&failed.to_string());
    Err(failed)
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
    let mut asked = Instant::now();
    let mut stream = context
        .client
        .blob(registry, repository, digest, fill.offset())
        .await?;
    let head = asked.elapsed();
    download.from(stream.address());
    if stream.offset() != fill.offset() {
        fill.restart().await?;
    }
    if let Some(size) = stream.size() {
        fill.set_cost(context.costs.estimate(registry, size));
    }
    if let Err(error) = fill.begin(stream.size()).await {
        if is_passed_on(&error) && stream.offset() == 0 {
            *handed_over = Some(stream);
        }
        return Err(error.into());
    }
    // What disk, eviction and pacer take is not the upstream's time.
    let (mut first, mut waited, mut rest) = (None, Duration::ZERO, 0);
    asked = Instant::now();
    let mut since_pause = 0;
    while let Some(bytes) = stream.next().await {
        let bytes = bytes?;
        if first.is_none() {
            first = Some(head + asked.elapsed());
        } else {
            waited += asked.elapsed();
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
        asked = Instant::now();
    }
    if let Some(first) = first {
        context.costs.learn(registry, first, waited, rest);
    }
    // The last address, when several sent parts.
    download.from(stream.address());
    Ok(stream.sources())
}

/// Whether bytes of an earlier fill may have caused the mismatch.
fn is_leftover(error: &CacheError) -> bool {
    matches!(error, CacheError::WrongDigest { resumed: true, .. })
}

/// `elsewhere`: another address may have what this one has not.
fn note(context: &RequestContext, request: &BlobRequest, error: &CacheError, elsewhere: bool) {
    let BlobRequest {
        registry,
        repository,
        digest,
        ..
    } = request;
    // Not let in this time; the next request may be what tips the scale.
    if is_passed_on(error) {
        tracing::debug!(%registry, %repository, %digest, %error, "passed on");
        return;
    }
    if error.is_storage() {
        context.generation.negative_cache.refused_by_disk(*digest);
    }
    if is_wrong(error) && !is_leftover(error) && !elsewhere {
        let mismatch = pierhead_remote::Error::Protocol {
            upstream: registry.to_string(),
            what: error.to_string(),
        };
        context
            .generation
            .negative_cache
            .mismatched(request.subject(), mismatch);
    }
}
