//! Flushes cache lines to persistent memory by the fastest suitable instruction of this CPU.

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "aarch64")]
use aarch64 as arch;

#[cfg(target_arch = "x86_64")]
mod x86_64;
#[cfg(target_arch = "x86_64")]
use x86_64 as arch;

#[cfg(not(any(target_arch = "aarch64", target_arch = "x86_64")))]
mod none;
#[cfg(not(any(target_arch = "aarch64", target_arch = "x86_64")))]
use none as arch;

/// Records the instructions that a thread executed. Only tests use this module.
#[cfg(test)]
pub(crate) mod executed {
    use std::cell::RefCell;

    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub(crate) enum Executed {
        /// The cache line at this address was written back.
        Line(usize),
        Fence,
    }

    thread_local!(static EXECUTED: RefCell<Vec<Executed>> = const { RefCell::new(Vec::new()) });

    pub(super) fn record(executed: Executed) {
        EXECUTED.with_borrow_mut(|all| all.push(executed));
    }

    /// Returns the instructions that this thread has executed since the last call.
    pub(crate) fn take() -> Vec<Executed> {
        EXECUTED.take()
    }
}

/// The instruction that writes a cache line back. The best instruction is detected when the program
/// runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CacheLines {
    instruction: arch::Instruction,
    /// Length of a cache line in bytes, a power of two.
    line: usize,
}

impl CacheLines {
    /// Detects the best flush instruction of this CPU.
    ///
    /// Errors: a text that says which instruction the CPU lacks.
    pub(crate) fn detect() -> Result<Self, &'static str> {
        let (instruction, line) = arch::detect()?;
        Ok(Self { instruction, line })
    }

    /// Returns the name of the instruction, as the manual of the CPU has it.
    pub(crate) fn name(self) -> &'static str {
        arch::name(self.instruction)
    }

    /// Starts to write back every cache line that contains these bytes.
    ///
    /// # Safety
    ///
    /// The `len` bytes at `start` are mapped.
    pub(super) unsafe fn flush(self, start: *const u8, len: usize) {
        if len == 0 {
            return;
        }
        let inside = start.addr() & (self.line - 1);
        let first = start.wrapping_sub(inside);
        let lines = (inside + len).div_ceil(self.line);
        // SAFETY: the bytes are mapped, as the caller guarantees. A line with a mapped byte is
        // mapped as a whole, because pages consist of whole lines.
        unsafe { arch::flush(self.instruction, first, self.line, lines) };
    }

    /// Waits until the lines that this thread flushed are durable.
    pub(super) fn fence(self) {
        arch::fence(self.instruction);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flush_instruction_runs_on_any_range() {
        let Ok(lines) = CacheLines::detect() else {
            return;
        };
        assert!(lines.line.is_power_of_two() && lines.line >= 16);
        let bytes: Vec<u8> = (0..=255).cycle().take(1000).collect();
        for (start, len) in [(0, 1000), (1, 1), (63, 2), (999, 1), (500, 0)] {
            // SAFETY: all flushed bytes are within the vector.
            unsafe { lines.flush(bytes[start..].as_ptr(), len) };
            lines.fence();
        }
        assert!(
            bytes
                .iter()
                .zip(0..)
                .all(|(byte, n): (&u8, usize)| usize::from(*byte) == n % 256)
        );
    }
}
