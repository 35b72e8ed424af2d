//! Reads the bytes of one blob for one client: from the cache, from a running fill, or from the
//! upstream.
//!
//! A read starts with the stored blob or with a running fill. If the read fails there (a corrupt
//! blob, a full disk, a failed fill of another client), it continues at the same offset from
//! another place, such as the upstream. The client notices nothing.

use std::sync::Arc;

use bytes::Bytes;
use pierhead_cache::{BlobReader, Error as CacheError, StoredBlob, VerifiedRange};
use pierhead_remote::RangeSpec;

use crate::context::RequestContext;
use crate::error::Error;
use crate::limits::memory::MAX_FRAME_BYTES;
use crate::metrics::CacheOutcome;
use crate::pull::blob_request::BlobRequest;
use crate::pull::claim::claim;
use crate::pull::extra_connections::FillDownload;
use crate::pull::fill_ranges::FillRanges;
use crate::pull::first_range::{self, MAX_VERIFIED_FIRST};
use crate::pull::pending_claims::PendingClaim;
use crate::pull::range_reader::RangeReader;
use crate::pull::shared_download::shared_reader::SharedReader;

/// Maximum number of times that one client's read of a blob continues from another place. After so
/// many failures, neither the disk nor the upstream is likely to recover.
const MAX_SOURCE_CHANGES: u32 = 4;

/// Reads the bytes of one blob for one client.
pub(crate) struct BlobSource {
    context: Arc<RequestContext>,
    request: BlobRequest,
    active: ActiveSource,
    start: u64,
    offset: u64,
    /// Offset at which the read stops. `None`: at the end of the blob.
    end: Option<u64>,
    /// Whether the whole blob is verified before its first byte is sent.
    verified_first: bool,
    /// Bytes that are sent before the bytes of the blob.
    before: Bytes,
    /// Bytes that are sent after the bytes of the blob.
    after: Bytes,
    changes: u32,
    /// The range of the first upstream request, if this source starts a fill.
    first_range: Option<RangeSpec>,
    /// Whether the source reads a part of a blob that is too large to be verified first.
    is_large_range: bool,
    /// The state of the upstream connections of the running fill.
    ranges: Option<Arc<FillRanges>>,
    /// Lets the front of the fill wait until this source has claimed its range.
    pending_claim: Option<PendingClaim>,
    /// Reads the upstream stream of the fill that this source started, if the cache does not store
    /// the blob.
    handed_over: Option<Box<SharedReader>>,
}

enum ActiveSource {
    Cache(BlobReader),
    /// A range of a blob that is being filled.
    Range(RangeReader),
    Upstream(Box<SharedReader>),
}

impl BlobSource {
    /// Finds the blob in the cache or in a running fill, or starts a fill. `range` is the range that
    /// the client requested. Cancel safe: a fill that was started continues.
    pub(crate) async fn find(
        context: &Arc<RequestContext>,
        request: BlobRequest,
        range: Option<RangeSpec>,
    ) -> Result<(Self, CacheOutcome), Error> {
        let range = range.and_then(first_range::of);
        let mut is_storable = true;
        if !context.cache.contains(&request.digest) {
            if let Some(error) = context.generation.negative_cache.error(&request.subject()) {
                return Err(error.into());
            }
            is_storable = !context
                .generation
                .negative_cache
                .is_unstorable(&request.digest);
        }
        let claimed = match is_storable {
            true => Some(claim(context, &request, range).await),
            false => None,
        };
        let (mut handed_over, mut ranges) = (None, None);
        let (active, outcome) = match claimed {
            Some(Ok(Some(claimed))) => {
                (handed_over, ranges) = (claimed.handed_over, claimed.ranges);
                (ActiveSource::Cache(claimed.reader), claimed.outcome)
            }
            Some(Err(error)) if !error.is_storage() => return Err(error),
            _ => {
                let mut shared = SharedReader::new(context, &request, range);
                shared.size().await?;
                (ActiveSource::Upstream(shared), CacheOutcome::Miss)
            }
        };
        let mut source = Self::new(context.clone(), request, active);
        (source.handed_over, source.first_range) = (handed_over, range);
        source.set_ranges(ranges);
        Ok((source, outcome))
    }

    /// Creates the source for a stored blob that is already open.
    pub(crate) fn of(context: Arc<RequestContext>, request: BlobRequest, blob: StoredBlob) -> Self {
        Self::new(
            context,
            request,
            ActiveSource::Cache(BlobReader::Stored(blob)),
        )
    }

