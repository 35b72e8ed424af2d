//! One frame's bytes: against the prefix if that is smaller by a margin, else plain, else as they are.

use zstd::zstd_safe::{CCtx, CParameter, compress_bound, get_error_name};

use super::Level;
use crate::Coding;
use pierhead_toc::Error;

/// A patch must be smaller than the plain frame by 1/32: it makes the worker read its bases.
const MARGIN: usize = 32;

/// Above one quarter of its bytes a patch is doubted, and the plain frame is made too: measured on Debian and Python
/// updates, patches that are smaller than that always beat the plain frame.
const DOUBTFUL: usize = 4;

/// The widest window that is asked for: prefix and data of the largest frame (20 MiB).
const MAX_WINDOW_LOG: u32 = 25;

/// A frame's payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Coded {
    /// How it came out; never [`Coding::Copy`].
    pub coding: Coding,
    /// What the record carries.
    pub payload: Vec<u8>,
}

/// Compresses frames at one level. The same bytes in give the same bytes out.
///
/// Memory: the tables of a [`Level`], see there, for as long as a call lasts.
#[derive(Clone, Copy, Debug)]
pub struct Encoder {
    level: Level,
}

impl Encoder {
    /// For frames of this level.
    pub const fn new(level: Level) -> Self {
        Self { level }
    }

    /// The smallest of the codings. An empty prefix means that there are no bases.
    ///
    /// # Errors
    /// Those of zstd, of which none is known for bytes in memory.
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
        let failed = |code| Error::Image(format!("zstd cannot compress: {}", get_error_name(code)));
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

/// Of a window that holds so many bytes.
fn window_log(len: usize) -> u32 {
    len.next_power_of_two()
        .trailing_zeros()
        .clamp(10, MAX_WINDOW_LOG)
}
