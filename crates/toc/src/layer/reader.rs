//! Reads single file contents from the blob of a layer. Decoding starts at the checkpoint (a
//! position at which decoding can start) before the content.

use std::io;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::{Blob, Error, FileDigest, Source};

use super::blocks::Stream;
use super::decoder::Coding;
use super::pace::NoPacing;
use super::stored::{ContentRow, EXTENT, LayerIndex, as_io, little};
use super::stream::{Checkpoint, INPUT, PositionedDecoder};

/// Maximum number of open decoders, for reads that continue where an earlier read ended. Each
/// decoder takes 250 KiB.
const POSITIONS: usize = 4;

/// Reads the contents of one layer, including its skeleton (the tar without file contents).
///
/// A read first decodes up to 4 MiB that the caller does not need, unless the read continues one of
/// the last four reads. In a zstd layer, decoding can only start at the start of a frame, so a read
/// decodes all bytes of the frame before its position. So reads in the order of the tar are the
/// fastest.
pub struct LayerReader {
    index: LayerIndex,
    blob: Arc<dyn Blob>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    checkpoints: Option<Vec<Checkpoint>>,
    /// Open decoders, in the order of their last use.
    positions: Vec<PositionedDecoder>,
    /// The row of the content of the last read. The reader keeps this row because reads of one
    /// content follow each other.
    row: Option<ContentRow>,
    extents: Vec<(u64, u64)>,
    /// The block of the skeleton that was read last, with the number of this block.
    skeleton: Option<(usize, Vec<u8>)>,
}

impl LayerReader {
    pub(super) fn new(index: LayerIndex, blob: Arc<dyn Blob>) -> Self {
        Self {
            index,
            blob,
            state: Mutex::default(),
        }
    }

    /// Returns the index of the layer.
    pub fn index(&self) -> &LayerIndex {
        &self.index
    }

    fn find(&self, state: &mut State, content: &FileDigest) -> Result<Option<ContentRow>, Error> {
        if let Some(row) = state.row.filter(|row| row.content == *content) {
            return Ok(Some(row));
        }
        let Some(row) = self.index.row(content)? else {
            return Ok(None);
        };
        // Clears the row first, since the extents of the previous row must not be used after an
        // error.
        state.row = None;
        state.extents.clear();
        self.index
            .records::<EXTENT>(Stream::Extents, row.extents, |record| {
                state
                    .extents
                    .push((little(&record[..8]), little(&record[8..])));
            })?;
        state.row = Some(row);
        Ok(Some(row))
    }

    /// Fills `buf` with the bytes from a position in the tar on.
    fn tar(&self, state: &mut State, at: u64, mut buf: &mut [u8]) -> Result<(), Error> {
        if buf.is_empty() {
            return Ok(());
        }
        let mut stream = self.position(state, at)?;
        while !buf.is_empty() {
            if !stream.fill(&*self.blob, &mut NoPacing)? {
                return Err(Error::malformed(
                    "layer",
                    "its blob ends before its index does",
                ));
            }
            let behind = at.saturating_sub(stream.position());
            let ready = stream.ready();
            let skip = usize::try_from(behind)
                .unwrap_or(usize::MAX)
                .min(ready.len());
            let part = if behind > skip as u64 {
                0
            } else {
                buf.len().min(ready.len() - skip)
            };
            buf[..part].copy_from_slice(&ready[skip..skip + part]);
            stream.take(skip + part);
            buf = &mut buf[part..];
        }
        state.positions.push(stream);
        if state.positions.len() > POSITIONS {
            state.positions.remove(0);
        }
        Ok(())
    }

