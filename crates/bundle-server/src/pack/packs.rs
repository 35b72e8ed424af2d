//! All packs of a folder: which there are, who uses them, and which leave when room is needed.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::{FlockOperation, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT};

use crate::pack::RecordLocation;
use pierhead_bundle::{Coding, RECORD_HEAD, RecordHead};
use pierhead_toc::Error;

use super::disk::{Disk, DiskChange};
use super::file::{PackFile, index_path, missing, on_disk, pack_path};
use super::frame::FAST;
use super::index::{self, HEADER, INDEX_MAGIC, PACK_MAGIC};
use super::writer::{Open, Writer};
use super::{ContentRange, PackedFrame, is_fast, recovery};

/// Where packs lie, and how much they may take.
#[derive(Clone, Debug)]
pub struct PackConfig {
    /// Theirs alone.
    pub folder: PathBuf,
    /// Bytes on disk of everything in it, in whole blocks of 4 KiB, evicted packs that somebody still reads
    /// included. Never exceeded.
    pub budget: u64,
    /// Bytes at which a pack is full. Packs are evicted whole, so this is the grain of eviction; each takes
    /// two open files.
    pub pack: u64,
}

impl PackConfig {
    /// With packs of a 128th of the budget, at least 8 MiB (two of the longest records), at most 1 GiB.
    pub fn new(folder: impl Into<PathBuf>, budget: u64) -> Self {
        Self {
            folder: folder.into(),
            budget,
            pack: (budget / 128).clamp(8 << 20, 1 << 30),
        }
    }

    /// Bytes at which a pack is full. Quick ones are shorter: one leaves when the last of its images was improved.
    pub(super) fn most(&self, is_fast: bool) -> u64 {
        if is_fast {
            (self.pack / 4).max(self.pack.min(8 << 20))
        } else {
            self.pack
        }
    }
}

/// What there is, and what happened since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PackStats {
    /// Bytes on disk, as [`PackConfig::budget`] counts them.
    pub bytes: u64,
    /// Files of records.
    pub packs: u64,
    /// Records in them.
    pub records: u64,
    /// Packs that left to make room.
    pub evicted: u64,
    /// Frames written.
    pub appended: u64,
}

/// See the head of this module. Shared by threads; every method may block on the disk.
pub struct Packs {
    pub(super) config: PackConfig,
    pub(super) disk: Disk,
    /// Held by whoever makes or deletes files, and never asked for under `state`, which nobody holds meanwhile:
    /// threads that may not wait for the disk take that one.
    changes: Mutex<()>,
    state: Mutex<State>,
    total: Arc<AtomicU64>,
    appended: AtomicU64,
    _lock: File,
}

struct State {
    packs: BTreeMap<u32, Entry>,
    /// Packs with room that nobody writes to.
    idle: Vec<Open>,
    /// No pack had this number yet, nor any after it.
    next: u32,
    tick: u64,
    evicted: u64,
}

struct Entry {
    file: Arc<PackFile>,
    /// When it was used last; the least goes first.
    used: u64,
    /// Whether the disk has been told so.
    is_told: bool,
}

/// After a lost count of packs numbers go on so far beyond those that are there.
const LEAP: u32 = 1 << 16;

impl Packs {
    /// Takes over what is there; what a kill left half written is cut off, and packs over the budget leave.
    ///
    /// # Errors
    /// [`Error::Io`]: `WouldBlock` inside when another process (or this one) has the folder open.
    pub fn open(config: PackConfig) -> Result<Self, Error> {
        Self::open_on(config, Disk::default())
    }

