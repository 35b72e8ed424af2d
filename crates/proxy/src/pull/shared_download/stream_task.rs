//! `StreamTask`: runs one upstream stream of a shared download.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use pierhead_cache::Error as CacheError;
use pierhead_host::BackgroundTask;
use pierhead_oci::Hasher;
use pierhead_remote::{BlobStream, Error as RemoteError, RangeSpec};
use tokio::sync::watch;

use crate::context::RequestContext;
use crate::error::Error;
use crate::limits::downloads::{DownloadSlot, DownloadWaiters, UpstreamPermit};
use crate::limits::memory::MAX_FRAME_BYTES;
use crate::pull::blob_request::BlobRequest;
use crate::pull::download_log::DownloadLog;
use crate::pull::download_slot;
use crate::pull::shared_download::SharedDownload;
use crate::pull::shared_download::stream_set::StreamId;
use crate::pull::shared_download::stream_set::flow_control::{StreamPlan, StreamRoom};

/// Interval at which a stream counts the time for which a slow reader makes others wait.
const HOLD_UP_INTERVAL: Duration = Duration::from_millis(100);

/// Runs one upstream stream of a shared download. Dropping this value removes the stream, unless it
/// has ended; its readers then attach to another stream.
pub(super) struct StreamTask {
    download: Arc<SharedDownload>,
    id: StreamId,
    context: Arc<RequestContext>,
    request: BlobRequest,
    taken: watch::Receiver<()>,
    has_ended: bool,
}

/// A stream that a fill hands over if the cache does not admit the blob. The clients of the fill
/// wait for it.
pub(crate) struct ExpectedStream(pub(super) StreamTask);

/// An upstream stream that is open, and the range of the blob that its readers need.
struct OpenedStream {
    stream: BlobStream,
    from: u64,
    to: Option<u64>,
}

impl ExpectedStream {
    /// Continues with this stream in this slot.
    pub(crate) fn hand_over(self, stream: BlobStream, slot: DownloadSlot) {
        let Self(mut task) = self;
        slot.set_waiters(DownloadWaiters::owner());
        let panics = task.context.cache.panics().clone();
        panics.spawn(BackgroundTask::FillOwner, async move {
            let log = DownloadLog::start(&task.context, &task.request, None);
            let opened = OpenedStream {
                from: stream.offset(),
                to: stream.end().filter(|_| stream.is_range()),
                stream,
            };
            task.transfer(opened, slot, log).await;
        });
    }
}

impl StreamTask {
    pub(super) fn new(
        download: Arc<SharedDownload>,
        id: StreamId,
        (context, request): (Arc<RequestContext>, BlobRequest),
    ) -> Self {
        Self {
            taken: download.taken.subscribe(),
            download,
            id,
            context,
            request,
            has_ended: false,
        }
    }

    pub(super) async fn run(mut self, permit: UpstreamPermit) {
        let (context, request) = (self.context.clone(), self.request.clone());
        let waiters = DownloadWaiters::owner();
        let slot = tokio::select! {
            slot = download_slot::acquire(&context, permit, &request, waiters) => slot,
            () = self.unused() => return,
        };
        let plan = self.download.set.lock().plan(self.id, Instant::now());
        let Some(plan) = plan else {
            return;
        };
        let mut log = DownloadLog::start(&context, &request, None);
        let opened = tokio::select! {
            opened = open(&context, &request, plan) => opened,
            () = self.unused() => return,
        };
        match opened {
            Ok(opened) => {
                let negative_cache = &context.generation.negative_cache;
                negative_cache.record_response(&request.registry);
                self.transfer(opened, slot, log).await;
            }
            Err(error) => {
                drop(slot);
                self.upstream_failed(error, &mut log);
            }
        }
    }

    /// Passes the bytes of the stream to its readers.
    async fn transfer(
        &mut self,
        opened: OpenedStream,
        mut slot: DownloadSlot,
        mut log: DownloadLog<'static>,
    ) {
        let OpenedStream {
            mut stream,
            from,
            to,
        } = opened;
        log.from(stream.address());
        let mut hasher = {
            let mut set = self.download.set.lock();
            set.opened(self.id, (from, to), stream.size());
            set.prefix(self.id)
        };
        self.download.arrived.send_replace(());
        let mut skip = from.saturating_sub(stream.offset());
        let mut left = to.map_or(u64::MAX, |to| to.saturating_sub(from));
        while left > 0 {
            if !self.room().await {
                return;
            }
            let Some(kept) = self.keep_slot(slot).await else {
                return;
            };
            slot = kept;
            let next = tokio::select! {
                biased;
                next = stream.next() => next,
                () = self.unused() => return,
            };
            let mut bytes = match next {
                Some(Ok(bytes)) => bytes,
                Some(Err(error)) => {
                    self.upstream_failed(error, &mut log);
                    drop((stream, log));
                    return self.wait_for_readers(slot).await;
                }
                None => break,
            };
            log.received(bytes.len());
            let _ = bytes.split_to(take(&mut skip, bytes.len()));
            bytes.truncate(take(&mut left, bytes.len()));
            self.push(bytes, &mut hasher);
        }
        log.from(stream.address());
        let sources = stream.sources();
        drop(stream);
        let result = self.verify(hasher, to);
        match &result {
            Ok(()) => log.streamed(),
            Err(error) => {
                sources.report_mismatch();
                log.failed(error);
            }
        }
        drop(log);
        self.end(result);
        self.wait_for_readers(slot).await;
    }

