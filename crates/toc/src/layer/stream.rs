//! The uncompressed bytes of a layer, decoded in portions from its start or from a checkpoint (a
//! position at which decoding can start).

use serde::{Deserialize, Serialize};

use crate::{Blob, Error};

use super::decoder::{Coding, Decoder, Gzip, WINDOW};
use super::pace::Pace;
use super::probe::{Candidate, PROBED, probe};

/// Distance of two checkpoints in uncompressed bytes. On average, a read decodes and
/// discards half of this distance (about 5 ms). A checkpoint takes about 10 KiB in the index.
pub(super) const SPACING: u64 = 4 << 20;

/// Number of uncompressed bytes between two attempts to find a checkpoint. An attempt takes about
/// 100 µs, and a hostile blob may consist of many tiny blocks.
const RETRY: u64 = 64 << 10;

/// Number of bytes of the blob that one read returns.
pub(super) const INPUT: usize = 64 << 10;

/// Size of the output buffer in bytes: room for the window and one portion of output.
const OUTPUT: usize = WINDOW + (128 << 10);

/// A checkpoint: a position where decoding can start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Checkpoint {
    /// Offset in the uncompressed bytes.
    pub(super) at: u64,
    /// Offset in the blob.
    pub(super) blob_at: u64,
    /// The window that decoding needs. `None` at the head of a gzip member or zstd frame, where
    /// decoding needs no window.
    pub(super) window: Option<BlockStart>,
}

/// The data with which decoding can start at a deflate block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct BlockStart {
    pub(super) block: u32,
    pub(super) bits: u8,
    pub(super) byte: u8,
}

/// A checkpoint that the search has found, with its window.
pub(super) struct FoundCheckpoint {
    pub(super) at: u64,
    pub(super) blob_at: u64,
    pub(super) window: Option<(u8, u8, Vec<u8>)>,
}

/// A decoder at a position in the uncompressed bytes. A stream takes about 250 KiB of memory, plus
/// the window of zstd.
pub(super) struct PositionedDecoder {
    decoder: Decoder,
    input: Vec<u8>,
    /// Range of `input` that was not decoded yet.
    ahead: (usize, usize),
    /// Offset of the end of `input` in the blob.
    blob_at: u64,
    output: Vec<u8>,
    /// Range of `output` that the caller has not taken yet.
    ready: (usize, usize),
    /// Offset of the end of `output` in the uncompressed bytes.
    at: u64,
    seeking: Option<Seeking>,
}

/// The search for checkpoints during indexing.
struct Seeking {
    last: u64,
    /// Earliest offset of the next attempt to find a checkpoint ([`RETRY`]).
    tried: u64,
    pending: Option<Pending>,
    found: Vec<FoundCheckpoint>,
}

struct Pending {
    at: u64,
    blob_at: u64,
    window: Vec<u8>,
    candidates: Vec<Candidate>,
}

impl PositionedDecoder {
    /// Creates a stream from the start of the layer, which searches for checkpoints.
    pub(super) fn begin(coding: Coding, max_window: u64) -> Result<Self, Error> {
        let mut this = Self::with(Decoder::new(coding, max_window)?, 0, 0);
        this.seeking = Some(Seeking {
            last: 0,
            tried: 0,
            pending: None,
            found: Vec::new(),
        });
        Ok(this)
    }

    /// Creates a stream from a checkpoint that has no window.
    pub(super) fn at(
        coding: Coding,
        at: u64,
        blob_at: u64,
        max_window: u64,
    ) -> Result<Self, Error> {
        let decoder = Decoder::new(coding, max_window)?;
        Ok(Self::with(decoder, at, blob_at))
    }

    /// Creates a stream from a deflate block of a gzip member.
    pub(super) fn enter(
        at: u64,
        blob_at: u64,
        entry: &BlockStart,
        window: &[u8],
    ) -> Result<Self, Error> {
        let gzip = Gzip::enter(window, entry.bits, entry.byte)?;
        Ok(Self::with(Decoder::Gzip(Box::new(gzip)), at, blob_at))
    }

    fn with(decoder: Decoder, at: u64, blob_at: u64) -> Self {
        Self {
            decoder,
            input: vec![0; INPUT],
            ahead: (0, 0),
            blob_at,
            output: vec![0; OUTPUT],
            ready: (0, 0),
            at,
            seeking: None,
        }
    }

    /// Returns the offset of the next byte to take, in the uncompressed bytes.
    pub(super) fn position(&self) -> u64 {
        self.at - (self.ready.1 - self.ready.0) as u64
    }

    /// Returns the offset of the next byte to decode, in the blob.
    pub(super) fn blob_position(&self) -> u64 {
        self.blob_at - (self.ahead.1 - self.ahead.0) as u64
    }

    /// Returns the decoded bytes that the caller has not taken yet.
    pub(super) fn ready(&self) -> &[u8] {
        &self.output[self.ready.0..self.ready.1]
    }

