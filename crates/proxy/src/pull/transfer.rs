//! Downloads the bytes that a fill lacks: the range of the client that started the fill first, and
//! the blob from its first byte on.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use pierhead_cache::{Fill, PieceWriter};
use pierhead_remote::{BlobStream, Error as RemoteError, RangeSpec};

use crate::context::RequestContext;
use crate::error::Error;
use crate::limits::downloads::{DownloadSlot, DownloadWaiters};
use crate::pull::blob_connection::{BlobConnection, ConnectionRole};
use crate::pull::blob_request::BlobRequest;
use crate::pull::download_log::DownloadLog;
use crate::pull::download_slot;
use crate::pull::extra_connections::{FIRST_PIECE, FillDownload};
use crate::pull::fill_ranges::PIECE_ALIGNMENT;
use crate::pull::first_range;
use crate::pull::front::{self, UpstreamTime};
use crate::pull::shared_download::stream_task::ExpectedStream;

/// The first upstream request of a fill.
#[derive(Default)]
pub(crate) struct FirstRequest {
    /// The range that the client requested. `None`: the request is for the whole blob.
    pub(crate) range: Option<RangeSpec>,
    /// Takes the upstream stream, if the cache does not store the blob. The clients of the fill wait
    /// for this decision.
    pub(crate) expected: Option<ExpectedStream>,
    /// The upstream stream, if the cache does not store the blob.
    pub(crate) handed_over: Option<BlobStream>,
}

/// Downloads all bytes that the fill lacks.
pub(crate) async fn transfer(
    download: &FillDownload,
    fill: &mut Fill,
    (arrived, log): (&Arc<AtomicU64>, &mut DownloadLog<'_>),
    first: &mut FirstRequest,
) -> Result<(), Error> {
    let FillDownload {
        context,
        request,
        ranges,
    } = download;
    let registry = &request.registry;
    let (mut range, mut second_slot) = (None, None);
    if let Some(requested) = first.range.filter(|_| fill.takes_pieces()) {
        let waiters = DownloadWaiters::readers(fill.readers());
        second_slot = download_slot::acquire_at_once(context, request, waiters).await;
        // Without a second slot, clients of other ranges wait until the first range is complete.
        range = Some(match second_slot {
            Some(_) => requested,
            None => first_range::with_max(requested, FIRST_PIECE),
        });
    }
    let sent = Instant::now();
    let stream = open_first(context, request, fill.offset(), range).await?;
    let head = sent.elapsed();
    log.from(stream.address());
    fill.set_repository(&request.repository);
    let size = stream.size();
    if let Some(size) = size {
        fill.set_cost(context.costs.estimate(registry, size));
    }
    // The version is recorded before readers can claim ranges.
    let has_ranges = fill.takes_pieces() && (range.is_none() || stream.is_range());
    ranges.begin(stream.version().filter(|_| has_ranges), arrived);
    log.count_bytes_of(ranges.clone());
    if range.is_some() {
        ranges.set_range_readers();
    }
    // An upstream that ignores a range sends the bytes before the front, too.
    let is_front = !stream.is_range() || stream.offset() == fill.offset();
    let started = match size {
        Some(size) if !is_front => {
            // A range from the end of a blob may begin within a block of the cache.
            let start = stream.offset().next_multiple_of(PIECE_ALIGNMENT);
            let end = stream.end().unwrap_or(size);
            let end = match second_slot {
                Some(_) => end,
                None => end.min(start + FIRST_PIECE),
            };
            fill.begin_with_range(size, start..end).await
        }
        _ => fill.begin(size).await.map(|()| None),
    };
    let piece = match started {
        Ok(piece) => piece,
        Err(error) => {
            if error.is_storage() && (stream.offset() == 0 || stream.is_range()) {
                first.handed_over = Some(stream);
            }
            return Err(error.into());
        }
    };
    first.expected = None;
    let time = match piece {
        // The future is boxed because it is large, and because most downloads do not run it.
        Some(piece) => {
            let range = download_range(download, (piece, stream), second_slot);
            Box::pin(download_range_first(download, fill, (size, head), range)).await?
        }
        None => {
            drop(second_slot);
            // If an earlier fill has staged the range, the stream is of no use.
            let stream = Some(stream).filter(|_| is_front);
            Box::pin(front::download(download, fill, (size, stream), head)).await?
        }
    };
    // If several addresses of the upstream sent parts of the blob, the log names the last of them.
    if let Some(address) = &time.address {
        log.from(address);
    }
    if let Some(first) = time.first {
        context.costs.learn(registry, first, time.body, time.bytes);
    }
    Ok(())
}

/// Opens the first stream of a fill: for the range of the client, or else from `offset` on.
async fn open_first(
    context: &RequestContext,
    request: &BlobRequest,
    offset: u64,
    range: Option<RangeSpec>,
) -> Result<BlobStream, RemoteError> {
    let BlobRequest {
        registry,
        repository,
        digest,
        ..
    } = request;
    let client = &context.client;
    if let Some(range) = range {
        let opened = client.blob_unversioned_range(registry, repository, digest, range);
        match opened.await {
            Err(RemoteError::NoRanges { .. }) => {}
            opened => return opened,
        }
    }
    client.blob(registry, repository, digest, offset).await
}

/// The download of the range of the client that started the fill.
struct RangeDownload<F> {
    /// Whether the range has a download slot of its own.
    has_own_slot: bool,
    download: F,
}

/// Returns the download of the first range. `slot` is its download slot, if the client has one more
/// slot than the fill needs.
fn download_range(
    download: &FillDownload,
    (mut piece, stream): (PieceWriter, BlobStream),
    slot: Option<DownloadSlot>,
) -> RangeDownload<impl Future<Output = ()>> {
    let FillDownload {
        context,
        request,
        ranges,
    } = download;
    RangeDownload {
        has_own_slot: slot.is_some(),
        download: async move {
            let role = ConnectionRole::Additional;
            let connection = BlobConnection::new((context, request), ranges, role);
            let mut connection = connection.with_stream(stream);
            if let Err(error) = connection.fill_piece(&mut piece, || ()).await {
                let digest = &request.digest;
                tracing::debug!(%digest, %error, "the download of the first range ended");
            }
            // The connection ends before its slot is free.
            drop(connection);
            drop(slot);
        },
    }
}

/// Downloads the first range, and the rest of the blob beside it. Without a second download slot,
/// the range comes first.
async fn download_range_first(
    download: &FillDownload,
    fill: &mut Fill,
    (size, head): (Option<u64>, Duration),
    range: RangeDownload<impl Future<Output = ()>>,
) -> Result<UpstreamTime, Error> {
    if !range.has_own_slot {
        range.download.await;
        return front::download(download, fill, (size, None), head).await;
    }
    let front = async {
        // These clients claim their ranges first, so that they do not cut the first range of the
        // front.
        download.ranges.pending_claims().settled().await;
        front::download(download, fill, (size, None), head).await
    };
    let range = async {
        range.download.await;
        Ok::<_, Error>(())
    };
    tokio::try_join!(front, range).map(|(time, ())| time)
}
