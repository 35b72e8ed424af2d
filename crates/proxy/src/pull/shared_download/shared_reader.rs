//! `SharedReader`: reads a blob that is not stored for one client, from its shared download.

use std::ops::Range;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use pierhead_host::BackgroundTask;
use pierhead_remote::RangeSpec;
use tokio::sync::watch;

use crate::context::RequestContext;
use crate::error::Error;
use crate::limits::memory::{MAX_FRAME_BYTES, MemoryReservation};
use crate::pull::blob_request::BlobRequest;
use crate::pull::shared_download::stream_set::{ReadStep, ReaderId, SelectedBytes, StreamId};
use crate::pull::shared_download::stream_task::{ExpectedStream, StreamTask};
use crate::pull::shared_download::{SharedDownload, selection};

/// Reads a blob that is not stored for one client.
pub(crate) struct SharedReader {
    download: Arc<SharedDownload>,
    context: Arc<RequestContext>,
    request: BlobRequest,
    id: ReaderId,
    arrived: watch::Receiver<()>,
    /// Number of bytes that the client already has.
    skip: u64,
    /// The bytes of a range of a blob that is verified.
    verified: Option<Bytes>,
    /// The memory of `verified`.
    reservation: Option<Arc<MemoryReservation>>,
}

impl SharedReader {
    /// Creates a reader for a client that requested this range.
    pub(crate) fn new(
        context: &Arc<RequestContext>,
        request: &BlobRequest,
        range: Option<RangeSpec>,
    ) -> Box<Self> {
        let download = context.shared_downloads.get(request);
        let id = download.change(|set| set.add_reader(request.client.clone(), selection(range)));
        Box::new(Self {
            context: context.clone(),
            request: request.clone(),
            arrived: download.arrived.subscribe(),
            download,
            id,
            skip: 0,
            verified: None,
            reservation: None,
        })
    }

    /// Creates a reader of a stream that a fill may hand over.
    pub(crate) fn expecting(
        context: &Arc<RequestContext>,
        request: &BlobRequest,
        range: Option<RangeSpec>,
    ) -> (Box<Self>, ExpectedStream) {
        let reader = Self::new(context, request, range);
        let id = reader.download.change(|set| set.expect_stream(reader.id));
        let expected = ExpectedStream(reader.task(id));
        (reader, expected)
    }

    /// Sets the bytes of the blob that the client needs. If the client cannot verify them,
    /// `is_whole` verifies the whole blob. Must be called before the first read.
    pub(crate) fn select(&mut self, range: Range<u64>, is_whole: bool) {
        let selection = match is_whole {
            true => SelectedBytes::Whole,
            false => SelectedBytes::Range {
                first: range.start,
                end: Some(range.end),
            },
        };
        self.skip = if is_whole { range.start } else { 0 };
        self.download.change(|set| set.select(self.id, selection));
    }

    /// Waits for the size of the blob. `None`: the upstream does not state it. Cancel safe.
    pub(crate) async fn size(&mut self) -> Result<Option<u64>, Error> {
        loop {
            self.arrived.borrow_and_update();
            let known = self.download.set.lock().size;
            if let Some(size) = known {
                return Ok(size);
            }
            // No byte can arrive before the size.
            match self.poll(0)? {
                Some(_) => {}
                None => self.wait().await,
            }
        }
    }

    /// Whether [`Self::verify`] has verified the blob.
    pub(crate) fn is_verified(&self) -> bool {
        self.verified.is_some()
    }

    /// Reads the blob to its end, and keeps the next `len` bytes. No byte is returned before the
    /// digest matches.
    pub(crate) async fn verify(&mut self, len: usize) -> Result<(), Error> {
        let limits = &self.context.limits;
        self.reservation = Some(limits.reserve_shared(&self.request.client, len)?);
        let mut part = BytesMut::with_capacity(len);
        loop {
            let bytes = self.read(MAX_FRAME_BYTES).await?;
            if bytes.is_empty() {
                break;
            }
            part.extend_from_slice(&bytes[..bytes.len().min(len - part.len())]);
        }
        self.verified = Some(part.freeze());
        // The download ends before the client has read the bytes.
        self.download.change(|set| set.remove_reader(self.id));
        Ok(())
    }

    /// Returns up to `max` bytes. The last bytes of a whole blob are returned only after the digest
    /// matched. Returns no bytes at the end. Cancel safe.
    pub(crate) async fn next(&mut self, max: usize) -> Result<Bytes, Error> {
        match &mut self.verified {
            Some(verified) => Ok(verified.split_to(max.min(verified.len()))),
            None => self.read(max).await,
        }
    }

    async fn read(&mut self, max: usize) -> Result<Bytes, Error> {
        loop {
            self.arrived.borrow_and_update();
            let Some(mut bytes) = self.poll(max)? else {
                self.wait().await;
                continue;
            };
            let skipped = usize::try_from(self.skip).map_or(bytes.len(), |it| it.min(bytes.len()));
            if skipped > 0 {
                self.skip -= u64::try_from(skipped).unwrap_or(0);
                let _ = bytes.split_to(skipped);
                if bytes.is_empty() {
                    continue;
                }
            }
            return Ok(bytes);
        }
    }

    /// Returns the next bytes, no bytes at the end, or `None` if the reader has to wait.
    fn poll(&self, max: usize) -> Result<Option<Bytes>, Error> {
        loop {
            match self.download.change(|set| set.poll(self.id, max)) {
                ReadStep::Bytes(bytes) => return Ok(Some(bytes)),
                ReadStep::End => return Ok(Some(Bytes::new())),
                ReadStep::Wait => return Ok(None),
                ReadStep::Start(stream) => self.start(stream)?,
                ReadStep::Failed(error) => return Err(error),
            }
        }
    }

    async fn wait(&mut self) {
        // The sender exists as long as `self.download`.
        let _ = self.arrived.changed().await;
    }

    fn start(&self, id: StreamId) -> Result<(), Error> {
        // If the task is not started, dropping it removes the stream.
        let task = self.task(id);
        if let Some(error) = self
            .context
            .generation
            .negative_cache
            .error(&self.request.subject())
        {
            return Err(error.into());
        }
        let permit = self.context.limits.upstream_permit(&self.request.client)?;
        let panics = self.context.cache.panics();
        panics.spawn(BackgroundTask::FillOwner, task.run(permit));
        Ok(())
    }

    fn task(&self, id: StreamId) -> StreamTask {
        let opener = (self.context.clone(), self.request.clone());
        StreamTask::new(self.download.clone(), id, opener)
    }
}

impl Drop for SharedReader {
    fn drop(&mut self) {
        self.download.change(|set| set.remove_reader(self.id));
    }
}
