//! Fetching one blob from the upstream into its fill: the leader's work, as a task of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use pierhead_cache::{Claim, Error as CacheError, Fill, Readers, StoredBlob};
use pierhead_host::{BackgroundTask, PIECE_BYTES, metered};
use pierhead_remote::{BlobSources, BlobStream};
use tokio::sync::mpsc::Sender;
use tokio::sync::oneshot;

use crate::access::pass_through::Clean;
use crate::context::Inner;
use crate::error::{is_passed_on, is_wrong};
use crate::limits::downloads::{Download, Ticket, Turn};
use crate::pull::blob_request::Wanted;
use crate::pull::download_log::DownloadLog;
use crate::pull::fill_owner::Lead;

/// Fills `fill` in the background: clients come and go without a say in it.
pub(crate) fn start(
    inner: Arc<Inner>,
    wanted: Wanted,
    fill: Fill,
    (lead, clean): (Lead, Option<Clean>),
    ticket: Ticket,
) -> oneshot::Receiver<Passed> {
    let (pass, passed) = oneshot::channel();
    tokio::spawn(async move {
        // Dropping the fill fails its readers. The next request fetches the digest again.
        let _watch = inner.cache.panics().watch(BackgroundTask::FillOwner);
        let readers = Some(fill.readers());
        let turn = turn(&inner, (&wanted, readers), ticket, &lead).await;
        let mut stream = None;
        let fill = (fill, Keep::IfAdmitted);
        let arrived = AtomicU64::new(0);
        // How it ended is known to the fill's readers; nobody else waits.
        tokio::select! {
            _ = run(&inner, &wanted, fill, (&turn, &arrived), &mut stream) => {}
            () = turn.yields() => {}
        }
        // How fast it is read is up to the client: only its own turn is held up by that.
        if let Some(stream) = stream
            && turn.is_of(&wanted.client)
        {
            turn.awaited_by(None);
            // Nobody takes it when the client has left.
            let _ = pass.send(Passed { stream, turn });
        }
        // In this order: while it counts as clean, no other registry fills it.
        drop(clean);
        drop(lead);
    });
    passed
}

/// What was opened for a fill that was not let in, from its first byte: for whoever began it, so that no second
/// request is made.
pub(crate) struct Passed {
    pub(crate) stream: BlobStream,
    pub(crate) turn: Turn,
}

/// Waits for a slot to download a blob. `readers`: the readers of its bytes; `None` when a reader waits until the end.
/// Cancel safe.
pub(crate) async fn slot(
    inner: &Inner,
    ticket: Ticket,
    wanted: &Wanted,
    readers: Option<Readers>,
) -> Turn {
    let download = Download {
        registry: wanted.registry.clone(),
        digest: wanted.digest,
        is_configured: inner.config.load().names(&wanted.registry),
        readers,
    };
    let all = inner.limits.max_fetches();
    inner.limits.turn(ticket, download, all).await
}

/// Waits until the fill has its turn: that of whoever began it, or of another who waits for it, whichever
/// comes first.
pub(crate) async fn turn(
    inner: &Inner,
    (wanted, readers): (&Wanted, Option<Readers>),
    ticket: Ticket,
    lead: &Lead,
) -> Turn {
    let mut offered = lead.offered(&wanted.client);
    let other = async {
        match &mut offered {
            Some(offered) => offered.recv().await,
            None => None,
        }
    };
    tokio::select! {
        turn = slot(inner, ticket, wanted, readers) => turn,
        Some(turn) = other => turn,
    }
}

/// Waits for a turn on behalf of a fill that somebody else began, until it has one.
pub(crate) async fn offer(
    inner: &Inner,
    ticket: Ticket,
    (wanted, readers): (&Wanted, Option<Readers>),
    fill: Sender<Turn>,
) {
    tokio::select! {
        turn = slot(inner, ticket, wanted, readers) => {
            // When another was quicker, this one is given back.
            let _ = fill.try_send(turn);
        }
        () = fill.closed() => {}
    }
}

/// Whether the admission is asked.
#[derive(Clone, Copy)]
pub(crate) enum Keep {
    /// A client wants the bytes.
    IfAdmitted,
    /// Somebody asked for it to be kept.
    Always,
}

