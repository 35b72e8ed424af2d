//! Applies a bundle to a store: records in from any thread, contents out, in bounded memory.

mod work;

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use super::fetch::Folder;
use super::image::needed;
use super::parts::{Part, Receive};
use super::{Image, Store};
use pierhead_bundle::api::BundleQuery;
use pierhead_bundle::format::{Header, Sizes, UsableContents};
use pierhead_bundle::{Coding, Frame, Slice};
use pierhead_toc::{Error, FileDigest, ImageToc};

/// Payloads that wait for a thread, or that one is at.
const QUEUED: u64 = 8 << 20;
/// Bases and outputs of all threads together: one frame with all that it may have, and little besides.
const AT_WORK: u64 = 24 << 20;
/// Members and bases of all frames together: bounds what the list takes in memory.
const MAX_SLICES: usize = 600_000;
/// More threads than this wait for each other in the file system.
const MAX_THREADS: usize = 4;

/// A bundle that is being applied. [`Apply::record`] may be called from several threads. Dropped before the end, it can
/// be resumed.
pub struct Apply {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// How [`Apply::finish`] ended.
#[derive(Debug)]
pub enum Outcome {
    /// All contents are here, and the image is about to be recorded.
    Complete(Box<Whole>),
    /// These contents are to be fetched one by one; then `finish` is called again.
    Need(Vec<(FileDigest, u64)>),
}

/// An image whose contents are all in the store, verified: it can be exported. A thread brings them to the disk meanwhile
/// and records it then, which takes as long as the disk does. Dropped, or killed, before that, the fetch is resumed.
#[derive(Debug)]
pub struct Whole {
    image: Image,
    recording: Option<JoinHandle<Result<Image, Error>>>,
}

impl Whole {
    /// The image.
    pub fn image(&self) -> &Image {
        &self.image
    }

    /// Waits until a crash of the system cannot take it any more.
    ///
    /// # Errors
    /// The file system's; another process has recorded another tree of it meanwhile.
    pub fn recorded(self) -> Result<Image, Error> {
        match self.recording.map(JoinHandle::join) {
            None => Ok(self.image),
            Some(Ok(recorded)) => recorded,
            Some(Err(panic)) => std::panic::resume_unwind(panic),
        }
    }
}

/// Of an image that was recorded before.
impl From<Image> for Whole {
    fn from(image: Image) -> Self {
        Self {
            image,
            recording: None,
        }
    }
}

/// What came how, so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Frames as they are, and contents fetched one by one.
    pub full: Moved,
    /// Frames against what was there.
    pub patched: Moved,
    /// Ranges of what was there.
    pub chunked: Moved,
    /// Contents that were there; counted by `finish`.
    pub reused: Moved,
}

/// Part of [`Counts`]; a content of several ranges is counted with its first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// How many.
    pub contents: u64,
    /// Bytes of them, uncompressed.
    pub bytes: u64,
}

struct Shared {
    store: Store,
    folder: Folder,
    header: Header,
    tables: Tables,
    frames: Vec<Frame>,
    state: Mutex<State>,
    changed: Condvar,
}

struct Tables {
    want: ImageToc,
    base_images: Vec<(UsableContents, Option<ImageToc>)>,
}

#[derive(Default)]
struct State {
    queue: VecDeque<(u32, Coding, Vec<u8>)>,
    queued: u64,
    copies: VecDeque<u32>,
    at_work: u64,
    busy: usize,
    done: Vec<bool>,
    parts: HashMap<u32, Arc<Mutex<Option<Part>>>>,
    failed: Option<Error>,
    stop: bool,
    counts: Counts,
}

impl Sizes for Tables {
    fn wanted(&self, content: u32) -> Option<u64> {
        self.want.contents().size(content)
    }

    fn base(&self, have: u16, content: u32) -> Option<u64> {
        self.base(have, content).map(|(_, size)| size)
    }
}

impl Tables {
    fn base(&self, have: u16, content: u32) -> Option<(FileDigest, u64)> {
        let (known, table) = self.base_images.get(usize::from(have))?;
        let table = table.as_ref()?;
        let there = *known == UsableContents::All || content < table.visible();
        let contents = table.contents();
        there.then(|| Some((contents.content(content)?, contents.size(content)?)))?
    }

    fn wanted_content(&self, slice: &Slice) -> Result<(FileDigest, u64), Error> {
        let contents = self.want.contents();
        let found = contents
            .content(slice.content)
            .zip(contents.size(slice.content));
        found
            .ok_or_else(|| Error::malformed("frame list", "a content that the table does not have"))
    }
}

impl Apply {
    pub(super) fn new(
        store: Store,
        folder: Folder,
        mut header: Header,
        want: ImageToc,
        base_images: Vec<Option<ImageToc>>,
        log: &[u32],
    ) -> Result<Self, Error> {
        let base_images = header
            .base_images
            .iter()
            .map(|had| had.usable)
            .zip(base_images)
            .collect();
        let tables = Tables { want, base_images };
        let mut frames = Vec::new();
        let mut slices = 0;
        for frame in header.frames.cursor(&tables)? {
            let frame = frame?;
            slices += frame.members.len() + frame.bases.len();
            if slices > MAX_SLICES {
                return Err(Error::malformed(
                    "frame list",
                    "more slices than a worker holds",
                ));
            }
            frames.push(frame);
        }
        // It was taken apart by now.
        header.table.coded = Vec::new();
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
                restore(&mut state, frame, &tables, &folder, &store)?;
                continue;
            }
            state.done[at] = frame.members.iter().all(|member| {
                let found = tables.wanted_content(member);
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
            tables,
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
            lock(&shared.state).stop = true;
            shared.changed.notify_all();
        }
        Ok(Self {
            threads: Mutex::new(threads?),
            shared,
        })
    }

