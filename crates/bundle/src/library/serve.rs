//! What is handed out: plans that are there, plans that are made when they are asked for, single contents.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::SystemTime;

use pierhead_oci::Digest;
use sha2::{Digest as _, Sha256};

use super::documents::Documents;
use super::figures::count;
use super::files::OfImage;
use super::kept::{Draft, Kept, Lies};
use super::layers::Layers;
use super::pairs;
use super::{Bundle, Have, Inner, Library, Stream, lock};
use crate::directory::Stage;
use crate::format::{Frames, Had, Header, Known, Prelude, Sizes, WireTable};
use crate::layer::LayerIndex;
use crate::pack::Contents;
use crate::table;
use crate::{Content, Error, Frame, Table};

/// The level of zstd for headers that somebody waits for.
const QUICK: i32 = 3;
/// Plans that are held open.
const OPEN: usize = 32;
/// Decoded frames that are kept while patches are made.
const RECENT: usize = 8 << 20;
/// Of what a plan says; another one makes other plans.
pub(super) const VERSION: &str = "1";

/// An image of the request, with its table when it is known.
pub(super) struct Base {
    pub(super) have: Have,
    pub(super) table: Option<Table>,
}

impl Base {
    /// How many of its contents, from the first on, the worker has.
    pub(super) fn contents(&self) -> u32 {
        match &self.table {
            None => 0,
            Some(table) if self.have.has_layers => table.contents().len(),
            Some(table) => table.visible(),
        }
    }
}

impl Library {
    /// Plans a bundle, or finds the plan that was made before. At most a few at a time: each reads tables.
    ///
    /// # Errors
    /// [`Error::Missing`] when the image is not ready (any more); `Io`.
    pub fn bundle(&self, want: &Digest, have: &[Have], layers: bool) -> Result<Bundle, Error> {
        let inner = &self.inner;
        // One at a time: what others wait for is most often this.
        let _planning = lock(&inner.planning);
        if let Some(found) = self.planned(want, have, layers)? {
            return Ok(found);
        }
        let kept = inner
            .plan(want, &known(have), layers)
            .inspect_err(|error| {
                if matches!(error, Error::Missing(_)) {
                    let _ = inner.again(want);
                }
            })?;
        let packs = inner.packs.clone();
        Ok(Bundle { kept, packs })
    }

    /// The bundle, if it was planned before: cheap.
    ///
    /// # Errors
    /// `Io`.
    pub fn planned(
        &self,
        want: &Digest,
        have: &[Have],
        layers: bool,
    ) -> Result<Option<Bundle>, Error> {
        let inner = &self.inner;
        let Some(key) = inner.key(want, &known(have), layers)? else {
            return Ok(None);
        };
        // Packs may have left since: for better ones, or for want of room.
        let Some(kept) = inner.whole(&key)? else {
            return Ok(None);
        };
        count(&inner.figures.plan_hits);
        let packs = inner.packs.clone();
        Ok(Some(Bundle { kept, packs }))
    }

    /// One content of an image; `None` when the image has none of that name.
    ///
    /// # Errors
    /// [`Error::Missing`] when the image is not ready (any more), or its layers are gone; `Io`.
    pub fn file(&self, image: &Digest, content: &Content) -> Result<Option<Stream>, Error> {
        let inner = &self.inner;
        let table = inner.made_table(image)?;
        let Some(number) = table.find(content) else {
            return Ok(None);
        };
        let size = table.contents().size(number).unwrap_or(0);
        let source = OfImage {
            inner: Arc::downgrade(inner),
            image: *image,
        };
        Ok(Some(Stream::of_file(Arc::new(source), *content, size)))
    }

