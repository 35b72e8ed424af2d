//! What is done for an image: its layers are indexed, merged into a table, packed, and planned for whoever has nothing.

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
use super::plan_store::request_key;
use super::unused_packs::packs_of;
use crate::pack::RecordLocation;
use crate::pack::{PackItem, PackSettings, PackedFrame, is_fast, pack};
use pierhead_bundle::api::Stage as At;
use pierhead_bundle::format::MAX_TOC;
use pierhead_bundle::{Frame, Slice};
use pierhead_toc::layer::{self, LayerIndex, Pace as _};
use pierhead_toc::{Blob, Error, FileDigest, ImageToc, Kind};

/// A layer that was indexed, and its blob.
pub(super) struct Indexed {
    pub(super) index: LayerIndex,
    pub(super) blob: Arc<dyn Blob>,
    pub(super) path: PathBuf,
}

/// Makes it ready. What was done before is not done again. Returns the layers that were packed quickly.
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
    let table = build_toc(context, manifest, &layers, share)?;
    context
        .images
        .set_progress(manifest, At::Index, total, total);
    let fast = pack_and_plan(context, manifest, &documents, &table, &layers, share)?;
    // The places of its contents are worth nothing without their packs, which are on the disk by now.
    context.directory.flush()?;
    Ok(fast)
}

