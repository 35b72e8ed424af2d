//! Compresses a TOC (table of contents) for the transfer: one zstd frame, alone or with another TOC
//! as its prefix.

use std::io::{Read, Write};

use zstd::stream::read::Decoder;
use zstd::stream::write::Encoder;
use zstd::zstd_safe::CParameter;

use crate::Error;

use super::ImageToc;
use super::format::{FORMAT_NAME, MAX_TOC};

/// Returns the base-2 logarithm of a zstd window that covers both the prefix and the TOC.
fn window(base: usize, toc: usize) -> u32 {
    (base + toc)
        .next_power_of_two()
        .ilog2()
        .clamp(10, MAX_WINDOW)
}

/// Base-2 logarithm of the maximum window, which is twice [`MAX_TOC`].
const MAX_WINDOW: u32 = 29;

/// From this level on, the search tables of zstd would take 64 MiB, which is the whole memory of an
/// indexing thread. The two limits below reduce the tables to 12 MiB. The limits do not reduce the
/// compression, since repetitions in a TOC are near each other.
const FIRST_LIMITED_LEVEL: i32 = 13;
const HASH_LOG: u32 = 20;
const CHAIN_LOG: u32 = 21;

/// Compresses the canonical bytes of a TOC, with the canonical bytes of `base` as the prefix. The
/// same input always gives the same bytes.
///
/// # Errors
/// `Io` when zstd has no memory.
pub fn compress(toc: &ImageToc, base: Option<&ImageToc>, level: i32) -> Result<Vec<u8>, Error> {
    let bytes = toc.bytes();
    let base = base.map_or(&[][..], ImageToc::bytes);
    let run = || {
        let mut encoder = Encoder::with_ref_prefix(Vec::new(), level, base)?;
        encoder.set_pledged_src_size(Some(bytes.len() as u64))?;
        encoder.set_parameter(CParameter::WindowLog(window(base.len(), bytes.len())))?;
        if level >= FIRST_LIMITED_LEVEL {
            encoder.set_parameter(CParameter::HashLog(HASH_LOG))?;
            encoder.set_parameter(CParameter::ChainLog(CHAIN_LOG))?;
        }
        if !base.is_empty() {
            // Long-distance matching finds runs of unchanged digests. For two versions of an image
            // of 99 000 entries, at level 3: 1.17 MB instead of 2.06 MB (`cargo run --release -p
            // pierhead-worker --example image_toc`).
            encoder.set_parameter(CParameter::EnableLongDistanceMatching(true))?;
        }
        encoder.include_contentsize(true)?;
        encoder.include_checksum(false)?;
        encoder.write_all(bytes)?;
        encoder.finish()
    };
    run().map_err(|error| Error::io("compress a TOC", error))
}

/// Decompresses and parses a TOC. `base` must be the TOC that was the prefix of the compression.
///
/// # Errors
/// `Malformed` when the zstd frame is malformed, or was compressed with another prefix.
pub fn decompress(frame: &[u8], base: Option<&ImageToc>) -> Result<ImageToc, Error> {
    let wrong = |error: std::io::Error| Error::malformed(FORMAT_NAME, error.to_string());
    let base = base.map_or(&[][..], ImageToc::bytes);
    let mut decoder = Decoder::with_ref_prefix(frame, base)
        .map_err(wrong)?
        .single_frame();
    decoder.window_log_max(MAX_WINDOW).map_err(wrong)?;
    let mut bytes = Vec::new();
    let limit = MAX_TOC as u64;
    let mut limited = decoder.by_ref().take(limit + 1);
    limited.read_to_end(&mut bytes).map_err(wrong)?;
    if bytes.len() as u64 > limit {
        return Err(Error::malformed(FORMAT_NAME, "it is longer than the limit"));
    }
    if !decoder.finish().is_empty() {
        return Err(Error::malformed(FORMAT_NAME, "bytes after the end"));
    }
    ImageToc::parse(bytes)
}
