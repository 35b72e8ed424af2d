//! Frames that stand for themselves: zstd at a level, or stored where that does not help.

use zstd::bulk::{Compressor, Decompressor};
use zstd::zstd_safe::CParameter;

use pierhead_bundle::{Coding, MAX_FRAME};
use pierhead_toc::Error;

/// The window of a frame is at most all of it.
const WINDOW_LOG: u32 = MAX_FRAME.ilog2();

/// Compresses frames. Holds one zstd context: `docs/formats/disk.md` has its bytes by level.
pub struct Encoder {
    context: Compressor<'static>,
    buffer: Vec<u8>,
}

impl Encoder {
    /// At a level of zstd, 1 to 22.
    ///
    /// # Errors
    /// [`Error::Io`] when zstd has no memory.
    pub fn new(level: i32) -> Result<Self, Error> {
        let prepare = || {
            let mut context = Compressor::new(level)?;
            context.set_parameter(CParameter::WindowLog(WINDOW_LOG))?;
            context.set_parameter(CParameter::ContentSizeFlag(true))?;
            // The record has a SHA-256.
            context.set_parameter(CParameter::ChecksumFlag(false))?;
            std::io::Result::Ok(context)
        };
        let context = prepare().map_err(|error| Error::io("prepare zstd", error))?;
        Ok(Self {
            context,
            buffer: Vec::new(),
        })
    }

    /// The payload for `bytes`, at most [`MAX_FRAME`] of them, and how it is coded.
    ///
    /// # Errors
    /// [`Error::Io`] when zstd has no memory.
    pub fn encode<'a>(&'a mut self, bytes: &'a [u8]) -> Result<(Coding, &'a [u8]), Error> {
        self.buffer.clear();
        self.buffer
            .reserve(zstd::zstd_safe::compress_bound(bytes.len()));
        let len = self
            .context
            .compress_to_buffer(bytes, &mut self.buffer)
            .map_err(|error| Error::io("compress a frame", error))?;
        // Less than a 64th is not worth what decoding costs.
        if len >= bytes.len() - bytes.len() / 64 {
            return Ok((Coding::Stored, bytes));
        }
        Ok((Coding::Zstd, &self.buffer))
    }
}

/// The bytes of a frame that stands for itself, into `out`; `len` is how many there must be.
///
/// # Errors
/// [`Error::Malformed`] when it gives anything else, or needs more memory than a frame may.
pub fn decode(coding: Coding, payload: &[u8], len: u64, out: &mut Vec<u8>) -> Result<(), Error> {
    let wrong = |why: String| Error::malformed("frame", why);
    let len = usize::try_from(len)
        .ok()
        .filter(|len| *len as u64 <= MAX_FRAME)
        .ok_or_else(|| wrong(format!("{len} bytes in one frame")))?;
    out.clear();
    match coding {
        Coding::Stored => out.extend_from_slice(payload),
        Coding::Zstd => {
            out.reserve(len);
            let mut context =
                Decompressor::new().map_err(|error| Error::io("prepare zstd", error))?;
            context
                .window_log_max(WINDOW_LOG)
                .map_err(|error| Error::io("prepare zstd", error))?;
            // It never writes beyond what was reserved: a frame that gives more fails.
            context
                .decompress_to_buffer(payload, out)
                .map_err(|error| wrong(error.to_string()))?;
        }
        Coding::Patch | Coding::Copy => return Err(wrong("it does not stand for itself".into())),
    }
    if out.len() != len {
        return Err(wrong(format!("{} bytes in place of {len}", out.len())));
    }
    Ok(())
}
