//! An image in a plan, and which of its contents others lack.

use crate::{FileDigest, ImageToc};

/// An image that is wanted or had: its table, and how much of it.
#[derive(Clone, Copy, Debug)]
pub struct TocView<'a> {
    /// The merged view.
    pub toc: &'a ImageToc,
    /// Contents with lower numbers are meant, those from here on are not.
    pub contents: u32,
}

impl<'a> TocView<'a> {
    /// What a mount needs: the contents of the merged tree.
    pub const fn mounted(toc: &'a ImageToc) -> Self {
        Self {
            toc,
            contents: toc.visible(),
        }
    }

    /// What rebuilding the layers needs besides.
    pub fn with_layers(toc: &'a ImageToc) -> Self {
        Self {
            toc,
            contents: toc.contents().len(),
        }
    }

    /// Digest and size of a content that is meant.
    pub fn content(&self, number: u32) -> Option<(FileDigest, u64)> {
        let contents = self.toc.contents();
        let meant = number < self.contents;
        meant.then(|| Some((contents.content(number)?, contents.size(number)?)))?
    }

    /// By number: whether a content is meant, not empty and in none of the others. A merge of sorted lists.
    pub fn lacking(&self, haves: &[TocView<'_>]) -> Vec<bool> {
        let contents = self.toc.contents();
        let mut lacking: Vec<bool> = (0..contents.len())
            .map(|number| self.content(number).is_some_and(|(_, size)| size > 0))
            .collect();
        for have in haves {
            let old = have.toc.by_digest();
            let mut theirs = old
                .iter()
                .filter_map(|number| Some(have.content(number)?.0))
                .peekable();
            for number in self.toc.by_digest().iter() {
                let Some(content) = contents.content(number) else {
                    continue;
                };
                while theirs.next_if(|old| *old < content).is_some() {}
                if theirs.peek() == Some(&content)
                    && let Some(lacking) = at(number).and_then(|at| lacking.get_mut(at))
                {
                    *lacking = false;
                }
            }
        }
        lacking
    }
}

fn at(number: u32) -> Option<usize> {
    usize::try_from(number).ok()
}