    /// The same, which asks `watch` before every change to the disk: how tests cut it in two.
    ///
    /// # Errors
    /// As [`Self::open`], and what `watch` says.
    pub fn open_watched(
        config: PackConfig,
        watch: impl Fn(DiskChange<'_>) -> io::Result<()> + Send + Sync + 'static,
    ) -> Result<Self, Error> {
        Self::open_on(config, Disk::new(Some(Arc::new(watch))))
    }

    fn open_on(config: PackConfig, disk: Disk) -> Result<Self, Error> {
        let failed = |error| Error::io(format!("open {}", config.folder.display()), error);
        fs::create_dir_all(&config.folder).map_err(failed)?;
        let lock = lock(&config.folder).map_err(failed)?;
        let total = Arc::new(AtomicU64::new(0));
        let numbers = recovery::numbers(&config.folder).map_err(failed)?;
        let mut found = Vec::new();
        for number in &numbers {
            match recovery::open(&disk, &config.folder, *number).map_err(failed)? {
                Some(pack) => found.push(pack),
                // Counted, so that all packs together keep their bound.
                None => {
                    let bytes = recovery::unopened_bytes(&config.folder, *number);
                    total.fetch_add(bytes, Ordering::Relaxed);
                }
            }
        }
        found.sort_by_key(|pack| pack.used);
        let next = first_free(&config.folder, &numbers);
        let mut state = State {
            packs: BTreeMap::new(),
            idle: Vec::new(),
            next,
            tick: 0,
            evicted: 0,
        };
        for pack in found {
            let bytes = on_disk(pack.lens.0) + on_disk(pack.lens.1);
            total.fetch_add(bytes, Ordering::Relaxed);
            let has_room = pack.lens.0 < config.most(is_fast(pack.number)) / 2;
            let file = PackFile::new(pack.number, pack.files, pack.records, bytes, total.clone());
            state.enter(Arc::new(file), has_room.then_some(pack.lens));
        }
        let packs = Self {
            config,
            disk,
            changes: Mutex::default(),
            state: Mutex::new(state),
            total,
            appended: AtomicU64::new(0),
            _lock: lock,
        };
        packs.make_room(0)?;
        Ok(packs)
    }

    /// A pack of one's own to append to, so that one's records lie one after the other.
    pub fn writer(&self) -> Writer<'_> {
        Writer::new(self, false)
    }

