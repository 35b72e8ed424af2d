//! The bytes of a bundle or a file on their way out: ranges of files, and bytes that are made as the client takes them.

use std::sync::Arc;

use bytes::Bytes;
use pierhead_bundle_server::{Piece, SentFile, Stream};
use tokio::sync::Semaphore;

use crate::blocking::blocking;
use crate::error::Error;
use crate::limits::memory::FRAME_BYTES;

/// See the head of this module.
pub(crate) struct RecordStream {
    /// `None` once it has ended, or while a thread makes the next piece of it.
    stream: Option<Stream>,
    /// What is left of the range that is being sent.
    range: Option<FileRange>,
    /// Bytes that were made and are handed on in frames.
    made: Bytes,
    /// How many pieces may be made at once, over all answers: each takes a core and a frame's memory.
    making: Arc<Semaphore>,
    name: String,
    offset: u64,
}

#[derive(Clone)]
pub(crate) struct FileRange {
    pub(crate) file: SentFile,
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

impl RecordStream {
    pub(crate) fn new(stream: Stream, making: Arc<Semaphore>, name: String) -> Self {
        Self {
            stream: Some(stream),
            range: None,
            made: Bytes::new(),
            making,
            name,
            offset: 0,
        }
    }

    /// Of what, for the log.
    pub(crate) fn name(&self) -> String {
        self.name.clone()
    }

    /// How far the reader is.
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    /// Of the range that comes next, up to `max` bytes that are in memory.
    pub(crate) fn resident_range(&self, max: u64) -> Option<FileRange> {
        /// What a socket takes in one call.
        const AT_ONCE: u64 = 2 << 20;
        let range = self.range.as_ref().filter(|_| self.made.is_empty())?;
        let len = range.len.min(max).min(AT_ONCE);
        let len = pierhead_cache::resident(range.file.file(), range.offset..range.offset + len);
        (len > 0).then(|| FileRange {
            len,
            ..range.clone()
        })
    }

    /// Those bytes have left.
    pub(crate) fn advance(&mut self, bytes: u64) {
        self.offset += bytes;
        if let Some(range) = &mut self.range {
            range.offset += bytes;
            range.len = range.len.saturating_sub(bytes);
            if range.len == 0 {
                self.range = None;
                self.take_ready();
            }
        }
    }

    /// Takes the next piece if nothing has to be made for it, so that a range is at hand before it is asked for.
    pub(crate) fn take_ready(&mut self) {
        if self.range.is_some() || !self.made.is_empty() {
            return;
        }
        match self.stream.as_mut().and_then(Stream::next_ready) {
            Some(Piece::File { file, offset, len }) => {
                self.range = Some(FileRange { file, offset, len });
            }
            Some(Piece::Bytes(bytes)) => self.made = bytes.into(),
            None => {}
        }
    }

    /// The next bytes, at most [`FRAME_BYTES`]; empty at the end. Not cancel safe: a body that is not polled on is dropped.
    pub(crate) async fn next(&mut self) -> Result<Bytes, Error> {
        loop {
            self.take_ready();
            if !self.made.is_empty() {
                let bytes = self.made.split_to(self.made.len().min(FRAME_BYTES));
                self.offset += u64::try_from(bytes.len()).unwrap_or(u64::MAX);
                return Ok(bytes);
            }
            if let Some(range) = self.range.clone() {
                let bytes = blocking(move || read(&range)).await?;
                let bytes = bytes.map_err(|error| Error::BundleRead(error.to_string()))?;
                self.advance(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
                return Ok(bytes);
            }
            let Some(mut stream) = self.stream.take() else {
                return Ok(Bytes::new());
            };
            let permit = self.making.clone().acquire_owned().await;
            let (stream, piece) = blocking(move || {
                let _permit = permit;
                let piece = stream.next_piece();
                (stream, piece)
            })
            .await?;
            match piece.map_err(|error| Error::BundleRead(error.to_string()))? {
                None => return Ok(Bytes::new()),
                Some(Piece::Bytes(bytes)) => self.made = bytes.into(),
                Some(Piece::File { file, offset, len }) => {
                    self.range = Some(FileRange { file, offset, len });
                }
            }
            self.stream = Some(stream);
        }
    }
}

/// Reads the start of a range; the caller does not wait on the medium.
fn read(range: &FileRange) -> std::io::Result<Bytes> {
    use std::os::unix::fs::FileExt as _;
    let len = usize::try_from(range.len)
        .unwrap_or(FRAME_BYTES)
        .min(FRAME_BYTES);
    let mut bytes = vec![0; len];
    range.file.file().read_exact_at(&mut bytes, range.offset)?;
    Ok(bytes.into())
}
