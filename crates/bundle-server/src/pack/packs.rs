//! All packs (files of compressed frames) of a folder: reads records, appends records, and evicts
//! whole packs to stay within a byte budget.

use parking_lot::{Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use pierhead_atomic_file::{open_regular, open_regular_with};
use rustix::fs::{FlockOperation, OFlags, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT};

use crate::Error;
use crate::pack::RecordLocation;
use pierhead_bundle::{Coding, RECORD_HEAD, RecordHead};

use super::disk::{Disk, DiskChange};
use super::file::{PackFile, index_path, missing, on_disk, pack_path};
use super::frame::FAST_BIT;
use super::index::{self, HEADER, INDEX_MAGIC, PACK_MAGIC};
use super::writer::{Open, Writer};
use super::{ContentRange, PackedFrame, is_fast, recovery};

/// The folder of the packs, and their limits on disk.
#[derive(Clone, Debug)]
pub struct PackConfig {
    /// The folder of the packs, which contains no other files.
    pub folder: PathBuf,
    /// Maximum number of bytes on disk of the folder, in whole blocks of 4 KiB. The size includes
    /// evicted packs that are still being read. The packs never exceed this budget.
    pub budget: u64,
    /// Size in bytes at which a pack is full. The server evicts whole packs. Each pack takes two
    /// file descriptors.
    pub pack: u64,
}

impl PackConfig {
    /// Creates a configuration with packs of 1/128 of the budget, at least 8 MiB (two records of
    /// maximum length) and at most 1 GiB.
    pub fn new(folder: impl Into<PathBuf>, budget: u64) -> Self {
        Self {
            folder: folder.into(),
            budget,
            pack: (budget / 128).clamp(8 << 20, 1 << 30),
        }
    }

    /// Returns the size in bytes at which a pack is full. The limit is lower for fast packs: a fast
    /// pack is deleted after all of its images were optimized.
    pub(super) fn most(&self, is_fast: bool) -> u64 {
        if is_fast {
            (self.pack / 4).max(self.pack.min(8 << 20))
        } else {
            self.pack
        }
    }
}

/// The current state of the packs, and counters since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PackStats {
    /// Bytes on disk of all packs, as [`PackConfig::budget`] counts them.
    pub bytes: u64,
    /// Number of packs in the folder.
    pub packs: u64,
    /// Number of records in all packs.
    pub records: u64,
    /// Number of packs that were evicted to make room.
    pub evicted: u64,
    /// Number of records that were written.
    pub appended: u64,
}

/// All packs of a folder. Several threads may share this value. A method may block on the disk,
/// unless its documentation says otherwise.
pub struct Packs {
    pub(super) config: PackConfig,
    pub(super) disk: Disk,
    /// The lock that a thread holds while it creates or deletes files. Lock order: `changes` before
    /// `state`. No thread holds `state` while it waits for the disk, so that async threads may lock
    /// `state`.
    changes: Mutex<()>,
    state: Mutex<State>,
    total: Arc<AtomicU64>,
    appended: AtomicU64,
    _lock: File,
}

struct State {
    packs: BTreeMap<u32, Entry>,
    /// Packs that have free room, and that no writer uses.
    idle: Vec<Open>,
    /// The number of the next new pack. No pack ever had this number or a higher number.
    next: u32,
    tick: u64,
    evicted: u64,
}

struct Entry {
    file: Arc<PackFile>,
    /// Tick of the last use. The pack with the lowest tick is evicted first.
    used: u64,
    /// Whether the time of the last use is already stored on disk.
    is_saved: bool,
}

/// Gap between the highest existing number and the next number, if the file that stores the next
/// number is lost.
const NUMBER_GAP: u32 = 1 << 16;

