//! Cache-line flushes on x86-64: by `clwb`, or `clflushopt`, or `clflush`, whichever the CPU has
//! first in this order, and `sfence`.
//!
//! `clwb` keeps the line in the CPU cache; `clflushopt` and `clflush` drop it. Each `clflush` waits
//! for the `clflush` before it, so it takes several times as long. But every x86-64 CPU has
//! `clflush`.

use std::arch::asm;
use std::arch::x86_64::{__cpuid, __cpuid_count, _mm_sfence};

/// Feature bits in EBX of CPUID leaf 7 (Intel SDM).
const CLFLUSHOPT: u32 = 1 << 23;
const CLWB: u32 = 1 << 24;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Instruction {
    Clwb,
    ClflushOpt,
    Clflush,
}

#[allow(
    clippy::unnecessary_wraps,
    reason = "other CPU architectures may lack one"
)]
pub(super) fn detect() -> Result<(Instruction, usize), &'static str> {
    let features = if __cpuid(0).eax >= 7 {
        __cpuid_count(7, 0).ebx
    } else {
        0
    };
    // CPUID leaf 1, EBX bits 8 to 15: the line size of `clflush` in units of 8 bytes; 64 bytes on
    // all known CPUs.
    let line = usize::from(__cpuid(1).ebx.to_le_bytes()[1]) * 8;
    Ok((best(features), line.next_power_of_two().max(16)))
}

fn best(features: u32) -> Instruction {
    if features & CLWB != 0 {
        Instruction::Clwb
    } else if features & CLFLUSHOPT != 0 {
        Instruction::ClflushOpt
    } else {
        Instruction::Clflush
    }
}

pub(super) const fn name(instruction: Instruction) -> &'static str {
    match instruction {
        Instruction::Clwb => "clwb",
        Instruction::ClflushOpt => "clflushopt",
        Instruction::Clflush => "clflush",
    }
}

/// # Safety
///
/// The `lines` lines that start at `first` are mapped.
pub(super) unsafe fn flush(instruction: Instruction, first: *const u8, line: usize, lines: usize) {
    macro_rules! each {
        ($name:literal) => {
            for n in 0..lines {
                let at = first.wrapping_add(n * line);
                #[cfg(test)]
                super::executed::record(super::executed::Executed::Line(at.addr()));
                // SAFETY: the lines are mapped, as the caller guarantees, and the CPU has the
                // instruction, as detected. The instruction changes no memory. The compiler keeps
                // the instruction after earlier stores in the program, because it is not declared
                // as `nomem`.
                unsafe { asm!(concat!($name, " [{}]"), in(reg) at, options(nostack, preserves_flags)) };
            }
        };
    }
    match instruction {
        Instruction::Clwb => each!("clwb"),
        Instruction::ClflushOpt => each!("clflushopt"),
        Instruction::Clflush => each!("clflush"),
    }
}

pub(super) fn fence(_: Instruction) {
    #[cfg(test)]
    super::executed::record(super::executed::Executed::Fence);
    // SAFETY: every x86-64 CPU has `sfence`, which only orders stores.
    unsafe { _mm_sfence() };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_instruction_is_chosen() {
        assert_eq!(best(CLWB | CLFLUSHOPT), Instruction::Clwb);
        assert_eq!(best(CLWB), Instruction::Clwb);
        assert_eq!(best(CLFLUSHOPT), Instruction::ClflushOpt);
        assert_eq!(best(0), Instruction::Clflush);
        assert_eq!(best(!(CLWB | CLFLUSHOPT)), Instruction::Clflush);
    }

    #[test]
    fn clflush_runs_on_every_cpu() {
        let bytes = [7_u8; 256];
        let (_, line) = detect().expect("an x86-64 always has one");
        // SAFETY: the first two lines of the array are within it, and every x86-64 CPU has clflush.
        unsafe { flush(Instruction::Clflush, bytes.as_ptr(), line, 2) };
        fence(Instruction::Clflush);
        assert_eq!(bytes, [7; 256]);
    }
}
