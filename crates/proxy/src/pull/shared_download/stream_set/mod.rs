//! `StreamSet`: the upstream streams of one blob that is not stored, their windows in memory, and the
//! positions of their readers. No I/O.
//!
//! 1. A reader is attached to at most one stream. It gets each byte of its range once, in order.
//! 2. A window holds at most its capacity, plus the bytes of one push. It never drops bytes that an
//!    attached reader still needs.
//! 3. A reader of the whole blob changes to another stream only where both streams have the same
//!    bytes before: the hashes of these bytes are equal. So the digest of the last stream verifies
//!    all bytes that the reader got.
//! 4. A reader of the whole blob gets the last bytes only after the digest matched.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use pierhead_oci::{Algorithm, Hasher};

use crate::error::Error;
use crate::limits::client_usage::ClientUsage;
use crate::limits::memory::MAX_FRAME_BYTES;
use crate::pull::shared_download::stream_set::windowed_stream::{
    StreamPhase, StreamReader, WindowFrame, WindowedStream,
};

pub(super) mod flow_control;
mod windowed_stream;

/// Capacity of a window without reserved memory: the withheld frame and the next one. A stream to
/// one client needs as much.
const MIN_WINDOW: usize = 2 * MAX_FRAME_BYTES;

/// Maximum bytes between a stream that a reader opened and the range of the reader, for which the
/// reader waits instead of opening another stream.
const MAX_AHEAD: u64 = 8 << 20;

/// Number of failures of other readers' streams after which a reader fails.
const MAX_RETRIES: u32 = 2;

pub(super) type StreamId = u64;
pub(super) type ReaderId = u64;

pub(super) struct StreamSet {
    algorithm: Algorithm,
    /// The size of the blob. The inner `None`: the upstream does not state it. The outer `None`: no
    /// stream was opened yet.
    pub(super) size: Option<Option<u64>>,
    streams: BTreeMap<StreamId, WindowedStream>,
    readers: BTreeMap<ReaderId, StreamReader>,
    next_id: u64,
    /// Whether a reader left a stream.
    has_detached: bool,
}

/// The bytes that a reader needs.
#[derive(Clone, Copy)]
pub(super) enum SelectedBytes {
    /// The whole blob, verified.
    Whole,
    /// Bytes that the client verifies.
    Range {
        first: u64,
        end: Option<u64>,
    },
    Suffix(u64),
}

pub(super) enum ReadStep {
    Bytes(Bytes),
    End,
    Wait,
    /// The caller must run this stream.
    Start(StreamId),
    Failed(Error),
}

impl StreamSet {
    pub(super) fn new(algorithm: Algorithm) -> Self {
        Self {
            algorithm,
            size: None,
            streams: BTreeMap::new(),
            readers: BTreeMap::new(),
            next_id: 0,
            has_detached: false,
        }
    }

    pub(super) fn add_reader(
        &mut self,
        client: Arc<ClientUsage>,
        selection: SelectedBytes,
    ) -> ReaderId {
        let id = self.new_id();
        let reader = StreamReader {
            position: 0,
            end: None,
            suffix: None,
            is_whole: true,
            prefix: None,
            stream: None,
            is_waiting: false,
            held_up: Duration::ZERO,
            is_slow: false,
            retries: 0,
            client,
        };
        self.readers.insert(id, reader);
        self.select(id, selection);
        id
    }

    /// Sets the bytes that the reader needs. The reader must not have read any bytes.
    pub(super) fn select(&mut self, id: ReaderId, selection: SelectedBytes) {
        let Some(reader) = self.readers.get_mut(&id) else {
            return;
        };
        (reader.position, reader.end, reader.suffix) = match selection {
            SelectedBytes::Whole => (0, None, None),
            SelectedBytes::Range { first, end } => (first, end, None),
            SelectedBytes::Suffix(count) => (0, None, Some(count)),
        };
        reader.is_whole = matches!(selection, SelectedBytes::Whole);
        let (position, is_whole) = (reader.position, reader.is_whole);
        let Some(stream) = reader.stream.and_then(|it| self.streams.get(&it)) else {
            return;
        };
        // A stream that the reader opened before it knew the size needs no second request.
        let max_ahead = match stream.opener == Some(id) {
            true => MAX_AHEAD,
            false => 0,
        };
        let is_on_the_way = stream.start() <= position
            && position <= stream.end + max_ahead
            && stream.to.is_none_or(|to| position < to);
        let is_verifiable = !is_whole || (stream.start() == 0 && stream.prefix.is_some());
        if !(is_on_the_way && is_verifiable) {
            self.detach(id);
        }
    }