/// The index of a layer; made when there is none.
fn index_layer(context: &Context, layer: &Layer, share: &mut CpuShare) -> Result<Indexed, Error> {
    let failed = |error| Error::io(format!("open {}", layer.blob), error);
    let blob = context.blobs.open(&layer.blob).map_err(failed)?;
    let blob = blob.ok_or_else(|| Error::Missing(layer.blob.to_string()))?;
    share.allow(INDEX_TIME_PER_MEBIBYTE * u32::try_from(blob.size() >> 20).unwrap_or(u32::MAX));
    let path = context.paths.layer(&layer.blob);
    if path.exists() {
        match LayerIndex::open(&path) {
            Ok(index) if index.diff_id() == layer.diff_id => {
                return Ok(Indexed { index, blob, path });
            }
            // Another image says that this blob is something else than it was found to be.
            Ok(index) => {
                count(&context.counters.diff_id_mismatches);
                return Err(Error::Digest {
                    what: format!("layer {}", layer.blob),
                    expected: layer.diff_id.to_string(),
                    found: index.diff_id().to_string(),
                });
            }
            // The index may be intact.
            Err(error) if error.is_exhausted() => return Err(error),
            Err(error) => {
                tracing::warn!(%error, "the index of a layer is made anew");
                remove(&path);
            }
        }
    }
    let request = layer::Request {
        media_type: &layer.media_type,
        diff_id: &layer.diff_id,
        limits: context.config.limits,
    };
    let indexed = layer::index(&*blob, &request, share, &path);
    if let Err(Error::Digest { found, .. }) = &indexed {
        count(&context.counters.diff_id_mismatches);
        tracing::warn!(layer = %layer.blob, says = %layer.diff_id, found, "a layer is not what its image says: it is never bundled");
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

/// Deletes what was made of an image, for all of it to be made again from its blobs.
pub(super) fn discard(context: &Context, manifest: &Digest) {
    // The first blob is the config.
    for layer in context.images.blobs(manifest).iter().skip(1) {
        remove(&context.paths.layer(layer));
    }
    remove(&context.paths.toc(manifest));
    for layers in [false, true] {
        context.plans.delete(&request_key(manifest, &[], layers));
    }
}

/// The table of an image; made when there is none.
fn build_toc(
    context: &Context,
    manifest: &Digest,
    layers: &[Indexed],
    share: &mut CpuShare,
) -> Result<ImageToc, Error> {
    let path = context.paths.toc(manifest);
    match ImageToc::open(&path) {
        Ok(table) => return Ok(table),
        Err(Error::Missing(_)) => {}
        Err(error) if error.is_exhausted() => return Err(error),
        Err(error @ Error::Io { .. }) => {
            context.tocs.report_unreadable(manifest, &error);
        }
        Err(error) => tracing::warn!(%error, "rebuilding the table of an image"),
    }
    let layers: Vec<&LayerIndex> = layers.iter().map(|layer| &layer.index).collect();
    let table = ImageToc::build_at(&layers, share)?;
    if table.bytes().len() > MAX_TOC {
        return Err(Error::Image("its table is too long".to_owned()));
    }
    table.save(&path)?;
    context.meter.wrote(table.bytes().len() as u64);
    // Reads the table again: this copy lies above the merge's memory in the heap, and the allocator could not return that.
    drop(table);
    ImageToc::open(&path)
}

/// Packs what is not packed yet, and plans for whoever has nothing.
fn pack_and_plan(
    context: &Context,
    manifest: &Digest,
    documents: &Documents,
    table: &ImageToc,
    layers: &[Indexed],
    share: &mut CpuShare,
) -> Result<Vec<Digest>, Error> {
    let keys = [false, true].map(|layers| request_key(manifest, &[], layers));
    let mut is_planned = true;
    for key in &keys {
        is_planned &= match context.plans.whole(key) {
            Ok(plan) => plan.is_some(),
            // The new plan replaces the file.
            Err(error @ Error::Io { .. }) if !error.is_exhausted() => {
                tracing::warn!(%error, "a plan cannot be read; pierhead makes it again");
                false
            }
            Err(error) => return Err(error),
        };
    }
    if is_planned {
        let is_fast = packs_of(context, manifest)?.into_iter().any(is_fast);
        let blobs = documents.layers.iter().map(|layer| layer.blob);
        return Ok(blobs.filter(|_| is_fast).collect());
    }
    let mut fast = Vec::new();
    let mut done = vec![false; widen(table.contents().len())];
    let mut places: [Vec<RecordLocation>; 2] = Default::default();
    // Indexes of packs and their last blocks take room, too.
    let mut left = context.config.pack_budget - context.config.pack_budget / 16;
    for (layer, of) in layers.iter().zip(&documents.layers) {
        for (items, places) in items(table, layer, &mut done)?.iter().zip(&mut places) {
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
            let mut pause = |bytes| share.pause(bytes);
            let packed = pack(
                items,
                &source,
                &context.packs,
                &*context.directory,
                &settings,
                &mut pause,
            )?;
            if packed.frames.iter().any(|place| is_fast(place.pack)) {
                fast.push(of.blob);
            }
            places.extend(packed.frames);
            left = left.saturating_sub(packed.packed);
        }
    }
    fast.dedup();
    let expected = expected_order(
        context,
        manifest,
        documents,
        table,
        &contents(context, &[*manifest]),
    )?;
    for (with_layers, key) in [false, true].into_iter().zip(keys) {
        let [visible, extras] = &places;
        let extras = if with_layers { &extras[..] } else { &[] };
        let mut draft = context.plans.draft(&key)?;
        let mut frames = Vec::with_capacity(visible.len() + extras.len());
        let mut sorted = Vec::with_capacity(visible.len() + extras.len());
        for place in visible.iter().chain(extras) {
            let packed = context.packs.frame(place).map_err(|error| match error {
                // It left to make room for the rest.
                Error::Missing(_) => Error::Image("it does not fit into bundle.size".into()),
                error => error,
            })?;
            let frame = frame(table, &packed)?;
            let rank = frame
                .members
                .iter()
                .map(|it| expected.rank(it.content))
                .min();
            sorted.push((rank, *place, frame));
            share.pause(0)?;
        }
        // Stable: the rest stays in the order of the layers, where it lies one after the other. Ranges of one
        // content have one rank.
        sorted.sort_by_key(|(rank, ..)| rank.unwrap_or(u32::MAX));
        for (_, place, frame) in sorted {
            draft.packed(place, &context.packs.head(&place)?);
            frames.push(frame);
        }
        let header = header(
            documents,
            table,
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

/// The contents of a layer that no layer before it has: those of the merged tree, and those that rebuilding it
/// needs besides; in the order of its tar. `done` tells of each number of the table whether it was met.
fn items(
    table: &ImageToc,
    layer: &Indexed,
    done: &mut [bool],
) -> Result<[Vec<PackItem>; 2], Error> {
    let mut items: [Vec<PackItem>; 2] = Default::default();
    // All contents of its layers are in a table.
    let mut first = |content: &FileDigest| {
        let number = table.find(content)?;
        let done = done.get_mut(widen(number))?;
        (!std::mem::replace(done, true)).then_some(number)
    };
    for entry in layer.index.entries() {
        let entry = entry?;
        if let Kind::File { content, size } = entry.kind
            && let Some(number) = first(&content)
        {
            let of = usize::from(number >= table.visible());
            items[of].push(PackItem::file(content, size, &entry.path));
        }
    }
    let (skeleton, size) = layer.index.skeleton();
    for file in layer.index.files().chain([Ok((skeleton, size))]) {
        let (content, size) = file?;
        if first(&content).is_some() {
            items[1].push(PackItem::apart(content, size));
        }
    }
    Ok(items)
}

fn widen(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

/// What is in a pack, by the numbers of a table.
pub(super) fn frame(table: &ImageToc, packed: &PackedFrame) -> Result<Frame, Error> {
    let member = |part: &crate::pack::ContentRange| {
        let number = table.find(&part.content);
        // The packing promises it; a bundle never holds what its image does not.
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