    /// Marks `count` decoded bytes as taken.
    pub(super) fn take(&mut self, count: usize) {
        self.ready.0 += count.min(self.ready.1 - self.ready.0);
    }

    /// Returns the checkpoints that were found since the last call.
    pub(super) fn found(&mut self) -> Vec<FoundCheckpoint> {
        self.seeking
            .as_mut()
            .map(|seeking| std::mem::take(&mut seeking.found))
            .unwrap_or_default()
    }

    /// Decodes the next bytes, after all decoded bytes were taken. Returns `false` at the end of
    /// the layer. Calls `pace` before each read of the blob, since a long blob may decode to few
    /// bytes.
    pub(super) fn fill(&mut self, blob: &dyn Blob, pace: &mut dyn Pace) -> Result<bool, Error> {
        if self.ready.0 < self.ready.1 {
            return Ok(true);
        }
        let kept = self.ready.1.min(WINDOW);
        self.output
            .copy_within(self.ready.1 - kept..self.ready.1, 0);
        self.ready = (kept, kept);
        let mut idle = 0;
        while self.ready.1 < OUTPUT {
            if self.ahead.0 == self.ahead.1 {
                pace.pause(0)?;
                if !self.refill(blob)? {
                    self.check_end()?;
                    break;
                }
            }
            let before = (self.ahead.0, self.ready.1);
            self.decode(blob)?;
            // A decoder may make no progress once, at the end of a block. But a decoder that
            // repeatedly has input and room and makes no progress is stuck.
            idle = if before == (self.ahead.0, self.ready.1) {
                idle + 1
            } else {
                0
            };
            if idle > 4 {
                return Err(Error::Image(
                    "the layer's compressed bytes cannot be decoded".to_owned(),
                ));
            }
        }
        Ok(self.ready.0 < self.ready.1)
    }

    fn refill(&mut self, blob: &dyn Blob) -> Result<bool, Error> {
        let left = blob.size().saturating_sub(self.blob_at);
        let len = usize::try_from(left).unwrap_or(usize::MAX).min(INPUT);
        blob.read_at(self.blob_at, &mut self.input[..len])
            .map_err(|e| Error::io("read the layer", e))?;
        self.blob_at += len as u64;
        self.ahead = (0, len);
        Ok(len > 0)
    }

    fn check_end(&self) -> Result<(), Error> {
        if self.decoder.may_end() {
            Ok(())
        } else {
            Err(Error::Image(
                "the layer's compressed bytes are cut short".to_owned(),
            ))
        }
    }

    fn decode(&mut self, blob: &dyn Blob) -> Result<(), Error> {
        let due = self
            .seeking
            .as_ref()
            .is_some_and(|s| s.pending.is_none() && self.at >= (s.last + SPACING).max(s.tried));
        let input = &self.input[self.ahead.0..self.ahead.1];
        let output = &mut self.output[self.ready.1..];
        let step = self.decoder.step(input, output, due)?;
        self.ahead.0 += step.taken;
        self.ready.1 += step.given;
        self.at += step.given as u64;
        if self.seeking.is_some() {
            self.seek(blob, step.boundary, step.between, due)?;
        }
        Ok(())
    }

    fn seek(
        &mut self,
        blob: &dyn Blob,
        boundary: bool,
        between: bool,
        due: bool,
    ) -> Result<(), Error> {
        let (at, blob_at) = (self.at, self.blob_position());
        let Some(seeking) = &mut self.seeking else {
            return Ok(());
        };
        if let Some(pending) = &seeking.pending
            && at - pending.at >= PROBED as u64
        {
            // The output buffer still has all bytes since the position of `pending`.
            let since = usize::try_from(at - pending.at).unwrap_or(usize::MAX);
            let shown = self
                .ready
                .1
                .checked_sub(since)
                .map(|from| &self.output[from..from + PROBED]);
            let right = pending
                .candidates
                .iter()
                .find(|candidate| Some(&candidate.output[..]) == shown)
                .map(|candidate| (candidate.bits, candidate.byte));
            if let Some(pending) = seeking.pending.take()
                && let Some((bits, byte)) = right
            {
                seeking.last = pending.at;
                seeking.found.push(FoundCheckpoint {
                    at: pending.at,
                    blob_at: pending.blob_at,
                    window: Some((bits, byte, pending.window)),
                });
            }
        }
        if between {
            seeking.pending = None;
            if due {
                seeking.last = at;
                seeking.found.push(FoundCheckpoint {
                    at,
                    blob_at,
                    window: None,
                });
            }
        } else if boundary {
            let window = &self.output[self.ready.1.saturating_sub(WINDOW)..self.ready.1];
            seeking.tried = at + RETRY;
            let candidates = probe(blob, blob_at, window)?;
            if !candidates.is_empty() {
                seeking.pending = Some(Pending {
                    at,
                    blob_at,
                    window: window.to_vec(),
                    candidates,
                });
            }
        }
        Ok(())
    }
}
