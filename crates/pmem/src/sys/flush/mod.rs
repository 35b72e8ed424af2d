//! Cache lines brought to persistent memory, by whichever instruction this processor has.

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

/// What a thread told its processor, for tests: nothing else shows it.
#[cfg(test)]
pub(crate) mod told {
    use std::cell::RefCell;

    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub(crate) enum Told {
        /// To write back the line at this address.
        Line(usize),
        Fence,
    }

    thread_local!(static TOLD: RefCell<Vec<Told>> = const { RefCell::new(Vec::new()) });

    pub(super) fn note(told: Told) {
        TOLD.with_borrow_mut(|all| all.push(told));
    }

    /// What this thread has told since this was asked last.
    pub(crate) fn take() -> Vec<Told> {
        TOLD.take()
    }
}

/// An instruction that writes a cache line back, found at run time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CacheLines {
    instruction: arch::Instruction,
    /// Bytes of a line, a power of two.
    line: usize,
}

impl CacheLines {
    /// The best that this processor has.
    ///
    /// Errors: what it lacks, in words.
    pub(crate) fn detect() -> Result<Self, &'static str> {
        let (instruction, line) = arch::detect()?;
        Ok(Self { instruction, line })
    }

    /// As its manual calls it.
    pub(crate) fn name(self) -> &'static str {
        arch::name(self.instruction)
    }

    /// Starts to write back every line that these bytes lie in.
    ///
    /// # Safety
    ///
    /// They are mapped.
    pub(super) unsafe fn flush(self, start: *const u8, len: usize) {
        if len == 0 {
            return;
        }
        let inside = start.addr() & (self.line - 1);
        let first = start.wrapping_sub(inside);
        let lines = (inside + len).div_ceil(self.line);
        // SAFETY: the caller's promise: a line with a mapped byte is mapped, since pages consist of
        // lines.
        unsafe { arch::flush(self.instruction, first, self.line, lines) };
    }

    /// Waits until what was flushed by this thread is there.
    pub(super) fn fence(self) {
        arch::fence(self.instruction);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_this_processor_has_can_be_run_on_any_range() {
        let Ok(lines) = CacheLines::detect() else {
            return;
        };
        assert!(lines.line.is_power_of_two() && lines.line >= 16);
        let bytes: Vec<u8> = (0..=255).cycle().take(1000).collect();
        for (start, len) in [(0, 1000), (1, 1), (63, 2), (999, 1), (500, 0)] {
            // SAFETY: all of it lies in the vector.
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
