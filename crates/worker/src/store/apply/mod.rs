//! Applies a bundle to a store: decodes its records into file contents, in bounded memory. Any
//! thread may pass records of the bundle.

mod work;

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use super::content_writer::ContentWriter;
use super::fetch_dir::FetchDir;
use super::image::{Image, needed};
use super::image_store::Store;
use super::partial_file::PartialFile;
use crate::Error;
use parking_lot::{Condvar, Mutex};
use pierhead_bundle::api::BundleQuery;
use pierhead_bundle::format::{Header, Sizes, UsableContents};
use pierhead_bundle::{Coding, Frame, Slice};
use pierhead_toc::{FileDigest, ImageToc};

/// Maximum number of bytes of compressed records in the queue and in the decoding threads.
const MAX_QUEUED_BYTES: u64 = 8 << 20;
/// Maximum number of bytes of base contents and decoded frames of all threads. A frame of the
/// maximum size fits into this maximum.
const MAX_DECODING_BYTES: u64 = 24 << 20;
/// Maximum number of members and bases of all frames. The maximum limits the memory of the list of
/// frames.
const MAX_SLICES: usize = 600_000;
/// Maximum number of decoding threads. More threads would only wait for each other in the file
/// system.
const MAX_THREADS: usize = 4;

/// A bundle that is being applied. Several threads may call [`Apply::record`]. If this value is
/// dropped before the end, [`Store::resume`] can continue the fetch.
pub struct Apply {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// The result of [`Apply::finish`].
#[derive(Debug)]
pub enum ApplyOutcome {
    /// All contents are stored. A thread now records the image in the store.
    Complete(Box<CompleteImage>),
    /// The store lacks these contents. The caller has to fetch these contents one by one, and then
    /// call `finish` again.
    Missing(Vec<(FileDigest, u64)>),
}

/// An image whose contents are all stored and verified, so that it can be exported. A thread syncs
/// the contents and then records the image. If the process ends before that, the next pull resumes
/// the fetch.
#[derive(Debug)]
pub struct CompleteImage {
    image: Image,
    recording: Option<JoinHandle<Result<Image, Error>>>,
}

impl CompleteImage {
    /// Returns the complete image.
    pub fn image(&self) -> &Image {
        &self.image
    }

    /// Waits until the record of the image is durable.
    ///
    /// # Errors
    /// Errors of the file system. `Malformed` if another process has recorded another tree of the
    /// image.
    pub fn recorded(self) -> Result<Image, Error> {
        match self.recording.map(JoinHandle::join) {
            None => Ok(self.image),
            Some(Ok(recorded)) => recorded,
            Some(Err(panic)) => std::panic::resume_unwind(panic),
        }
    }
}

/// Converts an image that is already recorded to a complete image.
impl From<Image> for CompleteImage {
    fn from(image: Image) -> Self {
        Self {
            image,
            recording: None,
        }
    }
}

/// How the contents of an image arrived, so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ApplyCounts {
    /// Contents that arrived in full: in frames other than patches, or by requests for single
    /// contents.
    pub full: TransferCount,
    /// Contents that arrived as patches against stored contents.
    pub patched: TransferCount,
    /// Contents that consist of copied ranges of stored contents.
    pub chunked: TransferCount,
    /// Contents that the store had before. `finish` counts them.
    pub reused: TransferCount,
}

/// One part of [`ApplyCounts`]. A content that arrives in several ranges is counted with its first
/// range.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TransferCount {
    /// Number of contents.
    pub contents: u64,
    /// Sum of the uncompressed bytes of these contents.
    pub bytes: u64,
}

struct Shared {
    store: Store,
    folder: FetchDir,
    header: Header,
    tocs: ImageTocs,
    frames: Vec<Frame>,
    state: Mutex<State>,
    changed: Condvar,
}

/// The TOCs (tables of contents) of the wanted image and of its base images.
struct ImageTocs {
    wanted: ImageToc,
    base_images: Vec<(UsableContents, Option<ImageToc>)>,
}

#[derive(Default)]
struct State {
    queue: VecDeque<(u32, Coding, Vec<u8>)>,
    queued_bytes: u64,
    copies: VecDeque<u32>,
    decoding_bytes: u64,
    busy: usize,
    done: Vec<bool>,
    partial_files: HashMap<u32, Arc<Mutex<Option<PartialFile>>>>,
    failure: Option<Error>,
    is_stopped: bool,
    counts: ApplyCounts,
}

impl Sizes for ImageTocs {
    fn wanted(&self, content: u32) -> Option<u64> {
        self.wanted.contents().size(content)
    }

    fn base(&self, image: u16, content: u32) -> Option<u64> {
        self.base_content(image, content).map(|(_, size)| size)
    }
}

