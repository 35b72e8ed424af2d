//! A table on its way: one zstd frame, alone or against another table.

use std::io::{Read, Write};

use zstd::stream::read::Decoder;
use zstd::stream::write::Encoder;
use zstd::zstd_safe::CParameter;

use crate::Error;

use super::ImageToc;
use super::format::{MAX_TOC, WHAT};

/// The window reaches back over all of a base.
fn window(base: usize, toc: usize) -> u32 {
    (base + toc)
        .next_power_of_two()
        .ilog2()
        .clamp(10, MAX_WINDOW)
}

/// Maximum size of a zstd window as a power of two. The window has room for two TOCs of the maximum
/// size.
const MAX_WINDOW: u32 = 29;

/// Levels from here on have search structures of 64 MiB, all that a server may take while it indexes. With these, of
/// 12 MiB, nothing is lost: what a table repeats lies near, names in their order and runs of attributes.
const SLOW: i32 = 13;
const HASH_LOG: u32 = 20;
const CHAIN_LOG: u32 = 21;

/// One zstd frame of a table's canonical bytes, against those of `base`. The same input always gives the same bytes.
///
/// # Errors
/// `Io` when zstd has no memory.
pub fn encode(toc: &ImageToc, base: Option<&ImageToc>, level: i32) -> Result<Vec<u8>, Error> {
    let bytes = toc.bytes();
    let base = base.map_or(&[][..], ImageToc::bytes);
    let run = || {
        let mut encoder = Encoder::with_ref_prefix(Vec::new(), level, base)?;
        encoder.set_pledged_src_size(Some(bytes.len() as u64))?;
        encoder.set_parameter(CParameter::WindowLog(window(base.len(), bytes.len())))?;
        if level >= SLOW {
            encoder.set_parameter(CParameter::HashLog(HASH_LOG))?;
            encoder.set_parameter(CParameter::ChainLog(CHAIN_LOG))?;
        }
        if !base.is_empty() {
            // Finds the runs of digests that stayed. Two versions of an image of 99 000 entries, at level 3: 1.17 MB
            // and not 2.06 (`cargo run --release -p pierhead-worker --example image_toc`).
            encoder.set_parameter(CParameter::EnableLongDistanceMatching(true))?;
        }
        encoder.include_contentsize(true)?;
        encoder.include_checksum(false)?;
        encoder.write_all(bytes)?;
        encoder.finish()
    };
    run().map_err(|error| Error::io("compress a TOC", error))
}

/// The table of such a frame.
///
/// # Errors
/// `Malformed` when it is none, or was made against something else.
pub fn decode(frame: &[u8], base: Option<&ImageToc>) -> Result<ImageToc, Error> {
    let wrong = |error: std::io::Error| Error::malformed(WHAT, error.to_string());
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
        return Err(Error::malformed(WHAT, "it is longer than the limit"));
    }
    if !decoder.finish().is_empty() {
        return Err(Error::malformed(WHAT, "bytes after its end"));
    }
    ImageToc::parse(bytes)
}
