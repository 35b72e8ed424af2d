//! Bytes into and out of mapped memory that other threads may be reading and writing.
//!
//! All is done by atomic words, or in assembly that does the same, since a plain copy of memory
//! that changes meanwhile has no meaning in the language.

use std::sync::atomic::{AtomicU64, Ordering};

const WORD: usize = size_of::<u64>();

/// From here on whole words are copied by the processor's own string copy: below, its start costs
/// more than it saves.
#[cfg(target_arch = "x86_64")]
const STRING: usize = 256;

/// From here on stores go past the cache: measured with `examples/probe.rs`, see
/// `docs/explanation/pmem.md`.
#[cfg(target_arch = "x86_64")]
const PAST_CACHE: usize = 4096;

/// The word that `from` lies in, and its place there.
fn word_of(from: *const u8) -> (*const u8, usize) {
    let inside = from.addr() % WORD;
    (from.wrapping_sub(inside), inside)
}

/// # Safety
///
/// The word at `at` is mapped for reading and writing, and nothing but this module touches it.
unsafe fn atomic<'a>(at: *const u8) -> &'a AtomicU64 {
    // SAFETY: the caller's promise; `at` is aligned, since it comes from `word_of` or steps by
    // words from there.
    unsafe { AtomicU64::from_ptr(at.cast_mut().cast()) }
}

/// Reads `buf.len()` bytes. An aligned word is read whole.
///
/// # Safety
///
/// The words that these bytes lie in are mapped for reading and writing, and nothing but this
/// module touches them.
pub(super) unsafe fn load(from: *const u8, mut buf: &mut [u8]) {
    let (mut at, inside) = word_of(from);
    if inside > 0 {
        // SAFETY: the caller's promise.
        let word = unsafe { atomic(at) }.load(Ordering::Relaxed).to_ne_bytes();
        let (head, rest) = buf.split_at_mut(buf.len().min(WORD - inside));
        head.copy_from_slice(&word[inside..inside + head.len()]);
        buf = rest;
        at = at.wrapping_add(WORD);
    }
    #[cfg(target_arch = "x86_64")]
    if buf.len() >= STRING {
        let (body, rest) = buf.split_at_mut(buf.len() / WORD * WORD);
        // SAFETY: the caller's promise for what is read; the other side is a slice of that length.
        unsafe { words(at, body.as_mut_ptr(), body.len() / WORD) };
        at = at.wrapping_add(body.len());
        buf = rest;
    }
    for part in buf.chunks_mut(WORD) {
        // SAFETY: the caller's promise.
        let word = unsafe { atomic(at) }.load(Ordering::Relaxed).to_ne_bytes();
        part.copy_from_slice(&word[..part.len()]);
        at = at.wrapping_add(WORD);
    }
}

/// Writes `bytes`. An aligned word is written whole, and bytes beside them in the same word are
/// left alone.
///
/// # Safety
///
/// As for [`load`].
pub(super) unsafe fn save(to: *mut u8, mut bytes: &[u8]) {
    let (at, inside) = word_of(to);
    let mut at = at.cast_mut();
    if inside > 0 {
        let (head, rest) = bytes.split_at(bytes.len().min(WORD - inside));
        // SAFETY: the caller's promise.
        unsafe { merge(at, inside, head) };
        bytes = rest;
        at = at.wrapping_add(WORD);
    }
    #[cfg(target_arch = "x86_64")]
    if bytes.len() >= STRING {
        let (body, rest) = bytes.split_at(bytes.len() / WORD * WORD);
        // SAFETY: the caller's promise for what is written; the other side is a slice of that
        // length.
        unsafe {
            if body.len() >= PAST_CACHE {
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
        // SAFETY: the caller's promise.
        unsafe { atomic(at) }.store(u64::from_ne_bytes(*word), Ordering::Relaxed);
        at = at.wrapping_add(WORD);
    }
    if !tail.is_empty() {
        // SAFETY: the caller's promise.
        unsafe { merge(at, 0, tail) };
    }
}

/// Writes the aligned word at `to`; who sees it sees what this thread wrote before.
///
/// # Safety
///
/// As for [`load`]; `to` is a multiple of 8.
pub(super) unsafe fn store(to: *mut u8, word: u64) {
    // SAFETY: the caller's promise.
    unsafe { atomic(to) }.store(word.to_le(), Ordering::Release);
}

/// Reads a word of what lies at `from` and forgets it, for the fault that it may raise.
///
/// # Safety
///
/// As for [`load`].
pub(super) unsafe fn touch(from: *const u8) {
    // SAFETY: the caller's promise.
    let word = unsafe { atomic(word_of(from).0) }.load(Ordering::Relaxed);
    std::hint::black_box(word);
}

/// Replaces some bytes of a word.
///
/// # Safety
///
/// As for [`load`]; `at` is a multiple of 8, and the bytes end within the word.
unsafe fn merge(at: *mut u8, inside: usize, bytes: &[u8]) {
    let with = |old: u64| {
        let mut word = old.to_ne_bytes();
        word[inside..inside + bytes.len()].copy_from_slice(bytes);
        Some(u64::from_ne_bytes(word))
    };
    // SAFETY: the caller's promise. The closure never says no.
    let _ = unsafe { atomic(at) }.fetch_update(Ordering::Relaxed, Ordering::Relaxed, with);
}

/// Copies `count` words.
///
/// # Safety
///
/// `from` can be read and `to` written for `count` words.
#[cfg(target_arch = "x86_64")]
unsafe fn words(from: *const u8, to: *mut u8, count: usize) {
    // SAFETY: the caller's promise; the direction flag is clear at the entry of any assembly. What
    // is mapped is read and written by whole aligned words, as relaxed atomics would.
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

/// Copies words to `to`, leaving the cache out, and waits until readers see them.
///
/// # Safety
///
/// `to` can be written for the length of `bytes`, is a multiple of 8, and so is the length.
#[cfg(target_arch = "x86_64")]
unsafe fn past_cache(bytes: &[u8], to: *mut u8) {
    const LINE: usize = 64;
    let before = to.addr().next_multiple_of(LINE) - to.addr();
    let (head, rest) = bytes.split_at(before.min(bytes.len()));
    let (body, tail) = rest.split_at(rest.len() / LINE * LINE);
    let middle = to.wrapping_add(head.len());
    // SAFETY: three parts of what the caller promised, one after the other, each of whole words. In
    // the middle one whole lines are stored at a multiple of 64; the registers are declared, and
    // sfence orders these stores before later ones, as those of the language are.
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
