//! Shared downloads: the clients of a blob that is not stored share its upstream streams.
//!
//! A blob that the cache does not store (no room, not admitted, another registry fills the digest)
//! has one shared download for each registry. The download is a small set of upstream streams. Each
//! stream has a window: the last bytes that arrived, in memory. Clients read from the windows.
//!
//! - **Attach.** A reader attaches to a stream whose window has its next byte, or that downloads
//!   this byte next. Otherwise it starts a stream of its own, which later readers can join. A reader
//!   changes to another stream whenever that stream has its next byte first.
//! - **Slow readers.** A stream waits for its slowest reader while nobody else needs more bytes. A
//!   reader that makes the others wait for longer than its allowance is detached, and gets a stream
//!   of its own for the rest.
//! - **Late readers.** The window no longer has the first bytes. The late reader downloads only the
//!   bytes before the window again, and the stream ahead waits for it. While the stream ahead waits,
//!   it needs no bandwidth, and its window does not move. So clients that arrive within the time T
//!   at the rate R cost at most R × T bytes more than the blob, plus one window start. If that is
//!   more than the rest of the blob, or if all late readers of a stream together download more than
//!   half of the blob again, the late reader gets a stream for the whole blob, and nobody waits.
//! - **Clients.** Each client is admitted to its own repository before it attaches. A stream runs in
//!   a task of its own, so that it survives the client that started it. It ends with its last
//!   reader. It runs in the download slot of a client that reads it.
//! - **Memory.** A window has room for two frames, and grows by memory of [`ResourceLimits`] that
//!   is free.
//!
//! [`ResourceLimits`]: crate::limits::resource_limits::ResourceLimits

use std::sync::Arc;

use parking_lot::Mutex;
use pierhead_oci::{Digest, Registry};
use pierhead_remote::RangeSpec;
use tokio::sync::watch;

use crate::limits::weak_table::WeakTable;
use crate::pull::blob_request::BlobRequest;
use crate::pull::shared_download::stream_set::{SelectedBytes, StreamSet};

pub(crate) mod shared_reader;
mod stream_set;
pub(crate) mod stream_task;

/// The shared downloads of all blobs.
#[derive(Default)]
pub(crate) struct SharedDownloads(WeakTable<(Registry, Digest), SharedDownload>);

impl SharedDownloads {
    /// Whether a stream of the blob runs, or is about to be handed over by a fill that has ended.
    pub(crate) fn is_running(&self, request: &BlobRequest) -> bool {
        self.get(request).set.lock().is_running()
    }

    fn get(&self, request: &BlobRequest) -> Arc<SharedDownload> {
        let key = (request.registry.clone(), request.digest);
        self.0.get(&key, || SharedDownload {
            set: Mutex::new(StreamSet::new(request.digest.algorithm())),
            arrived: watch::Sender::new(()),
            taken: watch::Sender::new(()),
        })
    }
}

/// The shared download of one blob.
struct SharedDownload {
    set: Mutex<StreamSet>,
    /// Wakes the readers.
    arrived: watch::Sender<()>,
    /// Wakes the streams.
    taken: watch::Sender<()>,
}

impl SharedDownload {
    /// Changes the set for a reader, and wakes the streams that wait for readers.
    fn change<T>(&self, change: impl FnOnce(&mut StreamSet) -> T) -> T {
        let mut set = self.set.lock();
        let result = change(&mut set);
        let is_awaited = set.take_is_awaited();
        drop(set);
        if is_awaited {
            self.taken.send_replace(());
        }
        result
    }
}

/// Returns the bytes that a client needs, before the size of the blob is known.
fn selection(range: Option<RangeSpec>) -> SelectedBytes {
    match range {
        None => SelectedBytes::Whole,
        Some(RangeSpec::Suffix(count)) => SelectedBytes::Suffix(count),
        Some(RangeSpec::Int { first, last }) => SelectedBytes::Range {
            first,
            end: last.map(|last| last.saturating_add(1)),
        },
    }
}
