//! The order of frames in a bundle: first files that traces recorded, then files that the config of
//! the image suggests, then all other files.

mod elf;
mod expect;

use std::collections::HashMap;

pub use expect::Start;

use crate::Error;
use pierhead_toc::Tree;
use pierhead_toc::{FileDigest, Source};

/// The libraries that a program of `size` bytes needs. For the fuzzer.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn elf_needs(size: u64, read: elf::ReadAt<'_>) -> Result<Vec<Vec<u8>>, Error> {
    Ok(elf::read(size, read)?.unwrap_or_default().needed)
}

/// The expected order in which a container start uses contents: a rank by content number. The
/// content with the lowest rank is used first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Expected(HashMap<u32, u32>);

impl Expected {
    /// Computes the ranks: first the files that recorded container starts opened, by path and by
    /// content, then the programs that `start` runs, with their interpreters and libraries.
    ///
    /// # Errors
    /// Errors of the source. A missing or malformed program is no error and adds no ranks.
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

    /// The rank of a content. All contents without an expected use have the same highest rank.
    pub fn rank(&self, content: u32) -> u32 {
        self.0.get(&content).copied().unwrap_or(u32::MAX)
    }

    /// The contents with a rank, the earliest first.
    pub fn in_order(&self) -> Vec<u32> {
        let mut order: Vec<_> = self
            .0
            .iter()
            .map(|(number, rank)| (*rank, *number))
            .collect();
        order.sort_unstable();
        order.into_iter().map(|(_, number)| number).collect()
    }

    /// Number of contents with a rank.
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
    /// Its path in the traced image.
    pub path: Vec<u8>,
    /// The digest of its contents, if the TOC of the traced image still exists. With the digest,
    /// the planner finds the file also under another path.
    pub content: Option<FileDigest>,
}
