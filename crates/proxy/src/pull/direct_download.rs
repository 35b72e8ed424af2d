//! The bytes of one blob straight from the upstream, past a cache that does not take them.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use pierhead_cache::Error as CacheError;
use pierhead_oci::Hasher;
use pierhead_remote::BlobStream;

use crate::context::RequestContext;
use crate::error::Error;
use crate::limits::downloads::{DownloadSlot, DownloadWaiters};
use crate::limits::memory::MemoryReservation;
use crate::pull::blob_request::BlobRequest;
use crate::pull::download_log::DownloadLog;
use crate::pull::fetch::{self, HandedOverStream};

/// A reader of a part that begins no later than this takes the bytes before it too, so that what it gets can be
/// held against the digest. For later ones that would cost more than they ask for: only their client can verify.
const MAX_HASHED_PREFIX: u64 = 8 << 20;

/// Where a reader is, and where it began: at 0 when it wants the whole blob.
pub(crate) struct ReadPosition {
    pub(crate) start: u64,
    pub(crate) offset: u64,
}

/// Straight from the upstream, past a disk that would not take it.
pub(crate) struct DirectDownload {
    stream: BlobStream,
    /// Bytes before the reader's offset, to be thrown away.
    skip: u64,
    /// The next bytes, held back until more come or the digest is known good.
    held: Bytes,
    /// Taken at the end. `None` of a part that begins late.
    hasher: Option<Hasher>,
    ended: bool,
    /// What is held back for a part that is verified first.
    counted: Option<Arc<MemoryReservation>>,
    slot: DownloadSlot,
    download: DownloadLog<'static>,
}

impl DirectDownload {
    /// Opens it for a reader. Of a whole blob the bytes that have left are taken once more: it is not ended
    /// cleanly unless it was held against the digest from its first byte.
    pub(crate) async fn open(
        context: &RequestContext,
        request: &BlobRequest,
        position: ReadPosition,
    ) -> Result<Box<Self>, Error> {
        let ticket = context.limits.queue(&request.client)?;
        let slot = fetch::acquire_slot(context, ticket, request, DownloadWaiters::owner()).await;
        Self::open_in(slot, context, request, position).await
    }

    async fn open_in(
        slot: DownloadSlot,
        context: &RequestContext,
        request: &BlobRequest,
        position: ReadPosition,
    ) -> Result<Box<Self>, Error> {
        let BlobRequest {
            registry,
            repository,
            digest,
            ..
        } = request;
        let ReadPosition { start, offset } = position;
        let from = if start <= MAX_HASHED_PREFIX {
            0
        } else {
            offset
        };
        let mut download = DownloadLog::start(context, request, None);
        let stream = match context
            .client
            .blob(registry, repository, digest, from)
            .await
        {
            Ok(stream) => stream,
            Err(error) => {
                context
                    .generation
                    .negative_cache
                    .failed(registry, request.subject(), &error);
                let error = error.into();
                download.failed(&error);
                return Err(error);
            }
        };
        context.generation.negative_cache.answered(registry);
        let skip = offset
            .checked_sub(stream.offset())
            .ok_or(Error::Truncated { at: offset })?;
        let hasher = (stream.offset() == 0).then(|| Hasher::new(digest.algorithm()));
        if hasher.is_none() && start <= MAX_HASHED_PREFIX {
            return Err(Error::Truncated { at: 0 });
        }
        Ok(Self::of(stream, hasher, skip, (slot, download)))
    }

    /// Goes on with what was opened for a fill that was not let in, for a reader at `offset`.
    pub(crate) fn handed_over(
        context: &RequestContext,
        handed_over: HandedOverStream,
        request: &BlobRequest,
        offset: u64,
    ) -> Box<Self> {
        let HandedOverStream { stream, slot } = handed_over;
        let download = DownloadLog::start(context, request, None);
        let hasher = Some(Hasher::new(request.digest.algorithm()));
        Self::of(stream, hasher, offset, (slot, download))
    }

    /// For a reader of the part from `first`, before it reads anything. What began at 0 goes on when those bytes are
    /// wanted, too. Else it is given up, and the part is asked for in the same turn: to wait for another one while
    /// this is held could be to wait for oneself.
    pub(crate) async fn part(
        mut self: Box<Self>,
        context: &RequestContext,
        request: &BlobRequest,
        first: u64,
    ) -> Result<Box<Self>, Error> {
        if self.hasher.is_some() && Self::takes_all(first) {
            self.skip = first;
            return Ok(self);
        }
        let Self { stream, slot, .. } = *self;
        drop(stream);
        let position = ReadPosition {
            start: first,
            offset: first,
        };
        Self::open_in(slot, context, request, position).await
    }

