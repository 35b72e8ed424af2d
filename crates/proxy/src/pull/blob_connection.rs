//! `BlobConnection`: reads ranges of one blob from the upstream, over one connection at a time.

use std::future::Future;
use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;
use pierhead_cache::PieceWriter;
use pierhead_host::metered;
use pierhead_remote::{BlobStream, Error as RemoteError};

use crate::context::RequestContext;
use crate::error::Error;
use crate::pull::blob_request::BlobRequest;
use crate::pull::fill_ranges::FillRanges;

/// Maximum bytes between two ranges that a connection discards, because another connection has
/// downloaded them. Otherwise the connection requests the second range: a response that is cut off
/// has up to some megabytes in transit.
const MAX_DISCARDED: u64 = 128 << 10;

/// Maximum part of the blob that a connection discards all together.
const MAX_DISCARDED_PART: u64 = 128;

/// Number of times that the first connection repeats a failed request for a range.
const MAX_RANGE_RETRIES: u32 = 5;
/// Wait before the first repetition. The wait doubles with each failure.
const RANGE_BACKOFF: Duration = Duration::from_millis(100);
/// Maximum `Retry-After` of the upstream for which the first connection waits.
const MAX_RANGE_WAIT: Duration = Duration::from_secs(30);

/// The role of a connection in the fill.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConnectionRole {
    /// The only connection that the end of the fill depends on. It repeats failed requests.
    First,
    /// A connection that ends at its first error, because the first connection can download the
    /// same bytes.
    Additional,
}

/// What the bytes are for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    /// The next bytes of the blob. If the upstream sends no ranges, they need a request for the
    /// whole blob.
    Front,
    /// A piece ahead. It is not worth a request for the whole blob.
    Piece,
}

/// Reads ranges of one blob from the upstream, over one connection at a time.
pub(crate) struct BlobConnection<'a> {
    context: &'a RequestContext,
    request: &'a BlobRequest,
    ranges: &'a FillRanges,
    role: ConnectionRole,
    open: Option<OpenStream>,
    /// Bytes that this connection discarded.
    discarded: u64,
    /// Number of requests for ranges that failed since bytes arrived last.
    failures: u32,
}

struct OpenStream {
    stream: BlobStream,
    /// Offset of the first byte of `rest`, or else of the next byte of the stream.
    position: u64,
    /// Bytes that arrived and that no range needed yet.
    rest: Bytes,
    /// Number of recorded hosts that sent bytes of the stream.
    recorded_sources: usize,
}

impl<'a> BlobConnection<'a> {
    pub(crate) fn new(
        (context, request): (&'a RequestContext, &'a BlobRequest),
        ranges: &'a FillRanges,
        role: ConnectionRole,
    ) -> Self {
        Self {
            context,
            request,
            ranges,
            role,
            open: None,
            discarded: 0,
            failures: 0,
        }
    }

    /// Continues with a stream that is open already.
    pub(crate) fn with_stream(mut self, stream: BlobStream) -> Self {
        self.set_open(stream);
        self
    }

    /// Returns the next bytes from the start of `range` on. Returns no bytes at the end of the blob.
    /// Cancel safe.
    ///
    /// If the upstream does not send ranges, this is recorded for all connections of the fill, and
    /// this connection requests all bytes from the start of `range` on.
    pub(crate) async fn next(&mut self, range: Range<u64>) -> Result<Bytes, Error> {
        self.next_of(range, Part::Front).await
    }

