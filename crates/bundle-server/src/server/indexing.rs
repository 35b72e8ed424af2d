//! What is done for an image: its layers are indexed, merged into a table, packed, and planned for whoever has nothing.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::counters::count;
use super::cpu_share::CpuShare;
use super::documents::{Documents, Layer};
use super::open_layers::Layers;
use super::paths::remove;
use super::plan_file::Draft;
use super::{Inner, lock};
use crate::directory::Stage;
use crate::pack::RecordLocation;
use crate::pack::{PackItem, PackSettings, PackedFrame, is_fast, pack};
use crate::plan::{Expected, Traced};
use pierhead_bundle::api::Stage as At;
use pierhead_bundle::format::MAX_TOC;
use pierhead_bundle::{Frame, Slice};
use pierhead_toc::Tree;
use pierhead_toc::layer::{self, LayerIndex, Pace as _};
use pierhead_toc::{Blob, Error, FileDigest, ImageToc, Kind};

/// The level of zstd for headers that are made in the background.
pub(super) const HEADER_LEVEL: i32 = 15;

/// Versions before an image whose traces are looked for.
const TRACED: usize = 20;

/// CPU time that making an image ready may take: [`TIME`], and [`TIME_PER_MEBIBYTE`] for each MiB of its compressed layers. Indexing and
/// packing take 0.05 s of an x86 core for a MiB (`redis:7.0.15-u10`: 1.5 s for 33 MB), and about 0.2 s of a DPU's core: ten times that is
/// left for layers that compress well. No ordinary image comes near it, however large it is.
const TIME: Duration = Duration::from_secs(60);
const TIME_PER_MEBIBYTE: Duration = Duration::from_secs(2);

/// A layer that was indexed, and its blob.
pub(super) struct Indexed {
    pub(super) index: LayerIndex,
    pub(super) blob: Arc<dyn Blob>,
    pub(super) path: PathBuf,
}

impl Inner {
    /// Makes it ready. What was done before is not done again. Returns the layers that were packed quickly.
    pub(super) fn image(
        &self,
        manifest: &pierhead_oci::Digest,
        share: &mut CpuShare,
    ) -> Result<Vec<pierhead_oci::Digest>, Error> {
        share.allow(TIME);
        let documents = Documents::read(&*self.blobs, manifest)?;
        if let Some(row) = lock(&self.images).get_mut(manifest) {
            row.row.blobs = documents.blobs();
        }
        let total = u64::try_from(documents.layers.len()).unwrap_or(u64::MAX);
        let mut layers = Vec::with_capacity(documents.layers.len());
        for (nth, layer) in (0..).zip(&documents.layers) {
            self.progress(manifest, At::Index, nth, total);
            layers.push(self.layer(layer, share)?);
        }
        let table = self.table(manifest, &layers, share)?;
        self.progress(manifest, At::Index, total, total);
        let fast = self.fresh(manifest, &documents, &table, &layers, share)?;
        // The places of its contents are worth nothing without their packs, which are on the disk by now.
        self.directory.flush()?;
        Ok(fast)
    }

