//! Downloads the bytes that a fill lacks: the range of the client that started the fill first, and
//! the blob from its first byte on.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use pierhead_cache::Fill;
use pierhead_remote::{BlobStream, Error as RemoteError, RangeSpec};

use crate::context::RequestContext;
use crate::error::{Error, is_not_admitted};
use crate::limits::downloads::DownloadWaiters;
use crate::pull::blob_connection::{BlobConnection, ConnectionRole};
use crate::pull::blob_request::BlobRequest;
use crate::pull::download_log::DownloadLog;
use crate::pull::download_slot;
use crate::pull::extra_connections::FillDownload;
use crate::pull::fill_ranges::PIECE_ALIGNMENT;
use crate::pull::front::{self, UpstreamTime};

/// Time for which the front waits for the claims of clients, if a range starts the fill.
const CLAIM_TIME: Duration = Duration::from_millis(5);

/// The first upstream request of a fill.
#[derive(Default)]
pub(crate) struct FirstRequest {
    /// The range that the client requested. `None`: the request is for the whole blob.
    pub(crate) range: Option<RangeSpec>,
    /// The upstream stream, if the cache did not admit the blob.
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
    let sent = Instant::now();
    let stream = open_first(context, request, fill.offset(), first.range).await?;
    let head = sent.elapsed();
    log.from(stream.address());
    fill.set_repository(&request.repository);
    if let Some(size) = stream.size() {
        fill.set_cost(context.costs.estimate(registry, size));
    }
    // The version is recorded before readers can claim ranges.
    let has_ranges = first.range.is_none() || stream.is_range();
    let version = stream.version().filter(|_| has_ranges);
    ranges.begin(fill.pieces(), version, arrived);
    log.count_bytes_of(ranges.clone());
    if first.range.is_some() {
        ranges.set_range_readers();
    }
    let size = stream.size();
    if let Err(error) = fill.begin(size).await {
        if is_not_admitted(&error) && (stream.offset() == 0 || stream.is_range()) {
            first.handed_over = Some(stream);
        }
        return Err(error.into());
    }
    let front = fill.front();
    // An upstream that ignores a range sends the bytes before the front, too.
    let is_front = !stream.is_range() || stream.offset() == front.start;
    let time = if is_front {
        Box::pin(front::download(download, fill, (size, Some(stream)), head)).await?
    } else {
        // The future is boxed because it is large, and because most downloads do not run it.
        Box::pin(download_range_first(download, fill, stream, head)).await?
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

/// Downloads the range of the client that started the fill, and the rest of the blob beside it.
/// Without a second download slot, the range comes first.
async fn download_range_first(
    download: &FillDownload,
    fill: &mut Fill,
    stream: BlobStream,
    head: Duration,
) -> Result<UpstreamTime, Error> {
    let FillDownload {
        context,
        request,
        ranges,
    } = download;
    let size = stream.size();
    // A range from the end of a blob of unknown size may begin within a block of the cache.
    let start = stream.offset().next_multiple_of(PIECE_ALIGNMENT);
    let range = start..stream.end().unwrap_or(u64::MAX);
    let Some(mut piece) = fill.pieces().claim(range) else {
        // An earlier fill has staged the range.
        drop(stream);
        return front::download(download, fill, (size, None), head).await;
    };
    let waiters = DownloadWaiters::readers(fill.readers());
    let second_slot = download_slot::acquire_at_once(context, request, waiters).await;
    let has_second_slot = second_slot.is_some();
    let range = async move {
        let role = ConnectionRole::Additional;
        let connection = BlobConnection::new((context, request), ranges, role);
        let mut connection = connection.with_stream(stream);
        if let Err(error) = connection.fill_piece(&mut piece, || ()).await {
            let digest = &request.digest;
            tracing::debug!(%digest, %error, "the download of the first range ended");
        }
        // The connection ends before its slot is free.
        drop(connection);
        drop(second_slot);
    };
    if !has_second_slot {
        range.await;
        return front::download(download, fill, (size, None), head).await;
    }
    let front = async {
        // Clients that waited for the size of the blob claim their ranges first, so that they do
        // not cut the first range of the front.
        tokio::time::sleep(CLAIM_TIME).await;
        front::download(download, fill, (size, None), head).await
    };
    let range = async {
        range.await;
        Ok::<_, Error>(())
    };
    tokio::try_join!(front, range).map(|(time, ())| time)
}
