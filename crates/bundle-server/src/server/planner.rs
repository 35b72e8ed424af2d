//! Making the plan of a request from what was prepared: which frames come, and the header over them.

use std::sync::Arc;

use pierhead_host::ClientKey;
use pierhead_oci::Digest;
use sha2::{Digest as _, Sha256};

use super::chunk_reuse::most;
use super::counters::count;
use super::documents::Documents;
use super::plan_file::{Draft, PlanFile};
use super::plan_store::{derived, key};
use super::{Inner, RequestBase, lock};
use pierhead_bundle::Frame;
use pierhead_bundle::format::{BaseImage, Frames, Header, Sizes, UsableContents, WireToc};
use pierhead_toc::image_toc;
use pierhead_toc::{Error, FileDigest, ImageToc};

/// The level of zstd for headers that somebody waits for.
const FAST: i32 = 3;

/// An image of the request, with its table when it is known.
pub(super) struct LoadedBase {
    pub(super) have: RequestBase,
    pub(super) table: Option<Arc<ImageToc>>,
}

impl LoadedBase {
    /// How many of its contents, from the first on, the worker has.
    pub(super) fn contents(&self) -> u32 {
        match &self.table {
            None => 0,
            Some(table) if self.have.has_layers => table.contents().len(),
            Some(table) => table.visible(),
        }
    }
}

impl Inner {
    /// Makes the plan of a request from what was prepared: for this pair of images, else for whoever has nothing.
    /// Its name, too.
    pub(super) fn plan(
        &self,
        client: ClientKey,
        want: &Digest,
        have: &[RequestBase],
        layers: bool,
    ) -> Result<(FileDigest, Arc<PlanFile>), Error> {
        count(&self.counters.plans);
        let table = self.made_table(want)?;
        let mut bases = Vec::with_capacity(have.len());
        for have in have {
            let mut have = *have;
            let table = match have.is_known {
                true => self.base_table(&have.manifest)?,
                false => None,
            };
            have.is_known = table.is_some();
            bases.push(LoadedBase { have, table });
        }
        let documents = Documents::read(&*self.blobs, want)?;
        let (prepared, at) = self.prepared(client, want, &bases, layers)?;
        let prepared = prepared.ok_or_else(|| Error::Missing(format!("the plan of {want}")))?;
        if !self.is_sound(&prepared) {
            return Err(Error::Missing(format!("a part of {want}")));
        }
        let needed = needed(&table, &bases, layers);
        let key = match have {
            [] => key(want, have, layers),
            _ => derived(&key(want, have, layers), &prepared),
        };
        let mut draft = Draft::begin(&self.paths.plan(&key))?;
        let mut frames = match at {
            Some(at) => self.choose(&prepared, at, &table, &bases, &needed, &mut draft)?,
            None => self.chunked(&prepared, want, &table, &bases, &needed, &mut draft)?,
        };
        if !covers(&frames, &needed) {
            // It counts on more than this worker has.
            let fresh = self
                .open(&super::plan_store::key(want, &[], layers))?
                .filter(|plan| self.is_sound(plan));
            let fresh = fresh.ok_or_else(|| Error::Missing(format!("the plan of {want}")))?;
            drop(draft);
            draft = Draft::begin(&self.paths.plan(&key))?;
            frames = self.chunked(&fresh, want, &table, &bases, &needed, &mut draft)?;
        } else if at.is_some()
            && let Some(fresh) = self.open(&self::key(want, &[], layers))?
            && self.is_sound(&fresh)
            && draft.bytes() > most(self.changed(&fresh, &table, &needed)?)
        {
            // Made in haste, or against an image that has less of it than another one.
            let mut other = Draft::begin(&self.paths.plan(&key))?;
            let fewer = self.chunked(&fresh, want, &table, &bases, &needed, &mut other)?;
            if other.bytes() < draft.bytes() && covers(&fewer, &needed) {
                (draft, frames) = (other, fewer);
            }
        }
        let header = header(
            &documents,
            &table,
            &bases,
            &frames,
            (layers, draft.bytes()),
            FAST,
        )?;
        let (prelude, body) = header.encode(FAST)?;
        let plan = self.finish(&key, draft, &prelude, &body)?;
        Ok((key, plan))
    }

