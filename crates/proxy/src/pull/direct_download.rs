//! Downloads one blob from the upstream directly to one client, without storing it.

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
use crate::pull::download::{self, HandedOverStream};
use crate::pull::download_log::DownloadLog;

/// Largest offset of a range for which pierhead also downloads the bytes before the range, to
/// verify the digest of the blob. For a range that starts later, downloading the bytes before it
/// would cost too much, so only the client can verify the content.
const MAX_HASHED_PREFIX: u64 = 8 << 20;

/// The offset where a read started (0 for a whole blob), and the offset of its next byte.
pub(crate) struct ReadPosition {
    pub(crate) start: u64,
    pub(crate) offset: u64,
}

/// A running download for one client.
pub(crate) struct DirectDownload {
    stream: BlobStream,
    /// Number of bytes before the client's offset that are still to arrive. These bytes are hashed
    /// and discarded.
    skip: u64,
    /// The bytes that arrived last. These bytes are sent only when more bytes arrive, or when the
    /// digest matches.
    withheld: Bytes,
    /// Computes the digest of the content. `None`: the range starts after [`MAX_HASHED_PREFIX`], so
    /// nothing is hashed, or the digest was computed at the end.
    hasher: Option<Hasher>,
    has_ended: bool,
    /// The memory reservation of a range that is verified before it is sent.
    reservation: Option<Arc<MemoryReservation>>,
    slot: DownloadSlot,
    download: DownloadLog<'static>,
}

impl DirectDownload {
    /// Opens a download. A download of a whole blob starts at byte 0 even if the client already has
    /// some bytes. Thus pierhead can check the digest of all bytes before it completes the
    /// response.
    pub(crate) async fn open(
        context: &RequestContext,
        request: &BlobRequest,
        position: ReadPosition,
    ) -> Result<Box<Self>, Error> {
        let permit = context.limits.upstream_permit(&request.client)?;
        let slot = download::acquire_slot(context, permit, request, DownloadWaiters::owner()).await;
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
                context.generation.negative_cache.record_failure(
                    registry,
                    request.subject(),
                    &error,
                );
                let error = error.into();
                download.failed(&error);
                return Err(error);
            }
        };
        context.generation.negative_cache.record_response(registry);
        let skip = offset
            .checked_sub(stream.offset())
            .ok_or(Error::Truncated { at: offset })?;
        let hasher = (stream.offset() == 0).then(|| Hasher::new(digest.algorithm()));
        if hasher.is_none() && start <= MAX_HASHED_PREFIX {
            return Err(Error::Truncated { at: 0 });
        }
        Ok(Self::of(stream, hasher, skip, (slot, download)))
    }

    /// Continues with the upstream stream of a fill that the cache did not admit, for a read from
    /// `offset` on.
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

    /// Moves the download to the range that starts at `first`. Must be called before the first
    /// read. If the digest needs the bytes before the range, the download from byte 0 continues. If
    /// the digest does not need those bytes, the range is requested again in the same download
    /// slot: if this task waited for a second slot while it holds one, it could deadlock.
    pub(crate) async fn part(
        mut self: Box<Self>,
        context: &RequestContext,
        request: &BlobRequest,
        first: u64,
    ) -> Result<Box<Self>, Error> {
        if self.hasher.is_some() && Self::reads_from_start(first) {
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

    /// Whether a read that starts at this offset also downloads all bytes before the offset.
    pub(crate) fn reads_from_start(start: u64) -> bool {
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
            withheld: Bytes::new(),
            hasher,
            has_ended: false,
            reservation: None,
            slot,
            download,
        })
    }

    /// Size of the blob, if the upstream stated the size.
    pub(crate) fn size(&self) -> Option<u64> {
        self.stream.size()
    }

    /// Whether all bytes have arrived and the digest matched.
    pub(crate) fn is_verified(&self) -> bool {
        self.has_ended
    }

    /// Reads the blob to its end and returns the next `len` bytes. No byte is returned before the
    /// digest matches.
    pub(crate) async fn verify(
        &mut self,
        context: &RequestContext,
        request: &BlobRequest,
        len: usize,
    ) -> Result<(), Error> {
        self.reservation = Some(context.limits.reserve_shared(&request.client, len)?);
        let mut part = BytesMut::with_capacity(len);
        while !self.has_ended {
            let bytes = self.receive(context, request).await?;
            part.extend_from_slice(&bytes[..bytes.len().min(len - part.len())]);
        }
        self.withheld = part.freeze();
        Ok(())
    }

    /// Returns up to `max` bytes. The last bytes of the blob are returned only after the digest
    /// matched.
    pub(crate) async fn next(
        &mut self,
        context: &RequestContext,
        request: &BlobRequest,
        max: usize,
    ) -> Result<Bytes, Error> {
        loop {
            if self.withheld.len() > max || (self.has_ended && !self.withheld.is_empty()) {
                let max = max.min(self.withheld.len());
                return Ok(self.withheld.split_to(max));
            }
            if self.has_ended {
                return Ok(Bytes::new());
            }
            let bytes = self.receive(context, request).await?;
            if self.has_ended {
                continue;
            }
            // The first condition of the loop ensures that there are at most `max` bytes.
            let ready = std::mem::replace(&mut self.withheld, bytes);
            if !ready.is_empty() {
                return Ok(ready);
            }
        }
    }

    /// Returns the next bytes from the client's offset on. Returns no bytes at the end, once the
    /// digest has matched.
    async fn receive(
        &mut self,
        context: &RequestContext,
        request: &BlobRequest,
    ) -> Result<Bytes, Error> {
        loop {
            let mut bytes = match self.stream.next().await {
                Some(Ok(bytes)) => bytes,
                Some(Err(error)) => {
                    context.generation.negative_cache.record_failure(
                        &request.registry,
                        request.subject(),
                        &error,
                    );
                    let error = error.into();
                    self.download.failed(&error);
                    return Err(error);
                }
                None => {
                    let verified = self.verify_digest(context, request);
                    verified.inspect_err(|error| self.download.failed(error))?;
                    self.download.from(self.stream.address());
                    self.download.streamed();
                    self.has_ended = true;
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

    fn verify_digest(
        &mut self,
        context: &RequestContext,
        request: &BlobRequest,
    ) -> Result<(), Error> {
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
