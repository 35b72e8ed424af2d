//! The bytes of one blob for one reader, from wherever they can be had.
//!
//! A reader starts at the cache: on a committed blob, or on the fill under way. When rot, a full disk
//! or somebody else's failed fill gets in its way it goes on elsewhere from its offset, unseen.

use std::sync::Arc;

use bytes::Bytes;
use pierhead_cache::{BlobReader, Error as CacheError, StoredBlob, VerifiedRange};
use tokio::sync::oneshot;

use crate::context::RequestContext;
use crate::error::{Error, is_passed_on};
use crate::limits::memory::FRAME_BYTES;
use crate::metrics::CacheOutcome;
use crate::pull::blob_request::BlobRequest;
use crate::pull::claim::claim;
use crate::pull::direct_download::{DirectDownload, ReadPosition};
use crate::pull::fetch::HandedOverStream;

/// How often one reader may change its source: more is a disk or an upstream beyond help.
const MAX_SOURCE_CHANGES: u32 = 4;

/// A part of a blob up to this size that is still coming waits until all of it is known good: nobody
/// could tell that it is wrong, since a part has no digest. Of a larger one it leaves as it comes.
const MAX_VERIFIED_FIRST: u64 = 8 << 20;

/// See the head of this module.
pub(crate) struct BlobSource {
    context: Arc<RequestContext>,
    request: BlobRequest,
    active: ActiveSource,
    start: u64,
    offset: u64,
    /// Where to stop; `None` at the end of the content.
    end: Option<u64>,
    /// Nothing leaves before the digest has matched.
    verified_first: bool,
    /// What leaves before it and behind it.
    before: Bytes,
    behind: Bytes,
    changes: u32,
    /// What was opened for the fill that this reader began, in case it is not let in.
    handed_over: Option<oneshot::Receiver<HandedOverStream>>,
}

enum ActiveSource {
    Cache(BlobReader),
    Upstream(Box<DirectDownload>),
}

