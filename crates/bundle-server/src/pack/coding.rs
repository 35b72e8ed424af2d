//! Encodes and decodes packed frames (groups of file contents): each as one zstd frame, or
//! uncompressed when compression gains too little.

use zstd::bulk::{Compressor, Decompressor};
use zstd::zstd_safe::CParameter;

use crate::Error;
use pierhead_bundle::{Coding, MAX_FRAME};

/// Base-2 logarithm of the zstd window, which is as large as the largest frame.
const WINDOW_LOG: u32 = MAX_FRAME.ilog2();

/// Compresses frames. Each encoder holds one zstd context; `docs/formats/disk.md` lists the memory
/// of a context by level.
pub struct Encoder {
    context: Compressor<'static>,
    buffer: Vec<u8>,
}

impl Encoder {
    /// Creates an encoder. `level` is a zstd level from 1 to 22.
    ///
    /// # Errors
    /// [`Error::Io`] when zstd has no memory.
    pub fn new(level: i32) -> Result<Self, Error> {
        let prepare = || {
            let mut context = Compressor::new(level)?;
            context.set_parameter(CParameter::WindowLog(WINDOW_LOG))?;
            context.set_parameter(CParameter::ContentSizeFlag(true))?;
            // Switches off zstd's checksum, since the head of the record has a SHA-256 hash of the
            // payload.
            context.set_parameter(CParameter::ChecksumFlag(false))?;
            std::io::Result::Ok(context)
        };
        let context = prepare().map_err(|error| Error::io("prepare zstd", error))?;
        Ok(Self {
            context,
            buffer: Vec::new(),
        })
    }

    /// Returns the coding and the payload of a frame of at most [`MAX_FRAME`] bytes.
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
        // If zstd shortens a frame by less than 1/64, the frame is stored uncompressed, to save the
        // cost of decoding.
        if len >= bytes.len() - bytes.len() / 64 {
            return Ok((Coding::Stored, bytes));
        }
        Ok((Coding::Zstd, &self.buffer))
    }
}

/// Decodes into `out` a frame that is not a patch. `len` is the required length of the result.
///
/// # Errors
/// [`Error::Malformed`] when the payload is damaged, has another length, or would need more memory
/// than is allowed for a frame.
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
            // zstd never writes beyond the reserved capacity, so a longer frame causes an error.
            context
                .decompress_to_buffer(payload, out)
                .map_err(|error| wrong(error.to_string()))?;
        }
        Coding::Patch | Coding::Copy => return Err(wrong("it needs bases".into())),
    }
    if out.len() != len {
        return Err(wrong(format!("{} bytes in place of {len}", out.len())));
    }
    Ok(())
}
