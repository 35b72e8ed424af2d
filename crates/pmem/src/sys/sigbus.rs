//! The handler of the signal SIGBUS, which the kernel sends for unreadable pages of mapped files.
//! The handler replaces the page by zeros and marks the region as failed, so that the reader gets
//! an error and the process does not end.
//!
//! An access to a mapped file raises SIGBUS if the file was truncated there, if its file system is
//! full, or if its memory is defective. The handler finds the region in a table of slots and marks
//! the region's slot. The handler then maps zeros over the page, so that the faulting access
//! completes. The accessing thread checks the mark after the access, and discards the bytes that it
//! read.
//!
//! The table is the only global variable of the crate, because a signal handler gets nothing but
//! the address. The handler takes no lock: to read the bounds in a slot, it checks a version, which
//! is odd while the bounds change.

use parking_lot::Mutex;
use std::ffi::{c_int, c_void};
use std::io;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};

/// Maximum number of regions that are mapped at once in this process. A daemon has one region; the
/// tests of a crate have some dozens.
pub(crate) const MAX_REGIONS: usize = 256;

/// Value of [`Slot::failed`] for a region that has not failed.
const INTACT: u64 = u64::MAX;

/// From the kernel's `siginfo.h`: defective memory that no thread has accessed yet.
const BUS_MCEERR_AO: c_int = 5;

struct Slot {
    taken: AtomicBool,
    version: AtomicU64,
    start: AtomicUsize,
    end: AtomicUsize,
    page: AtomicUsize,
    /// [`INTACT`], or the offset of the first fault in the region.
    failed: AtomicU64,
}

static TABLE: [Slot; MAX_REGIONS] = [const {
    Slot {
        taken: AtomicBool::new(false),
        version: AtomicU64::new(0),
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        page: AtomicUsize::new(0),
        failed: AtomicU64::new(INTACT),
    }
}; MAX_REGIONS];

/// The previous signal action, which is used for addresses outside of all regions.
static PREVIOUS: OnceLock<libc::sigaction> = OnceLock::new();

static INSTALLED: Mutex<bool> = Mutex::new(false);

impl Slot {
    fn set(&self, start: usize, end: usize, page: usize) {
        self.version.fetch_add(1, Ordering::AcqRel);
        // A reader that sees one of the stores after this fence also sees the odd version.
        fence(Ordering::Release);
        self.start.store(start, Ordering::Relaxed);
        self.end.store(end, Ordering::Relaxed);
        self.page.store(page, Ordering::Relaxed);
        self.failed.store(INTACT, Ordering::Relaxed);
        self.version.fetch_add(1, Ordering::Release);
    }

    /// Returns the bounds and the page size of the region. `None` while these values are changing.
    /// The bounds never change while a thread accesses the region.
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
        // The first fault is kept, because it may have caused the later faults.
        let _ = self.failed.compare_exchange(
            INTACT,
            offset.min(INTACT - 1),
            Ordering::SeqCst,
            Ordering::SeqCst,
        );
    }
}

/// A monitored range of addresses. Must be dropped before the range is unmapped.
#[derive(Debug)]
pub(super) struct MonitoredRange(usize);

impl MonitoredRange {
    /// Monitors `len` bytes at `start`, which are mapped until the returned value is dropped.
    ///
    /// Errors: the handler cannot be installed, or [`MAX_REGIONS`] ranges are monitored already.
    pub(super) fn new(start: usize, len: usize, page: usize) -> io::Result<Self> {
        install()?;
        let free = |slot: &Slot| {
            slot.taken
                .compare_exchange(false, true, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
        };
        let index = TABLE.iter().position(free).ok_or_else(|| {
            io::Error::other(format!(
                "{MAX_REGIONS} regions are mapped in this process already"
            ))
        })?;
        let range = Self(index);
        range.slot().set(start, start.saturating_add(len), page);
        Ok(range)
    }

    fn slot(&self) -> &'static Slot {
        &TABLE[self.0]
    }

    /// Returns the offset of the first fault from the start of the range.
    pub(super) fn failed(&self) -> Option<u64> {
        let offset = self.slot().failed.load(Ordering::SeqCst);
        (offset != INTACT).then_some(offset)
    }

    /// Marks the range as failed at `offset`, in the same way as a fault at this offset.
    pub(super) fn fail(&self, offset: u64) {
        self.slot().mark(offset);
    }
}

impl Drop for MonitoredRange {
    fn drop(&mut self) {
        let slot = self.slot();
        slot.set(0, 0, 0);
        slot.taken.store(false, Ordering::Release);
    }
}

