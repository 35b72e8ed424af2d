//! Makes an image ready for bundles: indexes its layers, merges them into a TOC (table of
//! contents), packs its file contents, and makes its fresh plan (the bundle plan for workers
//! without base images).

use std::path::PathBuf;
use std::sync::Arc;

use pierhead_oci::Digest;

use super::bundle_header::{HEADER_LEVEL, header};
use super::config::INDEX_TIME_PER_MEBIBYTE;
use super::context::Context;
use super::counters::count;
use super::cpu_share::CpuShare;
use super::documents::{Documents, Layer};
use super::expected_order::expected_order;
use super::image_sources::contents;
use super::open_layers::OpenLayers;
use super::paths::remove;
use super::plan_store::fresh_plan_keys;
use super::unused_packs::packs_of;
use crate::Error;
use crate::pack::RecordLocation;
use crate::pack::{PackItem, PackSettings, PackedFrame, is_fast, pack};
use pierhead_bundle::api::Stage as At;
use pierhead_bundle::format::MAX_TOC;
use pierhead_bundle::{Frame, Slice};
use pierhead_toc::layer::{self, LayerIndex, Pace as _};
use pierhead_toc::{Blob, FileDigest, ImageToc, Kind};

/// The index of a layer, and the blob of the layer.
pub(super) struct Indexed {
    pub(super) index: LayerIndex,
    pub(super) blob: Arc<dyn Blob>,
    pub(super) path: PathBuf,
}

/// Makes an image ready for bundles, but skips the steps that an earlier attempt has completed.
/// Returns the layers with fast frames, which wait for optimization.
pub(super) fn index_image(
    context: &Context,
    manifest: &Digest,
    share: &mut CpuShare,
) -> Result<Vec<Digest>, Error> {
    share.allow(context.config.index_time);
    let documents = Documents::read(&*context.blobs, manifest)?;
    context.images.set_blobs(manifest, documents.blobs());
    let total = u64::try_from(documents.layers.len()).unwrap_or(u64::MAX);
    let mut layers = Vec::with_capacity(documents.layers.len());
    for (nth, layer) in (0..).zip(&documents.layers) {
        context.images.set_progress(manifest, At::Index, nth, total);
        layers.push(index_layer(context, layer, share)?);
    }
    let toc = build_toc(context, manifest, &layers, share)?;
    context
        .images
        .set_progress(manifest, At::Index, total, total);
    let fast = pack_and_plan(context, manifest, &documents, &toc, &layers, share)?;
    // The packs are durable by now. The locations of contents may become durable only after the
    // packs that they name.
    context.image_database.flush()?;
    Ok(fast)
}

/// Opens the index of a layer, or makes the index from the blob.
fn index_layer(context: &Context, layer: &Layer, share: &mut CpuShare) -> Result<Indexed, Error> {
    let failed = |error| Error::io(format!("open {}", layer.blob), error);
    let blob = context.blobs.open(&layer.blob).map_err(failed)?;
    let blob = blob.ok_or_else(|| Error::Missing(layer.blob.to_string()))?;
    share.allow(INDEX_TIME_PER_MEBIBYTE * u32::try_from(blob.size() >> 20).unwrap_or(u32::MAX));
    let path = context.paths.layer(&layer.blob);
    if path.exists() {
        match LayerIndex::open(&path).map_err(Error::from) {
            Ok(index) if index.diff_id() == layer.diff_id => {
                return Ok(Indexed { index, blob, path });
            }
            // The existing index has another diff ID: it was made for another image, which names
            // the same blob with that diff ID.
            Ok(index) => {
                count(&context.counters.diff_id_mismatches);
                return Err(Error::Digest {
                    what: format!("layer {}", layer.blob),
                    expected: layer.diff_id.to_string(),
                    found: index.diff_id().to_string(),
                });
            }
            // File descriptors or memory are used up. The index may be intact, so it is not
            // deleted.
            Err(error) if error.is_exhausted() => return Err(error),
            Err(error) => {
                tracing::warn!(%error, "the index of a layer is unusable; pierhead makes it again");
                remove(&path);
            }
        }
    }
    let request = layer::Request {
        media_type: &layer.media_type,
        diff_id: &layer.diff_id,
        limits: context.config.limits,
    };
    let indexed = layer::index(&*blob, &request, share, &path).map_err(Error::from);
    if let Err(Error::Digest { found, .. }) = &indexed {
        count(&context.counters.diff_id_mismatches);
        tracing::warn!(layer = %layer.blob, expected = %layer.diff_id, found, "diff-ID mismatch: pierhead makes no bundles of this image");
    }
    let index = indexed?;
    count(&context.counters.indexed_layers);
    let bytes = &context.counters.indexed_bytes;
    bytes.fetch_add(blob.size(), std::sync::atomic::Ordering::Relaxed);
    context
        .meter
        .wrote(std::fs::metadata(&path).map_or(0, |meta| meta.len()));
    Ok(Indexed { index, blob, path })
}

