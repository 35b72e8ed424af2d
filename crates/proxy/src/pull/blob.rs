//! Reads the bytes of one blob for one client: from the cache, from a running fill, or from the
//! upstream.
//!
//! A read starts with the stored blob or with a running fill. If the read fails there (a corrupt
//! blob, a full disk, a failed fill of another client), it continues at the same offset from
//! another place, such as the upstream. The client notices nothing.

use std::sync::Arc;

use bytes::Bytes;
use pierhead_cache::{BlobReader, Error as CacheError, StoredBlob, VerifiedRange};
use tokio::sync::oneshot;

use crate::context::RequestContext;
use crate::error::{Error, is_not_admitted};
use crate::limits::memory::MAX_FRAME_BYTES;
use crate::metrics::CacheOutcome;
use crate::pull::blob_request::BlobRequest;
use crate::pull::claim::claim;
use crate::pull::direct_download::{DirectDownload, ReadPosition};
use crate::pull::download::HandedOverStream;

/// Maximum number of times that one client's read of a blob continues from another place. After so
/// many failures, neither the disk nor the upstream is likely to recover.
const MAX_SOURCE_CHANGES: u32 = 4;

/// Maximum bytes of a blob that pierhead verifies completely before it sends a range of the blob.
/// The verification is necessary because a client cannot verify a range. A range of a larger blob
/// is sent as it arrives.
const MAX_VERIFIED_FIRST: u64 = 8 << 20;

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
    /// Receives the upstream stream of the fill that this source started, if the cache does not
    /// admit the blob.
    handed_over: Option<oneshot::Receiver<HandedOverStream>>,
}

enum ActiveSource {
    Cache(BlobReader),
    Upstream(Box<DirectDownload>),
}

impl BlobSource {
    /// Finds the blob in the cache or in a running fill, or starts a fill. Cancel safe: a fill that
    /// was started continues.
    pub(crate) async fn find(
        context: &Arc<RequestContext>,
        request: BlobRequest,
    ) -> Result<(Self, CacheOutcome), Error> {
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
            true => Some(claim(context, &request).await),
            false => None,
        };
        let mut handed_over = None;
        let (active, outcome) = match claimed {
            Some(Ok(Some((reader, outcome, stream)))) => {
                handed_over = stream;
                (ActiveSource::Cache(reader), outcome)
            }
            Some(Err(error)) if !error.is_storage() => return Err(error),
            _ => {
                let whole = ReadPosition {
                    start: 0,
                    offset: 0,
                };
                let direct = DirectDownload::open(context, &request, whole).await?;
                (ActiveSource::Upstream(direct), CacheOutcome::Miss)
            }
        };
        let mut source = Self::new(context.clone(), request, active);
        source.handed_over = handed_over;
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
        let size = match &self.active {
            ActiveSource::Cache(BlobReader::Stored(_)) => None,
            // A failure of this read is ignored, because the first read of the content fails in the
            // same way and handles the failure.
            ActiveSource::Cache(BlobReader::Tail(tail)) => tail.size().await.ok().flatten(),
            ActiveSource::Upstream(direct) => direct.size(),
        };
        self.verified_first = size.is_some_and(|size| end < size && size <= MAX_VERIFIED_FIRST);
        self.active = match self.active {
            ActiveSource::Upstream(direct) if first > 0 => {
                ActiveSource::Upstream(direct.part(&self.context, &self.request, first).await?)
            }
            active => active,
        };
        Ok(self)
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
        let left = self
            .end
            .map_or(u64::MAX, |end| end.saturating_sub(self.offset));
        blob.verified_range(self.offset, max.min(left))
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
            match &self.active {
                ActiveSource::Upstream(direct) => return Ok(direct.size()),
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
        loop {
            let left = self
                .end
                .map_or(u64::MAX, |end| end.saturating_sub(self.offset));
            let max = usize::try_from(left)
                .unwrap_or(usize::MAX)
                .min(MAX_FRAME_BYTES);
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
                ActiveSource::Upstream(direct) => {
                    let (context, request) = (&self.context, &self.request);
                    if self.verified_first && !direct.is_verified() {
                        let len = usize::try_from(left).unwrap_or(usize::MAX);
                        direct.verify(context, request, len).await?;
                    }
                    direct.next(context, request, max).await?
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
        // Only a fill that the cache does not admit hands over its upstream stream.
        if !is_not_admitted(&error) {
            self.handed_over = None;
        }
        self.active = match error {
            error if error.is_storage() => self.download_directly().await?,
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
        match claim(&self.context, &self.request).await {
            Ok(Some((reader, _, handed_over))) => {
                self.handed_over = handed_over;
                Ok(ActiveSource::Cache(reader))
            }
            Ok(None) => self.download_directly().await,
            Err(error) if error.is_storage() => self.download_directly().await,
            Err(error) => Err(error),
        }
    }

    async fn download_directly(&mut self) -> Result<ActiveSource, Error> {
        let Self { start, offset, .. } = *self;
        if let Some(handed_over) = self.handed_over.take()
            && DirectDownload::reads_from_start(start)
            // The fill has ended or ends at once, so this wait is short.
            && let Ok(handed_over) = handed_over.await
        {
            let direct =
                DirectDownload::handed_over(&self.context, handed_over, &self.request, offset);
            return Ok(ActiveSource::Upstream(direct));
        }
        let position = ReadPosition { start, offset };
        Ok(ActiveSource::Upstream(
            DirectDownload::open(&self.context, &self.request, position).await?,
        ))
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
