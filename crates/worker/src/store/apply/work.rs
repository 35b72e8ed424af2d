//! What the threads of an [`Apply`](super::Apply) do: frames into contents, and the record of an image that is complete.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{AT_WORK, Counts, Shared, as_u64, len, lock, wait};
use crate::store::contents::is_absence;
use crate::store::fetch::manifest_digest;
use crate::store::image::Image;
use crate::store::parts::Part;
use crate::store::turn;
use pierhead_bundle::format::{Sizes as _, bounded};
use pierhead_bundle::{BaseSlice, Coding, Frame, Slice};
use pierhead_toc::{Error, FileDigest, ImageToc, Source as _};

enum Job {
    Record(u32, Coding, Vec<u8>),
    Copy(u32),
}

impl Shared {
    pub(super) fn work(&self) {
        while let Some(job) = self.next() {
            let (frame, coding, payload) = match &job {
                Job::Record(frame, coding, payload) => (*frame, *coding, &payload[..]),
                Job::Copy(frame) => (*frame, Coding::Copy, &[][..]),
            };
            let at = usize::try_from(frame).unwrap_or(usize::MAX);
            let result = match self.frames.get(at) {
                None => Err(Error::malformed("bundle", "a record of no frame")),
                Some(_) if lock(&self.state).done[at] => Ok(()),
                Some(known) => self
                    .frame(known, coding, payload)
                    .and_then(|whole| match whole {
                        true => self.folder.done(frame),
                        // Its contents are asked for one by one.
                        false => Ok(()),
                    }),
            };
            let mut state = lock(&self.state);
            state.busy -= 1;
            // Until here it took memory.
            state.queued -= as_u64(payload.len());
            match result {
                Ok(()) => {
                    if let Some(done) = state.done.get_mut(at) {
                        *done = true;
                    }
                }
                Err(error) => {
                    state.failed.get_or_insert(error);
                }
            }
            drop(state);
            self.changed.notify_all();
        }
    }

    fn next(&self) -> Option<Job> {
        let mut state = lock(&self.state);
        loop {
            if state.stop || state.failed.is_some() {
                return None;
            }
            let job = match state.queue.pop_front() {
                Some((frame, coding, payload)) => Some(Job::Record(frame, coding, payload)),
                None => state.copies.pop_front().map(Job::Copy),
            };
            if job.is_some() {
                state.busy += 1;
                drop(state);
                self.changed.notify_all();
                return job;
            }
            state = wait(&self.changed, state);
        }
    }

    /// `false` when what it was made against is damaged or gone.
    fn frame(&self, frame: &Frame, coding: Coding, payload: &[u8]) -> Result<bool, Error> {
        let out = len(&frame.members);
        let bases = match coding {
            Coding::Patch | Coding::Copy => frame.bases.iter().map(|base| base.slice.len).sum(),
            _ => 0,
        };
        let needs = out + if coding == Coding::Copy { 0 } else { bases };
        let mut state = lock(&self.state);
        while state.at_work > 0 && state.at_work + needs > AT_WORK && !state.stop {
            state = wait(&self.changed, state);
        }
        state.at_work += needs;
        drop(state);
        let done = self.decode(frame, coding, payload, out);
        lock(&self.state).at_work -= needs;
        self.changed.notify_all();
        done
    }

    fn decode(
        &self,
        frame: &Frame,
        coding: Coding,
        payload: &[u8],
        out: u64,
    ) -> Result<bool, Error> {
        let out = usize::try_from(out).unwrap_or(usize::MAX);
        let mut decoded = Vec::new();
        let bytes = match coding {
            Coding::Stored if payload.len() != out => {
                return Err(Error::malformed(
                    "frame",
                    "it is of another length than promised",
                ));
            }
            Coding::Stored => payload,
            Coding::Zstd => {
                bounded::decompress_into(payload, out, &[], &mut decoded)?;
                &decoded
            }
            Coding::Patch | Coding::Copy => {
                let Some(bases) = self.bases(&frame.bases)? else {
                    return Ok(false);
                };
                if coding == Coding::Copy {
                    decoded = bases;
                } else if let Err(error) =
                    bounded::decompress_into(payload, out, &bases, &mut decoded)
                {
                    return self.is_base_damaged(frame)?.then_some(false).ok_or(error);
                }
                &decoded
            }
        };
        let how = |counts: &mut Counts, contents: u64, bytes: u64| {
            let moved = match coding {
                Coding::Patch => &mut counts.patched,
                Coding::Copy => &mut counts.chunked,
                _ => &mut counts.full,
            };
            moved.contents += contents;
            moved.bytes += bytes;
        };
        let mut whole = true;
        let mut rest = bytes;
        for member in &frame.members {
            let Some((piece, after)) =
                rest.split_at_checked(usize::try_from(member.len).unwrap_or(usize::MAX))
            else {
                return Err(Error::malformed("frame", "it is shorter than promised"));
            };
            rest = after;
            match self.member(member, piece)? {
                true => {
                    let first = u64::from(member.offset == 0);
                    how(&mut lock(&self.state).counts, first, member.len);
                }
                // Of one that came in ranges, an earlier process may have left what is wrong.
                false
                    if matches!(coding, Coding::Stored | Coding::Zstd)
                        && self.is_all_of(member) =>
                {
                    let (content, _) = self.tables.wanted_content(member)?;
                    return Err(Error::Digest {
                        what: "a content of a bundle".into(),
                        expected: content.to_string(),
                        found: "another".into(),
                    });
                }
                false => whole = false,
            }
        }
        if !whole && !frame.bases.is_empty() {
            self.is_base_damaged(frame)?;
        }
        Ok(whole)
    }