/// Installs the handler, once per process.
fn install() -> io::Result<()> {
    let mut installed = INSTALLED.lock();
    if *installed {
        return Ok(());
    }
    // SAFETY: an all-zero sigaction is valid: the default action, with nothing masked.
    let mut previous: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: the call only reads the current action into a local value.
    if unsafe { libc::sigaction(libc::SIGBUS, ptr::null(), &raw mut previous) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // The value is set before the handler is installed, because the handler does not wait for the
    // value.
    let _ = PREVIOUS.set(previous);
    // SAFETY: an all-zero sigaction is valid: the default action, with nothing masked.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = on_sigbus;
    action.sa_sigaction = handler as usize;
    // The handler uses the alternate stack of a thread, if the thread has one. The fault may be a
    // stack overflow, which the previous handler (of Rust's standard library) reports.
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: the handler has the signature for SA_SIGINFO, is never freed, and calls only
    // functions that are allowed in a handler: atomics, mmap, sigaction, raise.
    if unsafe { libc::sigaction(libc::SIGBUS, &raw const action, ptr::null_mut()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    *installed = true;
    Ok(())
}

extern "C" fn on_sigbus(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes a siginfo that is valid while the handler runs. `si_addr` is
    // defined for a SIGBUS from the kernel, which has a positive code.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr().addr()) };
    if code > 0 && handle_fault(code, address) {
        return;
    }
    call_previous(signal, code, info, context);
}

/// Returns whether `address` is in a region. If `address` is in a region, marks the region as
/// failed and replaces the page by zeros.
fn handle_fault(code: c_int, address: usize) -> bool {
    for slot in &TABLE {
        let Some((start, end, page)) = slot.bounds() else {
            continue;
        };
        if !(start..end).contains(&address) {
            continue;
        }
        if code == BUS_MCEERR_AO {
            // The kernel delivers this signal to any thread, so another thread may unmap the region
            // at this time. The next reader of the page gets a fault, too.
            return true;
        }
        // This thread is accessing the region, so the region stays mapped and the slot keeps its
        // bounds.
        slot.mark(u64::try_from(address - start).unwrap_or(0));
        let first = address & !(page - 1);
        // A part of a huge page cannot be replaced by zeros. If the first call fails for this
        // reason, the handler replaces the whole region.
        return map_zeros(first, page) || map_zeros(start, end - start);
    }
    false
}

/// Maps pages of zeros over the range of addresses.
fn map_zeros(start: usize, len: usize) -> bool {
    // SAFETY: the pointer belongs to this thread. errno belongs to the code that the signal
    // interrupted, so it is restored later.
    let errno = unsafe { *libc::__errno_location() };
    // SAFETY: the range is part of a region that this thread is accessing, so no thread unmaps it.
    // All accesses to a region are atomic or in assembly, so no reference points into it.
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
    // SAFETY: the pointer belongs to this thread, as in the read of errno before.
    unsafe { *libc::__errno_location() = errno };
    mapped != libc::MAP_FAILED
}

/// Runs the action that the signal had before the handler was installed.
fn call_previous(signal: c_int, code: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let action = PREVIOUS.get().map_or(libc::SIG_DFL, |old| old.sa_sigaction);
    let flags = PREVIOUS.get().map_or(0, |old| old.sa_flags);
    match action {
        // A signal that a process has sent is ignored. A fault cannot be ignored.
        libc::SIG_IGN if code <= 0 => return,
        libc::SIG_IGN | libc::SIG_DFL => {
            // SAFETY: the call only sets the default action.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
        handler if flags & libc::SA_SIGINFO != 0 => {
            // SAFETY: a handler that was installed with SA_SIGINFO has this signature.
            let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) =
                unsafe { std::mem::transmute::<usize, _>(handler) };
            handler(signal, info, context);
        }
        handler => {
            // SAFETY: a handler that was installed without SA_SIGINFO has this signature.
            let handler: extern "C" fn(c_int) = unsafe { std::mem::transmute::<usize, _>(handler) };
            handler(signal);
        }
    }
    // After a fault, the instruction runs again and now ends the process. A sent signal would be
    // lost, because the handler of std always sets the default action and returns. Therefore a sent
    // signal is raised again.
    if code <= 0 && is_default(signal) {
        // SAFETY: raise is allowed in a handler; the signal stays pending until this handler
        // returns.
        unsafe { libc::raise(signal) };
    }
}

fn is_default(signal: c_int) -> bool {
    // SAFETY: an all-zero sigaction is valid.
    let mut now: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: the call only reads the current action into a local value.
    let read = unsafe { libc::sigaction(signal, ptr::null(), &raw mut now) };
    read == 0 && now.sa_sigaction == libc::SIG_DFL
}

/// Whether an address is monitored. Only tests use this function.
#[cfg(test)]
pub(super) fn is_monitored(address: usize) -> bool {
    TABLE
        .iter()
        .filter_map(Slot::bounds)
        .any(|(start, end, _)| (start..end).contains(&address))
}
