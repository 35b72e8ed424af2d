//! Decodes the compressed bytes of a layer, a step at a time.

mod gzip;
mod zstd;

use serde::{Deserialize, Serialize};

use crate::{Blob, Error};

use zstd::Zstd;

pub(super) use gzip::{Gzip, WINDOW};

/// How a layer is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Coding {
    Plain,
    Gzip,
    Zstd,
}

impl Coding {
    /// By the first bytes, as containerd tells it.
    pub(super) fn detect(blob: &dyn Blob) -> Result<Self, Error> {
        let mut head = [0; 4];
        let len = usize::try_from(blob.size().min(4)).unwrap_or(4);
        blob.read_at(0, &mut head[..len])
            .map_err(|e| Error::io("read the layer", e))?;
        Ok(match head {
            [0x1f, 0x8b, 0x08, _] => Self::Gzip,
            // A frame, or one to be skipped before it.
            [0x28, 0xb5, 0x2f, 0xfd] | [0x50..=0x5f, 0x2a, 0x4d, 0x18] => Self::Zstd,
            _ => Self::Plain,
        })
    }
}

/// What one step of a decoder did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Step {
    /// Bytes of the input.
    pub(super) taken: usize,
    /// Bytes of the output.
    pub(super) given: usize,
    /// The decoder stopped where a deflate block ends; only if told to.
    pub(super) boundary: bool,
    /// The output goes on with a new member or frame, which needs no window.
    pub(super) between: bool,
}

/// A running decoder.
pub(super) enum Decoder {
    Plain,
    Gzip(Box<Gzip>),
    Zstd(Zstd),
}

impl Decoder {
    /// At the head of a layer, a gzip member or a zstd frame. Refuses zstd windows of more than `max_window` bytes.
    pub(super) fn new(coding: Coding, max_window: u64) -> Result<Self, Error> {
        Ok(match coding {
            Coding::Plain => Self::Plain,
            Coding::Gzip => Self::Gzip(Box::new(Gzip::new())),
            Coding::Zstd => Self::Zstd(Zstd::new(max_window)?),
        })
    }

    /// Decodes what it can. With `stop`, gzip goes no further than the end of a deflate block.
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

    /// Whether the input may end here.
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
