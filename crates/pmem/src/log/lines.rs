//! Reads 64-byte lines (cache lines) of a region by offset, and keeps the page of the last line in
//! memory. Single unreadable lines are no error; too many unreadable lines are an error.

use super::layout::{LINE, Line};
use crate::{Error, Medium};

/// Number of bytes per read. Each segment begins at a multiple of this number.
const PAGE: u64 = 4096;
/// Maximum number of unreadable lines. A region with more unreadable lines is not opened.
const MAX_UNREADABLE_LINES: u64 = 1 << 12;

/// Reads the 64-byte lines of a region by offset. Reads a page once for successive lines of the
/// page.
pub(super) struct Lines<'a, M> {
    medium: &'a M,
    page: Option<u64>,
    bytes: Vec<u8>,
    /// Number of unreadable lines that were found so far.
    unreadable: u64,
}

impl<'a, M: Medium> Lines<'a, M> {
    pub(super) fn new(medium: &'a M) -> Self {
        Self {
            medium,
            page: None,
            bytes: vec![0; 4096],
            unreadable: 0,
        }
    }

    /// Returns the line at `at`, which is within a segment. `None` when the line is unreadable.
    ///
    /// # Errors
    /// [`Error::Medium`] when too many lines are unreadable.
    pub(super) fn at(&mut self, at: u64) -> Result<Option<Line>, Error> {
        let page = at / PAGE * PAGE;
        if self.page != Some(page) {
            let read = self.medium.inspect(page, &mut self.bytes);
            self.page = read.is_ok().then_some(page);
        }
        let mut line = [0; 64];
        if self.page.is_some() {
            let from = usize::try_from(at - page).unwrap_or(0);
            line.copy_from_slice(&self.bytes[from..from + 64]);
            return Ok(Some(line));
        }
        match self.medium.inspect(at, &mut line) {
            Ok(()) => Ok(Some(line)),
            Err(error) => {
                self.unreadable += 1;
                match self.unreadable > MAX_UNREADABLE_LINES {
                    true => Err(error),
                    false => Ok(None),
                }
            }
        }
    }

    /// Returns the offsets of the lines from `from` to `to`.
    pub(super) fn offsets(from: u64, to: u64) -> impl Iterator<Item = u64> {
        (from..to.saturating_sub(LINE - 1)).step_by(64)
    }
}