impl Keep {
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
    inner: &Arc<Inner>,
    wanted: &Wanted,
    (mut fill, keep): (Fill, Keep),
    (turn, arrived): (&Turn, &AtomicU64),
    passed: &mut Option<BlobStream>,
) -> Result<StoredBlob, crate::error::Error> {
    let resumed = fill.offset() > 0;
    keep.tell(&mut fill);
    match into(inner, wanted, fill, (turn, arrived), passed).await {
        // The leftovers of an earlier fill may be what was wrong, and they are gone now.
        Err(error) if resumed && error.is_wrong_content() => {
            match inner.cache.claim(&wanted.digest, wanted.origin()).await? {
                Claim::Leader(mut fill, _) => {
                    keep.tell(&mut fill);
                    // The readers of the first fill now wait for this one.
                    turn.awaited_by(keep.readers(&fill));
                    into(inner, wanted, fill, (turn, arrived), passed).await
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
    inner: &Inner,
    wanted: &Wanted,
    mut fill: Fill,
    (turn, arrived): (&Turn, &AtomicU64),
    passed: &mut Option<BlobStream>,
) -> Result<StoredBlob, crate::error::Error> {
    let is_whole = fill.offset() == 0;
    let mut download = DownloadLog::start(inner, wanted, Some(turn));
    let bytes = (arrived, &mut download);
    let failed = match transfer(inner, wanted, &mut fill, bytes, passed).await {
        Ok(sources) => match fill.finish().await {
            Ok(object) => {
                download.stored();
                inner.trust.recent.answered(&wanted.registry);
                if is_whole {
                    inner.proved(&wanted.registry, &wanted.repository, &wanted.digest);
                }
                return Ok(object);
            }
            Err(error) => {
                // Whoever asks again gets it from an address that has not lied, where there is one.
                let mut elsewhere = false;
                // Bytes of an earlier fill may have been wrong, so no address is to blame.
                if is_wrong(&error) && !is_leftover(&error) {
                    sources.report_mismatch();
                    let (registry, digest) = (&wanted.registry, &wanted.digest);
                    elsewhere = !inner.client.all_mismatched(registry, digest);
                }
                note(inner, wanted, &error, elsewhere);
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
            inner
                .trust
                .recent
                .failed(&wanted.registry, wanted.subject(), error)
        }
        crate::error::Error::Cache(error) => note(inner, wanted, error, false),
        _ => {}
    }
    download.failed(&failed);
    fill.abandon(&failed.to_string());
    Err(failed)
}

async fn transfer(
    inner: &Inner,
    wanted: &Wanted,
    fill: &mut Fill,
    (arrived, download): (&AtomicU64, &mut DownloadLog<'_>),
    passed: &mut Option<BlobStream>,
) -> Result<BlobSources, crate::error::Error> {
    let Wanted {
        registry,
        repository,
        digest,
        ..
    } = wanted;
    let mut asked = Instant::now();
    let mut stream = inner
        .client
        .blob(registry, repository, digest, fill.offset())
        .await?;
    let head = asked.elapsed();
    download.from(stream.address());
    if stream.offset() != fill.offset() {
        fill.restart().await?;
    }
    if let Some(size) = stream.size() {
        fill.set_cost(inner.costs.estimate(registry, size));
    }
    if let Err(error) = fill.begin(stream.size()).await {
        if is_passed_on(&error) && stream.offset() == 0 {
            *passed = Some(stream);
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
        let pacer = inner.pacer.as_deref();
        metered(pacer, fill.write(bytes)).await?;
        if let Some(pacer) = pacer.filter(|_| since_pause >= PIECE_BYTES) {
            since_pause = 0;
            pacer.pass().await;
        }
        asked = Instant::now();
    }
    if let Some(first) = first {
        inner.costs.learn(registry, first, waited, rest);
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
fn note(inner: &Inner, wanted: &Wanted, error: &CacheError, elsewhere: bool) {
    let Wanted {
        registry,
        repository,
        digest,
        ..
    } = wanted;
    // Not let in this time; the next request may be what tips the scale.
    if is_passed_on(error) {
        tracing::debug!(%registry, %repository, %digest, %error, "passed on");
        return;
    }
    if error.is_storage() {
        inner.trust.recent.refused_by_disk(*digest);
    }
    if is_wrong(error) && !is_leftover(error) && !elsewhere {
        let lie = pierhead_remote::Error::Protocol {
            upstream: registry.to_string(),
            what: error.to_string(),
        };
        inner.trust.recent.lied(wanted.subject(), lie);
    }
}