    /// Notes what a start of an image opened, in order; files that the image does not have are left out.
    ///
    /// # Errors
    /// [`Error::Missing`] when the image is not ready; `Io`.
    pub fn trace(&self, image: &Digest, files: &[String]) -> Result<(), Error> {
        let inner = &self.inner;
        if self.blobs(image).is_none() {
            return Err(Error::Missing(image.to_string()));
        }
        let is_clean = |path: &&String| path.len() <= 4096 && !path.is_empty();
        let files: Vec<_> = files.iter().filter(is_clean).cloned().collect();
        // What is known already changes nothing: bundles that are under way go on as they are.
        if inner.directory.trace(image)?.as_ref() == Some(&files) {
            return Ok(());
        }
        inner.directory.put_trace(image, &files)?;
        inner.directory.flush()?;
        lock(&inner.queue).order(*image);
        inner.wake.notify_all();
        Ok(())
    }
}

impl Inner {
    /// A plan that was made before. One that is damaged is deleted.
    pub(super) fn open(&self, key: &Content) -> Result<Option<Arc<Kept>>, Error> {
        {
            let mut kept = lock(&self.kept);
            if let Some(at) = kept.iter().position(|(of, _)| of == key) {
                let found = kept.remove(at);
                let plan = found.1.clone();
                kept.push(found);
                drop(kept);
                // The order in which plans leave. One that is not told leaves early.
                let _ = plan.file.set_modified(SystemTime::now());
                return Ok(Some(plan));
            }
        }
        let path = self.shelf.plan(key);
        match Kept::open(&path) {
            Ok(plan) => {
                let _ = plan.file.set_modified(SystemTime::now());
                Ok(Some(self.hold(key, plan)))
            }
            Err(Error::Missing(_)) => Ok(None),
            Err(error @ Error::Malformed { .. }) => {
                tracing::warn!(%error, "a plan is made anew");
                self.shelf.remove_plan(key);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    pub(super) fn hold(&self, key: &Content, plan: Kept) -> Arc<Kept> {
        let plan = Arc::new(plan);
        let mut kept = lock(&self.kept);
        kept.retain(|(of, _)| of != key);
        if kept.len() >= OPEN {
            kept.remove(0);
        }
        kept.push((*key, plan.clone()));
        let mut alive = lock(&self.alive);
        alive.retain(|plan| plan.strong_count() > 0);
        alive.push(Arc::downgrade(&plan));
        plan
    }

    /// Puts a plan in its place, and others away if there are too many bytes of them now.
    pub(super) fn finish(
        &self,
        key: &Content,
        draft: Draft,
        prelude: &Prelude,
        body: &[u8],
    ) -> Result<Arc<Kept>, Error> {
        let plan = draft.finish(prelude, body)?;
        let len = plan.file.metadata().map_or(0, |meta| meta.len());
        let plan = self.hold(key, plan);
        let before = self.plans.fetch_add(len, Ordering::Relaxed);
        if before.saturating_add(len) > self.config.plans {
            // To less than the most, so that not each plan from here on has them all looked through.
            self.shrink_plans(self.config.plans / 8 * 7)?;
        }
        Ok(plan)
    }

    /// Deletes plans until they take `most` bytes, those that are held open too.
    pub(super) fn shrink_plans(&self, most: u64) -> Result<(), Error> {
        let left = self.shelf.shrink_plans(most)?;
        self.plans.store(left, Ordering::Relaxed);
        lock(&self.kept).retain(|(key, _)| self.shelf.plan(key).exists());
        Ok(())
    }

    /// Names the plan of a request, by what it is made of: once there is something better it has another name.
    /// `None` when that is not there yet.
    fn key(&self, want: &Digest, have: &[Have], layers: bool) -> Result<Option<Content>, Error> {
        let request = key(want, have, layers);
        if have.is_empty() {
            return Ok(Some(request));
        }
        for have in have {
            if let Some(pair) = self.pair(want, &have.manifest, layers)? {
                return Ok(Some(derived(&request, &pair)));
            }
        }
        let fresh = self.open(&self::key(want, &[], layers))?;
        Ok(fresh.map(|fresh| derived(&request, &fresh)))
    }

    /// The best patches from one image to another that there are.
    fn pair(&self, want: &Digest, have: &Digest, layers: bool) -> Result<Option<Arc<Kept>>, Error> {
        match self.open(&pairs::idle(want, have))? {
            None => self.open(&pairs::quick(want, have, layers)),
            found => Ok(found),
        }
    }

    /// A plan of which all packs are still here. Another one is deleted.
    fn whole(&self, key: &Content) -> Result<Option<Arc<Kept>>, Error> {
        let plan = self.open(key)?;
        if plan.as_ref().is_some_and(|plan| !self.is_sound(plan)) {
            self.forget(key);
            return Ok(None);
        }
        Ok(plan)
    }

    /// Whether a plan is there and all packs that it names are, too.
    pub(super) fn is_whole(&self, key: &Content) -> bool {
        matches!(self.whole(key), Ok(Some(_)))
    }

    pub(super) fn is_sound(&self, plan: &Kept) -> bool {
        let is_here = |nth| match plan.record(nth) {
            Some(Lies::Packed(place)) => self.packs.contains(&place),
            found => found.is_some(),
        };
        let frames = u32::try_from(plan.records.len() / super::kept::ENTRY).unwrap_or(0);
        (0..frames).all(is_here)
    }

    /// Has an image that was ready made ready once more.
    pub(super) fn again(&self, manifest: &Digest) -> Result<(), Error> {
        for layers in [false, true] {
            self.forget(&key(manifest, &[], layers));
        }
        {
            let mut images = lock(&self.images);
            let Some(row) = images.get_mut(manifest) else {
                return Ok(());
            };
            if !row.row.stage.is_ready() {
                return Ok(());
            }
            row.row.stage = Stage::Waiting;
        }
        lock(&self.queue).image(*manifest);
        self.wake.notify_all();
        Ok(())
    }

    /// Deletes a plan.
    pub(super) fn forget(&self, key: &Content) {
        lock(&self.kept).retain(|(of, _)| of != key);
        self.shelf.remove_plan(key);
    }

    /// Makes the plan of a request from what was prepared: for this pair of images, else for whoever has nothing.
    fn plan(&self, want: &Digest, have: &[Have], layers: bool) -> Result<Arc<Kept>, Error> {
        count(&self.figures.plans);
        let table = self.made_table(want)?;
        let mut bases = Vec::with_capacity(have.len());
        for have in have {
            let mut have = *have;
            let opened = have.is_known.then(|| self.made_table(&have.manifest));
            let table = opened.and_then(Result::ok);
            have.is_known = table.is_some();
            bases.push(Base { have, table });
        }
        let documents = Documents::read(&*self.blobs, want)?;
        let (prepared, at) = self.prepared(want, &bases, layers)?;
        let prepared = prepared.ok_or_else(|| Error::Missing(format!("the plan of {want}")))?;
        if !self.is_sound(&prepared) {
            return Err(Error::Missing(format!("a part of {want}")));
        }
        let needed = needed(&table, &bases, layers);
        let key = match have {
            [] => key(want, have, layers),
            _ => derived(&key(want, have, layers), &prepared),
        };
        let mut draft = Draft::begin(&self.shelf.plan(&key))?;
        let mut frames = match at {
            Some(at) => self.choose(&prepared, at, &table, &bases, &needed, &mut draft)?,
            None => self.chunked(&prepared, want, &table, &bases, &needed, &mut draft)?,
        };
        if !covers(&frames, &needed) {
            // It counts on more than this worker has.
            let fresh = self
                .open(&self::key(want, &[], layers))?
                .filter(|plan| self.is_sound(plan));
            let fresh = fresh.ok_or_else(|| Error::Missing(format!("the plan of {want}")))?;
            drop(draft);
            draft = Draft::begin(&self.shelf.plan(&key))?;
            frames = self.chunked(&fresh, want, &table, &bases, &needed, &mut draft)?;
        }
        let header = self::header(
            &documents,
            &table,
            &bases,
            &frames,
            (layers, draft.bytes()),
            QUICK,
        )?;
        let (prelude, body) = header.encode(QUICK)?;
        self.finish(&key, draft, &prelude, &body)
    }

    /// The frames of what was prepared against one of the images that hold anything that is needed; their records go into the draft.
    fn choose(
        &self,
        prepared: &Kept,
        at: u16,
        table: &Table,
        bases: &[Base],
        needed: &[bool],
        draft: &mut Draft,
    ) -> Result<Vec<Frame>, Error> {
        let header = prepared.header()?;
        let of = bases.get(usize::from(at));
        let sizes = Tables {
            want: table,
            // What was prepared knows one image at most.
            haves: of.map_or(&[][..], std::slice::from_ref),
        };
        let mut frames = Vec::new();
        for (nth, frame) in (0..).zip(header.frames.cursor(&sizes)?) {
            let mut frame = frame?;
            if !frame
                .members
                .iter()
                .any(|member| is_set(needed, member.content))
            {
                continue;
            }
            let has_base =
                |base: &crate::Base| of.is_some_and(|of| base.slice.content < of.contents());
            if !frame.bases.iter().all(has_base) {
                continue;
            }
            for base in &mut frame.bases {
                base.have = at;
            }
            match prepared.record(nth) {
                Some(Lies::Packed(place)) => draft.packed(place),
                Some(Lies::Here { offset, len }) => draft.record(&prepared.read(offset, len)?)?,
                _ => draft.nowhere(),
            }
            frames.push(frame);
        }
        Ok(frames)
    }

    /// The best that was prepared, and which of the images that the worker has it is made against.
    fn prepared(
        &self,
        want: &Digest,
        bases: &[Base],
        layers: bool,
    ) -> Result<(Option<Arc<Kept>>, Option<u16>), Error> {
        for (at, base) in (0..).zip(bases) {
            if base.table.is_none() {
                continue;
            }
            if let Some(plan) = self.pair(want, &base.have.manifest, layers)? {
                return Ok((Some(plan), Some(at)));
            }
        }
        // What the worker says first is the most like what it wants.
        let known = (0..)
            .zip(bases)
            .find(|(_, base): &(u16, &Base)| base.table.is_some());
        if let Some((at, base)) = known {
            lock(&self.queue).pair(*want, base.have.manifest);
            self.wake.notify_all();
            if let Some(plan) = self.quick(want, &base.have.manifest, layers)? {
                return Ok((Some(plan), Some(at)));
            }
        }
        Ok((self.open(&key(want, &[], layers))?, None))
    }

    /// The contents of these images, from packs and from layers that are still here.
    pub(super) fn contents(&self, images: &[Digest]) -> Contents {
        let layers = Arc::new(self.layers(images));
        Contents::new(self.packs.clone(), self.directory.clone(), layers, RECENT)
    }

    /// The layers of these images that are still here.
    pub(super) fn layers(&self, images: &[Digest]) -> Layers {
        let mut layers = Layers::default();
        for image in images {
            let blobs = {
                let rows = lock(&self.images);
                rows.get(image).map(|row| row.row.blobs.clone())
            };
            // The first is the config.
            for digest in blobs.unwrap_or_default().iter().skip(1) {
                let Ok(Some(blob)) = self.blobs.open(digest) else {
                    continue;
                };
                let path = self.shelf.layer(digest);
                match LayerIndex::open(&path) {
                    Ok(index) => layers.push(&index, path, blob),
                    Err(error) => {
                        tracing::warn!(%error, "the index of a layer is made anew");
                        // It opens the index once more, and deletes it.
                        let _ = self.again(image);
                    }
                }
            }
        }
        layers
    }
}

/// The header of a bundle of these frames. `layers`: whether they come too, and bytes of all records.
pub(super) fn header(
    documents: &Documents,
    want: &Table,
    bases: &[Base],
    frames: &[Frame],
    (layers, records): (bool, u64),
    level: i32,
) -> Result<Header, Error> {
    let base = bases.iter().position(|base| base.table.is_some());
    let against = base.and_then(|at| bases.get(at)?.table.as_ref());
    let sizes = Tables { want, haves: bases };
    let had = |base: &Base| Had {
        manifest: base.have.manifest,
        known: match (&base.table, base.have.has_layers) {
            (None, _) => Known::Unknown,
            (Some(_), false) => Known::Visible,
            (Some(_), true) => Known::Layers,
        },
    };
    Ok(Header {
        layers,
        media_type: documents.media_type.to_string(),
        manifest: documents.manifest.clone(),
        config: documents.config.clone(),
        haves: bases.iter().map(had).collect(),
        table: WireTable {
            base: base.and_then(|at| u16::try_from(at).ok()),
            digest: Sha256::digest(want.bytes()).into(),
            len: u32::try_from(want.bytes().len())
                .map_err(|_| Error::Image("its table is too long".into()))?,
            coded: table::encode(want, against, level)?,
        },
        frames: Frames::encode(frames, &sizes)?,
        records,
    })
}

/// Which contents of the image, by number, the worker lacks. One walk over sorted tables.
pub(super) fn needed(want: &Table, bases: &[Base], layers: bool) -> Vec<bool> {
    let all = want.contents();
    let most = if layers { all.len() } else { want.visible() };
    // Empty contents have no bytes to come.
    let is_wanted = |number| number < most && all.size(number) != Some(0);
    let mut needed: Vec<_> = (0..all.len()).map(is_wanted).collect();
    for base in bases {
        let Some(table) = &base.table else { continue };
        let (theirs, most) = (table.contents(), base.contents());
        let by_digest = table.by_digest();
        let mut had = by_digest.iter().filter(|number| *number < most).peekable();
        for number in want.by_digest().iter() {
            let Some(content) = all.content(number) else {
                continue;
            };
            while had
                .peek()
                .and_then(|number| theirs.content(*number))
                .is_some_and(|had| had < content)
            {
                had.next();
            }
            let is_had = had.peek().and_then(|number| theirs.content(*number)) == Some(content);
            if is_had
                && let Some(needed) = usize::try_from(number)
                    .ok()
                    .and_then(|at| needed.get_mut(at))
            {
                *needed = false;
            }
        }
    }
    needed
}

pub(super) fn is_set(needed: &[bool], content: u32) -> bool {
    usize::try_from(content).is_ok_and(|at| needed.get(at) == Some(&true))
}

/// Whether all that is needed comes.
fn covers(frames: &[Frame], needed: &[bool]) -> bool {
    let mut missing = needed.to_vec();
    for member in frames.iter().flat_map(|frame| &frame.members) {
        if let Ok(at) = usize::try_from(member.content)
            && let Some(missing) = missing.get_mut(at)
        {
            *missing = false;
        }
    }
    !missing.contains(&true)
}

/// Sizes from tables.
pub(super) struct Tables<'a> {
    pub(super) want: &'a Table,
    pub(super) haves: &'a [Base],
}

impl Sizes for Tables<'_> {
    fn wanted(&self, content: u32) -> Option<u64> {
        self.want.contents().size(content)
    }

    fn had(&self, have: u16, content: u32) -> Option<u64> {
        let base = self.haves.get(usize::from(have))?;
        base.table.as_ref()?.contents().size(content)
    }
}

/// The images that count. What nobody knows makes no other bundle, else anybody could have any number of them made.
fn known(have: &[Have]) -> Vec<Have> {
    have.iter().filter(|have| have.is_known).copied().collect()
}

/// Names what is made for a request out of a plan.
fn derived(request: &Content, of: &Kept) -> Content {
    Content::of(format!("{request} of {}", of.etag).as_bytes())
}

/// Names a request: whatever is in the header of its plan is in its name.
pub(super) fn key(want: &Digest, have: &[Have], layers: bool) -> Content {
    let mut text = format!("bundle {VERSION} {want} {layers}");
    for have in have {
        let Have {
            manifest,
            is_known,
            has_layers,
        } = have;
        text.push_str(&format!(" {manifest} {is_known} {has_layers}"));
    }
    Content::of(text.as_bytes())
}
