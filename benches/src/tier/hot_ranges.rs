//! The hot ranges of an image: the parts of its layers that a container start reads. The hot ranges
//! come from a recorded trace or from a random sample.

use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use bytes::Bytes;
use pierhead_oci::Digest;
use pierhead_toc::layer::{self, LayerIndex, Limits, NoPacing, Request};
use pierhead_toc::{FileDigest, Kind};
use serde_json::Value;

use super::images::{Blob, Image};

/// The hot ranges of one layer, in order.
pub(super) struct HotRanges {
    pub(super) layer: Digest,
    pub(super) ranges: Vec<Range<u64>>,
}

impl HotRanges {
    pub(super) fn bytes(&self) -> u64 {
        self.ranges.iter().map(|it| it.end - it.start).sum()
    }
}

/// A cache of layer indexes in a temporary folder. Each index is created once.
pub(super) struct LayerIndexCache {
    folder: tempfile::TempDir,
    created: HashMap<Digest, LayerIndex>,
}

struct InMemory(Bytes);

impl pierhead_toc::Blob for InMemory {
    fn size(&self) -> u64 {
        self.0.len() as u64
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let from = usize::try_from(offset).ok();
        let from = from.and_then(|from| self.0.get(from..)?.get(..buf.len()));
        buf.copy_from_slice(from.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

impl LayerIndexCache {
    pub(super) fn new() -> Result<Self> {
        Ok(Self {
            folder: tempfile::tempdir()?,
            created: HashMap::new(),
        })
    }

    fn index(&mut self, (digest, bytes): &Blob, request: &Request<'_>) -> Result<LayerIndex> {
        if let Some(index) = self.created.get(digest) {
            return Ok(index.clone());
        }
        let blob = InMemory(bytes.clone());
        let out = self.folder.path().join(digest.hex());
        let index = layer::index(&blob, request, &mut NoPacing, &out)?;
        self.created.insert(*digest, index.clone());
        Ok(index)
    }

    /// Returns the ranges of each layer that contain the files of a trace (one path per line).
    pub(super) fn hot_ranges_of_trace(
        &mut self,
        image: &Image,
        trace: &Path,
    ) -> Result<Vec<HotRanges>> {
        let lines = std::fs::read_to_string(trace);
        let lines = lines.with_context(|| trace.display().to_string())?;
        let manifest: Value = serde_json::from_slice(&image.manifest.1)?;
        let config: Value = serde_json::from_slice(&image.config.1)?;
        let mut indexes = Vec::new();
        // Maps each path to its layer and contents. If several layers contain the path, the
        // uppermost layer counts.
        let mut files: HashMap<Vec<u8>, (usize, FileDigest)> = HashMap::new();
        for (nth, layer) in image.layers.iter().enumerate() {
            let diff_id = config["rootfs"]["diff_ids"][nth].as_str();
            let media_type = manifest["layers"][nth]["mediaType"].as_str();
            let request = Request {
                media_type: media_type.context("no media type")?,
                diff_id: &diff_id.context("no diff ID")?.parse()?,
                limits: Limits::default(),
            };
            let index = self.index(layer, &request)?;
            for entry in index.entries() {
                let entry = entry?;
                let content = match entry.kind {
                    Kind::File { content, .. } => Some((nth, content)),
                    Kind::HardLink { target } => files.get(&target).copied(),
                    _ => None,
                };
                match content {
                    Some(content) => files.insert(entry.path, content),
                    None => files.remove(&entry.path),
                };
            }
            indexes.push(index);
        }
        let mut wanted = vec![Vec::new(); indexes.len()];
        for line in lines.lines() {
            if let Some((nth, content)) = files.get(line.trim_start_matches('/').as_bytes()) {
                wanted[*nth].push(*content);
            }
        }
        let mut hot_ranges = Vec::new();
        for ((index, contents), (layer, bytes)) in indexes.iter().zip(wanted).zip(&image.layers) {
            let blob = Arc::new(InMemory(bytes.clone()));
            let ranges = index.hot_ranges(blob, &contents, &mut NoPacing)?;
            if !ranges.is_empty() {
                hot_ranges.push(HotRanges {
                    layer: *layer,
                    ranges,
                });
            }
        }
        Ok(hot_ranges)
    }
}

/// A random eleventh of each layer, in ranges of 16 to 496 KiB, like the libraries and scripts of a
/// start.
pub(super) fn sample(image: &Image, seed: u64) -> Vec<HotRanges> {
    const MIN_RANGE: u64 = 16 << 10;
    const STEP: u64 = 32 << 10;
    let mut random = fastrand::Rng::with_seed(seed);
    let mut hot_ranges = Vec::new();
    for (layer, bytes) in &image.layers {
        let (mut ranges, mut offset) = (Vec::new(), 0);
        let size = bytes.len() as u64;
        loop {
            let len = MIN_RANGE + STEP * random.u64(..16);
            // The gaps before and after each range are so long on average that the sample is an
            // eleventh of the layer.
            let start = offset + random.u64(..20 * len);
            if start >= size {
                break;
            }
            let end = size.min(start + len);
            ranges.push(start..end);
            offset = end;
        }
        if !ranges.is_empty() {
            hot_ranges.push(HotRanges {
                layer: *layer,
                ranges,
            });
        }
    }
    hot_ranges
}