    async fn next_of(&mut self, range: Range<u64>, part: Part) -> Result<Bytes, Error> {
        loop {
            if self.needs_request(range.start) {
                // The connection is closed before another one opens.
                self.close();
                if part == Part::Piece && self.ranges.version().is_none() {
                    return Ok(Bytes::new());
                }
                self.open(&range).await?;
            }
            let Some(open) = &mut self.open else {
                continue;
            };
            if open.rest.is_empty() {
                match open.stream.next().await {
                    Some(Ok(bytes)) => {
                        self.ranges.received(bytes.len());
                        self.failures = 0;
                        open.rest = bytes;
                        open.record_sources(self.ranges);
                    }
                    Some(Err(error)) => {
                        let is_range = open.stream.is_range();
                        self.close();
                        match is_range {
                            true => self.range_failed(error).await?,
                            // The stream has already requested the rest of the blob several times.
                            false => return Err(error.into()),
                        }
                        continue;
                    }
                    None if open.stream.is_range() => {
                        self.close();
                        continue;
                    }
                    None => return Ok(Bytes::new()),
                }
            }
            self.discarded += open.discard_before(range.start);
            let bytes = open.take_before(range.end);
            if !bytes.is_empty() {
                return Ok(bytes);
            }
        }
    }

    /// Whether the byte at `offset` needs another request.
    pub(crate) fn needs_request(&self, offset: u64) -> bool {
        let open = self.open.as_ref();
        open.is_none_or(|open| !self.reaches(open, offset))
    }

    /// The name of the current upstream address in the log.
    pub(crate) fn address(&self) -> Option<&str> {
        self.open.as_ref().map(|open| open.stream.address())
    }

    /// Closes the connection.
    pub(crate) fn close(&mut self) {
        self.open = None;
    }

    fn set_open(&mut self, stream: BlobStream) {
        let position = stream.offset();
        self.open = Some(OpenStream {
            stream,
            position,
            rest: Bytes::new(),
            recorded_sources: 0,
        });
    }

    /// Whether the open stream comes to `start`, and discards few bytes before.
    fn reaches(&self, open: &OpenStream, start: u64) -> bool {
        let Some(unneeded) = start.checked_sub(open.position) else {
            return false;
        };
        let size = open.stream.size().unwrap_or(0);
        let is_few =
            unneeded <= MAX_DISCARDED && self.discarded + unneeded <= size / MAX_DISCARDED_PART;
        open.stream.end().is_none_or(|end| start < end)
            && (unneeded == 0 || is_few || self.ranges.version().is_none())
    }

    /// Opens a stream for a range, or for the rest of the blob. Returns without an open stream if a
    /// failed request can be repeated.
    async fn open(&mut self, range: &Range<u64>) -> Result<(), Error> {
        let BlobRequest {
            registry,
            repository,
            digest,
            ..
        } = self.request;
        let client = &self.context.client;
        let stream = match self.ranges.version() {
            Some(version) => {
                let range = range.start..range.end.min(version.size());
                let opened = client.blob_range(registry, repository, digest, range, &version);
                match opened.await {
                    Ok(stream) => stream,
                    Err(error) => return self.range_failed(error).await,
                }
            }
            None => {
                let opened = client.blob(registry, repository, digest, range.start);
                opened.await?
            }
        };
        self.set_open(stream);
        Ok(())
    }

    /// Waits before a failed request for a range is repeated. Returns the error if it is final.
    async fn range_failed(&mut self, error: RemoteError) -> Result<(), Error> {
        let has_no_ranges = matches!(
            error,
            RemoteError::NoRanges { .. } | RemoteError::Protocol { .. }
        );
        if has_no_ranges {
            self.ranges.refuse();
            let digest = &self.request.digest;
            tracing::debug!(%digest, %error, "one stream downloads the rest of the blob");
        }
        let wait = match &error {
            _ if self.role == ConnectionRole::Additional => None,
            _ if has_no_ranges => Some(Duration::ZERO),
            RemoteError::RateLimited {
                retry_after: Some(wait),
                ..
            } => Some(*wait),
            RemoteError::Down { retry_after, .. } => Some(*retry_after),
            _ if error.is_retryable() => Some(RANGE_BACKOFF * (1 << self.failures.min(6))),
            _ => None,
        };
        let is_last = self.failures >= MAX_RANGE_RETRIES;
        let Some(wait) = wait.filter(|wait| *wait <= MAX_RANGE_WAIT && !is_last) else {
            return Err(error.into());
        };
        self.failures += 1;
        tokio::time::sleep(wait).await;
        Ok(())
    }

