//! The order of sending: what a start was seen to open, then what it is expected to open, then the rest.

mod elf;
mod expect;

use std::collections::HashMap;

pub use expect::Start;

use pierhead_toc::Tree;
use pierhead_toc::{Error, FileDigest, Source};

/// The libraries that a program of `size` bytes asks for; for the fuzzer.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn elf_needs(size: u64, read: elf::ReadAt<'_>) -> Result<Vec<Vec<u8>>, Error> {
    Ok(elf::read(size, read)?.unwrap_or_default().needed)
}

/// Ranks of contents by number; the lower, the earlier.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Expected(HashMap<u32, u32>);

impl Expected {
    /// Of an image: first what traces say (of itself or of versions before it, by path and by content), then
    /// what `start` runs, with interpreters and libraries.
    ///
    /// # Errors
    /// Those of the source. A program that is not there, or not sound, expects nothing.
    pub fn of(
        tree: &Tree<'_>,
        traced: &[Traced],
        start: &Start,
        source: &dyn Source,
    ) -> Result<Self, Error> {
        let mut expected = Self::default();
        for one in traced {
            let same = one
                .content
                .and_then(|content| tree.image().table.find(&content));
            if let Some(number) = tree.file(&one.path).or(same) {
                expected.push(number);
            }
        }
        for number in expect::expect(tree, start, source)? {
            expected.push(number);
        }
        Ok(expected)
    }

    /// Of a content; the same highest one for all that are not expected.
    pub fn rank(&self, content: u32) -> u32 {
        self.0.get(&content).copied().unwrap_or(u32::MAX)
    }

    /// The contents that are expected, the earliest first.
    pub fn in_order(&self) -> Vec<u32> {
        let mut order: Vec<_> = self
            .0
            .iter()
            .map(|(number, rank)| (*rank, *number))
            .collect();
        order.sort_unstable();
        order.into_iter().map(|(_, number)| number).collect()
    }

    /// How many are expected.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether nothing is.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn push(&mut self, number: u32) {
        let next = u32::try_from(self.0.len()).unwrap_or(u32::MAX);
        self.0.entry(number).or_insert(next);
    }
}

/// A file that a start opened, in the image that was traced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Traced {
    /// Its path there.
    pub path: Vec<u8>,
    /// What it had in it, if that is still known: then it is found under another path too.
    pub content: Option<FileDigest>,
}
