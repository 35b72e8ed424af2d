//! Copies bytes to and from mapped memory that other threads may access at the same time.
//!
//! Each access reads or writes a whole word atomically, in Rust or in equivalent assembly. A plain
//! copy of memory that changes at the same time would be undefined behaviour in Rust.

use std::sync::atomic::{AtomicU64, Ordering};

const WORD: usize = size_of::<u64>();

/// Minimum length in bytes for `rep movsq`: for a shorter copy, the start-up of the instruction
/// takes more time than it saves.
#[cfg(target_arch = "x86_64")]
const MIN_STRING_COPY: usize = 256;

/// Minimum length in bytes for stores that bypass the CPU cache. The number was measured with
/// `examples/probe.rs`, as `docs/explanation/pmem.md` explains.
#[cfg(target_arch = "x86_64")]
const MIN_CACHE_BYPASS: usize = 4096;

/// Returns the word that contains `from`, and the position of `from` in this word.
fn word_of(from: *const u8) -> (*const u8, usize) {
    let inside = from.addr() % WORD;
    (from.wrapping_sub(inside), inside)
}

/// # Safety
///
/// The word at `at` is mapped for reading and writing, and only this module accesses it.
unsafe fn atomic<'a>(at: *const u8) -> &'a AtomicU64 {
    // SAFETY: guaranteed by the caller. `at` is aligned, because it comes from `word_of`, or is a
    // whole number of words away from such a pointer.
    unsafe { AtomicU64::from_ptr(at.cast_mut().cast()) }
}

/// Reads `buf.len()` bytes at `from`. Each aligned word is read atomically.
///
/// # Safety
///
/// The words that contain these bytes are mapped for reading and writing, and only this module
/// accesses them.
pub(super) unsafe fn load(from: *const u8, mut buf: &mut [u8]) {
    let (mut at, inside) = word_of(from);
    if inside > 0 {
        // SAFETY: the caller guarantees that the accessed word is mapped.
        let word = unsafe { atomic(at) }.load(Ordering::Relaxed).to_ne_bytes();
        let (head, rest) = buf.split_at_mut(buf.len().min(WORD - inside));
        head.copy_from_slice(&word[inside..inside + head.len()]);
        buf = rest;
        at = at.wrapping_add(WORD);
    }
    #[cfg(target_arch = "x86_64")]
    if buf.len() >= MIN_STRING_COPY {
        let (body, rest) = buf.split_at_mut(buf.len() / WORD * WORD);
        // SAFETY: guaranteed by the caller for the source; the destination is a slice of this
        // length.
        unsafe { words(at, body.as_mut_ptr(), body.len() / WORD) };
        at = at.wrapping_add(body.len());
        buf = rest;
    }
    for part in buf.chunks_mut(WORD) {
        // SAFETY: the caller guarantees that the accessed word is mapped.
        let word = unsafe { atomic(at) }.load(Ordering::Relaxed).to_ne_bytes();
        part.copy_from_slice(&word[..part.len()]);
        at = at.wrapping_add(WORD);
    }
}

/// Writes `bytes` to `to`. Each aligned word is written atomically. The other bytes of the first
/// and the last word stay unchanged.
///
/// # Safety
///
/// The same conditions as for [`load`].
pub(super) unsafe fn save(to: *mut u8, mut bytes: &[u8]) {
    let (at, inside) = word_of(to);
    let mut at = at.cast_mut();
    if inside > 0 {
        let (head, rest) = bytes.split_at(bytes.len().min(WORD - inside));
        // SAFETY: the caller guarantees that the accessed word is mapped.
        unsafe { merge(at, inside, head) };
        bytes = rest;
        at = at.wrapping_add(WORD);
    }
    #[cfg(target_arch = "x86_64")]
    if bytes.len() >= MIN_STRING_COPY {
        let (body, rest) = bytes.split_at(bytes.len() / WORD * WORD);
        // SAFETY: guaranteed by the caller for the destination; the source is a slice of this
        // length.
        unsafe {
            if body.len() >= MIN_CACHE_BYPASS {
                past_cache(body, at);
            } else {
                words(body.as_ptr(), at, body.len() / WORD);
            }
        }
        at = at.wrapping_add(body.len());
        bytes = rest;
    }
    let (body, tail) = bytes.as_chunks::<WORD>();
    for word in body {
        // SAFETY: the caller guarantees that the accessed word is mapped.
        unsafe { atomic(at) }.store(u64::from_ne_bytes(*word), Ordering::Relaxed);
        at = at.wrapping_add(WORD);
    }
    if !tail.is_empty() {
        // SAFETY: the caller guarantees that the accessed word is mapped.
        unsafe { merge(at, 0, tail) };
    }
}

