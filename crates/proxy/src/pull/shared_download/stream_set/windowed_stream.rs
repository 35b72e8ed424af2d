//! One stream of a [`StreamSet`](super::StreamSet) with its window, and the position of a reader.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use pierhead_oci::Hasher;

use crate::error::Error;
use crate::limits::client_usage::ClientUsage;
use crate::limits::memory::{MAX_FRAME_BYTES, MemoryReservation};
use crate::pull::shared_download::stream_set::{ReaderId, StreamId};

pub(super) struct WindowedStream {
    pub(super) frames: VecDeque<WindowFrame>,
    /// Offset of the next byte of the stream.
    pub(super) end: u64,
    /// Offset at which the stream ends, if it ends before the blob.
    pub(super) to: Option<u64>,
    pub(super) bytes: usize,
    pub(super) capacity: usize,
    pub(super) memory: Vec<MemoryReservation>,
    /// The hash of all bytes of the blob before `end`. `None`: the stream did not see these bytes.
    pub(super) prefix: Option<Hasher>,
    pub(super) phase: StreamPhase,
    /// Whether the stream waits for its readers.
    pub(super) is_waiting: bool,
    pub(super) client: Arc<ClientUsage>,
    pub(super) opener: Option<ReaderId>,
    pub(super) opened: Instant,
    /// The stream that waits for this one, and the end of its wait.
    pub(super) catches_up_with: Option<(StreamId, Instant)>,
    /// Bytes that other streams downloaded to catch up with this stream.
    pub(super) caught_up: u64,
}

pub(super) struct WindowFrame {
    pub(super) offset: u64,
    pub(super) bytes: Bytes,
    /// The hash of all bytes before the frame.
    pub(super) prefix: Option<Hasher>,
}

pub(super) enum StreamPhase {
    /// Waits for a download slot.
    Queued,
    /// Waits for the stream of a fill that the cache may not admit.
    Expected,
    Open,
    /// All bytes of the stream have arrived. If they end with the blob, the digest matched.
    Complete,
    Failed(Error),
}

pub(super) struct StreamReader {
    pub(super) position: u64,
    pub(super) end: Option<u64>,
    /// The last bytes of the blob, while its size is unknown.
    pub(super) suffix: Option<u64>,
    pub(super) is_whole: bool,
    /// The hash of the bytes before `position`, if `is_whole`. `None` at the start.
    pub(super) prefix: Option<Hasher>,
    pub(super) stream: Option<StreamId>,
    pub(super) is_waiting: bool,
    /// Time for which the reader made other readers wait.
    pub(super) held_up: Duration,
    pub(super) is_slow: bool,
    pub(super) retries: u32,
    pub(super) client: Arc<ClientUsage>,
}

impl WindowedStream {
    /// Offset of the first byte in the window.
    pub(super) fn start(&self) -> u64 {
        self.frames.front().map_or(self.end, |it| it.offset)
    }

    pub(super) fn is_full(&self) -> bool {
        self.bytes + MAX_FRAME_BYTES > self.capacity
    }

    pub(super) fn frame_at(&self, position: u64) -> Option<usize> {
        let index = self.frames.partition_point(|it| it.end() <= position);
        let frame = self.frames.get(index)?;
        (frame.offset <= position).then_some(index)
    }

    /// Returns the hash of all bytes before `position`, which is the start of a frame or the end.
    pub(super) fn prefix_at(&self, position: u64) -> Option<&Hasher> {
        if position == self.end {
            return self.prefix.as_ref();
        }
        let frame = self.frames.get(self.frame_at(position)?)?;
        frame.prefix.as_ref().filter(|_| frame.offset == position)
    }

    /// Whether these are the last bytes of the blob, and the digest has not matched yet.
    pub(super) fn is_withheld(&self, index: usize, size: Option<u64>) -> bool {
        let is_last = match size {
            Some(size) => self.frames.get(index).is_some_and(|it| it.end() >= size),
            None => index + 1 == self.frames.len(),
        };
        is_last && !matches!(self.phase, StreamPhase::Complete)
    }

    /// Whether the stream has the next byte of the reader, or downloads it next.
    pub(super) fn brings(&self, reader: &StreamReader, must_have_bytes: bool) -> bool {
        let at = reader.position;
        let has_bytes = self.frame_at(at).is_some();
        let is_next = !must_have_bytes && at == self.end && self.to.is_none_or(|to| at < to);
        let brings = match &self.phase {
            // The client that waits for the slot decides when the stream begins.
            StreamPhase::Queued => is_next && Arc::ptr_eq(&self.client, &reader.client),
            StreamPhase::Expected => is_next,
            StreamPhase::Open => has_bytes || is_next,
            StreamPhase::Complete => has_bytes,
            StreamPhase::Failed(_) => false,
        };
        brings && reader.suffix.is_none() && (!reader.is_whole || self.has_prefix_of(reader))
    }

    pub(super) fn has_prefix_of(&self, reader: &StreamReader) -> bool {
        match (self.prefix_at(reader.position), &reader.prefix) {
            (None, _) => false,
            (Some(_), None) => reader.position == 0,
            (Some(one), Some(other)) => one.clone().finish() == other.clone().finish(),
        }
    }
}

impl WindowFrame {
    pub(super) fn end(&self) -> u64 {
        self.offset + u64::try_from(self.bytes.len()).unwrap_or(0)
    }
}

impl StreamReader {
    /// Sets the range of the reader, as soon as the size is known. A blob of unknown size has no
    /// ranges.
    pub(super) fn resolve(&mut self, size: Option<Option<u64>>) {
        match (size, self.suffix) {
            (Some(Some(size)), Some(count)) => {
                (self.position, self.suffix) = (size.saturating_sub(count), None);
            }
            (Some(None), _) if !self.is_whole => {
                (self.position, self.end, self.suffix) = (0, None, None);
                self.is_whole = true;
            }
            _ => {}
        }
    }

    pub(super) fn take(&mut self, stream: &WindowedStream, index: usize, max: usize) -> Bytes {
        let Some(frame) = stream.frames.get(index) else {
            return Bytes::new();
        };
        let from = usize::try_from(self.position - frame.offset).unwrap_or(0);
        let to = frame.bytes.len().min(from.saturating_add(max));
        let bytes = frame.bytes.slice(from..to);
        self.position += u64::try_from(bytes.len()).unwrap_or(0);
        if self.is_whole {
            self.prefix = stream.prefix_at(self.position).cloned();
        }
        bytes
    }
}
