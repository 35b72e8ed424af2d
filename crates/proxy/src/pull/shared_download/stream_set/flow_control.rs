//! When the streams of a [`StreamSet`] request bytes, wait for readers, and detach slow readers.

use std::time::{Duration, Instant};

use crate::limits::memory::MemoryReservation;
use crate::pull::shared_download::stream_set::windowed_stream::{
    StreamPhase, StreamReader, WindowFrame,
};
use crate::pull::shared_download::stream_set::{ReaderId, StreamId, StreamSet};

/// Maximum capacity of a window, and the steps in which it grows.
const MAX_WINDOW: usize = 8 << 20;
const WINDOW_STEP: usize = 1 << 20;

/// Time for which a slow reader may make the other readers of its stream wait: this time, and one
/// part in [`HOLD_UP_DIVISOR`] of the time that the stream has run.
const MAX_HOLD_UP: Duration = Duration::from_millis(500);
const HOLD_UP_DIVISOR: u32 = 20;

/// Maximum time from the start of a stream to the start of a stream that catches up with it. To
/// catch up takes about this time, too, so a stream waits only until twice this time has passed.
const MAX_LATENESS: Duration = Duration::from_secs(15);

/// Divisor of the blob's size: all streams that catch up with one stream download at most this part
/// of the blob again.
const CATCH_UP_DIVISOR: u64 = 2;

/// What a stream may do.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum StreamRoom {
    Write,
    /// Wait for a reader, or until this time.
    Wait(Option<Instant>),
    /// Wait for slow readers of this stream, while another reader waits.
    HeldUp(StreamId),
    /// No reader needs the stream.
    Unused,
}

/// The bytes that a stream has to request.
pub(crate) enum StreamPlan {
    Range { from: u64, to: Option<u64> },
    Suffix(u64),
}

impl StreamSet {
    /// Plans the request of a stream that has got a download slot. `None`: its readers need no
    /// stream of their own.
    pub(crate) fn plan(&mut self, id: StreamId, now: Instant) -> Option<StreamPlan> {
        let of_stream = |it: &(&ReaderId, &StreamReader)| it.1.stream == Some(id);
        let readers: Vec<ReaderId> = self
            .readers
            .iter()
            .filter(of_stream)
            .map(|it| *it.0)
            .collect();
        if readers
            .iter()
            .all(|reader| self.find(*reader, false).is_some())
        {
            return None;
        }
        let mut to = Some(0);
        let mut is_slow = false;
        for reader in &readers {
            let reader = self.readers.get(reader)?;
            to = to.and_then(|to| reader.end.map(|end| end.max(to)));
            is_slow |= reader.is_slow;
            if let Some(count) = reader.suffix {
                self.streams.get_mut(&id)?.phase = StreamPhase::Open;
                return Some(StreamPlan::Suffix(count));
            }
        }
        let from = self.streams.get(&id)?.end;
        let target = (!is_slow)
            .then(|| self.catch_up_target(id, to, now))
            .flatten();
        if let Some((target, start, _)) = target {
            to = Some(start);
            self.streams.get_mut(&target)?.caught_up += start - from;
        }
        let stream = self.streams.get_mut(&id)?;
        stream.phase = StreamPhase::Open;
        stream.to = to;
        stream.opened = now;
        stream.catches_up_with = target.map(|(target, _, until)| (target, until));
        Some(StreamPlan::Range { from, to })
    }

    /// Returns the stream that waits for the stream `id`, the start of its window, and the end of
    /// its wait.
    fn catch_up_target(
        &self,
        id: StreamId,
        to: Option<u64>,
        now: Instant,
    ) -> Option<(StreamId, u64, Instant)> {
        let stream = self.streams.get(&id)?;
        let size = self.size.flatten()?;
        let ahead = self.streams.iter().filter(|(_, it)| {
            it.start() > stream.end
                && matches!(it.phase, StreamPhase::Open)
                && (stream.prefix.is_none() || it.prefix.is_some())
        });
        let (target, ahead) = ahead.min_by_key(|(_, it)| it.start())?;
        let start = ahead.start();
        let again = start - stream.end;
        let is_cheap =
            again <= size - start.min(size) && ahead.caught_up + again <= size / CATCH_UP_DIVISOR;
        let is_soon = now.duration_since(ahead.opened) <= MAX_LATENESS;
        let until = ahead.opened + 2 * MAX_LATENESS;
        let is_wanted = is_cheap && is_soon && to.is_none_or(|to| to > start);
        is_wanted.then_some((*target, start, until))
    }