/// Deletes the indexes, the TOC and the fresh plans of an image, so that indexing makes them again.
pub(super) fn discard(context: &Context, manifest: &Digest) {
    // Skips the first blob, which is the config of the image.
    for layer in context.images.blobs(manifest).iter().skip(1) {
        remove(&context.paths.layer(layer));
    }
    remove(&context.paths.toc(manifest));
    for key in fresh_plan_keys(manifest) {
        context.plans.delete(&key);
    }
}

/// Opens the TOC of an image, or makes the TOC from the indexes of the image's layers.
fn build_toc(
    context: &Context,
    manifest: &Digest,
    layers: &[Indexed],
    share: &mut CpuShare,
) -> Result<ImageToc, Error> {
    let path = context.paths.toc(manifest);
    match ImageToc::open(&path).map_err(Error::from) {
        Ok(toc) => return Ok(toc),
        Err(Error::Missing(_)) => {}
        Err(error) if error.is_exhausted() => return Err(error),
        Err(error @ Error::Io { .. }) => {
            context.tocs.report_unreadable(manifest, &error);
        }
        Err(error) => {
            tracing::warn!(%error, "the TOC of an image is damaged; pierhead rebuilds it")
        }
    }
    let layers: Vec<&LayerIndex> = layers.iter().map(|layer| &layer.index).collect();
    let toc = ImageToc::build_paced(&layers, share)?;
    if toc.bytes().len() > MAX_TOC {
        return Err(Error::Image("its TOC is too long".to_owned()));
    }
    toc.save(&path)?;
    context.meter.wrote(toc.bytes().len() as u64);
    // Drops the TOC and reads it again from its file. The merge of the layers left its TOC in the
    // heap, above the memory that the merge used. While that TOC exists, the allocator cannot
    // return the memory below that TOC.
    drop(toc);
    Ok(ImageToc::open(&path)?)
}

