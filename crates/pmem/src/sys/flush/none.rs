//! Cache-line flushes on CPU architectures without a supported flush instruction: reports that
//! there is none.

#[derive(Clone, Copy, Debug)]
pub(super) enum Instruction {}

pub(super) fn detect() -> Result<(Instruction, usize), &'static str> {
    Err("no flush instruction is supported on this CPU architecture")
}

pub(super) fn name(instruction: Instruction) -> &'static str {
    match instruction {}
}

/// # Safety
///
/// This function cannot be called, because no `Instruction` exists on this architecture.
pub(super) unsafe fn flush(instruction: Instruction, _: *const u8, _: usize, _: usize) {
    match instruction {}
}

pub(super) fn fence(instruction: Instruction) {
    match instruction {}
}
