//! The header of a bundle, and the base images that it counts on.

use std::sync::Arc;

use sha2::{Digest as _, Sha256};

use super::documents::Documents;
use super::image::RequestBase;
use pierhead_bundle::Frame;
use pierhead_bundle::format::{BaseImage, Frames, Header, Sizes, UsableContents, WireToc};
use pierhead_toc::image_toc;
use pierhead_toc::{Error, ImageToc};

/// The zstd level of headers that are made in the background.
pub(super) const HEADER_LEVEL: i32 = 15;

/// An image of the request, with its table when it is known.
pub(super) struct LoadedBase {
    pub(super) have: RequestBase,
    pub(super) table: Option<Arc<ImageToc>>,
}

impl LoadedBase {
    /// How many of its contents, from the first on, the worker has.
    pub(super) fn contents(&self) -> u32 {
        match &self.table {
            None => 0,
            Some(table) if self.have.has_layers => table.contents().len(),
            Some(table) => table.visible(),
        }
    }
}

/// The header of a bundle of these frames. `layers`: whether they come too, and bytes of all records.
pub(super) fn header(
    documents: &Documents,
    want: &ImageToc,
    bases: &[LoadedBase],
    frames: &[Frame],
    (layers, records): (bool, u64),
    level: i32,
) -> Result<Header, Error> {
    let base = bases.iter().position(|base| base.table.is_some());
    let against = base.and_then(|at| bases.get(at)?.table.as_deref());
    let sizes = TocSizes {
        want,
        base_images: bases,
    };
    let had = |base: &LoadedBase| BaseImage {
        manifest: base.have.manifest,
        usable: match (&base.table, base.have.has_layers) {
            (None, _) => UsableContents::None,
            (Some(_), false) => UsableContents::Visible,
            (Some(_), true) => UsableContents::All,
        },
    };
    Ok(Header {
        layers,
        media_type: documents.media_type.to_string(),
        manifest: documents.manifest.clone(),
        config: documents.config.clone(),
        base_images: bases.iter().map(had).collect(),
        table: WireToc {
            base: base.and_then(|at| u16::try_from(at).ok()),
            digest: Sha256::digest(want.bytes()).into(),
            len: u32::try_from(want.bytes().len())
                .map_err(|_| Error::Image("its table is too long".into()))?,
            coded: image_toc::encode(want, against, level)?,
        },
        frames: Frames::encode(frames, &sizes)?,
        records,
    })
}

/// Which contents of the image, by number, the worker lacks. One walk over sorted tables.
pub(super) fn needed(want: &ImageToc, bases: &[LoadedBase], layers: bool) -> Vec<bool> {
    let all = want.contents();
    let most = if layers { all.len() } else { want.visible() };
    // Empty contents have no bytes to come.
    let is_wanted = |number| number < most && all.size(number) != Some(0);
    let mut needed: Vec<_> = (0..all.len()).map(is_wanted).collect();
    for base in bases {
        let Some(table) = &base.table else { continue };
        let (theirs, most) = (table.contents(), base.contents());
        let by_digest = table.by_digest();
        let mut had = by_digest.iter().filter(|number| *number < most).peekable();
        for number in want.by_digest().iter() {
            let Some(content) = all.content(number) else {
                continue;
            };
            while had
                .peek()
                .and_then(|number| theirs.content(*number))
                .is_some_and(|had| had < content)
            {
                had.next();
            }
            let is_had = had.peek().and_then(|number| theirs.content(*number)) == Some(content);
            if is_had
                && let Some(needed) = usize::try_from(number)
                    .ok()
                    .and_then(|at| needed.get_mut(at))
            {
                *needed = false;
            }
        }
    }
    needed
}

pub(super) fn is_set(needed: &[bool], content: u32) -> bool {
    usize::try_from(content).is_ok_and(|at| needed.get(at) == Some(&true))
}

/// Sizes from tables.
pub(super) struct TocSizes<'a> {
    pub(super) want: &'a ImageToc,
    pub(super) base_images: &'a [LoadedBase],
}

impl Sizes for TocSizes<'_> {
    fn wanted(&self, content: u32) -> Option<u64> {
        self.want.contents().size(content)
    }

    fn base(&self, have: u16, content: u32) -> Option<u64> {
        let base = self.base_images.get(usize::from(have))?;
        base.table.as_ref()?.contents().size(content)
    }
}