    fn new(context: Arc<RequestContext>, request: BlobRequest, active: ActiveSource) -> Self {
        Self {
            context,
            request,
            active,
            start: 0,
            offset: 0,
            end: None,
            verified_first: false,
            before: Bytes::new(),
            after: Bytes::new(),
            changes: 0,
            first_range: None,
            is_large_range: false,
            ranges: None,
            pending_claim: None,
            handed_over: None,
        }
    }

    /// Sets bytes to send before and after the blob. The caller calls this before the first read.
    /// [`BlobSource::in_range`] must come earlier, because `after` needs a known end.
    pub(crate) fn surround(&mut self, before: Bytes, after: Bytes) {
        (self.before, self.after) = (before, after);
    }

    /// Name of the blob for log lines.
    pub(crate) fn name(&self) -> String {
        let BlobRequest {
            registry,
            repository,
            digest,
            ..
        } = &self.request;
        format!("{registry}/{repository}@{digest}")
    }

    /// Limits the read to the bytes `[first, end)` of the blob. The caller calls this before the
    /// first read.
    pub(crate) async fn in_range(mut self, first: u64, end: u64) -> Result<Self, Error> {
        (self.start, self.offset) = (first, first);
        self.end = Some(end);
        let size = match &mut self.active {
            ActiveSource::Cache(BlobReader::Stored(_)) => None,
            // A failure of this read is ignored, because the first read of the content fails in the
            // same way and handles the failure.
            ActiveSource::Cache(BlobReader::Tail(tail)) => tail.size().await.ok().flatten(),
            ActiveSource::Range(_) => None,
            ActiveSource::Upstream(shared) => shared.size().await?,
        };
        self.verified_first = size.is_some_and(|size| end < size && size <= MAX_VERIFIED_FIRST);
        self.is_large_range =
            size.is_some_and(|size| (first > 0 || end < size) && size > MAX_VERIFIED_FIRST);
        self.active = match self.active {
            ActiveSource::Upstream(mut shared) => {
                shared.select(first..end, !self.is_large_range);
                ActiveSource::Upstream(shared)
            }
            ActiveSource::Cache(ref reader) => self.read_from(reader.clone()),
            active => active,
        };
        if let ActiveSource::Range(reader) = &mut self.active {
            reader.claim_at_once(first).await;
        }
        self.pending_claim = None;
        Ok(self)
    }

    /// Sets the state of the upstream connections of the fill that this source reads.
    fn set_ranges(&mut self, ranges: Option<Arc<FillRanges>>) {
        self.ranges = ranges;
        let is_before_claim = self.first_range.is_some() && self.end.is_none();
        let ranges = self.ranges.as_ref().filter(|_| is_before_claim);
        self.pending_claim = ranges.and_then(|ranges| ranges.pending_claims().enter());
    }

    /// Returns the source that reads from the cache.
    fn read_from(&self, reader: BlobReader) -> ActiveSource {
        match (&reader, &self.ranges, self.end) {
            (BlobReader::Tail(tail), Some(ranges), Some(end)) if self.is_large_range => {
                let download = FillDownload {
                    context: self.context.clone(),
                    request: self.request.clone(),
                    ranges: ranges.clone(),
                };
                ActiveSource::Range(RangeReader::new(download, tail, self.start..end))
            }
            _ => ActiveSource::Cache(reader),
        }
    }

    /// Whether the whole blob is in one file of the cache.
    pub(crate) fn is_file(&self) -> bool {
        matches!(&self.active, ActiveSource::Cache(BlobReader::Stored(blob)) if blob.extent(0).is_some())
    }

    /// Returns the next verified bytes in a file of the cache, at most `max` bytes, if they are in
    /// the page cache. After the caller sends these bytes, it must call [`BlobSource::advance`].
    pub(crate) fn verified_range(&self, max: u64) -> Option<VerifiedRange> {
        let ActiveSource::Cache(BlobReader::Stored(blob)) = &self.active else {
            return None;
        };
        if !self.before.is_empty() {
            return None;
        }
        blob.verified_range(self.offset, max.min(self.left()))
    }

    /// Returns the number of bytes up to the end of the range.
    fn left(&self) -> u64 {
        self.end
            .map_or(u64::MAX, |end| end.saturating_sub(self.offset))
    }

    /// Skips bytes of the blob that the caller has sent by `sendfile`.
    pub(crate) fn advance(&mut self, bytes: u64) {
        self.offset += bytes;
    }

    /// Offset of the next byte of the blob.
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    /// Waits for the size of the blob. `None`: the size is known only at the end of the blob.
    pub(crate) async fn size(&mut self) -> Result<Option<u64>, Error> {
        loop {
            match &mut self.active {
                ActiveSource::Upstream(shared) => return shared.size().await,
                // Only the source of a blob of known size reads a range.
                ActiveSource::Range(_) => return Ok(self.end),
                ActiveSource::Cache(reader) => match reader.size().await {
                    Ok(size) => return Ok(size),
                    Err(error) => self.change_source(error).await?,
                },
            }
        }
    }

