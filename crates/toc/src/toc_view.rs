//! A view of a TOC (table of contents): with all contents, or only with the contents that a mount
//! needs.

use crate::{FileDigest, ImageToc};

/// A TOC, and the number of its contents that belong to the view.
#[derive(Clone, Copy, Debug)]
pub struct TocView<'a> {
    /// The TOC behind the view.
    pub toc: &'a ImageToc,
    /// The view consists of the contents whose numbers are below this number.
    pub contents: u32,
}

impl<'a> TocView<'a> {
    /// Returns the view with the contents of the merged tree, which a mount needs.
    pub const fn mounted(toc: &'a ImageToc) -> Self {
        Self {
            toc,
            contents: toc.visible(),
        }
    }

    /// Returns the view with all contents, including those that are needed only to rebuild layers.
    pub fn with_layers(toc: &'a ImageToc) -> Self {
        Self {
            toc,
            contents: toc.contents().len(),
        }
    }

    /// Returns digest and size of a content of the view.
    pub fn content(&self, number: u32) -> Option<(FileDigest, u64)> {
        let contents = self.toc.contents();
        let meant = number < self.contents;
        meant.then(|| Some((contents.content(number)?, contents.size(number)?)))?
    }

    /// Says for each content number whether the content is in this view, is not empty, and is in
    /// none of the views `base_images`. Compares sorted lists of digests.
    pub fn lacking(&self, base_images: &[TocView<'_>]) -> Vec<bool> {
        let contents = self.toc.contents();
        let mut lacking: Vec<bool> = (0..contents.len())
            .map(|number| self.content(number).is_some_and(|(_, size)| size > 0))
            .collect();
        for base_image in base_images {
            let old = base_image.toc.by_digest();
            let mut theirs = old
                .iter()
                .filter_map(|number| Some(base_image.content(number)?.0))
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