/// Writes the aligned word at `to`. A reader that sees this word also sees all earlier writes of
/// this thread.
///
/// # Safety
///
/// The same conditions as for [`load`]. `to` must be a multiple of 8.
pub(super) unsafe fn store(to: *mut u8, word: u64) {
    // SAFETY: the caller guarantees that the accessed word is mapped.
    unsafe { atomic(to) }.store(word.to_le(), Ordering::Release);
}

/// Reads one word at `from` and discards it. If the page is unreadable, the fault occurs in this
/// call.
///
/// # Safety
///
/// The same conditions as for [`load`].
pub(super) unsafe fn touch(from: *const u8) {
    // SAFETY: the caller guarantees that the accessed word is mapped.
    let word = unsafe { atomic(word_of(from).0) }.load(Ordering::Relaxed);
    std::hint::black_box(word);
}

/// Replaces some bytes of one word, atomically.
///
/// # Safety
///
/// The same conditions as for [`load`]. `at` must be a multiple of 8, and the bytes must end within
/// the word.
unsafe fn merge(at: *mut u8, inside: usize, bytes: &[u8]) {
    let with = |old: u64| {
        let mut word = old.to_ne_bytes();
        word[inside..inside + bytes.len()].copy_from_slice(bytes);
        Some(u64::from_ne_bytes(word))
    };
    // SAFETY: guaranteed by the caller. The closure always returns `Some`.
    let _ = unsafe { atomic(at) }.fetch_update(Ordering::Relaxed, Ordering::Relaxed, with);
}

/// Copies `count` words from `from` to `to`.
///
/// # Safety
///
/// `from` is readable and `to` writable for `count` words.
#[cfg(target_arch = "x86_64")]
unsafe fn words(from: *const u8, to: *mut u8, count: usize) {
    // SAFETY: guaranteed by the caller; the direction flag is clear at the entry of any assembly.
    // Mapped memory is accessed by whole aligned words, like relaxed atomics.
    unsafe {
        std::arch::asm!(
            "rep movsq",
            inout("rcx") count => _,
            inout("rsi") from => _,
            inout("rdi") to => _,
            options(nostack, preserves_flags),
        );
    }
}

/// Copies words to `to` by stores that bypass the CPU cache, and waits until readers see the words.
///
/// # Safety
///
/// `to` is writable for the length of `bytes`. Both `to` and the length are multiples of 8.
#[cfg(target_arch = "x86_64")]
unsafe fn past_cache(bytes: &[u8], to: *mut u8) {
    const LINE: usize = 64;
    let before = to.addr().next_multiple_of(LINE) - to.addr();
    let (head, rest) = bytes.split_at(before.min(bytes.len()));
    let (body, tail) = rest.split_at(rest.len() / LINE * LINE);
    let middle = to.wrapping_add(head.len());
    // SAFETY: three consecutive parts of the range that the caller guarantees, each of whole words.
    // The middle part stores whole lines at multiples of 64. The registers are declared, and
    // `sfence` orders these stores before later stores.
    unsafe {
        words(bytes.as_ptr(), to, head.len() / WORD);
        if !body.is_empty() {
            std::arch::asm!(
                "2:",
                "movdqu {a}, [{from}]",
                "movdqu {b}, [{from} + 16]",
                "movdqu {c}, [{from} + 32]",
                "movdqu {d}, [{from} + 48]",
                "movntdq [{to}], {a}",
                "movntdq [{to} + 16], {b}",
                "movntdq [{to} + 32], {c}",
                "movntdq [{to} + 48], {d}",
                "add {from}, 64",
                "add {to}, 64",
                "sub {left}, 64",
                "jnz 2b",
                "sfence",
                from = inout(reg) body.as_ptr() => _,
                to = inout(reg) middle => _,
                left = inout(reg) body.len() => _,
                a = out(xmm_reg) _,
                b = out(xmm_reg) _,
                c = out(xmm_reg) _,
                d = out(xmm_reg) _,
                options(nostack),
            );
        }
        words(
            tail.as_ptr(),
            middle.wrapping_add(body.len()),
            tail.len() / WORD,
        );
    }
}
