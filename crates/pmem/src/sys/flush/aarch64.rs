//! aarch64: `dc cvap` (clean to the point of persistence) and `dsb sy`.
//!
//! A processor of ARMv8.2 with FEAT_DPB has it, such as the Cortex-A78 of a BlueField-3. The
//! Cortex-A72 of a BlueField-2 has not: its `dc cvac` reaches the point of coherency only, which
//! promises nothing about power.

use std::arch::asm;

#[derive(Clone, Copy, Debug)]
pub(super) struct Instruction(());

pub(super) fn detect() -> Result<(Instruction, usize), &'static str> {
    if !std::arch::is_aarch64_feature_detected!("dpb") {
        return Err(
            "this processor has no dc cvap (a Cortex-A72, so a BlueField-2, has not): no instruction reaches persistent memory",
        );
    }
    let ctr: u64;
    // SAFETY: CTR_EL0 is a read-only register that Linux lets programs read (or answers for).
    unsafe { asm!("mrs {}, ctr_el0", out(reg) ctr, options(nomem, nostack, preserves_flags)) };
    Ok((Instruction(()), line(ctr)))
}

/// The smallest data cache line: bits 16 to 19 hold the logarithm of its words of 4 bytes.
const fn line(ctr: u64) -> usize {
    4 << ((ctr >> 16) & 15)
}

pub(super) const fn name(_: Instruction) -> &'static str {
    "dc cvap"
}

/// # Safety
///
/// `lines` lines at `first` are mapped.
pub(super) unsafe fn flush(_: Instruction, first: *const u8, line: usize, lines: usize) {
    for n in 0..lines {
        let at = first.wrapping_add(n * line);
        #[cfg(test)]
        super::told::note(super::told::Told::Line(at.addr()));
        // SAFETY: the caller's promise; the processor has it, as detected. It is written as `sys`
        // because an assembler that was not told of FEAT_DPB refuses its name. It changes no
        // memory, and comes after the stores before it, since it is not said to leave memory alone.
        unsafe { asm!("sys #3, c7, c12, #1, {}", in(reg) at, options(nostack, preserves_flags)) };
    }
}

pub(super) fn fence(_: Instruction) {
    #[cfg(test)]
    super::told::note(super::told::Told::Fence);
    // SAFETY: a barrier, which does nothing but wait.
    unsafe { asm!("dsb sy", options(nostack, preserves_flags)) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_is_read_from_the_register() {
        // Of a Cortex-A72 and of an A64FX, whose lines are of 64 and 256 bytes.
        assert_eq!(line(0x8444_c004), 64);
        assert_eq!(line(0x8646_c006), 256);
    }
}
