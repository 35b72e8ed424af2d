//! Cache-line flushes on aarch64 with the instruction `dc cvap` (clean to the point of persistence)
//! and the barrier `dsb sy`.
//!
//! `dc cvap` needs FEAT_DPB (ARMv8.2), which the Cortex-A78 of a BlueField-3 has. The Cortex-A72 of
//! a BlueField-2 lacks FEAT_DPB: its instruction `dc cvac` reaches only the point of coherency,
//! which guarantees nothing about a power cut.

use std::arch::asm;

#[derive(Clone, Copy, Debug)]
pub(super) struct Instruction(());

pub(super) fn detect() -> Result<(Instruction, usize), &'static str> {
    if !std::arch::is_aarch64_feature_detected!("dpb") {
        return Err(
            "this CPU has no dc cvap (a Cortex-A72, as in a BlueField-2, lacks it): no instruction reaches persistent memory",
        );
    }
    let ctr: u64;
    // SAFETY: CTR_EL0 is a read-only register that Linux lets programs read, or emulates.
    unsafe { asm!("mrs {}, ctr_el0", out(reg) ctr, options(nomem, nostack, preserves_flags)) };
    Ok((Instruction(()), line(ctr)))
}

/// Returns the size of the smallest data cache line in bytes. Bits 16 to 19 of the register are the
/// logarithm of the number of 4-byte words in a line.
const fn line(ctr: u64) -> usize {
    4 << ((ctr >> 16) & 15)
}

pub(super) const fn name(_: Instruction) -> &'static str {
    "dc cvap"
}

/// # Safety
///
/// The `lines` lines that start at `first` are mapped.
pub(super) unsafe fn flush(_: Instruction, first: *const u8, line: usize, lines: usize) {
    for n in 0..lines {
        let at = first.wrapping_add(n * line);
        #[cfg(test)]
        super::executed::record(super::executed::Executed::Line(at.addr()));
        // SAFETY: the lines are mapped, as the caller guarantees, and the CPU has the instruction,
        // as detected. The instruction is written as `sys`, because an assembler without FEAT_DPB
        // rejects its name. The instruction changes no memory. The compiler keeps the instruction
        // after earlier stores in the program, because it is not declared as `nomem`.
        unsafe { asm!("sys #3, c7, c12, #1, {}", in(reg) at, options(nostack, preserves_flags)) };
    }
}

pub(super) fn fence(_: Instruction) {
    #[cfg(test)]
    super::executed::record(super::executed::Executed::Fence);
    // SAFETY: a barrier, which only waits.
    unsafe { asm!("dsb sy", options(nostack, preserves_flags)) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_size_is_read_from_the_register() {
        // The values are from a Cortex-A72 with lines of 64 bytes and an A64FX with lines of 256
        // bytes.
        assert_eq!(line(0x8444_c004), 64);
        assert_eq!(line(0x8646_c006), 256);
    }
}