impl ImageTocs {
    /// Returns a file content of a base image. `image` is the position of the base image in the
    /// header. Returns `None` if the bundle may not use this content.
    fn base_content(&self, image: u16, content: u32) -> Option<(FileDigest, u64)> {
        let (usable, toc) = self.base_images.get(usize::from(image))?;
        let toc = toc.as_ref()?;
        let is_usable = *usable == UsableContents::All || content < toc.visible();
        let contents = toc.contents();
        is_usable.then(|| Some((contents.content(content)?, contents.size(content)?)))?
    }

    fn wanted_content(&self, slice: &Slice) -> Result<(FileDigest, u64), Error> {
        let contents = self.wanted.contents();
        let found = contents
            .content(slice.content)
            .zip(contents.size(slice.content));
        found.ok_or_else(|| Error::malformed("frame list", "it names a content that the TOC lacks"))
    }
}

impl Apply {
    pub(super) fn new(
        store: Store,
        folder: FetchDir,
        mut header: Header,
        wanted: ImageToc,
        base_images: Vec<Option<ImageToc>>,
        log: &[u32],
    ) -> Result<Self, Error> {
        let base_images = header
            .base_images
            .iter()
            .map(|base| base.usable)
            .zip(base_images)
            .collect();
        let tocs = ImageTocs {
            wanted,
            base_images,
        };
        let mut frames = Vec::new();
        let mut slices = 0;
        for frame in header.frames.cursor(&tocs)? {
            let frame = frame?;
            slices += frame.members.len() + frame.bases.len();
            if slices > MAX_SLICES {
                return Err(Error::malformed("frame list", "it has too many slices"));
            }
            frames.push(frame);
        }
        // The TOC is already decoded, so its coded bytes are freed.
        header.toc.coded = Vec::new();
        let mut state = State {
            done: vec![false; frames.len()],
            ..State::default()
        };
        for frame in log {
            let at = usize::try_from(*frame).unwrap_or(usize::MAX);
            if let Some(done) = state.done.get_mut(at) {
                *done = true;
            }
        }
        for (at, frame) in frames.iter().enumerate() {
            if state.done[at] {
                restore(&mut state, frame, &tocs, &folder, &store)?;
                continue;
            }
            state.done[at] = frame.members.iter().all(|member| {
                let found = tocs.wanted_content(member);
                found.is_ok_and(|(content, size)| store.0.contents.has(&content, Some(size)))
            });
            if !state.done[at] && frame.coding == Coding::Copy {
                state.copies.push_back(ordinal(at));
            }
        }
        let shared = Arc::new(Shared {
            store,
            folder,
            header,
            tocs,
            frames,
            state: Mutex::new(state),
            changed: Condvar::new(),
        });
        let count = thread::available_parallelism()
            .map_or(1, usize::from)
            .min(MAX_THREADS);
        let spawn = |_| {
            let shared = Arc::clone(&shared);
            let built = thread::Builder::new()
                .name("apply".into())
                .spawn(move || shared.work());
            built.map_err(|error| Error::io("start a thread", error))
        };
        let threads = (0..count).map(spawn).collect::<Result<_, _>>();
        if threads.is_err() {
            shared.state.lock().is_stopped = true;
            shared.changed.notify_all();
        }
        Ok(Self {
            threads: Mutex::new(threads?),
            shared,
        })
    }

    /// Returns the request to which this bundle is the response.
    pub fn query(&self) -> &BundleQuery {
        &self.shared.folder.query
    }

    /// Returns the `ETag` of the bundle.
    pub fn etag(&self) -> &str {
        &self.shared.folder.etag
    }

    /// Returns the SHA-256 hash of the header's body. A request that resumes the bundle names this
    /// digest.
    pub fn digest(&self) -> [u8; 32] {
        self.shared.folder.digest
    }

    /// Returns the header of the bundle, without the coded TOC.
    pub fn header(&self) -> &Header {
        &self.shared.header
    }

    /// Returns the TOC of the wanted image.
    pub fn toc(&self) -> &ImageToc {
        &self.shared.tocs.wanted
    }