    fn is_all_of(&self, member: &Slice) -> bool {
        self.tables.wanted(member.content) == Some(member.len)
    }

    /// `false` when the bytes are not the content's.
    fn member(&self, member: &Slice, piece: &[u8]) -> Result<bool, Error> {
        let (content, size) = self.tables.wanted_content(member)?;
        if member.len == size {
            if FileDigest::of(piece) != content {
                return Ok(false);
            }
            self.store.0.contents.put(&content, piece)?;
            return Ok(true);
        }
        let part = Arc::clone(lock(&self.state).parts.entry(member.content).or_default());
        let mut part = lock(&part);
        if part.is_none() {
            if self.store.0.contents.has(&content, Some(size)) {
                return Ok(true);
            }
            *part = Some(Part::open(&self.folder.parts(), content, size)?);
        }
        let Some(open) = part.as_mut() else {
            return Ok(true);
        };
        open.write(member.offset, piece)?;
        match part.take_if(|part| part.is_whole()) {
            None => Ok(true),
            Some(whole) => whole.commit(&self.store),
        }
    }

    /// All bases one after the other; `None` when one is not there, or was altered.
    fn bases(&self, bases: &[BaseSlice]) -> Result<Option<Vec<u8>>, Error> {
        let sum: u64 = bases.iter().map(|base| base.slice.len).sum();
        let mut bytes = vec![0; usize::try_from(sum).unwrap_or(0)];
        let mut at = 0;
        for base in bases {
            let Some((content, _)) = self.tables.base(base.image, base.slice.content) else {
                return Ok(None);
            };
            let len = usize::try_from(base.slice.len).unwrap_or(0);
            match self
                .store
                .read_at(&content, base.slice.offset, &mut bytes[at..at + len])
            {
                Ok(()) => at += len,
                Err(error) if is_absence(&error) => return Ok(None),
                Err(error) => return Err(Error::io(format!("read {content}"), error)),
            }
        }
        Ok(Some(bytes))
    }

    /// Hashes the bases of a frame that came out wrong; those that rotted are removed.
    fn is_base_damaged(&self, frame: &Frame) -> Result<bool, Error> {
        let mut damaged = false;
        let mut seen = BTreeSet::new();
        for base in &frame.bases {
            if let Some((content, _)) = self.tables.base(base.image, base.slice.content)
                && seen.insert(content)
            {
                damaged |= !self.store.0.contents.verify(&content)?;
            }
        }
        Ok(damaged)
    }

    /// The image that is fetched.
    pub(super) fn image(&self) -> Result<Image, Error> {
        let header = &self.header;
        if !self.folder.proven {
            // Another process may have recorded it meanwhile.
            self.store.agrees(header)?;
        }
        Ok(Image {
            media_type: header.media_type.clone(),
            manifest: header.manifest.clone(),
            config: header.config.clone(),
            layers: header.layers,
            // In memory: it outlives the fetch's folder.
            table: ImageToc::open(&self.folder.path.join("table"))?,
        })
    }

    /// Once all contents are on the disk, and not before.
    pub(super) fn record(&self) -> Result<Image, Error> {
        self.store.0.contents.sync()?;
        let header = &self.header;
        let images = self.store.0.path.join("images");
        let mut image = self.image()?;
        let turn = turn(&self.store.0.path);
        let before = Image::load(&images.join(manifest_digest(&header.manifest).hex())).ok();
        // What was asked for without its layers does not take them away: somebody may count on them.
        image.layers |=
            before.is_some_and(|it| it.layers && it.table.bytes() == image.table.bytes());
        image.save(&images)?;
        self.folder.remove();
        drop(turn);
        self.store.synced()?;
        self.store.image(&manifest_digest(&header.manifest))
    }
}
