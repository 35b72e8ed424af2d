//! SIGBUS made an error: a page that cannot be read becomes a page of zeros, and its region is
//! marked as failed.
//!
//! A mapped file raises SIGBUS where it was truncated, where its file system is full and where the
//! memory behind it is broken. The handler finds the region in a table of slots, marks the slot,
//! and maps zeros over the page, so that the access that faulted ends. Whoever made it looks at the
//! mark afterwards and throws away what it got.
//!
//! The table is the crate's one global: a handler is told nothing but the address. It takes no
//! lock: a slot's bounds are read under a version that is odd while they change.

use std::ffi::{c_int, c_void};
use std::io;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Mutex, OnceLock, PoisonError};

/// Regions that may be mapped at once in this process; a daemon has one, the tests of a crate some
/// dozens.
pub(crate) const SLOTS: usize = 256;

/// A mark that says: sound.
const SOUND: u64 = u64::MAX;

/// As in the kernel's `siginfo.h`: memory found to be bad that nobody has touched yet.
const BUS_MCEERR_AO: c_int = 5;

struct Slot {
    taken: AtomicBool,
    version: AtomicU64,
    start: AtomicUsize,
    end: AtomicUsize,
    page: AtomicUsize,
    /// [`SOUND`], or the offset of the first fault.
    failed: AtomicU64,
}

static TABLE: [Slot; SLOTS] = [const {
    Slot {
        taken: AtomicBool::new(false),
        version: AtomicU64::new(0),
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        page: AtomicUsize::new(0),
        failed: AtomicU64::new(SOUND),
    }
}; SLOTS];

/// What handled the signal before, for the addresses of others.
static PREVIOUS: OnceLock<libc::sigaction> = OnceLock::new();

static INSTALLED: Mutex<bool> = Mutex::new(false);

impl Slot {
    fn set(&self, start: usize, end: usize, page: usize) {
        self.version.fetch_add(1, Ordering::AcqRel);
        // Who sees one of the following sees the odd version.
        fence(Ordering::Release);
        self.start.store(start, Ordering::Relaxed);
        self.end.store(end, Ordering::Relaxed);
        self.page.store(page, Ordering::Relaxed);
        self.failed.store(SOUND, Ordering::Relaxed);
        self.version.fetch_add(1, Ordering::Release);
    }

    /// Bounds and page size, unless they are changing. They never change for a region that somebody
    /// reads.
    fn bounds(&self) -> Option<(usize, usize, usize)> {
        let before = self.version.load(Ordering::Acquire);
        let bounds = (
            self.start.load(Ordering::Relaxed),
            self.end.load(Ordering::Relaxed),
            self.page.load(Ordering::Relaxed),
        );
        fence(Ordering::Acquire);
        let after = self.version.load(Ordering::Relaxed);
        (before == after && before.is_multiple_of(2)).then_some(bounds)
    }

    fn mark(&self, offset: u64) {
        // The first one stays: later ones follow from it.
        let _ = self.failed.compare_exchange(
            SOUND,
            offset.min(SOUND - 1),
            Ordering::SeqCst,
            Ordering::SeqCst,
        );
    }
}

/// A range of addresses that is watched; drop it before the range is unmapped.
#[derive(Debug)]
pub(super) struct Watched(usize);

impl Watched {
    /// Watches `len` bytes at `start`, which are mapped and stay so while this lives.
    ///
    /// Errors: the handler cannot be installed, or [`SLOTS`] ranges are watched already.
    pub(super) fn new(start: usize, len: usize, page: usize) -> io::Result<Self> {
        install()?;
        let free = |slot: &Slot| {
            slot.taken
                .compare_exchange(false, true, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
        };
        let index = TABLE.iter().position(free).ok_or_else(|| {
            io::Error::other(format!(
                "{SLOTS} regions are mapped in this process already"
            ))
        })?;
        let watched = Self(index);
        watched.slot().set(start, start.saturating_add(len), page);
        Ok(watched)
    }

    fn slot(&self) -> &'static Slot {
        &TABLE[self.0]
    }

    /// Where the first fault was, from the start of the range.
    pub(super) fn failed(&self) -> Option<u64> {
        let offset = self.slot().failed.load(Ordering::SeqCst);
        (offset != SOUND).then_some(offset)
    }

    /// Marks it as failed at `offset` from its start, as a fault there would.
    pub(super) fn fail(&self, offset: u64) {
        self.slot().mark(offset);
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let slot = self.slot();
        slot.set(0, 0, 0);
        slot.taken.store(false, Ordering::Release);
    }
}