    pub(super) fn remove_reader(&mut self, id: ReaderId) {
        self.detach(id);
        self.readers.remove(&id);
    }

    /// Adds a stream that a fill may hand over, and attaches the reader to it.
    pub(super) fn expect_stream(&mut self, reader: ReaderId) -> StreamId {
        let id = self.create(reader);
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.phase = StreamPhase::Expected;
        }
        id
    }

    /// The next step of a reader, which takes at most `max` bytes.
    pub(super) fn poll(&mut self, id: ReaderId, max: usize) -> ReadStep {
        loop {
            let size = self.size.flatten();
            let Some(reader) = self.readers.get_mut(&id) else {
                return ReadStep::Failed(Error::Internal);
            };
            reader.is_waiting = false;
            reader.resolve(self.size);
            if reader.end.is_some_and(|end| reader.position >= end) {
                return ReadStep::End;
            }
            let at = reader.position;
            let left = reader.end.map_or(u64::MAX, |end| end - at);
            let max = usize::try_from(left).map_or(max, |left| left.min(max));
            let reader_is_verifiable = !reader.is_whole || at == 0 || reader.prefix.is_some();
            let attached = reader.stream.and_then(|it| self.streams.get_mut(&it));
            let Some(stream) = attached else {
                match self.find(id, false) {
                    Some(stream) => self.attach(id, stream),
                    // The hash of the bytes before is unknown, so nothing could verify the rest.
                    None if !reader_is_verifiable => {
                        return ReadStep::Failed(Error::Truncated { at });
                    }
                    None => return ReadStep::Start(self.create(id)),
                }
                continue;
            };
            if reader.suffix.is_none()
                && let Some(index) = stream.frame_at(reader.position)
            {
                if reader.is_whole && stream.is_withheld(index, size) {
                    match &stream.phase {
                        StreamPhase::Failed(_) => {}
                        _ => return ReadStep::Wait,
                    }
                } else {
                    return ReadStep::Bytes(reader.take(stream, index, max));
                }
            }
            match &stream.phase {
                StreamPhase::Failed(error) => {
                    let error = error.clone();
                    reader.retries += 1;
                    if stream.opener == Some(id)
                        || error.is_wrong_content()
                        || reader.retries > MAX_RETRIES
                    {
                        return ReadStep::Failed(error);
                    }
                    self.detach(id);
                }
                StreamPhase::Complete if stream.to.is_none() => return ReadStep::End,
                StreamPhase::Complete => self.detach(id),
                phase => {
                    let must_have_bytes = matches!(phase, StreamPhase::Open);
                    match self.find(id, must_have_bytes) {
                        Some(other) => self.attach(id, other),
                        None => {
                            if let Some(reader) = self.readers.get_mut(&id) {
                                reader.is_waiting = true;
                            }
                            return ReadStep::Wait;
                        }
                    }
                }
            }
        }
    }

    /// Whether a stream waits for the last change of a reader.
    pub(super) fn take_is_awaited(&mut self) -> bool {
        std::mem::take(&mut self.has_detached) || self.streams.values().any(|it| it.is_waiting)
    }

    /// Whether a stream receives bytes, or may be handed over.
    pub(super) fn is_running(&self) -> bool {
        let is_running =
            |phase: &StreamPhase| matches!(phase, StreamPhase::Open | StreamPhase::Expected);
        self.streams.values().any(|it| is_running(&it.phase))
    }

    /// Whether the stream has a reader.
    pub(super) fn is_used(&self, id: StreamId) -> bool {
        self.readers_of(id).next().is_some()
    }

    /// Returns another client that reads the stream, if this client does not read it.
    pub(super) fn other_client(
        &self,
        id: StreamId,
        is_it: impl Fn(&Arc<ClientUsage>) -> bool,
    ) -> Option<Arc<ClientUsage>> {
        let mut clients = self.readers_of(id).map(|it| &it.client);
        let first = clients.next()?;
        (!is_it(first) && !clients.any(is_it)).then(|| first.clone())
    }

    /// Records that the upstream answers. `range` is the range of the stream.
    /// Without an end, the stream ends with the blob.
    pub(super) fn opened(&mut self, id: StreamId, range: (u64, Option<u64>), size: Option<u64>) {
        self.size.get_or_insert(size);
        if let Some(stream) = self.streams.get_mut(&id) {
            (stream.end, stream.to) = range;
            stream.phase = StreamPhase::Open;
            if stream.end == 0 {
                stream.prefix = Some(Hasher::new(self.algorithm));
            }
        }
        for reader in self.readers.values_mut() {
            // These readers expected that the stream begins earlier.
            if reader.stream == Some(id) && reader.suffix.is_none() && reader.position < range.0 {
                reader.stream = None;
                self.has_detached = true;
            }
        }
    }

    /// Returns the hash of the bytes before the stream.
    pub(super) fn prefix(&self, id: StreamId) -> Option<Hasher> {
        self.streams.get(&id)?.prefix.clone()
    }

    /// Adds bytes that arrived. `prefix` is the hash of all bytes up to their end.
    pub(super) fn push(&mut self, id: StreamId, bytes: Bytes, prefix: Option<Hasher>) {
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        let frame = WindowFrame {
            offset: stream.end,
            prefix: std::mem::replace(&mut stream.prefix, prefix),
            bytes,
        };
        stream.bytes += frame.bytes.len();
        stream.end = frame.end();
        stream.frames.push_back(frame);
        for reader in self.readers.values_mut() {
            reader.is_waiting &= reader.stream != Some(id);
        }
    }

    /// Ends a stream. If the stream ends with the blob, the digest matched.
    pub(super) fn end(&mut self, id: StreamId, result: Result<(), Error>) {
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.phase = match result {
                Ok(()) => StreamPhase::Complete,
                Err(error) => StreamPhase::Failed(error),
            };
        }
        self.release(id);
    }

    /// Removes a stream. Its readers need another stream.
    pub(super) fn remove_stream(&mut self, id: StreamId) {
        self.streams.remove(&id);
        for reader in self.readers.values_mut() {
            if reader.stream == Some(id) {
                reader.stream = None;
            }
        }
    }

    fn new_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    fn readers_of(&self, id: StreamId) -> impl Iterator<Item = &StreamReader> {
        self.readers
            .values()
            .filter(move |it| it.stream == Some(id))
    }

    /// Creates a stream from the position of the reader on, and attaches the reader to it.
    fn create(&mut self, id: ReaderId) -> StreamId {
        let stream = self.new_id();
        if let Some(reader) = self.readers.get_mut(&id) {
            reader.stream = Some(stream);
            let created = WindowedStream {
                frames: VecDeque::new(),
                end: reader.position,
                to: None,
                bytes: 0,
                capacity: MIN_WINDOW,
                memory: Vec::new(),
                prefix: match reader.position {
                    0 if reader.is_whole => Some(Hasher::new(self.algorithm)),
                    _ => reader.prefix.clone(),
                },
                phase: StreamPhase::Queued,
                is_waiting: false,
                client: reader.client.clone(),
                opener: Some(id),
                opened: Instant::now(),
                catches_up_with: None,
                caught_up: 0,
            };
            self.streams.insert(stream, created);
        }
        stream
    }

    /// Returns the stream that brings the next byte of the reader, other than its own stream.
    fn find(&self, id: ReaderId, must_have_bytes: bool) -> Option<StreamId> {
        let reader = self.readers.get(&id)?;
        let fits = |(id, stream): &(&StreamId, &WindowedStream)| {
            reader.stream != Some(**id) && stream.brings(reader, must_have_bytes)
        };
        let fitting = self.streams.iter().filter(fits);
        let (id, _) = fitting.max_by_key(|(_, it)| (it.to.unwrap_or(u64::MAX), it.end))?;
        Some(*id)
    }

    fn attach(&mut self, id: ReaderId, stream: StreamId) {
        self.detach(id);
        if let Some(reader) = self.readers.get_mut(&id) {
            reader.stream = Some(stream);
        }
    }

    fn detach(&mut self, id: ReaderId) {
        let reader = self.readers.get_mut(&id);
        if let Some(stream) = reader.and_then(|it| it.stream.take()) {
            self.has_detached = true;
            self.release(stream);
        }
    }

    /// Removes the stream if it has ended and has no reader.
    fn release(&mut self, id: StreamId) {
        let stream = self.streams.get(&id);
        let has_ended = stream
            .is_some_and(|it| matches!(it.phase, StreamPhase::Complete | StreamPhase::Failed(_)));
        if has_ended && !self.is_used(id) {
            self.streams.remove(&id);
        }
    }
}

#[cfg(test)]
mod tests;