impl Packs {
    /// Opens all packs of the folder. Cuts off incomplete records, which a kill leaves, and evicts
    /// packs above the budget.
    ///
    /// # Errors
    /// [`Error::Io`], with `WouldBlock` inside when this process or another process has already
    /// opened the folder.
    pub fn open(config: PackConfig) -> Result<Self, Error> {
        Self::open_on(config, Disk::default())
    }

    /// Opens all packs of the folder as [`Self::open`] does, for crash tests: calls `watch` before
    /// each operation on the disk.
    ///
    /// # Errors
    /// Errors of [`Self::open`], and errors that `watch` returns.
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
                // The files of a pack that cannot be opened count towards the budget, so that the
                // whole folder stays within the budget.
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

    /// Returns a writer with its own pack, so that the records of this writer are adjacent.
    pub fn writer(&self) -> Writer<'_> {
        Writer::new(self, false)
    }

    /// Returns a writer of fast frames, with its own fast pack.
    pub fn fast_writer(&self) -> Writer<'_> {
        Writer::new(self, true)
    }

    /// Appends one record. For several records, use [`Self::writer`].
    ///
    /// # Errors
    /// Errors of [`Writer::append`].
    pub fn append(
        &self,
        members: &[ContentRange],
        coding: Coding,
        payload: &[u8],
    ) -> Result<RecordLocation, Error> {
        self.writer().append(members, coding, payload)
    }

    /// Whether there is a record at `location`. The call does not block, and does not count as a
    /// use of the pack.
    pub fn contains(&self, location: &RecordLocation) -> bool {
        let state = self.state();
        state
            .packs
            .get(&location.pack)
            .is_some_and(|entry| entry.file.find(location).is_some())
    }

    /// Whether a pack with this number exists. The call does not block, and does not count as a use
    /// of the pack.
    pub(crate) fn has(&self, number: u32) -> bool {
        self.state().packs.contains_key(&number)
    }

    /// Returns a handle to the pack that contains the record at `location`. The server does not
    /// evict a pack while a handle to it exists.
    ///
    /// # Errors
    /// [`Error::Missing`] when there is no such record.
    pub fn file(&self, location: &RecordLocation) -> Result<Arc<PackFile>, Error> {
        let mut state = self.state();
        state.tick += 1;
        let tick = state.tick;
        let entry = state
            .packs
            .get_mut(&location.pack)
            .filter(|entry| entry.file.find(location).is_some())
            .ok_or_else(|| missing(location))?;
        (entry.used, entry.is_saved) = (tick, false);
        Ok(entry.file.clone())
    }

    /// Whether the record was verified since the last [`Self::maintain`], so that it may be sent by
    /// `sendfile`. The call does not block.
    pub fn is_verified(&self, location: &RecordLocation) -> bool {
        let state = self.state();
        state
            .packs
            .get(&location.pack)
            .and_then(|entry| entry.file.find(location))
            .is_some_and(|(_, is_verified)| is_verified)
    }

    /// Reads a record and verifies its checksum. Afterwards, the record is in the page cache. A
    /// busy core reads and verifies 1 to 2 GB/s.
    ///
    /// # Errors
    /// [`Error::Malformed`] when the record is damaged; the record is then removed, as if it had
    /// never been packed. [`Error::Missing`] when there is no such record.
    pub fn check(&self, location: &RecordLocation) -> Result<(), Error> {
        self.file(location)?.check(location)
    }

    /// Reads a record into `payload`, and verifies its checksum.
    ///
    /// # Errors
    /// The same errors as from [`Self::check`].
    pub fn read(
        &self,
        location: &RecordLocation,
        payload: &mut Vec<u8>,
    ) -> Result<RecordHead, Error> {
        self.file(location)?.read(location, payload)
    }

    /// Reads the head of a record by one short read, without verification.
    ///
    /// # Errors
    /// [`Error::Missing`] when there is no such record; [`Error::Io`].
    pub fn head(&self, location: &RecordLocation) -> Result<[u8; RECORD_HEAD], Error> {
        self.file(location)?.head(location)
    }

    /// Reads the frame of a record from the index of its pack, by one short read.
    ///
    /// # Errors
    /// The same errors as from [`Self::check`].
    pub fn frame(&self, location: &RecordLocation) -> Result<PackedFrame, Error> {
        self.file(location)?.frame(location)
    }

    /// Visits all frames of all packs, to rebuild the image database. The call reads only the index
    /// files, and does not count as a use of the packs.
    ///
    /// # Errors
    /// Errors of `visit` and of the disk. Damaged entries are skipped.
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
            for location in file.locations() {
                match file.frame(&location) {
                    Ok(frame) => visit(frame)?,
                    Err(Error::Malformed { .. } | Error::Missing(_)) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }

    /// Marks all records as unverified, since the kernel may drop their pages and later read these
    /// pages from the disk again. Also stores on disk when each pack was last used, for the order
    /// of eviction after a restart. Callers run this function every few minutes.
    pub fn maintain(&self) {
        let (mut all, mut used) = (Vec::new(), Vec::new());
        for entry in self.state().packs.values_mut() {
            all.push(entry.file.clone());
            if !std::mem::replace(&mut entry.is_saved, true) {
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
            // An error is ignored, since it only changes the order of eviction after a restart.
            let _ = rustix::fs::futimens(&file.index, &now);
        }
    }

    /// Returns the current sizes and counters, without reading the disk.
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

    /// Returns the number of bytes written to packs and their indexes since the start.
    pub(crate) fn written(&self) -> u64 {
        self.disk.written()
    }

    /// Takes a pack with `need` free bytes, or creates a new pack.
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
        let number = next | if fast { FAST_BIT } else { 0 };
        let failed = |error| Error::io(format!("make pack {number:08x}"), error);
        // The highest numbers are reserved: plan files use them to mark records outside packs.
        let next = Some(next + 1)
            .filter(|next| *next < FAST_BIT - 2)
            .ok_or_else(|| failed(io::ErrorKind::StorageFull.into()))?;
        // The next number is stored before the pack is created, so that no two packs ever get the
        // same number.
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

    /// Gives back a pack that still has free room, for the next writer.
    pub(super) fn give_back(&self, open: Open) {
        if open.data < self.config.most(is_fast(open.file.number())) {
            self.state().idle.push(open);
        }
    }

    /// Reserves bytes for an append to `open`. Evicts the least recently used packs if the budget
    /// requires it.
    pub(super) fn reserve(&self, open: &Open, bytes: u64) -> Result<(), Error> {
        let more = bytes.saturating_sub(open.file.bytes());
        let _changes = self.changes();
        self.make_room(more)?;
        // The size is set before the lock is released, so that no other thread takes the same room.
        open.file.set_bytes(bytes);
        Ok(())
    }

    pub(super) fn count_appended(&self) {
        self.appended.fetch_add(1, Ordering::Relaxed);
    }

    /// Deletes the fast packs that `keep` rejects and that are not in use. Returns the number of
    /// deleted packs.
    ///
    /// # Errors
    /// [`Error::Io`] when a pack cannot be deleted.
    pub fn drop_fast(&self, keep: &dyn Fn(u32) -> bool) -> Result<u64, Error> {
        self.retain(&|number| !is_fast(number) || keep(number))
    }

    /// Deletes the packs that `keep` rejects and that are not in use. Returns the number of deleted
    /// packs.
    ///
    /// # Errors
    /// [`Error::Io`] when a pack cannot be deleted.
    pub fn retain(&self, keep: &dyn Fn(u32) -> bool) -> Result<u64, Error> {
        let _changes = self.changes();
        let is_rejected = |state: &State, number: u32| !keep(number) && state.is_free(number);
        let mut deleted = 0;
        loop {
            let pick = |state: &State| {
                state
                    .packs
                    .keys()
                    .copied()
                    .find(|it| is_rejected(state, *it))
            };
            let victim = self.state().take(pick);
            let Some(victim) = victim else {
                return Ok(deleted);
            };
            self.remove(victim)?;
            deleted += 1;
        }
    }

    /// Deletes the files of a pack that was removed from the state. When the deletion fails, the
    /// pack is put back into the state.
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

    /// Evicts the least recently used packs until at most `most` bytes are left. Packs in use are
    /// not evicted.
    ///
    /// # Errors
    /// [`Error::Io`] when a pack cannot be deleted.
    pub fn evict_to(&self, most: u64) -> Result<(), Error> {
        let _changes = self.changes();
        while self.total.load(Ordering::Relaxed) > most && self.evict_oldest()? {}
        Ok(())
    }

    /// Evicts the least recently used pack. Returns `false` when all packs are in use. The caller
    /// holds `changes`.
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

    /// Evicts packs until `more` bytes fit into the budget. Packs in use are not evicted, since
    /// their deletion would free no disk space. The caller holds `changes`.
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
        self.changes.lock()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

impl State {
    /// Whether a pack has no reader and no writer.
    fn is_free(&self, number: u32) -> bool {
        let is_idle = self.idle.iter().any(|open| open.file.number() == number);
        self.packs
            .get(&number)
            .is_some_and(|entry| Arc::strong_count(&entry.file) == 1 + usize::from(is_idle))
    }

    /// Removes the pack that `pick` chooses from the state.
    fn take(&mut self, pick: impl FnOnce(&Self) -> Option<u32>) -> Option<(Entry, Option<Open>)> {
        let number = pick(self)?;
        let idle = self.idle.iter();
        let at = idle
            .map(|open| open.file.number())
            .position(|of| of == number);
        let open = at.map(|at| self.idle.swap_remove(at));
        Some((self.packs.remove(&number)?, open))
    }

    /// Adds a pack to the state, as the most recently used pack. `open` has the lengths of the
    /// pack's two files if the pack has free room.
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
            is_saved: true,
            file,
        };
        self.packs.insert(entry.file.number(), entry);
    }
}