/// Installs the handler, once.
fn install() -> io::Result<()> {
    let mut installed = INSTALLED.lock().unwrap_or_else(PoisonError::into_inner);
    if *installed {
        return Ok(());
    }
    // SAFETY: an all-zero sigaction is a valid one: the default action, nothing masked.
    let mut previous: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: it only reads the current action into a value that lives here.
    if unsafe { libc::sigaction(libc::SIGBUS, ptr::null(), &raw mut previous) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // Before the handler can run: it asks for it without waiting.
    let _ = PREVIOUS.set(previous);
    // SAFETY: as above.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = on_sigbus;
    action.sa_sigaction = handler as usize;
    // On the alternate stack where a thread has one: the fault may be one of a stack that
    // overflowed, which std's own handler, called after this one, reports.
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: the handler has the signature that SA_SIGINFO asks for, lives for ever, and calls
    // nothing that may not be called in a handler: atomics, mmap, sigaction, raise.
    if unsafe { libc::sigaction(libc::SIGBUS, &raw const action, ptr::null_mut()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    *installed = true;
    Ok(())
}

extern "C" fn on_sigbus(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes a siginfo that is valid while the handler runs; `si_addr` is
    // defined for a SIGBUS that it raised itself, which a positive code says.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr().addr()) };
    if code > 0 && ours(code, address) {
        return;
    }
    pass_on(signal, code, info, context);
}

/// Whether `address` is one of ours, whose page is then marked and gone.
fn ours(code: c_int, address: usize) -> bool {
    for slot in &TABLE {
        let Some((start, end, page)) = slot.bounds() else {
            continue;
        };
        if !(start..end).contains(&address) {
            continue;
        }
        if code == BUS_MCEERR_AO {
            // Told to any thread, so that the region may be going away meanwhile. Its next reader
            // is told too.
            return true;
        }
        // This thread is inside of an access to the region, so that it stays mapped and its slot is
        // its own.
        slot.mark(u64::try_from(address - start).unwrap_or(0));
        let first = address & !(page - 1);
        // A huge page cannot be replaced in part: then the whole region goes.
        return zeros(first, page) || zeros(start, end - start);
    }
    false
}

/// Maps zeros over what lies there.
fn zeros(start: usize, len: usize) -> bool {
    // SAFETY: errno belongs to the code that was interrupted, and is put back; the pointer is this
    // thread's.
    let errno = unsafe { *libc::__errno_location() };
    // SAFETY: the range is part of a region that this thread is reading or writing, so that nobody
    // unmaps it, and every access to a region is atomic or in assembly: no reference points into
    // it.
    let mapped = unsafe {
        libc::mmap(
            ptr::without_provenance_mut(start),
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
    mapped != libc::MAP_FAILED
}

/// Does what would have been done without this handler.
fn pass_on(signal: c_int, code: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let action = PREVIOUS.get().map_or(libc::SIG_DFL, |old| old.sa_sigaction);
    let flags = PREVIOUS.get().map_or(0, |old| old.sa_flags);
    match action {
        // Sent by somebody and ignored; the kernel lets nobody ignore a fault.
        libc::SIG_IGN if code <= 0 => return,
        libc::SIG_IGN | libc::SIG_DFL => {
            // SAFETY: the default action, nothing else, is put in place.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
        handler if flags & libc::SA_SIGINFO != 0 => {
            // SAFETY: who installed it with SA_SIGINFO promised this signature.
            let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) =
                unsafe { std::mem::transmute::<usize, _>(handler) };
            handler(signal, info, context);
        }
        handler => {
            // SAFETY: who installed it without SA_SIGINFO promised this signature.
            let handler: extern "C" fn(c_int) = unsafe { std::mem::transmute::<usize, _>(handler) };
            handler(signal);
        }
    }
    // After a fault the instruction runs again, and now ends the process. A signal that was sent
    // would be lost: std's handler puts the default action in place and returns, whatever it was
    // called for.
    if code <= 0 && is_default(signal) {
        // SAFETY: raise may be called in a handler; the signal waits until this one has returned.
        unsafe { libc::raise(signal) };
    }
}

fn is_default(signal: c_int) -> bool {
    // SAFETY: an all-zero sigaction is a valid one.
    let mut now: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: it only reads the current action into a value that lives here.
    let read = unsafe { libc::sigaction(signal, ptr::null(), &raw mut now) };
    read == 0 && now.sa_sigaction == libc::SIG_DFL
}

/// Slots in use, for tests.
#[cfg(test)]
pub(super) fn is_watched(address: usize) -> bool {
    TABLE
        .iter()
        .filter_map(Slot::bounds)
        .any(|(start, end, _)| (start..end).contains(&address))
}
