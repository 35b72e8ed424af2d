//! Decides the order of the files in a bundle: first the files that traces (recordings of container
//! starts) name, then the files that the config of the image suggests, and then all other files.

mod elf;
mod expect;

use std::collections::HashMap;

pub use expect::Start;

use crate::Error;
use pierhead_toc::Tree;
use pierhead_toc::{FileDigest, Source};

/// Returns the libraries that a program of `size` bytes needs. Only the fuzz target calls this
/// function.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn elf_needs(size: u64, read: elf::ReadAt<'_>) -> Result<Vec<Vec<u8>>, Error> {
    Ok(elf::read(size, read)?.unwrap_or_default().needed)
}

/// The expected order in which a container start uses contents: a rank for each content number. The
/// content with the lowest rank is used first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Expected(HashMap<u32, u32>);

impl Expected {
    /// Computes the ranks: first the files that recorded container starts opened, by path and by
    /// content, then the programs that `start` runs, with their interpreters and libraries.
    ///
    /// # Errors
    /// Errors of the source. A missing or malformed program adds no ranks, and is not an error.
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
                .and_then(|content| tree.image().toc.find(&content));
            if let Some(number) = tree.file(&one.path).or(same) {
                expected.push(number);
            }
        }
        for number in expect::expect(tree, start, source)? {
            expected.push(number);
        }
        Ok(expected)
    }

    /// Returns the rank of a content. All contents without an expected use have the same highest
    /// rank.
    pub fn rank(&self, content: u32) -> u32 {
        self.0.get(&content).copied().unwrap_or(u32::MAX)
    }

    /// Returns the contents that have a rank, in the order of their ranks.
    pub fn in_order(&self) -> Vec<u32> {
        let mut order: Vec<_> = self
            .0
            .iter()
            .map(|(number, rank)| (*rank, *number))
            .collect();
        order.sort_unstable();
        order.into_iter().map(|(_, number)| number).collect()
    }

    /// Returns the number of contents that have a rank.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether no content has a rank.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn push(&mut self, number: u32) {
        let next = u32::try_from(self.0.len()).unwrap_or(u32::MAX);
        self.0.entry(number).or_insert(next);
    }
}

/// A file that a recorded container start opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Traced {
    /// The path of the file in the traced image.
    pub path: Vec<u8>,
    /// The digest of the file's content, if the TOC of the traced image still exists. With the
    /// digest, planning also finds the file under another path.
    pub content: Option<FileDigest>,
}