/// Locks the folder, so that no second process opens it.
fn lock(folder: &Path) -> io::Result<File> {
    let path = folder.join("lock");
    let mut options = OpenOptions::new();
    // With the right to read, opening a pipe succeeds, and the error then names the pipe.
    (options.read(true).write(true))
        .create(true)
        .truncate(false);
    let file = open_regular_with(&mut options, OFlags::empty(), &path)
        .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))?;
    rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
    Ok(file)
}

/// Length in bytes of the file that stores the number of the next pack.
const NEXT_LEN: u64 = 8;

/// Returns the path of the file that stores the number of the next pack.
fn next_path(folder: &Path) -> PathBuf {
    folder.join("next")
}

fn next_bytes(next: u32) -> [u8; 8] {
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&next.to_le_bytes());
    bytes[4..].copy_from_slice(&crc32c::crc32c(&next.to_le_bytes()).to_le_bytes());
    bytes
}

/// Returns the number of the next pack, which is larger than the number of any earlier pack. Plans
/// and the image database may name locations in deleted packs, so no two packs may ever have the
/// same number.
fn first_free(folder: &Path, numbers: &[u32]) -> u32 {
    let counts = numbers.iter().map(|number| number & !FAST_BIT);
    let above = counts.max().map_or(0, |last| last.saturating_add(1));
    let read = open_regular(&next_path(folder)).ok().and_then(|file| {
        let mut bytes = Vec::new();
        file.take(NEXT_LEN + 1).read_to_end(&mut bytes).ok()?;
        let next = u32::from_le_bytes(*bytes.first_chunk()?);
        (bytes == next_bytes(next)).then_some(next)
    });
    match read {
        Some(next) => next.max(above),
        None if numbers.is_empty() => 0,
        None => above.saturating_add(NUMBER_GAP),
    }
}