    /// The same for frames that better ones will replace.
    pub fn fast_writer(&self) -> Writer<'_> {
        Writer::new(self, true)
    }

    /// Appends one record. For more than one, [`Self::writer`].
    ///
    /// # Errors
    /// Those of [`Writer::append`].
    pub fn append(
        &self,
        members: &[ContentRange],
        coding: Coding,
        payload: &[u8],
    ) -> Result<RecordLocation, Error> {
        self.writer().append(members, coding, payload)
    }

    /// Whether a record lies there. In memory; it is no use.
    pub fn contains(&self, place: &RecordLocation) -> bool {
        let state = self.state();
        state
            .packs
            .get(&place.pack)
            .is_some_and(|entry| entry.file.find(place).is_some())
    }

    /// Whether a pack has this number. In memory; it is no use of the pack.
    pub(crate) fn has(&self, number: u32) -> bool {
        self.state().packs.contains_key(&number)
    }

    /// A handle on the pack that has a record: it outlives eviction, and keeps its pack from being evicted.
    ///
    /// # Errors
    /// [`Error::Missing`] when the record is not here (any more).
    pub fn file(&self, place: &RecordLocation) -> Result<Arc<PackFile>, Error> {
        let mut state = self.state();
        state.tick += 1;
        let tick = state.tick;
        let entry = state
            .packs
            .get_mut(&place.pack)
            .filter(|entry| entry.file.find(place).is_some())
            .ok_or_else(|| missing(place))?;
        (entry.used, entry.is_told) = (tick, false);
        Ok(entry.file.clone())
    }

    /// Whether the record was found sound since the last [`Self::maintain`], so that it may leave by `sendfile`.
    /// In memory.
    pub fn is_verified(&self, place: &RecordLocation) -> bool {
        let state = self.state();
        state
            .packs
            .get(&place.pack)
            .and_then(|entry| entry.file.find(place))
            .is_some_and(|(_, is_verified)| is_verified)
    }

    /// Reads a record and compares its checksum, which brings it into the page cache besides: 1 to 2 GB/s on a busy
    /// core, reading included.
    ///
    /// # Errors
    /// [`Error::Malformed`] when it is damaged: then it is dropped, as if it had never been packed.
    /// [`Error::Missing`] when it is not here.
    pub fn check(&self, place: &RecordLocation) -> Result<(), Error> {
        self.file(place)?.check(place)
    }

    /// Reads a record and compares its checksum; `payload` is replaced by what is in it.
    ///
    /// # Errors
    /// As [`Self::check`].
    pub fn read(&self, place: &RecordLocation, payload: &mut Vec<u8>) -> Result<RecordHead, Error> {
        self.file(place)?.read(place, payload)
    }

    /// The head of a record, as it lies there: one short read, nothing is checked.
    ///
    /// # Errors
    /// [`Error::Missing`] when it is not here; [`Error::Io`].
    pub fn head(&self, place: &RecordLocation) -> Result<[u8; RECORD_HEAD], Error> {
        self.file(place)?.head(place)
    }

    /// What a frame holds, from the index. One short read.
    ///
    /// # Errors
    /// As [`Self::check`].
    pub fn frame(&self, place: &RecordLocation) -> Result<PackedFrame, Error> {
        self.file(place)?.frame(place)
    }

    /// Visits all that is packed, to rebuild what is known from it. No record is read, and it counts as no use.
    ///
    /// # Errors
    /// Those of `visit` and of the disk. What is damaged is passed over.
    pub fn scan(
        &self,
        visit: &mut dyn FnMut(PackedFrame) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let numbers: Vec<u32> = self.state().packs.keys().copied().collect();
        for number in numbers {
            let file = self
                .state()
                .packs
                .get(&number)
                .map(|entry| entry.file.clone());
            let Some(file) = file else { continue };
            for place in file.places() {
                match file.frame(&place) {
                    Ok(frame) => visit(frame)?,
                    Err(Error::Malformed { .. } | Error::Missing(_)) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }

    /// To be called every few minutes: checks older than this are believed no more (pages may have been dropped
    /// and be read again), and which packs were used is told to the disk, for the order after a restart.
    pub fn maintain(&self) {
        let (mut all, mut used) = (Vec::new(), Vec::new());
        for entry in self.state().packs.values_mut() {
            all.push(entry.file.clone());
            if !std::mem::replace(&mut entry.is_told, true) {
                used.push((entry.used, entry.file.clone()));
            }
        }
        for file in &all {
            file.forget_verified();
        }
        used.sort_by_key(|(tick, _)| *tick);
        for (_, file) in used {
            let stamp = |tv_nsec| Timespec { tv_sec: 0, tv_nsec };
            let now = Timestamps {
                last_access: stamp(UTIME_OMIT),
                last_modification: stamp(UTIME_NOW),
            };
            // Advice: an order that is lost costs a pack that was used.
            let _ = rustix::fs::futimens(&file.index, &now);
        }
    }

    /// Counts, without reading anything.
    pub fn stat(&self) -> PackStats {
        let state = self.state();
        let records: usize = state.packs.values().map(|entry| entry.file.count()).sum();
        PackStats {
            bytes: self.total.load(Ordering::Relaxed),
            packs: state.packs.len() as u64,
            records: records as u64,
            evicted: state.evicted,
            appended: self.appended.load(Ordering::Relaxed),
        }
    }

    /// Bytes that were written to files since it was opened, indexes included.
    pub(crate) fn written(&self) -> u64 {
        self.disk.written()
    }

    /// A pack to append to: one with room, else a new one.
    pub(super) fn take_open(&self, need: u64, fast: bool) -> Result<Open, Error> {
        let fits = |open: &Open| {
            is_fast(open.file.number()) == fast && open.data + need <= self.config.most(fast)
        };
        let _changes = self.changes();
        let next = {
            let mut state = self.state();
            if let Some(at) = state.idle.iter().position(fits) {
                return Ok(state.idle.swap_remove(at));
            }
            state.next
        };
        self.make_room(2 * on_disk(HEADER as u64))?;
        let number = next | if fast { FAST } else { 0 };
        let failed = |error| Error::io(format!("make pack {number:08x}"), error);
        // The last numbers are no packs in plans.
        let next = Some(next + 1)
            .filter(|next| *next < FAST - 2)
            .ok_or_else(|| failed(io::ErrorKind::StorageFull.into()))?;
        // Before the pack: a number is given once, whatever happens.
        self.disk
            .replace(&next_path(&self.config.folder), &next_bytes(next))
            .map_err(failed)?;
        self.state().next = next;
        let files = self.create(number).map_err(|error| {
            let _ = recovery::remove(&self.disk, &self.config.folder, number);
            failed(error)
        })?;
        let file = PackFile::new(number, files, Vec::new(), 0, self.total.clone());
        file.set_bytes(2 * on_disk(HEADER as u64));
        let mut state = self.state();
        state.enter(Arc::new(file), Some((HEADER as u64, HEADER as u64)));
        state
            .idle
            .pop()
            .ok_or_else(|| failed(io::ErrorKind::NotFound.into()))
    }

    fn create(&self, number: u32) -> io::Result<(File, File)> {
        let make = |path: &Path, magic| {
            let file = self.disk.create(path)?;
            self.disk
                .write(path, &file, 0, &index::header(magic, number))?;
            io::Result::Ok(file)
        };
        let data = make(&pack_path(&self.config.folder, number), PACK_MAGIC)?;
        Ok((
            data,
            make(&index_path(&self.config.folder, number), INDEX_MAGIC)?,
        ))
    }

    /// Takes a pack back that may be appended to again.
    pub(super) fn give_back(&self, open: Open) {
        if open.data < self.config.most(is_fast(open.file.number())) {
            self.state().idle.push(open);
        }
    }

    /// Sets bytes aside for what `open` is about to take, evicting what was used least lately.
    pub(super) fn reserve(&self, open: &Open, bytes: u64) -> Result<(), Error> {
        let more = bytes.saturating_sub(open.file.bytes());
        let _changes = self.changes();
        self.make_room(more)?;
        // Before anybody else makes room: nobody takes what was just made.
        open.file.set_bytes(bytes);
        Ok(())
    }

    pub(super) fn count_appended(&self) {
        self.appended.fetch_add(1, Ordering::Relaxed);
    }

    /// Deletes the fast packs that `keep` rejects and that are not in use. Returns their number.
    ///
    /// # Errors
    /// [`Error::Io`] when one cannot be deleted.
    pub fn drop_fast(&self, keep: &dyn Fn(u32) -> bool) -> Result<u64, Error> {
        self.retain(&|number| !is_fast(number) || keep(number))
    }

    /// Deletes the packs that `keep` rejects and that are not in use. Returns their number.
    ///
    /// # Errors
    /// [`Error::Io`] when one cannot be deleted.
    pub fn retain(&self, keep: &dyn Fn(u32) -> bool) -> Result<u64, Error> {
        let _changes = self.changes();
        let is_over = |state: &State, number: u32| !keep(number) && state.is_free(number);
        let mut gone = 0;
        loop {
            let pick = |state: &State| state.packs.keys().copied().find(|it| is_over(state, *it));
            let victim = self.state().take(pick);
            let Some(victim) = victim else {
                return Ok(gone);
            };
            self.remove(victim)?;
            gone += 1;
        }
    }

    /// Deletes the files of a pack that was taken out; it is back if they cannot be deleted.
    fn remove(&self, victim: (Entry, Option<Open>)) -> Result<(), Error> {
        let number = victim.0.file.number();
        let removed = recovery::remove(&self.disk, &self.config.folder, number);
        removed.map_err(|error| {
            let mut state = self.state();
            state.packs.insert(number, victim.0);
            state.idle.extend(victim.1);
            Error::io(format!("evict pack {number:08x}"), error)
        })
    }

    /// Evicts the least recently used packs until at most `most` bytes are left. Packs in use stay.
    ///
    /// # Errors
    /// [`Error::Io`] when a pack cannot be deleted.
    pub fn evict_to(&self, most: u64) -> Result<(), Error> {
        let _changes = self.changes();
        while self.total.load(Ordering::Relaxed) > most && self.evict_oldest()? {}
        Ok(())
    }

    /// Evicts the least recently used pack; `false` when all are in use. The caller holds `changes`.
    fn evict_oldest(&self) -> Result<bool, Error> {
        let oldest = |state: &State| {
            let free = state.packs.iter().filter(|(it, _)| state.is_free(**it));
            let oldest = free.min_by_key(|(_, entry)| entry.used);
            oldest.map(|(number, _)| *number)
        };
        let Some(victim) = self.state().take(oldest) else {
            return Ok(false);
        };
        self.remove(victim)?;
        self.state().evicted += 1;
        Ok(true)
    }

    /// Packs that somebody holds stay: deleting them would free nothing yet. Under `changes`.
    fn make_room(&self, more: u64) -> Result<(), Error> {
        while self.total.load(Ordering::Relaxed).saturating_add(more) > self.config.budget {
            if !self.evict_oldest()? {
                let full = io::Error::new(
                    io::ErrorKind::StorageFull,
                    "the budget of the packs is used up",
                );
                return Err(Error::io("make room in the packs", full));
            }
        }
        Ok(())
    }

    fn changes(&self) -> MutexGuard<'_, ()> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Whether nobody reads it or writes to it.
    fn is_free(&self, number: u32) -> bool {
        let is_idle = self.idle.iter().any(|open| open.file.number() == number);
        self.packs
            .get(&number)
            .is_some_and(|entry| Arc::strong_count(&entry.file) == 1 + usize::from(is_idle))
    }

    /// Takes a pack out, so that nobody finds it any more.
    fn take(&mut self, pick: impl FnOnce(&Self) -> Option<u32>) -> Option<(Entry, Option<Open>)> {
        let number = pick(self)?;
        let idle = self.idle.iter();
        let at = idle
            .map(|open| open.file.number())
            .position(|of| of == number);
        let open = at.map(|at| self.idle.swap_remove(at));
        Some((self.packs.remove(&number)?, open))
    }

    /// The newest of all; with the lengths of its files if it may be appended to.
    fn enter(&mut self, file: Arc<PackFile>, open: Option<(u64, u64)>) {
        self.tick += 1;
        if let Some((data, index)) = open {
            self.idle.push(Open {
                file: file.clone(),
                data,
                index,
            });
        }
        let entry = Entry {
            used: self.tick,
            is_told: true,
            file,
        };
        self.packs.insert(entry.file.number(), entry);
    }
}

fn lock(folder: &Path) -> io::Result<File> {
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .open(folder.join("lock"))?;
    rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
    Ok(file)
}

fn next_path(folder: &Path) -> PathBuf {
    folder.join("next")
}

fn next_bytes(next: u32) -> [u8; 8] {
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&next.to_le_bytes());
    bytes[4..].copy_from_slice(&crc32c::crc32c(&next.to_le_bytes()).to_le_bytes());
    bytes
}

/// Places outlive their packs in what others wrote down, so that no number may be given twice.
fn first_free(folder: &Path, numbers: &[u32]) -> u32 {
    let counts = numbers.iter().map(|number| number & !FAST);
    let above = counts.max().map_or(0, |last| last.saturating_add(1));
    let read = fs::read(next_path(folder)).ok().and_then(|bytes| {
        let next = u32::from_le_bytes(*bytes.first_chunk()?);
        (bytes == next_bytes(next)).then_some(next)
    });
    match read {
        Some(next) => next.max(above),
        None if numbers.is_empty() => 0,
        None => above.saturating_add(LEAP),
    }
}
