//! Produces the bytes of a bundle or of a single file for a response: ranges of pack files (files
//! with encoded records), and records that pierhead encodes as fast as the client reads.

use std::sync::Arc;

use bytes::Bytes;
use pierhead_bundle_server::{Piece, SentFile, Stream};
use pierhead_host::{BackgroundTask, Panics};
use tokio::sync::Semaphore;

use crate::blocking::blocking;
use crate::error::Error;
use crate::limits::memory::MAX_FRAME_BYTES;

/// The body of a response with a bundle or a file.
pub(crate) struct RecordStream {
    /// The source of the records. `None`: the stream has ended, or another thread uses the stream
    /// to encode the next piece.
    stream: Option<Stream>,
    /// The part of the current range of a pack file that is not sent yet.
    range: Option<FileRange>,
    /// Encoded bytes that are sent next, divided into frames.
    encoded: Bytes,
    /// Permits to encode a piece. All responses share these permits, because encoding occupies a
    /// core and the memory of a frame.
    encoding: Arc<Semaphore>,
    panics: Panics,
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
    /// Creates the stream. `panics` counts panics of the reads and of the encoding.
    pub(crate) fn new(
        stream: Stream,
        encoding: Arc<Semaphore>,
        panics: Panics,
        name: String,
    ) -> Self {
        Self {
            stream: Some(stream),
            range: None,
            encoded: Bytes::new(),
            encoding,
            panics,
            name,
            offset: 0,
        }
    }

    /// Creates a stream that has no bytes.
    #[cfg(test)]
    pub(crate) fn ended(name: &str) -> Self {
        Self {
            stream: None,
            range: None,
            encoded: Bytes::new(),
            encoding: Arc::new(Semaphore::new(0)),
            panics: Panics::default(),
            name: name.to_owned(),
            offset: 0,
        }
    }

    /// The content for the log: the bundle of an image, or a file (its digest).
    pub(crate) fn name(&self) -> String {
        self.name.clone()
    }

    /// Offset of the next byte of the response.
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns the start of the next range, at most `max` bytes of it, if these bytes are in the
    /// page cache.
    pub(crate) fn resident_range(&self, max: u64) -> Option<FileRange> {
        /// Maximum bytes that a socket accepts in one call of `sendfile`.
        const MAX_SENT: u64 = 2 << 20;
        let range = self.range.as_ref().filter(|_| self.encoded.is_empty())?;
        let len = range.len.min(max).min(MAX_SENT);
        let len = pierhead_cache::resident(range.file.file(), range.offset..range.offset + len);
        (len > 0).then(|| FileRange {
            len,
            ..range.clone()
        })
    }

    /// Skips bytes of the current range that `sendfile` has sent.
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

    /// Takes the next piece of the stream if the piece needs no encoding. If the piece is a range
    /// of a file, [`Self::resident_range`] then returns it, and the caller can send it by
    /// `sendfile`.
    pub(crate) fn take_ready(&mut self) {
        if self.range.is_some() || !self.encoded.is_empty() {
            return;
        }
        match self.stream.as_mut().and_then(Stream::next_ready) {
            Some(Piece::File { file, offset, len }) => {
                self.range = Some(FileRange { file, offset, len });
            }
            Some(Piece::Bytes(bytes)) => self.encoded = bytes.into(),
            None => {}
        }
    }

    /// Returns the next bytes, at most [`MAX_FRAME_BYTES`], or no bytes at the end of the stream.
    /// Not cancel safe, because a dropped future loses the stream.
    pub(crate) async fn next(&mut self) -> Result<Bytes, Error> {
        loop {
            self.take_ready();
            if !self.encoded.is_empty() {
                let len = self.encoded.len().min(MAX_FRAME_BYTES);
                let bytes = self.encoded.split_to(len);
                self.offset += u64::try_from(bytes.len()).unwrap_or(u64::MAX);
                return Ok(bytes);
            }
            if let Some(range) = self.range.clone() {
                let task = BackgroundTask::Connection;
                let bytes = blocking(&self.panics, task, move || read(&range)).await?;
                let bytes = bytes.map_err(|error| Error::BundleRead(error.to_string()))?;
                self.advance(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
                return Ok(bytes);
            }
            let Some(mut stream) = self.stream.take() else {
                return Ok(Bytes::new());
            };
            let permit = self.encoding.clone().acquire_owned().await;
            let encode = move || {
                let _permit = permit;
                let piece = stream.next_piece();
                (stream, piece)
            };
            let task = BackgroundTask::Connection;
            let (stream, piece) = blocking(&self.panics, task, encode).await?;
            match piece.map_err(|error| Error::BundleRead(error.to_string()))? {
                None => return Ok(Bytes::new()),
                Some(Piece::Bytes(bytes)) => self.encoded = bytes.into(),
                Some(Piece::File { file, offset, len }) => {
                    self.range = Some(FileRange { file, offset, len });
                }
            }
            self.stream = Some(stream);
        }
    }
}

/// Reads the first bytes of a range of a pack file. Blocks.
fn read(range: &FileRange) -> std::io::Result<Bytes> {
    use std::os::unix::fs::FileExt as _;
    let len = usize::try_from(range.len)
        .unwrap_or(MAX_FRAME_BYTES)
        .min(MAX_FRAME_BYTES);
    let mut bytes = vec![0; len];
    range.file.file().read_exact_at(&mut bytes, range.offset)?;
    Ok(bytes.into())
}