impl BlobSource {
    /// Finds the blob: in the cache, in a fill under way, or by starting one. The outcome says which.
    /// Cancel safe: a fill that was started goes on.
    pub(crate) async fn find(
        context: &Arc<RequestContext>,
        request: BlobRequest,
    ) -> Result<(Self, CacheOutcome), Error> {
        let mut storable = true;
        if !context.cache.contains(&request.digest) {
            if let Some(error) = context.generation.negative_cache.error(&request.subject()) {
                return Err(error.into());
            }
            storable = !context
                .generation
                .negative_cache
                .is_unstorable(&request.digest);
        }
        let claimed = match storable {
            true => Some(claim(context, &request).await),
            false => None,
        };
        let mut handed_over = None;
        let (active, outcome) = match claimed {
            Some(Ok(Some((content, outcome, stream)))) => {
                handed_over = stream;
                (ActiveSource::Cache(content), outcome)
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

    /// Of an object that is open already.
    pub(crate) fn of(
        context: Arc<RequestContext>,
        request: BlobRequest,
        object: StoredBlob,
    ) -> Self {
        Self::new(
            context,
            request,
            ActiveSource::Cache(BlobReader::Stored(object)),
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
            behind: Bytes::new(),
            changes: 0,
            handed_over: None,
        }
    }

    /// Puts other bytes around what is read. To be called before the first read; `behind` needs an end
    /// that is known, by [`BlobSource::in_range`].
    pub(crate) fn surround(&mut self, before: Bytes, behind: Bytes) {
        (self.before, self.behind) = (before, behind);
    }

    /// Of which blob, for the log.
    pub(crate) fn name(&self) -> String {
        let BlobRequest {
            registry,
            repository,
            digest,
            ..
        } = &self.request;
        format!("{registry}/{repository}@{digest}")
    }

    /// Reads only `[first, end)`. To be called before the first read.
    pub(crate) async fn in_range(mut self, first: u64, end: u64) -> Result<Self, Error> {
        (self.start, self.offset) = (first, first);
        self.end = Some(end);
        let size = match &self.active {
            ActiveSource::Cache(BlobReader::Stored(_)) => None,
            // What fails here fails at the first read again, where there is a way out.
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

    /// Whether all of it lies in the file of a committed blob.
    pub(crate) fn is_file(&self) -> bool {
        matches!(&self.active, ActiveSource::Cache(BlobReader::Stored(object)) if object.extent(0).is_some())
    }

    /// Of what comes next, up to `max` bytes that need not be read: they lie in the file of a committed
    /// blob, are known good and in memory. Whoever sends them says so by [`BlobSource::advance`].
    pub(crate) fn verified_range(&self, max: u64) -> Option<VerifiedRange> {
        let ActiveSource::Cache(BlobReader::Stored(object)) = &self.active else {
            return None;
        };
        if !self.before.is_empty() {
            return None;
        }
        let left = self
            .end
            .map_or(u64::MAX, |end| end.saturating_sub(self.offset));
        object.verified_range(self.offset, max.min(left))
    }

    /// Those bytes have left.
    pub(crate) fn advance(&mut self, bytes: u64) {
        self.offset += bytes;
    }

    /// How far the reader is.
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    /// Total bytes of the blob, as soon as that is known; `None` when it will be known at the end only.
    pub(crate) async fn size(&mut self) -> Result<Option<u64>, Error> {
        loop {
            match &self.active {
                ActiveSource::Upstream(direct) => return Ok(direct.size()),
                ActiveSource::Cache(content) => match content.size().await {
                    Ok(size) => return Ok(size),
                    Err(error) => self.change(error).await?,
                },
            }
        }
    }

    /// The next bytes, at most [`FRAME_BYTES`]; empty at the end.
    pub(crate) async fn next(&mut self) -> Result<Bytes, Error> {
        loop {
            let left = self
                .end
                .map_or(u64::MAX, |end| end.saturating_sub(self.offset));
            let max = usize::try_from(left).unwrap_or(usize::MAX).min(FRAME_BYTES);
            if !self.before.is_empty() {
                return Ok(std::mem::take(&mut self.before));
            }
            if max == 0 {
                return Ok(std::mem::take(&mut self.behind));
            }
            let bytes = match &mut self.active {
                ActiveSource::Cache(content) => {
                    match read(content, self.verified_first, self.offset, max).await {
                        Ok(bytes) => bytes,
                        Err(error) => {
                            self.change(error).await?;
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

    /// Goes on elsewhere after `error`, or says that there is nowhere to go.
    async fn change(&mut self, error: CacheError) -> Result<(), Error> {
        self.changes += 1;
        if self.changes > MAX_SOURCE_CHANGES {
            return Err(error.into());
        }
        tracing::debug!(digest = %self.request.digest, offset = self.offset, %error, "a reader changes its source");
        let nothing_sent = self.offset == self.start;
        // A fetch whose fill has failed otherwise has nothing to pass on, and may learn of it late.
        if !is_passed_on(&error) {
            self.handed_over = None;
        }
        self.active = match error {
            error if error.is_storage() => self.direct().await?,
            // The leftovers of an earlier fill may have been what was wrong; they are gone now.
            CacheError::WrongDigest { resumed: true, .. } | CacheError::Restarted
                if nothing_sent =>
            {
                self.again().await?
            }
            // It may have been damaged on the way, and podman has no second try of its own.
            CacheError::WrongDigest { .. } | CacheError::WrongSize { .. }
                if nothing_sent && self.changes == 1 =>
            {
                self.again().await?
            }
            // What came is wrong, and some of it may have left already.
            CacheError::WrongDigest { .. }
            | CacheError::WrongSize { .. }
            | CacheError::Restarted => return Err(error.into()),
            // Whoever led asked another repository, which need not say anything of ours.
            CacheError::Abandoned(_) => match self
                .context
                .generation
                .negative_cache
                .error(&self.request.subject())
            {
                Some(upstream) => return Err(upstream.into()),
                None => self.again().await?,
            },
            // Rot has been taken out of the cache already: this claim fetches anew.
            _ => self.again().await?,
        };
        Ok(())
    }

    async fn again(&mut self) -> Result<ActiveSource, Error> {
        match claim(&self.context, &self.request).await {
            Ok(Some((content, _, handed_over))) => {
                self.handed_over = handed_over;
                Ok(ActiveSource::Cache(content))
            }
            Ok(None) => self.direct().await,
            Err(error) if error.is_storage() => self.direct().await,
            Err(error) => Err(error),
        }
    }

    async fn direct(&mut self) -> Result<ActiveSource, Error> {
        let Self { start, offset, .. } = *self;
        if let Some(handed_over) = self.handed_over.take()
            && DirectDownload::takes_all(start)
            // The fill has ended, or will in a moment.
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
    content: &BlobReader,
    verified_first: bool,
    offset: u64,
    max: usize,
) -> Result<Bytes, CacheError> {
    if let (true, BlobReader::Tail(tail)) = (verified_first, content) {
        tail.committed().await?;
    }
    content.read_at(offset, max).await
}