    /// Returns the next bytes, at most [`MAX_FRAME_BYTES`]. Returns no bytes at the end of the
    /// blob.
    pub(crate) async fn next(&mut self) -> Result<Bytes, Error> {
        self.pending_claim = None;
        loop {
            let left = usize::try_from(self.left()).unwrap_or(usize::MAX);
            let max = left.min(MAX_FRAME_BYTES);
            if !self.before.is_empty() {
                return Ok(std::mem::take(&mut self.before));
            }
            if max == 0 {
                return Ok(std::mem::take(&mut self.after));
            }
            let bytes = match &mut self.active {
                ActiveSource::Cache(reader) => {
                    match read(reader, self.verified_first, self.offset, max).await {
                        Ok(bytes) => bytes,
                        Err(error) => {
                            self.change_source(error).await?;
                            continue;
                        }
                    }
                }
                ActiveSource::Range(reader) => match reader.read_at(self.offset, max).await {
                    Ok(bytes) => bytes,
                    Err(error) => {
                        self.change_source(error).await?;
                        continue;
                    }
                },
                ActiveSource::Upstream(shared) => {
                    if self.verified_first && !shared.is_verified() {
                        shared.verify(left).await?;
                    }
                    shared.next(max).await?
                }
            };
            self.offset += u64::try_from(bytes.len()).unwrap_or(u64::MAX);
            return Ok(bytes);
        }
    }

    /// Continues from another place after `error`, or returns the error if that is impossible.
    async fn change_source(&mut self, error: CacheError) -> Result<(), Error> {
        self.changes += 1;
        if self.changes > MAX_SOURCE_CHANGES {
            return Err(error.into());
        }
        tracing::debug!(digest = %self.request.digest, offset = self.offset, %error, "blob read continues elsewhere");
        let nothing_sent = self.offset == self.start;
        self.active = match error {
            error if error.is_storage() => self.read_shared().await?,
            // The staged bytes of an earlier fill may have been corrupt. The cache has deleted the
            // staged bytes, so another attempt starts from the first byte.
            CacheError::WrongDigest { resumed: true, .. } | CacheError::Restarted
                if nothing_sent =>
            {
                self.claim_again().await?
            }
            // The bytes may have been damaged in transit, so pierhead downloads the blob again.
            // podman would not retry.
            CacheError::WrongDigest { .. } | CacheError::WrongSize { .. }
                if nothing_sent && self.changes == 1 =>
            {
                self.claim_again().await?
            }
            // Corrupt bytes may have been sent to the client, so the response cannot continue.
            CacheError::WrongDigest { .. }
            | CacheError::WrongSize { .. }
            | CacheError::Restarted => return Err(error.into()),
            // The fill of another client used another repository, so its failure may not apply to
            // the requested repository.
            CacheError::Abandoned(_) => match self
                .context
                .generation
                .negative_cache
                .error(&self.request.subject())
            {
                Some(upstream) => return Err(upstream.into()),
                None => self.claim_again().await?,
            },
            // The cache has deleted the corrupt blob, so the new claim starts a fill.
            _ => self.claim_again().await?,
        };
        Ok(())
    }

    async fn claim_again(&mut self) -> Result<ActiveSource, Error> {
        match claim(&self.context, &self.request, self.first_range).await {
            Ok(Some(claimed)) => {
                self.handed_over = claimed.handed_over;
                self.set_ranges(claimed.ranges);
                Ok(self.read_from(claimed.reader))
            }
            Ok(None) => self.read_shared().await,
            Err(error) if error.is_storage() => self.read_shared().await,
            Err(error) => Err(error),
        }
    }

    /// Continues with the shared download of the clients of this blob.
    async fn read_shared(&mut self) -> Result<ActiveSource, Error> {
        let mut shared = match self.handed_over.take() {
            Some(shared) => shared,
            None => SharedReader::new(&self.context, &self.request, self.first_range),
        };
        // Otherwise, `in_range` selects the bytes when the size is known.
        if self.end.is_some() || self.first_range.is_none() {
            let end = self.end.unwrap_or(u64::MAX);
            shared.select(self.offset..end, !self.is_large_range);
        }
        shared.size().await?;
        Ok(ActiveSource::Upstream(shared))
    }
}

async fn read(
    reader: &BlobReader,
    verified_first: bool,
    offset: u64,
    max: usize,
) -> Result<Bytes, CacheError> {
    if let (true, BlobReader::Tail(tail)) = (verified_first, reader) {
        tail.committed().await?;
    }
    reader.read_at(offset, max).await
}