    /// Returns the number of uncompressed bytes of each frame, which is 0 for frames without a
    /// record.
    pub fn weights(&self) -> impl Iterator<Item = u64> + '_ {
        self.shared.frames.iter().map(|frame| match frame.coding {
            Coding::Copy => 0,
            _ => len(&frame.members),
        })
    }

    /// Returns the ranges of frames whose records are missing.
    pub fn missing(&self) -> Vec<Range<u32>> {
        let state = self.shared.state.lock();
        let mut ranges: Vec<Range<u32>> = Vec::new();
        for (at, frame) in self.shared.frames.iter().enumerate() {
            if state.done[at] || frame.coding == Coding::Copy {
                continue;
            }
            let at = ordinal(at);
            match ranges.last_mut() {
                Some(range) if range.end == at => range.end += 1,
                _ => ranges.push(at..at + 1),
            }
        }
        ranges
    }

    /// Returns how the contents of the image have arrived so far.
    pub fn counts(&self) -> ApplyCounts {
        self.shared.state.lock().counts
    }

    /// Queues a record for the decoding threads. Waits while the queue is full.
    ///
    /// # Errors
    /// The error of this record or of an earlier record. After an error, the bundle cannot be
    /// applied. Contents that were stored before the error remain in the store.
    pub fn record(&self, frame: u32, coding: Coding, payload: Vec<u8>) -> Result<(), Error> {
        let bytes = as_u64(payload.len());
        let mut state = self.shared.state.lock();
        while state.queued_bytes > 0
            && state.queued_bytes + bytes > MAX_QUEUED_BYTES
            && state.failure.is_none()
            && !state.is_stopped
        {
            self.shared.changed.wait(&mut state);
        }
        check_failure(&mut state)?;
        state.queued_bytes += bytes;
        state.queue.push_back((frame, coding, payload));
        drop(state);
        self.shared.changed.notify_all();
        Ok(())
    }

    /// Opens a content that [`ApplyOutcome::Missing`] lists, for writing.
    ///
    /// # Errors
    /// `Missing` if the image has no such content. Errors of the file system.
    pub fn receive(&self, content: &FileDigest) -> Result<ContentWriter, Error> {
        let toc = &self.shared.tocs.wanted;
        let size = toc
            .find(content)
            .and_then(|number| toc.contents().size(number));
        let size = size.ok_or_else(|| Error::Missing(content.to_string()))?;
        let mut state = self.shared.state.lock();
        state.counts.full.contents += 1;
        state.counts.full.bytes += size;
        drop(state);
        ContentWriter::new(
            &self.shared.store,
            &self.shared.folder.parts(),
            *content,
            size,
        )
    }

    /// Waits for the queued records, then checks whether the image is complete. If the image is
    /// complete, a thread starts to record the image in the store. The check takes one system call
    /// per content.
    ///
    /// # Errors
    /// The same errors as from [`Apply::record`].
    pub fn finish(&self) -> Result<ApplyOutcome, Error> {
        let shared = &self.shared;
        let mut state = shared.state.lock();
        while !state.is_stopped
            && state.failure.is_none()
            && (state.busy > 0 || !state.queue.is_empty() || !state.copies.is_empty())
        {
            shared.changed.wait(&mut state);
        }
        check_failure(&mut state)?;
        drop(state);
        let mut missing = Vec::new();
        let mut all = TransferCount::default();
        for (content, size) in needed(&shared.tocs.wanted, shared.header.layers) {
            all.contents += 1;
            all.bytes += size;
            if !shared.store.obtain(&content, size)? {
                missing.push((content, size));
            }
        }
        if !missing.is_empty() {
            return Ok(ApplyOutcome::Missing(missing));
        }
        let mut state = shared.state.lock();
        let counts = &mut state.counts;
        let moved = [counts.full, counts.patched, counts.chunked];
        counts.reused.contents = moved.iter().fold(all.contents, |left, moved| {
            left.saturating_sub(moved.contents)
        });
        counts.reused.bytes = moved
            .iter()
            .fold(all.bytes, |left, moved| left.saturating_sub(moved.bytes));
        drop(state);
        let image = shared.image()?;
        let shared = Arc::clone(shared);
        let recording = thread::Builder::new()
            .name("record".into())
            .spawn(move || shared.save_image())
            .map_err(|error| Error::io("start a thread", error))?;
        Ok(ApplyOutcome::Complete(Box::new(CompleteImage {
            image,
            recording: Some(recording),
        })))
    }
}

impl Drop for Apply {
    fn drop(&mut self) {
        self.shared.state.lock().is_stopped = true;
        self.shared.changed.notify_all();
        for thread in std::mem::take(&mut *self.threads.lock()) {
            let _ = thread.join();
        }
    }
}

/// Restores the partial files of a frame that an earlier process has applied.
fn restore(
    state: &mut State,
    frame: &Frame,
    tocs: &ImageTocs,
    folder: &FetchDir,
    store: &Store,
) -> Result<(), Error> {
    for member in &frame.members {
        let (content, size) = tocs.wanted_content(member)?;
        if member.len == size || store.0.contents.has(&content, Some(size)) {
            continue;
        }
        let part = Arc::clone(state.partial_files.entry(member.content).or_default());
        let mut part = part.lock();
        if part.is_none() {
            *part = Some(PartialFile::open(&folder.parts(), content, size)?);
        }
        if let Some(part) = part.as_mut() {
            part.cover(member.offset, member.len);
        }
    }
    Ok(())
}

fn check_failure(state: &mut State) -> Result<(), Error> {
    match state.failure.take() {
        None if state.is_stopped => Err(Error::Stopped),
        None => Ok(()),
        Some(error) => {
            state.is_stopped = true;
            Err(error)
        }
    }
}

fn len(members: &[Slice]) -> u64 {
    members.iter().map(|member| member.len).sum()
}

fn ordinal(at: usize) -> u32 {
    u32::try_from(at).unwrap_or(u32::MAX)
}

fn as_u64(len: usize) -> u64 {
    u64::try_from(len).unwrap_or(u64::MAX)
}
