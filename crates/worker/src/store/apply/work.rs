//! The threads that apply a bundle: they decode frames into file contents, and save the complete
//! image in the store.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{ApplyCounts, MAX_DECODING_BYTES, Shared, as_u64, len};
use crate::Error;
use crate::store::content_dir::is_absence;
use crate::store::folder::lock_folder;
use crate::store::image::{Image, manifest_digest};
use crate::store::partial_file::PartialFile;
use pierhead_bundle::format::{Sizes as _, bounded};
use pierhead_bundle::{BaseSlice, Coding, Frame, Slice};
use pierhead_toc::{FileDigest, ImageToc, Source as _};

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
                None => Err(Error::malformed("bundle", "a record without a frame")),
                Some(_) if self.state.lock().done[at] => Ok(()),
                Some(known) => {
                    self.frame(known, coding, payload)
                        .and_then(|is_complete| match is_complete {
                            true => self.folder.log_frame(frame),
                            // A base content of the frame is damaged or missing. `finish` reports
                            // the contents of this frame as missing.
                            false => Ok(()),
                        })
                }
            };
            let mut state = self.state.lock();
            state.busy -= 1;
            // The payload used memory until here, so its bytes are subtracted only now.
            state.queued_bytes -= as_u64(payload.len());
            match result {
                Ok(()) => {
                    if let Some(done) = state.done.get_mut(at) {
                        *done = true;
                    }
                }
                Err(error) => {
                    state.failure.get_or_insert(error);
                }
            }
            drop(state);
            self.changed.notify_all();
        }
    }

    fn next(&self) -> Option<Job> {
        let mut state = self.state.lock();
        loop {
            if state.is_stopped || state.failure.is_some() {
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
            self.changed.wait(&mut state);
        }
    }

    /// Decodes a frame within the memory limit. Returns `false` if a base content is damaged or
    /// missing.
    fn frame(&self, frame: &Frame, coding: Coding, payload: &[u8]) -> Result<bool, Error> {
        let out = len(&frame.members);
        let bases = match coding {
            Coding::Patch | Coding::Copy => frame.bases.iter().map(|base| base.slice.len).sum(),
            _ => 0,
        };
        let needs = out + if coding == Coding::Copy { 0 } else { bases };
        let mut state = self.state.lock();
        while state.decoding_bytes > 0
            && state.decoding_bytes + needs > MAX_DECODING_BYTES
            && !state.is_stopped
        {
            self.changed.wait(&mut state);
        }
        state.decoding_bytes += needs;
        drop(state);
        let done = self.decode(frame, coding, payload, out);
        self.state.lock().decoding_bytes -= needs;
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
                    "its length differs from the frame list",
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
                    return self
                        .remove_damaged_bases(frame)?
                        .then_some(false)
                        .ok_or(error.into());
                }
                &decoded
            }
        };
        let count = |counts: &mut ApplyCounts, contents: u64, bytes: u64| {
            let moved = match coding {
                Coding::Patch => &mut counts.patched,
                Coding::Copy => &mut counts.chunked,
                _ => &mut counts.full,
            };
            moved.contents += contents;
            moved.bytes += bytes;
        };
        let mut is_complete = true;
        let mut rest = bytes;
        for member in &frame.members {
            let Some((piece, after)) =
                rest.split_at_checked(usize::try_from(member.len).unwrap_or(usize::MAX))
            else {
                return Err(Error::malformed(
                    "frame",
                    "it is shorter than the frame list states",
                ));
            };
            rest = after;
            match self.member(member, piece)? {
                true => {
                    let first = u64::from(member.offset == 0);
                    count(&mut self.state.lock().counts, first, member.len);
                }
                // A content that arrives in several ranges may be corrupt because of ranges that an
                // earlier process wrote.
                false
                    if matches!(coding, Coding::Stored | Coding::Zstd)
                        && self.is_all_of(member) =>
                {
                    let (content, _) = self.tocs.wanted_content(member)?;
                    return Err(Error::Digest {
                        what: "a content of a bundle".into(),
                        expected: content.to_string(),
                        found: "another".into(),
                    });
                }
                false => is_complete = false,
            }
        }
        if !is_complete && !frame.bases.is_empty() {
            self.remove_damaged_bases(frame)?;
        }
        Ok(is_complete)
    }

    fn is_all_of(&self, member: &Slice) -> bool {
        self.tocs.wanted(member.content) == Some(member.len)
    }

    /// Stores one member of a frame: a content, or a range of a content. Returns `false` if the
    /// digest of the content does not match.
    fn member(&self, member: &Slice, piece: &[u8]) -> Result<bool, Error> {
        let (content, size) = self.tocs.wanted_content(member)?;
        if member.len == size {
            if FileDigest::of(piece) != content {
                return Ok(false);
            }
            self.store.0.contents.put(&content, piece)?;
            return Ok(true);
        }
        let part = Arc::clone(
            self.state
                .lock()
                .partial_files
                .entry(member.content)
                .or_default(),
        );
        let mut part = part.lock();
        if part.is_none() {
            if self.store.0.contents.has(&content, Some(size)) {
                return Ok(true);
            }
            *part = Some(PartialFile::open(&self.folder.parts(), content, size)?);
        }
        let Some(open) = part.as_mut() else {
            return Ok(true);
        };
        open.write(member.offset, piece)?;
        match part.take_if(|part| part.is_complete()) {
            None => Ok(true),
            Some(whole) => whole.commit(&self.store),
        }
    }

    /// Reads all base contents of a frame and concatenates them. Returns `None` if a base is
    /// missing or was altered.
    fn bases(&self, bases: &[BaseSlice]) -> Result<Option<Vec<u8>>, Error> {
        let sum: u64 = bases.iter().map(|base| base.slice.len).sum();
        let mut bytes = vec![0; usize::try_from(sum).unwrap_or(0)];
        let mut at = 0;
        for base in bases {
            let Some((content, _)) = self.tocs.base_content(base.image, base.slice.content) else {
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

    /// Hashes the base contents of a frame that could not be decoded. Removes corrupt base
    /// contents, and returns whether there were any.
    fn remove_damaged_bases(&self, frame: &Frame) -> Result<bool, Error> {
        let mut is_any_damaged = false;
        let mut seen = BTreeSet::new();
        for base in &frame.bases {
            if let Some((content, _)) = self.tocs.base_content(base.image, base.slice.content)
                && seen.insert(content)
            {
                is_any_damaged |= !self.store.0.contents.verify(&content)?;
            }
        }
        Ok(is_any_damaged)
    }

    /// Makes the image that this fetch has completed.
    pub(super) fn image(&self) -> Result<Image, Error> {
        let header = &self.header;
        if !self.folder.is_toc_verified {
            // Checks the TOC again, since another process may have recorded another tree of the
            // image meanwhile.
            self.store.check_toc(header)?;
        }
        Ok(Image {
            media_type: header.media_type.clone(),
            manifest: header.manifest.clone(),
            config: header.config.clone(),
            layers: header.layers,
            // Reads the TOC into memory, so that the image remains usable after the folder of the
            // fetch is deleted.
            toc: ImageToc::open(&self.folder.path.join("table"))?,
        })
    }

    /// Syncs all file contents, and then saves the image in the store.
    pub(super) fn save_image(&self) -> Result<Image, Error> {
        self.store.0.contents.sync()?;
        let header = &self.header;
        let images = self.store.0.path.join("images");
        let mut image = self.image()?;
        let folder_lock = lock_folder(&self.store.0.path);
        let recorded = Image::load(&images.join(manifest_digest(&header.manifest).hex())).ok();
        // If an earlier pull of the same tree also stored the contents of the layers, the new
        // record says so, too.
        image.layers |= recorded.is_some_and(|it| it.layers && it.toc.bytes() == image.toc.bytes());
        image.save(&images)?;
        self.folder.remove();
        drop(folder_lock);
        self.store.clear_unsynced()?;
        self.store.image(&manifest_digest(&header.manifest))
    }
}
