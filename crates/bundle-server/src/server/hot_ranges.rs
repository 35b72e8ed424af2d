//! Where in the layers lies what a start opens: its trace in ranges of blobs, for whoever keeps such ranges near.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use pierhead_oci::Digest;

use super::context::Context;
use super::cpu_share::{CpuShare, NAP};
use super::toc_access::load_toc;
use pierhead_toc::Tree;
use pierhead_toc::layer::LayerIndex;
use pierhead_toc::{Error, FileDigest};

/// What a start reads of one layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HotRanges {
    /// The layer's blob.
    pub blob: Digest,
    /// Ranges of its bytes, in order and apart from one another.
    pub ranges: Vec<Range<u64>>,
}

/// What a start of that image reads of each of its layers that is here, as its trace has it; nothing without one. Contents
/// that several layers have are read from the uppermost, as a mount does. Reads and decodes that much of
/// the layers, at the pace of what can wait.
///
/// # Errors
/// [`Error::Missing`] when the image is not ready (any more), [`Error::Stopped`] at the end; those of the layers.
pub(super) fn hot_ranges(context: &Context, image: &Digest) -> Result<Vec<HotRanges>, Error> {
    let is_ending = || context.queue.is_stopped();
    loop {
        match try_hot_ranges(context, image) {
            // It gave up what it held: the machine is short of something.
            Err(Error::Stopped) if !is_ending() => {
                let rest = &context.config.background;
                while rest.is_paused() && !is_ending() {
                    rest.wait_while_paused(NAP);
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
        let table = load_toc(context, image)?;
        let tree = Tree::of(pierhead_toc::TocView::mounted(&table))?;
        let contents = files.iter().filter_map(|path| {
            let number = tree.file(path.as_bytes())?;
            tree.content(number).map(|(content, _)| content)
        });
        contents.collect()
    };
    let share = CpuShare::new(context.config.cpu_percent, context.queue.stop_flag());
    let rest = context.config.background.clone();
    let mut share = share.resting(rest).after(context.queue.indexing());
    let mut hot_ranges = Vec::new();
    // The first is the config.
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
