//! Makes the header of a bundle, and computes which file contents a worker lacks.

use std::sync::Arc;

use sha2::{Digest as _, Sha256};

use super::documents::Documents;
use super::image::RequestBase;
use crate::Error;
use pierhead_bundle::Frame;
use pierhead_bundle::format::{BaseImage, Frames, Header, Sizes, UsableContents, WireToc};
use pierhead_toc::ImageToc;
use pierhead_toc::image_toc;

/// zstd level of headers that background threads compress.
pub(super) const HEADER_LEVEL: i32 = 15;

/// A base image of the request, with its TOC (table of contents). Without a TOC, the plan uses no
/// content of the base image.
pub(super) struct LoadedBase {
    pub(super) request: RequestBase,
    pub(super) toc: Option<Arc<ImageToc>>,
}

impl LoadedBase {
    /// Returns the number of contents of the base image that the worker has. These contents are the
    /// first in the TOC.
    pub(super) fn contents(&self) -> u32 {
        match &self.toc {
            None => 0,
            Some(toc) if self.request.has_layers => toc.contents().len(),
            Some(toc) => toc.visible(),
        }
    }
}

/// Makes the header of a bundle of these frames. `with_layers` says whether the worker rebuilds the
/// layers of the image. `records` is the number of bytes of all records.
pub(super) fn header(
    documents: &Documents,
    want: &ImageToc,
    base_images: &[LoadedBase],
    frames: &[Frame],
    (with_layers, records): (bool, u64),
    level: i32,
) -> Result<Header, Error> {
    let base = base_images.iter().position(|base| base.toc.is_some());
    let against = base.and_then(|at| base_images.get(at)?.toc.as_deref());
    let sizes = TocSizes { want, base_images };
    let base_image = |base: &LoadedBase| BaseImage {
        manifest: base.request.manifest,
        usable: match (&base.toc, base.request.has_layers) {
            (None, _) => UsableContents::None,
            (Some(_), false) => UsableContents::Visible,
            (Some(_), true) => UsableContents::All,
        },
    };
    Ok(Header {
        layers: with_layers,
        media_type: documents.media_type.to_string(),
        manifest: documents.manifest.clone(),
        config: documents.config.clone(),
        base_images: base_images.iter().map(base_image).collect(),
        toc: WireToc {
            base: base.and_then(|at| u16::try_from(at).ok()),
            digest: Sha256::digest(want.bytes()).into(),
            len: u32::try_from(want.bytes().len())
                .map_err(|_| Error::Image("its TOC is too long".into()))?,
            coded: image_toc::compress(want, against, level)?,
        },
        frames: Frames::encode(frames, &sizes)?,
        records,
    })
}

/// Computes which contents of the image the worker lacks. The result has one flag per content
/// number. Compares the sorted lists of digests of all images.
pub(super) fn needed(want: &ImageToc, base_images: &[LoadedBase], with_layers: bool) -> Vec<bool> {
    let all = want.contents();
    let most = if with_layers {
        all.len()
    } else {
        want.visible()
    };
    // An empty content is never needed, since it has no bytes to send.
    let is_wanted = |number| number < most && all.size(number) != Some(0);
    let mut needed: Vec<_> = (0..all.len()).map(is_wanted).collect();
    for base in base_images {
        let Some(toc) = &base.toc else { continue };
        let (base_contents, most) = (toc.contents(), base.contents());
        let by_digest = toc.by_digest();
        let mut base_numbers = by_digest.iter().filter(|number| *number < most).peekable();
        for number in want.by_digest().iter() {
            let Some(content) = all.content(number) else {
                continue;
            };
            while base_numbers
                .peek()
                .and_then(|number| base_contents.content(*number))
                .is_some_and(|in_base| in_base < content)
            {
                base_numbers.next();
            }
            let next = base_numbers.peek();
            let is_in_base =
                next.and_then(|number| base_contents.content(*number)) == Some(content);
            if is_in_base
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

/// The sizes of contents, from the TOCs of the wanted image and of the base images.
pub(super) struct TocSizes<'a> {
    pub(super) want: &'a ImageToc,
    pub(super) base_images: &'a [LoadedBase],
}

impl Sizes for TocSizes<'_> {
    fn wanted(&self, content: u32) -> Option<u64> {
        self.want.contents().size(content)
    }

    fn base(&self, request: u16, content: u32) -> Option<u64> {
        let base = self.base_images.get(usize::from(request))?;
        base.toc.as_ref()?.contents().size(content)
    }
}