    /// Returns a stream at a position in the tar, or before the position, by at most the distance
    /// of two checkpoints.
    fn position(&self, state: &mut State, at: u64) -> Result<PositionedDecoder, Error> {
        let summary = &self.index.summary;
        let checkpoints = match &mut state.checkpoints {
            Some(checkpoints) => checkpoints,
            none => none.insert(self.index.checkpoints()?),
        };
        let last = checkpoints.partition_point(|checkpoint| checkpoint.at <= at);
        let checkpoint = last.checked_sub(1).and_then(|last| checkpoints.get(last));
        let begin = match summary.coding {
            // In an uncompressed layer, reading can start anywhere. So an open stream is used only
            // if the position is in its buffer.
            Coding::Plain => at.saturating_sub(INPUT as u64),
            _ => checkpoint.map_or(0, |checkpoint| checkpoint.at),
        };
        let kept = state
            .positions
            .iter()
            .enumerate()
            .filter(|(_, stream)| (begin..=at).contains(&stream.position()))
            .max_by_key(|(_, stream)| stream.position())
            .map(|(number, _)| number);
        if let Some(number) = kept {
            return Ok(state.positions.remove(number));
        }
        let window = summary.max_window;
        match checkpoint {
            Some(Checkpoint {
                at,
                blob_at,
                window: Some(entry),
            }) => {
                let window = self
                    .index
                    .file
                    .read(Stream::Windows, entry.block as usize)?
                    .ok_or_else(|| Error::malformed("layer index", "a window is missing"))?;
                PositionedDecoder::enter(*at, *blob_at, entry, &window)
            }
            Some(Checkpoint { at, blob_at, .. }) => {
                PositionedDecoder::at(summary.coding, *at, *blob_at, window)
            }
            None if summary.coding == Coding::Plain => {
                PositionedDecoder::at(summary.coding, at, at, window)
            }
            None => PositionedDecoder::at(summary.coding, 0, 0, window),
        }
    }

    fn skeleton(&self, state: &mut State, mut at: u64, mut buf: &mut [u8]) -> Result<(), Error> {
        let missing = || Error::malformed("layer index", "a part of the skeleton is missing");
        while !buf.is_empty() {
            let number = self.index.file.find(Stream::Skeleton, at, true);
            let held = state.skeleton.take().filter(|(held, _)| *held == number);
            let block = match held {
                Some((_, block)) => block,
                None => self
                    .index
                    .file
                    .read(Stream::Skeleton, number)?
                    .ok_or_else(missing)?,
            };
            let first = self.index.file.key(Stream::Skeleton, number);
            let skip = at.checked_sub(first.ok_or_else(missing)?);
            let skip = usize::try_from(skip.ok_or_else(missing)?).map_err(|_| missing())?;
            let from = block.get(skip..).filter(|from| !from.is_empty());
            let from = from.ok_or_else(missing)?;
            let part = from.len().min(buf.len());
            buf[..part].copy_from_slice(&from[..part]);
            buf = &mut buf[part..];
            at += part as u64;
            state.skeleton = Some((number, block));
        }
        Ok(())
    }
}

impl Source for LayerReader {
    fn size(&self, content: &FileDigest) -> io::Result<Option<u64>> {
        let (skeleton, size) = self.index.skeleton();
        if *content == skeleton {
            return Ok(Some(size));
        }
        let mut state = self.state.lock();
        let row = self.find(&mut state, content).map_err(as_io)?;
        Ok(row.map(|row| row.size))
    }

    fn read_at(&self, content: &FileDigest, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let (skeleton, size) = self.index.skeleton();
        let mut state = self.state.lock();
        let within = |size: u64| match offset.checked_add(buf.len() as u64) {
            Some(end) if end <= size => Ok(()),
            _ => Err(io::Error::from(io::ErrorKind::UnexpectedEof)),
        };
        if *content == skeleton {
            within(size)?;
            return self.skeleton(&mut state, offset, buf).map_err(as_io);
        }
        let row = self.find(&mut state, content).map_err(as_io)?;
        let row = row.ok_or(io::ErrorKind::NotFound)?;
        within(row.size)?;
        if row.extents.1 == 0 {
            return self
                .tar(&mut state, row.offset + offset, buf)
                .map_err(as_io);
        }
        buf.fill(0);
        let extents = std::mem::take(&mut state.extents);
        let outcome = pieces(
            &extents,
            row.offset,
            offset,
            buf.len() as u64,
            |at, range| self.tar(&mut state, at, &mut buf[range]),
        );
        state.extents = extents;
        outcome.map_err(as_io)
    }
}

/// Splits a read of a sparse file into reads of its stored extents. Calls `each` with an offset in
/// the tar and a range of the buffer.
fn pieces(
    extents: &[(u64, u64)],
    mut stored: u64,
    offset: u64,
    len: u64,
    mut each: impl FnMut(u64, std::ops::Range<usize>) -> Result<(), Error>,
) -> Result<(), Error> {
    let end = offset + len;
    for (begin, size) in extents {
        let from = (*begin).max(offset);
        let to = (begin + size).min(end);
        if from < to {
            let narrow = |at: u64| usize::try_from(at - offset).unwrap_or(usize::MAX);
            each(stored + (from - begin), narrow(from)..narrow(to))?;
        }
        stored += size;
    }
    Ok(())
}
