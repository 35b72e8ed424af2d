//! Downloads the bytes of a fill in the order of the blob, over the first of its upstream
//! connections.
//!
//! The front stops at a piece that another connection downloads or has downloaded, and continues
//! behind it. While another connection downloads the piece at the front, the first connection
//! downloads pieces ahead. While readers of ranges wait for a download slot, its requests are for the
//! front and for these ranges in turn.

use std::sync::Arc;
use std::time::{Duration, Instant};

use pierhead_cache::Fill;
use pierhead_host::{PIECE_BYTES, metered};
use pierhead_remote::BlobStream;

use crate::error::Error;
use crate::pull::blob_connection::{BlobConnection, ConnectionRole};
use crate::pull::connection_controller::MEASUREMENT_TIME;
use crate::pull::download_slot::at_once;
use crate::pull::extra_connections::{ExtraConnections, FIRST_PIECE, FillDownload, SharedCounts};

/// The time that the first connection spent waiting for the upstream, without the time for disk,
/// eviction and CPU pacer.
#[derive(Default)]
pub(crate) struct UpstreamTime {
    /// Time from the first request to the first byte.
    pub(crate) first: Option<Duration>,
    /// Time that the bytes after the first chunk took, and their number.
    pub(crate) body: Duration,
    pub(crate) bytes: u64,
    /// The address that sent the last bytes.
    pub(crate) address: Option<String>,
}

/// Downloads all bytes that the fill lacks. `stream` is the stream that the first request opened;
/// `None` if the first request was for a piece ahead of the front. `head` is the time that the
/// first request took.
///
/// # Errors
/// The error of the first connection. Errors of additional connections are not errors of the fill.
pub(crate) async fn download(
    download: &FillDownload,
    fill: &mut Fill,
    (size, stream): (Option<u64>, Option<BlobStream>),
    head: Duration,
) -> Result<UpstreamTime, Error> {
    let to_download = size.map_or(0, |size| size.saturating_sub(fill.front().start));
    let mut extra = ExtraConnections::new(download.clone(), fill.pieces(), to_download);
    let counts = extra.counts();
    let mut front = std::pin::pin!(run(download, fill, (size, stream), head, &counts));
    let mut clock = tokio::time::interval(MEASUREMENT_TIME / 3);
    clock.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            ended = &mut front => return ended,
            _ = clock.tick() => extra.control().await,
        }
    }
}

async fn run(
    FillDownload {
        context,
        request,
        ranges,
    }: &FillDownload,
    fill: &mut Fill,
    (size, stream): (Option<u64>, Option<BlobStream>),
    head: Duration,
    counts: &Arc<SharedCounts>,
) -> Result<UpstreamTime, Error> {
    let role = ConnectionRole::First;
    let mut connection = BlobConnection::new((context, request), ranges, role);
    if let Some(stream) = stream {
        connection = connection.with_stream(stream);
    }
    let (pieces, pacer) = (fill.pieces(), context.pacer.as_deref());
    let (mut time, mut since_pause) = (UpstreamTime::default(), 0);
    let mut is_turn_of_readers = false;
    loop {
        // Other connections or range readers cut a long range, so the first connection then
        // requests bounded ranges only.
        let max = match counts.running() {
            0 => ranges.has_range_readers().then_some(FIRST_PIECE),
            _ => Some(counts.piece_bytes()),
        };
        if fill.front().is_empty() {
            match at_once(fill.pass_pieces()).await {
                Some(passed) => passed?,
                None => {
                    if let Some(max) = max
                        && let Some(mut piece) = at_once(pieces.claim_next(max)).await.flatten()
                    {
                        // If the claim at the front is cancelled, its bytes come first.
                        let passed = fill.pass_pieces();
                        let stopped = connection.fill_piece_until(&mut piece, || (), passed);
                        stopped.await?.transpose()?;
                    } else {
                        fill.pass_pieces().await?;
                    }
                    continue;
                }
            }
        }
        let mut front = fill.front();
        if size.is_some_and(|size| front.start >= size) {
            time.address = connection.address().map(ToOwned::to_owned);
            return Ok(time);
        }
        if std::mem::take(&mut is_turn_of_readers)
            && connection.needs_request(front.start)
            && let Some(mut piece) = ranges.waiting().claim_next(|range| {
                let end = range.end.min(range.start.saturating_add(FIRST_PIECE));
                pieces.claim(range.start..end)
            })
        {
            connection.fill_piece(&mut piece, || ()).await?;
            continue;
        }
        front.end = max.map_or(front.end, |max| front.end.min(front.start + max));
        let waiting_since = Instant::now();
        let bytes = connection.next(front).await?;
        if bytes.is_empty() {
            time.address = connection.address().map(ToOwned::to_owned);
            return Ok(time);
        }
        let len = u64::try_from(bytes.len()).unwrap_or(0);
        match time.first {
            None => time.first = Some(head + waiting_since.elapsed()),
            Some(_) => {
                time.body += waiting_since.elapsed();
                time.bytes += len;
            }
        }
        is_turn_of_readers = true;
        since_pause += len;
        metered(pacer, fill.write(bytes)).await?;
        if let Some(pacer) = pacer.filter(|_| since_pause >= PIECE_BYTES) {
            since_pause = 0;
            pacer.pass().await;
        }
    }
}