    /// Drops bytes that no reader needs, and returns whether the stream may download more.
    pub(crate) fn room(&mut self, id: StreamId, now: Instant) -> StreamRoom {
        if !self.is_used(id) {
            return StreamRoom::Unused;
        }
        // The stream that is furthest behind among those that catch up with this one.
        let late = self.streams.iter().filter_map(|(late, it)| {
            let (target, until) = it.catches_up_with?;
            let is_late = target == id && now < until && self.is_used(*late);
            is_late.then_some((it.to?, until, *late))
        });
        let late = late.min();
        let positions = self.readers_of(id).map(|it| it.position);
        let needed = positions.chain(late.map(|it| it.0)).min();
        let is_late_complete = late.is_some_and(|(.., late)| {
            (self.streams.get(&late)).is_some_and(|it| matches!(it.phase, StreamPhase::Complete))
        });
        let mut is_awaited = self.readers_of(id).any(|it| it.is_waiting);
        let Some(stream) = self.streams.get_mut(&id) else {
            return StreamRoom::Unused;
        };
        while stream.is_full()
            && let Some(first) = stream.frames.front()
            && needed.is_none_or(|needed| first.end() <= needed)
        {
            stream.bytes -= first.bytes.len();
            stream.frames.pop_front();
        }
        stream.is_waiting = stream.is_full();
        if !stream.is_waiting {
            return StreamRoom::Write;
        }
        let first = stream.frames.front().map_or(0, WindowFrame::end);
        // Another stream waits for this one.
        is_awaited |= stream.catches_up_with.is_some_and(|(_, until)| now < until);
        match late {
            Some((to, _, late)) if to < first && is_late_complete && is_awaited => {
                StreamRoom::HeldUp(late)
            }
            Some((to, until, _)) if to < first => StreamRoom::Wait(Some(until)),
            _ if is_awaited => StreamRoom::HeldUp(id),
            _ => StreamRoom::Wait(None),
        }
    }

    /// Returns the number of bytes by which the window of the stream should grow.
    pub(crate) fn wanted_memory(&self, id: StreamId) -> Option<usize> {
        let stream = self.streams.get(&id)?;
        let is_small = stream.capacity + WINDOW_STEP <= MAX_WINDOW;
        (stream.is_full() && is_small).then_some(WINDOW_STEP)
    }

    pub(crate) fn add_memory(
        &mut self,
        id: StreamId,
        bytes: usize,
        memory: Option<MemoryReservation>,
    ) {
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.capacity += bytes;
            stream.memory.extend(memory);
        }
    }

    /// Counts time for which the slowest readers of a stream made other readers wait, and detaches
    /// the readers that exceed their allowance.
    pub(crate) fn held_up(&mut self, id: StreamId, time: Duration, now: Instant) {
        let Some(stream) = self.streams.get(&id) else {
            return;
        };
        let needed = match stream.phase {
            StreamPhase::Complete => stream.end,
            _ => stream.frames.front().map_or(0, WindowFrame::end),
        };
        let allowed = MAX_HOLD_UP + now.duration_since(stream.opened) / HOLD_UP_DIVISOR;
        for reader in self.readers.values_mut() {
            if reader.stream == Some(id) && reader.position < needed {
                reader.held_up += time;
                if reader.held_up > allowed {
                    (reader.stream, reader.is_slow) = (None, true);
                    self.has_detached = true;
                }
            }
        }
        self.release(id);
    }
}