    /// Keeps the slot while clients read the last bytes from the window, because slots limit the
    /// number of windows in memory.
    async fn wait_for_readers(&mut self, mut slot: DownloadSlot) {
        loop {
            self.taken.borrow_and_update();
            if !self.download.set.lock().is_used(self.id) {
                return;
            }
            match self.keep_slot(slot).await {
                Some(kept) => slot = kept,
                None => {
                    self.has_ended = false;
                    return;
                }
            }
            // The sender exists as long as `self.download`.
            let _ = self.taken.changed().await;
        }
    }

    fn push(&self, mut bytes: Bytes, hasher: &mut Option<Hasher>) {
        while !bytes.is_empty() {
            let frame = bytes.split_to(bytes.len().min(MAX_FRAME_BYTES));
            // The hash is computed before the lock is taken.
            if let Some(hasher) = hasher {
                hasher.update(&frame);
            }
            (self.download.set.lock()).push(self.id, frame, hasher.clone());
        }
        self.download.arrived.send_replace(());
    }

    /// Verifies the bytes of a stream that ends with the blob.
    fn verify(&self, hasher: Option<Hasher>, to: Option<u64>) -> Result<(), Error> {
        let BlobRequest {
            registry,
            repository,
            digest: expected,
            ..
        } = &self.request;
        match hasher.filter(|_| to.is_none()).map(Hasher::finish) {
            Some(actual) if actual != *expected => Err(CacheError::WrongDigest {
                expected: *expected,
                actual: actual.into(),
                resumed: false,
            }
            .into()),
            Some(_) => {
                self.context.record_origin(registry, repository, expected);
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn upstream_failed(&mut self, error: RemoteError, log: &mut DownloadLog<'static>) {
        let negative_cache = &self.context.generation.negative_cache;
        negative_cache.record_failure(&self.request.registry, self.request.subject(), &error);
        let error = error.into();
        log.failed(&error);
        self.end(Err(error));
    }

    fn end(&mut self, result: Result<(), Error>) {
        self.has_ended = true;
        self.download.set.lock().end(self.id, result);
        self.download.arrived.send_replace(());
    }

    /// Waits until the window has room. `false`: nobody needs the stream.
    async fn room(&mut self) -> bool {
        loop {
            self.taken.borrow_and_update();
            let now = Instant::now();
            let room = {
                let mut set = self.download.set.lock();
                if let Some(bytes) = set.wanted_memory(self.id)
                    && let Some(memory) = self.context.limits.reserve_window(bytes)
                {
                    set.add_memory(self.id, bytes, Some(memory));
                }
                set.room(self.id, now)
            };
            let until = match room {
                StreamRoom::Write => return true,
                StreamRoom::Unused => return false,
                StreamRoom::Wait(until) => until,
                StreamRoom::HeldUp(_) => Some(now + HOLD_UP_INTERVAL),
            };
            let wait = async {
                match until {
                    Some(until) => tokio::time::sleep_until(until.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                _ = self.taken.changed() => {}
                () = wait => {}
            }
            if let StreamRoom::HeldUp(slow) = room {
                let ended = Instant::now();
                let time = ended.duration_since(now);
                self.download.change(|set| set.held_up(slow, time, ended));
            }
        }
    }

    /// Returns a slot of a client that reads the stream. `None`: no such client has a free slot.
    async fn keep_slot(&self, slot: DownloadSlot) -> Option<DownloadSlot> {
        let other = (self.download.set.lock()).other_client(self.id, |it| slot.is_of(it));
        let Some(client) = other else {
            return Some(slot);
        };
        let request = BlobRequest {
            client,
            ..self.request.clone()
        };
        let acquire =
            || download_slot::acquire_at_once(&self.context, &request, DownloadWaiters::owner());
        match acquire().await {
            Some(own) => Some(own),
            None => {
                // The limit of all slots may be reached.
                drop(slot);
                acquire().await
            }
        }
    }

    /// Resolves when the stream has no reader.
    async fn unused(&mut self) {
        loop {
            self.taken.borrow_and_update();
            if !self.download.set.lock().is_used(self.id) {
                return;
            }
            // The sender exists as long as `self.download`.
            let _ = self.taken.changed().await;
        }
    }
}

impl Drop for StreamTask {
    fn drop(&mut self) {
        if !self.has_ended {
            self.download.set.lock().remove_stream(self.id);
            self.download.arrived.send_replace(());
        }
    }
}

/// Takes up to `max` from `left`.
fn take(left: &mut u64, max: usize) -> usize {
    let taken = usize::try_from(*left).map_or(max, |left| left.min(max));
    *left -= u64::try_from(taken).unwrap_or(0);
    taken
}

async fn open(
    context: &RequestContext,
    request: &BlobRequest,
    plan: StreamPlan,
) -> Result<OpenedStream, RemoteError> {
    let BlobRequest {
        registry,
        repository,
        digest,
        ..
    } = request;
    let client = &context.client;
    let range = match plan {
        StreamPlan::Range { from, to: None } => {
            let stream = client.blob(registry, repository, digest, from).await?;
            let to = None;
            return Ok(OpenedStream { stream, from, to });
        }
        StreamPlan::Range { from, to: Some(to) } => RangeSpec::Int {
            first: from,
            last: Some(to.saturating_sub(1)),
        },
        StreamPlan::Suffix(count) => RangeSpec::Suffix(count),
    };
    let opened = client.blob_unversioned_range(registry, repository, digest, range);
    let stream = match opened.await {
        Err(RemoteError::NoRanges { .. }) => client.blob(registry, repository, digest, 0).await?,
        opened => opened?,
    };
    let (from, to) = match stream.size() {
        // Without a size, the upstream sends the whole blob.
        None => (stream.offset(), None),
        Some(size) => {
            let range = range.within(size);
            (range.start, Some(range.end).filter(|end| *end < size))
        }
    };
    Ok(OpenedStream { stream, from, to })
}
