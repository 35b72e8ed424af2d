//! Compresses and decompresses zstd frames of known length, from buffer to buffer. Decompression
//! allocates no memory for a zstd window, even if the zstd frame demands a window.

use zstd::zstd_safe::{CCtx, CParameter, DCtx, get_error_name, get_frame_content_size};

use crate::Error;

const FORMAT_NAME: &str = "zstd frame";

/// Compresses bytes into one zstd frame, which also states the number of these bytes.
///
/// # Errors
/// Errors of zstd. For bytes in memory, the only known error is a lack of memory.
pub fn compress(plain: &[u8], level: i32) -> Result<Vec<u8>, Error> {
    let mut context = CCtx::create();
    let mut out = Vec::with_capacity(zstd::zstd_safe::compress_bound(plain.len()));
    context
        .set_parameter(CParameter::CompressionLevel(level))
        .and_then(|_| context.compress2(&mut out, plain))
        .map_err(failed)?;
    Ok(out)
}

/// Decompresses one zstd frame to exactly `len` bytes. `prefix` has the bytes against which the
/// frame was compressed, and may be empty. The call allocates `len` bytes and no window, since the
/// frame refers only to the output and to the prefix.
///
/// # Errors
/// The input is not exactly one zstd frame, or decompresses to another length.
pub fn decompress(coded: &[u8], len: usize, prefix: &[u8]) -> Result<Vec<u8>, Error> {
    let mut out = Vec::new();
    decompress_into(coded, len, prefix, &mut out)?;
    Ok(out)
}

/// Does the same as [`decompress`], but writes into an existing buffer.
pub fn decompress_into(
    coded: &[u8],
    len: usize,
    prefix: &[u8],
    out: &mut Vec<u8>,
) -> Result<(), Error> {
    let stated_len = get_frame_content_size(coded).ok().flatten();
    if stated_len != u64::try_from(len).ok() {
        return Err(Error::malformed(
            FORMAT_NAME,
            "it has another length than promised",
        ));
    }
    if zstd::zstd_safe::find_frame_compressed_size(coded) != Ok(coded.len()) {
        return Err(Error::malformed(FORMAT_NAME, "it is not one whole frame"));
    }
    out.clear();
    out.reserve_exact(len);
    let mut context = DCtx::create();
    if !prefix.is_empty() {
        context.ref_prefix(prefix).map_err(failed)?;
    }
    let got = context.decompress(out, coded).map_err(failed)?;
    if got != len {
        return Err(Error::malformed(FORMAT_NAME, "it is shorter than promised"));
    }
    Ok(())
}

fn failed(code: usize) -> Error {
    Error::malformed(FORMAT_NAME, get_error_name(code))
}