    /// The index of a layer; made when there is none.
    fn layer(&self, layer: &Layer, share: &mut CpuShare) -> Result<Indexed, Error> {
        let failed = |error| Error::io(format!("open {}", layer.blob), error);
        let blob = self.blobs.open(&layer.blob).map_err(failed)?;
        let blob = blob.ok_or_else(|| Error::Missing(layer.blob.to_string()))?;
        share.allow(TIME_PER_MEBIBYTE * u32::try_from(blob.size() >> 20).unwrap_or(u32::MAX));
        let path = self.paths.layer(&layer.blob);
        if path.exists() {
            match LayerIndex::open(&path) {
                Ok(index) if index.diff_id() == layer.diff_id => {
                    return Ok(Indexed { index, blob, path });
                }
                // Another image says that this blob is something else than it was found to be.
                Ok(index) => {
                    count(&self.counters.diff_id_mismatches);
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
            limits: self.config.limits,
        };
        let indexed = layer::index(&*blob, &request, share, &path);
        if let Err(Error::Digest { found, .. }) = &indexed {
            count(&self.counters.diff_id_mismatches);
            tracing::warn!(layer = %layer.blob, says = %layer.diff_id, found, "a layer is not what its image says: it is never bundled");
        }
        let index = indexed?;
        count(&self.counters.indexed_layers);
        let bytes = &self.counters.indexed_bytes;
        bytes.fetch_add(blob.size(), std::sync::atomic::Ordering::Relaxed);
        self.meter
            .wrote(std::fs::metadata(&path).map_or(0, |meta| meta.len()));
        Ok(Indexed { index, blob, path })
    }

    /// Deletes what was made of an image, for all of it to be made again from its blobs.
    pub(super) fn discard(&self, manifest: &pierhead_oci::Digest) {
        let blobs = {
            let images = lock(&self.images);
            images.get(manifest).map(|row| row.row.blobs.clone())
        };
        // The first is the config.
        for layer in blobs.unwrap_or_default().iter().skip(1) {
            remove(&self.paths.layer(layer));
        }
        remove(&self.paths.table(manifest));
        for layers in [false, true] {
            self.forget(&super::plan_store::key(manifest, &[], layers));
        }
    }

    /// The table of an image; made when there is none.
    fn table(
        &self,
        manifest: &pierhead_oci::Digest,
        layers: &[Indexed],
        share: &mut CpuShare,
    ) -> Result<ImageToc, Error> {
        let path = self.paths.table(manifest);
        match ImageToc::open(&path) {
            Ok(table) => return Ok(table),
            Err(Error::Missing(_)) => {}
            Err(error) if error.is_exhausted() => return Err(error),
            Err(error @ Error::Io { .. }) => {
                self.tables.report_unreadable(manifest, &error);
            }
            Err(error) => tracing::warn!(%error, "rebuilding the table of an image"),
        }
        let layers: Vec<&LayerIndex> = layers.iter().map(|layer| &layer.index).collect();
        let table = ImageToc::build_at(&layers, share)?;
        if table.bytes().len() > MAX_TOC {
            return Err(Error::Image("its table is too long".to_owned()));
        }
        table.save(&path)?;
        self.meter.wrote(table.bytes().len() as u64);
        // Reads the table again: this copy lies above the merge's memory in the heap, and the allocator could not return that.
        drop(table);
        ImageToc::open(&path)
    }

    /// Packs what is not packed yet, and plans for whoever has nothing.
    fn fresh(
        &self,
        manifest: &pierhead_oci::Digest,
        documents: &Documents,
        table: &ImageToc,
        layers: &[Indexed],
        share: &mut CpuShare,
    ) -> Result<Vec<pierhead_oci::Digest>, Error> {
        let keys = [false, true].map(|layers| super::plan_store::key(manifest, &[], layers));
        if keys.iter().all(|key| self.is_whole(key)) {
            let is_fast = self.packs_of(manifest).into_iter().any(is_fast);
            let blobs = documents.layers.iter().map(|layer| layer.blob);
            return Ok(blobs.filter(|_| is_fast).collect());
        }
        let mut fast = Vec::new();
        let mut done = vec![false; widen(table.contents().len())];
        let mut places: [Vec<RecordLocation>; 2] = Default::default();
        // Indexes of packs and their last blocks take room, too.
        let mut left = self.config.pack_budget - self.config.pack_budget / 16;
        for (layer, of) in layers.iter().zip(&documents.layers) {
            for (items, places) in items(table, layer, &mut done)?.iter().zip(&mut places) {
                let mut source = Layers::default();
                source.push(&layer.index, layer.path.clone(), layer.blob.clone());
                let is_last = self.config.fast_level >= self.config.optimized_level;
                let settings = PackSettings {
                    level: self.config.fast_level.min(self.config.optimized_level),
                    fast: !is_last,
                    most: left,
                    ..PackSettings::default()
                };
                let mut pause = |bytes| share.pause(bytes);
                let packed = pack(
                    items,
                    &source,
                    &self.packs,
                    &*self.directory,
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
        let expected = self.expected(manifest, documents, table, &self.contents(&[*manifest]))?;
        for (with_layers, key) in [false, true].into_iter().zip(keys) {
            let [visible, extras] = &places;
            let extras = if with_layers { &extras[..] } else { &[] };
            let mut draft = Draft::begin(&self.paths.plan(&key))?;
            let mut frames = Vec::with_capacity(visible.len() + extras.len());
            let mut sorted = Vec::with_capacity(visible.len() + extras.len());
            for place in visible.iter().chain(extras) {
                let packed = self.packs.frame(place).map_err(|error| match error {
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
                draft.packed(place, &self.packs.head(&place)?);
                frames.push(frame);
            }
            let header = super::planner::header(
                documents,
                table,
                &[],
                &frames,
                (with_layers, draft.bytes()),
                HEADER_LEVEL,
            )?;
            let (prelude, body) = header.encode(HEADER_LEVEL)?;
            self.finish(&key, draft, &prelude, &body)?;
        }
        Ok(fast)
    }

    /// The order in which an image's contents are expected to be used, by traces of it or of the versions before it.
    pub(super) fn expected(
        &self,
        manifest: &pierhead_oci::Digest,
        documents: &Documents,
        table: &ImageToc,
        source: &dyn pierhead_toc::Source,
    ) -> Result<Expected, Error> {
        let tree = Tree::of(pierhead_toc::TocView::mounted(table))?;
        let mut traced = Vec::new();
        if let Some((image, files)) = self.traced_for(manifest)? {
            let its_own = self.base_table(&image)?;
            let old = its_own
                .as_ref()
                .map(|it| Tree::of(pierhead_toc::TocView::mounted(it)));
            let old = old.and_then(Result::ok);
            let files = files.into_iter().map(|path| Traced {
                content: old.as_ref().and_then(|tree| {
                    let number = tree.file(path.as_bytes())?;
                    Some(tree.content(number)?.0)
                }),
                path: path.into_bytes(),
            });
            traced.extend(files);
        }
        Expected::of(&tree, &traced, &documents.start, source)
    }

    /// The trace for starts of an image, with the image that was started: its own trace, else that of the latest other
    /// version with one.
    pub(super) fn traced_for(
        &self,
        manifest: &pierhead_oci::Digest,
    ) -> Result<Option<(pierhead_oci::Digest, Vec<String>)>, Error> {
        let mut of = vec![*manifest];
        {
            let images = lock(&self.images);
            if let Some(new) = images.get(manifest) {
                let mut older: Vec<_> = images
                    .iter()
                    .filter(|(_, row)| row.row.repository == new.row.repository)
                    .filter(|(_, row)| row.row.stage.is_ready())
                    .map(|(digest, row)| (std::cmp::Reverse(row.row.came), *digest))
                    .collect();
                older.sort();
                of.extend(older.into_iter().map(|(_, digest)| digest).take(TRACED));
            }
        }
        for image in of {
            if let Some(files) = self.traced(&image)? {
                return Ok(Some((image, files)));
            }
        }
        Ok(None)
    }

    /// Makes the patches from one image to another.
    pub(super) fn prepare(
        &self,
        new: &pierhead_oci::Digest,
        old: &pierhead_oci::Digest,
        share: &mut CpuShare,
    ) -> Result<(), Error> {
        let is_ready = |digest| {
            let images = lock(&self.images);
            images
                .get(digest)
                .is_some_and(|row| row.row.stage.is_ready())
        };
        // Forgotten since it was queued.
        if !is_ready(new) || !is_ready(old) {
            return Ok(());
        }
        self.prepare_pair(new, old, share)
    }

    /// Forgets what nobody needs, and keeps the bounds.
    pub(super) fn maintain(&self, share: &mut CpuShare) -> Result<(), Error> {
        self.packs.maintain();
        self.close_layers();
        let is_here =
            |digest: &pierhead_oci::Digest| matches!(self.blobs.open(digest), Ok(Some(_)) | Err(_));
        let ready: Vec<_> = lock(&self.images)
            .iter()
            .filter(|(_, row)| row.row.stage.is_ready())
            .map(|(manifest, row)| (*manifest, row.row.blobs.first().copied()))
            .collect();
        for (manifest, config) in ready {
            share.pause(0)?;
            if !is_here(&manifest) || !config.is_none_or(|config| is_here(&config)) {
                for layers in [false, true] {
                    let key = super::plan_store::key(&manifest, &[], layers);
                    self.forget(&key);
                }
                self.settle(&manifest, None)?;
            }
        }
        let known: HashSet<_> = lock(&self.images).keys().copied().collect();
        self.paths
            .retain(|digest| known.contains(digest) || self.is_ending() || is_here(digest))?;
        share.pause(0)?;
        self.expire_superseded()?;
        self.shrink_plans(self.config.plan_budget)?;
        self.give_up()?;
        self.drop_late()?;
        // What had no room, or failed for another passing reason, is looked at again.
        {
            let images = lock(&self.images);
            let is_fast = |row: &super::Row| matches!(row.row.stage, Stage::Fast(_));
            let fast: Vec<_> = images
                .iter()
                .filter(|(_, row)| is_fast(row))
                .map(|(it, _)| *it)
                .collect();
            drop(images);
            let mut queue = lock(&self.queue);
            fast.into_iter()
                .for_each(|manifest| queue.optimize(manifest));
        }
        let packs = &self.packs;
        let evicted = packs.stat().evicted;
        // A walk over all that is packed.
        if self
            .tidied
            .swap(evicted, std::sync::atomic::Ordering::Relaxed)
            == evicted
        {
            return self.directory.flush();
        }
        // Without a rest: the directory is locked meanwhile.
        self.directory.retain_places(|places| {
            self.is_ending() || places.iter().all(|place| packs.contains(place))
        })?;
        self.directory.flush()
    }

    fn is_ending(&self) -> bool {
        self.stop.load(std::sync::atomic::Ordering::Relaxed)
    }
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