    /// The request that this bundle answers.
    pub fn ask(&self) -> &BundleQuery {
        &self.shared.folder.ask
    }

    /// The bundle's.
    pub fn etag(&self) -> &str {
        &self.shared.folder.etag
    }

    /// SHA-256 of the header's body: what a continuation must name.
    pub fn digest(&self) -> [u8; 32] {
        self.shared.folder.digest
    }

    /// The header, without the coded table, which has been taken apart.
    pub fn header(&self) -> &Header {
        &self.shared.header
    }

    /// The table of what is wanted.
    pub fn table(&self) -> &ImageToc {
        &self.shared.tables.want
    }

    /// Bytes that each frame gives; 0 for those without a record.
    pub fn weights(&self) -> impl Iterator<Item = u64> + '_ {
        self.shared.frames.iter().map(|frame| match frame.coding {
            Coding::Copy => 0,
            _ => len(&frame.members),
        })
    }

    /// Ranges of frames whose records are still wanted.
    pub fn missing(&self) -> Vec<Range<u32>> {
        let state = lock(&self.shared.state);
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

    /// What came how, so far.
    pub fn counts(&self) -> Counts {
        lock(&self.shared.state).counts
    }

    /// Hands over a record. Waits while too much is waiting.
    ///
    /// # Errors
    /// Whatever went wrong with this or an earlier one: the bundle cannot be applied any further. What was applied stays.
    pub fn record(&self, frame: u32, coding: Coding, payload: Vec<u8>) -> Result<(), Error> {
        let bytes = as_u64(payload.len());
        let mut state = lock(&self.shared.state);
        while state.queued > 0
            && state.queued + bytes > QUEUED
            && state.failed.is_none()
            && !state.stop
        {
            state = wait(&self.shared.changed, state);
        }
        fail(&mut state)?;
        state.queued += bytes;
        state.queue.push_back((frame, coding, payload));
        drop(state);
        self.shared.changed.notify_all();
        Ok(())
    }

    /// A content that [`Outcome::Need`] names, to be written as it arrives.
    ///
    /// # Errors
    /// The image has no such content; the file system's.
    pub fn receive(&self, content: &FileDigest) -> Result<Receive, Error> {
        let table = &self.shared.tables.want;
        let size = table
            .find(content)
            .and_then(|number| table.contents().size(number));
        let size = size.ok_or_else(|| Error::Missing(content.to_string()))?;
        let mut state = lock(&self.shared.state);
        state.counts.full.contents += 1;
        state.counts.full.bytes += size;
        drop(state);
        Receive::new(
            &self.shared.store,
            &self.shared.folder.parts(),
            *content,
            size,
        )
    }

    /// Waits for what was handed over, and looks whether the image is complete; if it is, recording it begins. Costs a
    /// system call a content.
    ///
    /// # Errors
    /// As [`Apply::record`].
    pub fn finish(&self) -> Result<Outcome, Error> {
        let shared = &self.shared;
        let mut state = lock(&shared.state);
        while !state.stop
            && state.failed.is_none()
            && (state.busy > 0 || !state.queue.is_empty() || !state.copies.is_empty())
        {
            state = wait(&shared.changed, state);
        }
        fail(&mut state)?;
        drop(state);
        let mut need = Vec::new();
        let mut all = Moved::default();
        for (content, size) in needed(&shared.tables.want, shared.header.layers) {
            all.contents += 1;
            all.bytes += size;
            if !shared.store.obtain(&content, size)? {
                need.push((content, size));
            }
        }
        if !need.is_empty() {
            return Ok(Outcome::Need(need));
        }
        let mut state = lock(&shared.state);
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
            .spawn(move || shared.record())
            .map_err(|error| Error::io("start a thread", error))?;
        Ok(Outcome::Complete(Box::new(Whole {
            image,
            recording: Some(recording),
        })))
    }
}

impl Drop for Apply {
    fn drop(&mut self) {
        lock(&self.shared.state).stop = true;
        self.shared.changed.notify_all();
        for thread in std::mem::take(&mut *lock(&self.threads)) {
            let _ = thread.join();
        }
    }
}

/// Ranges that an earlier process has written.
fn restore(
    state: &mut State,
    frame: &Frame,
    tables: &Tables,
    folder: &Folder,
    store: &Store,
) -> Result<(), Error> {
    for member in &frame.members {
        let (content, size) = tables.wanted_content(member)?;
        if member.len == size || store.0.contents.has(&content, Some(size)) {
            continue;
        }
        let part = Arc::clone(state.parts.entry(member.content).or_default());
        let mut part = lock(&part);
        if part.is_none() {
            *part = Some(Part::open(&folder.parts(), content, size)?);
        }
        if let Some(part) = part.as_mut() {
            part.cover(member.offset, member.len);
        }
    }
    Ok(())
}

fn fail(state: &mut State) -> Result<(), Error> {
    match state.failed.take() {
        None if state.stop => Err(Error::Stopped),
        None => Ok(()),
        Some(error) => {
            state.stop = true;
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

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn wait<'a>(condition: &Condvar, guard: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
    condition
        .wait(guard)
        .unwrap_or_else(PoisonError::into_inner)
}