    /// The frames of what was prepared against one of the images that hold anything that is needed; their records go into the draft.
    fn choose(
        &self,
        prepared: &PlanFile,
        at: u16,
        table: &ImageToc,
        bases: &[LoadedBase],
        needed: &[bool],
        draft: &mut Draft,
    ) -> Result<Vec<Frame>, Error> {
        let header = prepared.header()?;
        let of = bases.get(usize::from(at));
        let sizes = TocSizes {
            want: table,
            // What was prepared knows one image at most.
            base_images: of.map_or(&[][..], std::slice::from_ref),
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
            let has_base = |base: &pierhead_bundle::BaseSlice| {
                of.is_some_and(|of| base.slice.content < of.contents())
            };
            if !frame.bases.iter().all(has_base) {
                continue;
            }
            for base in &mut frame.bases {
                base.image = at;
            }
            draft.same(prepared, nth)?;
            frames.push(frame);
        }
        Ok(frames)
    }

    /// The best that was prepared, and which of the images that the worker has it is made against.
    fn prepared(
        &self,
        client: ClientKey,
        want: &Digest,
        bases: &[LoadedBase],
        layers: bool,
    ) -> Result<(Option<Arc<PlanFile>>, Option<u16>), Error> {
        for (at, base) in (0..).zip(bases) {
            if base.table.is_none() {
                continue;
            }
            if let Some(plan) = self.pair(want, &base.have.manifest, layers)? {
                return Ok((Some(plan), Some(at)));
            }
        }
        // The first base image is the most similar one.
        let known = (0..)
            .zip(bases)
            .find(|(_, base): &(u16, &LoadedBase)| base.table.is_some());
        if let Some((at, base)) = known {
            lock(&self.queue).pair(*want, base.have.manifest);
            self.wake.notify_all();
            if let Some(plan) = self.fast(client, want, &base.have.manifest, layers)? {
                return Ok((Some(plan), Some(at)));
            }
        }
        Ok((self.open(&key(want, &[], layers))?, None))
    }
}

/// The header of a bundle of these frames. `layers`: whether they come too, and bytes of all records.
pub(super) fn header(
    documents: &Documents,
    want: &ImageToc,
    bases: &[LoadedBase],
    frames: &[Frame],
    (layers, records): (bool, u64),
    level: i32,
) -> Result<Header, Error> {
    let base = bases.iter().position(|base| base.table.is_some());
    let against = base.and_then(|at| bases.get(at)?.table.as_deref());
    let sizes = TocSizes {
        want,
        base_images: bases,
    };
    let had = |base: &LoadedBase| BaseImage {
        manifest: base.have.manifest,
        usable: match (&base.table, base.have.has_layers) {
            (None, _) => UsableContents::None,
            (Some(_), false) => UsableContents::Visible,
            (Some(_), true) => UsableContents::All,
        },
    };
    Ok(Header {
        layers,
        media_type: documents.media_type.to_string(),
        manifest: documents.manifest.clone(),
        config: documents.config.clone(),
        base_images: bases.iter().map(had).collect(),
        table: WireToc {
            base: base.and_then(|at| u16::try_from(at).ok()),
            digest: Sha256::digest(want.bytes()).into(),
            len: u32::try_from(want.bytes().len())
                .map_err(|_| Error::Image("its table is too long".into()))?,
            coded: image_toc::encode(want, against, level)?,
        },
        frames: Frames::encode(frames, &sizes)?,
        records,
    })
}

/// Which contents of the image, by number, the worker lacks. One walk over sorted tables.
pub(super) fn needed(want: &ImageToc, bases: &[LoadedBase], layers: bool) -> Vec<bool> {
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
pub(super) struct TocSizes<'a> {
    pub(super) want: &'a ImageToc,
    pub(super) base_images: &'a [LoadedBase],
}

impl Sizes for TocSizes<'_> {
    fn wanted(&self, content: u32) -> Option<u64> {
        self.want.contents().size(content)
    }

    fn base(&self, have: u16, content: u32) -> Option<u64> {
        let base = self.base_images.get(usize::from(have))?;
        base.table.as_ref()?.contents().size(content)
    }
}
