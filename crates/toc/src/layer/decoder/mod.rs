//! Decompresses a layer step by step. A layer is uncompressed, or compressed by gzip or zstd.

mod gzip;
mod zstd;

use serde::{Deserialize, Serialize};

use crate::{Blob, Error};

use zstd::Zstd;

pub(super) use gzip::{Gzip, WINDOW};

/// The compression of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Coding {
    Plain,
    Gzip,
    Zstd,
}

impl Coding {
    /// Detects the compression by the first bytes, as containerd does.
    pub(super) fn detect(blob: &dyn Blob) -> Result<Self, Error> {
        let mut head = [0; 4];
        let len = usize::try_from(blob.size().min(4)).unwrap_or(4);
        blob.read_at(0, &mut head[..len])
            .map_err(|e| Error::io("read the layer", e))?;
        Ok(match head {
            [0x1f, 0x8b, 0x08, _] => Self::Gzip,
            // The first bytes of a zstd frame, or of a skippable frame.
            [0x28, 0xb5, 0x2f, 0xfd] | [0x50..=0x5f, 0x2a, 0x4d, 0x18] => Self::Zstd,
            _ => Self::Plain,
        })
    }
}

/// The result of one step of a decoder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Step {
    /// Number of input bytes that the decoder took.
    pub(super) taken: usize,
    /// Number of output bytes that the decoder wrote.
    pub(super) given: usize,
    /// Whether the decoder stopped at the end of a deflate block, as requested.
    pub(super) boundary: bool,
    /// Whether a new member or frame follows, which needs no window.
    pub(super) between: bool,
}

/// A running decoder.
pub(super) enum Decoder {
    Plain,
    Gzip(Box<Gzip>),
    Zstd(Zstd),
}

impl Decoder {
    /// Creates a decoder at the head of a layer, of a gzip member or of a zstd frame. The decoder
    /// refuses zstd windows of more than `max_window` bytes.
    pub(super) fn new(coding: Coding, max_window: u64) -> Result<Self, Error> {
        Ok(match coding {
            Coding::Plain => Self::Plain,
            Coding::Gzip => Self::Gzip(Box::new(Gzip::new())),
            Coding::Zstd => Self::Zstd(Zstd::new(max_window)?),
        })
    }

    /// Decodes as much as fits into `output`. With `stop`, a gzip decoder stops at the end of a
    /// deflate block.
    ///
    /// # Errors
    /// [`Error::Image`] when the input is damaged.
    pub(super) fn step(
        &mut self,
        input: &[u8],
        output: &mut [u8],
        stop: bool,
    ) -> Result<Step, Error> {
        match self {
            Self::Plain => {
                let len = input.len().min(output.len());
                output[..len].copy_from_slice(&input[..len]);
                Ok(Step {
                    taken: len,
                    given: len,
                    ..Step::default()
                })
            }
            Self::Gzip(gzip) => gzip.step(input, output, stop),
            Self::Zstd(zstd) => zstd.step(input, output),
        }
    }

    /// Whether the input may end at the current position.
    pub(super) fn may_end(&self) -> bool {
        match self {
            Self::Plain => true,
            Self::Gzip(gzip) => gzip.may_end(),
            Self::Zstd(zstd) => zstd.may_end(),
        }
    }
}

#[cfg(test)]
mod tests;