    /// Downloads the rest of a piece. Calls `received` whenever bytes arrive. Ends early if the
    /// upstream sends no ranges any more: the first connection then downloads the blob in order.
    pub(crate) async fn fill_piece(
        &mut self,
        piece: &mut PieceWriter,
        received: impl FnMut(),
    ) -> Result<(), Error> {
        let never = std::future::pending::<()>();
        self.fill_piece_until(piece, received, never).await?;
        Ok(())
    }

    /// As [`Self::fill_piece`], but stops the download as soon as `stop` is ready, and returns its
    /// result. The bytes that have arrived stay in the piece.
    pub(crate) async fn fill_piece_until<T>(
        &mut self,
        piece: &mut PieceWriter,
        mut received: impl FnMut(),
        stop: impl Future<Output = T>,
    ) -> Result<Option<T>, Error> {
        let pacer = self.context.pacer.as_deref();
        let mut stop = std::pin::pin!(stop);
        while piece.position() < piece.end() {
            let at = piece.position();
            let bytes = tokio::select! {
                biased;
                stopped = &mut stop => return Ok(Some(stopped)),
                bytes = self.next_of(at..piece.end(), Part::Piece) => bytes?,
            };
            if bytes.is_empty() && self.ranges.version().is_none() {
                return Ok(None);
            }
            if bytes.is_empty() {
                return Err(Error::Truncated { at });
            }
            received();
            metered(pacer, piece.write(bytes)).await?;
        }
        Ok(None)
    }
}

impl OpenStream {
    /// Records the hosts that sent bytes since the last record.
    fn record_sources(&mut self, ranges: &FillRanges) {
        let sources = self.stream.source_count();
        if std::mem::replace(&mut self.recorded_sources, sources) < sources {
            ranges.add_sources(self.stream.sources());
        }
    }

    /// Discards bytes before `offset`. Returns their number.
    fn discard_before(&mut self, offset: u64) -> u64 {
        let unneeded = offset.saturating_sub(self.position);
        let unneeded =
            usize::try_from(unneeded).map_or(self.rest.len(), |it| it.min(self.rest.len()));
        self.take(unneeded);
        u64::try_from(unneeded).unwrap_or(0)
    }

    /// Takes bytes before `end`. The other bytes may be in the next range.
    fn take_before(&mut self, end: u64) -> Bytes {
        let needed = end.saturating_sub(self.position);
        self.take(usize::try_from(needed).map_or(self.rest.len(), |it| it.min(self.rest.len())))
    }

    fn take(&mut self, len: usize) -> Bytes {
        self.position += u64::try_from(len).unwrap_or(0);
        self.rest.split_to(len)
    }
}

#[cfg(test)]
mod tests {
    use pierhead_testkit::images::random_bytes;

    use super::*;
    use crate::pull::fill_fixture::FillFixture;

    /// The fill may hash the last bytes and report a mismatch while the connection that brought
    /// them is still open.
    #[tokio::test]
    async fn a_host_is_recorded_before_the_fill_gets_its_bytes() {
        let fixture = FillFixture::start().await;
        let digest = fixture.upstream.put_blob("app", random_bytes(1, 1 << 20));
        let request = fixture.request(digest, 1);
        let (owner, fill) = (fixture.owner(&request), fixture.lead(&request).await);
        let download = fixture.download(&request, &owner, &fill);
        let (context, ranges) = (&fixture.context, &download.ranges);
        let role = ConnectionRole::First;
        let mut connection = BlobConnection::new((context, &request), ranges, role);
        let bytes = connection.next(0..1 << 20).await.unwrap();
        assert!(!bytes.is_empty());
        let is_distrusted = || {
            let client = &context.client;
            client.all_mismatched(&fixture.registry, &digest)
        };
        assert!(!is_distrusted());
        ranges.report_mismatch();
        assert!(is_distrusted());
    }
}