    /// Whether a reader that began there wants all bytes from the first.
    pub(crate) fn takes_all(start: u64) -> bool {
        start <= MAX_HASHED_PREFIX
    }

    fn of(
        stream: BlobStream,
        hasher: Option<Hasher>,
        skip: u64,
        (slot, mut download): (DownloadSlot, DownloadLog<'static>),
    ) -> Box<Self> {
        download.from(stream.address());
        Box::new(Self {
            stream,
            skip,
            held: Bytes::new(),
            hasher,
            ended: false,
            counted: None,
            slot,
            download,
        })
    }

    /// Total bytes of the blob; `None` when the upstream does not say.
    pub(crate) fn size(&self) -> Option<u64> {
        self.stream.size()
    }

    /// Whether the digest has matched.
    pub(crate) fn is_verified(&self) -> bool {
        self.ended
    }

    /// Takes the next `len` bytes and all that is behind them: none of them leaves before the digest has matched.
    pub(crate) async fn verify(
        &mut self,
        context: &RequestContext,
        request: &BlobRequest,
        len: usize,
    ) -> Result<(), Error> {
        self.counted = Some(context.limits.reserve_shared(&request.client, len)?);
        let mut part = BytesMut::with_capacity(len);
        while !self.ended {
            let bytes = self.arrive(context, request).await?;
            part.extend_from_slice(&bytes[..bytes.len().min(len - part.len())]);
        }
        self.held = part.freeze();
        Ok(())
    }

    /// Up to `max` bytes. What is held back leaves when more has come, and last when the hash matched.
    pub(crate) async fn next(
        &mut self,
        context: &RequestContext,
        request: &BlobRequest,
        max: usize,
    ) -> Result<Bytes, Error> {
        loop {
            if self.held.len() > max || (self.ended && !self.held.is_empty()) {
                let max = max.min(self.held.len());
                return Ok(self.held.split_to(max));
            }
            if self.ended {
                return Ok(Bytes::new());
            }
            let bytes = self.arrive(context, request).await?;
            if self.ended {
                continue;
            }
            // At most `max`, by the first test of the loop.
            let ready = std::mem::replace(&mut self.held, bytes);
            if !ready.is_empty() {
                return Ok(ready);
            }
        }
    }

    /// The next bytes from the reader's offset on; none at the end, when the digest has matched.
    async fn arrive(
        &mut self,
        context: &RequestContext,
        request: &BlobRequest,
    ) -> Result<Bytes, Error> {
        loop {
            let mut bytes = match self.stream.next().await {
                Some(Ok(bytes)) => bytes,
                Some(Err(error)) => {
                    context.generation.negative_cache.failed(
                        &request.registry,
                        request.subject(),
                        &error,
                    );
                    let error = error.into();
                    self.download.failed(&error);
                    return Err(error);
                }
                None => {
                    let checked = self.check(context, request);
                    checked.inspect_err(|error| self.download.failed(error))?;
                    self.download.from(self.stream.address());
                    self.download.streamed();
                    self.ended = true;
                    return Ok(Bytes::new());
                }
            };
            self.download.received(bytes.len());
            if let Some(hasher) = &mut self.hasher {
                hasher.update(&bytes);
            }
            let skipped = usize::try_from(self.skip)
                .unwrap_or(usize::MAX)
                .min(bytes.len());
            self.skip -= u64::try_from(skipped).unwrap_or(0);
            let _ = bytes.split_to(skipped);
            if !bytes.is_empty() {
                return Ok(bytes);
            }
        }
    }

    fn check(&mut self, context: &RequestContext, request: &BlobRequest) -> Result<(), Error> {
        let expected = &request.digest;
        match self.hasher.take().map(Hasher::finish) {
            Some(actual) if actual != *expected => {
                self.stream.sources().report_mismatch();
                let error = CacheError::WrongDigest {
                    expected: *expected,
                    actual: actual.into(),
                    resumed: false,
                };
                Err(error.into())
            }
            Some(_) => {
                context.record_origin(&request.registry, &request.repository, expected);
                Ok(())
            }
            None => Ok(()),
        }
    }
}
