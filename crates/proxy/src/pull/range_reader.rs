//! `RangeReader`: reads a range of a blob that is being filled. If nobody downloads the bytes of the
//! range, the reader starts their download.
//!
//! 1. Each download needs a download slot of the reader's client. The reader claims bytes only when
//!    it has a slot. If it claimed bytes first, the fill could wait for the claim, and the claim for
//!    the slot of the fill.
//! 2. A download continues when the reader is dropped, because the fill needs the bytes, too.
//! 3. After a failed download, the reader waits for the first connection of the fill.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use pierhead_cache::{Arrival, Error as CacheError, TailReader};
use pierhead_host::BackgroundTask;
use tokio::sync::oneshot;

use crate::limits::downloads::{DownloadSlot, DownloadWaiters};
use crate::pull::blob_connection::{BlobConnection, ConnectionRole};
use crate::pull::download_slot::{self, at_once};
use crate::pull::extra_connections::FillDownload;
use crate::pull::waiting_ranges::WaitingRange;

/// Reads a range of a blob that is being filled.
pub(crate) struct RangeReader {
    download: FillDownload,
    tail: TailReader,
    end: u64,
    /// Receives the download slot for which the reader waits, and the range that the first
    /// connection of the fill may download meanwhile.
    slot: Option<(oneshot::Receiver<DownloadSlot>, Arc<WaitingRange>)>,
    /// Whether the reader downloads nothing any more.
    is_passive: Arc<AtomicBool>,
}

impl RangeReader {
    pub(crate) fn new(download: FillDownload, tail: &TailReader, range: Range<u64>) -> Self {
        download.ranges.set_range_readers();
        Self {
            download,
            end: range.end,
            tail: tail.for_range(range),
            slot: None,
            is_passive: Arc::default(),
        }
    }

    /// Reads up to `max` bytes from `offset`, like
    /// [`BlobReader::read_at`](pierhead_cache::BlobReader::read_at). Cancel safe.
    pub(crate) async fn read_at(&mut self, offset: u64, max: usize) -> Result<Bytes, CacheError> {
        loop {
            if let Some((waiting, range)) = &mut self.slot {
                range.set(offset..self.end);
                tokio::select! {
                    biased;
                    bytes = self.tail.read_at(offset, max) => return bytes,
                    slot = waiting => {
                        self.slot = None;
                        if let Ok(slot) = slot {
                            self.start_download(offset, slot);
                        }
                    }
                }
                continue;
            }
            // The upstream states its version of the blob together with the size.
            self.tail.size().await?;
            if self.is_passive.load(Ordering::Relaxed) || self.download.ranges.version().is_none() {
                return self.tail.read_at(offset, max).await;
            }
            match self.tail.arrival(offset).await? {
                Arrival::Readable => return self.tail.read_at(offset, max).await,
                // Its own download may have failed meanwhile.
                Arrival::Missing if self.is_passive.load(Ordering::Relaxed) => {}
                Arrival::Missing => match self.acquire_at_once().await {
                    Some(slot) => self.start_download(offset, slot),
                    None => self.wait_for_slot(offset),
                },
            }
        }
    }

    /// Starts the download of the bytes at `offset`, if nobody downloads them and a download slot is
    /// free. Does not wait.
    pub(crate) async fn claim_at_once(&mut self, offset: u64) {
        let missing = at_once(self.tail.arrival(offset)).await;
        if let Some(Ok(Arrival::Missing)) = missing
            && self.download.ranges.version().is_some()
            && let Some(slot) = self.acquire_at_once().await
        {
            self.start_download(offset, slot);
        }
    }

    async fn acquire_at_once(&self) -> Option<DownloadSlot> {
        let (context, request) = (&self.download.context, &self.download.request);
        let waiters = DownloadWaiters::readers(self.tail.readers());
        download_slot::acquire_at_once(context, request, waiters).await
    }

    fn wait_for_slot(&mut self, offset: u64) {
        let FillDownload {
            context, request, ..
        } = self.download.clone();
        let Ok(permit) = context.limits.upstream_permit(&request.client) else {
            self.be_passive();
            return;
        };
        let waiters = DownloadWaiters::readers(self.tail.readers());
        let (mut pass, slot) = oneshot::channel();
        let range = self.download.ranges.waiting().add(offset..self.end);
        self.slot = Some((slot, range));
        let panics = context.cache.panics().clone();
        panics.spawn(BackgroundTask::FillOwner, async move {
            tokio::select! {
                slot = download_slot::acquire(&context, permit, &request, waiters) => {
                    // If the reader is gone, dropping the slot releases it.
                    let _ = pass.send(slot);
                }
                () = pass.closed() => {}
            }
        });
    }

    /// Downloads the bytes from `offset` on that nobody downloads.
    fn start_download(&mut self, offset: u64, slot: DownloadSlot) {
        let Some(mut piece) = self.tail.pieces().claim(offset..self.end) else {
            // Another connection downloads the byte at `offset` by now, or the fill takes no more
            // claims: the reader waits for the byte.
            return;
        };
        let (download, is_passive) = (self.download.clone(), self.is_passive.clone());
        let panics = download.context.cache.panics().clone();
        panics.spawn(BackgroundTask::FillOwner, async move {
            let FillDownload {
                context,
                request,
                ranges,
            } = &download;
            let role = ConnectionRole::Additional;
            let mut connection = BlobConnection::new((context, request), ranges, role);
            tokio::select! {
                filled = connection.fill_piece(&mut piece, || ()) => if let Err(error) = filled {
                    let digest = &request.digest;
                    tracing::debug!(%digest, %error, "the download of a range ended");
                    is_passive.store(true, Ordering::Relaxed);
                },
                () = slot.yield_requested() => {}
            }
        });
    }

    fn be_passive(&self) {
        self.is_passive.store(true, Ordering::Relaxed);
    }
}