/// Packs the contents that are not packed yet, and makes the fresh plans: the plans for workers
/// without base images.
fn pack_and_plan(
    context: &Context,
    manifest: &Digest,
    documents: &Documents,
    toc: &ImageToc,
    layers: &[Indexed],
    share: &mut CpuShare,
) -> Result<Vec<Digest>, Error> {
    let keys = fresh_plan_keys(manifest);
    let mut is_planned = true;
    for key in &keys {
        is_planned &= context.plans.whole(key)?.is_some();
    }
    if is_planned {
        let is_fast = packs_of(context, manifest)?.into_iter().any(is_fast);
        let blobs = documents.layers.iter().map(|layer| layer.blob);
        return Ok(blobs.filter(|_| is_fast).collect());
    }
    let mut fast = Vec::new();
    let mut done = vec![false; widen(toc.contents().len())];
    let mut locations: [Vec<RecordLocation>; 2] = Default::default();
    // A part of the budget is kept for pack indexes and partly filled last blocks, which also take
    // disk space.
    let mut left = context.config.pack_budget - context.config.pack_budget / 16;
    for (layer, of) in layers.iter().zip(&documents.layers) {
        for (items, locations) in items(toc, layer, &mut done)?.iter().zip(&mut locations) {
            let mut source = OpenLayers::default();
            source.push(&layer.index, layer.path.clone(), layer.blob.clone());
            let is_last = context.config.fast_level >= context.config.optimized_level;
            let settings = PackSettings {
                level: context
                    .config
                    .fast_level
                    .min(context.config.optimized_level),
                fast: !is_last,
                most: left,
                ..PackSettings::default()
            };
            let mut pause = |bytes| Ok(share.pause(bytes)?);
            let packed = pack(
                items,
                &source,
                &context.packs,
                &*context.image_database,
                &settings,
                &mut pause,
            )?;
            if packed.frames.iter().any(|location| is_fast(location.pack)) {
                fast.push(of.blob);
            }
            locations.extend(packed.frames);
            left = left.saturating_sub(packed.packed);
        }
    }
    fast.dedup();
    let expected = expected_order(
        context,
        manifest,
        documents,
        toc,
        &contents(context, &[*manifest]),
    )?;
    for (with_layers, key) in [false, true].into_iter().zip(keys) {
        let [visible, extras] = &locations;
        let extras = if with_layers { &extras[..] } else { &[] };
        let mut draft = context.plans.draft(&key)?;
        let mut frames = Vec::with_capacity(visible.len() + extras.len());
        let mut sorted = Vec::with_capacity(visible.len() + extras.len());
        for location in visible.iter().chain(extras) {
            let packed = context.packs.frame(location).map_err(|error| match error {
                // A pack of this image was evicted to make room for other packs of the same image,
                // so the image does not fit.
                Error::Missing(_) => Error::Image("it does not fit into bundle.size".into()),
                error => error,
            })?;
            let frame = frame(toc, &packed)?;
            let rank = frame
                .members
                .iter()
                .map(|it| expected.rank(it.content))
                .min();
            sorted.push((rank, *location, frame));
            share.pause(0)?;
        }
        // This sort is stable: frames of equal rank stay in the order of the packs. Ranges of one
        // content have the same rank.
        sorted.sort_by_key(|(rank, ..)| rank.unwrap_or(u32::MAX));
        for (_, location, frame) in sorted {
            draft.packed_record(location, &context.packs.head(&location)?);
            frames.push(frame);
        }
        let header = header(
            documents,
            toc,
            &[],
            &frames,
            (with_layers, draft.bytes()),
            HEADER_LEVEL,
        )?;
        let (prelude, body) = header.encode(HEADER_LEVEL)?;
        context.plans.finish(&key, draft, &prelude, &body)?;
    }
    Ok(fast)
}

/// Returns the contents of a layer that no earlier layer has, in the order of the tar: first the
/// contents that the merged tree has, and then the contents that a worker needs only to rebuild the
/// layer. `done` has a flag for each content of the TOC, set when a layer has the content.
fn items(toc: &ImageToc, layer: &Indexed, done: &mut [bool]) -> Result<[Vec<PackItem>; 2], Error> {
    let mut items: [Vec<PackItem>; 2] = Default::default();
    // The TOC has all contents of its layers, so the lookup finds each of them.
    let mut first = |content: &FileDigest| {
        let number = toc.find(content)?;
        let done = done.get_mut(widen(number))?;
        (!std::mem::replace(done, true)).then_some(number)
    };
    for entry in layer.index.entries() {
        let entry = entry?;
        if let Kind::File { content, size } = entry.kind
            && let Some(number) = first(&content)
        {
            let of = usize::from(number >= toc.visible());
            items[of].push(PackItem::file(content, size, &entry.path));
        }
    }
    let (skeleton, size) = layer.index.skeleton();
    for file in layer.index.files().chain([Ok((skeleton, size))]) {
        let (content, size) = file?;
        if first(&content).is_some() {
            items[1].push(PackItem::in_own_frame(content, size));
        }
    }
    Ok(items)
}

fn widen(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

/// Converts a packed frame to a frame of a bundle, with the content numbers of this TOC.
pub(super) fn frame(toc: &ImageToc, packed: &PackedFrame) -> Result<Frame, Error> {
    let member = |part: &crate::pack::ContentRange| {
        let number = toc.find(&part.content);
        // A bundle never contains contents of another image. Packing ensures this, so a content
        // that the TOC lacks is an error.
        let content = number.ok_or_else(|| Error::Missing(part.content.to_string()))?;
        Ok::<_, Error>(Slice {
            content,
            offset: part.offset,
            len: part.len,
        })
    };
    Ok(Frame {
        members: packed
            .members
            .iter()
            .map(member)
            .collect::<Result<_, _>>()?,
        bases: Vec::new(),
        coding: packed.coding,
    })
}
