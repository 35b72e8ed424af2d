//! Encodes the bytes of one frame as a patch, as a plain zstd frame, or uncompressed, whichever is
//! smallest.

use zstd::zstd_safe::{CCtx, CParameter, compress_bound, get_error_name};

use super::Level;
use crate::Coding;
use crate::Error;

/// A patch must be smaller than the plain zstd frame by 1/`MARGIN`, since the worker has to read
/// the bases of a patch.
const MARGIN: usize = 32;

/// A patch that is larger than 1/`DOUBTFUL` of the data is compared with the plain zstd frame. In
/// measurements on updates of Debian and Python images, patches below this size were always smaller
/// than the plain frame.
const DOUBTFUL: usize = 4;

/// Base-2 logarithm of the maximum window of zstd. The window covers the prefix and the data of the
/// largest frame, which take 20 MiB.
const MAX_WINDOW_LOG: u32 = 25;

/// The coded payload of a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Coded {
    /// The chosen coding; never [`Coding::Copy`].
    pub coding: Coding,
    /// The payload of the frame's record.
    pub payload: Vec<u8>,
}

/// Compresses frames at one level. The same input always gives the same output.
///
/// During a call, the encoder takes memory for the tables of zstd at that [`Level`].
#[derive(Clone, Copy, Debug)]
pub struct Encoder {
    level: Level,
}

impl Encoder {
    /// Creates an encoder for this level.
    pub const fn new(level: Level) -> Self {
        Self { level }
    }

    /// Encodes the data in the smallest coding. An empty prefix means that the frame has no bases.
    ///
    /// # Errors
    /// [`Error::Compression`] if zstd fails. The only known reason is a lack of memory.
    pub fn encode(&self, prefix: &[u8], data: &[u8]) -> Result<Coded, Error> {
        let mut best = Coded {
            coding: Coding::Stored,
            payload: Vec::new(),
        };
        let mut limit = data.len();
        if !prefix.is_empty() {
            let payload = self.compress(prefix, data)?;
            if payload.len() < limit {
                limit = payload.len();
                best = Coded {
                    coding: Coding::Patch,
                    payload,
                };
            }
        }
        if prefix.is_empty() || limit > data.len() / DOUBTFUL {
            let payload = self.compress(&[], data)?;
            if payload.len() < limit.saturating_add(limit / MARGIN) && payload.len() < data.len() {
                best = Coded {
                    coding: Coding::Zstd,
                    payload,
                };
            }
        }
        if best.coding == Coding::Stored {
            best.payload = data.to_vec();
        }
        Ok(best)
    }

    fn compress(&self, prefix: &[u8], data: &[u8]) -> Result<Vec<u8>, Error> {
        let failed = |code| Error::Compression(get_error_name(code));
        let mut context = CCtx::create();
        let window = window_log(prefix.len().saturating_add(data.len()));
        let mut set = |parameter| context.set_parameter(parameter).map(drop);
        set(CParameter::CompressionLevel(self.level.number().into())).map_err(failed)?;
        set(CParameter::WindowLog(window)).map_err(failed)?;
        set(CParameter::DictIdFlag(false)).map_err(failed)?;
        if self.level.long_distance() && !prefix.is_empty() {
            set(CParameter::EnableLongDistanceMatching(true)).map_err(failed)?;
        }
        if !prefix.is_empty() {
            context.ref_prefix(prefix).map_err(failed)?;
        }
        let mut out = Vec::with_capacity(compress_bound(data.len()));
        context.compress2(&mut out, data).map_err(failed)?;
        out.shrink_to_fit();
        Ok(out)
    }
}

/// Returns the base-2 logarithm of a window of at least `len` bytes.
fn window_log(len: usize) -> u32 {
    len.next_power_of_two()
        .trailing_zeros()
        .clamp(10, MAX_WINDOW_LOG)
}
