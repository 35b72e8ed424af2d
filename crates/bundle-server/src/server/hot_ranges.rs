//! Finds the hot ranges of an image: the ranges of its layers that a container start reads,
//! according to the trace of the image (the files that earlier container starts opened).

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use pierhead_oci::Digest;

use super::context::Context;
use super::cpu_share::{CpuShare, NAP};
use super::toc_access::load_toc;
use crate::Error;
use pierhead_toc::FileDigest;
use pierhead_toc::Tree;
use pierhead_toc::layer::LayerIndex;

/// The ranges of one layer that a container start reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HotRanges {
    /// The digest of the layer's blob.
    pub blob: Digest,
    /// Ranges of the bytes of this blob, in order and disjoint.
    pub ranges: Vec<Range<u64>>,
}

/// Returns the hot ranges of each cached layer of an image. The result is empty if the image has no
/// trace. If several layers have a content, only the uppermost of these layers counts, as in a
/// mount. This function reads and decodes the ranges at low priority.
///
/// # Errors
/// [`Error::Missing`] when the image is not ready, [`Error::Stopped`] at shutdown, and errors of
/// the layers.
pub(super) fn hot_ranges(context: &Context, image: &Digest) -> Result<Vec<HotRanges>, Error> {
    let is_ending = || context.queue.is_stopped();
    loop {
        match try_hot_ranges(context, image) {
            // The work ended early to release its memory. The loop starts the work again when the
            // host has enough memory.
            Err(Error::Stopped) if !is_ending() => {
                let background = &context.config.background;
                while background.is_paused() && !is_ending() {
                    background.wait_while_paused(NAP);
                }
            }
            done => return done,
        }
    }
}

fn try_hot_ranges(context: &Context, image: &Digest) -> Result<Vec<HotRanges>, Error> {
    let missing = || Error::Missing(image.to_string());
    let blobs = context.images.blobs_of_ready(image).ok_or_else(missing)?;
    let Some(files) = context.traces.merged(image)? else {
        return Ok(Vec::new());
    };
    let mut wanted: HashSet<FileDigest> = {
        let toc = load_toc(context, image)?;
        let tree = Tree::of(pierhead_toc::TocView::mounted(&toc))?;
        let contents = files.iter().filter_map(|path| {
            let number = tree.file(path.as_bytes())?;
            tree.content(number).map(|(content, _)| content)
        });
        contents.collect()
    };
    let share = CpuShare::new(context.config.cpu_percent, context.queue.stop_flag());
    let background = context.config.background.clone();
    let mut share = share
        .with_background(background)
        .with_priority_jobs(context.queue.indexing());
    let mut hot_ranges = Vec::new();
    // Skips the first blob, which is the config of the image.
    for blob in blobs.iter().skip(1).rev() {
        let failed = |error| Error::io(format!("read {blob}"), error);
        let Some(open) = context.blobs.open(blob).map_err(failed)? else {
            continue;
        };
        let index = LayerIndex::open(&context.paths.layer(blob))?;
        let mut contents = Vec::new();
        for content in &wanted {
            if index.holds(content)? {
                contents.push(*content);
            }
        }
        contents.iter().for_each(|content| {
            wanted.remove(content);
        });
        let ranges = index.hot_ranges(Arc::clone(&open), &contents, &mut share)?;
        if !ranges.is_empty() {
            hot_ranges.push(HotRanges {
                blob: *blob,
                ranges,
            });
        }
    }
    Ok(hot_ranges)
}
